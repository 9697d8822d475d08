# mypy: disable-error-code="no-untyped-def"
"""A fast parser for lines of whole numbers, from a plain or gzip file, some megabytes at a time.

A number is `-?[0-9]{1,18}`, with optional blanks or tabs around it. A CR before the end of a line is ignored. For each
line the parser reports which fields are not numbers and whether the number of fields is wrong. The other fields are
read.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from headrace.columnar.numba_cache import compile_cached
from headrace.errors import SourceError
from headrace.support.terminal_text import printable

GZIP = b"\x1f\x8b"
BLOCK = 16 << 20  # bytes that are read at once
SHOWN = 80  # bytes of a line that a message shows
LONGEST = 1 << 20  # bytes: a file with a longer line is not text
NEWLINE, RETURN, TAB, BLANK, COMMA, MINUS, ZERO, NINE = b"\n\r\t ,-09"
MOST_DIGITS = 18
COUNT = 1 << 30

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Lines:
    """Some consecutive lines."""

    first: int  # the number of the first line, from 1
    values: npt.NDArray[np.int64]  # [field, line]; undefined if the field is not a number
    wrong: npt.NDArray[np.int32]  # one bit per field that is not a number; COUNT: the number of fields is wrong
    starts: npt.NDArray[np.int64]
    text: Bytes
    share: float = 1.0  # the part of the file up to the last of these lines

    @property
    def whole(self) -> npt.NDArray[np.bool_]:
        """Whether each line consists of the right number of numbers."""
        none_wrong: npt.NDArray[np.bool_] = self.wrong == 0
        return none_wrong

    def line(self, place: int) -> bytes:
        """Return the line as in the file, without its line end."""
        return self.text[self.starts[place] : self.starts[place + 1] - 1].tobytes().rstrip(b"\r")

    def shown(self, place: int) -> str:
        """Return the beginning of the line for a message."""
        return repr(self.line(place)[:SHOWN].decode(errors="replace"))


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a text file, and decompress it if its first bytes are those of gzip."""
    with ExitStack() as stack:
        try:
            file: Any = stack.enter_context(open(path, "rb"))
            if file.peek(len(GZIP))[: len(GZIP)] == GZIP:
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
        except OSError as error:
            raise unreadable(path, error) from None
        yield file


def read_lines(path: Path, fields: int, block: int = BLOCK) -> Iterator[Lines]:
    number = 1
    for text, share in _blocks(path, block):
        yield (lines := parsed(text, fields, number, share))
        number += len(lines.wrong)


def parsed(text: bytes, fields: int, first: int = 1, share: float = 1.0) -> Lines:
    """Parse a text in which every line has a line end."""
    data = np.frombuffer(text, np.uint8)
    most = int(np.count_nonzero(data == NEWLINE))
    values, wrong = np.zeros((fields, most), np.int64), np.zeros(most, np.int32)
    starts = np.zeros(most + 1, np.int64)
    parse(data, values, wrong, starts)
    return Lines(first, values, wrong, starts, data, share)


def first_lines(path: Path, many: int = 1 << 16) -> bytes:
    """Return about `many` bytes of the beginning, cut after the last complete line if there is one."""
    with opened(path) as file:
        found = _read(path, file, many)
    cut = found.rfind(b"\n") + 1
    return found[:cut] if cut else found and found + b"\n"


def _blocks(path: Path, block: int) -> Iterator[tuple[bytes, float]]:
    """Yield the text in pieces of whole lines, and the part of the file that was read so far."""
    rest, size = b"", max(path.stat().st_size, 1)
    with opened(path) as file:
        raw: Any = getattr(file, "fileobj", file)  # the compressed file, whose position gives the share
        while found := _read(path, file, block):
            cut = found.rfind(b"\n") + 1
            if cut:
                yield rest + found[:cut], raw.tell() / size
                rest = found[cut:]
            else:
                rest += found
            if len(rest) > LONGEST:
                raise SourceError(
                    f"{str(path)!r} has a line of more than {LONGEST:,} bytes; give a text of whole numbers"
                )
    if rest:
        yield rest + b"\n", 1.0


def _read(path: Path, file: BinaryIO, block: int) -> bytes:
    try:
        return file.read(block)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> SourceError:
    why = getattr(error, "strerror", None) or printable(str(error))
    return SourceError(f"{str(path)!r} cannot be read: {why}; correct it and start again")


@compile_cached
def parse(text, values, wrong, starts):
    """Parse lines that all have a line end into `values`, `wrong` and `starts`. Return the number of lines."""
    fields = len(values)
    line, field, place, good = 0, 0, 0, True
    digits, value, negative, closed = 0, np.int64(0), False, False
    while place < len(text):
        byte = text[place]
        place += 1
        if ZERO <= byte <= NINE:
            good = good and not closed and digits < MOST_DIGITS
            value = value * 10 + (byte - ZERO)
            digits += 1
        elif byte in (COMMA, NEWLINE):
            if field < fields:
                if good and digits > 0:
                    values[field, line] = -value if negative else value
                else:
                    wrong[line] |= 1 << field
            digits, value, negative, closed, good = 0, np.int64(0), False, False, True
            field += 1
            if byte == NEWLINE:
                if field != fields:
                    wrong[line] |= COUNT
                line += 1
                starts[line] = place
                field = 0
        elif byte == MINUS:
            good = good and not negative and digits == 0
            negative = True
        elif byte in (BLANK, TAB):
            good = good and (digits > 0 or not negative)
            closed = digits > 0
        elif byte == RETURN:
            good = good and place < len(text) and text[place] == NEWLINE
        else:
            good = False
    return line
