"""The keys of tuples: skewed by the b-model, uniform, or with a share of them on a hot key that changes.

The b-model is the 80/20 law at every scale. Halve the range of keys: the lower half gets the share b of the tuples.
Halve each half again in the same way, down to single keys. An odd range gives its lower half one key more. Key 0 is the
most frequent, with about b ** log2(count) of all tuples.

Streams of one seed have the same frequent keys and, at the same time, the same hot key, whatever their names, so
frequent keys match in a join of two such streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace_demo.workloads.checks import microseconds, share, whole

COUNT = 10_000_000  # number of keys, as in the paper on windowed joins on clusters
MOST = 2**62
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Uniform:
    """Keys 0 to count - 1, all equally frequent."""

    count: int = COUNT

    def __post_init__(self) -> None:
        whole(self.count, "the number of keys", 1, MOST)

    def draw(self, rng: np.random.Generator, size: int) -> Ints:
        return rng.integers(0, self.count, size)


@dataclass(frozen=True)
class BModel:
    """Keys 0 to count - 1. The lower half gets the share `bias` of the tuples, and the same applies within each half."""

    bias: float = 0.7
    count: int = COUNT

    def __post_init__(self) -> None:
        share(self.bias, "the bias of the b-model", 0.5)
        whole(self.count, "the number of keys", 1, MOST)

    def draw(self, rng: np.random.Generator, size: int) -> Ints:
        low = np.zeros(size, np.int64)
        left = np.full(size, self.count, np.int64)  # number of keys in the current range of each tuple
        for _ in range((self.count - 1).bit_length()):
            lower = left - left // 2
            above = (rng.random(size) >= self.bias) & (left > 1)
            low += np.where(above, lower, 0)
            left = np.where(above, left - lower, lower)
        return low


Keys = Uniform | BModel


@dataclass(frozen=True)
class Hot:
    """The share of all tuples that have one hot key, which changes every `every` seconds (None: never)."""

    share: float
    every: float | None = None

    def __post_init__(self) -> None:
        share(self.share, "the share of the hot key", 0)
        if self.every is not None:
            microseconds(self.every, "the time between moves of the hot key")

    def turn(self, at: Ints) -> Ints:
        """Return how often the hot key has changed by then, in microseconds after the beginning."""
        if self.every is None:
            return np.zeros_like(at)
        return at // microseconds(self.every, "every")


def hot_keys(rng: np.random.Generator, turns: Ints, count: int) -> Ints:
    """Return the hot key of each turn. Its steps are coprime to the count, so it visits every key."""
    first, step = int(rng.integers(0, count)), int(rng.integers(1, count))
    while math.gcd(step, count) > 1:
        step += 1
    distinct, which = np.unique(turns, return_inverse=True)
    keys = [(first + int(turn) * step) % count for turn in distinct]
    return np.array(keys, np.int64)[which]
