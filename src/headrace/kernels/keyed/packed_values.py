"""Packing of nested values into bytes, and back: lists, structs and maps of all types that a stream can have.

The bytes of a value are those of a column with only this value, part by part: which elements are not null (a byte
each), then

    of fixed width    the values
    text, bytes       the lengths (4 bytes each), then all texts
    lists, maps       the lengths, then the elements as a column
    structs           the fields, each as a column

Invariant: `unpack_values(kind, pack_values(values))` is `values`. The number of values in a part follows from the parts
read before it, so the bytes need no separators. The caller must make sure that the bytes are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.arrow import Numbers

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PackedValues:
    """Values of variable width: their bytes, as ranges of `data`."""

    data: Bytes
    starts: Numbers
    lengths: Numbers
    valid: Mask | None  # which values are not null; None: all


def pack_values(values: pa.ChunkedArray) -> PackedValues:
    found = [_packed(chunk) for chunk in values.chunks]
    lengths = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in found)])
    data = np.concatenate([np.zeros(0, np.uint8), *(data for data, _ in found)])
    return PackedValues(data, np.cumsum(lengths) - lengths, lengths, valid(values))


def _packed(values: pa.Array) -> tuple[Bytes, Numbers]:
    start = np.arange(len(values))
    parts = _parts(values, start, start + valid(values))
    lengths = sum((lengths for _, _, lengths in parts), np.zeros(len(values), np.int64))
    data, places = np.empty(int(lengths.sum()), np.uint8), np.cumsum(lengths) - lengths
    for source, starts, sizes in parts:
        copy(source, starts, sizes, data, places)
        places += sizes
    return data, lengths


def unpack_values(kind: pa.DataType, found: PackedValues) -> pa.Array:
    """Return the values as one array."""
    assert found.valid is not None
    some = np.flatnonzero(found.valid)
    values = _Reader(found.data, found.starts[some]).column(kind, np.ones(len(some), np.int64))
    if len(some) == len(found.valid):
        return values
    return values.take(pa.array(np.cumsum(found.valid) - 1, mask=~found.valid))


def copy(source: Bytes, starts: Numbers, lengths: Numbers, target: Bytes, places: Numbers) -> None:
    from headrace.kernels.keyed import row_store  # loads the compiler, which takes a while

    row_store.copy(read_only(source), starts, lengths, target, places)


# --- arrays of Arrow and their bytes ---------------------------------------------------------------------------------


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view. The compiler makes a separate loop for every combination of writable and read-only
    arrays."""
    found = values.view()
    found.setflags(write=False)
    return found


def bytes_of(buffer: pa.Buffer | None) -> Bytes:
    return np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(0, np.uint8)


def raw(values: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return values of fixed width as they are in memory; booleans as one byte each."""
    start, stop = values.offset, values.offset + len(values)
    data = bytes_of(values.buffers()[1])
    if dtype == np.bool_:
        return np.unpackbits(data, count=stop, bitorder="little")[start:].view(np.bool_)
    return data[start * dtype.itemsize : stop * dtype.itemsize].view(dtype)


def from_raw(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
    data = _bits(values) if pa.types.is_boolean(kind) else pa.py_buffer(values.view(np.uint8))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), data])


def valid(values: pa.Array | pa.ChunkedArray) -> Mask:
    """Return which values are not null."""
    return np.asarray(values.is_valid())


def offsets(values: pa.Array) -> Numbers:
    """Return where each text or bytes value starts, and where the last one ends."""
    wide = pa.types.is_large_binary(values.type)
    if not len(values):
        return np.zeros(1, np.int64)
    found = bytes_of(values.buffers()[1]).view(np.int64 if wide else np.int32)
    return found[values.offset : values.offset + len(values) + 1].astype(np.int64)


def bitmap(valid: Mask) -> pa.Buffer | None:
    return None if valid.all() else _bits(valid)


def _bits(values: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))


# --- writing ---------------------------------------------------------------------------------------------------------

ColumnSlice = tuple[Bytes, Numbers, Numbers]  # bytes; where the part of each value starts in them; its length


def _parts(values: pa.Array, start: Numbers, stop: Numbers) -> list[ColumnSlice]:
    """Return the byte slices that store a column: for each i, the slices of its values `start[i]` to `stop[i]`."""
    t, kind = pa.types, values.type
    found: list[ColumnSlice] = [(valid(values).view(np.uint8), start, stop - start)]
    if t.is_struct(kind):
        return found + _all_parts([values.field(place) for place in range(kind.num_fields)], start, stop)
    if t.is_map(kind) or t.is_list(kind):
        ends = values.offsets.to_numpy().astype(np.int64) if len(values) else np.zeros(1, np.int64)
        children = [values.keys, values.items] if t.is_map(kind) else [values.values]
        return [*found, _lengths(ends, start, stop), *_all_parts(children, ends[start], ends[stop])]
    if t.is_string(kind) or t.is_binary(kind):
        ends = offsets(values)
        text = bytes_of(values.buffers()[2]), ends[start], ends[stop] - ends[start]
        return [*found, _lengths(ends, start, stop), text]
    dtype = _dtype(kind)
    data = np.ascontiguousarray(raw(values, dtype)).view(np.uint8)
    return [*found, (data, start * dtype.itemsize, (stop - start) * dtype.itemsize)]


def _all_parts(columns: Sequence[pa.Array], start: Numbers, stop: Numbers) -> list[ColumnSlice]:
    return [part for column in columns for part in _parts(column, start, stop)]


def _lengths(ends: Numbers, start: Numbers, stop: Numbers) -> ColumnSlice:
    return np.diff(ends).astype(np.int32).view(np.uint8), start * 4, (stop - start) * 4


def _dtype(kind: pa.DataType) -> np.dtype[Any]:
    return np.dtype(np.bool_ if pa.types.is_boolean(kind) else f"V{kind.byte_width}")


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads the next part of all values at once."""

    def __init__(self, data: Bytes, at: Numbers) -> None:
        self._data, self._at = data, at.copy()

    def _next(self, lengths: Numbers) -> Bytes:
        found = np.empty(int(lengths.sum()), np.uint8)
        copy(self._data, self._at, lengths, found, np.cumsum(lengths) - lengths)
        self._at += lengths
        return found

    def column(self, kind: pa.DataType, counts: Numbers) -> pa.Array:
        """Read a column that has `counts` elements of each value."""
        t, rows = pa.types, int(counts.sum())
        buffers = [bitmap(self._next(counts).view(np.bool_))]
        if t.is_struct(kind):
            children = [self.column(part.type, counts) for part in kind]
            return pa.Array.from_buffers(kind, rows, buffers, children=children)
        if t.is_map(kind) or t.is_list(kind) or t.is_string(kind) or t.is_binary(kind):
            ends = np.append(0, np.cumsum(self._next(4 * counts).view(np.int32), dtype=np.int64))
            buffers.append(pa.py_buffer(ends.astype(np.int32)))
            last = np.cumsum(counts)
            inside = ends[last] - ends[last - counts]
            if t.is_map(kind):
                parts = [self.column(part.type, inside) for part in (kind.key_field, kind.item_field)]
                entries = pa.struct([kind.key_field, kind.item_field])
                children = [pa.Array.from_buffers(entries, len(parts[0]), [None], children=parts)]
                return pa.Array.from_buffers(kind, rows, buffers, children=children)
            if t.is_list(kind):
                return pa.Array.from_buffers(kind, rows, buffers, children=[self.column(kind.value_type, inside)])
            return pa.Array.from_buffers(kind, rows, [*buffers, pa.py_buffer(self._next(inside))])
        dtype = _dtype(kind)
        data = self._next(counts * dtype.itemsize)
        buffers.append(_bits(data.view(np.bool_)) if t.is_boolean(kind) else pa.py_buffer(data))
        return pa.Array.from_buffers(kind, rows, buffers)
