"""One slot in one epoch, for one operator: its groups of the input and of the state, and the new state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.errors import EngineError
from headrace.kernels.joins.stored_orders import BlockPieces
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.operators.base import AppendingOperator, Operator, ReplacingOperator
from headrace.plan import Step
from headrace.routing import Ranges
from headrace.state.blocks import Block, OpenBlock
from headrace.support.event_time import FOREVER
from headrace.task import watermarks
from headrace.task.block_writer import numbered_rows, open_state_block, pieces_for, slice_for, write_grouped
from headrace.task.epoch import Epoch
from headrace.task.failure_points import operator_failure_points
from headrace.task.inbox import Inbox, Inputs
from headrace.task.slot_state_tables import SlotStateTables
from headrace.task.step_runner import StepRunner
from headrace.task.task import Task
from headrace.task.trimmed_blocks import blocks_rewritten


class EpochSlot:
    """The implementation of the protocol `Slot` for operators. It records changes of state in the task's report.

    given: the input sent to the slot, then the input that operators of the same slot handed over to this operator.
    """

    def __init__(
        self,
        epoch: Epoch,
        operator: Operator,
        task: Task,
        given: Sequence[Inputs],
        clocks: Mapping[str, watermarks.SourceClock],
        inbox: Inbox,
        runner: StepRunner,
    ) -> None:
        self.epoch, self.operator, self.task, self.given = epoch, operator, task, given
        self.runner, self.report, self.work = runner, runner.report, runner.report.work
        self.number, self.group_count, self.slot_count, self.run_id, self.seen = (
            task.number,
            epoch.groups,
            epoch.slots,
            epoch.run_id,
            inbox.seen,
        )
        self._stretches = inbox.stretches
        plan = epoch.plan
        self.watermarks_before = watermarks.input_watermarks(
            plan, operator, watermarks.operator_watermarks(plan, epoch.clocks)
        )
        self.watermarks_after = watermarks.input_watermarks(
            plan, operator, watermarks.operator_watermarks(plan, clocks)
        )
        self.complete_below = FOREVER if epoch.best_effort else min(self.watermarks_after)
        self._keeping = (
            SlotStateTables(epoch, operator, task, self.groups(0), self.report) if operator.state_tables else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._keeping is not None:
            self._keeping.close(error[1])

    # --- reading ---------------------------------------------------------------------------------------------------

    def groups(self, side: int) -> list[int]:
        layout = self.epoch.layout_of[self.operator.name]
        return layout.groups(self.number, side) if self.number < layout.slots else []

    def new(self, side: int) -> list[Block]:
        return [block for inputs in self.given for block in inputs.blocks(self.operator.name, side)]

    def old(self, side: int) -> Sequence[Block]:
        state = self.epoch.state.get(self.operator.name)
        return state.inputs[side] if state else ()

    def trimmed(self, side: int) -> list[Block]:
        assert isinstance(self.operator, AppendingOperator)
        blocks = [*self.old(side), *self.new(side)]
        return blocks_rewritten(
            self.epoch, self.operator, blocks, self.watermarks_before[side], self.watermarks_after[side]
        )

    def write_remainder(self, side: int, table: pa.Table) -> None:
        assert isinstance(self.operator, AppendingOperator)
        if table.num_rows:
            block = write_grouped(self.epoch, self.task, self.operator, side, table).block
            self.report.added(self.operator.name, side, block)

    def rows(self, side: int) -> list[pa.Table]:
        return [rows for inputs in self.given for rows in inputs.rows(self.operator.name, side)]

    def read_blocks(self, blocks: Sequence[Block], side: int) -> list[pa.Table]:
        """Return the rows of this slot's groups of each block that has some."""
        parts = self._hot_cells(side)
        if not self.groups(side) and not parts:
            return []
        if self.operator.arranged_by_number(side):
            tables = [table for block in blocks for table in self._ranges_of(block, side)]
        else:
            found = [open_state_block(self.task, self.operator, side, block) for block in blocks]
            tables = [slice_for(block, self.groups(side), self.group_count) for block in found]
            tables += [hot_group_cell(block, *part) for part in parts for block in found]
        self.work.opened[self.operator.name] += sum(table.nbytes for table in tables)
        return [table.replace_schema_metadata(None) for table in tables if table.num_rows]

    def _ranges_of(self, block: Block, side: int) -> Iterator[pa.Table]:
        layout = self.epoch.layout_of[self.operator.name]
        found = numbered_rows(self.operator, side, block, open_state_block(self.task, self.operator, side, block).table)
        for start, stop in found.rows_of(layout, self.number, side, self.group_count):
            yield found.table.slice(start, stop - start)

    def read_pieces(self, blocks: Sequence[Block], side: int) -> list[BlockPieces]:
        """Return each block that has rows of this slot, whole, with the intervals of these rows."""
        groups, cells = self.groups(side), self._hot_cells(side)
        if not groups and not cells:
            return []
        opened = [open_state_block(self.task, self.operator, side, block) for block in blocks]
        found = [each for each in (pieces_for(b, groups, cells, self.group_count) for b in opened) if each.rows]
        self.work.opened[self.operator.name] += sum(each.table.nbytes for each in found)
        return found

    def _hot_cells(self, side: int) -> list[tuple[int, int, int]]:
        layout = self.epoch.layout_of[self.operator.name]
        return layout.hot_cells(self.number, side) if self.number < layout.slots else []

    def run_steps(self, rows: pa.Table, steps: Sequence[Step]) -> pa.Table:
        return self.runner.run(rows, steps, operator_failure_points(self.epoch.plan)[self.operator.name])

    @property
    def reached(self) -> int:
        return watermarks.before_the_end(self.epoch.plan, self.operator, self.epoch.clocks, self.seen)

    def split_time(self, split: str) -> int | None:
        known = [each[split] for each in (self.epoch.split_times, self.report.split_times) if split in each]
        return max(known, default=None)

    # --- state that is rewritten in every epoch ----------------------------------------------------------------------

    def waiting_rows(self, side: int, schema: pa.Schema, groups: list[int] | None) -> pa.Table:
        """Return the rows of the state and those that arrived, in one table."""
        if self.operator.arranged_by_number(side):
            tables = self.read_blocks([block for block in self.old(side) if self._reaches_stretch(block)], side)
        else:
            tables = [open_state_block(self.task, self.operator, side, block).slice(groups) for block in self.old(side)]
        tables += [_widen(rows, schema) for rows in self.rows(side)]
        tables = [table for table in tables if table.num_rows]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _reaches_stretch(self, block: Block) -> bool:
        """Return whether a block of waiting tuples can have one of this slot's stretch."""
        layout = self.epoch.layout_of[self.operator.name]
        if not isinstance(layout, Ranges) or not layout.first <= self.number < layout.slots:
            return False
        low, high = layout.range_at(self.number - layout.first)
        after = low is None or block.high is None or block.high >= low
        return after and (high is None or block.low is None or block.low < high)

    def replace_rows(self, side: int, table: pa.Table) -> None:
        """Write this slot's part of the new state. It replaces the former part."""
        if table.num_rows:
            assert isinstance(self.operator, ReplacingOperator)
            block = write_grouped(self.epoch, self.task, self.operator, side, table).block
            self.report.replaced(self.operator.name, side, block)

    def rows_before(self, side: int) -> int:
        """Return how many tuples, new and waiting, are in earlier stretches of event time than this slot's."""
        layout = self.epoch.layout_of[self.operator.name]
        assert isinstance(layout, Ranges)
        stretch = self.number - layout.first
        waiting = (self._rows_below(block, side, layout.range_at(stretch)[0]) for block in self.old(side))
        return self._stretches.total(self.operator.name, side) + sum(waiting)

    def _rows_below(self, block: Block, side: int, time: float | None) -> int:
        if time is None:
            return 0
        if block.low is not None and block.high is not None:  # before format 8, blocks of waiting tuples had neither
            if block.low >= time:
                return 0
            if block.high < time:
                return block.rows
        found = open_state_block(self.task, self.operator, side, block)
        return numbered_rows(self.operator, side, block, found.table).sorted.points(None, time)[1]

    # --- state tables ------------------------------------------------------------------------------------------------

    def keyed(self, table: str, groups: Sequence[int]) -> pa.Table:
        return self._tables.keyed(table, groups)

    def open_tables(self, table: str, substreams: Sequence[int]) -> Mapping[int, KeyedTable]:
        return self._tables.open(table, substreams)

    def change(self, table: str, put: pa.Table, gone: pa.Table, old: Numbers) -> None:
        self._tables.change(table, put, gone, old)

    def keep_tables(self) -> None:
        """Write the changes of state tables, and the bases that are due, when the operator has finished."""
        if self._keeping is not None:
            self._keeping.write()

    @property
    def _tables(self) -> SlotStateTables:
        if self._keeping is None:
            raise EngineError(f"{self.operator.name} has no state tables")
        return self._keeping

    # --- counts and notes --------------------------------------------------------------------------------------------

    def count(self, *, read: int = 0, pairs: int = 0) -> None:
        self.work.read[self.operator.name] += read
        if pairs:
            self.work.pairs[self.operator.name] += pairs

    @property
    def notes(self) -> Mapping[str, Any]:
        state = self.epoch.state.get(self.operator.name)
        return state.notes if state else {}

    def note(self, **data: Any) -> None:
        self.report.add_notes(self.operator.name, data)


def hot_group_cell(block: OpenBlock, group: int, which: int, parts: int) -> pa.Table:
    """Return part `which` of `parts` of the rows of a group in a block."""
    rows = block.slice([group])
    start, stop = (rows.num_rows * end // parts for end in (which, which + 1))
    return rows.slice(start, stop - start)


def _widen(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return arrived rows with the further columns that rows of the state have, null."""
    for name in schema.names[rows.num_columns :]:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    return rows
