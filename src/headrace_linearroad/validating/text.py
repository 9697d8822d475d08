"""Text input, plain or gzip: lines of fifteen fields, with whole numbers where the type uses them. Others are counted.

Invariant: `_fields` alone defines a well-formed line. `_clean` proves for a whole block that each of its lines has
fifteen numbers, which is the usual case. Only the lines of other blocks are checked one by one.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import numpy as np
import pyarrow as pa
import pyarrow.csv

from headrace.errors import SourceError
from headrace_linearroad.validating.shapes import FIELDS, USED

DIGITS = 18  # any number of 18 digits fits 64 bits
NUMBER = re.compile(rb"[ \t]*(-?[0-9]{1,%d})[ \t]*" % DIGITS)
UNUSED = b"-1"
BLOCK = 1 << 24
UNREADABLE = (OSError, EOFError, zlib.error)  # what a broken gzip file may raise
_ENDS = np.array([ord(",")] * (len(FIELDS) - 1) + [ord("\n")], np.uint8)


def opened(path: Path) -> IO[bytes]:
    """Open a file, and decompress it if its content is gzip. The name has no effect."""
    return cast(IO[bytes], gzip.open(path, "rb")) if is_packed(path) else path.open("rb")


def is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def tables(path: Path) -> Iterator[tuple[pa.Table, int]]:
    """Yield tables of the well-formed lines, in order, as 64-bit integers, each with a count of malformed lines."""
    with opened(path) as file:
        rest = b""
        while block := _block(path, file):
            lines, found, rest = (rest + block).rpartition(b"\n")
            if found:
                yield _table(lines + b"\n")
        if rest:
            yield _table(rest + b"\n")


def _block(path: Path, file: IO[bytes]) -> bytes:
    try:
        return file.read(BLOCK)
    except UNREADABLE as error:
        raise SourceError(f"{str(path)!r} cannot be read to its end: {error}; replace the file") from None


def _table(block: bytes) -> tuple[pa.Table, int]:
    block = block.replace(b"\r\n", b"\n")
    if _clean(block):
        return _numbers(block), 0
    lines = block[:-1].split(b"\n")
    good = [fields for fields in map(_fields, lines) if fields is not None]
    return _numbers(b"".join(b",".join(fields) + b"\n" for fields in good)), len(lines) - len(good)


def _fields(line: bytes) -> list[bytes] | None:
    """Return the numbers of a line, or None if it is malformed. Unused fields that are not numbers become `UNUSED`."""
    given = [NUMBER.fullmatch(field) for field in line.split(b",")]
    if len(given) != len(FIELDS) or given[0] is None:
        return None
    asked = USED.get(int(given[0][1]), ())
    if any(found is None and name in asked for name, found in zip(FIELDS, given, strict=True)):
        return None
    return [UNUSED if found is None else found[1] for found in given]


def _clean(block: bytes) -> bool:
    """Return True if every line is fifteen numbers without spaces. False means that it is not known."""
    given = np.frombuffer(block, np.uint8)
    digits = (given >= ord("0")) & (given <= ord("9"))
    ends = np.flatnonzero((given == ord(",")) | (given == ord("\n")))
    minus = np.flatnonzero(given == ord("-"))
    if len(ends) % len(FIELDS) or len(ends) + len(minus) + np.count_nonzero(digits) != len(given):
        return False
    lengths = np.diff(ends, prepend=-1) - 1
    starts = ends - lengths
    signed = given[starts] == ord("-")
    lengths = lengths - signed
    return bool(
        (given[ends].reshape(-1, len(FIELDS)) == _ENDS).all()
        and lengths.min(initial=1) >= 1
        and lengths.max(initial=1) <= DIGITS
        and np.count_nonzero(signed) == len(minus)  # no other minus signs
    )


def _numbers(block: bytes) -> pa.Table:
    if not block:
        return pa.table({name: pa.array([], pa.int64()) for name in FIELDS})
    return pa.csv.read_csv(
        pa.BufferReader(block),
        read_options=pa.csv.ReadOptions(column_names=list(FIELDS)),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(FIELDS, pa.int64()), null_values=[]),
    )
