"""How many expressways so many cores would bear, from what the epochs of a rating took.

    an epoch of n tuples takes      fixed + n (shared · measured cores / cores + alone)

shared is what tasks compute: the cores divide it. fixed and alone, which are Spark's exchange, commit and delivery, stay as they are.
An epoch has whole seconds of traffic. With k seconds in each, epochs must take no more than k seconds, or they fall behind; and a
tuple waits k seconds until the last of its epoch is there, and then for the epoch, which may be one of the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace_linearroad.generating.demand import FULL
from headrace_linearroad.rating.responses import LIMITS

OF_TASKS = ("reading", "operators")  # phases that the cores divide among them
COLD, STEADY = 5, 10  # epochs at the beginning that say nothing, and how many it needs at least behind them


@dataclass(frozen=True)
class Model:
    fixed: float  # seconds of an epoch
    shared: float  # seconds for each tuple, on the cores it was measured with
    alone: float
    unsteady: float  # what the slowest hundredth of epochs takes, by what the model says
    cores: int

    def per_tuple(self, cores: int) -> float:
        return self.shared * self.cores / cores + self.alone

    def epoch(self, tuples: float, cores: int) -> float:
        """Seconds that one takes."""
        return self.fixed + tuples * self.per_tuple(cores)

    def bears(self, cores: int, density: float = FULL) -> float:
        """Expressways of so many tuples per second, within the shortest limit."""
        limit = int(min(LIMITS.values()))
        rates = [
            (min(k, (limit - k) / self.unsteady) - self.fixed) / k / self.per_tuple(cores) for k in range(1, limit)
        ]
        return max(0.0, *rates) / density


def fitted(trials: Sequence[Mapping[str, Any]], cores: int) -> Model | None:
    """By least squares over the epochs of some trials while the clock ran, or, if these are all alike, over all of them: those of a
    warm-up are larger. None if there are too few."""
    known = [e for trial in trials for e in trial.get("epochs", ())[COLD:] if e["tuples"] and e["phases"]]
    rated = [epoch for epoch in known if epoch["at"] > 0]
    epochs = rated if _differ(rated) else known
    if not _differ(epochs):
        return None
    tuples = np.array([epoch["tuples"] for epoch in epochs], float)
    tasks = np.array([sum(epoch["phases"][name] for name in OF_TASKS) for epoch in epochs])
    took = np.array([epoch["seconds"] for epoch in epochs])
    (shared, begins), (alone, waits) = _line(tuples, tasks), _line(tuples, took - tasks)
    said = begins + waits + (shared + alone) * tuples
    if begins + waits <= 0 or shared <= 0 or said.min() <= 0:
        return None
    return Model(begins + waits, shared, max(alone, 0.0), float(np.quantile(took / said, 0.99)), cores)


def _differ(epochs: Sequence[Mapping[str, Any]]) -> bool:
    """Enough of them, in number and in what they hold, for a line."""
    sizes = [epoch["tuples"] for epoch in epochs]
    return len(sizes) >= STEADY and max(sizes) >= 1.2 * min(sizes)


def _line(xs: np.ndarray[Any, Any], ys: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Slope, and where it begins."""
    slope, begin = np.polyfit(xs, ys, 1)
    return float(slope), float(begin)
