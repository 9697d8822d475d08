"""The state tables of one operator in one slot and epoch: their live rows, their changes, and their bases.

A table has separate groups (`headrace.task.state_table_groups`). A slot has the groups of the table that are in its groups of
the operator.

Invariant: for every table the slot writes at most one block, with rows of its own groups only, all with this epoch as their
`__at`. For a group the block has either the changed rows, with tombstones, or all rows of the group; then the report lists the
group as renewed. A group is renewed if its base is due, if it had no row before, or if it has no row now.
`headrace.state.state_tables` explains why this keeps every row exactly once.

A table that is opened comes from a cache or is built from blocks (`headrace.state.caches`). Its cache gets the stamp of this
task after its changes are written, and not before. The report lists every table that was opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow
from headrace.columnar.arrow import Numbers
from headrace.columnar.types import SUBSTREAM
from headrace.errors import DamagedCache, EngineError, StateError
from headrace.kernels.keyed.buffer_allocator import MEMORY, DamagedTable
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.operators.base import Operator
from headrace.processor import StateTable
from headrace.state import caches, state_tables
from headrace.state.bases import ChangeSummary
from headrace.state.blocks import Block
from headrace.state.manifest import TableState
from headrace.task.block_writer import AnyNumbers, write_table_rows
from headrace.task.epoch import Epoch
from headrace.task.reports import ReportBuilder, TableUse
from headrace.task.state_table_groups import StateTableGroups, table_state
from headrace.task.task import Task

MOST_ROWS_READ = 2_000_000  # rows that are read at once to build tables


@dataclass(frozen=True)
class Change:
    """The change of one state table in one epoch and slot."""

    delta: pa.Table
    groups: AnyNumbers  # group of each row
    rows: Numbers  # number of live rows of every group, after the change
    old: Numbers  # for each row: the epoch of the row that it replaces; -1: none


@dataclass
class _Opened:
    """A table of one substream in this epoch."""

    table: KeyedTable
    cache: caches.TableCache | None

    @property
    def why(self) -> str:
        """Return why the table was built from blocks."""
        if self.cache is None:
            return caches.OFF
        return caches.NO_SPACE if self.cache.full else self.cache.why or caches.COLD


class SlotStateTables:
    """The state tables of an operator in one slot. The operator reads and changes them, then `write` writes the changes."""

    def __init__(
        self, epoch: Epoch, operator: Operator, task: Task, groups: Sequence[int], report: ReportBuilder
    ) -> None:
        self.epoch, self.operator, self.task, self.report = epoch, operator, task, report
        self.groups = np.asarray(sorted(groups), np.int64)  # of the operator
        self._changes: dict[str, Change] = {}
        self._open: dict[str, dict[int, _Opened]] = {}
        self._use: caches.CacheUse | None = None

    def close(self, error: BaseException | None) -> None:
        """Release the caches after success or failure. If a table is damaged, raise that, whatever the user's code did
        with the error."""
        damaged = [
            (name, substream, each)
            for name, opened in self._open.items()
            for substream, each in opened.items()
            if each.table.damaged is not None
        ]
        for _, _, each in damaged:
            if each.cache is not None:
                each.cache.remove()
        if self._use is not None:
            self._use.close()
        if damaged and (error is None or isinstance(error, Exception)):
            name, substream, each = damaged[0]
            what = "was damaged where it is kept between epochs"
            if self.epoch.caches is None:  # it was built in this epoch, by this task
                what = "has a row that was written in place, and that numbers did not hand out in this epoch"
            raise DamagedCache(
                f"{self._describe(name)}, substream {substream}, {what}: {each.table.damaged}"
            ) from error

    # --- calls of the operator ---------------------------------------------------------------------------------------

    def keyed(self, table: str, groups: Sequence[int]) -> pa.Table:
        return self._rows(table, self._lying(table).of_groups(np.asarray(groups, np.int64)))

    def open(self, table: str, substreams: Sequence[int]) -> dict[int, KeyedTable]:
        """Return the tables of some substreams for changes, from caches or built from blocks."""
        opened, missing = self._open.setdefault(table, {}), dict[int, caches.TableCache | None]()
        for substream, cache in self._caches(table, substreams):
            found = self._in_place(table, cache)
            if found is None:
                missing[substream] = cache
            else:
                opened[substream] = _Opened(found, cache)
        use, began = TableUse(len(substreams) - len(missing)), time.monotonic()
        for substream, rows in self._from_blocks(table, list(missing)):
            opened[substream] = made = self._built(table, rows, missing[substream])
            use.add(TableUse(0, {made.why: 1}, len(made.table), 0.0, made.cache.full if made.cache else ""))
        use.seconds = time.monotonic() - began
        self.report.used(self.operator.name, use)
        return {substream: opened[substream].table for substream in substreams}

    def _built(self, table: str, rows: pa.Table | None, cache: caches.TableCache | None) -> _Opened:
        at = None if rows is None else np.asarray(rows.column(state_tables.EPOCH_COLUMN))
        own = None if rows is None else rows.drop_columns([state_tables.EPOCH_COLUMN])
        return _Opened(KeyedTable(self._declared(table), table, own, MEMORY if cache is None else cache, at), cache)

    def _caches(self, table: str, substreams: Sequence[int]) -> Iterator[tuple[int, caches.TableCache | None]]:
        trust, name = self.epoch.caches, self.operator.name
        if trust is None or name not in trust.operators:
            yield from ((substream, None) for substream in substreams)
            return
        if self._use is None:
            self._use = caches.CacheUse(self.epoch.run_id, trust.limit, driver_makes_folder=trust.driver_makes_folder)
        stamps, shape = trust.stamps.get((name, table), {}), repr(self._declared(table).describe())
        for substream in substreams:
            yield substream, self._use.take(name, table, shape, substream, stamps.get(substream))

    def _in_place(self, table: str, cache: caches.TableCache | None) -> KeyedTable | None:
        if cache is None or cache.why is not None:
            return None
        if cache.found is None:
            kept: KeyedTable = cache.table
            return kept
        try:
            return KeyedTable.reopen(self._declared(table), table, cache.found, cache)
        except DamagedTable:
            cache.why = caches.DAMAGED
            return None

    def _from_blocks(self, table: str, substreams: Sequence[int]) -> Iterator[tuple[int, pa.Table | None]]:
        """Yield the rows of these substreams, reading some groups at a time."""
        if not substreams:
            return
        numbers, lying = np.asarray(substreams, np.int64), self._lying(table)
        of = lying.of_substreams(numbers)
        live = np.asarray(self._before(table).rows, np.int64).reshape(lying.units, -1).sum(1)
        units = np.unique(of)
        batch = np.cumsum(live[units]) // MOST_ROWS_READ
        for number in np.unique(batch):
            mine = units[batch == number]
            rows = by_substream(self._rows(table, mine)) if live[mine].any() else {}
            for substream in numbers[np.isin(of, mine)].tolist():
                yield substream, rows.get(substream)

    def change(self, table: str, put: pa.Table, gone: pa.Table, old: Numbers) -> None:
        """Record the changes of a table, once per epoch.

        old: for each row of `put` and then of `gone`, the epoch that wrote the row that it replaces; -1: it replaces none.
        """
        if table in self._changes:
            raise EngineError(f"{self._describe(table)} was changed twice in one epoch")
        try:
            delta = state_tables.changed_rows(self._declared(table), put, gone, self.epoch.number)
        except (StateError, pa.ArrowException) as error:
            raise EngineError(f"{self._describe(table)}: {error}") from error
        self._changes[table] = self._checked(table, delta, put.num_rows, old)

    def _checked(self, table: str, delta: pa.Table, put: int, old: Numbers) -> Change:
        """Check the changes against the rows before the epoch, and return them."""
        groups, before = self._groups(table, delta), np.asarray(self._before(table).rows, np.int64)
        if len(others := groups[~self._is_mine(table, groups)]):
            found = np.unique(others).tolist()
            raise EngineError(f"{self._describe(table)}: groups {found} are not those of slot {self.task.number}")
        if len(old) != len(groups):
            raise EngineError(f"{self._describe(table)}: got {len(groups)} rows, but replaced epochs for {len(old)}")
        new = groups[:put][old[:put] < 0]
        there, more, taken = (np.bincount(each, minlength=len(before)) for each in (groups[:put], new, groups[put:]))
        now = before + more - taken
        for group in np.flatnonzero(now < there).tolist():
            msg = f"{self._describe(table)}: group {group} cannot have {now[group]} rows now; it had {before[group]}"
            raise EngineError(f"{msg}, {there[group]} were put, {more[group]} of them new, and {taken[group]} deleted")
        renewed = np.asarray(self._before(table).renewed, np.int64)[groups]  # a base may have been written since
        return Change(delta, groups, now, np.where(old < 0, -1, np.maximum(old, renewed)))

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the changes of all tables and the bases that are due, when the operator has finished."""
        for table, opened in self._open.items():
            self._tell(table, opened)
        for table in self.operator.state_tables:
            due = np.asarray(self.epoch.renewals.get(self.operator.name, {}).get(table, ()), np.int64)
            mine = due[self._is_mine(table, due)]
            if len(mine) or table in self._changes:
                self._write(table, mine)
        for opened in self._open.values():
            for each in opened.values():
                if each.cache is not None:
                    each.cache.finish(self.task.stamp, each.table)

    def _tell(self, table: str, opened: Mapping[int, _Opened]) -> None:
        """Record the changes of a table that was opened."""
        changes = [each.table.changes(self.epoch.number) for each in opened.values()]
        put = _marked([each.put for each in changes], list(opened))
        gone = _marked([each.gone for each in changes], list(opened))
        old = zip(*(np.split(each.old, [each.put.num_rows]) for each in changes), strict=True)  # for put, then for gone
        self.change(table, put, gone, np.concatenate([part for parts in old for part in parts]))

    def _write(self, table: str, due: AnyNumbers) -> None:
        before = np.asarray(self._before(table).rows, np.int64)
        change = self._changes.get(table) or self._nothing(table)
        touched = np.unique(change.groups)
        among = np.union1d(due, touched)
        whole = among[np.isin(among, due) | (before[among] == 0) | (change.rows[among] == 0)]
        in_whole = np.isin(change.groups, whole)
        rest = change.delta.filter(pa.array(~in_whole))
        old = whole[(before[whole] > 0) & (change.rows[whole] > 0)]
        base, died = self._base(table, change.delta.filter(pa.array(in_whole)), old)
        base_groups = self._groups(table, base)
        found = np.bincount(base_groups, minlength=len(before))
        for group in whole[found[whole] != change.rows[whole]].tolist():
            now = change.rows[group]
            raise EngineError(
                f"{self._describe(table)}: group {group} should have {now} rows now, found {found[group]}"
            )
        rows = pa.concat_tables([rest, base])
        groups = np.concatenate([change.groups[~in_whole], base_groups])
        block = write_table_rows(self.epoch, self.task, rows, groups, len(before)) if rows.num_rows else None
        live = dict(zip(touched.tolist(), change.rows[touched].tolist(), strict=True))
        replaced = change.old[(change.old >= 0) & ~np.isin(change.groups, old)]
        marks = int(np.count_nonzero(np.asarray(rest.column(state_tables.DELETED_COLUMN))))
        summary = ChangeSummary(rows.num_rows - marks, marks, _counted(np.concatenate([replaced, died])))
        self.report.changed(self.operator.name, table, block, live, whole.tolist(), self._open.get(table, ()), summary)

    def _base(self, table: str, delta: pa.Table, groups: AnyNumbers) -> tuple[pa.Table, AnyNumbers]:
        """Return the present rows of `groups`, and for each row that they had before this epoch the epoch that wrote it."""
        declared, number = self._declared(table), self.epoch.number
        dated = state_tables.read_rows_with_epochs(self.task.reader, self._before(table), groups, self._describe(table))
        old = dated.drop_columns([state_tables.EPOCH_COLUMN])
        rows = state_tables.with_stored_columns(
            state_tables.live_rows(declared, [state_tables.with_stored_columns(old, number - 1), delta]), number
        )
        return rows, np.asarray(dated.column(state_tables.EPOCH_COLUMN))

    def _nothing(self, table: str) -> Change:
        rows = np.asarray(self._before(table).rows, np.int64)
        nothing = np.zeros(0, np.int64)
        return Change(state_tables.stored_schema(self._declared(table)).empty_table(), nothing, rows, nothing)

    # --- declarations and groups -------------------------------------------------------------------------------------

    def _declared(self, table: str) -> StateTable:
        if table not in self.operator.state_tables:
            raise EngineError(
                f"{self.operator.name} has no table {table!r}; it has {', '.join(self.operator.state_tables)}"
            )
        return self.operator.state_tables[table]

    def _before(self, table: str) -> TableState:
        state = self.epoch.state.get(self.operator.name)
        self._declared(table)
        return table_state(state, table, self.operator, self.epoch.groups)

    def _lying(self, table: str) -> StateTableGroups:
        return StateTableGroups.of(self.operator, self._before(table), self.epoch.groups)

    def _is_mine(self, table: str, groups: AnyNumbers) -> npt.NDArray[np.bool_]:
        lying = self._lying(table)
        return np.isin(groups // lying.parts, lying.of_groups(self.groups))

    def _rows(self, table: str, units: AnyNumbers) -> pa.Table:
        """Return all rows of some units before the epoch, with `__at`."""
        fine = self._lying(table).fine(units)
        found = state_tables.read_rows_with_epochs(self.task.reader, self._before(table), fine, self._describe(table))
        self.report.work.opened[self.operator.name] += found.nbytes
        return found

    def _groups(self, table: str, rows: pa.Table) -> AnyNumbers:
        return self._lying(table).rows(rows, self._declared(table).key)

    def _describe(self, table: str) -> str:
        return f"table {table!r} of {self.operator.name}"


def _counted(epochs: AnyNumbers) -> dict[int, int]:
    found, many = np.unique(epochs, return_counts=True)
    return dict(zip(found.tolist(), many.tolist(), strict=True))


def by_substream(table: pa.Table) -> dict[int, pa.Table]:
    """Return the rows of each substream, without the column of its number."""
    numbers = np.asarray(table.column(SUBSTREAM))
    order = np.argsort(numbers, kind="stable")
    rows = arrow.take_rows(table.drop_columns([SUBSTREAM]), order)
    found, starts = np.unique(numbers[order], return_index=True)
    pieces = zip(found.tolist(), starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=False)
    return {number: rows.slice(start, stop - start) for number, start, stop in pieces}


def _marked(parts: Sequence[pa.Table], substreams: Sequence[int]) -> pa.Table:
    """Return the rows of several substreams in one table, with the column of their number."""
    numbers = np.repeat(np.asarray(substreams, np.int32), [part.num_rows for part in parts])
    return pa.concat_tables(parts).add_column(0, pa.field(SUBSTREAM, pa.int32()), pa.array(numbers))


def write_merged_table(epoch: Epoch, task: Task, operator: Operator, table: str, blocks: Sequence[Block]) -> Block:
    """Write one block with the rows of several blocks that still count."""
    state = table_state(epoch.state.get(operator.name), table, operator, epoch.groups)
    what, fine = f"table {table!r} of {operator.name}", len(state.rows)
    found = [state_tables.open_table_block(task.reader, state, block, fine, what) for block in blocks]
    rows = state_tables.newest_rows(
        state, [state_tables.live_candidates(block, np.arange(fine), state.renewed) for block in found]
    )
    groups = np.asarray(rows.column(state_tables.GROUP))
    return write_table_rows(epoch, task, rows.drop_columns([state_tables.GROUP]), groups, fine)
