"""Common code of the Delta and Iceberg sinks: waiting, types, and the conversion of results to rows of an existing
table.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headrace.columnar.types import plain_type
from headrace.errors import QueryError, QueryTypeError, SinkError
from headrace.sinks.base import Delivery
from headrace.sinks.epoch_marks import MarkingSink
from headrace.sinks.patience import Unreachable, WaitLimit

Held = Callable[[pa.DataType], pa.DataType | None]

_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0)}
_WIDER = {
    pa.int8(): {pa.int16(), pa.int32(), pa.int64()},
    pa.int16(): {pa.int32(), pa.int64()},
    pa.int32(): {pa.int64()},
    pa.float32(): {pa.float64()},
}


class LakeTable(MarkingSink):
    """A sink that writes to a table of files. During a run it waits while the table is unreachable; at the start it
    raises instead.
    """

    def __init__(self, place: str, seconds: float) -> None:
        self.place, self.patience = place, WaitLimit(place, seconds)
        self._was_there = False  # True after the table was found or created

    def begin(self, result: str, schema: pa.Schema) -> None:
        """Create the table, or check that an existing one fits."""
        self.patience.begin()
        self._was_there = False
        try:
            self._prepare(schema)
        except Unreachable as error:
            raise SinkError(f"{self.place} cannot be reached: {error}") from None

    def hurry(self) -> None:
        self.patience.hurry()

    def deliver(self, delivery: Delivery) -> None:
        self.patience.wait_for(functools.partial(self._deliver, delivery))

    def _may_make(self) -> None:
        """Raise if the table existed before, so that a lost table is not replaced silently."""
        if self._was_there:
            raise SinkError(
                f"{self.place} does not exist: it was dropped or renamed after the run started; restore it, or start again: the"
                " table is then created again, and receives the results that have not been delivered yet"
            )

    def _refused(self, why: str) -> SinkError:
        return SinkError(
            f"{self.place}: {why}; correct the table, its constraints or permissions, or the query, and start again"
        )

    @abstractmethod
    def _prepare(self, schema: pa.Schema) -> Any:
        """Return the current table. Create it, or check that it fits."""

    @abstractmethod
    def _deliver(self, delivery: Delivery) -> None:
        """Add rows and epoch in one commit, unless the epoch is stored already."""


def signed_type(kind: pa.DataType, refused: Callable[[pa.DataType], bool], narrowest: int = 8) -> pa.DataType | None:
    """Return the type without unsigned integers that stores every value of this kind exactly, or None."""
    if refused(kind):
        return None
    t = pa.types
    if kind in _SIGNED:
        kind = _SIGNED[kind]
    if t.is_signed_integer(kind) and kind.bit_width < narrowest:
        return pa.int32()
    if t.is_struct(kind):
        inner = [(field.name, signed_type(field.type, refused, narrowest)) for field in kind]
        return None if any(each is None for _, each in inner) else pa.struct(inner)
    if t.is_map(kind):
        key, item = (signed_type(each, refused, narrowest) for each in (kind.key_type, kind.item_type))
        return None if key is None or item is None else pa.map_(key, item)
    if t.is_list(kind):
        inside = signed_type(kind.value_type, refused, narrowest)
        return None if inside is None else pa.list_(inside)
    return kind


def wanted_schema(schema: pa.Schema, held: Held, name: str) -> pa.Schema:
    """Return the schema of a table for results. Raise if a column has no type in the table."""
    fields = []
    for field in schema:
        kind = held(field.type)
        if kind is None:
            msg = (
                f"column {field.name!r} has type {field.type}, which no type of {name} stores exactly;"
                " cast it in the query, for example to text: CAST(... AS VARCHAR)"
            )
            raise QueryTypeError(msg)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def check_fits(wanted: pa.Schema, found: pa.Schema, table: str) -> None:
    """Raise for the first column of a table that cannot store such rows."""
    hint = "cast or rename it in the query, change the table, or use another table"
    for field in wanted:
        if field.name not in found.names:
            msg = f"{table} has no column {field.name!r}; expected {field.type}; its columns are {', '.join(found.names)}; {hint}"
            raise QueryError(msg)
        there = _plain(found.field(field.name).type)
        if there != _plain(field.type) and there not in _WIDER.get(field.type, ()):
            raise QueryError(f"column {field.name!r} of {table} has the type {there}; expected {field.type}; {hint}")
    for field in found:
        if not field.nullable and field.name not in wanted.names:
            msg = f"column {field.name!r} of {table} must not be null, but the results have no such column; {hint}"
            raise QueryError(msg)


def to_table_rows(results: pa.Table, found: pa.Schema) -> pa.Table:
    """Return results as rows of a table that fits: in its order and types, with nulls in its other columns."""
    columns = [
        results.column(field.name).cast(_plain(field.type))
        if field.name in results.column_names
        else pa.chunked_array([pa.nulls(results.num_rows, _plain(field.type))])
        for field in found
    ]
    fields = [pa.field(field.name, _plain(field.type), field.nullable) for field in found]
    return pa.table(columns, schema=pa.schema(fields))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without its representation in memory."""
    return plain_type(kind, "")
