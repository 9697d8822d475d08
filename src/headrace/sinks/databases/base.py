"""What a sink asks of a database: columns of a table, statements, rows in, and that all of it counts at once or not at all.

Every failure is one of two: `Away`, which may pass, or a `HeadraceError` that says what is wrong. Neither holds a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.errors import QueryTypeError

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Column:
    """Of a table that is there."""

    name: str
    type: str  # in the database's words
    needed: bool = False  # every row must give a value


class Session(Protocol):
    """One transaction."""

    def columns(self, table: Table) -> list[Column]:
        """None if there is no such table."""

    def keys(self, table: Table) -> list[frozenset[str]]:
        """The sets of columns that are unique."""

    def execute(self, statement: str, *values: str | int) -> Rows:
        """Values stand in the statement as $1, $2 ..."""

    def insert(self, table: Table, rows: pa.Table, key: Sequence[str]) -> None:
        """With a key: in place of the row that has it, if there is one."""


class Database(Protocol):
    name: str  # for people

    def type_of(self, kind: pa.DataType) -> str | None:
        """The type that holds every value of this kind exactly; "": of any; None: there is none."""

    def takes(self, wanted: str, found: str, kind: pa.DataType) -> bool:
        """Whether a column of type `found` holds such values too."""

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Committed when left without an error; else as if it had never been."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Table:
    """A table's name, perhaps with that of its schema."""

    name: str
    schema: str | None = None

    @property
    def quoted(self) -> str:
        return ".".join(quoted(part) for part in (self.schema, self.name) if part is not None)

    def beside(self, name: str) -> Table:
        """Another one of the same schema."""
        return Table(name, self.schema)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def upsert(table: Table, source: str, names: Sequence[str], key: Sequence[str]) -> str:
    """Rows of a query in place of those that have their key; three databases agree on how to say so."""
    others = [name for name in names if name not in key]
    action = f"UPDATE SET {', '.join(f'{quoted(n)} = excluded.{quoted(n)}' for n in others)}" if others else "NOTHING"
    return f"INSERT INTO {table.quoted} ({listed(names)}) {source} ON CONFLICT ({listed(key)}) DO {action}"


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
