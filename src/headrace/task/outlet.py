"""The output of a task: it takes tuples by producer, and sends blocks, rows, results and one report.

Tuples that become window state are exchanged by reference: the block that is written, sorted by group, is both the message
and the state, and every slot that needs one of its groups gets its description. All other tuples are exchanged by value.
Both carry the columns of the edge and no others. Two inputs that need the same tuples in the same groups, as in a self-join,
share one block. Tuples for an operator that runs in the same slot and stage are handed over within the slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import plan as p
from headrace.columnar import arrow
from headrace.columnar.types import value_text
from headrace.control.group_load import HeavyKey, NumbersOfBlock
from headrace.kernels.joins import undecided_pairs
from headrace.kernels.stateless.split import count_routed
from headrace.operators.base import AppendingOperator, Arrangement, Operator
from headrace.routing import NUMBER, Adaptation, RangeGrouping, Ranges
from headrace.routing.by_range import SortedRows
from headrace.routing.hashing import hash_column_of
from headrace.task.block_writer import GroupedBlock, tuple_numbers, write_grouped
from headrace.task.epoch import Epoch
from headrace.task.inbox import Inputs
from headrace.task.messages import LARGEST_BODY, Attempt, BlockHeader, Goodbye, Message, RowsHeader, pack
from headrace.task.outbox_writer import write_output
from headrace.task.rejects import Rejects
from headrace.task.reports import ReportBuilder
from headrace.task.step_runner import MOST_TUPLES_TOGETHER, EdgeWalk, StepRunner
from headrace.task.stretch_counts import StretchCounts
from headrace.task.task import Task
from headrace.task.watermarks import Seen
from headrace.task.work import TaskTimer

Heavy = list[HeavyKey]

FEW_ROWS, SAMPLED_ROWS = 20, 2_000  # with fewer rows, keys are not examined; rows in a sample of keys
SAMPLED_NUMBERS = 128  # numbers in a sample of a block that is sorted by a number
MOST_HEAVY_KEYS, HEAVY_SHARE = 4, 0.02  # keys per block, and the share of the tuples from which on a key is heavy


@dataclass
class _Shared:
    """Blocks and tuple numbers that the edges of a producer share for one chunk of a table.

    blocks: equal blocks. numbers: by steps, the number of the first tuple.
    """

    blocks: dict[Any, tuple[GroupedBlock, Heavy]] = field(default_factory=dict)
    numbers: dict[tuple[p.Step, ...], int] = field(default_factory=dict)


class Outlet:
    """The output of one task.

    report: records what the task sends. handed: gets the input of operators in the same slot and stage.
    """

    def __init__(self, epoch: Epoch, task: Task, report: ReportBuilder, handed: Inputs) -> None:
        self.epoch, self.task, self.report, self.handed = epoch, task, report, handed
        self.work = report.work
        self._gathered: dict[tuple[str, int], list[pa.Table]] = {}
        self.rejects = Rejects(epoch, task, report)
        self.runner = StepRunner(epoch, task, self.rejects)
        self._rows, self._bytes = 0, 0
        self._sent = [0] * epoch.slots
        self._numbered = 0  # numbers that tuples have received
        self._stretches = StretchCounts()

    def put(self, producer: str, output: int, table: pa.Table) -> None:
        """Gather tuples of an output of a producer, until `flush` sends them."""
        if table.num_rows:
            if self._is_result(producer, output):
                self.work.out[producer] += table.num_rows
            self._gathered.setdefault((producer, output), []).append(table)
            self._rows += table.num_rows
            self._bytes += table.nbytes

    def _is_result(self, producer: str, output: int) -> bool:
        operator = self.epoch.plan.by_name.get(producer)
        return operator is None or operator.is_result(output)

    def flush_full(self) -> Iterator[Message]:
        """Send what was gathered if it has reached the limit of rows or bytes."""
        if self._rows >= MOST_TUPLES_TOGETHER or self._bytes >= arrow.MOST_TABLE_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Message]:
        """Send what was gathered along every edge of its producer."""
        for (producer, output), tables in self._gathered.items():
            with self.work.timed(producer):
                for piece in arrow.slice_table(pa.concat_tables(tables)):
                    yield from self._along_edges(producer, output, piece)
        self._gathered, self._rows, self._bytes = {}, 0, 0
        self.rejects.write()

    def _along_edges(self, producer: str, output: int, table: pa.Table) -> Iterator[Message]:
        shared: dict[int, _Shared] = {}  # by piece: shared by edges with the same steps
        edges = self.epoch.plan.leaving(producer, output)
        walk = EdgeWalk(self.runner, table, edges)
        for edge in edges:
            passed = 0
            for number, found in enumerate(walk.along(edge)):
                rows = count_routed(found)
                passed += rows
                if rows:
                    yield from self._send(edge, found, shared.setdefault(number, _Shared()))
            self.work.passed(edge.name, table.num_rows, passed)
        walk.finish()

    def finish(self, seen: Seen, senders: Sequence[Attempt], began: TaskTimer) -> Iterator[Message]:
        """Send the report, and a goodbye to every slot of the next stage."""
        self.report.doubted(undecided_pairs.take_noted())
        report = self.report.finished(seen, senders, *began.passed())
        yield self._count(Message.of(self.task.number % self.epoch.slots, report))
        if self.task.stage < self.epoch.plan.last_stage:
            for slot in range(self.epoch.slots):
                stretches = self._stretches_for(slot)
                yield Message.of(slot, Goodbye(report.task, seen, report.split_times, stretches, self._sent[slot]))

    def pass_on(self, stretches: StretchCounts) -> None:
        """Add the counts that earlier stages sent for operators of later stages to the goodbyes."""
        later = {operator.name for operator in self.epoch.plan.operators if operator.stage > self.task.stage}
        self._stretches.merge(StretchCounts({name: sides for name, sides in stretches.of.items() if name in later}))

    def _stretches_for(self, slot: int) -> StretchCounts:
        """Return the counts for a slot of the next stage: what it needs itself, and in one slot what it passes on."""
        found = StretchCounts()
        for name, sides in self._stretches.of.items():
            if self.epoch.plan.by_name[name].stage > self.task.stage + 1:
                if slot == self.task.number % self.epoch.slots:
                    found.of[name] = sides
            else:
                layout = self.epoch.layout_of[name]
                assert isinstance(layout, Ranges)
                found.of[name] = self._stretches.before(name, slot - layout.first)
        return found

    def passing(self, message: Message) -> Message:
        """Count a message that only passes through this stage, and return it."""
        return self._count(message)

    def _count(self, message: Message) -> Message:
        self._sent[message.slot] += 1
        return message

    # --- one edge --------------------------------------------------------------------------------------------------

    def _send(self, edge: p.Edge, table: pa.Table, shared: _Shared) -> Iterator[Message]:
        operator = self.epoch.plan.by_name.get(edge.target)
        if operator is None:
            self.report.result(edge.target, write_output(self.epoch, self.task, edge.target, table))
        elif isinstance(operator, AppendingOperator):
            yield from self._by_reference(edge, operator, table, shared)
        else:
            sent = operator.as_sent(edge.input, table.select(edge.schema.names))
            yield from self._by_value(edge, operator, sent)

    def _by_reference(
        self, edge: p.Edge, operator: AppendingOperator, table: pa.Table, shared: _Shared
    ) -> Iterator[Message]:
        own = None if operator.holds_tuples else operator.name  # blocks made from tuples belong to one operator
        orders = operator.further_orders(edge.input)
        key = (edge.steps, operator.groupings[edge.input], own, tuple(edge.schema.names), orders)
        if key not in shared.blocks:
            held = operator.as_state(edge.input, table, edge.schema.names)
            if operator.groupings[edge.input].numbered:
                held = self._with_numbers(held, shared.numbers.setdefault(edge.steps, self._numbered))
            shared.blocks[key] = (
                write_grouped(self.epoch, self.task, operator, edge.input, held),
                sample_heavy_keys(operator, edge, held),
            )
        written, heavy = shared.blocks[key]
        block = written.block
        if not block.rows:
            return
        self.report.added(operator.name, edge.input, block)
        if operator.stage == self.task.stage:
            self.handed.add_block(operator.name, edge.input, block)
            return
        header = BlockHeader(operator.name, edge.input, block)
        counts = written.rows
        self.report.loaded(operator.name, edge.input, counts.tolist(), heavy)
        if written.numbered is not None:
            self.report.numbered(operator.name, edge.input, sample_numbers(written.numbered.sorted))
        layout = self.epoch.layout_of[operator.name]
        for slot in range(layout.slots):
            rows = written.rows_for(layout, slot, edge.input, self.epoch.groups)
            if rows:
                self.work.delivered(operator.name, edge.input, rows, len(operator.schemas))
                yield self._count(Message.of(slot, header))

    def _with_numbers(self, held: pa.Table, first: int) -> pa.Table:
        """Number the tuples. A tuple has the same number on every edge with the same steps, and no other tuple has it."""
        self._numbered = max(self._numbered, first + held.num_rows)
        return held.append_column(NUMBER, pa.array(tuple_numbers(self.epoch, self.task, first, held.num_rows)))

    def _by_value(self, edge: p.Edge, operator: Operator, table: pa.Table) -> Iterator[Message]:
        if operator.stage == self.task.stage:
            self.handed.add_rows(operator.name, edge.input, table)
            return
        header = RowsHeader(operator.name, edge.input)
        for slot, part in self._by_slot(operator, edge.input, table):
            self.work.delivered(operator.name, edge.input, part.num_rows)
            for chunk in arrow.slice_table(part, LARGEST_BODY):
                yield self._count(Message.of(slot, header, pack(chunk)))

    def _by_slot(self, operator: Operator, side: int, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        layout, grouping = self.epoch.layout_of[operator.name], operator.groupings[side]
        if isinstance(grouping, RangeGrouping) and isinstance(layout, Ranges):
            yield from self._by_stretch(operator, side, table, layout, grouping)
            return
        groups = grouping.groups(table, self.epoch.groups)
        if operator.router.adapts is not Adaptation.NOTHING:
            counts = np.bincount(groups[groups >= 0], minlength=self.epoch.groups)
            self.report.loaded(operator.name, side, counts.tolist())
        for slot, mine in layout.shares(groups, side):
            yield slot, table if mine.all() else table.filter(pa.array(mine))

    def _by_stretch(
        self, operator: Operator, side: int, table: pa.Table, layout: Ranges, grouping: RangeGrouping
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the tuples of each slot's stretch, and count them for all slots."""
        stretches = layout.ranges_of(grouping.values(table))
        counts = np.bincount(stretches, minlength=len(layout.grids))
        self._stretches.count(operator.name, side, counts.tolist())
        for stretch in np.flatnonzero(counts).tolist():
            mine = stretches == stretch
            yield layout.first + stretch, table if mine.all() else table.filter(pa.array(mine))


def sample_numbers(rows: SortedRows) -> NumbersOfBlock:
    """Return a sample of the numbers of a block, without those that are not finite."""
    many = len(rows.values)
    at = np.unique(np.arange(SAMPLED_NUMBERS) * many // SAMPLED_NUMBERS)
    found = rows.values[at].astype(np.float64)
    extent = rows.extent if np.isfinite(rows.extent) else float(np.finfo(np.float64).max)
    return NumbersOfBlock(many, extent, found[np.isfinite(found)].tolist())


def sample_heavy_keys(operator: AppendingOperator, edge: p.Edge, held: pa.Table) -> Heavy:
    """Return the keys that have a large share of the rows, as far as a sample shows."""
    if operator.arrangement(edge.input) is not Arrangement.HASH or held.num_rows < FEW_ROWS:
        return []
    step = max(1, held.num_rows // SAMPLED_ROWS)
    rows = np.arange(0, held.num_rows, step)
    found, first, counts = np.unique(hash_column_of(held)[rows], return_index=True, return_counts=True)
    top = np.argsort(counts)[::-1][:MOST_HEAVY_KEYS]
    columns = operator.groupings[edge.input].columns
    return [
        HeavyKey(int(found[i]), int(counts[i]) * step, _key_text(held, columns, int(rows[first[i]])))
        for i in top
        if counts[i] >= HEAVY_SHARE * len(rows)
    ]


def _key_text(table: pa.Table, columns: Sequence[str], row: int) -> str:
    return ", ".join(value_text(table.column(name)[row]) for name in columns if name in table.column_names)[:40]
