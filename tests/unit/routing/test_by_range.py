"""Ranges: every pair that a band accepts meets in exactly one slot, whatever the bounds, the grids and the rounding."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.routing import BOTH, RangeGrouping, Ranges, layout_from_json
from headrace.routing.by_range import SortedRows, as_numbers, even_bounds

DOUBLES = st.floats(allow_nan=False, allow_infinity=False, width=64)
GRIDS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=5)


def ordered(values: list[float]) -> np.ndarray:
    return np.sort(np.array(values, np.float64))


def met(layout: Ranges, points: SortedRows, intervals: SortedRows, point: int, interval: int) -> list[int]:
    """The slots that read both the point and the interval, by their rows."""
    blocks = (points, intervals) if layout.points == 0 else (intervals, points)
    rows = (point, interval) if layout.points == 0 else (interval, point)
    return [
        slot
        for slot in range(layout.slots)
        if all(
            start <= row < stop
            for row, (start, stop) in zip(rows, (layout.rows(blocks[s], slot, s) for s in (0, 1)), strict=True)
        )
    ]


@settings(deadline=None)
@given(
    st.lists(st.floats(width=64), min_size=1, max_size=6),
    st.lists(st.floats(width=64), min_size=1, max_size=6),
    st.floats(0, 1e300),
    st.lists(DOUBLES, max_size=4),
    GRIDS,
    st.integers(0, 1),
    st.integers(0, 2),
)
@example([0.1], [0.3], 0.19999999999999998, [], [(1, 1)], 0, 0)
@example([1e16], [1.0], 1e16, [], [(1, 1)], 0, 0)
def test_what_is_near_enough_meets_in_one_slot(
    points: list[float],
    centres: list[float],
    width: float,
    others: list[float],
    grids: list[tuple[int, int]],
    side: int,
    first: int,
) -> None:
    near = [n for p in points for n in (p, math.nextafter(p, math.inf), math.nextafter(p, -math.inf))]
    bounds = sorted({*others, *(n for n in near if math.isfinite(n))})[: len(grids) - 1]
    layout = Ranges(tuple(bounds), tuple(grids[: len(bounds) + 1]), side, first)
    p, c = ordered(points), ordered(centres)
    blocks = SortedRows(p, 0.0, width), SortedRows(c, 0.0, width)
    for i, point in enumerate(p.tolist()):
        for j, centre in enumerate(c.tolist()):
            found = met(layout, *blocks, i, j)
            assert len(found) <= 1
            if abs(point - centre) <= width:  # in doubles, as DuckDB computes it
                assert found and found[0] >= first


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(width=64), st.floats(width=64)), min_size=1, max_size=6),
    st.floats(width=64),
    st.lists(DOUBLES, max_size=4),
)
def test_an_interval_is_read_where_its_points_are(
    ends: list[tuple[float, float]], point: float, others: list[float]
) -> None:
    def at_most(a: float, b: float) -> bool:  # as DuckDB orders doubles
        return math.isnan(b) or a <= b

    table = pa.table({"a": [a for a, _ in ends], "b": [b for _, b in ends]})
    grouping = RangeGrouping(("a", "b"))
    order = np.argsort(grouping.values(table), kind="stable")
    rows = SortedRows(grouping.values(table)[order], grouping.extent(table), 0.0)
    bounds = sorted({*others, *([point] if math.isfinite(point) else [])})
    layout = Ranges(tuple(bounds), ((1, 1),) * (len(bounds) + 1), 0)
    for place, row in enumerate(order.tolist()):
        if at_most(ends[row][0], point) and at_most(point, ends[row][1]):
            assert len(met(layout, SortedRows(ordered([point]), 0.0, 0.0), rows, 0, place)) == 1


@settings(deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.integers(-(2**62), 2**62), max_size=3),
)
@example([-(2**63), 2**63 - 1], 2**63 - 1, [0])
def test_whole_numbers_of_any_size(ends: list[int], point: int, others: list[int]) -> None:
    low, high = sorted(ends)
    if not low <= point <= high:
        return
    grouping = RangeGrouping(("a", "b"))
    table = pa.table({"a": [low], "b": [high]})
    bounds = sorted({*others, min(max(point, -(2**62)), 2**62)})
    layout = Ranges(tuple(bounds), ((1, 1),) * (len(bounds) + 1), 1)
    rows = SortedRows(grouping.values(table), grouping.extent(table), 0.0)
    assert len(met(layout, SortedRows(np.array([point]), 0.0, 0.0), rows, 0, 0)) == 1


@pytest.mark.parametrize("bound", [2**60 + 127, 2**60 + 128, 2**60 + 129, -(10**39), 10**39])
def test_a_whole_bound_of_doubles_is_the_nearest_double(bound: int) -> None:
    """A plan that a user edits may have them. A double of this size is 128 or more away from the next."""
    grouping = RangeGrouping(("a", "b"))
    table = pa.table({"a": [2.0**60 - 128], "b": [2.0**60]})
    rows = SortedRows(grouping.values(table), grouping.extent(table), 0.0)
    point = SortedRows(ordered([2.0**60]), 0.0, 0.0)
    assert len(met(Ranges((bound,), ((1, 1), (1, 1)), 0), point, rows, 0, 0)) == 1


def test_times_and_whole_numbers_keep_their_order() -> None:
    for kind in (pa.int8(), pa.int64(), pa.timestamp("us", tz="UTC"), pa.date32()):
        column = pa.chunked_array([pa.array([-3, 0, 7], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)])
        assert as_numbers(column).tolist() == [-3, 0, 7]


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=200), st.integers(2, 20))
def test_bounds_rise_and_no_range_is_empty(values: list[int], ranges: int) -> None:
    bounds = even_bounds(np.array(values), ranges)
    assert list(bounds) == sorted(set(bounds)) and len(bounds) < ranges
    filled = np.bincount(np.searchsorted(bounds, values, side="right"), minlength=len(bounds) + 1)
    assert filled.min() > 0


@given(
    st.lists(st.integers(-50, 50), max_size=9, unique=True), st.integers(1, 12), st.integers(0, 1), st.integers(0, 3)
)
def test_even_layouts_use_every_slot(bounds: list[int], slots: int, points: int, first: int) -> None:
    layout = Ranges.even(sorted(bounds), slots, points, first)
    assert layout.slots == first + slots
    assert layout_from_json(layout.to_json()) == layout


def test_both_sides_of_a_stretch_have_points() -> None:
    layout = Ranges((5, 9), ((1, 1),) * 3, BOTH)
    rows = SortedRows(np.array([1, 5, 5, 8, 9]), 0.0, 0.0)
    assert [[layout.rows(rows, slot, side) for slot in range(3)] for side in (0, 1)] == [[(0, 1), (1, 4), (4, 5)]] * 2


@pytest.mark.parametrize(("bounds", "grids"), [((2.0, 1.0), ((1, 1),) * 3), ((1.0,), ((1, 1),)), ((), ((0, 1),))])
def test_no_ranges_without_increasing_bounds_and_slots(
    bounds: tuple[float, ...], grids: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(QueryError, match="ranges need increasing bounds, a grid for each range"):
        Ranges(bounds, grids, 0)
