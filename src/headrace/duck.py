"""DuckDB, locked down: the one way in which headrace evaluates SQL text.

Invariant: every connection handed out has no access to files, network or extensions, one thread, time zone UTC,
a memory limit and a private folder to spill to, and a configuration that can no longer be changed. One connection per
thread of a process, so that tasks of a reused Python worker pay for it once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from headrace import scratch

MEMORY_LIMIT = os.environ.get("HEADRACE_TASK_MEMORY", "2GB")
TUPLES = "__tuples"  # what SQL calls the tuples of one stream: no column can be mistaken for it
_here = threading.local()


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's locked-down connection."""
    known: dict[int, duckdb.DuckDBPyConnection] = _here.__dict__.setdefault("by_process", {})
    if os.getpid() not in known:  # that of the process which forked this one stays open: to close it removes its files
        known[os.getpid()] = _locked_down()
    return known[os.getpid()]


def _locked_down() -> duckdb.DuckDBPyConnection:
    spill = scratch.own_folder() / "spill"
    spill.mkdir(mode=0o700, exist_ok=True)
    con = duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(spill),
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
