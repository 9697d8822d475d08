"""The state of a processor as plain dicts: from the key of a row to the row.

Invariant: a table holds one row for every key that was put and not deleted since; a null in a key is a value, NaN is one,
and -0.0 is 0.0. A row is a tuple of arrays of one value each, so that every type of Arrow stays what it was.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import DataError, QueryTypeError
from headrace.given import named
from headrace.processor import StateTable
from headrace.reference.tuples import keys_of
from headrace.types import plain_type
from headrace.values import Key, as_text, comparable

Row = tuple[pa.Array, ...]
MICROSECOND = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class DictTable:
    """A keyed table of one substream; see `headrace.processor.Table`."""

    def __init__(self, name: str, declared: StateTable) -> None:
        self._name, self._declared = name, declared
        self._rows: dict[Key, Row] = {}
        self._due: dict[Key, int] = {}  # of the rows that have such a time

    def get(self, keys: pa.Table) -> pa.Table:
        asked = self._keys(keys)
        schema, places = self._declared.columns, self._declared.key
        nothing = tuple(pa.nulls(1, field.type) for field in schema)
        found = self._table([self._rows.get(key, nothing) for key in keys_of(asked, places)])
        for name in places:
            found = found.set_column(schema.names.index(name), schema.field(name), asked[name])
        return found

    def has(self, keys: pa.Table) -> pa.BooleanArray:
        return pa.array([key in self._rows for key in keys_of(self._keys(keys), self._declared.key)], pa.bool_())

    def put(self, rows: pa.Table) -> None:
        fitted = fitting(rows, self._declared.columns, f"put into table {self._name!r}")
        columns = [column.combine_chunks() for column in fitted.columns]
        times = comparable(fitted[self._declared.due]) if self._declared.due else [None] * fitted.num_rows
        new: dict[Key, tuple[Row, int | None]] = {}
        for number, key in enumerate(keys_of(fitted, self._declared.key)):
            if key in new:
                twice = as_text(fitted.select(self._declared.key).slice(number, 1))[0]
                raise DataError(f"put into table {self._name!r} has the key {twice} twice; give each key once")
            new[key] = tuple(column.slice(number, 1) for column in columns), times[number]
        for key, (row, time) in new.items():
            self._forget(key)
            self._rows[key] = row
            if time is not None:
                self._due[key] = time

    def delete(self, keys: pa.Table) -> None:
        for key in keys_of(self._keys(keys), self._declared.key):
            self._forget(key)

    def _forget(self, key: Key) -> None:
        self._rows.pop(key, None)
        self._due.pop(key, None)

    def rows(self) -> pa.Table:
        return self._table([self._rows[key] for key in sorted(self._rows)])

    def due(self, time: dt.datetime) -> pa.Table:
        if self._declared.due is None:
            raise DataError(f"table {self._name!r} has no due column; declare it: StateTable(..., due='closes')")
        until = _micros(time, self._name)
        found = sorted((time, key) for key, time in self._due.items() if time <= until)
        return self._table([self._rows[key] for _, key in found])

    def __len__(self) -> int:
        return len(self._rows)

    def copy(self) -> DictTable:
        found = DictTable(self._name, self._declared)
        found._rows, found._due = dict(self._rows), dict(self._due)
        return found

    def _keys(self, keys: pa.Table) -> pa.Table:
        schema = pa.schema([self._declared.columns.field(name) for name in self._declared.key])
        found = keys.select([n for n in keys.column_names if n in schema.names]) if isinstance(keys, pa.Table) else keys
        return fitting(found, schema, f"keys of table {self._name!r}")

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        schema = self._declared.columns
        if not rows:
            return schema.empty_table()
        return pa.table([pa.concat_arrays(column) for column in zip(*rows, strict=True)], schema=schema)


class Tables(dict[str, DictTable]):
    """The tables of one substream; says which there are."""

    def __missing__(self, name: str) -> DictTable:
        raise DataError(f"there is no table {name!r}; declared are: {', '.join(self) or 'none'}")


def tables_of(declared: Iterable[tuple[str, StateTable]]) -> Tables:
    return Tables({name: DictTable(name, table) for name, table in declared})


def _micros(time: Any, name: str) -> int:
    if not isinstance(time, dt.datetime) or time.tzinfo is None:
        raise DataError(f"due of table {name!r} takes a datetime with a zone, as tick is given; found {named(time)}")
    return (time - EPOCH) // MICROSECOND


def fitting(found: Any, schema: pa.Schema, what: str) -> pa.Table:
    """Rows in the columns and types of a schema; a narrower number or another width of text is no matter."""
    if isinstance(found, pa.RecordBatch):
        found = pa.table(found)
    if not isinstance(found, pa.Table):
        raise DataError(f"{what} must be a pyarrow.Table; found {named(found)}")
    if sorted(found.column_names) != sorted(schema.names):
        names = ", ".join(found.column_names) or "no columns"
        raise DataError(f"{what} must have the columns {', '.join(schema.names)}; found {names}")
    for field in schema:
        if not _fits(found.schema.field(field.name).type, field.type):
            kind = found.schema.field(field.name).type
            raise DataError(f"{what} must have {field.name!r} as {field.type}; found {kind}; cast it")
    try:
        return found.select(schema.names).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{what}: {error}") from None


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    t = pa.types
    if t.is_null(found):
        return True
    try:
        plain = plain_type(found, "")
    except QueryTypeError:  # streams do not carry it
        return False
    if t.is_timestamp(plain) and t.is_timestamp(wanted):
        return bool(plain.tz) == bool(wanted.tz)
    return plain == wanted or any(kind(plain) and kind(wanted) for kind in (t.is_integer, t.is_floating, t.is_decimal))
