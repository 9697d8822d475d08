"""Release of tuples in sequence, once the watermark has passed them.

Invariant: an epoch releases tuples below the bound and holds the others. No tuple below a bound arrives after the epoch
that reached it, so the releases of all epochs, one after the other, are the stream in sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.kernels.stateless.steps import in_sequence
from headrace.kernels.windows.aggregate import times


def release_in_sequence(held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Return the tuples below the bound in sequence, and the others."""
    ready = pa.array(times(held) < bound)
    waiting = held.filter(pa.array(times(held) >= bound))
    return in_sequence(held.filter(ready), held.column_names), waiting


def rank_tuples(left: pa.Table, right: pa.Table, given: tuple[int, int]) -> tuple[pa.Table, pa.Table]:
    """Number released tuples of two streams in their common order; at equal times L comes before R.

    `__rank` is a tuple's number in its own stream, `__other` the number of tuples of the other stream before it. given:
    how many tuples of each stream earlier epochs numbered.
    """
    numbers = _numbers(times(left), times(right), given)
    return _with_ranks(left, *numbers[:2]), _with_ranks(right, *numbers[2:])


def rank_within(
    left: pa.Table, right: pa.Table, by: str, given: Mapping[int, tuple[int, int]]
) -> tuple[pa.Table, pa.Table, dict[int, tuple[int, int]]]:
    """Number the tuples as `rank_tuples` does, separately for each value of a column; also return the counts by value."""
    lt, rt = times(left), times(right)
    of_left, of_right = (_rows_by(np.asarray(table.column(by))) for table in (left, right))
    ranks = [np.zeros(table.num_rows, np.int64) for table in (left, left, right, right)]
    sofar, none = dict(given), np.zeros(0, np.int64)
    for key in {**of_left, **of_right}:
        l, r = of_left.get(key, none), of_right.get(key, none)
        before = sofar.get(key, (0, 0))
        for all_of_them, rows, found in zip(ranks, (l, l, r, r), _numbers(lt[l], rt[r], before), strict=True):
            all_of_them[rows] = found
        sofar[key] = (before[0] + len(l), before[1] + len(r))
    return _with_ranks(left, *ranks[:2]), _with_ranks(right, *ranks[2:]), sofar


def _numbers(lt: Numbers, rt: Numbers, given: Sequence[int]) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return rank and other of the left, then rank and other of the right, both in order of time."""
    return (
        given[0] + np.arange(len(lt)),
        given[1] + np.searchsorted(rt, lt, side="left"),
        given[1] + np.arange(len(rt)),
        given[0] + np.searchsorted(lt, rt, side="right"),
    )


def _rows_by(values: Numbers) -> dict[int, Numbers]:
    """Return the rows of every value, in order."""
    order = np.argsort(values, kind="stable")
    keys, first = np.unique(values[order], return_index=True)
    return dict(zip(keys.tolist(), np.split(order, first[1:]), strict=True)) if len(keys) else {}


def _with_ranks(table: pa.Table, rank: Numbers, other: Numbers) -> pa.Table:
    for name, values in (("__rank", rank), ("__other", other)):
        table = table.append_column(name, pa.array(values, pa.int64()))
    return table
