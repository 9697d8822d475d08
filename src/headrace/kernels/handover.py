"""What the substreams of a slot are handed in an epoch: each its own tuples and those for all, in sequence.

The tuples of a slot are put in sequence once, and then by substream, which keeps it. Those for all stand before them, once, if
their copies would be many; only when a substream's turn comes are they merged into its own, by their places in the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import arrow
from headrace.kernels.aggregate import times
from headrace.kernels.stateless import row_order
from headrace.routing.base import EVERYWHERE
from headrace.types import SUBSTREAM, TS

ROW = 32  # bits: a table has fewer rows
PLACE = (1 << ROW) - 1


class Sequences:
    """tables: with the columns of the schema, `SUBSTREAM` among them; times in [before, after) are handed over now.

    members: the substreams that a tuple for all is for.
    """

    def __init__(
        self, tables: Sequence[pa.Table], schema: pa.Schema, before: int, after: int, members: Sequence[int]
    ) -> None:
        some = [_mostly(each, before, after).select(schema.names) for each in tables]
        table = pa.concat_tables(some or [schema.empty_table()])
        tuples = table.drop_columns([SUBSTREAM])
        at = times(tuples)
        sequence = row_order(tuples, [TS, *tuples.column_names])
        now = (at >= before) & (at < after)
        sequence = sequence if now.all() else sequence[now[sequence]]
        keys, for_all = _by_owner(np.asarray(table.column(SUBSTREAM))[sequence], members)
        bounds = np.arange(max(members, default=-1) + 2) << ROW
        self._spans, self._for_all = list(pairwise(np.searchsorted(keys, bounds).tolist())), (0, for_all)
        keys &= PLACE
        self._tuples = arrow.take(tuples, sequence[keys])
        self._at = times(self._tuples)
        self._places = keys << ROW | np.arange(len(keys))

    def first(self, substream: int) -> int | None:
        """The time of the first tuple that it is handed; None: there is none."""
        starts = [start for start, stop in (self._spans[substream], self._for_all) if start < stop]
        return min((int(self._at[start]) for start in starts), default=None)

    def tuples(self, substream: int) -> pa.Table:
        """What it is handed."""
        (start, stop), (shared, last) = self._spans[substream], self._for_all
        if shared == last:
            return self._tuples.slice(start, stop - start)
        both = np.concatenate([self._places[start:stop], self._places[shared:last]])
        both.sort()
        return arrow.take(self._tuples, both & PLACE)


def _by_owner(numbers: npt.NDArray[np.int32], members: Sequence[int]) -> tuple[arrow.Numbers, int]:
    """(of every tuple whose it is and below that its place, ascending; how many for all there are, before the others).

    Of a sequence, by the substream of each tuple. Where copies for all members are not many, they stand where they belong.
    """
    shared = np.flatnonzero(numbers == EVERYWHERE)
    keys = numbers.astype(np.int64) << ROW | np.arange(len(numbers))
    few = len(shared) * len(members) <= len(numbers)
    if few:
        owners = np.repeat(np.asarray(members, np.int64), len(shared))
        keys = np.concatenate([keys, owners << ROW | np.tile(shared, len(members))])
    keys.sort()  # the number of those for all is below zero
    return (keys[len(shared) :], 0) if few else (keys, len(shared))


def _mostly(table: pa.Table, before: int, after: int) -> pa.Table:
    """What is handed over, and perhaps others: those are not worth a copy if they are few."""
    at = times(table)
    mine = (at >= before) & (at < after)
    return table if 2 * np.count_nonzero(mine) >= len(mine) else table.filter(pa.array(mine))
