"""Layouts: every pair of groups is met exactly once, and the work is shared evenly."""

from __future__ import annotations

import json
from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import QueryError
from headrace.routing import Diagonal, Layout, Rectangles, layout_from_json
from headrace.routing.by_rectangle import best_rectangles, busiest_reads, even_shapes
from headrace.routing.hashing import groups_of


@st.composite
def rectangles(draw: st.DrawFn) -> Rectangles:
    rows = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    total = draw(st.integers(max(len(rows), max(rows)), 24))
    return Rectangles(total, rows, draw(st.booleans()))


@st.composite
def diagonals(draw: st.DrawFn) -> Diagonal:
    slots = draw(st.integers(1, 6))
    return Diagonal(tuple(draw(st.lists(st.integers(0, slots - 1), min_size=1, max_size=24))), slots)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(rectangles())
def test_every_pair_of_groups_has_exactly_one_slot(layout: Rectangles) -> None:
    met = Counter(
        pair for slot in range(layout.slots) for pair in product(layout.groups(slot, 0), layout.groups(slot, 1))
    )
    assert met == Counter(product(range(layout.total), repeat=2))
    for slot in range(layout.slots):
        for pair in product(layout.groups(slot, 0), layout.groups(slot, 1)):
            assert layout.slot_of(*pair) == slot


@settings(max_examples=100, derandomize=True, deadline=None)
@given(diagonals())
def test_every_group_of_a_diagonal_has_exactly_one_slot(layout: Diagonal) -> None:
    groups = range(len(layout.owner))
    assert sorted(g for slot in range(layout.slots) for g in layout.groups(slot, 0)) == list(groups)
    for slot in range(layout.slots):
        assert layout.groups(slot, 0) == layout.groups(slot, 1)
        assert all(layout.slot_of(g, g) == slot for g in layout.groups(slot, 0))
    assert all(layout.slot_of(a, b) is None for a, b in product(groups, repeat=2) if a != b)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.one_of(rectangles(), diagonals()))
def test_json_round_trip(layout: Layout) -> None:
    assert layout_from_json(json.loads(json.dumps(layout.to_json()))) == layout


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5, 7, 12, 60])
def test_an_even_diagonal_gives_every_slot_its_share(slots: int) -> None:
    groups = max(64, 16 * slots)
    counts = [len(Diagonal.even(groups, slots).groups(slot, 0)) for slot in range(slots)]
    assert sum(counts) == groups and max(counts) - min(counts) <= 1


@pytest.mark.parametrize("slots", [2, 3, 5, 7])
@pytest.mark.parametrize("rates", [(4000, 4000), (1000, 8000), (8000, 1000)])
def test_every_slot_does_its_share_of_the_comparisons(slots: int, rates: tuple[int, int]) -> None:
    """Real tuples in groups by content: the pairs that a slot looks at, of all there are."""
    groups = max(64, 16 * slots)
    layout = best_rectangles(groups, slots, *rates)
    r = np.random.default_rng(7)
    counts = []
    for rows in rates:
        table = pa.table({"x": r.integers(0, 10**6, rows), "y": r.random(rows)})
        counts.append(np.bincount(groups_of(table, ["x", "y"], groups), minlength=groups))
    pairs = [int(counts[0][layout.groups(s, 0)].sum() * counts[1][layout.groups(s, 1)].sum()) for s in range(slots)]
    assert sum(pairs) == rates[0] * rates[1]
    share = rates[0] * rates[1] / slots
    assert max(abs(p - share) for p in pairs) < 0.10 * share, [round(p / share, 3) for p in pairs]


@pytest.mark.parametrize(
    ("slots", "rows"), [(1, (1,)), (2, (2,)), (3, (2, 1)), (4, (2, 2)), (5, (3, 2)), (6, (3, 3)), (9, (3, 3, 3))]
)
def test_equal_rates_give_nearly_a_square(slots: int, rows: tuple[int, ...]) -> None:
    layout = best_rectangles(960, slots, 1000, 1000)
    assert busiest_reads(layout.rows, 1000, 1000) <= busiest_reads(rows, 1000, 1000)
    assert layout.slots == slots
    if slots in (1, 4, 5, 6, 9):
        assert layout.rows == rows


def test_unequal_rates_replicate_the_slow_side() -> None:
    fast_right = best_rectangles(960, 4, 1, 8)
    fast_left = best_rectangles(960, 4, 8, 1)
    for layout, slow in ((fast_right, 0), (fast_left, 1)):
        for slot in range(4):
            assert len(layout.groups(slot, slow)) == 960  # all of the slow side
            assert len(layout.groups(slot, 1 - slow)) == 240  # a quarter of the fast one


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.integers(1, 24), st.floats(0.01, 1000), st.floats(0.01, 1000))
def test_no_even_shape_reads_less_than_the_chosen_one(slots: int, left: float, right: float) -> None:
    layout = best_rectangles(960, slots, left, right)
    sides = (right, left) if layout.transposed else (left, right)
    chosen = busiest_reads(layout.rows, *sides)
    assert layout.slots == slots
    assert all(
        chosen <= busiest_reads(rows, *pair) + 1e-9
        for rows in even_shapes(slots)
        for pair in ((left, right), (right, left))
    )


def test_shapes_use_every_slot() -> None:
    for slots in range(1, 30):
        assert all(sum(rows) == slots and max(rows) - min(rows) <= 1 for rows in even_shapes(slots))
        assert (slots,) in even_shapes(slots) and (1,) * slots in even_shapes(slots)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Diagonal((0, 1, 2), 2), "a slot outside 0 to 1"),
        (lambda: Diagonal((0, -1), 2), "a slot outside 0 to 1"),
        (lambda: Rectangles(8, ()), "at least one cell"),
        (lambda: Rectangles(8, (2, 0)), "at least one cell"),
        (lambda: Rectangles(8, (2, -1)), "at least one cell"),
        (lambda: Rectangles(4, (5,)), "too many for 4 groups"),
        (lambda: Rectangles(2, (1, 1, 1)), "too many for 2 groups"),
    ],
)
def test_bad_layouts_are_refused(make: object, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        make()  # type: ignore[operator]
