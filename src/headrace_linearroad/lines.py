# mypy: disable-error-code="no-untyped-def"
"""Lines of whole numbers, as fast as they can be read: of a file that is plain or compressed, some megabytes at a time.

A number is `-?[0-9]{1,18}`, with blanks or tabs around it; a CR before the end of a line is no part of it. Of each line it is
said which fields are none, and whether it has as many as it should; the others are read.
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
SHOWN = 80  # bytes of a line, in a message
LONGEST = 1 << 20  # bytes of a line: what is longer is no text of lines
NEWLINE, RETURN, TAB, BLANK, COMMA, MINUS, ZERO, NINE = b"\n\r\t ,-09"
MOST_DIGITS = 18
COUNT = 1 << 30

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Lines:
    """Some lines that follow each other."""

    first: int  # the number of the first, from 1
    values: npt.NDArray[np.int64]  # [field, line]; of a field that is no number it means nothing
    wrong: npt.NDArray[np.int32]  # a bit for each field that is no number; COUNT: there are fewer or more of them
    starts: npt.NDArray[np.int64]
    text: Bytes
    share: float = 1.0  # of the file, up to their end

    @property
    def whole(self) -> npt.NDArray[np.bool_]:
        """Whether a line is all numbers."""
        none_wrong: npt.NDArray[np.bool_] = self.wrong == 0
        return none_wrong

    def line(self, place: int) -> bytes:
        """As it stands in the file, without its end."""
        return self.text[self.starts[place] : self.starts[place + 1] - 1].tobytes().rstrip(b"\r")

    def shown(self, place: int) -> str:
        """The same in a message."""
        return repr(self.line(place)[:SHOWN].decode(errors="replace"))


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file of text, by its first bytes compressed or not."""
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
    """Lines that all have an end."""
    data = np.frombuffer(text, np.uint8)
    most = int(np.count_nonzero(data == NEWLINE))
    values, wrong = np.zeros((fields, most), np.int64), np.zeros(most, np.int32)
    starts = np.zeros(most + 1, np.int64)
    parse(data, values, wrong, starts)
    return Lines(first, values, wrong, starts, data, share)


def first_lines(path: Path, many: int = 1 << 16) -> bytes:
    """Some bytes of the beginning, up to the end of a line if one ends there."""
    with opened(path) as file:
        found = _read(path, file, many)
    cut = found.rfind(b"\n") + 1
    return found[:cut] if cut else found and found + b"\n"


def _blocks(path: Path, block: int) -> Iterator[tuple[bytes, float]]:
    """The text in pieces that end with the end of a line, and how much of the file was read by then."""
    rest, size = b"", max(path.stat().st_size, 1)
    with opened(path) as file:
        raw: Any = getattr(file, "fileobj", file)  # of what is compressed
        while found := _read(path, file, block):
            cut = found.rfind(b"\n") + 1
            if cut:
                yield rest + found[:cut], raw.tell() / size
                rest = found[cut:]
            else:
                rest += found
            if len(rest) > LONGEST:
                raise SourceError(
                    f"{str(path)!r} has a line of more than {LONGEST:,} bytes; it is no text of whole numbers"
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
    """Lines that all have an end."""
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
