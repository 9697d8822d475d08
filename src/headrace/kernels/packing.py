"""Values of nested types as bytes, and back: lists, structs and maps of anything that a stream carries.

The bytes of a value are those of a column with just this value, part by part: which are not null (a byte each), then

    of fixed width    the values
    text, bytes       the lengths (4 bytes each), then all of it
    lists, maps       the lengths, then the elements as a column
    structs           the fields, each as a column

Invariant: `unpacked(kind, packed(values))` is `values`. How many values a part has follows from what was read before it, so
the bytes need no marks; whoever keeps them sees to it that they are those that were written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow import Numbers

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Packed:
    """Values of variable width: their bytes, somewhere in `data`."""

    data: Bytes
    starts: Numbers
    lengths: Numbers
    valid: Mask | None  # which of them are not null; None: all


def packed(values: pa.ChunkedArray) -> Packed:
    pieces: list[bytes] = []
    for chunk in values.chunks:
        write = _writer(chunk)
        for place, some in enumerate(valid(chunk).tolist()):
            parts: list[bytes] = []
            if some:
                write(place, place + 1, parts)
            pieces.append(b"".join(parts))
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    data = np.frombuffer(b"".join(pieces), np.uint8) if lengths.any() else np.zeros(0, np.uint8)
    return Packed(data, np.cumsum(lengths) - lengths, lengths, valid(values))


def unpacked(kind: pa.DataType, found: Packed) -> pa.Array:
    """The values as one array."""
    assert found.valid is not None
    nothing: list[bytes] = []
    _writer(pa.nulls(1, kind))(0, 1, nothing)
    null, whole = memoryview(b"".join(nothing)), memoryview(found.data)  # type: ignore[arg-type]
    column = _column(kind)
    for start, length, some in zip(found.starts.tolist(), found.lengths.tolist(), found.valid.tolist(), strict=True):
        column.read(whole[start : start + length] if some else null, 0, 1)
    return column.made()


# --- arrays of Arrow and their bytes ---------------------------------------------------------------------------------


def fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Not to be written: the compiler makes a loop of its own for every mixture of such arrays and others."""
    found = values.view()
    found.setflags(write=False)
    return found


def bytes_of(buffer: pa.Buffer | None) -> Bytes:
    return np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(0, np.uint8)


def raw(values: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Values of fixed width as they lie in memory; booleans a byte each."""
    start, stop = values.offset, values.offset + len(values)
    data = bytes_of(values.buffers()[1])
    if dtype == np.bool_:
        return np.unpackbits(data, count=stop, bitorder="little")[start:].view(np.bool_)
    return data[start * dtype.itemsize : stop * dtype.itemsize].view(dtype)


def from_raw(kind: pa.DataType, values: npt.NDArray[Any], valid: Mask) -> pa.Array:
    data = _bits(values) if pa.types.is_boolean(kind) else pa.py_buffer(values.view(np.uint8))
    return pa.Array.from_buffers(kind, len(values), [bitmap(valid), data])


def valid(values: pa.Array | pa.ChunkedArray) -> Mask:
    """Which values are not null."""
    return np.asarray(values.is_valid())


def offsets(values: pa.Array) -> Numbers:
    """Of text or bytes: where each begins, and where the last one ends."""
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

Write = Callable[[int, int, list[bytes]], None]  # adds the bytes of the values from one place to another


def _writer(values: pa.Array) -> Write:
    t, kind = pa.types, values.type
    some = valid(values).view(np.uint8)
    if t.is_struct(kind):
        return _write_struct(some, [_writer(values.field(place)) for place in range(kind.num_fields)])
    if t.is_map(kind) or t.is_list(kind):
        ends = values.offsets.to_numpy().astype(np.int64) if len(values) else np.zeros(1, np.int64)
        parts = [values.keys, values.items] if t.is_map(kind) else [values.values]
        return _write_lengths(some, ends, [_writer(part) for part in parts])
    if t.is_string(kind) or t.is_binary(kind):
        return _write_lengths(some, offsets(values), [_write_bytes(bytes_of(values.buffers()[2]), 1)])
    dtype = np.dtype(np.bool_ if t.is_boolean(kind) else f"V{kind.byte_width}")
    return _write_struct(some, [_write_bytes(raw(values, dtype).view(np.uint8), dtype.itemsize)])


def _write_bytes(data: Bytes, width: int) -> Write:
    def write(start: int, stop: int, parts: list[bytes]) -> None:
        parts.append(data[start * width : stop * width].tobytes())

    return write


def _write_struct(some: Bytes, children: list[Write]) -> Write:
    def write(start: int, stop: int, parts: list[bytes]) -> None:
        parts.append(some[start:stop].tobytes())
        for child in children:
            child(start, stop, parts)

    return write


def _write_lengths(some: Bytes, ends: Numbers, children: list[Write]) -> Write:
    lengths = np.diff(ends).astype(np.int32)

    def write(start: int, stop: int, parts: list[bytes]) -> None:
        parts.append(some[start:stop].tobytes())
        parts.append(lengths[start:stop].tobytes())
        for child in children:
            child(int(ends[start]), int(ends[stop]), parts)

    return write


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass
class _Column:
    """A column that is put together of pieces."""

    kind: pa.DataType
    children: list[_Column] = field(default_factory=list)
    valid: list[memoryview] = field(default_factory=list)
    lengths: list[memoryview] = field(default_factory=list)
    data: list[memoryview] = field(default_factory=list)
    width: int = 0  # of values of fixed width
    has_lengths: bool = False
    rows: int = 0

    def read(self, whole: memoryview, at: int, rows: int) -> int:
        """Take the next values; where they end."""
        self.rows += rows
        self.valid.append(whole[at : at + rows])
        at, inside = at + rows, rows
        if self.has_lengths:
            self.lengths.append(whole[at : at + 4 * rows])
            inside = sum(np.frombuffer(self.lengths[-1], np.int32).tolist())
            at += 4 * rows
        for child in self.children:
            at = child.read(whole, at, inside)
        if not self.children:
            size = inside * (self.width or 1)
            self.data.append(whole[at : at + size])
            at += size
        return at

    def made(self) -> pa.Array:
        t, kind = pa.types, self.kind
        buffers = [bitmap(np.frombuffer(b"".join(self.valid), np.bool_))]
        if self.has_lengths:
            ends = np.zeros(self.rows + 1, np.int32)
            np.cumsum(np.frombuffer(b"".join(self.lengths), np.int32), out=ends[1:])
            buffers.append(pa.py_buffer(ends))
        children = [child.made() for child in self.children]
        if t.is_map(kind):
            entries = pa.struct([kind.key_field, kind.item_field])
            children = [pa.StructArray.from_buffers(entries, len(children[0]), [None], children=children)]
        if not self.children:
            data = b"".join(self.data)
            buffers.append(_bits(np.frombuffer(data, np.bool_)) if t.is_boolean(kind) else pa.py_buffer(data))
        return pa.Array.from_buffers(kind, self.rows, buffers, children=children or None)


def _column(kind: pa.DataType) -> _Column:
    t = pa.types
    if t.is_struct(kind):
        return _Column(kind, [_column(part.type) for part in kind])
    if t.is_map(kind):
        return _Column(kind, [_column(kind.key_type), _column(kind.item_type)], has_lengths=True)
    if t.is_list(kind):
        return _Column(kind, [_column(kind.value_type)], has_lengths=True)
    if t.is_string(kind) or t.is_binary(kind):
        return _Column(kind, has_lengths=True)
    return _Column(kind, width=1 if t.is_boolean(kind) else kind.byte_width)
