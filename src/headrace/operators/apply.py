"""The operator that runs a user's processor on every substream of a split.

Tuples wait in the blocks they arrived in until the watermark passes them. An epoch passes those in [before, after) to
the processor, in sequence, each substream in one slot. The slot opens the processor's state tables for the substreams
that it calls and writes the rows that changed.

Invariant: the tuples, ticks and `end` that a substream has received up to a watermark depend only on its tuples and on
the watermark. No clock is stored: the past ticks follow from the last watermark and from the substream's first `ts`,
which the hidden table `FIRST` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.columnar.types import SUBSTREAM, TS, TS_TYPE
from headrace.kernels.keyed import processor_calls
from headrace.kernels.keyed.substream_tuples import SubstreamTuples
from headrace.kernels.windows.aggregate import times
from headrace.operators.base import AppendingOperator, Arrangement, Results, Slot, UnkeyedOperator
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.processor import Declaration, Processor, ProcessorTable, StateTable
from headrace.query import nodes
from headrace.routing import EVERYWHERE, Router, SubstreamGrouping, SubstreamRouter
from headrace.state.blocks import Block
from headrace.support.durations import format_duration
from headrace.support.event_time import FOREVER, NEVER
from headrace.support.secrets import SealedSettings

WORTH = 20_000  # rows; smaller blocks are not worth rewriting
EMITTED = "emitted"  # key of a note: the largest `ts` of the results
FIRST = "__first"  # the hidden state table with the first `ts` of every substream that has had a tuple
FIRSTS = StateTable(["of"], pa.schema([("of", pa.int32()), ("first", TS_TYPE)]))


@dataclass(frozen=True)
class ApplyOperator(UnkeyedOperator, AppendingOperator):
    """A processor on the substreams of a split: calls `process`, `tick` and `end` in sequence."""

    split: str  # the name of the split upstream
    rule: nodes.Rule
    declared: Declaration
    processor: Processor = field(compare=False, repr=False)

    # --- its inputs --------------------------------------------------------------------------------------------------

    @property
    def router(self) -> Router:
        return SubstreamRouter(self.rule.substreams, self.rule.way)

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.schemas[side].names)  # a processor may read any column

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        return replace(self, schemas=schemas)

    def output_schema(self, output: int) -> pa.Schema:
        return self.declared.outputs[output][1]

    @property
    def code(self) -> str:
        settings = "" if self.declared.settings == "{}" else f", settings {self.declared.settings}"
        every = "" if self.declared.every is None else f", tick every {format_duration(self.declared.every)}"
        return f"{self.declared.path} version {self.declared.version}{every}{settings}"

    # --- its state -----------------------------------------------------------------------------------------------------

    @property
    def state_tables(self) -> Mapping[str, StateTable]:
        return {FIRST: FIRSTS, **dict(self.declared.tables)}

    @property
    def expiry_column(self) -> str:
        return TS

    @property
    def arrangement_kind(self) -> Arrangement:
        return Arrangement.ANYHOW

    @property
    def holds_tuples(self) -> bool:
        return True

    def stored(self, side: int) -> set[str]:
        return set(self.schemas[side].names)

    def rewrites(self, block: Block, before: int, after: int) -> bool:
        """Return True once most of the block's time range has passed.

        This rule writes each tuple only a few times, and one waiting tuple does not keep a whole block.
        """
        if block.rows < WORTH or block.low is None or block.high is None:
            return False
        return before < after and block.low < after <= block.high <= 2 * after - block.low

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return tuples.select(names)

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        return list(inputs)

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the largest `ts` of all results so far."""
        return {EMITTED: max(noted[EMITTED] for noted in ({EMITTED: NEVER, **(before or {})}, *notes))}

    def emitted_before(self, arrived: int | None, notes: Mapping[str, Any]) -> int | None:
        """Return a bound from the noted `ts`, because a processor may emit any `ts` after that of the input."""
        if arrived in (None, NEVER):
            return arrived
        return max(arrived, int(notes[EMITTED]) + 1) if EMITTED in notes else None

    # --- its work ------------------------------------------------------------------------------------------------------

    def run(self, slot: Slot) -> Results:
        groups = slot.groups(0)
        if groups and slot.watermarks_after[0] > slot.watermarks_before[0]:
            yield from _SlotCalls(self, slot, groups).run()

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rate, lag = inputs[0].rate, inputs[0].lag
        results = rate * figures.matching.get(self.name, 1.0)
        held = figures.held.get(self.name, rate * max(lag - inputs[0].delay, 0.0))
        return OperatorLoad((rate,), (rate,), (held,), 0.0, results), StreamPace(results, lag, lag)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        share = counted.out / counted.arrived[0] if counted.arrived[0] else 1.0
        return {"matching": share, "held": counted.held}

    @property
    def summary(self) -> str:
        return f"apply {self.declared.name} to each of {self.rule.substreams} substreams{self.declared.summary}"


@dataclass(frozen=True)
class _SubstreamCall:
    """The tuples and calls that one substream receives in an epoch."""

    substream: int
    first: int  # the first `ts` of the substream, in this epoch or an earlier one
    handed: SubstreamTuples
    ticks: range
    end: int | None

    @property
    def tuples(self) -> pa.Table:
        return self.handed.tuples(self.substream)


class _SlotCalls:
    """The calls of one slot in one epoch, and the changes to its state tables."""

    def __init__(self, operator: ApplyOperator, slot: Slot, groups: list[int]) -> None:
        self.operator, self.slot, self.groups, self.declared = operator, slot, groups, operator.declared
        grouping = operator.groupings[0]
        assert isinstance(grouping, SubstreamGrouping)
        self.grouping = grouping
        self.members = grouping.members(groups, slot.group_count)
        self.before, self.after = slot.watermarks_before[0], slot.watermarks_after[0]
        self.last = slot.split_time(operator.split) if self.after == FOREVER else None
        self.reached = slot.reached if self.after == FOREVER else NEVER
        self.end = None if self.last is None else max(self.last, self.reached)  # so that no output is late
        self.emitted = NEVER

    def run(self) -> Results:
        known = dict(_pairs(self.slot.keyed(FIRST, self.groups)))
        turns = self._turns(known)
        if not turns:
            return
        numbers = [turn.substream for turn in turns]
        tables = {name: self.slot.open_tables(name, numbers) for name, _ in self.declared.tables}
        for turn in turns:
            own = {name: tables[name][turn.substream] for name, _ in self.declared.tables}
            for output, rows in self._called(turn, own):
                self.emitted = max(self.emitted, int(times(rows).max(initial=NEVER)))
                yield output, rows
        self.slot.note(**{EMITTED: self.emitted})
        self._begun([turn for turn in turns if turn.substream not in known])

    def _called(self, turn: _SubstreamCall, own: Mapping[str, ProcessorTable]) -> Iterator[tuple[int, pa.Table]]:
        processor, substream = self.operator.processor, turn.substream
        with SealedSettings(vars(processor)).hiding():
            copy = processor_calls.copy_of(processor, self._owner, substream, self.operator.rule.substreams)
            yield from processor_calls.run_processor(
                copy, self.declared, substream, turn.tuples, own, turn.ticks, turn.end
            )

    @property
    def _owner(self) -> str:
        return f"{self.slot.run_id} {self.operator.name}"  # a user may change the class between runs

    # --- tuples for this epoch ---------------------------------------------------------------------------------------

    def _turns(self, known: Mapping[int, int]) -> list[_SubstreamCall]:
        trimmed = self.slot.trimmed(0)
        blocks = [b for b in (*self.slot.old(0), *self.slot.new(0)) if b.low is not None and b.low < self.after]
        cut = self.slot.read_blocks(trimmed, 0)
        tables = cut + self.slot.read_blocks([b for b in blocks if b not in trimmed], 0)
        self.slot.write_remainder(0, self._left(cut))
        handed = SubstreamTuples(tables, self.operator.schemas[0], self.before, self.after, self.members)
        found = []
        for number in self.members:
            now = handed.first(number)
            first = known.get(number, now)
            if first is None:
                continue  # the substream never had a tuple
            ticks = processor_calls.ticks_due(
                self.declared.every, first, self.before, self.after, self.last, self.reached
            )
            if now is not None or ticks or self.end is not None:
                found.append(_SubstreamCall(number, first, handed, ticks, self.end))
        return found

    def _left(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return the tuples still waiting in these tables. Only the slot with group 0 keeps broadcast tuples."""
        found = [self.operator.schemas[0].empty_table()]
        for table in tables:
            left = times(table) >= self.after
            if 0 not in self.groups:
                left &= np.asarray(table.column(SUBSTREAM)) != EVERYWHERE
            found.append(table.select(found[0].column_names).filter(pa.array(left)))
        return pa.concat_tables(found)

    # --- tables ----------------------------------------------------------------------------------------------------------

    def _begun(self, turns: Sequence[_SubstreamCall]) -> None:
        """Store the first `ts` of the substreams that received their first tuple in this epoch."""
        if not turns:
            return
        numbers = [turn.substream for turn in turns]
        firsts = pa.array([turn.first for turn in turns], pa.int64()).cast(TS_TYPE)
        new = pa.table({SUBSTREAM: pa.array(numbers, pa.int32()), "of": pa.array(numbers, pa.int32()), "first": firsts})
        self.slot.change(FIRST, new, new.select([SUBSTREAM, "of"]).slice(0, 0), np.full(len(turns), -1))


def _pairs(firsts: pa.Table) -> list[tuple[int, int]]:
    return list(zip(firsts.column("of").to_pylist(), firsts.column("first").cast(pa.int64()).to_pylist(), strict=True))


def plan(node: nodes.Apply, sofar: PlanBuilder) -> Flow:
    flows = sofar.flows(node.input)
    operator = ApplyOperator(
        sofar.name("apply"),
        stage_after(flows),
        (node.input.schema,),
        node.schema,
        (SubstreamGrouping((SUBSTREAM,), node.rule.substreams),),
        node.split,
        node.rule,
        node.declared,
        node.processor,
    )
    return sofar.add(operator, flows)
