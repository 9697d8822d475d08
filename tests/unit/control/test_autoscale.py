"""Slots follow the load, one step at a time, and do not swing."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from headrace.control.autoscale import Autoscaler


def follow(loads: list[float], limit: int = 16, noise: float = 0.0) -> list[int]:
    """Active slots over reorganisations for loads in slots' worth of work."""
    r, degree, slots, found = random.Random(3), Autoscaler(), 1, []
    for load in loads:
        occupancy = [min(load / slots * r.uniform(1 - noise, 1 + noise), 1.0) for _ in range(slots)]
        step, _ = degree.step(occupancy, 0.7, 0.4, 0.5, limit)
        assert step in (-1, 0, 1)
        slots += step
        found.append(slots)
    return found


def reversals(slots: list[int]) -> int:
    steps = [b - a for a, b in pairwise(slots) if b != a]
    return sum(a * b < 0 for a, b in pairwise(steps))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_ramp_up_and_down_is_followed_with_one_reversal(noise: float) -> None:
    up = [0.5 * 8 ** (i / 30) for i in range(31)]
    slots = follow([*up, *[4.0] * 10, *up[::-1], *[0.5] * 20], noise=noise)
    assert max(slots) >= 6 and slots[-1] <= 2
    assert reversals(slots) <= 1


def test_a_steady_load_changes_nothing_for_long() -> None:
    slots = follow([2.0] * 200, noise=0.1)
    assert len(set(slots[20:])) == 1


def test_never_beyond_the_limit_nor_below_one() -> None:
    assert max(follow([50.0] * 30, limit=5)) == 5
    assert min(follow([0.0] * 30)) == 1
    step, why = Autoscaler().step([1.0], 0.7, 0.4, 0.5, 1)
    assert step == 0 and "the limit of 1 slots is reached" in why
