"""Joins with an equality, over runs that are sorted by the hash of their key.

Invariant: the same pairs as `headrace.kernels.join`. A run holds the tuples of some groups, sorted by `__h`, the hash of
the key (groups are ranges of hashes, so a run sorted by hash is sorted by group). Equal keys have equal hashes, so the
candidates of a tuple are one range of the other run, found by binary search; of the candidates, those outside the window
are dropped first, and only then is the predicate, which includes the equality, evaluated. The cost of a run is that of
looking up the smaller side in the larger, so it hardly grows with the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.compile.plan import JoinOperator
from headrace.kernels.aggregate import Numbers
from headrace.kernels.pairs import expand_ranges, satisfying

HASH = "__h"


def one_run(runs: Sequence[pa.Table]) -> pa.Table:
    """Several runs as one."""
    if len(runs) == 1:
        return runs[0]
    table = pa.concat_tables(runs)
    return table.take(pa.array(np.argsort(hashes(table), kind="stable")))


def hashes(table: pa.Table) -> npt.NDArray[np.uint64]:
    column = table.column(HASH)
    return np.asarray(column.chunk(0) if column.num_chunks == 1 else column)


def equijoin(operator: JoinOperator, left: pa.Table, right: pa.Table) -> Iterator[pa.Table]:
    """The results of all pairs of two runs."""
    return satisfying(operator, left, right, candidates(hashes(left), hashes(right)))


def candidates(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> Iterator[tuple[Numbers, Numbers]]:
    """Row numbers of pairs with equal hashes, some at a time; both sides are sorted."""
    if len(left) > len(right):  # look the few up in the many
        yield from ((l, r) for r, l in candidates(right, left))
        return
    first = np.searchsorted(right, left, side="left")
    found = np.flatnonzero(right[np.minimum(first, len(right) - 1)] == left)
    last = np.searchsorted(right, left[found], side="right")
    for l, r in expand_ranges(first[found], last):
        yield found[l], r
