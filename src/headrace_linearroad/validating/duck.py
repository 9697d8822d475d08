"""The validator's DuckDB connection, for group-bys and joins over the whole input."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb

Connection = duckdb.DuckDBPyConnection
MEMORY = "2GB"  # DuckDB spills to a folder beyond this


@contextmanager
def connection() -> Iterator[Connection]:
    folder = tempfile.mkdtemp(prefix="linearroad-")
    config: dict[str, Any] = {"memory_limit": MEMORY, "temp_directory": folder, "preserve_insertion_order": False}
    try:
        with duckdb.connect(":memory:", config=config) as con:
            con.execute("SET TimeZone = 'UTC'")
            yield con
    finally:
        shutil.rmtree(folder, ignore_errors=True)
