"""The load data of the controller: tuples sent to the groups of an operator, and its heavy keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class HeavyKey(NamedTuple):
    """A key with a notable share of the tuples of a block, estimated from a sample."""

    hash: int
    tuples: int  # estimated
    text: str  # the key as readable text


class NumbersOfBlock(NamedTuple):
    """A sample of the numbers of a block that is sorted by them."""

    rows: int
    extent: float  # length of its longest interval
    sample: list[float]  # equally far apart in the block, ascending


@dataclass
class GroupLoad:
    """The tuples that one task sent to one operator, by side; two sides, or more if the task sent tuples to more."""

    new: list[list[int]] = field(default_factory=lambda: [[], []])  # tuples by group; empty: no tuples on that side
    heavy: list[list[HeavyKey]] = field(default_factory=lambda: [[], []])
    numbers: list[list[NumbersOfBlock]] = field(default_factory=lambda: [[], []])  # of state sorted by a number

    def add(self, side: int, counts: Sequence[int], heavy: Iterable[HeavyKey] = ()) -> None:
        while len(self.new) <= side:
            self.new.append([])
            self.heavy.append([])
        known = self.new[side]
        self.new[side] = [a + b for a, b in zip(known, counts, strict=True)] if known else list(counts)
        self.heavy[side] += heavy

    def of_side(self, side: int) -> tuple[list[int], list[HeavyKey]]:
        """Return the tuples by group and the heavy keys of one side."""
        return (self.new[side], self.heavy[side]) if side < len(self.new) else ([], [])

    def to_json(self) -> Any:
        return [self.new, self.heavy, self.numbers]

    @staticmethod
    def from_json(data: Any) -> GroupLoad:
        new, heavy, numbers = data
        return GroupLoad(
            new,
            [[HeavyKey(*key) for key in keys] for keys in heavy],
            [[NumbersOfBlock(*block) for block in blocks] for blocks in numbers],
        )
