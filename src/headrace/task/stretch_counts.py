"""Counts of the tuples that tasks send to operators by stretch of event time (`headrace.routing.by_time`).

A task counts what it sends. Its goodbye carries the counts to all slots of the next stage, which pass on those for later
stages. Invariant: counts are kept by sender, so counts that arrive on several ways are added once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

Counts = dict[str, list[list[int]]]  # by sender: for each input, the tuples by stretch


@dataclass
class StretchCounts:
    """The counts of senders, by operator."""

    of: dict[str, Counts] = field(default_factory=dict)

    def count(self, operator: str, sender: str, side: int, tuples: Sequence[int]) -> None:
        """Count tuples that a sender sends to an input of an operator, by stretch."""
        known = self.of.setdefault(operator, {}).setdefault(sender, [[], []])
        known[side] = [a + b for a, b in zip(known[side], tuples, strict=True)] if known[side] else list(tuples)

    def merge(self, other: StretchCounts) -> None:
        """Add the counts of other senders."""
        for operator, counts in other.of.items():
            self.of.setdefault(operator, {}).update(counts)

    def only(self, operators: Collection[str]) -> StretchCounts:
        """Return the counts for some operators."""
        return StretchCounts({name: counts for name, counts in self.of.items() if name in operators})

    def before(self, operator: str, side: int, stretch: int) -> int:
        """Return how many tuples were sent to the stretches before a stretch."""
        return sum(sum(sides[side][:stretch]) for sides in self.of.get(operator, {}).values())

    def to_json(self) -> Any:
        return self.of

    @staticmethod
    def from_json(data: Any) -> StretchCounts:
        return StretchCounts(data)
