"""DuckDB, locked down: the one way in which headrace evaluates SQL text.

Invariant: every connection handed out has no access to files, network or extensions, one thread, time zone UTC,
a memory limit and a private folder to spill to, and a configuration that can no longer be changed. One connection per
thread of a process, so that tasks of a reused Python worker pay for it once.
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
TUPLES = "__tuples"  # what SQL calls the tuples of one stream: no column can be mistaken for it
FEWER_ROWS = (120_000, 1_000, 10)  # in one Arrow batch, which holds 2 GiB of text; tried in turn, at last single rows
RESULT_BYTES = 512 << 20  # for results, beside what DuckDB may use
_STATM = Path("/proc/self/statm")  # sixth number: pages of data
_TOO_LONG = "maximum total string size"
_NO_TUPLES_FAULT = (
    duckdb.OutOfMemoryException,
    duckdb.IOException,
    duckdb.InternalException,
    duckdb.FatalException,
    duckdb.InterruptException,
    duckdb.BinderException,  # an expression that was checked binds: here is another version, or another table
    duckdb.CatalogException,
    duckdb.ParserException,
    duckdb.PermissionException,
    duckdb.ConnectionException,
    duckdb.TransactionException,
)
_here = threading.local()


@dataclass(frozen=True)
class DuckType:
    """A type as DuckDB spells it, its name, and with it the names of all types within it, such as "list" and "bigint".

    DuckDB's own objects are not kept: those that are left when the process ends are reported as leaked.
    """

    text: str
    id: str
    kinds: frozenset[str]

    def __str__(self) -> str:
        return self.text


def connection() -> duckdb.DuckDBPyConnection:
    """This thread's locked-down connection."""
    known: dict[int, duckdb.DuckDBPyConnection] = _here.__dict__.setdefault("by_process", {})
    if os.getpid() not in known:  # that of the process which forked this one stays open: to close it removes its files
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
        msg = f"HEADRACE_TASK_MEMORY is {MEMORY_LIMIT!r}, which is no size ({str(error).splitlines()[0]}); write it like '2GB'"
        raise EngineError(msg) from None
    con.execute("SET TimeZone = 'UTC'")
    con.execute("SET enable_external_access = false")  # after the spill folder: it could not be named any more
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


_guarded = False  # whether this process is a task's: only such a one may be limited


def guard_memory() -> None:
    """From now on a query of this process that needs far more than the memory limit fails, whatever it needs it for.

    DuckDB's own limit is for what it buffers: the lists and texts that functions make are not counted.
    """
    global _guarded
    _guarded = True


@contextmanager
def _within_limit() -> Iterator[None]:
    """No more data than the limit allows, some room for results and what is there already."""
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
    """The memory limit in bytes; None: there is none."""
    if MEMORY_LIMIT.strip().lower() in ("-1", "none"):
        return None
    return int(connection().execute("SELECT parse_formatted_bytes(?)", [MEMORY_LIMIT]).fetchall()[0][0])


def run_select(sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """The result of one SELECT over named Arrow tables; text beyond 2 GiB comes in several chunks."""
    with _registered(tables) as con, _within_limit():
        for rows in FEWER_ROWS:
            try:
                return con.sql(sql).to_arrow_table(rows)
            except duckdb.InvalidInputException as error:
                if _TOO_LONG not in str(error):
                    raise
        return con.sql(sql).to_arrow_table(1)


def is_data_error(error: duckdb.Error) -> bool:
    """Whether an expression failed on a value; else memory, the disk or DuckDB itself did."""
    return not isinstance(error, _NO_TUPLES_FAULT)


def type_of(sql: str, tables: Mapping[str, pa.Table]) -> DuckType:
    """DuckDB's type of the one column of a SELECT, which is bound and not run: not even its constants are computed."""
    with _registered(tables) as con:
        found = con.sql(sql).types[0]
        return DuckType(str(found), found.id, frozenset(_kinds(found)))


@functools.lru_cache(maxsize=1024)
def arrow_type(kind: str) -> pa.DataType:
    """What a type of DuckDB, as it spells it, is in Arrow."""
    return connection().sql(f"SELECT NULL::{kind} AS c").to_arrow_table().schema.field(0).type


@functools.lru_cache(maxsize=1024)
def arrives_unchanged(kind: str) -> bool:
    """Whether values of a type come back from Arrow as that type."""
    try:
        table = pa.table({"c": pa.array([], arrow_type(kind))})
        return str(type_of(f"SELECT c FROM {TUPLES}", {TUPLES: table})) == kind
    except (duckdb.Error, pa.ArrowException):
        return False


def _kinds(kind: duckdb.sqltypes.DuckDBPyType) -> Iterator[str]:
    yield kind.id
    if kind.id in ("list", "array", "struct", "tuple", "map"):
        for _, child in kind.children:
            if isinstance(child, duckdb.sqltypes.DuckDBPyType):  # an array has a length as well
                yield from _kinds(child)


@contextmanager
def _registered(tables: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    con = connection()
    for name, table in tables.items():
        con.register(name, _readable(table))
    try:
        yield con
    except (duckdb.InternalException, duckdb.FatalException):
        _here.by_process.pop(os.getpid(), None)  # it answers nothing any more
        raise
    except UnicodeDecodeError:  # DuckDB cut its message within a character
        raise duckdb.InvalidInputException(
            "Invalid Input Error: DuckDB refuses the expression; its message is not valid text"
        ) from None
    finally:
        if connection() is con:
            for name in tables:
                con.unregister(name)


def _readable(table: pa.Table) -> pa.Table:
    """DuckDB does not read a struct in a struct of which only a part is shown: such columns are copied."""
    for index, column in enumerate(table.columns):
        if _struct_in_struct(column.type) and any(chunk.offset for chunk in column.chunks):
            whole = [chunk.take(pa.array(np.arange(len(chunk)))) for chunk in column.chunks]
            table = table.set_column(index, table.field(index), pa.chunked_array(whole, column.type))
    return table


def _struct_in_struct(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and any(pa.types.is_struct(field.type) for field in kind)


def fetch_rows(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query that reads no table of ours."""
    return connection().execute(sql, list(parameters)).fetchall()


def quote(name: str) -> str:
    """A column name as an SQL identifier.

    >>> quote('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'
