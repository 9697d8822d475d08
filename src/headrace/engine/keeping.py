"""The keyed tables of one operator in one slot in one epoch: rows that count, what was changed of them, and bases.

Invariant: for every table the slot writes one block at most, with rows of its own groups only, all with this epoch as
their `__at`. Of a group it has either what changed, tombstones included, or all rows that the group holds now, and then
the report says that it was renewed. That is so of groups whose base is due, of those that had no row before (what was put
is all that they have) and of those that have none now (there is nothing to write). Why that keeps every row, and none
twice, stands in `headrace.state.tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.engine.reports import TaskReport
from headrace.engine.writing import AnyNumbers, Task, write_keyed
from headrace.errors import EngineError, StateError
from headrace.operators.base import Operator
from headrace.processor import StateTable
from headrace.state import tables
from headrace.state.blocks import Block
from headrace.state.manifest import OperatorState, TableState

if TYPE_CHECKING:
    from headrace.engine.epoch import Epoch


def known(state: OperatorState | None, name: str, declared: StateTable, groups: int) -> TableState:
    """A table as the last manifest has it; in the first epoch there is nothing."""
    if state is not None and name in state.tables:
        return state.tables[name]
    return TableState(declared.key, declared.columns, (), (-1,) * groups, (0,) * groups)


@dataclass(frozen=True)
class Change:
    delta: pa.Table
    groups: AnyNumbers  # of its rows
    rows: Mapping[int, int]  # live ones now, of the groups that were touched


class Keeping:
    """What a slot has of the tables: it is asked and told by the operator, then it writes."""

    def __init__(self, epoch: Epoch, operator: Operator, task: Task, groups: Sequence[int], report: TaskReport) -> None:
        self.epoch, self.operator, self.task, self.report = epoch, operator, task, report
        self.groups = frozenset(groups)
        self._changes: dict[str, Change] = {}
        self._read: dict[str, tuple[frozenset[int], pa.Table]] = {}  # what the operator looked at

    # --- what the operator asks and says -----------------------------------------------------------------------------

    def keyed(self, table: str, groups: Sequence[int]) -> pa.Table:
        found = tables.read(self.task.reader, self._before(table), sorted(groups), self._words(table))
        self.report.work.opened[self.operator.name] += found.nbytes
        self._read[table] = frozenset(groups), found
        return found

    def change(self, table: str, put: pa.Table, gone: pa.Table, rows: Mapping[int, int]) -> None:
        if table in self._changes:
            raise EngineError(f"{self._words(table)} was changed twice in one epoch")
        try:
            delta = tables.delta(self._declared(table), put, gone, self.epoch.number)
        except (StateError, pa.ArrowException) as error:
            raise EngineError(f"{self._words(table)}: {error}") from error
        change = Change(delta, self._groups(delta), {int(group): int(now) for group, now in rows.items()})
        self._check(table, change)
        self._changes[table] = change

    def _check(self, table: str, change: Change) -> None:
        """What was said of the rows can be so."""
        touched = set(map(int, np.unique(change.groups)))
        if others := (touched | set(change.rows)) - self.groups:
            raise EngineError(
                f"{self._words(table)}: groups {sorted(others)} are not those of slot {self.task.partition}"
            )
        if untold := touched - set(change.rows):
            raise EngineError(f"{self._words(table)}: how many rows groups {sorted(untold)} have now was not said")
        gone = np.asarray(change.delta.column(tables.GONE))
        before, total = self._before(table).rows, self.epoch.groups
        put, taken = (np.bincount(change.groups[mask], minlength=total) for mask in (~gone, gone))
        for group, now in change.rows.items():
            least, most = max(before[group] - int(taken[group]), int(put[group])), before[group] + int(put[group])
            if not least <= now <= most:
                msg = f"{self._words(table)}: group {group} cannot have {now} rows now; it had {before[group]}"
                raise EngineError(f"{msg}, {put[group]} were put and {taken[group]} deleted")

    # --- what is written ---------------------------------------------------------------------------------------------

    def write(self) -> None:
        """When the operator is done."""
        for table in self.operator.tables:
            due = self.epoch.renewals.get(self.operator.name, {}).get(table, ())
            mine = [group for group in due if group in self.groups]
            if mine or table in self._changes:
                self._write(table, mine)

    def _write(self, table: str, due: Sequence[int]) -> None:
        change, before = self._changes.get(table) or self._nothing(table), self._before(table).rows
        now = {group: change.rows.get(group, before[group]) for group in {*due, *change.rows}}
        whole = sorted(group for group in now if group in due or not before[group] or not now[group])
        in_whole = np.isin(change.groups, whole)
        rest = change.delta.filter(pa.array(~in_whole))
        base = self._base(table, change.delta.filter(pa.array(in_whole)), [g for g in whole if before[g] and now[g]])
        base_groups = self._groups(base)
        found = np.bincount(base_groups, minlength=self.epoch.groups)
        for group in whole:
            if found[group] != now[group]:
                msg = (
                    f"{self._words(table)}: group {group} was said to have {now[group]} rows now, found {found[group]}"
                )
                raise EngineError(msg)
        rows = pa.concat_tables([rest, base])
        groups = np.concatenate([change.groups[~in_whole], base_groups])
        block = write_keyed(self.epoch, self.task, rows, groups) if rows.num_rows else None
        self.report.changed(self.operator.name, table, block, change.rows, whole)

    def _base(self, table: str, delta: pa.Table, groups: Sequence[int]) -> pa.Table:
        """All rows that groups hold now: those before the epoch, if there were any, and what changed."""
        declared, number = self._declared(table), self.epoch.number
        rows = tables.live(declared, [tables.stamped(self._old(table, groups), number - 1), delta])
        return tables.stamped(rows, number)

    def _old(self, table: str, groups: Sequence[int]) -> pa.Table:
        have, rows = self._read.get(table, (frozenset[int](), None))
        if rows is None or not have.issuperset(groups):
            return tables.read(self.task.reader, self._before(table), groups, self._words(table))
        return rows.filter(pa.array(np.isin(self._groups(rows), groups)))

    def _nothing(self, table: str) -> Change:
        return Change(tables.stored_schema(self._declared(table)).empty_table(), np.zeros(0, np.int64), {})

    # --- what they are -----------------------------------------------------------------------------------------------

    def _declared(self, table: str) -> StateTable:
        if table not in self.operator.tables:
            raise EngineError(f"{self.operator.name} has no table {table!r}; it has {', '.join(self.operator.tables)}")
        return self.operator.tables[table]

    def _before(self, table: str) -> TableState:
        state = self.epoch.state.get(self.operator.name)
        return known(state, table, self._declared(table), self.epoch.groups)

    def _groups(self, rows: pa.Table) -> AnyNumbers:
        return self.operator.groupings[0].groups(rows, self.epoch.groups)

    def _words(self, table: str) -> str:
        return f"table {table!r} of {self.operator.name}"


def write_merged(epoch: Epoch, task: Task, operator: Operator, table: str, blocks: Sequence[Block]) -> Block:
    """One block with the rows of several that still count."""
    state = known(epoch.state.get(operator.name), table, operator.tables[table], epoch.groups)
    what = f"table {table!r} of {operator.name}"
    found = [tables.opened(task.reader, state, block, epoch.groups, what) for block in blocks]
    rows = tables.newest(state, [tables.counting(block, np.arange(epoch.groups), state.renewed) for block in found])
    groups = np.asarray(rows.column(tables.GROUP))
    return write_keyed(epoch, task, rows.drop_columns([tables.GROUP]), groups)
