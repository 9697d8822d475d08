"""Ranges: a point that the predicate accepts is in a group between those of its interval's ends, whatever the rounding."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.routing import Ranges, layout_from_json
from headrace.routing.by_range import as_numbers, even_bounds, range_of

DOUBLES = st.floats(allow_nan=False, allow_infinity=False, width=64)


def group(value: float, bounds: list[float], move: float = 0.0) -> int:
    return int(range_of(pa.table({"x": pa.array([value], pa.float64())}), "x", bounds, move)[0])


@given(DOUBLES, DOUBLES, st.floats(0, 1e300), st.lists(DOUBLES, max_size=4))
@example(0.1, 0.3, 0.19999999999999998, [])
@example(1e16, 1.0, 1e16, [])
def test_what_is_near_enough_is_within_reach(point: float, centre: float, width: float, others: list[float]) -> None:
    if not abs(point - centre) <= width:  # in doubles, as DuckDB computes it
        return
    # bounds as close around the point as there can be
    near = [point, math.nextafter(point, math.inf), math.nextafter(point, -math.inf)]
    bounds = sorted({*others, *(n for n in near if math.isfinite(n))})
    with np.errstate(over="ignore"):
        assert group(centre, bounds, -width) <= group(point, bounds) <= group(centre, bounds, width)


@given(st.lists(st.floats(width=64), min_size=2, max_size=2), st.lists(DOUBLES, max_size=5))
def test_groups_rise_with_values_and_nan_is_the_largest(values: list[float], bounds: list[float]) -> None:
    low, high = sorted(values, key=lambda v: (math.isnan(v), 0 if math.isnan(v) else v))
    assert group(low, sorted(set(bounds))) <= group(high, sorted(set(bounds)))


def test_times_and_whole_numbers_keep_their_order() -> None:
    for kind in (pa.int8(), pa.int64(), pa.timestamp("us", tz="UTC"), pa.date32()):
        column = pa.chunked_array([pa.array([-3, 0, 7], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)])
        assert as_numbers(column).tolist() == [-3, 0, 7]
    largest = pa.table({"x": pa.array([2**63 - 1, 2**63 - 2], pa.int64())})
    assert range_of(largest, "x", [2**63 - 1]).tolist() == [1, 0]


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=200), st.integers(2, 20))
def test_bounds_rise_and_no_range_is_empty(values: list[int], ranges: int) -> None:
    bounds = even_bounds(np.array(values), ranges)
    assert list(bounds) == sorted(set(bounds)) and len(bounds) < ranges
    filled = np.bincount(np.searchsorted(bounds, values, side="right"), minlength=len(bounds) + 1)
    assert filled.min() > 0


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 1), st.integers(0, 3), st.data())
def test_every_pair_is_met_in_one_slot(total: int, busy: int, points: int, first: int, data: st.DataObject) -> None:
    layout = layout_from_json(Ranges(total, busy, points, first).to_json())
    point = data.draw(st.integers(0, total - 1))
    start = data.draw(st.integers(0, point))
    reach = data.draw(st.integers(point - start, total))
    met = [
        slot
        for slot in range(layout.slots)
        if point in layout.groups(slot, points, reach) and start in layout.groups(slot, 1 - points, reach)
    ]
    assert len(met) == 1 and met[0] >= first


def test_no_ranges_without_groups_and_slots() -> None:
    with pytest.raises(QueryError, match="ranges need at least one group and one slot"):
        Ranges(4, 0, 0)
