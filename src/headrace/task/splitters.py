"""Splitters: the tasks of stage 0, and the physical windows that they are dealt.

Invariant: the windows of what an epoch takes have each row exactly once, for any number of splitters and any size of windows;
which window goes where depends on nothing but what is taken. So neither number can change an answer, and whoever plans an
epoch may choose them anew.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from headrace import plan as p
from headrace.control.splitter_count import Splitters
from headrace.errors import SourceError
from headrace.sources import check_schema, columns_to_read
from headrace.sources.physical_windows import FILES
from headrace.sources.protocol import Piece, Reader, TakenInput
from headrace.task.epoch import Epoch, PhysicalWindow

OPENING = 64 << 10  # bytes that could be read while a file is opened


class SourcePiece(NamedTuple):
    """A piece of what was taken of a source."""

    source: str
    piece: Piece


def assign_pieces(taken: Sequence[TakenInput], splitters: Splitters) -> list[list[SourcePiece]]:
    """What each splitter reads: the largest first, to whom has least so far; in the order in which it was taken."""
    portions = [SourcePiece(each.source, piece) for each in taken for piece in each.cut(splitters.W)]
    sizes = [portion.piece.size + OPENING for portion in portions]
    return [[portions[place] for place in sorted(places)] for places in balance_sizes(sizes, splitters.p)]


def balance_sizes(sizes: Sequence[int], hands: int) -> list[list[int]]:
    """Places of sizes, to at most so many hands, none of them empty.

    >>> balance_sizes([5, 1, 4, 2], 2)
    [[0, 1], [2, 3]]
    """
    heap = [(0, hand) for hand in range(min(hands, len(sizes)))]
    found: list[list[int]] = [[] for _ in heap]
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        held, hand = heap[0]
        found[hand].append(place)
        heapq.heapreplace(heap, (held + sizes[place], hand))
    return found


def read_windows(epoch: Epoch, portions: Iterable[SourcePiece]) -> Iterator[PhysicalWindow]:
    """What a splitter was dealt, source by source."""
    for name, together in itertools.groupby(portions, lambda each: each.source):
        wanted = partial(_columns, epoch, epoch.plan.source(name))
        pieces = [portion.piece for portion in together]
        for read in reader_of(epoch, name).read(pieces, wanted, keep=epoch.keep_failed):
            yield PhysicalWindow(name, read.rows, read.arrived, read.where, read.partition, read.unread, read.amount)


def reader_of(epoch: Epoch, source: str) -> Reader:
    return epoch.readers.get(source, FILES)


def _columns(epoch: Epoch, source: p.SourceInput, where: str, found: pa.Schema) -> Sequence[str]:
    """What is read of rows from somewhere that have this schema."""
    wanted = source.reads(whole=epoch.keep_late)
    try:
        check_schema(found, source, wanted)
    except SourceError as error:
        raise SourceError(f"{error}; found in {where!r}") from None
    return columns_to_read(found, source, wanted)
