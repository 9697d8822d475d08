"""Groups in, moves and splits out: balance is reached, kept, and not paid for twice."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.group_moves import (
    ENTER,
    LEAVE,
    best_grid,
    hot_groups_for,
    imbalance,
    moves_by_gain,
    random_moves,
    slot_loads,
)
from headrace.routing import Diagonal, HotGroup

LOADS = st.lists(st.floats(0, 1000), min_size=4, max_size=40)


@given(LOADS, st.integers(2, 6), st.integers(1, 30), st.randoms(use_true_random=False))
def test_a_move_never_makes_it_worse(load: list[float], slots: int, most: int, r: random.Random) -> None:
    owner = [r.randrange(slots) for _ in load]
    moves = moves_by_gain(owner, (), load, load, slots, most, 0.05)
    assert len(moves) <= most
    for move in moves:
        assert owner[move.group] == move.source != move.target
        before = max(slot_loads(owner, (), load, slots))
        owner[move.group] = move.target
        assert max(slot_loads(owner, (), load, slots)) <= before + 1e-6
    assert all(move.gain > 0 for move in moves)


def test_balance_is_reached_from_one_slot_and_then_nothing_moves() -> None:
    r = random.Random(1)
    load = [r.paretovariate(2.5) for _ in range(60)]
    owner = [0] * 60
    for _ in range(5):
        for move in moves_by_gain(owner, (), load, load, 4, 16, 0.05):
            owner[move.group] = move.target
    assert imbalance(slot_loads(owner, (), load, 4)) <= 1.1
    assert moves_by_gain(owner, (), load, load, 4, 16, 0.1) == []


def test_pinned_groups_stay() -> None:
    load = [10.0, 1.0, 1.0, 1.0]
    moves = moves_by_gain([0, 0, 0, 0], (), load, load, 2, 9, 0.05, fixed=[0])
    assert {m.group for m in moves} == {1, 2, 3}


def test_of_equally_good_moves_the_one_with_least_state() -> None:
    moves = moves_by_gain([0, 0, 1], (), [5.0, 5.0, 0.0], [900.0, 3.0, 0.0], 2, 1, 0.05)
    assert [m.group for m in moves] == [1]


def test_the_papers_moves_are_one_group_of_each_supplier() -> None:
    owner = [0, 0, 0, 1, 1, 2]
    moves = random_moves(owner, [0.9, 0.8, 0.1], 0.5, 0.2, "seed")
    assert len(moves) == 1 and moves[0].source == 0 and moves[0].target == 2 and owner[moves[0].group] == 0
    assert moves == random_moves(owner, [0.9, 0.8, 0.1], 0.5, 0.2, "seed")
    assert random_moves(owner, [0.3, 0.3, 0.3], 0.5, 0.2, "seed") == []


def test_a_hot_group_is_split_and_stays_so_until_it_is_cool() -> None:
    load = [100.0] + [2.0] * 19
    sides = [(work / 2, work / 2) for work in load]
    owner = Diagonal.even(20, 4).owner
    (split,) = hot_groups_for((), sides, load, owner, 4)
    assert split.group == 0 and len(split.slots) == 4
    assert imbalance(slot_loads(owner, (split,), load, 4)) < 1.4
    fair = (sum(load) - 100) / 3  # the load at which group 0 is exactly one fair share
    for share, still in ((ENTER * 0.9, True), (LEAVE * 0.5, False)):
        cooler = [fair * share, *load[1:]]
        assert bool(hot_groups_for((split,), sides, cooler, owner, 4)) == still
        assert not hot_groups_for((), sides, cooler, owner, 4)
    assert hot_groups_for((), sides, load, owner, 1) == ()


@pytest.mark.parametrize(("left", "right", "grid"), [(1, 1, (2, 2)), (100, 1, (4, 1)), (1, 100, (1, 4))])
def test_the_side_that_is_cut_is_the_larger(left: float, right: float, grid: tuple[int, int]) -> None:
    assert best_grid(4, left, right) == grid


@given(st.integers(1, 12), st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_grid_uses_all_of_its_slots(count: int, left: float, right: float) -> None:
    rows, columns = best_grid(count, left, right)
    assert rows * columns == count
    everything = HotGroup(0, rows, columns, tuple(range(count)))
    cells = {(everything.cell(slot, 0), everything.cell(slot, 1)) for slot in range(count)}
    assert len(cells) == count and not math.isnan(left)
