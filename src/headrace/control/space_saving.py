"""The Space-Saving sketch, which finds the heavy hitters of a stream.

    true count  <=  count(key)  <=  true count + error(key),      error(key) <= total / capacity

so every key with more than total / capacity of the tuples is in the sketch.
"""

from __future__ import annotations

from collections.abc import Iterable


class SpaceSavingSketch:
    """Approximate counts of the heaviest keys, with at most `capacity` keys in memory."""

    def __init__(self, capacity: int = 64) -> None:
        self.capacity = capacity
        self.total = 0.0
        self.counts: dict[int, float] = {}
        self.errors: dict[int, float] = {}

    def add(self, key: int, count: float = 1.0) -> None:
        self.total += count
        if key not in self.counts and len(self.counts) >= self.capacity:
            least = min(self.counts, key=lambda k: self.counts[k])
            taken = self.counts.pop(least)
            del self.errors[least]
            self.counts[key], self.errors[key] = taken, taken
        self.counts[key] = self.counts.get(key, 0.0) + count
        self.errors.setdefault(key, 0.0)

    def rest(self, count: float) -> None:
        """Add tuples whose keys are unknown and known not to be heavy."""
        self.total += count

    def fade(self, share: float) -> None:
        """Reduce all counts, so that keys that are no longer hot leave the sketch."""
        self.total *= share
        self.counts = {key: count * share for key, count in self.counts.items()}
        self.errors = {key: error * share for key, error in self.errors.items()}

    def heavy(self, share: float) -> Iterable[tuple[int, float]]:
        """Return the keys that certainly have at least this share of all tuples, the heaviest first."""
        sure = ((key, count - self.errors[key]) for key, count in self.counts.items())
        return sorted(((k, c) for k, c in sure if self.total and c >= share * self.total), key=lambda kc: -kc[1])
