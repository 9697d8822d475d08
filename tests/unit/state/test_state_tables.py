"""Keyed tables: whatever slots, merges and bases make of them, they hold what a plain dict holds, in little more room."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.driver.merge_choice import bases_to_renew, merges_for_slots
from headrace.driver.outcome import tables_after
from headrace.errors import CorruptState, EngineError, StateError
from headrace.processor import StateTable
from headrace.state import BlockReader, OperatorState, bases, block_name, state_tables
from headrace.state.blocks import Block, write_block
from headrace.state.manifest import TableState
from headrace.state.merge_planning import FAN_IN
from headrace.task import state_table_groups
from headrace.task.epoch import Epoch
from headrace.task.reports import Report, ReportBuilder
from headrace.task.slot_state_tables import SlotStateTables
from headrace.task.stages import _merge_blocks
from headrace.task.task import Task
from tests.memory import MemoryStorage

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
    written: int = 0  # rows
    merged: int = 0
    changed: int = 0
    changed_last: int = 0  # in the newest epoch
    at: dict[Key, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.storage = MemoryStorage()
        grouping = SimpleNamespace(groups=lambda table, total: self.group(np.asarray(table.column("__substream"))))
        self.operator: Any = SimpleNamespace(
            name="op", stage=1, state_tables={"t": self.declared}, groupings=(grouping,)
        )
        self.plan: Any = SimpleNamespace(operators=(), by_name={"op": self.operator})
        self.state = OperatorState()
        self.lately: deque[int] = deque(maxlen=self.groups)  # rows, over about as many epochs as all bases take

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
            merges_for_slots(self.plan, known, slots, self.number - 1),
            renewals=bases_to_renew(self.plan, known, self.number - 1, self.groups),
        )  # fmt: skip
        after = {key: row for key, row in {**self.rows, **put}.items() if key not in gone}
        reports = []
        for slot in range(slots):
            mine = [group for group in range(self.groups) if owners[group] == slot]
            for attempt in range(self.random.choice((1, 1, 2))):
                report = self.task(
                    epoch, Task(1, slot, attempt, self.storage, BlockReader(self.storage)), mine, put, gone
                )
            reports.append(Report.from_json(report.to_json() | {"task": list(report.task)}))
        before = self.state.tables.get("t")
        self.state = OperatorState((), {}, tables_after(self.operator, self.state, epoch, reports))
        written = sum(c.block.rows for r in reports for c in r.changed if c.block)
        changed = len(put) + len(gone)
        assert written <= changed + max(
            bases.RENEWED_PER_CHANGED * self.changed_last, bases.FEWEST_RENEWED, *(before.rows if before else ()), 0
        )
        self.written, self.changed, self.changed_last = self.written + written, self.changed + changed, changed
        self.merged += sum(m.block.rows for r in reports for m in r.merged)
        self.at |= dict.fromkeys(put, self.number)
        self.rows, self.number = after, self.number + 1
        self.lately.append(len(after))
        kept = {block.name for block in self.table.blocks}
        assert all(block.rows for block in self.table.blocks)
        for name in self.storage.list("blocks"):
            if name not in kept:
                self.storage.delete(name)

    def task(self, epoch: Epoch, task: Task, mine: list[int], put: Rows, gone: set[Key]) -> Report:
        report = ReportBuilder(task.itself, task.stamp)
        kept = SlotStateTables(epoch, self.operator, task, mine, report)
        if self.random.random() < 0.8:  # what it looks at is what there was
            looked = sorted(self.random.sample(mine, self.random.randint(0, len(mine))))
            found = by_key(self.declared, kept.keyed("t", looked).drop_columns([state_tables.EPOCH_COLUMN]))
            assert found == {key: row for key, row in self.rows.items() if self.group(key[0]) in looked}
        owned = {key: row for key, row in put.items() if self.group(key[0]) in mine}
        lost = [key for key in gone if self.group(key[0]) in mine and key in self.rows]
        if owned or lost:
            old = np.array([self.at[key] if key in self.rows else -1 for key in (*owned, *lost)], np.int64)
            kept.change("t", self.as_table(owned.values()), self.as_keys(lost), old)
        kept.write()
        _merge_blocks(epoch, 1, task, report)
        return report.finished({}, [], 0.0, 0.0)

    def as_table(self, rows: Any) -> pa.Table:
        schema = state_tables.handed_schema(self.declared)
        return pa.Table.from_pylist([dict(zip(schema.names, map(value_of, row), strict=True)) for row in rows], schema)

    def as_keys(self, keys: list[Key]) -> pa.Table:
        names = ["__substream", *self.declared.key]
        whole = state_tables.handed_schema(self.declared)
        schema = pa.schema([whole.field(name) for name in names])
        return pa.Table.from_pylist([dict(zip(names, map(value_of, key), strict=True)) for key in keys], schema)

    def check(self) -> None:
        """The table is the dict; and nothing is there for long that is not needed."""
        reader = BlockReader(self.storage)
        assert by_key(self.declared, state_tables.read_rows(reader, self.table, None, "the table")) == self.rows
        assert sum(self.table.rows) == len(self.rows)
        self.check_ages()
        stored = sum(block.rows for block in self.table.blocks)
        assert stored <= 3 * max(self.lately) + 3 * bases.SMALL, (stored, self.lately, self.number)
        assert len(self.table.blocks) <= 20 * FAN_IN

    def check_ages(self) -> None:
        """What is known of epochs is what there is."""
        found = state_tables.read_rows_with_epochs(BlockReader(self.storage), self.table, None, "the table")
        at = np.asarray(found.column("__at"))
        assert [age.live for age in self.table.ages] == [
            int(np.count_nonzero((at >= age.first) & (at <= age.last))) for age in self.table.ages
        ]
        assert sum(age.live for age in self.table.ages) == len(at) and len(self.table.ages) <= bases.MOST_AGES


SIGNS = itertools.cycle((0.0, -0.0))


def value_of(value: Any) -> Any:
    if isinstance(value, float) and value == 0:
        return next(SIGNS)
    return math.nan if value == "nan" else list(value) if isinstance(value, tuple) else value


Workload = Callable[[World, int], tuple[Rows, set[Key]]]


def plain(rows: Mapping[tuple[int, Any], int]) -> Rows:
    """Rows of `PLAIN`: (substream, key) and a value."""
    return {key: (*key, value) for key, value in rows.items()}


def updates(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    """The same keys over and over."""
    keys = [world.random.randrange(400) for _ in range(40)] if epoch else range(400)
    return plain({(k % 40, k): epoch for k in keys}), set()


def growing(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    return plain({(k % 40, k): k for k in range(12 * epoch, 12 * epoch + 12)}), set()


def sessions(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    """Keys that live for a few epochs; most groups are empty now and then."""
    new = {(world.random.randrange(40), 100 * epoch + k): k for k in range(world.random.randrange(30))}
    return plain(new), {key for key in world.rows if key[1] < 100 * (epoch - 3)}


def waves(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    """Filled, and emptied, and still for a while; the same keys come again."""
    if epoch % 40 < 20:
        return plain({(k % 40, k): epoch for k in range(epoch % 40 * 30, epoch % 40 * 30 + 50)}), set()
    return {}, {key for key in world.rows if world.random.random() < 0.5} if epoch % 40 < 30 else set()


def one_substream(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    gone = {(7, world.random.randrange(300)) for _ in range(10)}
    put = {(7, None if k == 299 else k): epoch for k in (world.random.randrange(300) for _ in range(30))}
    return plain({key: value for key, value in put.items() if key not in gone}), gone


def quiet(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    """Much at first, then next to nothing."""
    if epoch < 15:
        return plain({(k % 40, k): epoch for k in range(600)}), set()
    return plain({(3, 3): epoch}), set() if epoch % 20 else set(list(world.rows)[:200]) - {(3, 3)}


def kinds(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    """Keys of numbers with NaN and zeros, text and nulls; deletes of what is not there."""
    r = world.random

    def key() -> Key:
        return r.randrange(40), r.choice((0.0, "nan", None, 1.5, -1e300)), r.choice((None, "", "ä", "a\0", "b" * 40))

    gone = {key() for _ in range(r.randrange(25))}
    put = {key(): epoch for _ in range(r.randrange(40))}
    rows = {k: (k[0], epoch, k[2], (epoch % 100, None) if epoch % 3 else None, k[1]) for k in put if k not in gone}
    return rows, gone


def rounds(world: World, epoch: int) -> tuple[Rows, set[Key]]:
    """A fifth of all keys after the other, over and over."""
    return plain({(k % 40, k): epoch for k in range(epoch % 5, 600, 5)}), set()


WORKLOADS: dict[str, tuple[StateTable, Workload]] = {
    work.__name__: (KINDS if work is kinds else PLAIN, work)
    for work in (updates, growing, sessions, waves, one_substream, quiet, kinds, rounds)
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large for tables of some hundred rows."""
    for name, value in {"SMALL": 60, "FEWEST_RENEWED": 10, "MERGE_ROWS_ALLOWED": 250, "MOST_AGES": 24}.items():
        monkeypatch.setattr(bases, name, value)
    monkeypatch.setattr(state_table_groups, "FINE", 48)  # three parts of each group


def lived(kind: str, seed: int, epochs: int = 90, every: int = 3) -> World:
    declared, work = WORKLOADS[kind]
    world = World(declared, seed)
    for epoch in range(epochs):
        world.epoch(*work(world, epoch))
        if epoch % every == 0:
            world.check()
    world.check()
    return world


@pytest.mark.parametrize("kind", WORKLOADS)
@pytest.mark.parametrize(
    "seed",
    [0, pytest.param(1, marks=pytest.mark.thorough), *(pytest.param(n, marks=pytest.mark.long) for n in range(2, 6))],
)
def test_a_table_is_what_a_dict_is(kind: str, seed: int) -> None:
    world = lived(kind, seed)
    assert world.written <= 3 * world.changed and world.merged <= 5 * world.changed
    if kind in ("growing", "rounds"):
        assert world.written == world.changed, "what is only added to, or all written again anyway, needs no base"


@pytest.mark.thorough
def test_that_is_seen_of_every_kind() -> None:
    """The simulation comes to what it is about: bases, merges, groups that are emptied."""
    world = lived("sessions", 1, 60)
    assert world.merged and all(n > 30 for n, rows in zip(world.table.renewed, world.table.rows, strict=True) if rows)
    world = lived("updates", 1, 60)
    assert world.written > 1.3 * world.changed and len(set(world.table.renewed)) > 4, "a few groups at a time"
    assert any(block.low != block.high for block in world.table.blocks), "blocks that span epochs"


# --- broken on purpose -----------------------------------------------------------------------------------------------


def broken_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge drops tombstones, though what they hide may lie elsewhere."""
    real = state_tables.newest_rows
    monkeypatch.setattr(state_tables, "newest_rows", lambda declared, parts: not_gone(real(declared, parts)))


def not_gone(rows: pa.Table) -> pa.Table:
    return rows.filter(pa.array(~np.asarray(rows.column(state_tables.DELETED_COLUMN))))


def broken_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest row of a key counts."""
    real = state_tables.newest_rows

    def turned(rows: pa.Table) -> pa.Table:
        at = pa.array(-np.asarray(rows.column(state_tables.EPOCH_COLUMN)))
        return rows.set_column(rows.column_names.index(state_tables.EPOCH_COLUMN), state_tables.EPOCH_COLUMN, at)

    monkeypatch.setattr(
        state_tables, "newest_rows", lambda declared, parts: turned(real(declared, [turned(p) for p in parts]))
    )


def broken_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base is that of before the epoch."""
    real = SlotStateTables._base
    monkeypatch.setattr(
        SlotStateTables,
        "_base",
        lambda self, table, delta, groups: real(self, table, delta if not len(groups) else delta.slice(0, 0), groups),
    )


def broken_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What two attempts of a task wrote counts, not what one did."""
    real = ReportBuilder.finished
    told: dict[tuple[int, int], list[Any]] = {}

    def finished(self: ReportBuilder, *given: Any) -> Report:
        report = real(self, *given)
        before = told.setdefault((id(monkeypatch), self.task.number), [])
        if self.task.attempt:
            report = replace(report, changed=[*before, *report.changed])
        before[:] = report.changed
        return report

    monkeypatch.setattr(ReportBuilder, "finished", finished)


def broken_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block goes when its oldest rows are dead."""

    def needed(blocks: Any, renewed: Any, rows: Any, ages: Any) -> tuple[Block, ...]:
        oldest = min((e for e, n in zip(renewed, rows, strict=True) if n), default=1 << 60)
        return tuple(block for block in blocks if block.rows and block.low >= oldest)

    monkeypatch.setattr(bases, "needed_blocks", needed)


def broken_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that was changed counts as renewed."""
    real = ReportBuilder.changed
    monkeypatch.setattr(
        ReportBuilder,
        "changed",
        lambda self, o, t, block, rows, renewed, *more: real(self, o, t, block, rows, [*renewed, *rows], *more),
    )


def broken_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block without live rows goes though its tombstones hide what lies elsewhere."""
    real = bases.needed_blocks
    monkeypatch.setattr(
        bases,
        "needed_blocks",
        lambda b, renewed, rows, ages: real(b, renewed, rows, [replace(age, gone=0) for age in ages]),
    )


def broken_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replaced counts as written by the epoch before."""
    real = SlotStateTables.change

    def change(self: SlotStateTables, table: str, put: Any, gone: Any, old: Any) -> None:
        real(self, table, put, gone, np.where(old < 0, -1, self.epoch.number - 1))

    monkeypatch.setattr(SlotStateTables, "change", change)


BROKEN = (
    broken_tombstones,
    broken_order,
    broken_renewal,
    broken_attempts,
    broken_drop,
    broken_base,
    broken_marks,
    broken_ages,
)


@pytest.mark.thorough
@pytest.mark.parametrize("broken", BROKEN)
def test_broken_ones_are_seen(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises((AssertionError, StateError, EngineError)):
        with monkeypatch.context() as patched:
            broken(patched)
            lived("kinds", 2, 60, every=1)
            lived("waves", 2, 40, every=1)  # epochs of tombstones alone


@pytest.mark.parametrize("broken", [broken_order, broken_renewal])
def test_numbers_alone_are_not_what_sees_them(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is wrong though the number of rows is right."""
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        lived("updates", 2, 60, every=1)


# --- rows ------------------------------------------------------------------------------------------------------------


def part(declared: StateTable, epoch: int, *rows: Key) -> pa.Table:
    schema = state_tables.handed_schema(declared)
    given = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return state_tables.with_stored_columns(pa.Table.from_pylist(given, schema), epoch)


@pytest.mark.parametrize(
    ("epochs", "substreams", "stored"),
    [
        ([7, 7, 7], [0, 1, 255], {"__substream": pa.uint8()}),
        ([7, 262, 7], [0, 1, 256], {"__substream": pa.uint16(), "__at": pa.uint8()}),
        ([0, 256, 7], [0, 65_535, 0], {"__substream": pa.uint16(), "__at": pa.uint16()}),
        ([5, 5 + 65_536, 7], [0, 65_536, 0], {"__substream": pa.int32(), "__at": pa.uint32()}),
        ([5, 5 + (1 << 32), 7], [0, -1, 0], {"__substream": pa.int32(), "__at": pa.int64()}),
        ([], [], {"__substream": pa.int32(), "__at": pa.int64()}),
    ],
)
def test_rows_take_no_more_bytes_than_they_need(
    epochs: list[int], substreams: list[int], stored: dict[str, pa.DataType]
) -> None:
    values = zip(epochs, substreams, strict=True)
    whole = state_tables.stored_schema(PLAIN).empty_table()
    rows = pa.concat_tables([whole, *(part(PLAIN, epoch, (s, n, n)) for n, (epoch, s) in enumerate(values))])
    narrow = state_tables.narrow_columns(rows)
    assert {
        name: narrow.schema.field(name).type for name in narrow.column_names if name in state_tables.NARROW
    } == stored
    low = min(epochs, default=0)
    assert state_tables.widen_columns(narrow, low).equals(rows)
    assert state_tables.widen_columns(narrow.slice(1), low).equals(rows.slice(1))
    assert state_tables.widen_columns(rows, low) is rows, "rows of full width"


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows,
        lambda rows: rows.drop_columns(["__at"]),
        lambda rows: rows.set_column(1, "__at", pa.array([0, 2], pa.uint16())),
        lambda rows: rows.set_column(1, "__at", pa.array([1, 3], pa.uint8())),
        lambda rows: rows.set_column(1, "__at", pa.array([0, 3], pa.uint64())),
        lambda rows: rows.set_column(1, "__at", pa.array([0, None], pa.uint8())),
        lambda rows: rows.set_column(0, "__substream", pa.array([1, 2], pa.uint32())),
        lambda rows: rows.set_column(0, "__substream", pa.array([1, 2], pa.int16())),
        lambda rows: rows.set_column(0, "__substream", pa.array([1, None], pa.uint8())),
        lambda rows: rows.drop_columns(["__substream"]),
    ],
)
def test_a_block_that_is_no_part_of_a_table_is_refused(change: Callable[[pa.Table], pa.Table]) -> None:
    rows = pa.concat_tables([part(PLAIN, 5, (1, 1, 1)), part(PLAIN, 8, (2, 2, 2))])
    storage, name = MemoryStorage(), block_name(8, 1, 0, 0)
    block = write_block(storage, name, change(rows), np.array([0, 1, 2]), 5, 8)
    if change(rows) is rows:  # in full
        found = state_tables.open_table_block(BlockReader(storage), PLAIN, block, 2, "t")
        assert state_tables.live_candidates(found, np.arange(2), (0, 0)).drop_columns(["__group"]).equals(rows)
    else:
        with pytest.raises(
            CorruptState, match=f"block {name} (does not belong to t|should have rows of the epochs 5 to 8)"
        ):
            state_tables.open_table_block(BlockReader(storage), PLAIN, block, 2, "t")


def test_the_newest_row_counts_in_whatever_order_blocks_come() -> None:
    parts = [part(PLAIN, 3, (1, 7, 30)), part(PLAIN, 5, (1, 7, 50), (2, 7, 51)), part(PLAIN, 4, (1, 7, 40), (1, 8, 41))]
    for order in itertools.permutations(parts):
        assert by_key(PLAIN, state_tables.live_rows(PLAIN, order)) == {
            (1, 7): (1, 7, 50),
            (2, 7): (2, 7, 51),
            (1, 8): (1, 8, 41),
        }


def test_a_key_has_one_row_in_an_epoch() -> None:
    with pytest.raises(CorruptState, match="a key of k occurs twice in the rows of one epoch"):
        state_tables.live_rows(PLAIN, [part(PLAIN, 3, (1, 7, 30)), part(PLAIN, 3, (1, 7, 31))])
    put, gone = pa.table({"__substream": [1], "k": [7], "v": [1]}), pa.table({"__substream": [1], "k": [7]})
    with pytest.raises(StateError, match="names a key twice"):
        state_tables.changed_rows(PLAIN, put, gone, 3)
    with pytest.raises(StateError, match=r"the keys to delete must have the columns \['__substream', 'k'\]; found"):
        state_tables.changed_rows(PLAIN, put, put, 3)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [0.0, math.nan, None, math.inf, -math.inf, 5e-324]),
        (pa.float32(), [0.0, math.nan, None, 1.5]),
        (pa.int64(), [None, 0, -(2**63), 2**63 - 1]),
        (pa.uint64(), [None, 0, 2**64 - 1, 2**63]),
        (pa.int8(), [None, -128, 127, 0]),
        (pa.bool_(), [None, True, False]),
        (pa.string(), [None, "", "a", "A", "ä", "a\0"]),
        (pa.binary(), [None, b"", b"\xff"]),
        (pa.date32(), [None, 0, -1]),
        (pa.time64("us"), [None, 0, 1]),
        (pa.timestamp("us", "UTC"), [None, 0, -(2**62), 2**62]),
        (pa.decimal128(38, 2), [None, 0, 1]),
    ],
)
def test_keys_of_every_type(kind: pa.DataType, values: list[Any]) -> None:
    """Each value is a key of its own, alone and beside others that leave little room to pack them."""
    declared: Any = SimpleNamespace(
        key=("a", "k", "z"), columns=pa.schema([("a", pa.int64()), ("k", kind), ("z", pa.int64())])
    )
    ticks = pa.int32() if kind == pa.date32() else pa.int64()
    column = pa.array(values, ticks).cast(kind) if pa.types.is_temporal(kind) else pa.array(values, kind)
    for far in (1, 2**62):
        rows = pa.table(
            {
                "__substream": pa.array([3] * len(values), pa.int32()),
                "a": pa.array([-far] * (len(values) - 1) + [far]),
                "k": column,
                "z": pa.array([far] * len(values)),
            }
        )
        twice = [
            state_tables.with_stored_columns(rows, 1),
            state_tables.with_stored_columns(rows.take(pa.array(range(len(values))[::-1])), 2),
        ]
        assert state_tables.newest_rows(declared, twice).column(state_tables.EPOCH_COLUMN).to_pylist() == [2] * len(
            values
        )


def test_a_key_may_be_the_substream_alone() -> None:
    declared: Any = SimpleNamespace(key=(), columns=pa.schema([("first", pa.int64())]))
    parts = [part(declared, 1, (1, 10), (2, 20)), part(declared, 2, (1, 11))]
    assert state_tables.live_rows(declared, parts).sort_by("__substream").to_pylist() == [
        {"__substream": 1, "first": 11},
        {"__substream": 2, "first": 20},
    ]


def test_minus_zero_and_nan_are_one_key() -> None:
    rows = [(1, 1, None, None, x) for x in (0.0, math.nan)], [(1, 2, None, None, x) for x in (-0.0, -math.nan)]
    found = state_tables.live_rows(KINDS, [part(KINDS, 1, *rows[0]), part(KINDS, 2, *rows[1])])
    assert found.column("v").to_pylist() == [2, 2]


def test_a_million_rows_take_less_than_a_second() -> None:
    r = np.random.default_rng(0)
    parts = []
    for epoch in range(5):
        keys = np.concatenate([np.arange(100_000), r.permutation(100_000) * 9_999_991 + epoch * 10**13 + 10**6])
        rows = {"__substream": pa.array(keys % 64, pa.int32()), "k": keys, "v": keys}
        parts.append(state_tables.with_stored_columns(pa.table(rows), epoch))
    begun = time.process_time()
    found = state_tables.live_rows(PLAIN, parts)
    assert time.process_time() - begun < 1.0
    assert found.num_rows == 600_000


# --- how large it becomes --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Age:
    state: TableState
    written: int  # rows
    merged: tuple[int, ...]  # rows of each merge


def aged(live: int, changed: int, epochs: int, slots: int, groups: int = 1024) -> Iterator[Age]:
    """A table of many rows that go on changing, by its numbers alone; merging is taken to drop nothing."""
    empty = TableState(("k",), PLAIN.columns, (), (-1,) * groups, (0,) * groups)
    rows = (live // groups,) * groups
    somewhere = (bases.EpochRange(0, epochs, live, 0),)  # any block may have a live row
    state = replace(empty, blocks=(block(0, live, 0, 0),), renewed=(0,) * groups, rows=rows)
    for number in range(1, epochs):
        due = bases.groups_to_renew(state, number - 1, 8)
        renewed = tuple(number if group in due else epoch for group, epoch in enumerate(state.renewed))
        written = (changed + sum(rows[group] for group in due)) // slots
        runs = bases.runs_to_merge(state, number - 1)
        gone = {each.name for run in runs for each in run}
        merged = [block(number, sum(b.rows for b in run), bounds(run, min), bounds(run, max)) for run in runs]
        blocks = [b for b in state.blocks if b.name not in gone] + merged
        blocks += [block(number, written, number, number) for _ in range(slots)]
        state = replace(state, blocks=bases.needed_blocks(blocks, renewed, rows, somewhere), renewed=renewed)
        yield Age(state, written * slots, tuple(each.rows for each in merged))


def block(epoch: int, rows: int, low: int, high: int) -> Block:
    return Block(block_name(epoch, 1, 0, 0), rows, "0" * 32, rows, low, high)


def bounds(run: tuple[Block, ...], which: Callable[..., int]) -> int:
    return which(bound for each in run for bound in (each.low, each.high))


@pytest.mark.parametrize(
    ("live", "changed", "slots"),
    [
        (10_000_000, 50_000, 2),
        (1_000_000, 20_000, 4),
        (30_000, 9000, 4),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in ((1_000_000, 400, 4), (10_000_000, 50_000, 16), (10_000_000, 3000, 2), (100_000_000, 50_000, 8))
        ),
    ],
)
def test_a_large_table_stays_small(live: int, changed: int, slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real numbers
    epochs = min(20 * live // changed, 600)
    history = list(aged(live, changed, epochs, slots))
    stored = [sum(b.rows for b in age.state.blocks) for age in history]
    assert max(stored) < 3.1 * live + bases.SMALL
    assert max(len(age.state.blocks) for age in history) < 500
    assert sum(age.written for age in history) < 3 * changed * epochs
    assert max(age.written for age in history) <= changed + max(bases.RENEWED_PER_CHANGED * changed, live // 1024)
    most = max(bases.MERGE_ROWS_ALLOWED, 2 * changed, max(stored) // bases.SHARE)
    assert max(max(age.merged, default=0) for age in history) <= most
    # blocks below 4,096 rows all count as small, so a small one is merged along with every seven that follow it
    assert sum(sum(age.merged) for age in history) < 5 * sum(age.written for age in history)
    assert max(sum(age.merged) for age in history) <= 2 * most


@pytest.mark.parametrize(
    ("many", "size", "merges"), [(40, 100 << 10, True), (40, 10 << 20, False), (900, 10 << 20, True)]
)
def test_blocks_of_much_are_merged_only_if_they_are_many(
    many: int, size: int, merges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few rows may be many bytes: what a merge writes beside an epoch is bounded in both."""
    monkeypatch.undo()
    blocks = tuple(replace(block(number, 100, number, number), bytes=size) for number in range(many))
    state = TableState(("k",), PLAIN.columns, blocks, (0,) * 8, (many * 10,) * 8)
    runs = bases.runs_to_merge(state, many - 1)
    assert bool(runs) is merges
    assert all(sum(b.bytes for b in run) <= max(bases.LITTLE, many * size // bases.SHARE) for run in runs)
