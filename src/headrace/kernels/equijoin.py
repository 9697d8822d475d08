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
import pyarrow.compute as pc

from headrace.compile.plan import CountJoinOperator, JoinOperator, TimeJoinOperator
from headrace.kernels.aggregate import Numbers, times
from headrace.kernels.evaluate import evaluate
from headrace.kernels.stateless import conform
from headrace.query.types import TS_TYPE

HASH = "__h"
MOST_PAIRS = 2_000_000  # looked at together

Mask = npt.NDArray[np.bool_]


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
    for l, r in candidates(hashes(left), hashes(right)):
        admitted = _admitted(operator, left, right, l, r)
        if admitted.any():
            yield _results(operator, left, right, l[admitted], r[admitted])


def candidates(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> Iterator[tuple[Numbers, Numbers]]:
    """Row numbers of pairs with equal hashes, some at a time; both sides are sorted."""
    if len(left) > len(right):  # look the few up in the many
        yield from ((l, r) for r, l in candidates(right, left))
        return
    first = np.searchsorted(right, left, side="left")
    found = np.flatnonzero(right[np.minimum(first, max(len(right) - 1, 0))] == left) if len(right) else first[:0]
    first = first[found]
    counts = np.searchsorted(right, left[found], side="right") - first
    ends = np.cumsum(counts)
    start = 0
    while start < len(found):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + MOST_PAIRS, side="right")))
        some = counts[start:stop]
        within = np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
        yield np.repeat(found[start:stop], some), np.repeat(first[start:stop], some) + within
        start = stop


def _numbers(table: pa.Table, column: str, rows: Numbers) -> Numbers:
    values = table.column(column)
    values = values.chunk(0) if values.num_chunks == 1 else values
    return np.asarray(values.cast(pa.int64()))[rows]


def _admitted(operator: JoinOperator, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> Mask:
    """Which of the pairs the window admits."""
    admitted: Mask
    if isinstance(operator, TimeJoinOperator):
        apart = _numbers(right, "ts", r) - _numbers(left, "ts", l)
        admitted = (apart >= -operator.w2) & (apart <= operator.w1)
        return admitted
    assert isinstance(operator, CountJoinOperator)
    since_l = _numbers(right, "__other", r) - _numbers(left, "__rank", l)
    since_r = _numbers(left, "__other", l) - _numbers(right, "__rank", r)
    admitted = ((since_l >= 1) & (since_l <= operator.n1)) | ((since_r >= 1) & (since_r <= operator.n2))
    return admitted


def _results(operator: JoinOperator, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> pa.Table:
    pairs = {"l": left.take(pa.array(l)), "r": right.take(pa.array(r))}
    true = _satisfied(operator, pairs)
    if not pc.all(true).as_py():
        pairs = {side: table.filter(true) for side, table in pairs.items()}
    pick = np.minimum if isinstance(operator, TimeJoinOperator) else np.maximum
    ts = pick(times(pairs["l"]), times(pairs["r"]))
    columns = [pa.array(ts).cast(TS_TYPE), *(pairs[side].column(name) for _, side, name in operator.columns)]
    return conform(pa.table(columns, names=operator.schema.names), operator.schema)


def _satisfied(operator: JoinOperator, pairs: dict[str, pa.Table]) -> pa.ChunkedArray:
    """The predicate on every pair; null is not true."""
    if operator.plain_keys:
        equal = [pc.equal(pairs["l"].column(key.left), pairs["r"].column(key.right)) for key in operator.keys]
        true = equal[0]
        for more in equal[1:]:
            true = pc.and_(true, more)
        return true
    kept = {side: table.drop_columns([HASH]) for side, table in pairs.items()}
    sql = f"SELECT coalesce({operator.sql}, false) AS keep FROM l POSITIONAL JOIN r"
    return evaluate(sql, kept, operator.text).column(0)
