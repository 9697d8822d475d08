"""Keyed tables: whatever slots, merges and bases make of them, they hold what a plain dict holds, in little more room."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.engine.epoch import Epoch, _merge_runs
from headrace.engine.keeping import Keeping
from headrace.engine.merging import merges_of, renewals_of
from headrace.engine.outcome import tables_after
from headrace.engine.reports import Report, TaskReport
from headrace.engine.writing import Task
from headrace.processor import StateTable
from headrace.state import BlockReader, MemoryStorage, OperatorState, bases, tables
from headrace.state.manifest import TableState
from headrace.state.runs import FAN_IN

Key = tuple[Any, ...]
Rows = dict[Key, Key]  # a key with its substream, and the row that it has

PLAIN = StateTable(["k"], pa.schema([("k", pa.int64()), ("v", pa.int64())]))
KINDS = StateTable(
    ["x", "t"], pa.schema([("v", pa.int64()), ("t", pa.string()), ("w", pa.list_(pa.int8())), ("x", pa.float64())])
)


def same(value: Any) -> Any:
    """Values of a key as a dict should have them."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def by_key(declared: StateTable, rows: pa.Table) -> Rows:
    """Rows as an operator has them, as a dict; the key twice is an error."""
    found: Rows = {}
    for row in rows.to_pylist():
        key = (row["__substream"], *(same(row[name]) for name in declared.key))
        assert key not in found, key
        found[key] = tuple(
            same(row[name]) if not isinstance(row[name], list) else tuple(row[name]) for name in rows.column_names
        )
    return found


# --- many epochs -----------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A table over epochs beside a dict that has the same changes; blocks that are not named are gone at once."""

    declared: StateTable
    seed: int
    groups: int = 16
    substreams: int = 40
    rows: Rows = field(default_factory=dict)
    number: int = 0
    most_written: int = 0  # rows in one epoch, for each that changed
    written: int = 0
    changed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.storage, self.reader = MemoryStorage(), None
        grouping = SimpleNamespace(groups=lambda table, total: self.group(np.asarray(table.column("__substream"))))
        self.operator: Any = SimpleNamespace(name="op", stage=1, tables={"t": self.declared}, groupings=(grouping,))
        self.plan: Any = SimpleNamespace(operators=(), by_name={"op": self.operator})
        self.state = OperatorState()

    def group(self, substream: Any) -> Any:
        return substream * self.groups // self.substreams

    @property
    def table(self) -> TableState:
        return self.state.tables["t"]

    def epoch(self, put: Rows, gone: set[Key]) -> None:
        """One more: some slots, some of them tried twice."""
        slots = self.random.randint(1, 4)
        owners = [self.random.randrange(slots) for _ in range(self.groups)]
        known = {"op": self.state}
        epoch = Epoch(
            self.plan, self.number, "", slots, self.groups, {}, {}, known,
            merges_of(self.plan, known, slots), renewals_of(known, self.number - 1),
        )  # fmt: skip
        after = {key: row for key, row in {**self.rows, **put}.items() if key not in gone}
        reports = []
        for slot in range(slots):
            mine = [group for group in range(self.groups) if owners[group] == slot]
            for attempt in range(self.random.choice((1, 1, 2))):
                report = self.task(
                    epoch, Task(1, slot, attempt, self.storage, BlockReader(self.storage)), mine, put, gone, after
                )
            reports.append(Report.from_json(report.to_json() | {"task": list(report.task)}))
        self.state = OperatorState((), {}, tables_after(self.operator, self.state, epoch, reports))
        written = [c.block.rows for r in reports for c in r.changed if c.block] + [
            m.block.rows for r in reports for m in r.merged
        ]
        self.written, self.changed = self.written + sum(written), self.changed + len(put) + len(gone)
        self.most_written = max(self.most_written, sum(written))
        self.rows, self.number = after, self.number + 1
        kept = {block.name for block in self.table.blocks}
        assert all(block.rows for block in self.table.blocks)
        for name in self.storage.list("blocks"):
            if name not in kept:
                self.storage.delete(name)

    def task(self, epoch: Epoch, task: Task, mine: list[int], put: Rows, gone: set[Key], after: Rows) -> Report:
        report = TaskReport(task.itself)
        kept = Keeping(epoch, self.operator, task, mine, report)
        if self.random.random() < 0.8:  # what it looks at is what there was
            looked = sorted(self.random.sample(mine, self.random.randint(0, len(mine))))
            found = by_key(self.declared, kept.keyed("t", looked))
            assert found == {key: row for key, row in self.rows.items() if self.group(key[0]) in looked}
        owned = {key: row for key, row in put.items() if self.group(key[0]) in mine}
        lost = [key for key in gone if self.group(key[0]) in mine]
        touched = {self.group(key[0]) for key in (*owned, *lost)}
        if touched:
            counts = {group: sum(self.group(key[0]) == group for key in after) for group in touched}
            kept.change("t", self.as_table(owned.values()), self.as_keys(lost), counts)
        kept.write()
        _merge_runs(epoch, 1, task, report)
        return report.finished({}, [], 0.0, 0.0)

    def as_table(self, rows: Any) -> pa.Table:
        schema = tables.handed_schema(self.declared)
        return pa.Table.from_pylist([dict(zip(schema.names, map(value_of, row), strict=True)) for row in rows], schema)

    def as_keys(self, keys: list[Key]) -> pa.Table:
        names = ["__substream", *self.declared.key]
        whole = tables.handed_schema(self.declared)
        schema = pa.schema([whole.field(name) for name in names])
        return pa.Table.from_pylist([dict(zip(names, map(value_of, key), strict=True)) for key in keys], schema)

    def check(self) -> None:
        """The table is the dict; and nothing is there for long that is not needed."""
        reader = BlockReader(self.storage)
        assert by_key(self.declared, tables.read(reader, self.table, None, "the table")) == self.rows
        assert sum(self.table.rows) == len(self.rows)
        stored = sum(block.rows for block in self.table.blocks)
        assert stored <= 3.2 * len(self.rows) + 3 * bases.SMALL, (stored, len(self.rows), self.number)
        assert len(self.table.blocks) <= 20 * FAN_IN


def value_of(value: Any) -> Any:
    return math.nan if value == "nan" else list(value) if isinstance(value, tuple) else value
