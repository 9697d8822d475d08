"""The state after an epoch: sections of the next manifest.

    Outcome  =  compute_outcome(last manifest, record of the epoch, reports of its tasks, places of its sources)

Invariant: the functions of this module are pure. They read nothing but their arguments, so the same arguments always
give the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace import plan as p
from headrace.errors import EngineError
from headrace.operators.base import AppendingOperator, Operator
from headrace.state import bases
from headrace.state.blocks import Block
from headrace.state.manifest import (
    Manifest,
    OperatorState,
    OutboxEntry,
    PartitionState,
    SourceState,
    TableState,
    Totals,
)
from headrace.task import watermarks
from headrace.task.epoch import Epoch
from headrace.task.reports import Report, SourceCounts
from headrace.task.state_table_groups import table_state
from headrace.task.trimmed_blocks import blocks_rewritten
from headrace.task.work import WorkCounts, WorkTotals, sum_counts

SMOOTHED_EPOCHS = 20  # epochs over which the size of the state is smoothed, because merges make it vary
Clocks = Mapping[str, watermarks.SourceClock]


@dataclass(frozen=True)
class Outcome:
    """The sections of the next manifest that follow from the reports of an epoch."""

    sources: dict[str, SourceState]
    split_times: watermarks.SplitTimes
    operators: dict[str, OperatorState]
    outbox: tuple[OutboxEntry, ...]
    totals: Totals
    work: WorkTotals
    needed_tuples: dict[str, list[float]]  # by operator: for each input, about how many tuples are still needed


def compute_outcome(
    last: Manifest | None, epoch: Epoch, reports: Sequence[Report], places: Mapping[str, str]
) -> Outcome:
    """Return the outcome of an epoch whose tasks agreed. places: by source, what it read in this epoch."""
    plan = epoch.plan
    seen: watermarks.Seen = {}
    split_times: watermarks.SplitTimes = dict(epoch.split_times)
    for report in reports:
        watermarks.merge_times(seen, report.seen)
        watermarks.merge_split_times(split_times, report.split_times)
    clocks = watermarks.advance_clocks(plan, epoch.clocks, seen, ended=epoch.ended)
    before = last.sources if last else {}
    sources = {
        s.name: _source(
            before.get(s.name, SourceState()),
            s.name,
            clocks[s.name],
            reports,
            places.get(s.name),
            dict.fromkeys(seen.get(s.name, {}), epoch.number),
        )
        for s in plan.sources
    }
    outbox = _outbox(reports)
    operators, needed_tuples = _operators(epoch, reports, clocks)
    totals = _totals(plan, last.totals if last else Totals(), sources, outbox, reports)
    return Outcome(
        sources, split_times, operators, outbox, totals, _work(last, epoch, reports, needed_tuples), needed_tuples
    )


# --- sources and results ---------------------------------------------------------------------------------------------


def _source(
    before: SourceState,
    name: str,
    clock: watermarks.SourceClock,
    reports: Sequence[Report],
    place: str | None,
    spoke: Mapping[str, int],
) -> SourceState:
    counted = [report.sources[name] for report in reports if name in report.sources]
    every: list[SourceState | SourceCounts] = [before, *counted]
    spoken = {partition: part.spoke for partition, part in before.partitions.items()} | dict(spoke)
    return SourceState(
        largest=clock.largest,
        smallest=min((c.smallest for c in every if c.smallest is not None), default=None),
        watermark=clock.watermark,
        idle=clock.idle,
        delivered=sum(c.delivered for c in every),
        accepted=sum(c.accepted for c in every),
        late=sum(c.late for c in every),
        rejected=sum(c.rejected for c in every),
        failed=before.failed + sum(rows for r in reports for (of, _), rows in r.failed.items() if of == name),
        place=place or before.place,
        partitions={n: PartitionState(*part, spoken.get(n)) for n, part in clock.partitions.items()},
    )


def _totals(
    plan: p.PhysicalPlan,
    before: Totals,
    sources: Mapping[str, SourceState],
    outbox: Sequence[OutboxEntry],
    reports: Sequence[Report],
) -> Totals:
    new = Counter(dict.fromkeys(plan.results, 0))
    for output in outbox:
        new[output.result] += output.content.rows
    failed = Counter(before.failed)
    for report in reports:
        failed.update({f"{source}: {words}": rows for (source, words), rows in report.failed.items()})
    return Totals(
        delivered=sum(s.delivered for s in sources.values()),
        accepted=sum(s.accepted for s in sources.values()),
        late=sum(s.late for s in sources.values()),
        rejected=sum(s.rejected for s in sources.values()),
        results={result: before.results.get(result, 0) + new[result] for result in plan.results},
        failed=dict(failed),
    )


def _outbox(reports: Sequence[Report]) -> tuple[OutboxEntry, ...]:
    """Return the outputs of all tasks in an order that does not depend on which task finished first."""
    parts = [part for report in sorted(reports, key=lambda r: r.task) for part in report.outbox]
    return tuple(OutboxEntry(part.result, number, part.content) for number, part in enumerate(parts))


def _work(
    last: Manifest | None, epoch: Epoch, reports: Sequence[Report], needed_tuples: Mapping[str, Sequence[float]]
) -> WorkTotals:
    """Return the work of all tasks since this plan began to run.

    Under another plan, counting starts again from zero, except for the counts of splits: a split belongs to the query.
    """
    plan = tuple((edge.name, edge.producer, edge.target) for edge in epoch.plan.edges)
    known = WorkTotals.of(last)
    if known is None or known.plan != plan:
        known = WorkTotals(plan, epoch.number, WorkCounts(split=known.counts.split if known else {}), {})
    share = max(1 / (epoch.number - known.since + 1), 1 / SMOOTHED_EPOCHS)
    smooth = {
        name: round(known.held.get(name, 0.0) * (1 - share) + sum(sides) * share, 1)
        for name, sides in needed_tuples.items()
    }
    return WorkTotals(plan, known.since, sum_counts([known.counts, *(r.work for r in reports)]), smooth)


# --- state -----------------------------------------------------------------------------------------------------------


def _operators(
    epoch: Epoch, reports: Sequence[Report], clocks: Clocks
) -> tuple[dict[str, OperatorState], dict[str, list[float]]]:
    """Return the state of every operator, and for each input about how many of its tuples are still needed."""
    plan = epoch.plan
    new_notes = _merged_notes(epoch, reports)
    began = watermarks.operator_watermarks(plan, epoch.clocks)
    producers = watermarks.operator_watermarks(plan, clocks)
    arrived = watermarks.operator_watermarks(plan, watermarks.arrival_clocks(clocks))
    found, needed_tuples = {}, {}
    for operator in plan.operators:
        state = epoch.state.get(operator.name)
        before = state or OperatorState(tuple(() for _ in operator.schemas), {})
        notes = new_notes.get(operator.name, before.notes)
        times = arrived if epoch.best_effort and operator.trims_by_arrival else producers
        watermarks_of = (watermarks.input_watermarks(plan, operator, each) for each in (began, producers))
        before_after = list(zip(*watermarks_of, strict=True))
        bounds = operator.keep_from(
            watermarks.input_watermarks(plan, operator, times), new_notes.get(operator.owner, {})
        )
        inputs = tuple(
            _live_blocks(operator, side, blocks, epoch, reports, bounds[side], before_after[side])
            for side, blocks in enumerate(before.inputs)
        )
        found[operator.name] = OperatorState(inputs, notes, tables_after(operator, before, epoch, reports))
        sides = zip(inputs, bounds, strict=True)
        needed_tuples[operator.name] = [sum(_needed(block, bound) for block in blocks) for blocks, bound in sides]
    return found, needed_tuples


def _merged_notes(epoch: Epoch, reports: Sequence[Report]) -> dict[str, dict[str, Any]]:
    """Return the notes after the epoch of the operators whose slots wrote notes."""
    found = {}
    for operator in epoch.plan.operators:
        of_slots = [report.notes[operator.name] for report in reports if operator.name in report.notes]
        state = epoch.state.get(operator.name)
        merged = operator.merge_notes(state.notes if state else None, of_slots)
        if of_slots or merged:
            found[operator.name] = merged
    return found


def _live_blocks(
    operator: Operator,
    side: int,
    before: Sequence[Block],
    epoch: Epoch,
    reports: Sequence[Report],
    bound: int,
    watermark_before_after: tuple[int, int],
) -> tuple[Block, ...]:
    """Return the blocks of one input that are state after an epoch.

    They are (old - merged) + results of merges + new, without blocks that the slots rewrote (`blocks_rewritten`) and
    without blocks wholly below `bound`. watermark_before_after: of the input, before and after the epoch.
    """
    if not isinstance(operator, AppendingOperator):
        return tuple(b.block for r in reports for b in r.replaced if (b.operator, b.input) == (operator.name, side))
    merges = [m for r in reports for m in r.merged if m.operator == operator.name and side in m.inputs]
    gone = Counter(name for merge in merges for name in merge.gone)
    new = [b.block for r in reports for b in r.added if (b.operator, b.input) == (operator.name, side)]
    unmerged = _without(before, gone)
    rewritten = {b.name for b in blocks_rewritten(epoch, operator, unmerged + new, *watermark_before_after)}
    blocks = unmerged + [merge.block for merge in merges] + new
    return tuple(b for b in blocks if b.name not in rewritten and b.high is not None and b.high >= bound)


def tables_after(
    operator: Operator, before: OperatorState, epoch: Epoch, reports: Sequence[Report]
) -> dict[str, TableState]:
    """Return the state tables of an operator after an epoch."""
    return {
        name: _table(table_state(before, name, operator, epoch.groups), operator.name, name, epoch.number, reports)
        for name in operator.state_tables
    }


def _table(before: TableState, operator: str, name: str, number: int, reports: Sequence[Report]) -> TableState:
    """Return a state table after an epoch: its old blocks without merged and unneeded ones, and the new blocks."""
    rows, renewed = list(before.rows), list(before.renewed)
    changes = [c for r in reports for c in r.changed if (c.operator, c.table) == (operator, name)]
    told = Counter(group for change in changes for group in {*change.rows, *change.renewed})
    if twice := sorted(group for group, slots in told.items() if slots > 1):
        raise EngineError(f"groups {twice} of table {name!r} of {operator} were changed by two slots in epoch {number}")
    for change in changes:
        for group, live in change.rows.items():
            rows[group] = live
        for group in change.renewed:
            renewed[group] = number
    merges = [m for r in reports for m in r.merged if (m.operator, m.table) == (operator, name)]
    gone = Counter(name for merge in merges for name in merge.gone)
    blocks = [*_without(before.blocks, gone), *(m.block for m in merges), *(c.block for c in changes if c.block)]
    ages = bases.add_epoch(before.ages, [change.summary for change in changes], number)
    left = bases.needed_blocks(blocks, renewed, rows, ages)
    return replace(before, blocks=left, renewed=tuple(renewed), rows=tuple(rows), ages=bases.limit_ages(ages, left))


def _needed(block: Block, bound: int) -> float:
    """Estimate how many tuples of a block are still needed. A block expires as a whole, its oldest tuples earlier."""
    if block.low is None or block.high is None or block.low >= bound:
        return float(block.rows)
    return block.rows * max(block.high - bound, 0) / max(block.high - block.low, 1)


def _without(blocks: Sequence[Block], gone: Counter[str]) -> list[Block]:
    """Return the blocks that were not merged. A block may be listed twice: by a union of a stream with itself."""
    left = Counter(gone)
    kept = []
    for block in blocks:
        if left[block.name]:
            left[block.name] -= 1
        else:
            kept.append(block)
    return kept
