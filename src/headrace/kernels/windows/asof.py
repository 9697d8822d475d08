"""The as-of join: tuples with the last change of their key that is not later.

Invariant: below the bound both streams are complete, so the match of a tuple below it is final. The horizon of a key is
the smallest `ts` of a waiting or future tuple that can still look the key up. Of the changes up to the horizon, only
the newest can be a match; of those with one time, only the last in sequence. No other change is held.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow, numba_loops
from headrace.columnar.arrow import Numbers
from headrace.columnar.sorting import sort_order
from headrace.expressions import KeyEquality
from headrace.kernels.joins.pairs import side_by_side
from headrace.kernels.stateless.steps import order_rows
from headrace.kernels.windows.aggregate import times
from headrace.kernels.windows.numbered_keys import key_numbers
from headrace.kernels.windows.window_specs import AsOfSpec
from headrace.support.event_time import FOREVER

KEY = "__key"
Marks = npt.NDArray[np.bool_]


def join_asof(
    operator: AsOfSpec, asking: pa.Table, changes: pa.Table, after: Sequence[int]
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the results of tuples below both watermarks, the waiting tuples, and the changes to hold."""
    ready = times(asking) < min(after)
    waiting = asking.filter(pa.array(~ready))
    asked, changes = _numbered(operator.keys, asking, changes)
    changes = _last_of_each_time(changes, operator.schemas[1].names)
    results = _results(operator, asking.filter(pa.array(ready)), asked[ready], changes)
    kept = _askable(changes, _horizons(_keys(changes), asked[~ready], times(waiting), after[0]), operator.within)
    return results, waiting, changes.filter(pa.array(kept)).drop_columns([KEY])


def _numbered(keys: Sequence[KeyEquality], asking: pa.Table, changes: pa.Table) -> tuple[Numbers, pa.Table]:
    """Return the key number of every left tuple, and the changes with their key numbers as a column."""
    together = {
        str(place): pa.chunked_array(
            [
                *asking.column(key.left).cast(key.type).chunks,
                *changes.column(key.right).cast(key.type).chunks,
            ],
            key.type,
        )
        for place, key in enumerate(keys)
    }
    rows = asking.num_rows + changes.num_rows
    numbers = key_numbers(pa.table(together), list(together)) if together else np.zeros(rows, np.int64)
    return numbers[: asking.num_rows], changes.append_column(KEY, pa.array(numbers[asking.num_rows :]))


def _last_of_each_time(changes: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the changes by key and time; of those with one time, only the last in sequence."""
    changes = order_rows(changes, (KEY, "ts", *columns))
    keys, at = _keys(changes), times(changes)
    last = np.ones(len(keys), bool)
    last[:-1] = (keys[1:] != keys[:-1]) | (at[1:] != at[:-1])
    return changes if last.all() else changes.filter(pa.array(last))


def _results(operator: AsOfSpec, asking: pa.Table, asked: Numbers, changes: pa.Table) -> pa.Table:
    at, of = times(asking), times(changes)
    by = sort_order([pa.array(asked), pa.array(at)])
    found = np.empty(len(by), np.int64)
    numba_loops.asof_positions(asked[by], at[by], _keys(changes), of, found)
    met = found >= 0
    if operator.within is not None:
        met[met] = at[by][met] - of[found[met]] <= operator.within
    parts = [side_by_side(operator, arrow.take_rows(asking, by[met]), arrow.take_rows(changes, found[met]))]
    if operator.keep and not met.all():
        parts.append(side_by_side(operator, arrow.take_rows(asking, by[~met]), None))
    return pa.concat_tables(parts)


def _horizons(keys: Numbers, waiting: Numbers, at: Numbers, watermark: int) -> Numbers:
    """Return for every change the horizon of its key. waiting, at: keys and times of the waiting tuples."""
    known, of = np.unique(keys, return_inverse=True)
    found = np.full(len(known), watermark)
    asked = np.isin(waiting, known)
    np.minimum.at(found, np.searchsorted(known, waiting[asked]), at[asked])
    return found[of]


def _askable(changes: pa.Table, horizons: Numbers, within: int | None) -> Marks:
    """Return which changes, given by key and time, can match a tuple at the horizon or later."""
    keys, at = _keys(changes), times(changes)
    kept = horizons < FOREVER  # otherwise no tuple can follow
    kept[:-1] &= (keys[1:] != keys[:-1]) | (at[1:] > horizons[1:])  # otherwise the next change matches instead
    if within is not None:
        kept &= at >= horizons - within
    return kept


def _keys(changes: pa.Table) -> Numbers:
    return np.asarray(changes.column(KEY))
