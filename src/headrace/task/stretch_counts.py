"""Counts of the tuples that tasks send to operators by stretch of event time (`headrace.routing.by_time`).

A task counts what it sends, and its goodbyes carry the counts. A slot of the operator gets only the number of tuples in
earlier stretches. Counts for operators of later stages go whole to one slot of the next stage, which passes them on in the
same way. Invariant: on every way to a slot, each sender's counts are in one goodbye, so they are added once. If all slots
passed on all counts, the bytes would grow with the fourth power of the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Counts = list[list[int]]  # for each input, the tuples by stretch; empty: none


@dataclass
class StretchCounts:
    """The counts of some senders, by operator."""

    of: dict[str, Counts] = field(default_factory=dict)

    def count(self, operator: str, side: int, tuples: Sequence[int]) -> None:
        """Count tuples that are sent to an input of an operator, by stretch."""
        known = self.of.setdefault(operator, [[], []])
        known[side] = [a + b for a, b in zip(known[side], tuples, strict=True)] if known[side] else list(tuples)

    def merge(self, other: StretchCounts) -> None:
        """Add the counts of other senders."""
        for operator, sides in other.of.items():
            for side, tuples in enumerate(sides):
                if tuples:
                    self.count(operator, side, tuples)

    def before(self, operator: str, stretch: int) -> Counts:
        """Return for each input the number of tuples in the stretches before a stretch, as a single count."""
        return [[sum(tuples[: max(stretch, 0)])] if tuples else [] for tuples in self.of[operator]]

    def total(self, operator: str, side: int) -> int:
        """Return how many tuples were counted for an input of an operator."""
        return sum(self.of.get(operator, [[], []])[side])

    def to_json(self) -> Any:
        return self.of

    @staticmethod
    def from_json(data: Any) -> StretchCounts:
        return StretchCounts(data)
