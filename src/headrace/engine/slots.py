"""What one slot does for one operator in one epoch: read its groups, run the kernel, say what becomes of the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.compile import plan as p
from headrace.engine import time as wm
from headrace.engine.writing import Task, opened, reach, write_grouped, write_rows
from headrace.kernels import aggregate, order
from headrace.kernels.equijoin import equijoin, one_run
from headrace.kernels.join import join
from headrace.kernels.stateless import run_steps
from headrace.state.blocks import Block, OpenBlock

if TYPE_CHECKING:
    from headrace.engine.epoch import Epoch, Inbox
    from headrace.engine.outlet import Outlet

Results = Iterator[tuple[int, pa.Table]]

FEW_ROWS = 50_000


def run_operator(
    epoch: Epoch,
    operator: p.Operator,
    task: Task,
    inbox: Inbox,
    clocks: Mapping[str, wm.Clock],
    outlet: Outlet,
) -> Results:
    """(output number, results) of an operator in this slot; changes of its state go into the outlet's report."""
    slot = _Slot(epoch, operator, task, inbox, clocks, outlet)
    match operator:
        case p.JoinOperator():
            return slot.join(operator)
        case p.PaneAggregateOperator() | p.TupleAggregateOperator():
            return slot.close_windows(operator)
        case p.CountAggregateOperator():
            return slot.count_windows(operator)
        case p.RankOperator():
            return slot.rank(operator)
        case p.OrderOperator():
            return slot.order(operator)
        case p.StatelessOperator():
            return slot.steps(operator)
        case _:
            raise TypeError(f"no kernel for {type(operator).__name__}")


class _Slot:
    def __init__(
        self,
        epoch: Epoch,
        operator: p.Operator,
        task: Task,
        inbox: Inbox,
        clocks: Mapping[str, wm.Clock],
        outlet: Outlet,
    ) -> None:
        self.epoch, self.operator, self.task, self.inbox = epoch, operator, task, inbox
        self.report, self.work = outlet.report, outlet.work
        self.number = task.partition
        plan = epoch.plan
        self.before = wm.input_watermarks(plan, operator, wm.operator_watermarks(plan, epoch.clocks))
        self.after = wm.input_watermarks(plan, operator, wm.operator_watermarks(plan, clocks))

    # --- reading ---------------------------------------------------------------------------------------------------

    def _groups(self, side: int, reach: int = 0) -> list[int]:
        layout = self.epoch.layouts[self.operator.name]
        return layout.groups(self.number, side, reach) if self.number < layout.slots else []

    def _new(self, side: int) -> list[Block]:
        return self.inbox.blocks.get((self.operator.name, side), [])

    def _old(self, side: int) -> Sequence[Block]:
        state = self.epoch.state.get(self.operator.name)
        return state.inputs[side] if state else ()

    def _tables(self, blocks: Sequence[Block], side: int) -> list[pa.Table]:
        """This slot's groups of each block that has some."""
        parts = self._parts(side)
        if not self._groups(side) and not parts:
            return []
        found = [opened(self.task, self.operator, side, block) for block in blocks]
        tables = [block.slice(self._groups(side, reach(block.table))) for block in found]
        tables += [part_of(block, *part) for part in parts for block in found]
        self.work.opened[self.operator.name] += sum(table.nbytes for table in tables)
        return [table.replace_schema_metadata(None) for table in tables if table.num_rows]

    def _parts(self, side: int) -> list[tuple[int, int, int]]:
        layout = self.epoch.layouts[self.operator.name]
        return layout.parts(self.number, side) if self.number < layout.slots else []

    # --- stateless -------------------------------------------------------------------------------------------------

    def steps(self, operator: p.StatelessOperator) -> Results:
        for rows in self.inbox.rows.get((operator.name, 0), []):
            yield 0, run_steps(rows, operator.steps)

    # --- joins -----------------------------------------------------------------------------------------------------

    def join(self, operator: p.JoinOperator) -> Results:
        """New x (new + old), then old x new: disjoint, and together every pair whose later tuple arrived now."""
        new = [self._tables(self._new(side), side) for side in (0, 1)]
        if operator.keys:
            new = [[one_run(tables)] if tables else [] for tables in new]
        old = [self._tables(self._reachable(operator, side, new[1 - side]), side) for side in (0, 1)]
        self.work.read[operator.name] += sum(table.num_rows for side in old for table in side)
        if operator.keys:
            old = [[one_run(tables)] if len(tables) > 1 and _few(tables) else tables for tables in old]
            pairs = [(l, r) for l in new[0] for r in [*new[1], *old[1]]] + [(l, r) for l in old[0] for r in new[1]]
            for l, r in pairs:
                yield from ((0, found) for found in equijoin(operator, l, r))
            return
        for left, right in ((new[0], [*new[1], *old[1]]), (old[0], new[1])):
            if left and right:
                l, r = pa.concat_tables(left), pa.concat_tables(right)
                self.work.pairs[operator.name] += l.num_rows * r.num_rows
                yield from ((0, found) for found in join(operator, l, r))

    def _reachable(self, operator: p.JoinOperator, side: int, others: Sequence[pa.Table]) -> list[Block]:
        """The old blocks of one side that the other side's new tuples can reach in time."""
        if not others:
            return []
        blocks = list(self._old(side))
        if not isinstance(operator, p.TimeJoinOperator):
            return blocks
        times = np.concatenate([aggregate.times(table) for table in others])
        back, ahead = (operator.w1, operator.w2) if side == 0 else (operator.w2, operator.w1)
        low, high = int(times.min()) - back, int(times.max()) + ahead
        return [b for b in blocks if b.high is not None and b.low is not None and b.high >= low and b.low <= high]

    # --- time windows ----------------------------------------------------------------------------------------------

    def close_windows(self, operator: p.PaneAggregateOperator | p.TupleAggregateOperator) -> Results:
        before, after = self.before[0], self.after[0]
        if after <= before:
            return
        blocks = [*self._old(0), *self._new(0)]
        tables = self._tables([b for b in blocks if b.low is not None and b.low < after], 0)
        if not tables:
            return
        held = pa.concat_tables(tables)
        if isinstance(operator, p.PaneAggregateOperator):
            yield 0, aggregate.close_panes(operator, held, before, after)
        else:
            yield 0, aggregate.close_tuples(operator, held, before, after)

    # --- what is rewritten every epoch -------------------------------------------------------------------------------

    def _held(self, side: int, schema: pa.Schema, groups: list[int] | None) -> pa.Table:
        """Held tuples and those that arrived now, in one table."""
        tables = [opened(self.task, self.operator, side, block).slice(groups) for block in self._old(side)]
        tables += [_widen(rows, schema) for rows in self.inbox.rows.get((self.operator.name, side), [])]
        tables = [table for table in tables if table.num_rows]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def _hold(self, side: int, table: pa.Table, *, grouped: bool) -> None:
        """These rows are this slot's whole part of the new state."""
        if table.num_rows == 0:
            return
        if grouped:
            block, _ = write_grouped(self.epoch, self.task, self.operator, side, table)
        else:
            block = write_rows(self.epoch, self.task, table)
        self.report["replaced"].append([self.operator.name, side, block.to_json()])

    def _bound(self) -> int:
        return wm.FOREVER if self.epoch.best_effort else min(self.after)

    def count_windows(self, operator: p.CountAggregateOperator) -> Results:
        groups = self._groups(0)
        if not groups:
            return
        held = self._held(0, operator.schemas[0].append(pa.field(aggregate.NUMBER, pa.int64())), groups)
        results, kept = aggregate.count_windows(operator, held, self._bound())
        self._hold(0, kept, grouped=True)
        yield 0, results

    def rank(self, operator: p.RankOperator) -> Results:
        if self.number != 0:
            return
        state = self.epoch.state.get(operator.name)
        given = tuple(state.extra.get("given", (0, 0))) if state else (0, 0)
        ready = []
        for side in (0, 1):
            released, waiting = order.release(self._held(side, operator.schemas[side], None), self._bound())
            self._hold(side, waiting, grouped=False)
            ready.append(released)
        self.report["extra"][operator.name] = {
            "given": [int(n + t.num_rows) for n, t in zip(given, ready, strict=True)]
        }
        yield from enumerate(order.rank(ready[0], ready[1], given))

    def order(self, operator: p.OrderOperator) -> Results:
        if self.number != 0:
            return
        released, waiting = order.release(self._held(0, operator.schemas[0], None), self._bound())
        self._hold(0, waiting, grouped=False)
        yield 0, released


def _few(tables: Sequence[pa.Table]) -> bool:
    """Whether sorting them together costs less than looking into each."""
    return bool(sum(table.num_rows for table in tables) <= FEW_ROWS)


def part_of(block: OpenBlock, group: int, which: int, parts: int) -> pa.Table:
    """The rows of a group in a block, cut into parts: one of them."""
    rows = block.slice([group])
    start, stop = (rows.num_rows * end // parts for end in (which, which + 1))
    return rows.slice(start, stop - start)


def _widen(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Arrived rows with the columns that held ones have as well, null."""
    for name in schema.names[rows.num_columns :]:
        rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    return rows
