"""What aggregates share: one input, grouped by columns, each group in one slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import pyarrow as pa

from headrace.moments import FOREVER, NEVER, minus
from headrace.operators.base import Appended, Operator, Routing
from headrace.operators.placing import Placement
from headrace.plan import Grouping, Named
from headrace.plan.columns import Names
from headrace.plan.figures import Counted, Figures, Load, Pace
from headrace.query.durations import format_duration


@dataclass(frozen=True)
class GroupedOperator(Operator):
    by: tuple[str, ...]
    functions: Named
    texts: tuple[str, ...]

    @property
    def routing(self) -> Routing:
        return Routing.KEY  # of no columns too: all tuples have one key then

    @property
    def key_words(self) -> tuple[str, ...]:
        return self.groupings[0].columns

    @property
    def band(self) -> None:
        return None

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        return replace(self, schemas=schemas)

    @property
    def takes_whole(self) -> bool:
        return False

    @property
    def may_follow(self) -> bool:
        return True

    @property
    def placement(self) -> Placement | None:
        grouping = self.groupings[0]
        placed = tuple(frozenset([name]) for name in grouping.columns)
        return Placement(self.follows or self.name, placed, grouping.types) if self.by else None

    def aligned(self, handed: Sequence[Sequence[Placement]]) -> tuple[Grouping, ...] | None:
        places = len(next(placed for side in handed for placed in side).columns)
        types_of = {placed.types for placed in handed[0]}
        names = [
            next((c for c in self.by if all(c in placed.columns[place] for placed in handed[0])), None)
            for place in range(places)
        ]
        if len(types_of) != 1 or not names or None in names:
            return None
        return (Grouping(tuple(name for name in names if name), types_of.pop()),)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def can_split(self) -> bool:
        return False

    @property
    def compares_in_loops(self) -> bool:
        return False

    @property
    def owner(self) -> str:
        return self.name

    def _words(self, window: str) -> str:
        return f"aggregate by {', '.join(self.by) or 'nothing'} {window}: {', '.join(self.texts)}"


@dataclass(frozen=True)
class WindowAggregate(GroupedOperator, Appended):
    """Over time windows [k*every, k*every + window)."""

    window: int
    every: int

    @property
    def sorted_by_hash(self) -> bool:
        return False

    def watermark(self, inputs: Sequence[int]) -> int:
        return minus(inputs[0], self.window)

    def keep_from(self, inputs: Sequence[int], ranks: Mapping[str, Any]) -> list[int]:
        """Start of the first window that is not closed: position t is in an open window iff t >= this."""
        if inputs[0] in (NEVER, FOREVER):
            return [inputs[0]]
        return [((inputs[0] - self.window) // self.every + 1) * self.every]

    @property
    def longest_window(self) -> int:
        return self.window

    @property
    def trims_by_arrival(self) -> bool:
        return False

    def load(self, inputs: Sequence[Pace], figures: Figures) -> tuple[Load, Pace]:
        rates, lag = (inputs[0].rate,), inputs[0].lag
        sending = inputs[0].rate * figures.partials.get(self.name, 1.0)
        span = max((self.window - self.every / 2) / 1e6 + lag - inputs[0].delay, 0.0)
        held = figures.held.get(self.name, sending * span)
        results = figures.results.get(self.name, sending * self.window / self.every)
        behind = lag + self.window / 1e6
        return Load(rates, (sending,), (held,), 0.0, results), Pace(results, behind, behind)

    def measured(self, counted: Counted) -> dict[str, float]:
        first, last = counted.times
        closed = last // self.every - (first - self.window) // self.every  # windows that the sample lies in
        found = {
            "results": counted.out / closed / (self.every / 1e6),
            "held": counted.held * max(self.window / 1e6 / counted.span, 1.0),
        }
        if counted.sent is not None and counted.arrived[0]:  # what is handed over inside a slot is not sent
            found["partials"] = counted.sent / counted.arrived[0]
        return found

    @property
    def words(self) -> str:
        return self._words(f"window {format_duration(self.window)} every {format_duration(self.every)}")
