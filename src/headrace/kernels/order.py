"""The ordering mergers: tuples wait for the watermark and leave in sequence.

Invariant: what is released in an epoch lies below the bound, what is held lies at or above it; no tuple below a bound
arrives after the epoch that reached it, so the releases of all epochs, one after the other, are the stream in sequence.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.arrow import Numbers
from headrace.kernels.aggregate import times
from headrace.kernels.stateless import sequence


def release(held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """(the tuples below the bound in sequence, the others)."""
    ready = pa.array(times(held) < bound)
    waiting = held.filter(pa.array(times(held) >= bound))
    return sequence(held.filter(ready), held.column_names), waiting


def rank(left: pa.Table, right: pa.Table, given: tuple[int, int]) -> tuple[pa.Table, pa.Table]:
    """Number released tuples of two streams that are walked together; at equal times L comes before R.

    `__rank` is a tuple's number in its own stream, `__other` how many of the other stream came before it; `given` are
    the numbers given in earlier epochs.
    """
    lt, rt = times(left), times(right)
    return (
        _with_ranks(left, given[0], given[1] + np.searchsorted(rt, lt, side="left")),
        _with_ranks(right, given[1], given[0] + np.searchsorted(lt, rt, side="right")),
    )


def _with_ranks(table: pa.Table, start: int, other: Numbers) -> pa.Table:
    ranks = start + np.arange(table.num_rows)
    for name, values in (("__rank", ranks), ("__other", other)):
        table = table.append_column(name, pa.array(values, pa.int64()))
    return table
