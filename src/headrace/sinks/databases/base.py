"""The interface between the database sink and a database: the columns of a table, statements, rows, and one transaction.

Every failure is `Unreachable`, which may pass, or a `HeadraceError` that says what is wrong. Neither holds a secret.
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


TABLE = "table"  # what `Session.lock_tables` returns if rows that are added to it stay what they are


@dataclass(frozen=True)
class DatabaseColumn:
    """A column of an existing table."""

    name: str
    type: str  # in the database's words
    needed: bool = False  # every row must give a value
    generated: bool = False  # no row may give a value


class Session(Protocol):
    """One transaction."""

    def lock_tables(self, *tables: TableName) -> list[str | None]:
        """Return for each name what it stands for, such as a table or a view, or None. It stays so until the transaction ends."""

    def columns(self, table: TableName) -> list[DatabaseColumn]:
        """Return the columns of a table that is there."""

    def keys(self, table: TableName) -> list[frozenset[str]]:
        """Return the sets of columns that are unique."""

    def execute(self, statement: str, *values: str | int) -> Rows:
        """Values stand in the statement as $1, $2 ..."""

    def insert(self, table: TableName, rows: pa.Table, key: Sequence[str]) -> None:
        """With a key: in place of the row that has it, if there is one."""


class Database(Protocol):
    """A database that the database sink can write to: the types of its columns, and its transactions."""

    name: str  # for people
    shown: str | Secret  # the URL without secrets

    def type_of(self, kind: pa.DataType) -> str | None:
        """The type that holds every value of this kind exactly; "": of any; None: there is none."""

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        """Whether a column of type `found` holds such values too."""

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Committed when left without an error; else as if it had never been."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class TableName:
    """A table's name, perhaps with that of its schema."""

    name: str
    schema: str | None = None

    @property
    def quoted(self) -> str:
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)

    def beside(self, name: str) -> TableName:
        """Another one of the same schema."""
        return TableName(name, self.schema)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def url_text(shown: str | Secret) -> str:
    """Return a URL that can be shown as a text; one that is secret by the name of its variable."""
    return shown if isinstance(shown, str) else repr(shown)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def insertion(table: TableName, source: str, names: Sequence[str]) -> str:
    """Return the statement that adds the rows of `source`."""
    return f"INSERT INTO {table.quoted} ({listed(names)}) {source}"


def upsert(table: TableName, source: str, names: Sequence[str], key: Sequence[str], *, touch: bool = False) -> str:
    """Return the statement that adds the rows of `source` and replaces those with the same key; all three databases take it.

    touch: where a row is its key, write the key again, so that the row counts as stored.
    """
    others = [name for name in names if name not in key] or (list(key[:1]) if touch else [])
    action = f"UPDATE SET {', '.join(f'{quoted(n)} = excluded.{quoted(n)}' for n in others)}" if others else "NOTHING"
    return f"{insertion(table, source, names)} ON CONFLICT ({listed(key)}) DO {action}"


def refusal(place: object, why: str) -> SinkError:
    """Return the error for a statement that a database will refuse again."""
    return SinkError(
        f"{place}: {why}; correct the table, its constraints, triggers or rights, or the query, and start again"
    )


def altered_error(table: TableName, stored: int, given: int) -> SinkError:
    return SinkError(
        f"table {table} does not keep rows as they come: {given - stored} of {given} rows were changed or left out, such as by a"
        " trigger; let triggers leave the columns of the results alone, or give another table, and start again"
    )


def wanted_types(database: Database, schema: pa.Schema) -> dict[str, str]:
    """By column; refuses what the database has no type for."""
    found = {}
    for field in schema:
        kind = database.type_of(field.type)
        if kind is None:
            msg = (
                f"column {field.name!r} has type {field.type}, for which {database.name} has no type that holds it exactly;"
                " cast it in the query to one that it has, such as text: CAST(... AS VARCHAR)"
            )
            raise QueryTypeError(msg)
        found[field.name] = kind
    return found
