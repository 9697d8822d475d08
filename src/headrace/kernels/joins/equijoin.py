"""Joins with an equality, over runs that are sorted by the hash of their key.

Invariant: the same pairs as `headrace.kernels.joins.theta_join`. A run has the tuples of some groups, sorted by `__h`,
the hash of the key. Groups are ranges of hashes, so a run sorted by hash is sorted by group. Equal keys have equal
hashes, so the candidates of a tuple are one range of the other run, found by binary search. Candidates outside the
window are dropped first, and only then is the predicate, which includes the equality, evaluated. The cost of a run is
that of looking up the smaller side in the larger one, so it hardly grows with the window.

Hot keys make more candidates than fit in memory. If the rest of the predicate can be compiled, a loop drops candidates
outside the window and those that do not satisfy it. The remaining ones are checked like all other candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.columnar import arrow, numba_loops
from headrace.columnar.arrow import Numbers
from headrace.kernels.joins import pair_loop
from headrace.kernels.joins.join_spec import JoinSpec
from headrace.kernels.joins.pairs import Count, expand_ranges, satisfying_pairs, uncounted
from headrace.kernels.windows.aggregate import times
from headrace.routing.hashing import Hashes, hash_column_of


def concat_runs(runs: Sequence[pa.Table]) -> pa.Table:
    """Return several sorted runs as one."""
    if len(runs) == 1:
        return runs[0]
    table = pa.concat_tables(runs)
    return arrow.take_rows(table, numba_loops.order_by_hash(hash_column_of(table)))


def equijoin(operator: JoinSpec, left: pa.Table, right: pa.Table, count: Count = uncounted) -> Iterator[pa.Table]:
    """Return the results of all pairs of two runs."""
    return satisfying_pairs(operator, left, right, hash_candidates(operator, left, right, count))


def hash_candidates(
    operator: JoinSpec, left: pa.Table, right: pa.Table, count: Count = uncounted
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield row numbers of pairs with equal hashes, in batches. If there are very many, only those that may be results."""
    moving = int(left.num_rows > right.num_rows)  # look up the smaller side in the larger one
    few, many = (right, left) if moving else (left, right)
    rows, first, last = equal_ranges(hash_column_of(few), hash_column_of(many))
    equal = int((last - first).sum())
    count(equal)
    pairs = None
    if equal >= pair_loop.WORTH_COMPILING and operator.compares_in_loops:
        few = arrow.take_rows(few.select(sorted({"ts", *operator.used("lr"[moving])})), rows)
        pairs = _loop(operator, moving, (many, few) if moving else (few, many), first, last)
    for i, still in pairs or expand_ranges(first, last):
        yield (still, rows[i]) if moving else (rows[i], still)


def equal_ranges(few: Hashes, many: Hashes) -> tuple[Numbers, Numbers, Numbers]:
    """Return (i, first, last): row i of `few` equals the rows first .. last - 1 of `many`. Both are sorted."""
    first = np.searchsorted(many, few, side="left")
    rows = np.flatnonzero(many[np.minimum(first, len(many) - 1)] == few)
    return rows, first[rows], np.searchsorted(many, few[rows], side="right")


def _loop(
    operator: JoinSpec, moving: int, sides: tuple[pa.Table, pa.Table], first: Numbers, last: Numbers
) -> Iterator[tuple[Numbers, Numbers]] | None:
    """Return the candidates of hot keys that pass a compiled loop over the rest of the predicate; None if there is no
    loop.

    Pairs in doubt remain candidates; the full predicate checks every candidate again.
    """
    assert operator.time_window is not None and operator.on.residual is not None
    w1, w2 = operator.time_window
    back, ahead = (w1, w2) if moving else (w2, w1)
    reach = pair_loop.PairRanges(moving, times(sides[moving]), times(sides[1 - moving]), back, ahead, first, last)
    fitted = pair_loop.bind_columns(operator.on.residual, *sides)
    if fitted is None or not fitted.compiles(moving):
        return None
    return ((i, still) for i, still, _ in pair_loop.PairLoop(fitted, reach, patient=True))
