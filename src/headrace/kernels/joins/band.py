"""Joins whose predicate keeps two numbers near each other: `abs(l.x - r.y) <= d`, `l.x between r.a and r.b`, and
half-open ranges, `l.x >= r.a and l.x < r.b`.

Invariant: the candidates contain every pair that can satisfy the predicate, because the interval is widened by more
than rounding can lose. The caller then checks each candidate against window and predicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.expressions.predicates import BandCondition
from headrace.kernels.joins.pairs import expand_ranges

Doubles = npt.NDArray[np.float64]

SLACK = 1e-12  # relative; a subtraction of doubles loses about 1e-16


@dataclass(frozen=True)
class Candidates:
    """Row numbers of pairs that may be near, in batches.

    DuckDB treats NaN as equal to NaN and above all numbers, so `x between a and NaN` can be true. Tables with nulls,
    NaN or infinities are therefore not allowed here; the caller checks with `is_usable`.
    """

    near: BandCondition
    order: Numbers  # sorts the points
    first: Numbers
    last: Numbers

    @classmethod
    def of(cls, near: BandCondition, left: pa.Table, right: pa.Table) -> Candidates:
        tables = {"l": left, "r": right}
        points = _values(tables[near.point[0]], near.point[1])
        low, high = (_values(tables[near.moving], name) for name in near.interval)
        order = np.argsort(points, kind="stable")
        return cls(near, order, *point_ranges(near, points[order], low, high))

    @property
    def count(self) -> int:
        return int((self.last - self.first).sum())

    def __iter__(self) -> Iterator[tuple[Numbers, Numbers]]:
        for moving, fixed in expand_ranges(self.first, self.last):
            rows = {self.near.moving: moving, self.near.point[0]: self.order[fixed]}
            yield rows["l"], rows["r"]


def point_ranges(near: BandCondition, points: Doubles, low: Doubles, high: Doubles) -> tuple[Numbers, Numbers]:
    """Return for every interval the range of sorted points that it may contain: the first, and the one after the last."""
    with np.errstate(over="ignore"):  # an infinite margin contains every point
        margin = SLACK * (np.abs(low) + np.abs(high) + near.width)
        first = np.searchsorted(points, low - near.width - margin, side="left")
        last = np.searchsorted(points, high + near.width + margin, side="right")
    return first, np.maximum(last, first)


def is_usable(near: BandCondition, left: pa.Table, right: pa.Table) -> bool:
    tables = {"l": left, "r": right}
    names = [(near.point[0], near.point[1]), *((near.moving, name) for name in near.interval)]
    return all(_finite(tables[side].column(name)) for side, name in names)


def _finite(column: pa.ChunkedArray) -> bool:
    return column.null_count == 0 and bool(np.isfinite(np.asarray(column)).all())


def _values(table: pa.Table, name: str) -> Doubles:
    return np.asarray(table.column(name), dtype=np.float64)
