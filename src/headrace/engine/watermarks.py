"""Watermarks: how far the event time of every stream has surely come.

W of a source after an epoch = the largest `ts` accepted so far minus the source's lateness. One that is idle goes along
with those it meets (`_reached`); once it speaks again it goes by its own tuples, from where it was taken to. W of an
operator follows from its inputs by `operator_watermarks`. All of it is a pure function of (plan, clocks before, what was
seen in this epoch), so the driver and every slot come to the same answer, and none of them looks at a wall clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace import plan as p
from headrace.errors import QueryError
from headrace.moments import FOREVER, FURTHEST, NEVER
from headrace.operators.base import Operator
from headrace.state.manifest import SourceState

Largest = dict[str, int]  # by split: the largest `ts` that was split
Reached = Mapping[tuple[str, int], int]  # by producer and output: its watermark
Seen = dict[str, int | None]  # sources that spoke in an epoch: the largest `ts` accepted; None: all came late


@dataclass(frozen=True)
class Clock:
    """A source's time after an epoch: the largest `ts` accepted (None: nothing yet), watermark, and whether idle."""

    largest: int | None = None
    watermark: int = NEVER
    idle: bool = False

    @staticmethod
    def of(source: SourceState | None) -> Clock:
        """As a manifest has it; None: nothing has come yet."""
        return Clock(source.largest, source.watermark, source.idle) if source else Clock()


def latest(seen: Seen, more: Mapping[str, int | None]) -> None:
    """Add to what was seen what another task saw."""
    for source, largest in more.items():
        known = [ts for ts in (seen.get(source), largest) if ts is not None]
        seen[source] = max(known, default=None)


def further(largest: Largest, more: Mapping[str, int]) -> None:
    """Add to how far splits have come what another task split."""
    for split, ts in more.items():
        largest[split] = max(ts, largest.get(split, ts))


def advance(
    plan: p.PhysicalPlan, clocks: Mapping[str, Clock], seen: Mapping[str, int | None], *, ended: Collection[str] = ()
) -> dict[str, Clock]:
    """The clocks after an epoch in which the sources in `seen` spoke; those that did are not idle, whatever was decided.

    Nothing more comes from the sources in `ended`: theirs stand at the end of time.
    """
    moved = {
        s.name: _moved(clocks[s.name], seen[s.name], s.lateness) if s.name in seen else clocks[s.name]
        for s in plan.sources
    }
    standing = {name: clock for name, clock in moved.items() if name not in ended}
    for name, clock in moved.items():
        if name in ended:
            moved[name] = Clock(clock.largest, FOREVER)
        elif clock.idle:
            moved[name] = replace(clock, watermark=max([clock.watermark, *_reached(plan, name, standing)]))
    return moved


def _moved(clock: Clock, seen: int | None, lateness: int) -> Clock:
    """The clock of a source that spoke."""
    if seen is None:
        return replace(clock, idle=False)
    largest = seen if clock.largest is None else max(seen, clock.largest)
    return Clock(largest, max(clock.watermark, largest - lateness), idle=False)


def _reached(plan: p.PhysicalPlan, source: str, standing: Mapping[str, Clock]) -> Iterator[int]:
    """How far every input that this source enters has come without it."""
    above = upstream(plan)
    for operator in plan.operators:
        for side in range(len(operator.schemas)):
            beside = {name for edge in plan.entering(operator.name, side) for name in above[edge.producer]}
            if source in beside:
                yield _pace([beside, above[operator.name]], standing)


def _pace(circles: Sequence[Collection[str]], standing: Mapping[str, Clock]) -> int:
    """The slowest in the first circle of sources in which any is awake; where all are idle, the fastest of the last."""
    for names in circles:
        if awake := [standing[n].watermark for n in names if n in standing and not standing[n].idle]:
            return min(awake)
    return max(standing[n].watermark for n in circles[-1] if n in standing)


def accepts_until(clock: Clock, lateness: int, ahead: int | None) -> int:
    """The largest time that is believed: `ahead` past the largest accepted, or past where the others took the source."""
    if ahead is None or clock.largest is None:
        return FURTHEST
    return min(clock.watermark + lateness + ahead, FURTHEST)


def upstream(plan: p.PhysicalPlan) -> dict[str, set[str]]:
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


def operator_watermarks(plan: p.PhysicalPlan, clocks: Mapping[str, Clock]) -> Reached:
    """Watermark of every producer, by its outputs: sources and operators."""
    found = {(name, 0): clock.watermark for name, clock in clocks.items()}
    for operator in plan.operators:
        inputs = input_watermarks(plan, operator, found)
        for output in {edge.output for edge in plan.edges if edge.producer == operator.name}:
            found[operator.name, output] = operator.watermark_of(output, inputs)
    return found


def check_best_effort(plan: p.PhysicalPlan) -> None:
    """Refuse what best effort would make wrong."""
    for operator in plan.operators:
        if operator.only_exact:
            raise QueryError(
                f"best effort may miss a partner, and {operator.words} would say that there is none;"
                ' leave out order="best-effort", or how=...'
            )


def furthest(plan: p.PhysicalPlan, operator: Operator, clocks: Mapping[str, Clock]) -> int:
    """How far an operator's first input can come before the end, whichever source ends last; depends on no cut."""
    found = [NEVER]
    for source in plan.sources:
        largest = clocks[source.name].largest
        if largest is not None:
            going = {s.name: Clock(watermark=FOREVER) for s in plan.sources}
            going[source.name] = Clock(largest, largest - source.lateness)
            found.append(input_watermarks(plan, operator, operator_watermarks(plan, going))[0])
    return max(reached for reached in found if reached < FOREVER)


def input_watermarks(plan: p.PhysicalPlan, operator: Operator, producers: Reached) -> list[int]:
    """Watermark of each input of an operator: the smallest of the flows that are united there."""
    return [
        min(producers[edge.producer, edge.output] for edge in plan.entering(operator.name, side))
        for side in range(len(operator.schemas))
    ]
