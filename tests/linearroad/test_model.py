"""What other numbers of cores would bear, by the model: held against a run that is played through second by second."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headrace_linearroad.rating.model import Model, fitted

LINE = Model(fixed=0.15, shared=0.5e-6, alone=0.1e-6, unsteady=1.0, cores=2)


def epochs(model: Model, sizes: list[int], at: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "at": at,
            "tuples": n,
            "seconds": model.fixed + n * (model.shared + model.alone),
            "phases": {"reading": 0.02 + n * model.shared / 4, "operators": 0.03 + n * model.shared * 3 / 4},
        }
        for n in sizes
    ]


def worst(model: Model, cores: int, expressways: float, speed: float = 1700) -> float:
    """The longest response of ten minutes: an epoch takes the seconds that are there."""
    now, taken, longest = 0.0, 0, 0.0
    while taken < 600:
        now = max(now, taken + 1.0)
        there = int(now) - taken
        now += model.epoch(there * expressways * speed, cores)
        longest = max(longest, now - taken)
        taken += there
    return longest


def test_a_line_is_found_again() -> None:
    cold = [{"at": 1.0, "tuples": 10**9, "seconds": 1.0, "phases": {"reading": 0.1, "operators": 0.2}}] * 5
    trial = {"epochs": [*cold, *epochs(LINE, list(range(100_000, 2_000_000, 90_000)))]}
    found = fitted([trial, {"given_up": "nothing of it is known"}], 2)
    assert found is not None
    assert (found.fixed, found.shared, found.alone) == pytest.approx((LINE.fixed, LINE.shared, LINE.alone))
    assert found.unsteady == pytest.approx(1.0)


@pytest.mark.parametrize(("cores", "fixed"), [*itertools.product((1, 2, 4, 8), (0.05, 0.4, 0.9))])
def test_what_is_said_to_hold_holds_when_it_is_played_through(cores: int, fixed: float) -> None:
    model = Model(fixed, LINE.shared, LINE.alone, 1.0, 2)
    said = model.bears(cores)
    assert worst(model, cores, 0.98 * said) <= 5
    assert worst(model, cores, 1.3 * said) > 5


def test_a_warm_up_counts_where_all_rated_epochs_are_alike() -> None:
    slow = Model(0.3, 1e-6, 1e-6, 1.0, 2)
    before = epochs(slow, [100_000] * 5 + list(range(1_000_000, 2_000_000, 50_000)), at=-1.0)
    found = fitted([{"epochs": [*before, *epochs(slow, [800_000] * 20)]}], 2)
    assert found is not None and found.shared == pytest.approx(1e-6)
    rated = epochs(LINE, [800_000, 1_600_000] * 20)
    found = fitted([{"epochs": [*before, *rated]}], 2)
    assert found is not None and found.shared == pytest.approx(LINE.shared)


def test_more_cores_divide_only_what_they_can() -> None:
    assert LINE.bears(2) < LINE.bears(4) < 2 * LINE.bears(2)
    assert LINE.bears(10**9) == pytest.approx((2 - 0.15) / 2 / 0.1e-6 / 1700)


def test_too_few_epochs_or_all_alike_say_nothing() -> None:
    assert fitted([], 2) is None
    assert fitted([{"epochs": epochs(LINE, [400_000, 800_000] * 3)}], 2) is None
    assert fitted([{"epochs": epochs(LINE, [400_000] * 100)}], 2) is None
