"""A DuckDB file. It is opened for each epoch and closed again, so that others can read it in between; while another
process has it open, it is away."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from headrace.errors import SinkError
from headrace.sinks.databases.base import Column, Rows, Table, listed, upsert
from headrace.sinks.waiting import Away

GIVEN = "headrace_rows"  # rows on their way in
_one_at_a_time = threading.Lock()  # in a process: who opens a file that another thread closes finds it half there
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


class Duck:
    name = "DuckDB"

    def __init__(self, path: Path) -> None:
        self.path = path

    def type_of(self, kind: pa.DataType) -> str | None:
        return _type_of(kind)

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        return found == wanted or found in WIDER.get(wanted, ())

    @contextmanager
    def transaction(self) -> Iterator[_Session]:
        with _one_at_a_time, self._in_words():
            with closing(duckdb.connect(self.path)) as connection:
                connection.execute("BEGIN")
                try:
                    yield _Session(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    _roll_back(connection)
                    raise

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except (duckdb.IOException, duckdb.TransactionException) as error:
            raise Away(f"{self.path}: {error}") from None
        except duckdb.Error as error:
            raise SinkError(f"{self.path}: {error}") from None

    def close(self) -> None:
        pass

    def __str__(self) -> str:
        return f"duckdb:///{self.path}"


@functools.cache
def _type_of(kind: pa.DataType) -> str:
    """As DuckDB itself names it."""
    with closing(duckdb.connect()) as connection:
        connection.register(GIVEN, pa.schema([("v", kind)]).empty_table())
        return str(connection.execute(f"DESCRIBE SELECT v FROM {GIVEN}").fetchall()[0][1])


def _roll_back(connection: duckdb.DuckDBPyConnection) -> None:
    with suppress(duckdb.Error):  # the transaction ended by itself
        connection.execute("ROLLBACK")


class _Session:
    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def columns(self, table: Table) -> list[Column]:
        found = self.execute(
            "SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL FROM duckdb_columns()"
            " WHERE database_name = current_database() AND table_name = $1 AND schema_name = $2 ORDER BY column_index",
            *_name(table),
        )
        return [Column(*row) for row in found]

    def keys(self, table: Table) -> list[frozenset[str]]:
        found = self.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() WHERE database_name = current_database() AND"
            " constraint_type IN ('PRIMARY KEY', 'UNIQUE') AND table_name = $1 AND schema_name = $2",
            *_name(table),
        )
        return [frozenset(names) for (names,) in found]

    def execute(self, statement: str, *values: str | int) -> Rows:
        return self.connection.execute(statement, list(values) or None).fetchall()

    def insert(self, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        names = rows.column_names
        source = f"SELECT {listed(names)} FROM {GIVEN}"
        statement = (
            upsert(table, source, names, key) if key else f"INSERT INTO {table.quoted} ({listed(names)}) {source}"
        )
        self.connection.register(GIVEN, rows)
        self.connection.execute(statement)
        self.connection.unregister(GIVEN)


def _name(table: Table) -> tuple[str, str]:
    return table.name, table.schema or "main"
