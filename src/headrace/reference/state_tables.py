"""The state of a processor as plain dicts: from the key of a row to the row.

Invariant: a table has one row for every key that was put and not deleted since. In a key, null is a value, NaN equals
NaN, and -0.0 equals 0.0. A row is a tuple of arrays of one value each, so that every Arrow type is unchanged.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.values import Key, comparable_values, rows_text
from headrace.errors import DataError
from headrace.processor import StateTable
from headrace.reference.tuples import keys_of
from headrace.support.argument_errors import describe_argument

Row = tuple[pa.Array, ...]
MICROSECOND = dt.timedelta(microseconds=1)
UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class DictTable:
    """A state table of one substream; see `headrace.processor.ProcessorTable`."""

    def __init__(self, name: str, declared: StateTable) -> None:
        self._name, self._declared = name, declared
        self._key = pa.schema([declared.columns.field(name) for name in declared.key])
        self._rows: dict[Key, Row] = {}
        self._due: dict[Key, int] = {}  # only rows that have such a time
        self._numbers: dict[Key, int] = {}  # rows that were requested by number
        self._given = 0
        self._arrays: dict[str, npt.NDArray[Any]] = {}  # arrays handed out for writing

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
        fitted = coerce_to_schema(rows, self._declared.columns, f"put into table {self._name!r}")
        columns = [column.combine_chunks() for column in fitted.columns]
        times = comparable_values(fitted[self._declared.due]) if self._declared.due else [None] * fitted.num_rows
        new: dict[Key, tuple[Row, int | None]] = {}
        for number, key in enumerate(keys_of(fitted, self._declared.key)):
            if key in new:
                twice = rows_text(fitted.select(self._declared.key).slice(number, 1))[0]
                raise DataError(f"put into table {self._name!r} has the key {twice} twice; give each key once")
            new[key] = tuple(column.slice(number, 1) for column in columns), times[number]
        for key, (row, time) in new.items():
            self._set(key, row, time)

    def _set(self, key: Key, row: Row, time: int | None) -> None:
        self._due.pop(key, None)
        self._rows[key] = row
        if time is not None:
            self._due[key] = time
        self._arrays = {}

    def delete(self, keys: pa.Table) -> None:
        for key in keys_of(self._keys(keys), self._declared.key):
            for each in (self._rows, self._due, self._numbers):
                each.pop(key, None)
        self._arrays = {}

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
        """Return a copy as after a restart, in which rows get new numbers."""
        found = DictTable(self._name, self._declared)
        found._rows, found._due = dict(self._rows), dict(self._due)
        return found

    # --- by row number: arrays are made of rows, and rows of arrays --------------------------------------------------

    def numbers(self, keys: pa.Table | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        self.demand_told()
        if isinstance(keys, np.ndarray):
            keys = pa.table([pa.array(keys)], names=list(self._declared.key))
        asked = self._keys(keys)
        found = keys_of(asked, self._declared.key)
        for place, key in enumerate(found):
            if key not in self._rows:
                made = [
                    asked[f.name].combine_chunks().slice(place, 1)
                    if f.name in self._declared.key
                    else _beginning(f.type)
                    for f in self._declared.columns
                ]
                self._set(key, tuple(made), None)
            if key not in self._numbers:
                self._numbers[key] = self._given
                self._given += 1
        self._arrays = {}
        return np.array([self._numbers[key] for key in found], np.int64)

    @property
    def columns(self) -> Mapping[str, npt.NDArray[Any]]:
        names = [field.name for field in self._declared.columns if _is_number(field.type)]
        if not self._arrays:
            self._arrays = {name: self._array(name) for name in names}
        return self._arrays

    def _array(self, name: str) -> npt.NDArray[Any]:
        place, kind = self._declared.columns.names.index(name), self._declared.columns.field(name).type
        found = np.full(self._given, _nothing(kind), _plain_number(kind).to_pandas_dtype())
        for key, number in self._numbers.items():
            value = self._rows[key][place]
            if value.null_count == 0:
                found[number] = value.cast(_plain_number(kind)).to_numpy(zero_copy_only=False)[0]
        return found.view("datetime64[us]") if pa.types.is_timestamp(kind) else found

    def demand_told(self) -> None:
        """Raise if an array was written in place without a call of `touched`: an engine would not store the change."""
        for name, array in self._arrays.items():
            if array.tobytes() != self._array(name).tobytes():
                msg = f"column {name!r} of table {self._name!r} was written in place without a call of touched(numbers)"
                raise DataError(msg)

    def touched(self, rows: npt.NDArray[Any]) -> None:
        arrays, known = dict(self._arrays), {number: key for key, number in self._numbers.items()}
        given = np.asarray(rows)
        if given.size and given.dtype.kind not in "iu":
            raise DataError(f"table {self._name!r}: touched takes row numbers; found an array of {given.dtype}")
        for number in np.unique(given).tolist():
            if number not in known:
                raise DataError(f"table {self._name!r}: touched was given {number}, which is not the number of a row")
            row = dict(zip(self._declared.columns.names, self._rows[known[number]], strict=True))
            for name in set(arrays) - set(self._declared.key):
                row[name] = _written(row[name], arrays[name][number : number + 1])
            due = None if self._declared.due is None else comparable_values(row[self._declared.due])[0]
            self._set(known[number], tuple(row.values()), due)
        self._arrays = arrays

    def _keys(self, keys: pa.Table) -> pa.Table:
        names = self._declared.key
        found = keys.select([n for n in keys.column_names if n in names]) if isinstance(keys, pa.Table) else keys
        return coerce_to_schema(found, self._key, f"keys of table {self._name!r}")

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        schema = self._declared.columns
        if not rows:
            return schema.empty_table()
        return pa.table([pa.concat_arrays(column) for column in zip(*rows, strict=True)], schema=schema)


def _is_number(kind: pa.DataType) -> bool:
    t = pa.types
    return bool(
        t.is_integer(kind)
        or t.is_floating(kind)
        or t.is_boolean(kind)
        or (t.is_temporal(kind) and not t.is_duration(kind))
    )


def _plain_number(kind: pa.DataType) -> pa.DataType:
    """Return the type of an array of such values: times are integers."""
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_temporal(kind) else kind


def _nothing(kind: pa.DataType) -> Any:
    """Return the value that a null reads as."""
    if pa.types.is_floating(kind):
        return np.nan
    return np.iinfo(_plain_number(kind).to_pandas_dtype()).min if pa.types.is_temporal(kind) else 0


def _beginning(kind: pa.DataType) -> pa.Array:
    """Return the initial value of a column in a new row: zero for a number, otherwise null."""
    if _is_number(kind) and not pa.types.is_temporal(kind):
        return pa.array([0]).cast(kind)
    return pa.nulls(1, kind)


def _written(before: pa.Array, found: npt.NDArray[Any]) -> pa.Array:
    """Return the new value of an array element. A null whose value is unchanged stays null; a time with the null
    pattern becomes null."""
    kind = before.type
    plain = found.view(np.int64) if found.dtype.kind == "M" else found
    reads_as_null = bool(np.isnan(plain[0])) if plain.dtype.kind == "f" else plain[0] == _nothing(kind)
    if reads_as_null and (before.null_count or pa.types.is_temporal(kind)):
        return pa.nulls(1, kind)
    return pa.array(plain, _plain_number(kind), from_pandas=False).cast(kind)


class SubstreamTables(dict[str, DictTable]):
    """The tables of one substream. An unknown name raises an error that lists the tables."""

    def __missing__(self, name: str) -> DictTable:
        raise DataError(f"there is no table {name!r}; declared are: {', '.join(self) or 'none'}")


def tables_of(declared: Iterable[tuple[str, StateTable]]) -> SubstreamTables:
    return SubstreamTables({name: DictTable(name, table) for name, table in declared})


def _micros(time: Any, name: str) -> int:
    if not isinstance(time, dt.datetime) or time.tzinfo is None:
        raise DataError(
            f"due of table {name!r} takes a datetime with a zone, as tick is given; found {describe_argument(time)}"
        )
    return (time - UNIX_EPOCH) // MICROSECOND


def coerce_to_schema(found: Any, schema: pa.Schema, what: str) -> pa.Table:
    """Return rows in the columns and types of a schema. Types may differ within a family; a value that does not fit is
    an error."""
    if isinstance(found, pa.RecordBatch):
        found = pa.table(found)
    if not isinstance(found, pa.Table):
        raise DataError(f"{what} must be a pyarrow.Table; found {describe_argument(found)}")
    if found.schema.equals(schema, check_metadata=True):
        return found
    if sorted(found.column_names) != sorted(schema.names):
        names = ", ".join(found.column_names) or "no columns"
        raise DataError(f"{what} must have the columns {', '.join(schema.names)}; found {names}")
    for field in schema:
        if not _fits(found.schema.field(field.name).type, field.type):
            kind = found.schema.field(field.name).type
            raise DataError(f"{what} must have {field.name!r} as {field.type}; found {kind}; cast it")
    given = found.select(schema.names)
    try:
        cast = given.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"{what}: {error}") from None
    for field in (field for field in schema if given.schema.field(field.name).type != field.type):
        doubles = zip(_doubles(given[field.name]), _doubles(cast[field.name]), strict=True)
        if any(math.isfinite(before) and math.isinf(after) for before, after in doubles):
            raise DataError(
                f"{what} has a value in {field.name!r} that {field.type} does not hold; declare it as double"
            )
    return cast


def _doubles(values: pa.Array | pa.ChunkedArray) -> Iterator[float]:
    """Yield the floats in these values, at any depth, in their order."""
    t, kind = pa.types, values.type
    if isinstance(values, pa.ChunkedArray):
        for chunk in values.chunks:
            yield from _doubles(chunk)
    elif t.is_dictionary(kind):
        yield from _doubles(values.dictionary_decode())
    elif t.is_floating(kind):
        yield from (number for number in values.to_pylist() if number is not None)
    elif t.is_struct(kind):
        for member in values.flatten():
            yield from _doubles(member)
    elif t.is_map(kind):
        for item in values:
            yield from _doubles(item.values) if item.is_valid else ()
    elif t.is_nested(kind):  # a list
        yield from _doubles(values.flatten())


def _fits(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether two types are of one family, at every depth: integers of any width, text of any width, and so on."""
    t = pa.types
    if t.is_null(found):
        return True
    if t.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if t.is_nested(wanted):
        inner, expected = _members(found), _members(wanted)
        return [name for name, _ in inner] == [name for name, _ in expected] and all(
            _fits(one, other) for (_, one), (_, other) in zip(inner, expected, strict=True)
        )
    return _family(found) == _family(wanted)


def _members(kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the names and types of the parts of a nested type."""
    t = pa.types
    if t.is_struct(kind):
        return [(field.name, field.type) for field in kind]
    if t.is_map(kind):
        return [("key of a map", kind.key_type), ("item of a map", kind.item_type)]
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return [("item of a list", kind.value_type)]
    return [("value", kind)]


def _family(kind: pa.DataType) -> object:
    """Return the family of a type. Values of two types can be compared if the types are of one family."""
    t = pa.types
    if t.is_timestamp(kind):
        return "moment" if kind.tz else "local time"
    text = t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)
    data = t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind)
    kinds = {
        "whole": t.is_integer,
        "double": t.is_floating,
        "decimal": t.is_decimal,
        "date": t.is_date,
        "time": t.is_time,
    }
    named = [name for name, is_one in kinds.items() if is_one(kind)]
    return "text" if text else "bytes" if data else named[0] if named else kind
