"""SQLite files, through Python's own driver.

SQLite has five kinds of values. So times are stored as text in UTC ('2026-03-01 12:00:00.000000', which its date
functions read), booleans as 1 and 0, and decimals as integers if they are whole and as text otherwise, because REAL
would round them. A file that another process writes to for more than a moment is unreachable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SinkError
from headrace.sinks.databases.base import (
    DatabaseColumn,
    Rows,
    TableName,
    altered_error,
    insertion,
    quoted,
    refusal,
    upsert,
    url_text,
)
from headrace.sinks.patience import Unreachable
from headrace.support.secrets import SealedSettings, Secret

BUSY = 5.0  # seconds that SQLite waits for other writers
LARGEST_INTEGER = 2**63
ROWS_TOGETHER = 50_000  # rows converted to Python objects at a time
UNREACHABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
}


class SQLiteDatabase:
    """A SQLite file."""

    name = "SQLite"

    def __init__(self, path: Path, shown: Secret | None = None) -> None:
        self.path = path
        self.shown: str | Secret = shown or f"sqlite:///{path}"
        self._hidden = SealedSettings(None, [str(path)] if shown else [])

    def type_of(self, kind: pa.DataType) -> str | None:
        t = pa.types
        if t.is_boolean(kind) or (t.is_integer(kind) and not t.is_uint64(kind)):
            return "INTEGER"
        if t.is_floating(kind):
            return "REAL"
        if t.is_decimal(kind) and kind.scale <= 0:
            return ""  # a column without a type stores numbers unchanged
        if t.is_string(kind) or t.is_temporal(kind) or t.is_decimal(kind):
            return "TEXT"
        return "BLOB" if t.is_binary(kind) else None

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        """Return whether a column stores the values unchanged. SQLite converts values by the affinity of the declared
        type.
        """
        fine = {
            "INTEGER": {"INTEGER", "NUMERIC", "BLOB"},
            "REAL": {"REAL", "BLOB"},
            "TEXT": {"TEXT", "BLOB"} | ({"NUMERIC"} if pa.types.is_temporal(kind) else set()),
            "BLOB": {"BLOB", "TEXT", "NUMERIC", "INTEGER", "REAL"},
            "": {"BLOB", "TEXT"},
        }
        return affinity(found) in fine[wanted]

    @contextmanager
    def transaction(self) -> Iterator[_SQLiteTransaction]:
        with self._named_errors():
            with closing(sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield _SQLiteTransaction(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        with self._hidden.hiding():
            try:
                yield
            except sqlite3.Error as error:
                if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in UNREACHABLE:
                    raise Unreachable(f"{self}: {error}") from None
                raise refusal(self, str(error)) from None

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return url_text(self.shown)


class _SQLiteTransaction:
    """One transaction on a SQLite file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def lock_tables(self, *tables: TableName) -> list[str | None]:
        """Return the kinds of the tables. This transaction is the only writer of the file."""
        return [self._kind(table) for table in tables]

    def _kind(self, table: TableName) -> str | None:
        master = f"{_of(table)}sqlite_master"
        found = self.execute(
            f"SELECT type FROM {master} WHERE type IN ('table', 'view') AND name = $1 COLLATE NOCASE", table.name
        )
        return found[0][0] if found else None

    def columns(self, table: TableName) -> list[DatabaseColumn]:
        found = self.connection.execute(f"PRAGMA {_of(table)}table_xinfo({quoted(table.name)})").fetchall()
        return [
            DatabaseColumn(
                name,
                kind,
                bool(needed and default is None and not hidden and not (key and kind == "INTEGER")),
                generated=bool(hidden),
            )
            for _, name, kind, needed, default, key, hidden in found
        ]

    def keys(self, table: TableName) -> list[frozenset[str]]:
        of, name = _of(table), quoted(table.name)
        indexes = self.connection.execute(f"PRAGMA {of}index_list({name})").fetchall()
        whole = [index[1] for index in indexes if index[2] and not index[4]]  # unique and not partial
        keys = [[row[2] for row in self.connection.execute(f"PRAGMA {of}index_info({quoted(i)})")] for i in whole]
        keys.append([row[1] for row in self.connection.execute(f"PRAGMA {of}table_info({name})") if row[5]])
        return [frozenset(key) for key in keys if key]

    def execute(self, statement: str, *values: str | int) -> Rows:
        return self.connection.execute(statement.replace("$", "?"), values).fetchall()

    def insert(self, table: TableName, rows: pa.Table, key: Sequence[str]) -> None:
        names = rows.column_names
        values = f"VALUES ({', '.join('?' * len(names))})"
        statement = upsert(table, values, names, key) if key else insertion(table, values, names)
        statement = statement.replace("INSERT", "INSERT OR ABORT", 1)  # overrides the table's own conflict clause
        stored = 0
        for first in range(0, rows.num_rows, ROWS_TOGETHER):
            some = rows.slice(first, ROWS_TOGETHER)
            columns = [as_python(some.column(name), name) for name in names]
            stored += self.connection.executemany(statement, zip(*columns, strict=True)).rowcount
        if stored != rows.num_rows and set(names) != set(key):  # with keys only, existing rows are not counted
            raise altered_error(table, stored, rows.num_rows)


def _of(table: TableName) -> str:
    return "" if table.schema is None else f"{quoted(table.schema)}."


def affinity(declared: str) -> str:
    """Return the affinity of a declared column type, by SQLite's five rules in order."""
    text = declared.upper()
    if "INT" in text:
        return "INTEGER"
    if any(word in text for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in text or not text:
        return "BLOB"
    return "REAL" if any(word in text for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def as_python(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Return values in the form that SQLite's driver accepts."""
    kind, t = column.type, pa.types
    if t.is_timestamp(kind):
        column = column.cast(pa.timestamp("us")).cast(pa.string())
    elif t.is_temporal(kind):
        column = column.cast(pa.string())
    elif t.is_floating(kind):
        _refuse_nan(column, name)
    elif t.is_decimal(kind):
        return [None if value is None else _decimal(value, kind.scale) for value in column.to_pylist()]
    return list(column.to_pylist())


def _decimal(value: Any, scale: int) -> int | str:
    whole = scale <= 0 and -LARGEST_INTEGER <= value < LARGEST_INTEGER
    return int(value) if whole else f"{value:f}"


def _refuse_nan(column: pa.ChunkedArray, name: str) -> None:
    """Raise if a column contains NaN, which SQLite would store as null."""
    if pc.any(pc.is_nan(column)).as_py():
        msg = f"column {name!r} contains NaN, which SQLite cannot store; replace it in the query, for example with CASE WHEN isnan({name}) THEN NULL ELSE {name} END"
        raise SinkError(msg)
