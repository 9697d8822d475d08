"""A DuckDB file. The sink opens it for each epoch and then closes it, so that other processes can read it in between.

The file is unreachable while another process, or a read-only connection of this process, has it open.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from headrace.sinks.databases.base import (
    TABLE,
    DatabaseColumn,
    Rows,
    TableName,
    insertion,
    listed,
    refusal,
    upsert,
    url_text,
)
from headrace.sinks.patience import Unreachable
from headrace.support.secrets import SealedSettings, Secret

INCOMING_ROWS = "headrace_rows"  # name of the rows that are being inserted
_one_at_a_time = threading.Lock()  # within a process, a file that another thread is closing cannot be opened safely
UNREACHABLE = (
    *(duckdb.IOException, duckdb.TransactionException),
    *(duckdb.ConnectionException, duckdb.ResourceInUseException),  # a connection of this process has the file open
)
_NAMES = "SELECT {}, schema_name FROM {}() WHERE database_name = current_database()"
NO_DATABASE = "not a valid DuckDB database file"
WIDER = {
    "TINYINT": {"SMALLINT", "INTEGER", "BIGINT", "HUGEINT"},
    "SMALLINT": {"INTEGER", "BIGINT", "HUGEINT"},
    "INTEGER": {"BIGINT", "HUGEINT"},
    "BIGINT": {"HUGEINT"},
    "UTINYINT": {"SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "USMALLINT", "UINTEGER", "UBIGINT"},
    "USMALLINT": {"INTEGER", "BIGINT", "HUGEINT", "UINTEGER", "UBIGINT"},
    "UINTEGER": {"BIGINT", "HUGEINT", "UBIGINT"},
    "UBIGINT": {"HUGEINT"},
    "FLOAT": {"DOUBLE"},
    "DECIMAL(38,0)": {"HUGEINT"},
}


class DuckDBDatabase:
    """A DuckDB file, which is opened for each transaction."""

    name = "DuckDB"

    def __init__(self, path: Path, shown: Secret | None = None) -> None:
        self.path = path
        self.shown: str | Secret = shown or f"duckdb:///{path}"
        self._hidden = SealedSettings(None, [str(path)] if shown else [])

    def type_of(self, kind: pa.DataType) -> str | None:
        return _type_of(kind)

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        return found == wanted or found in WIDER.get(wanted, ())

    @contextmanager
    def transaction(self) -> Iterator[_DuckDBTransaction]:
        with _one_at_a_time, self._named_errors():
            with closing(duckdb.connect(self.path)) as connection:
                connection.execute("BEGIN")
                try:
                    yield _DuckDBTransaction(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    _roll_back(connection)
                    raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        with self._hidden.hiding():
            try:
                yield
            except duckdb.Error as error:
                if isinstance(error, UNREACHABLE) and NO_DATABASE not in str(error):
                    raise Unreachable(f"{self}: {error}") from None
                raise refusal(self, str(error)) from None

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return url_text(self.shown)


@functools.cache
def _type_of(kind: pa.DataType) -> str:
    """Return the name of DuckDB's type for an Arrow type."""
    with closing(duckdb.connect()) as connection:
        connection.register(INCOMING_ROWS, pa.schema([("v", kind)]).empty_table())
        return str(connection.execute(f"DESCRIBE SELECT v FROM {INCOMING_ROWS}").fetchall()[0][1])


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):  # the transaction has already ended
        connection.execute("ROLLBACK")


class _DuckDBTransaction:
    """One transaction on a DuckDB file."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def lock_tables(self, *tables: TableName) -> list[str | None]:
        """Return the kinds of the tables. The transaction sees a snapshot, and its commit fails if another one changes
        a table.
        """
        known = set(self.execute(_NAMES.format("table_name", "duckdb_tables")))
        if all(_name(table) in known for table in tables):  # looking up views takes longer than everything else
            return [TABLE] * len(tables)
        views = set(self.execute(_NAMES.format("view_name", "duckdb_views")))
        return [TABLE if _name(t) in known else "view" if _name(t) in views else None for t in tables]

    def columns(self, table: TableName) -> list[DatabaseColumn]:
        found = self.execute(
            'SELECT name, type, "notnull" AND dflt_value IS NULL FROM pragma_table_info($1)', table.quoted
        )
        return [DatabaseColumn(*row) for row in found]

    def keys(self, table: TableName) -> list[frozenset[str]]:
        found = self.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE database_name = current_database() AND"
            " constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND table_name = $1 AND schema_name = $2",
            *_name(table),
        )
        return [frozenset(names) for (names,) in found]

    def execute(self, statement: str, *values: str | int) -> Rows:
        return self.connection.execute(statement, list(values) or None).fetchall()

    def insert(self, table: TableName, rows: pa.Table, key: Sequence[str]) -> None:
        names = rows.column_names
        source = f"SELECT {listed(names)} FROM {INCOMING_ROWS}"
        statement = upsert(table, source, names, key) if key else insertion(table, source, names)
        self.connection.register(INCOMING_ROWS, rows)
        self.connection.execute(statement)
        self.connection.unregister(INCOMING_ROWS)


def _name(table: TableName) -> tuple[str, str]:
    return table.name, table.schema or "main"
