"""Splitters: the tasks of stage 0, the pieces assigned to them, and the physical windows that they read.

Invariant: the physical windows of an epoch have each row of its input exactly once, for any number of splitters and any
size of windows. Only the input and these two numbers decide which splitter reads a window. Neither number can change an
answer, so every epoch may choose them again.
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
from headrace.sources.file_pieces import FILES
from headrace.sources.protocol import PhysicalWindow, Piece, Reader, TakenInput
from headrace.task.epoch import Epoch

OPENING = 64 << 10  # bytes that could be read in the time that opening a file takes


class SourcePiece(NamedTuple):
    """A piece of the input of an epoch, with the source that it belongs to."""

    source: str
    piece: Piece


def assign_pieces(inputs: Sequence[TakenInput], splitters: Splitters) -> list[list[SourcePiece]]:
    """Return the pieces that each splitter reads, in the order of the inputs.

    The largest piece is assigned first, and each piece to the splitter that has the fewest bytes so far.
    """
    found = [SourcePiece(each.source, piece) for each in inputs for piece in each.pieces(splitters.window_bytes)]
    sizes = [each.piece.size + OPENING for each in found]
    return [[found[index] for index in sorted(indices)] for indices in balance_sizes(sizes, splitters.count)]


def balance_sizes(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Return the indices of `sizes` in at most `most` lists of about equal total size, none of them empty.

    >>> balance_sizes([5, 1, 4, 2], 2)
    [[0, 1], [2, 3]]
    """
    totals = [(0, number) for number in range(min(most, len(sizes)))]  # a heap
    found: list[list[int]] = [[] for _ in totals]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        total, number = totals[0]
        found[number].append(index)
        heapq.heapreplace(totals, (total + sizes[index], number))
    return found


def read_windows(epoch: Epoch, pieces: Iterable[SourcePiece]) -> Iterator[PhysicalWindow]:
    """Yield the physical windows of the pieces of one splitter, source by source."""
    for name, together in itertools.groupby(pieces, lambda each: each.source):
        wanted = partial(_columns, epoch, epoch.plan.source(name))
        found = [each.piece for each in together]
        for read in reader_of(epoch, name).read(found, wanted, keep=epoch.keep_failed):
            yield PhysicalWindow.of(name, read)


def reader_of(epoch: Epoch, source: str) -> Reader:
    """Return the reader of the pieces of a source."""
    return epoch.readers.get(source, FILES)


def _columns(epoch: Epoch, source: p.SourceInput, location: str, found: pa.Schema) -> Sequence[str]:
    """Check the schema of rows that a reader found at `location`, and return the columns to read of them."""
    wanted = source.reads(whole=epoch.keep_late)
    try:
        check_schema(found, source, wanted)
    except SourceError as error:
        raise SourceError(f"{error}; found in {location!r}") from None
    return columns_to_read(found, source, wanted)
