"""Watermarks: how far the event time of every stream has surely come.

W of a source after an epoch = the largest `ts` accepted so far minus the source's lateness. A source of several partitions,
each in an order of its own, goes by the slowest of them: W = the smallest of their largest `ts` minus the lateness, so that
how partitions are ahead of each other makes no tuple late. One that has had no tuple yet holds W where it is; one that is
idle holds nothing back. A source that is idle goes along with those it meets (`_reached`); once it speaks again it goes by
its own tuples, from where it was taken to. W of an
operator follows from its inputs by `operator_watermarks`. All of it is a pure function of (plan, clocks before, what was
seen in this epoch), so the driver and every slot come to the same answer, and none of them looks at a wall clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace import plan as p
from headrace.errors import EngineError, QueryError
from headrace.operators.base import Operator
from headrace.sources.protocol import UNPARTITIONED
from headrace.state.manifest import SourceState
from headrace.support.event_time import FOREVER, FURTHEST, NEVER, move_back

SplitTimes = dict[str, int]  # by split: the largest `ts` that it has sent to substreams
Reached = Mapping[tuple[str, int], int]  # by producer and output: its watermark
PartitionTimes = Mapping[
    str, int | None
]  # by partition: the largest `ts` accepted in an epoch; None: all tuples were late
Seen = dict[str, dict[str, int | None]]  # partition times by source


class PartitionClock(NamedTuple):
    """A partition's time after an epoch: the largest `ts` accepted of it (None: nothing yet), and whether it is idle."""

    largest: int | None = None
    idle: bool = False

    def spoke(self, largest: int | None) -> PartitionClock:
        return PartitionClock(max((ts for ts in (self.largest, largest) if ts is not None), default=None), idle=False)


@dataclass(frozen=True)
class SourceClock:
    """A source's time after an epoch: the largest `ts` accepted (None: nothing yet), watermark, and whether idle."""

    largest: int | None = None
    watermark: int = NEVER
    idle: bool = False
    partitions: Mapping[str, PartitionClock] = field(default_factory=dict)  # none: the source is one

    @staticmethod
    def of(source: SourceState | None) -> SourceClock:
        """As a manifest has it; None: nothing has come yet."""
        if source is None:
            return SourceClock()
        parts = {name: PartitionClock(part.largest, part.idle) for name, part in source.partitions.items()}
        return SourceClock(source.largest, source.watermark, source.idle, parts)

    def with_partitions(self, names: Collection[str]) -> SourceClock:
        """With those too; one that is new begins at the watermark, which it holds until it speaks or is idle."""
        new = {name: PartitionClock() for name in names if name not in self.partitions}
        return replace(self, partitions={**self.partitions, **new}, idle=self.idle and not new) if new else self

    def silenced(self, quiet: Collection[str]) -> SourceClock:
        """Some partitions are taken for idle; the source is, if all of them are."""
        parts = {name: part._replace(idle=part.idle or name in quiet) for name, part in self.partitions.items()}
        return replace(self, partitions=parts, idle=all(part.idle for part in parts.values()))


def merge_times(seen: Seen, more: Mapping[str, PartitionTimes]) -> None:
    """Add to what was seen what another task saw."""
    for source, times in more.items():
        mine = seen.setdefault(source, {})
        for partition, largest in times.items():
            known = [ts for ts in (mine.get(partition), largest) if ts is not None]
            mine[partition] = max(known, default=None)


def merge_split_times(split_times: SplitTimes, more: Mapping[str, int]) -> None:
    """Add to how far splits have come what another task split."""
    for split, ts in more.items():
        split_times[split] = max(ts, split_times.get(split, ts))


def advance_clocks(
    plan: p.PhysicalPlan,
    clocks: Mapping[str, SourceClock],
    seen: Mapping[str, PartitionTimes],
    *,
    ended: Collection[str] = (),
) -> dict[str, SourceClock]:
    """The clocks after an epoch in which the sources in `seen` spoke; those that did are not idle, whatever was decided.

    Nothing more comes from the sources in `ended`: theirs stand at the end of time.
    """
    moved = {s.name: _moved(clocks[s.name], seen.get(s.name, {}), s.lateness) for s in plan.sources}
    standing = {name: clock for name, clock in moved.items() if name not in ended}
    for name, clock in moved.items():
        if name in ended:
            moved[name] = replace(clock, watermark=FOREVER, idle=False)
        elif clock.idle:
            moved[name] = replace(clock, watermark=max([clock.watermark, *_reached(plan, name, standing)]))
    return moved


def _moved(clock: SourceClock, newest: PartitionTimes, lateness: int) -> SourceClock:
    """Return the clock of a source after an epoch in which these partitions delivered tuples."""
    if not clock.partitions:
        return _spoke(clock, newest[UNPARTITIONED], lateness) if newest else clock
    parts = {name: part.spoke(newest[name]) if name in newest else part for name, part in clock.partitions.items()}
    if strange := sorted(set(newest) - set(parts)):
        raise EngineError(f"received tuples from unknown partitions {strange}; nothing was committed")
    times = [part.largest for part in parts.values() if part.largest is not None]
    return SourceClock(
        max(times, default=None),
        max(clock.watermark, move_back(_slowest(list(parts.values())), lateness)),
        all(part.idle for part in parts.values()),
        parts,
    )


def _spoke(clock: SourceClock, largest: int | None, lateness: int) -> SourceClock:
    if largest is None:
        return replace(clock, idle=False)
    furthest = largest if clock.largest is None else max(largest, clock.largest)
    return SourceClock(furthest, max(clock.watermark, furthest - lateness), idle=False)


def _slowest(parts: Sequence[PartitionClock]) -> int:
    """How far the slowest partition is that is awake; where all are idle, none holds back the fastest."""
    times = [NEVER if part.largest is None else part.largest for part in parts if not part.idle]
    return min(times) if times else max(NEVER if part.largest is None else part.largest for part in parts)


def _reached(plan: p.PhysicalPlan, source: str, standing: Mapping[str, SourceClock]) -> Iterator[int]:
    """How far every input that this source enters has come without it."""
    above = sources_upstream(plan)
    for operator in plan.operators:
        for side in range(len(operator.schemas)):
            beside = {name for edge in plan.entering(operator.name, side) for name in above[edge.producer]}
            if source in beside:
                yield _pace([beside, above[operator.name]], standing)


def _pace(circles: Sequence[Collection[str]], standing: Mapping[str, SourceClock]) -> int:
    """The slowest in the first circle of sources in which any is awake; where all are idle, the fastest of the last."""
    for names in circles:
        if awake := [standing[n].watermark for n in names if n in standing and not standing[n].idle]:
            return min(awake)
    return max(standing[n].watermark for n in circles[-1] if n in standing)


def accepts_until(clock: SourceClock, lateness: int, ahead: int | None) -> int:
    """The largest time that is believed: `ahead` past the largest accepted, or past where the others took the source."""
    if ahead is None or clock.largest is None:
        return FURTHEST
    return min(max(clock.watermark + lateness, clock.largest) + ahead, FURTHEST)


def sources_upstream(plan: p.PhysicalPlan) -> dict[str, set[str]]:
    """The sources behind every producer."""
    found = {s.name: {s.name} for s in plan.sources}
    for operator in plan.operators:
        edges = [e for e in plan.edges if e.target == operator.name]
        found[operator.name] = set().union(*(found[e.producer] for e in edges))
    return found


def arrival_clocks(clocks: Mapping[str, SourceClock]) -> dict[str, SourceClock]:
    """Clocks as if nothing could come late: what best effort trims windows by."""
    return {
        name: clock
        if clock.largest is None
        else SourceClock(clock.largest, max(clock.largest, clock.watermark), clock.idle)
        for name, clock in clocks.items()
    }


def operator_watermarks(plan: p.PhysicalPlan, clocks: Mapping[str, SourceClock]) -> Reached:
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
                f"best effort may miss a partner, and {operator.summary} would say that there is none;"
                ' leave out order="best-effort", or how=...'
            )


def before_the_end(
    plan: p.PhysicalPlan, operator: Operator, clocks: Mapping[str, SourceClock], seen: Mapping[str, PartitionTimes]
) -> int:
    """Return the watermark of an operator's first input after an epoch as if no source had ended in it.

    It follows from all tuples, so it is the same for every cut into epochs. Sources that ended in an earlier epoch hold
    nothing back.
    """
    ended = [name for name, clock in clocks.items() if clock.watermark == FOREVER]
    going = advance_clocks(plan, clocks, seen, ended=ended)
    return input_watermarks(plan, operator, operator_watermarks(plan, going))[0]


def input_watermarks(plan: p.PhysicalPlan, operator: Operator, producers: Reached) -> list[int]:
    """Watermark of each input of an operator: the smallest of the flows that are united there."""
    return [
        min(producers[edge.producer, edge.output] for edge in plan.entering(operator.name, side))
        for side in range(len(operator.schemas))
    ]
