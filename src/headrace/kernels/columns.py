"""Columns whose rows are read and written by number, in any order: what a keyed table is made of.

Invariant: row n of a column is null iff `valid[n]` is false, and what is read of it is bit by bit what was written. Types
of fixed width are NumPy arrays; the others are arrays of Python objects that hold any value of the type: text as bytes
and times within nested values as numbers, because Python has neither text that is no UTF-8 nor years beyond 9999.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrow import Numbers

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

OBJECT = 50  # bytes, about, that Python takes for a value beside the value itself


class Column(Protocol):
    kind: pa.DataType

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""

    def write(self, rows: Numbers, values: pa.ChunkedArray) -> None:
        """One value per row."""

    def read(self, rows: Numbers) -> pa.Array | pa.ChunkedArray:
        """The values of these rows; a number below 0 is a row that is not there: null."""

    def clear(self, rows: Numbers) -> None:
        """Make these rows null."""

    def nbytes(self, rows: int) -> int:
        """About what the column takes if so many rows are in use."""


def column(kind: pa.DataType) -> Column:
    return Fixed(kind) if is_fixed(kind) else Loose(kind)


def is_fixed(kind: pa.DataType) -> bool:
    return _stored(kind) is not None


def _stored(kind: pa.DataType) -> pa.DataType | None:
    """The type of fixed width whose NumPy array holds the values."""
    t = pa.types
    if t.is_timestamp(kind) or t.is_time64(kind):
        return pa.int64()
    if t.is_date32(kind):
        return pa.int32()
    return kind if t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) else None


def _no_value(kind: pa.DataType) -> Any:
    """What stands in the array where there is a null: what can be no value of the type, where it has such a thing."""
    t = pa.types
    if t.is_floating(kind):
        return np.nan
    if t.is_integer(kind) or t.is_boolean(kind):
        return 0
    return np.iinfo(np.int32 if t.is_date32(kind) else np.int64).min  # of a time: NaT


class Fixed:
    """Numbers, booleans, dates and times."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self._stored, self._nothing = kind, _stored(kind) or kind, _no_value(kind)
        self._counts = self._stored is kind  # a number or a boolean: begins at zero
        self.values: Values = np.zeros(0, self._stored.to_pandas_dtype())
        self.valid: Mask = np.zeros(0, bool)

    def grow(self, rows: int) -> None:
        self.values, self.valid = enlarged(self.values, rows, self._nothing), enlarged(self.valid, rows)

    def write(self, rows: Numbers, values: pa.ChunkedArray) -> None:
        self.values[rows], self.valid[rows] = numpy_of(values)

    def read(self, rows: Numbers) -> pa.Array:
        if not len(self.values):
            return pa.nulls(len(rows), self.kind)
        mask = ~self.valid[rows] | (rows < 0)
        found = pa.array(self.values[rows], self._stored, mask=mask if mask.any() else None, from_pandas=False)
        return found if self._counts else found.view(self.kind)

    def clear(self, rows: Numbers) -> None:
        self.values[rows], self.valid[rows] = self._nothing, False

    def nbytes(self, rows: int) -> int:
        return self.values.nbytes + self.valid.nbytes

    def begin(self, rows: Numbers) -> None:
        """Rows that somebody is about to write in place: numbers at zero, times at none."""
        if self._counts:
            self.values[rows], self.valid[rows] = 0, True

    def accept(self, rows: Numbers) -> None:
        """Rows that were written in place. A null that still reads as one stays so; a time that reads as one becomes one."""
        values = self.values[rows]
        some = ~np.isnan(values) if values.dtype.kind == "f" else values != self._nothing
        self.valid[rows] = some | self.valid[rows] if self._counts else some

    @property
    def face(self) -> Values:
        """The values as NumPy knows them, to be read and written in place."""
        return self.values.view(f"datetime64[{self.kind.unit}]") if pa.types.is_timestamp(self.kind) else self.values


class Loose:
    """Everything else."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind, self._plain = kind, _plain(kind)
        self.values: Values = np.zeros(0, object)
        self._bytes = self._written = 0

    def grow(self, rows: int) -> None:
        self.values = enlarged(self.values, rows, None)

    def write(self, rows: Numbers, values: pa.ChunkedArray) -> None:
        self.values[rows] = objects_of(values)
        self._bytes += values.nbytes
        self._written += len(rows)

    def read(self, rows: Numbers) -> pa.Array | pa.ChunkedArray:
        if not len(self.values):
            return pa.nulls(len(rows), self.kind)
        found = self.values[rows]
        found[rows < 0] = None
        made = pa.array(found if self._is_bytes else found.tolist(), self._plain, from_pandas=False)
        return _as_text(made, self.kind) if self._is_bytes else made.cast(self.kind)

    def clear(self, rows: Numbers) -> None:
        self.values[rows] = None

    def nbytes(self, rows: int) -> int:
        mean = self._bytes / self._written if self._written else 0
        return self.values.nbytes + int(rows * (mean + OBJECT))

    @property
    def _is_bytes(self) -> bool:
        return bool(pa.types.is_binary(self._plain))


def enlarged(values: Values, rows: int, rest: Any = 0) -> Values:
    """With the same at all further places."""
    grown = np.full(rows, rest, values.dtype)
    grown[: len(values)] = values
    return grown


def numpy_of(values: pa.ChunkedArray) -> tuple[Values, Mask | bool]:
    """(values of fixed width, none of them null; which of them count, or simply True)."""
    stored, nothing = _stored(values.type), _no_value(values.type)
    assert stored is not None
    if not values.type.equals(stored):
        values = pa.chunked_array([chunk.view(stored) for chunk in values.chunks], stored)
    if not values.null_count:
        return values.to_numpy(), True
    nothing = bool(nothing) if pa.types.is_boolean(stored) else nothing
    return pc.fill_null(values, pa.scalar(nothing, stored)).to_numpy(), np.asarray(values.is_valid())


def objects_of(values: pa.ChunkedArray) -> Values:
    """Python objects, one for each value and None for null."""
    plain = _plain(values.type)
    if pa.types.is_binary(plain):
        as_bytes = pa.chunked_array([chunk.view(plain) for chunk in values.chunks], plain)
        return np.asarray(as_bytes.to_numpy(), dtype=object)
    return np.fromiter(
        values.cast(plain).to_pylist(), object, len(values)
    )  # asarray makes a grid of lists of one length


def _as_text(found: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Bytes as the text they were; of more than 2 GiB there are several chunks."""
    if isinstance(found, pa.ChunkedArray):
        return pa.chunked_array([chunk.view(kind) for chunk in found.chunks], kind)
    return found.view(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type whose values Python has all of."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind])
    if t.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if t.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if t.is_string(kind):
        return pa.binary()
    return _stored(kind) or kind
