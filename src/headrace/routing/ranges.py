"""Groups that are ranges of a number: for joins that keep two numbers near each other.

Invariant: the group of a value rises with the value (NaN is the largest, as DuckDB has it), so a point between the two
ends of an interval is in a group between theirs. An interval that is made wider by a distance d is made wider by a
little more, so that a point whose computed distance is d lies in it, however the computation was rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.routing.hashing import Groups

Values = npt.NDArray[np.float64] | npt.NDArray[np.int64]
_MORE = 1 + 2.0**-50  # a computed distance of d can be one of d * (1 + 2^-53)


def range_of(table: pa.Table, column: str, bounds: Sequence[float], move: float = 0.0) -> Groups:
    """The range of every value, moved by a distance; no value is null."""
    values = numbers(table.column(column))
    if move:
        values = np.nextafter(values + move * _MORE, np.inf if move > 0 else -np.inf)
    return np.searchsorted(np.asarray(bounds, dtype=values.dtype), values, side="right").astype(np.int32)


def numbers(column: pa.ChunkedArray) -> Values:
    """Numbers and times as 64-bit integers or doubles that order alike."""
    kind = column.type
    if pa.types.is_floating(kind):
        return np.asarray(column.cast(pa.float64()))
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return np.asarray(column.cast(pa.int64()))


def even_bounds(values: Values, ranges: int) -> tuple[float, ...]:
    """Bounds of at most so many ranges that hold about equally many of a sample; fewer where values repeat.

    >>> even_bounds(np.arange(8), 4)
    (2, 4, 6)
    >>> even_bounds(np.full(8, 3.5), 4)
    ()
    """
    ordered = np.sort(values[np.isfinite(values)])
    if not len(ordered):
        return ()
    cuts = ordered[[len(ordered) * i // ranges for i in range(1, ranges)]]
    return tuple(np.unique(cuts[cuts > ordered[0]]).tolist())
