"""Pairs as row numbers: their expansion from ranges, checks of window and predicate, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import arrow
from headrace.columnar.arrow import Numbers
from headrace.columnar.types import TS_TYPE
from headrace.kernels.joins.join_spec import JoinSpec, PairColumns
from headrace.kernels.stateless.evaluate import evaluate
from headrace.kernels.stateless.steps import in_schema
from headrace.kernels.windows.aggregate import times

Count = Callable[[int], None]  # receives the number of pairs that are compared with the window or the predicate

MOST_PAIRS = 2_000_000  # pairs in one batch
FEW_PAIRS = 10_000  # pairs that are materialised without checking the length of their tuples


def uncounted(pairs: int) -> None:
    """Ignore the count, for callers that do not need it."""


def expand_ranges(first: Numbers, last: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield (i, j) for every j in first[i] .. last[i] - 1, in batches."""
    counts = last - first
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + MOST_PAIRS, side="right")))
        some = counts[start:stop]
        within = np.arange(some.sum()) - np.repeat(np.cumsum(some) - some, some)
        yield np.repeat(np.arange(start, stop), some), np.repeat(first[start:stop], some) + within
        start = stop


def column_numbers(table: pa.Table, column: str, rows: Numbers) -> Numbers:
    """Return the values of a column in some rows, as integers."""
    values = table.column(column)
    values = values.chunk(0) if values.num_chunks == 1 else values
    return np.asarray(values.cast(pa.int64()))[rows]


def join_results(operator: JoinSpec, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> Iterator[pa.Table]:
    """Yield the results of pairs that satisfy window and predicate, in batches of bounded size."""
    for some in pair_batches(left, right, len(l)):
        yield _results(operator, left, right, l[some], r[some])


def side_by_side(joined: PairColumns, left: pa.Table, right: pa.Table | None) -> pa.Table:
    """Return pairs, row by row, as results; without a right side, nulls."""
    columns = [left.column("ts")]
    for name, side, column in joined.columns:
        of = left if side == "l" else right
        kind = joined.schema.field(name).type
        columns.append(pa.nulls(left.num_rows, kind) if of is None else of.column(column))
    return pa.table(columns, schema=joined.schema)


def pair_batches(left: pa.Table, right: pa.Table, pairs: int) -> Iterator[slice]:
    """Return slices of the pairs whose tuples fit in memory. A pair is as long as both of its tuples."""
    if pairs <= FEW_PAIRS:
        return iter([slice(0, pairs)] if pairs else [])
    most = max(1, arrow.MOST_TABLE_BYTES // (arrow.row_bytes(left) + arrow.row_bytes(right)))
    return (slice(start, start + most) for start in range(0, pairs, most))


def _results(operator: JoinSpec, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> pa.Table:
    pairs = {"l": arrow.take_rows(left, l), "r": arrow.take_rows(right, r)}
    ts = operator.result_ts(times(pairs["l"]), times(pairs["r"]))
    columns = [pa.array(ts).cast(TS_TYPE), *(pairs[side].column(name) for _, side, name in operator.columns)]
    return in_schema(pa.table(columns, names=operator.schema.names), operator.schema)


def satisfying_pairs(
    operator: JoinSpec, left: pa.Table, right: pa.Table, candidates: Iterator[tuple[Numbers, Numbers]]
) -> Iterator[pa.Table]:
    """Yield the results among candidates. The window is checked first, and the predicate only on pairs that it admits."""
    for l, r in candidates:
        inside = operator.admits(left, right, l, r)
        l, r = l[inside], r[inside]
        for some in pair_batches(left, right, len(l)):
            true = np.asarray(_true(operator, left, right, l[some], r[some]))
            if true.any():
                yield _results(operator, left, right, l[some][true], r[some][true])


def decide_pairs(
    operator: JoinSpec, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers, unsure: npt.NDArray[np.bool_]
) -> tuple[Numbers, Numbers]:
    """Return the pairs without the doubtful ones for which the predicate is not true."""
    if not unsure.any():
        return l, r
    true = ~unsure
    asked = np.flatnonzero(unsure)
    for some in pair_batches(left, right, len(asked)):
        true[asked[some]] = np.asarray(_true(operator, left, right, l[asked[some]], r[asked[some]]))
    return l[true], r[true]


def _true(operator: JoinSpec, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> pa.ChunkedArray:
    """Return the value of the predicate on every pair; null is not true."""
    used = {"l": left.select(operator.used("l")), "r": right.select(operator.used("r"))}
    pairs = {"l": arrow.take_rows(used["l"], l), "r": arrow.take_rows(used["r"], r)}
    if operator.plain_keys:
        true = pa.chunked_array([np.ones(len(l), dtype=bool)])
        for key in operator.keys:
            true = pc.and_(true, pc.equal(pairs["l"].column(key.left), pairs["r"].column(key.right)))
        return true.fill_null(False)
    sql = f"SELECT coalesce({operator.sql}, false) AS keep FROM l POSITIONAL JOIN r"
    return evaluate(sql, pairs, operator.text, in_pairs=True).column(0)
