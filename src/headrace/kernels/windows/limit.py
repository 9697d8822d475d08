"""The first tuples of each key in sequence, released as the watermark passes them.

Invariant: no tuple below a bound arrives after the epoch that reached the bound. So a tuple that is released has its final
number, and a tuple that has `count` others of its key before it, released or waiting, can never be released.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow
from headrace.columnar.types import TS
from headrace.kernels.stateless.steps import in_sequence
from headrace.kernels.windows.aggregate import times

RELEASED = "__released"  # released tuples of a key; only counters have it, which are not tuples


def first_tuples(by: Sequence[str], count: int, tuples: pa.Table) -> pa.Table:
    """Return the first `count` tuples of each key; the tuples of all others are not needed."""
    if tuples.num_rows <= count:
        return tuples
    ordered = in_sequence(tuples, tuples.column_names)
    return ordered.filter(pa.array(_numbers(_key_numbers(by, ordered)) < count))


def release_first(by: Sequence[str], count: int, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Return the tuples that are released now and the rows to hold; `held` has tuples, counters and `__released`."""
    is_counter = np.asarray(held.column(RELEASED).is_valid())
    counters = held.filter(pa.array(is_counter))
    tuples = held.filter(pa.array(~is_counter)).drop_columns([RELEASED])
    ordered = in_sequence(tuples, tuples.column_names)
    keys = _key_numbers(by, pa.concat_tables([counters.select([*by, TS]), ordered.select([*by, TS])]))
    old, new = keys[: counters.num_rows], keys[counters.num_rows :]
    released = np.zeros(keys.max(initial=-1) + 1, np.int64)
    released[old] = np.asarray(counters.column(RELEASED))
    wanted = _numbers(new) + released[new] < count
    ready = wanted & (times(ordered) < bound)
    waiting = ordered.filter(pa.array(wanted & ~ready))
    results = ordered.filter(pa.array(ready))
    released += np.bincount(new[ready], minlength=len(released))
    marks = _counters(held.schema, counters, results, old, new[ready], released)
    return results, pa.concat_tables([marks, _widened(waiting, held.schema)])


def _key_numbers(by: Sequence[str], rows: pa.Table) -> npt.NDArray[np.int64]:
    """Number the keys of rows. The key is empty or the substream, an integer."""
    if not by:
        return np.zeros(rows.num_rows, np.int64)
    (name,) = by
    return np.unique(np.asarray(rows.column(name)), return_inverse=True)[1].astype(np.int64)


def _numbers(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return for each row, in sequence, how many rows of its key are before it."""
    order = np.argsort(keys, kind="stable")
    together = keys[order]
    begins = np.searchsorted(together, together, side="left")
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - begins
    return found


def _counters(
    schema: pa.Schema,
    counters: pa.Table,
    results: pa.Table,
    old: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    released: npt.NDArray[np.int64],
) -> pa.Table:
    """Return one counter for each key that has released a tuple: the old row, or one with the `ts` and key of a result."""
    rows = pa.concat_tables([counters, _widened(results, schema)])
    keys, first = np.unique(np.concatenate([old, new]), return_index=True)
    return arrow.take_rows(rows, first).set_column(
        schema.get_field_index(RELEASED), schema.field(RELEASED), pa.array(released[keys], pa.int64())
    )


def _widened(tuples: pa.Table, schema: pa.Schema) -> pa.Table:
    return tuples.append_column(schema.field(RELEASED), pa.nulls(tuples.num_rows, pa.int64())).select(schema.names)
