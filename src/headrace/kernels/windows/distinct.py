"""The tuples that `distinct` keeps: no tuple of the same key was kept within the given time before.

Whether a tuple is kept depends on which earlier ones were, so the tuples of a key are walked in sequence. Tuples kept
in earlier epochs come first in the walk, because no tuple below a watermark arrives after it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow, duck
from headrace.kernels.stateless.steps import in_schema, in_sequence
from headrace.kernels.windows.aggregate import times

KEPT = "__kept"  # true: an emitted tuple in the state; false: it waits
_KEY, _SEQ = "__key", "__seq"


def keep_first(by: Sequence[str], within: int, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Return the tuples below `bound` that are kept now, and the rows to hold. `held` has the columns and `__kept`."""
    known = np.asarray(held.column(KEPT))
    waiting = ~known & (times(held) >= bound)
    walked = _walk_order(by, held.filter(pa.array(~waiting)))
    keep = _walk(np.asarray(walked.column(_KEY)), times(walked), np.asarray(walked.column(KEPT)), within)
    kept = walked.filter(pa.array(keep)).select(held.column_names)
    results = kept.filter(pa.array(~np.asarray(kept.column(KEPT)))).drop_columns([KEPT])
    needed = kept.filter(pa.array(times(kept) >= bound - within))  # later tuples have `ts` >= bound
    return results, pa.concat_tables([_noted(needed), held.filter(pa.array(waiting))])


def _walk_order(by: Sequence[str], rows: pa.Table) -> pa.Table:
    """Return the rows with a number for their key, keys together, in sequence within a key. Null is a value."""
    columns = [name for name in rows.column_names if name != KEPT]
    ordered = in_sequence(rows, columns)
    ordered = ordered.append_column(_SEQ, pa.array(np.arange(ordered.num_rows)))
    keys = ", ".join(duck.quote(name) for name in by) or "1"
    found = duck.run_select(
        f"SELECT {_SEQ}, min({_SEQ}) OVER (PARTITION BY {keys}) AS {_KEY} FROM __tuples", {duck.TUPLES: ordered}
    )
    numbers, first = (np.asarray(found.column(name)).astype(np.int64) for name in (_SEQ, _KEY))
    order = np.lexsort((numbers, first))
    return in_schema(arrow.take_rows(ordered, numbers[order]), ordered.schema).append_column(
        _KEY, pa.array(first[order])
    )


def _walk(
    keys: npt.NDArray[np.int64], at: arrow.Numbers, known: npt.NDArray[np.bool_], within: int
) -> npt.NDArray[np.bool_]:
    keep, key, last = [], None, 0
    for here, ts, kept in zip(keys.tolist(), at.tolist(), known.tolist(), strict=True):
        taken = kept or here != key or ts - last > within
        if taken:
            key, last = here, ts
        keep.append(taken)
    return np.array(keep, dtype=bool)


def _noted(kept: pa.Table) -> pa.Table:
    """Mark rows as emitted. They are stored whole, because the sequence of the next walk depends on whole tuples."""
    index = kept.schema.get_field_index(KEPT)
    return kept.set_column(index, kept.schema.field(index), pa.array(np.ones(kept.num_rows, dtype=bool)))
