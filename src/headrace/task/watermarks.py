"""Watermarks of sources and operators.

    watermark of a source                  =  the largest `ts` accepted so far - lateness
    watermark of a source with partitions  =  the smallest of the largest `ts` of its partitions - lateness

So no tuple is late because one partition is ahead of another. A partition without any tuple keeps the watermark from
advancing; an idle partition does not. The watermark of an idle source follows the sources that its tuples are combined
with (`_reached`). When the source delivers tuples again, its watermark continues from there by its own tuples. The
watermark of an operator follows from those of its inputs (`operator_watermarks`).

Invariant: all of this is a pure function of (plan, clocks before the epoch, times seen in the epoch). So the driver and
every slot compute the same watermarks, without a wall clock.
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
    partitions: Mapping[str, PartitionClock] = field(default_factory=dict)  # empty: the source has no partitions

    @staticmethod
    def of(source: SourceState | None) -> SourceClock:
        """Return the clock of a source as a manifest has it; None: no tuple has arrived yet."""
        if source is None:
            return SourceClock()
        parts = {name: PartitionClock(part.largest, part.idle) for name, part in source.partitions.items()}
        return SourceClock(source.largest, source.watermark, source.idle, parts)

    def with_partitions(self, names: Collection[str]) -> SourceClock:
        """Add partitions. A new one holds the watermark where it is until it delivers a tuple or becomes idle."""
        new = {name: PartitionClock() for name in names if name not in self.partitions}
        return replace(self, partitions={**self.partitions, **new}, idle=self.idle and not new) if new else self

    def silenced(self, quiet: Collection[str]) -> SourceClock:
        """Mark partitions as idle. The source is idle if all of its partitions are."""
        parts = {name: part._replace(idle=part.idle or name in quiet) for name, part in self.partitions.items()}
        return replace(self, partitions=parts, idle=all(part.idle for part in parts.values()))


def merge_times(seen: Seen, more: Mapping[str, PartitionTimes]) -> None:
    """Add the partition times of another task to `seen`."""
    for source, times in more.items():
        mine = seen.setdefault(source, {})
        for partition, largest in times.items():
            known = [ts for ts in (mine.get(partition), largest) if ts is not None]
            mine[partition] = max(known, default=None)


def merge_split_times(split_times: SplitTimes, more: Mapping[str, int]) -> None:
    """Add the split times of another task to `split_times`."""
    for split, ts in more.items():
        split_times[split] = max(ts, split_times.get(split, ts))


def advance_clocks(
    plan: p.PhysicalPlan,
    clocks: Mapping[str, SourceClock],
    seen: Mapping[str, PartitionTimes],
    *,
    ended: Collection[str] = (),
) -> dict[str, SourceClock]:
    """Return the clocks after an epoch with the partition times `seen`. A source that delivered a tuple is not idle.

    ended: sources that deliver no more tuples. Their watermark becomes `FOREVER`.
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
    """Return the largest `ts` of the slowest partition that is not idle. If all are idle, the fastest counts."""
    times = [NEVER if part.largest is None else part.largest for part in parts if not part.idle]
    return min(times) if times else max(NEVER if part.largest is None else part.largest for part in parts)


def _reached(plan: p.PhysicalPlan, source: str, standing: Mapping[str, SourceClock]) -> Iterator[int]:
    """Yield the watermark, without this source, of every input that the source enters."""
    above = sources_upstream(plan)
    for operator in plan.operators:
        for side in range(len(operator.schemas)):
            beside = {name for edge in plan.entering(operator.name, side) for name in above[edge.producer]}
            if source in beside:
                yield _pace([beside, above[operator.name]], standing)


def _pace(nearest_first: Sequence[Collection[str]], standing: Mapping[str, SourceClock]) -> int:
    """Return the smallest watermark of the first set that has a source that is not idle.

    If all sources are idle, return the largest watermark of the last set.
    """
    for names in nearest_first:
        if awake := [standing[n].watermark for n in names if n in standing and not standing[n].idle]:
            return min(awake)
    return max(standing[n].watermark for n in nearest_first[-1] if n in standing)


def accepts_until(clock: SourceClock, lateness: int, ahead: int | None) -> int:
    """Return the largest time that is accepted: `ahead` after the largest accepted so far, or after the watermark + lateness."""
    if ahead is None or clock.largest is None:
        return FURTHEST
    return min(max(clock.watermark + lateness, clock.largest) + ahead, FURTHEST)


def sources_upstream(plan: p.PhysicalPlan) -> dict[str, set[str]]:
    """Return the sources upstream of every producer."""
    found = {s.name: {s.name} for s in plan.sources}
    for operator in plan.operators:
        edges = [e for e in plan.edges if e.target == operator.name]
        found[operator.name] = set().union(*(found[e.producer] for e in edges))
    return found


def arrival_clocks(clocks: Mapping[str, SourceClock]) -> dict[str, SourceClock]:
    """Return clocks without lateness. Best effort trims windows by them."""
    return {
        name: clock
        if clock.largest is None
        else SourceClock(clock.largest, max(clock.largest, clock.watermark), clock.idle)
        for name, clock in clocks.items()
    }


def operator_watermarks(plan: p.PhysicalPlan, clocks: Mapping[str, SourceClock]) -> Reached:
    """Return the watermark of every output of sources and operators."""
    found = {(name, 0): clock.watermark for name, clock in clocks.items()}
    for operator in plan.operators:
        inputs = input_watermarks(plan, operator, found)
        for output in {edge.output for edge in plan.edges if edge.producer == operator.name}:
            found[operator.name, output] = operator.watermark_of(output, inputs)
    return found


def check_best_effort(plan: p.PhysicalPlan) -> None:
    """Raise if best effort would make results of an operator wrong."""
    for operator in plan.operators:
        if operator.only_exact:
            raise QueryError(
                f"best effort may miss a partner, and {operator.summary} would then report that there is none;"
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
    """Return the watermark of each input of an operator: the smallest of the streams that are united there."""
    return [
        min(producers[edge.producer, edge.output] for edge in plan.entering(operator.name, side))
        for side in range(len(operator.schemas))
    ]
