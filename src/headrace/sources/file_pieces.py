"""Pieces of files, and the reader that reads them in tasks (`headrace.sources.kafka.reader` reads topics).

Invariant: the pieces of a file contain each of its rows exactly once, whatever their size. Every file has at least one
piece, so that a task checks its schema. Sizes from a footer are not trusted: wrong sizes make pieces too large or too
small. A file that is no larger than a physical window is one piece, and cutting it does not open the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.sources import protocol
from headrace.sources.file_formats import DAMAGE, ColumnarFile, open_columnar, parquet_times
from headrace.sources.files import check_unchanged, checked_rows, unreadable

ColumnsOfSchema = Callable[[pa.Schema], Sequence[str]]  # checks the schema of a file and returns the columns to read


@dataclass(frozen=True)
class FilePiece:
    """The groups `first` to `stop` - 1 of a file: row groups or record batches. `stop` None: all groups from `first`."""

    path: str
    bytes: int  # size of the file when it was taken
    modified: int  # nanoseconds
    size: int  # approximate bytes of the piece
    first: int = 0
    stop: int | None = None


def cut_file(path: Path, bytes: int, modified: int, most: int) -> list[FilePiece]:
    """Return the pieces of a file, in order: each has at most about `most` bytes or is a single group."""
    whole = FilePiece(str(path), bytes, modified, bytes)
    if bytes <= most:
        return [whole]
    try:
        with open_columnar(path) as file:
            return list(_pieces(whole, file, most)) or [whole]
    except DAMAGE as error:
        raise unreadable(path, error) from None


class FileToRead(NamedTuple):
    """A file that an epoch takes, with its size and modification time when it was taken."""

    source: str
    path: Path
    bytes: int
    modified: int  # nanoseconds

    def sample_times(self, column: str) -> Sequence[tuple[int, int]]:
        """Return times that the statistics of a Parquet file give."""
        return parquet_times(self.path, column)

    def pieces(self, most: int) -> list[FilePiece]:
        return cut_file(self.path, self.bytes, self.modified, most)


class FilesReader:
    """Reads pieces of files in tasks. A file is opened once for consecutive pieces of it."""

    def piece(self, data: Mapping[str, Any]) -> FilePiece:
        return FilePiece(**data)

    def read(self, pieces: Sequence[FilePiece], wanted: protocol.Wanted, *, keep: bool) -> Iterator[protocol.ReadRows]:
        for path, together in itertools.groupby(pieces, lambda piece: piece.path):
            those = list(together)
            for piece, table in zip(those, read_pieces(Path(path), those, partial(wanted, path)), strict=True):
                yield protocol.ReadRows(table, piece.modified / 1e9, path)


FILES = FilesReader()


def _pieces(whole: FilePiece, file: ColumnarFile, most: int) -> Iterator[FilePiece]:
    sizes = [max(size, 0) for size in file.sizes()]
    scale = whole.bytes / max(sum(sizes), 1)  # converts uncompressed sizes to sizes in the file
    first, held = 0, 0
    for group, size in enumerate(int(given * scale) for given in sizes):
        if group > first and held + size > most:
            yield replace(whole, size=held, first=first, stop=group)
            first, held = group, 0
        held += size
    if first < len(sizes):
        yield replace(whole, size=held, first=first, stop=len(sizes))


def read_pieces(path: Path, pieces: Iterable[FilePiece], wanted: ColumnsOfSchema) -> Iterator[pa.Table]:
    """Yield the rows of pieces of one file. Raise if the file has changed since it was taken."""
    try:
        with open_columnar(path) as file:
            for piece in pieces:
                check_unchanged(path, (piece.bytes, piece.modified))
                table = _read(file, piece, wanted(file.schema))
                check_unchanged(path, (piece.bytes, piece.modified))
                yield table
    except DAMAGE as error:
        raise unreadable(path, error) from None


def _read(file: ColumnarFile, piece: FilePiece, columns: Sequence[str]) -> pa.Table:
    stop = file.groups if piece.stop is None else piece.stop
    if stop > file.groups:
        raise pa.ArrowInvalid(f"the file has {file.groups} groups of rows; expected at least {stop}")
    return checked_rows(file.read(piece.first, stop, columns))
