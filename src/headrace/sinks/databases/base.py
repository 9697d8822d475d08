"""The interface between the database sink and a database: tables, columns, statements, rows, and one transaction.

Failures are raised as `Unreachable`, which may pass, or as a `HeadraceError` that describes the problem. Neither
contains a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import QueryTypeError, SinkError
from headrace.support.secrets import Secret

Rows = list[tuple[Any, ...]]


TABLE = "table"  # `Transaction.lock_tables` returns this for a table that stores added rows unchanged


@dataclass(frozen=True)
class DatabaseColumn:
    """A column of an existing table."""

    name: str
    type: str  # as the database names it
    needed: bool = False  # every row must have a value
    generated: bool = False  # no row may have a value


class Transaction(Protocol):
    """An open transaction of a database."""

    def lock_tables(self, *tables: TableName) -> list[str | None]:
        """Return the kind of each name, such as a table or a view, or None. The kind cannot change until the
        transaction ends.
        """

    def columns(self, table: TableName) -> list[DatabaseColumn]:
        """Return the columns of an existing table."""

    def keys(self, table: TableName) -> list[frozenset[str]]:
        """Return the sets of columns that identify a row."""

    def execute(self, statement: str, *values: str | int) -> Rows:
        """Run a statement and return its rows. The statement refers to values as $1, $2 ..."""

    def insert(self, table: TableName, rows: pa.Table, key: Sequence[str]) -> None:
        """Insert rows. With a key, replace rows that have the same key."""


class Database(Protocol):
    """A database that the sink can write to: the types of its columns, and its transactions."""

    name: str  # display name
    shown: str | Secret  # the URL without secrets

    def type_of(self, kind: pa.DataType) -> str | None:
        """Return the type that stores every value of this kind exactly. "": a column without a type; None: there is
        none.
        """

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        """Return whether a column of type `found` also stores such values."""

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Yield a transaction. It is committed at the end of the block, and rolled back after an error."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class TableName:
    """The name of a table, optionally with its schema."""

    name: str
    schema: str | None = None

    @property
    def quoted(self) -> str:
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)

    def beside(self, name: str) -> TableName:
        """Return the name of another table in the same schema."""
        return TableName(name, self.schema)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def url_text(shown: str | Secret) -> str:
    """Return a URL as text for messages. A secret URL is shown by the name of its variable."""
    return shown if isinstance(shown, str) else repr(shown)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def insertion(table: TableName, source: str, names: Sequence[str]) -> str:
    """Return the statement that adds the rows of `source`."""
    return f"INSERT INTO {table.quoted} ({listed(names)}) {source}"


def upsert(table: TableName, source: str, names: Sequence[str], key: Sequence[str], *, touch: bool = False) -> str:
    """Return the statement that adds the rows of `source` and replaces rows with the same key, in SQL that all three
    databases accept.

    touch: if the key is the whole row, write the key again, so that the row counts as stored.
    """
    others = [name for name in names if name not in key] or (list(key[:1]) if touch else [])
    action = f"UPDATE SET {', '.join(f'{quoted(n)} = excluded.{quoted(n)}' for n in others)}" if others else "NOTHING"
    return f"{insertion(table, source, names)} ON CONFLICT ({listed(key)}) DO {action}"


def refusal(place: object, why: str) -> SinkError:
    """Return the error for a statement that the database would reject again."""
    return SinkError(
        f"{place}: {why}; correct the table, its constraints, triggers or permissions, or the query, and start again"
    )


def altered_error(table: TableName, stored: int, given: int) -> SinkError:
    return SinkError(
        f"table {table} does not store rows unchanged: {given - stored} of {given} rows were changed or dropped, for example by a"
        " trigger; remove triggers that change the columns of the results, or use another table, and start again"
    )


def wanted_types(database: Database, schema: pa.Schema) -> dict[str, str]:
    """Return the type of each column in the database. Raise if the database has no type for a column."""
    found = {}
    for field in schema:
        kind = database.type_of(field.type)
        if kind is None:
            msg = (
                f"column {field.name!r} has type {field.type}, which no type of {database.name} stores exactly;"
                " cast it in the query, for example to text: CAST(... AS VARCHAR)"
            )
            raise QueryTypeError(msg)
        found[field.name] = kind
    return found
