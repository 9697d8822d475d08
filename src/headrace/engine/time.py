"""Watermarks: how far the event time of every stream has surely come.

W of a source after an epoch = the largest `ts` accepted so far minus the source's lateness. W of an operator follows
from its inputs by `operator_watermarks`. All of it is a pure function of (plan, clocks before, largest ts of this
epoch), so the driver and every slot come to the same answer, and none of them looks at a wall clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.compile import plan as p

NEVER, FOREVER = -(2**62), 2**62
FURTHEST = 2**61  # event times beyond this (some 73,000 years) are rejected


@dataclass(frozen=True)
class Clock:
    """A source's time after an epoch: the largest `ts` accepted (None: nothing yet), watermark, and whether idle."""

    largest: int | None = None
    watermark: int = NEVER
    idle: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"largest": self.largest, "watermark": self.watermark, "idle": self.idle}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Clock:
        return Clock(data["largest"], data["watermark"], data["idle"])


def minus(watermark: int, length: int) -> int:
    """A watermark moved back; the two ends of time stay where they are."""
    return watermark if watermark in (NEVER, FOREVER) else watermark - length


def advance(
    plan: p.Plan, clocks: Mapping[str, Clock], seen: Mapping[str, int], *, ended: Collection[str] = ()
) -> dict[str, Clock]:
    """The clocks after an epoch in which each source delivered tuples up to `seen[source]`.

    Nothing more comes from the sources in `ended`: theirs stand at the end of time.
    """
    moved = {s.name: _moved(clocks[s.name], seen.get(s.name), s.lateness) for s in plan.sources}
    standing = {name: clock.watermark for name, clock in moved.items() if name not in ended}
    for name, clock in moved.items():
        if name in ended:
            moved[name] = Clock(clock.largest, FOREVER)
        elif clock.idle:
            reached = [standing[peer] for peer in peers(plan, name) if peer in standing]
            moved[name] = Clock(clock.largest, max([clock.watermark, *reached]), idle=True)
    return moved


def _moved(clock: Clock, seen: int | None, lateness: int) -> Clock:
    if seen is None:
        return clock
    largest = seen if clock.largest is None else max(seen, clock.largest)
    return Clock(largest, max(clock.watermark, largest - lateness), idle=False)


def peers(plan: p.Plan, source: str) -> set[str]:
    """The sources that meet this one in some operator."""
    found: set[str] = set()
    above = upstream(plan)
    for operator in plan.operators:
        if source in above[operator.name]:
            found |= above[operator.name]
    return found - {source}


def upstream(plan: p.Plan) -> dict[str, set[str]]:
    """The sources behind every producer."""
    found = {s.name: {s.name} for s in plan.sources}
    for operator in plan.operators:
        edges = [e for e in plan.edges if e.target == operator.name]
        found[operator.name] = set().union(*(found[e.producer] for e in edges))
    return found


def arrivals(clocks: Mapping[str, Clock]) -> dict[str, Clock]:
    """Clocks as if nothing could come late: what best effort trims windows by."""
    return {
        name: clock if clock.largest is None else Clock(clock.largest, max(clock.largest, clock.watermark), clock.idle)
        for name, clock in clocks.items()
    }


def operator_watermarks(plan: p.Plan, clocks: Mapping[str, Clock]) -> dict[str, int]:
    """Watermark of every producer: sources and operators."""
    found = {name: clock.watermark for name, clock in clocks.items()}
    for operator in plan.operators:
        found[operator.name] = _output(operator, input_watermarks(plan, operator, found))
    return found


def input_watermarks(plan: p.Plan, operator: p.Operator, producers: Mapping[str, int]) -> list[int]:
    """Watermark of each input of an operator: the smallest of the flows that are united there."""
    return [
        min(producers[edge.producer] for edge in plan.entering(operator.name, side))
        for side in range(len(operator.schemas))
    ]


def _output(operator: p.Operator, inputs: list[int]) -> int:
    if isinstance(operator, p.TimeJoinOperator):
        return min(minus(inputs[0], operator.w2), minus(inputs[1], operator.w1))
    if isinstance(operator, p.PaneAggregateOperator | p.TupleAggregateOperator):
        return minus(inputs[0], operator.window)
    return min(inputs)


def keep_from(operator: p.Operator, inputs: list[int], extra: Mapping[str, Any]) -> list[int]:
    """Per input, the smallest position that a tuple still to come can need; state below it has expired."""
    if isinstance(operator, p.TimeJoinOperator):
        return [minus(inputs[1], operator.w1), minus(inputs[0], operator.w2)]
    if isinstance(operator, p.PaneAggregateOperator | p.TupleAggregateOperator):
        return [_first_open(inputs[0], operator.window, operator.every)]
    if isinstance(operator, p.CountJoinOperator):
        totals = extra.get("given", [0, 0])
        done = min(inputs) == FOREVER
        return [FOREVER if done else totals[0] - operator.n1, FOREVER if done else totals[1] - operator.n2]
    return [NEVER] * len(inputs)


def _first_open(watermark: int, window: int, every: int) -> int:
    """Start of the first window that is not closed: position t is in an open window iff t >= this."""
    if watermark in (NEVER, FOREVER):
        return watermark
    return ((watermark - window) // every + 1) * every
