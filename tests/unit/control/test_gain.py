"""Decisions expect a gain that can be measured: none for chance, none that is taken back, and a real gain is taken."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headrace.compile import compile_query
from headrace.control import gain
from headrace.control.controller import Controller
from headrace.control.group_load import GroupLoad, HeavyKey
from headrace.control.policy import Policy
from headrace.control.splitter_count import SplitLoad
from headrace.routing import Diagonal, Layout, Rectangles
from headrace.stream import node_of

from .test_controller import streams

GROUPS = 64
QUERIES = {
    "aggregate-1": lambda left, right: left.aggregate(by=["k"], window="4 seconds", n="first(x)"),
    "join-1": lambda left, right: left.join(right, on="l.k = r.k and l.x < r.x", within="4 seconds"),
    "theta": lambda left, right: left.join(right, on="l.x < r.x", within="4 seconds"),
}


class Small:
    """A controller that is told of small epochs: what each of its groups, slots and splitters did."""

    def __init__(self, query: str, slots: int, seed: int, *, auto: bool = False, every: int = 1) -> None:
        self.r = np.random.default_rng(seed)
        self.control = Controller(
            compile_query([node_of(QUERIES[query](*streams()))]), Policy(every=every), slots, 16, auto=auto
        )
        self.name = self.control.plan.operators[0].name
        self.layout: Layout = Rectangles(GROUPS, (1,) * slots) if query == "theta" else Diagonal.even(GROUPS, slots)
        self.epoch = 0

    def tell(self, tuples: float, weights: Any = None, cpu: float = 0.01, seconds: float = 0.1) -> None:
        """An epoch of about so many tuples a side, split and processed in about so many seconds of a processor."""
        share = np.ones(GROUPS) if weights is None else np.asarray(weights, dtype=float)
        counts = [self.r.poisson(tuples * share / share.sum()).tolist() for _ in range(2)]
        load = GroupLoad([counts[0], counts[1]], [[HeavyKey(7, max(counts[0]), "7")], []])
        tasks = self.control.splitters.count if self.control.splitters else self.control.active
        each = cpu * self.r.lognormal(0.0, 0.5, tasks) / tasks
        slots = self.control.active
        busy = np.minimum(cpu * self.r.lognormal(0.0, 0.5, slots) / slots, seconds).tolist()
        held = [float(self.r.poisson(4 * tuples)) for _ in range(2)]
        split = SplitLoad(tasks, 2 * tuples, 50 * tuples, float(each.sum()), float(each.max()))
        self.control.observe({self.name: [load]}, {self.name: held}, busy, seconds, split)
        if self.control.due(self.epoch):
            self.control.reorganise(self.epoch, GROUPS, {self.name: self.layout})
        self.layout = self.control.layouts.get(self.name, self.layout)
        self.epoch += 1

    @property
    def kinds(self) -> list[str]:
        return [decision.kind for decision in self.control.history]

    @property
    def expected(self) -> list[float]:
        return [d.predicted for d in self.control.history if d.kind in ("move", "shape", "splitters")]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("tuples", [5, 300, 3_000])
@pytest.mark.parametrize("slots", [2, 4])
def test_chance_decides_nothing(query: str, tuples: int, slots: int) -> None:
    for seed in range(10):
        small = Small(query, slots, seed)
        for _ in range(40):
            small.tell(tuples, cpu=0.02)
        assert small.kinds in ([], ["shape"]), small.control.history  # a shape is chosen once, when rates are known


@pytest.mark.parametrize("auto", [False, True])
def test_the_number_of_splitters_and_slots_does_not_swing(auto: bool) -> None:
    for seed in range(20):
        small = Small("aggregate-1", 4, seed, auto=auto, every=5)
        for epoch in range(100):
            small.tell(3_000, cpu=4.0 if epoch == 0 else 0.1, seconds=0.1)  # the first epoch imports and compiles
        for kind in ("slots", "splitters"):
            changes = [d.change.split(" to ") for d in small.control.history if d.kind == kind]
            steps = [int(after.split()[0]) - int(before.split()[0]) for before, after in changes]
            assert not any(a * b < 0 for a, b in pairwise(steps)), small.control.history
        assert auto or not small.kinds, small.control.history


def test_skewed_groups_move_once_and_for_a_gain() -> None:
    """The load of groups differs by chance from epoch to epoch; nothing moves for what cannot be seen."""
    for seed in range(30):
        small = Small("aggregate-1", 4, seed)
        weights = small.r.pareto(1.5, GROUPS) + 0.1
        for _ in range(40):
            small.tell(1_000, weights)
        assert all(share <= 1 - Policy().worth for share in small.expected), small.control.history
        assert small.kinds.count("move") <= 3, small.control.history


def test_real_gains_are_taken() -> None:
    skewed = Small("aggregate-1", 4, 0)
    for _ in range(10):
        skewed.tell(3_000, [9.0 if group < 16 else 1.0 for group in range(GROUPS)])
    assert "move" in skewed.kinds and isinstance(skewed.layout, Diagonal)
    hot = Small("join-1", 4, 0)
    for _ in range(10):
        hot.tell(3_000, [200.0] + [1.0] * (GROUPS - 1))
    assert "split" in hot.kinds
    slow = Small("theta", 4, 0)
    slow.layout = Rectangles(GROUPS, (1, 1, 1, 1))
    for _ in range(10):
        slow.tell(3_000)
    assert "shape" in slow.kinds
    long = Small("aggregate-1", 4, 0, auto=True)
    for _ in range(10):
        long.tell(3_000, cpu=20.0, seconds=5.0)
    assert "slots" in long.kinds
    reading = Small("aggregate-1", 8, 0)
    reading.control.splitters = None
    reading.tell(3_000, cpu=8.0)
    reading.control.splitting = SplitLoad(2, 1e6, 1e9, 8.0, 4.0)
    reading.control.splitters = None
    assert [d.kind for d in reading.control.proposals(99, GROUPS, {})] == ["splitters"]


def test_many_small_groups_move_in_steps_though_no_step_shows_much() -> None:
    """The whole rebalancing is worth it; at most `moves` groups move at once."""
    small = Small("aggregate-1", 2, 0)
    small.control.policy = Policy(every=1, moves=2)
    small.layout = Diagonal((0,) * 48 + (1,) * 16, 2)
    for _ in range(20):
        small.tell(20_000)
    assert isinstance(small.layout, Diagonal)
    assert small.kinds.count("move") > 3 and abs(small.layout.owner.count(0) - 32) <= 4


def test_slots_are_added_so_that_it_shows() -> None:
    assert [gain.fewest_added_slots(slots, 0.1) for slots in (1, 9, 10, 18, 19, 90)] == [1, 1, 2, 2, 3, 10]
    for slots in range(1, 200):
        more = gain.fewest_added_slots(slots, 0.1)
        assert slots / (slots + more) <= 0.9 + 1e-9 and (more == 1 or slots / (slots + more - 1) > 0.9)
