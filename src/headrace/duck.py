"""DuckDB, locked down: the one way in which headrace evaluates SQL text.

Invariant: every connection handed out has no access to files, network or extensions, one thread, time zone UTC,
a memory limit and a spill folder, and a configuration that can no longer be changed. One connection per thread
of a process, so that tasks of a reused Python worker pay for it once.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

MEMORY_LIMIT = os.environ.get("HEADRACE_TASK_MEMORY", "2GB")
TUPLES = "__tuples"  # what SQL calls the tuples of one stream: no column can be mistaken for it
_here = threading.local()


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's locked-down connection."""
    con = getattr(_here, "connection", None)
    if con is None or getattr(_here, "process", None) != os.getpid():
        con = _here.connection = _locked_down()
        _here.process = os.getpid()
    return con


def _locked_down() -> duckdb.DuckDBPyConnection:
    spill = os.path.join(tempfile.gettempdir(), f"headrace-spill-{os.getuid()}-{os.getpid()}")
    con = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET enable_external_access = false")  # after the spill folder: it could not be named any more
    con.execute("SET lock_configuration = true")
    return con


def run(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The result of one SELECT over named Arrow tables."""
    con = connection()
    for name, table in tables.items():
        con.register(name, table)
    try:
        return con.sql(sql).to_arrow_table()
    finally:
        for name in tables:
            con.unregister(name)


def rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query that reads no table of ours."""
    return connection().execute(sql, list(parameters)).fetchall()


def quote(name: str) -> str:
    """A column name as an SQL identifier.

    >>> quote('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
