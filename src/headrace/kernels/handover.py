"""What the substreams of a slot are handed in an epoch: each its own tuples and those for all, in sequence.

The tuples of a slot are put in sequence once, and then by substream, which keeps it; those for all stand behind them, once.
Only when a substream's turn comes are they merged into its own, by their places in the sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from headrace import arrow
from headrace.arrow import Numbers
from headrace.kernels.aggregate import times
from headrace.kernels.stateless import row_order
from headrace.routing.base import EVERYWHERE
from headrace.types import SUBSTREAM, TS

ROW = 32  # bits: a table has fewer rows


class Sequences:
    """tables: with the columns of the schema, `SUBSTREAM` among them; times in [before, after) are handed over now."""

    def __init__(self, tables: Sequence[pa.Table], schema: pa.Schema, before: int, after: int) -> None:
        table = pa.concat_tables([each.select(schema.names) for each in tables] or [schema.empty_table()])
        tuples = table.drop_columns([SUBSTREAM])
        sequence = row_order(tuples, [TS, *tuples.column_names], _between(times(table), before, after))
        numbers = np.asarray(table.column(SUBSTREAM))[sequence]
        count = max(int(numbers.max(initial=0)) + 1, 1)
        owners = np.where(numbers == EVERYWHERE, count, numbers).astype(np.min_scalar_type(count))
        by_owner = np.argsort(owners, kind="stable")
        self._tuples = arrow.take(tuples, sequence[by_owner])
        self._at = times(self._tuples)
        starts = np.append(0, np.cumsum(np.bincount(owners, minlength=count + 1))).tolist()
        self._spans = list(pairwise(starts))
        self._for_all = self._spans.pop()
        self._places = by_owner << ROW | np.arange(len(by_owner))

    def first(self, substream: int) -> int | None:
        """The time of the first tuple that it is handed; None: there is none."""
        starts = [start for start, stop in (self._span(substream), self._for_all) if start < stop]
        return min((int(self._at[start]) for start in starts), default=None)

    def tuples(self, substream: int) -> pa.Table:
        """What it is handed."""
        (start, stop), (shared, last) = self._span(substream), self._for_all
        if shared == last:
            return self._tuples.slice(start, stop - start)
        both = np.concatenate([self._places[start:stop], self._places[shared:last]])
        both.sort()
        return arrow.take(self._tuples, both & ((1 << ROW) - 1))

    def _span(self, substream: int) -> tuple[int, int]:
        """Its own ones: those beyond the last that has some have none."""
        return self._spans[substream] if substream < len(self._spans) else (0, 0)


def _between(at: Numbers, before: int, after: int) -> Numbers | None:
    """The rows of these times; None: all of them."""
    mine = (at >= before) & (at < after)
    return None if mine.all() else np.flatnonzero(mine)
