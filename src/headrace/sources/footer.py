"""Where the record batches of an Arrow file are, which its footer says and pyarrow does not.

The footer is a flatbuffer (Arrow's format, File.fbs); pyarrow has verified it when it opened the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

MAGIC = 6  # bytes: "ARROW1", at both ends
BLOCK = struct.Struct("<qi4xq")
RECORD_BATCHES = 3  # which field of the footer


class Block(NamedTuple):
    """A record batch in a file: its description, and the columns behind that."""

    offset: int
    described: int
    body: int

    @property
    def bytes(self) -> int:
        return self.described + self.body


def record_batches(file: pa.NativeFile) -> list[Block]:
    """In order. What is no footer is refused."""
    try:
        data = _footer(file)
        place, count = _root(data).vector(RECORD_BATCHES)
        return [Block(*BLOCK.unpack_from(data, place + BLOCK.size * number)) for number in range(count)]
    except struct.error as error:
        raise pa.ArrowInvalid(f"its footer is damaged: {error}") from None


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
        directory = self.at - self._number("<i", self.at)
        place = 4 + 2 * number
        if place >= self._number("<H", directory):
            return None
        offset = self._number("<H", directory + place)
        return self.at + offset if offset else None

    def vector(self, number: int) -> tuple[int, int]:
        """Where its elements begin, and how many there are."""
        field = self.field(number)
        if field is None:
            return 0, 0
        begin = field + self._number("<I", field)
        return begin + 4, self._number("<I", begin)

    def _number(self, form: str, at: int) -> int:
        found: int = struct.unpack_from(form, self.data, at)[0]
        return found


def _root(data: bytes) -> _Table:
    return _Table(data, struct.unpack_from("<I", data)[0])
