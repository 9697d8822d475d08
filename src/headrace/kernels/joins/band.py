"""Joins whose predicate keeps two numbers near each other: `abs(l.x - r.y) <= d`, `l.x between r.a and r.b`, and
half-open ranges, `l.x >= r.a and l.x < r.b`.

Invariant: the candidates contain every pair that can satisfy the predicate, because the interval is widened by more
than rounding can lose. The caller then checks each candidate against window and predicate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.columnar.duck import TUPLES
from headrace.columnar.numba_loops import near_points
from headrace.expressions.geography import RADIUS_KM
from headrace.expressions.predicates import BandCondition, Circle
from headrace.kernels.joins.pairs import MOST_PAIRS, expand_ranges
from headrace.kernels.stateless.evaluate import evaluate

Doubles = npt.NDArray[np.float64]

FURTHEST_LONGITUDE = 720.0  # degrees
SAMPLED = 256  # rows from which the number of near pairs is estimated
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
    distances: Distances | None  # a stricter condition than that of the intervals

    @classmethod
    def of(cls, near: BandCondition, left: pa.Table, right: pa.Table) -> Candidates:
        tables = {"l": left, "r": right}
        points = _values(tables[near.point[0]], near.point[1])
        low, high = (_values(tables[near.moving], name) for name in near.interval)
        order = np.argsort(points, kind="stable")
        distances = Distances.of(near, near.circle, tables, order) if near.circle else None
        return cls(near, order, *point_ranges(near, points[order], low, high), distances)

    @property
    def count(self) -> int:
        return int((self.last - self.first).sum())

    def __iter__(self) -> Iterator[tuple[Numbers, Numbers]]:
        within = expand_ranges if self.distances is None else self.distances.within
        for moving, fixed in within(self.first, self.last):
            rows = {self.near.moving: moving, self.near.point[0]: self.order[fixed]}
            yield rows["l"], rows["r"]


@dataclass(frozen=True)
class Distances:
    """The places of two tables as points on a sphere of radius 1, and the largest square of the distance of a pair."""

    moving: Doubles  # by row: x, y, z
    points: Doubles  # the same, in the order of the points
    most: float

    @classmethod
    def of(cls, near: BandCondition, circle: Circle, tables: Mapping[str, pa.Table], order: Numbers) -> Distances:
        moving, points = (on_sphere(tables[side], *circle.place(side)) for side in (near.moving, near.point[0]))
        return cls(moving, points[order], most_squared(circle))

    def within(self, first: Numbers, last: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the pairs of the ranges that may be near enough."""
        return near_points(self.moving, self.points, first, last, self.most, MOST_PAIRS)

    def estimated_pairs(self, first: Numbers, last: Numbers) -> int:
        """Return about how many pairs of the ranges may be near enough, from a sample of the rows."""
        every = len(first) // SAMPLED + 1
        some = replace(self, moving=np.ascontiguousarray(self.moving[::every]))
        near = some.within(np.ascontiguousarray(first[::every]), np.ascontiguousarray(last[::every]))
        return every * sum(len(rows) for rows, _ in near)


def most_squared(circle: Circle) -> float:
    """Return the largest square of the straight line between two places that may be in the circle."""
    line = 2 * math.sin(circle.km / (2 * RADIUS_KM)) * (1 + 1e-9) + 1e-12  # more than rounding can lose
    return line**2 if circle.km < RADIUS_KM else line**2 + 1e-6


def on_sphere(table: pa.Table, latitude: str, longitude: str) -> Doubles:
    """Return the places of a table as points on a sphere of radius 1: x, y and z by row."""
    lat, lon = (np.radians(_values(table, name)) for name in (latitude, longitude))
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)


def with_computed(near: BandCondition, side: str, table: pa.Table) -> pa.Table:
    """Return the table of a side with the columns that the condition computes from it."""
    found = table
    for of, name, sql in near.computed:
        if of == side:
            values = evaluate(f"SELECT {sql} AS v FROM {TUPLES}", {TUPLES: table}, sql).column(0)
            found = found.append_column(name, values)
    return found


def point_ranges(near: BandCondition, points: Doubles, low: Doubles, high: Doubles) -> tuple[Numbers, Numbers]:
    """Return for every interval the range of sorted points that it may contain: the first, and the one after the last."""
    with np.errstate(over="ignore"):  # an infinite margin contains every point
        margin = SLACK * (np.abs(low) + np.abs(high) + near.width)
        first = np.searchsorted(points, low - near.width - margin, side="left")
        last = np.searchsorted(points, high + near.width + margin, side="right")
    return first, np.maximum(last, first)


def is_usable(near: BandCondition, left: pa.Table, right: pa.Table) -> bool:
    tables = {"l": left, "r": right}
    names = {near.point, *((near.moving, name) for name in near.interval)}
    if near.circle is None:
        return all(_finite(tables[side].column(name)) for side, name in names)
    return all(_has_places_only(table, *near.circle.place(side)) for side, table in tables.items())


def _has_places_only(table: pa.Table, latitude: str, longitude: str) -> bool:
    nulls = table.column(latitude).null_count + table.column(longitude).null_count
    return not nulls and bool(are_places(table, latitude, longitude).all())


def are_places(table: pa.Table, latitude: str, longitude: str) -> npt.NDArray[np.bool_]:
    """Return by row whether the index can compare the place: a huge longitude has no exact place on the sphere. The
    columns must not contain nulls."""
    lat, lon = _values(table, latitude), _values(table, longitude)
    return np.asarray((np.abs(lat) <= 90.0) & (np.abs(lon) <= FURTHEST_LONGITUDE))


def _finite(column: pa.ChunkedArray) -> bool:
    return column.null_count == 0 and bool(np.isfinite(np.asarray(column)).all())


def _values(table: pa.Table, name: str) -> Doubles:
    return np.asarray(table.column(name), dtype=np.float64)
