"""The tuples of the substreams of a slot in an epoch: for each substream its own and the broadcast tuples, in sequence.

The tuples of a slot are sorted into sequence once, and then grouped by substream with a stable sort. Broadcast tuples
are stored once, before the others, if copies would be many. They are merged into a substream's own tuples, by their
places in the sequence, only when that substream is read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow, numba_loops
from headrace.columnar.types import SUBSTREAM, TS
from headrace.kernels.stateless.steps import row_order
from headrace.kernels.windows.aggregate import times
from headrace.routing.base import EVERYWHERE

ROW_BITS = 32  # a table has fewer rows than 2**32
ROW_MASK = (1 << ROW_BITS) - 1
MOST_MERGED_TUPLES = 200_000  # tuples that are merged at a time


class SubstreamTuples:
    """The tuples of all substreams of a slot with times in [before, after).

    tables: tuples with the columns of the schema, `SUBSTREAM` among them. members: the substreams that get broadcast
    tuples.
    """

    def __init__(
        self, tables: Sequence[pa.Table], schema: pa.Schema, before: int, after: int, members: Sequence[int]
    ) -> None:
        some = [_mostly(each, before, after).select(schema.names) for each in tables]
        table = pa.concat_tables(some or [schema.empty_table()])
        tuples = table.drop_columns([SUBSTREAM])
        at = times(tuples)
        sequence = row_order(tuples, [TS, *tuples.column_names])
        start, stop = (bisect_left(sequence, end, key=at.__getitem__) for end in (before, after))
        sequence = sequence[start:stop]
        keys, for_all = _by_owner(np.asarray(table.column(SUBSTREAM))[sequence], members)
        bounds = np.arange(max(members, default=-1) + 2) << ROW_BITS
        self._spans, self._for_all = list(pairwise(np.searchsorted(keys, bounds).tolist())), (0, for_all)
        keys &= ROW_MASK
        self._tuples = arrow.take_rows(tuples, sequence[keys])
        self._at = times(self._tuples)
        self._numbers = sorted(members)
        self._together: dict[int, pa.Table] = {}  # merged tuples of some substreams
        if for_all:
            self._places = keys << ROW_BITS | np.arange(len(keys))

    def first(self, substream: int) -> int | None:
        """Return the time of the substream's first tuple in this epoch; None if it has none."""
        starts = [start for start, stop in (self._spans[substream], self._for_all) if start < stop]
        return min((int(self._at[start]) for start in starts), default=None)

    def tuples(self, substream: int) -> pa.Table:
        """Return the substream's tuples. Call it once for each substream, best in their order."""
        if not self._for_all[1]:
            start, stop = self._spans[substream]
            return self._tuples.slice(start, stop - start)
        if substream not in self._together:
            self._merge(self._next(substream))
        return self._together.pop(substream)

    def _next(self, substream: int) -> list[int]:
        """Return the substream and those after it that are merged together, because one large copy is faster than many
        small ones."""
        found: list[int] = []
        rows = 0
        for number in self._numbers[bisect_left(self._numbers, substream) :]:
            rows += self._rows(number)
            if found and rows > MOST_MERGED_TUPLES:
                break
            found.append(number)
        return found

    def _rows(self, substream: int) -> int:
        start, stop = self._spans[substream]
        return int(stop - start + self._for_all[1])

    def _merge(self, numbers: Sequence[int]) -> None:
        ends = np.cumsum([0, *map(self._rows, numbers)]).tolist()
        shared, rows = self._places[: self._for_all[1]], np.empty(ends[-1], np.int64)
        for number, (begin, end) in zip(numbers, pairwise(ends), strict=True):
            numba_loops.merge_sorted(self._places[slice(*self._spans[number])], shared, rows[begin:end])
        rows &= ROW_MASK
        table = arrow.take_rows(self._tuples, rows)
        spans = zip(numbers, pairwise(ends), strict=True)
        self._together = {number: table.slice(begin, end - begin) for number, (begin, end) in spans}


def _by_owner(numbers: npt.NDArray[np.int32], members: Sequence[int]) -> tuple[arrow.Numbers, int]:
    """Return keys (substream, place) in ascending order, and the number of broadcast tuples, which come first.

    numbers: the substream of each tuple of a sequence. If copies for all members are few, broadcast tuples are copied
    instead.
    """
    shared = np.flatnonzero(numbers == EVERYWHERE)
    few = len(shared) * len(members) <= len(numbers)
    owners = (numbers - EVERYWHERE).astype(np.uint64)  # broadcast tuples before the others
    keys = owners << np.uint64(ROW_BITS) | np.arange(len(numbers), dtype=np.uint64)
    low = ROW_BITS  # places are ascending already
    if few and len(shared):
        keys, low = np.concatenate([keys, _copies(shared, members)]), 0
    keys = numba_loops.order_by_bits(keys, low, ROW_BITS - low + (int(owners.max(initial=0))).bit_length())
    found = keys.view(np.int64) + (EVERYWHERE << ROW_BITS)
    return (found[len(shared) :], 0) if few else (found, len(shared))


def _copies(shared: arrow.Numbers, members: Sequence[int]) -> npt.NDArray[np.uint64]:
    owners = np.repeat(np.asarray(members, np.int64) - EVERYWHERE, len(shared))
    return (owners << ROW_BITS | np.tile(shared, len(members))).view(np.uint64)


def _mostly(table: pa.Table, before: int, after: int) -> pa.Table:
    """Return the tuples in [before, after), with others if these are few: they are not worth a copy."""
    at = times(table)
    mine = (at >= before) & (at < after)
    return table if 2 * np.count_nonzero(mine) >= len(mine) else table.filter(pa.array(mine))
