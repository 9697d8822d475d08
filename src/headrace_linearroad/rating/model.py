"""A model of the expressways that a number of cores can serve, fitted to the epochs of a rating.

    an epoch of n tuples takes      fixed + n (shared · measured cores / cores + alone)

`shared` is the work of tasks, which the cores divide. `fixed` and `alone` (Spark's exchange, commit and delivery) do
not depend on the cores. An epoch has k whole seconds of traffic. It must take at most k seconds, otherwise the run
falls behind. A tuple waits up to k seconds for the rest of its epoch, and then for the epoch itself, which may be one
of the slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace_linearroad.generating.demand import FULL
from headrace_linearroad.rating.responses import LIMITS

OF_TASKS = ("reading", "operators")  # phases that the cores divide
COLD, STEADY = 5, 10  # epochs at the beginning to ignore, and the minimum number of epochs after them


@dataclass(frozen=True)
class Model:
    fixed: float  # seconds per epoch
    shared: float  # seconds per tuple, on `cores` cores
    alone: float  # seconds per tuple, on any number of cores
    unsteady: float  # the 99th percentile of an epoch's measured time divided by the model's
    cores: int  # cores of the measurement

    def per_tuple(self, cores: int) -> float:
        return self.shared * self.cores / cores + self.alone

    def epoch(self, tuples: float, cores: int) -> float:
        """Return the seconds of an epoch."""
        return self.fixed + tuples * self.per_tuple(cores)

    def bears(self, cores: int, density: float = FULL) -> float:
        """Return the number of expressways, of `density` tuples per second each, within the shortest limit."""
        limit = int(min(LIMITS.values()))
        rates = [
            (min(k, (limit - k) / self.unsteady) - self.fixed) / k / self.per_tuple(cores) for k in range(1, limit)
        ]
        return max(0.0, *rates) / density


def fitted(trials: Sequence[Mapping[str, Any]], cores: int) -> Model | None:
    """Fit the model to the epochs of some trials by least squares. Return None if there are too few.

    The rated epochs are used if their sizes differ enough, otherwise also those of the warm-up, which are larger.
    """
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
    """Return whether there are enough epochs, of different enough sizes, to fit a line."""
    sizes = [epoch["tuples"] for epoch in epochs]
    return len(sizes) >= STEADY and max(sizes) >= 1.2 * min(sizes)


def _line(xs: np.ndarray[Any, Any], ys: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Return slope and intercept."""
    slope, begin = np.polyfit(xs, ys, 1)
    return float(slope), float(begin)
