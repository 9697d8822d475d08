"""Restricted DuckDB connections, through which headrace evaluates all SQL text.

Invariant: a connection cannot access files, the network or extensions. It has one thread, time zone UTC, a memory
limit, a private spill folder, and a locked configuration. Each thread of a process has one connection, so tasks in a
reused Python worker create it once.
"""

from __future__ import annotations

import functools
import os
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from headrace.columnar import scratch
from headrace.errors import EngineError

MEMORY_LIMIT = os.environ.get("HEADRACE_TASK_MEMORY", "2GB")
TUPLES = "__tuples"  # the name of a stream's tuples in SQL; no column can have this name
# rows per Arrow batch, which holds at most 2 GiB of text; tried in turn, then single rows
FEWER_ROWS = (120_000, 1_000, 10)
RESULT_BYTES = 512 << 20  # bytes for results, in addition to DuckDB's memory
_STATM = Path("/proc/self/statm")  # the sixth number is the process's data size in pages
_TOO_LONG = "maximum total string size"
_NO_TUPLES_FAULT = (
    duckdb.OutOfMemoryException,
    duckdb.IOException,
    duckdb.InternalException,
    duckdb.FatalException,
    duckdb.InterruptException,
    duckdb.BinderException,  # a checked expression binds, so this is another DuckDB version or another table
    duckdb.CatalogException,
    duckdb.ParserException,
    duckdb.PermissionException,
    duckdb.ConnectionException,
    duckdb.TransactionException,
)
_here = threading.local()


@dataclass(frozen=True)
class DuckType:
    """A DuckDB type: its text, its id, and the ids of all types it contains, such as "list" and "bigint".

    This class exists because DuckDB reports its own type objects as leaked if they are alive at exit.
    """

    text: str
    id: str
    kinds: frozenset[str]

    def __str__(self) -> str:
        return self.text


def connection() -> duckdb.DuckDBPyConnection:
    """Return this thread's connection."""
    known: dict[int, duckdb.DuckDBPyConnection] = _here.__dict__.setdefault("by_process", {})
    # a connection inherited by fork is not closed, because closing removes the parent's files
    if os.getpid() not in known:
        known[os.getpid()] = _locked_down()
    return known[os.getpid()]


def _locked_down() -> duckdb.DuckDBPyConnection:
    spill = scratch.own_folder() / "spill"
    spill.mkdir(mode=0o700, exist_ok=True)
    try:
        con = _connected(str(spill))
        if MEMORY_LIMIT.strip().lower() not in ("-1", "none"):
            con.execute("SELECT parse_formatted_bytes(?)", [MEMORY_LIMIT])
    except duckdb.Error as error:
        msg = f"HEADRACE_TASK_MEMORY is {MEMORY_LIMIT!r}, which is not a valid size ({str(error).splitlines()[0]}); set it to a size such as '2GB'"
        raise EngineError(msg) from None
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET enable_external_access = false")  # after the spill folder is set, which needs external access
    con.execute("SET lock_configuration = true")
    return con


def _connected(spill: str) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(
        ":memory:",
        config={
            "threads": 1,
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": spill,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        },
    )


_guarded = False  # only the process of a task may limit its memory


def guard_memory() -> None:
    """Let queries of this process fail when they need far more memory than the limit.

    DuckDB's own limit covers only its buffers, not the lists and texts that functions create.
    """
    global _guarded
    _guarded = True


@contextmanager
def _within_limit() -> Iterator[None]:
    """Limit the data size of the process to the current size plus twice the memory limit and space for results."""
    limit = _limit() if _guarded and _STATM.exists() else None
    if limit is None:
        yield
        return
    there = int(_STATM.read_text().split()[5]) * resource.getpagesize()
    usual = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = there + 2 * limit + RESULT_BYTES
    most = wanted if usual[1] == resource.RLIM_INFINITY else min(wanted, usual[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, usual)


@functools.cache
def _limit() -> int | None:
    """Return the memory limit in bytes, or None if there is none."""
    if MEMORY_LIMIT.strip().lower() in ("-1", "none"):
        return None
    return int(connection().execute("SELECT parse_formatted_bytes(?)", [MEMORY_LIMIT]).fetchall()[0][0])


def run_select(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return the result of a SELECT over named Arrow tables. Text beyond 2 GiB is returned in several chunks."""
    with _registered(tables) as con, _within_limit():
        for rows in FEWER_ROWS:
            try:
                return con.sql(sql).to_arrow_table(rows)
            except duckdb.InvalidInputException as error:
                if _TOO_LONG not in str(error):
                    raise
        return con.sql(sql).to_arrow_table(1)


def is_data_error(error: duckdb.Error) -> bool:
    """Return whether an expression failed on a value, as opposed to a failure of memory, disk or DuckDB."""
    return not isinstance(error, _NO_TUPLES_FAULT)


def type_of(sql: str, tables: Mapping[str, pa.Table]) -> DuckType:
    """Return DuckDB's type of the only column of a SELECT. The query is bound but not run."""
    with _registered(tables) as con:
        found = con.sql(sql).types[0]
        return DuckType(str(found), found.id, frozenset(_kinds(found)))


@functools.lru_cache(maxsize=1024)
def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a DuckDB type, given as text."""
    return connection().sql(f"SELECT NULL::{kind} AS c").to_arrow_table().schema.field(0).type


@functools.lru_cache(maxsize=1024)
def arrives_unchanged(kind: str) -> bool:
    """Return whether a DuckDB type is unchanged after conversion to Arrow and back."""
    try:
        table = pa.table({"c": pa.array([], arrow_type(kind))})
        return str(type_of(f"SELECT c FROM {TUPLES}", {TUPLES: table})) == kind
    except (duckdb.Error, pa.ArrowException):
        return False


def _kinds(kind: duckdb.sqltypes.DuckDBPyType) -> Iterator[str]:
    yield kind.id
    if kind.id in ("list", "array", "struct", "tuple", "map"):
        for _, child in kind.children:
            if isinstance(child, duckdb.sqltypes.DuckDBPyType):  # the children of an array also contain its length
                yield from _kinds(child)


@contextmanager
def _registered(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    con = connection()
    for name, table in tables.items():
        con.register(name, _readable(table))
    try:
        yield con
    except (duckdb.InternalException, duckdb.FatalException):
        _here.by_process.pop(os.getpid(), None)  # the connection is unusable after such an error
        raise
    except UnicodeDecodeError:  # DuckDB truncated its message within a character
        raise duckdb.InvalidInputException(
            "Invalid Input Error: DuckDB rejects the expression; its message is not valid text"
        ) from None
    finally:
        if connection() is con:
            for name in tables:
                con.unregister(name)


def _readable(table: pa.Table) -> pa.Table:
    """Copy columns that DuckDB cannot read: slices of a struct in a struct."""
    for index, column in enumerate(table.columns):
        if _struct_in_struct(column.type) and any(chunk.offset for chunk in column.chunks):
            whole = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in column.chunks]
            table = table.set_column(index, table.field(index), pa.chunked_array(whole, column.type))
    return table


def _struct_in_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and any(pa.types.is_struct(field.type) for field in kind)


def fetch_rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Return all rows of a query that reads no Arrow table."""
    return connection().execute(sql, list(parameters)).fetchall()


def quote(name: str) -> str:
    """Return a column name as an SQL identifier.

    >>> quote('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
