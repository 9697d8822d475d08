"""Record batches of an Arrow file by their place in it, and some rows of one: what pyarrow does not do without a map.

Footer and descriptions are flatbuffers (Arrow's File.fbs and Message.fbs). pyarrow verifies the footer when it opens the
file, and a description when it makes a batch of it; what is read here from one that is damaged can be wrong, never more.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

MAGIC = 6  # bytes: "ARROW1", at both ends
BLOCK = struct.Struct("<qi4xq")
SCHEMA, RECORD_BATCHES = 1, 3  # fields of a footer
ENDIANNESS = 0  # of a schema
HEADER = 2  # of a message
LENGTH, COMPRESSION = 0, 3  # of a record batch
MARKED = b"\xff\xff\xff\xff"  # how a message begins, if it is not of the oldest kind


class Block(NamedTuple):
    """A record batch in a file: its description, and the columns behind that."""

    offset: int
    described: int
    body: int

    @property
    def bytes(self) -> int:
        return self.described + self.body


def record_batches(file: pa.NativeFile) -> list[Block]:
    """In order."""
    try:
        data = _footer(file)
        place, count = _root(data, 0).vector(RECORD_BATCHES)
        found = [Block(*BLOCK.unpack_from(data, place + BLOCK.size * number)) for number in range(count)]
    except struct.error as error:
        raise pa.ArrowInvalid(f"its footer is damaged: {error}") from None
    if any(min(block) < 0 or block.offset + block.bytes > file.size() for block in found):
        raise pa.ArrowInvalid("its footer leads beyond its end")
    return found


def length_if_plain(file: pa.NativeFile, block: Block) -> int | None:
    """How many rows a batch has whose columns are in the file as they are in memory; None: they are not."""
    try:
        order = _root(_footer(file), 0).table(SCHEMA).number("<h", ENDIANNESS)
        data = bytes(file.read_at(block.described, block.offset))
        batch = _root(data, 8 if data.startswith(MARKED) else 4).table(HEADER)
        compressed = batch.field(COMPRESSION) is not None
        return None if compressed or ("little", "big")[order] != sys.byteorder else batch.number("<q", LENGTH)
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid(f"the description of a record batch is damaged: {error}") from None


def _footer(file: pa.NativeFile) -> bytes:
    end = file.size() - MAGIC - 4
    (length,) = struct.unpack("<i", file.read_at(4, end))
    return bytes(file.read_at(length, end - length))


@dataclass(frozen=True)
class _Table:
    """A table of a flatbuffer, at its place in it."""

    data: bytes
    at: int

    def field(self, number: int) -> int | None:
        """Where a field is; None: it has its default."""
        directory = self.at - self._read("<i", self.at)
        place = 4 + 2 * number
        if place >= self._read("<H", directory):
            return None
        offset = self._read("<H", directory + place)
        return self.at + offset if offset else None

    def number(self, form: str, number: int) -> int:
        field = self.field(number)
        return 0 if field is None else self._read(form, field)

    def table(self, number: int) -> _Table:
        field = self.field(number)
        if field is None:
            raise struct.error(f"field {number} is missing")
        return _Table(self.data, field + self._read("<I", field))

    def vector(self, number: int) -> tuple[int, int]:
        """Where its elements begin, and how many there are."""
        field = self.field(number)
        if field is None:
            return 0, 0
        begin = field + self._read("<I", field)
        return begin + 4, self._read("<I", begin)

    def _read(self, form: str, at: int) -> int:
        found: int = struct.unpack_from(form, self.data, at)[0]
        return found


def _root(data: bytes, at: int) -> _Table:
    return _Table(data, at + struct.unpack_from("<I", data, at)[0])


# --- some rows ---------------------------------------------------------------------------------------------------------


def read_rows(
    file: pa.NativeFile, block: Block, schema: pa.Schema, places: Sequence[int], start: int, stop: int
) -> pa.RecordBatch:
    """Rows of a batch that is plain and has no dictionaries; of nested columns more is read than is given.

    Columns by place: two may have one name.
    """
    whole = _Whole(file, block, schema)
    if not 0 <= start <= stop <= whole.batch.num_rows:
        raise pa.ArrowInvalid(f"it has a batch of {whole.batch.num_rows} rows, not of {stop}")
    chosen = whole.batch.select(list(places))
    return pa.RecordBatch.from_arrays([whole.rows(c, start, stop) for c in chosen.columns], schema=chosen.schema)


class _Whole:
    """A batch of which nothing was read but its description: its columns lie in memory that nobody has touched, which says
    where in the file they are.
    """

    def __init__(self, file: pa.NativeFile, block: Block, schema: pa.Schema) -> None:
        self.file, self.block = file, block
        self.memory = np.empty(block.bytes, np.uint8)
        self.memory[: block.described] = np.frombuffer(self._at(0, block.described), np.uint8)
        self.batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.BufferReader(pa.py_buffer(self.memory))), schema)

    def rows(self, column: pa.Array, start: int, stop: int) -> pa.Array:
        """Some rows of a column, from the file."""
        kind, first = column.type, start // 8 * 8  # the first row of a byte of bits
        validity, *others = column.buffers()
        bits = None if validity is None else self._read(validity, first // 8, -(-stop // 8))
        if (width := _width_of_offsets(kind)) is not None:
            ends = np.frombuffer(self._read(others[0], first * width, (stop + 1) * width), f"<i{width}")
            text = self._read(others[1], int(ends[0]), int(ends[-1]))
            buffers = [bits, pa.py_buffer(ends - ends[0]), text]
        elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
            buffers = [bits, self._read(others[0], first * kind.bit_width // 8, -(-stop * kind.bit_width // 8))]
        else:  # nested, and whatever else
            self._fill(column)
            return column.slice(start, stop - start)
        return pa.Array.from_buffers(kind, stop - first, buffers).slice(start - first)

    def _fill(self, column: pa.Array) -> None:
        """All of a column, where it lies."""
        for buffer in filter(None, column.buffers()):
            place = buffer.address - self.memory.ctypes.data
            self.memory[place : place + buffer.size] = np.frombuffer(self._read(buffer, 0, buffer.size), np.uint8)

    def _read(self, buffer: pa.Buffer | None, first: int, last: int) -> pa.Buffer:
        """Bytes of a buffer."""
        if not 0 <= first <= last <= (buffer.size if buffer else 0):
            raise pa.ArrowInvalid("a column leads beyond its end")
        if buffer is None or first == last:  # one of no bytes need not lie in this memory
            return pa.py_buffer(b"")
        return self._at(buffer.address - self.memory.ctypes.data + first, last - first)

    def _at(self, place: int, size: int) -> pa.Buffer:
        self.file.seek(self.block.offset + place)
        found = self.file.read_buffer(size)
        if found.size != size:
            raise pa.ArrowInvalid("it ends before its last column does")
        return found


def _width_of_offsets(kind: pa.DataType) -> int | None:
    """Bytes of each, where values have lengths of their own."""
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4
    return 8 if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) else None


def has_dictionary(kind: Any) -> bool:
    """Whether values of a type, or some within them, are kept apart."""
    if pa.types.is_dictionary(kind):
        return True
    return pa.types.is_nested(kind) and any(has_dictionary(kind.field(place).type) for place in range(kind.num_fields))
