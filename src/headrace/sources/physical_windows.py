"""Physical windows of files: what one task reads at once.

Invariant: the pieces of a file have each of its rows exactly once, whatever their size; every file has at least one, so
that somebody looks at its schema. Sizes that a footer gives are not trusted: wrong ones make pieces too large or too
small. A file that is no larger than a window is one piece, and is not opened to find that out.
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
from headrace.sources.file_formats import DAMAGE, ColumnarFile, open_columnar
from headrace.sources.files import check_unchanged, checked_rows, unreadable

Wanted = Callable[[pa.Schema], Sequence[str]]  # the columns to read of a file that has this schema, which it checks


@dataclass(frozen=True)
class FilePiece:
    """Some groups (row groups, record batches) of a file; `stop` None: all from `first` on."""

    path: str
    bytes: int  # of the file, when it was taken
    modified: int  # nanoseconds
    size: int  # bytes of the piece, about
    first: int = 0
    stop: int | None = None


def cut_file(path: Path, bytes: int, modified: int, most: int) -> list[FilePiece]:
    """Return a file in pieces of about so many bytes, in order; a larger piece is a single group."""
    whole = FilePiece(str(path), bytes, modified, bytes)
    if bytes <= most:
        return [whole]
    try:
        with open_columnar(path) as file:
            return list(_pieces(whole, file, most)) or [whole]
    except DAMAGE as error:
        raise unreadable(path, error) from None


class FileToRead(NamedTuple):
    """A file of a source, as it was when it was taken."""

    source: str
    path: Path
    bytes: int
    modified: int  # nanoseconds

    def cut(self, most: int) -> list[FilePiece]:
        return cut_file(self.path, self.bytes, self.modified, most)


class FilesReader:
    """Reads pieces of files; one is opened once for its pieces that follow each other."""

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
    scale = whole.bytes / max(sum(sizes), 1)  # as they are in the file, compressed
    first, held = 0, 0
    for group, size in enumerate(int(given * scale) for given in sizes):
        if group > first and held + size > most:
            yield replace(whole, size=held, first=first, stop=group)
            first, held = group, 0
        held += size
    if first < len(sizes):
        yield replace(whole, size=held, first=first, stop=len(sizes))


def read_pieces(path: Path, pieces: Iterable[FilePiece], wanted: Wanted) -> Iterator[pa.Table]:
    """What pieces of one file hold; the file must be the one that was cut, before and after."""
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
        raise pa.ArrowInvalid(f"it has {file.groups} groups of rows, not {stop}")
    return checked_rows(file.read(piece.first, stop, columns))
