"""Splitters: the tasks of stage 0, and the physical windows that they are dealt.

Invariant: the windows of an epoch's files have each row exactly once, for any number of splitters and any size of windows;
which window goes where depends on nothing but the files. So neither number can change an answer, and whoever plans an
epoch may choose them anew.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from headrace import plan as p
from headrace.control.splitting import Splitters
from headrace.engine.epoch import Epoch, Window
from headrace.errors import SourceError
from headrace.sources import check_schema, fitting
from headrace.sources.cutting import Piece, cut, read_pieces

OPENING = 64 << 10  # bytes that could be read while a file is opened


class Taken(NamedTuple):
    """A file of a source, as it was when it was taken."""

    source: str
    path: Path
    bytes: int
    modified: int  # nanoseconds


class Portion(NamedTuple):
    """A piece of a file, of a source."""

    source: str
    piece: Piece


def dealt(files: Sequence[Taken], splitters: Splitters) -> list[list[Portion]]:
    """What each splitter reads: the largest first, to whom has least so far; in the order of the files."""
    portions = [Portion(f.source, piece) for f in files for piece in cut(f.path, f.bytes, f.modified, splitters.W)]
    sizes = [portion.piece.size + OPENING for portion in portions]
    return [[portions[place] for place in sorted(places)] for places in deal(sizes, splitters.p)]


def deal(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Places of sizes, to at most so many hands, none of them empty.

    >>> deal([5, 1, 4, 2], 2)
    [[0, 1], [2, 3]]
    """
    heap = [(0, hand) for hand in range(min(hands, len(sizes)))]
    found: list[list[int]] = [[] for _ in heap]
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        held, hand = heap[0]
        found[hand].append(place)
        heapq.heapreplace(heap, (held + sizes[place], hand))
    return found


def read_windows(epoch: Epoch, portions: Iterable[Portion]) -> Iterator[Window]:
    """What a splitter was dealt; a file is opened once for its pieces that follow each other."""
    for (name, path), together in itertools.groupby(portions, lambda each: (each.source, each.piece.path)):
        pieces = [portion.piece for portion in together]
        source = epoch.plan.source(name)
        tables = read_pieces(Path(path), pieces, partial(_columns, epoch, source, path))
        for piece, table in zip(pieces, tables, strict=True):
            yield Window(name, table, piece.modified / 1e9, path)


def _columns(epoch: Epoch, source: p.SourceInput, path: str, found: pa.Schema) -> Sequence[str]:
    """What is read of a file that has this schema."""
    wanted = source.reads(whole=epoch.keep_late)
    try:
        check_schema(found, source, wanted)
    except SourceError as error:
        raise SourceError(f"{error}; found in {path!r}") from None
    return fitting(found, source, wanted)
