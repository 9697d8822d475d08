"""Keyed tables in a run: driver, slots, manifests and looks at them, with an operator that is made for it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace import operators
from headrace.driver.position import Position
from headrace.errors import CorruptState, EngineError, HeadraceError, QueryError, StateError
from headrace.operators.base import Results, Slot
from headrace.operators.distinct import DistinctOperator
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.processor import StateTable
from headrace.query import nodes
from headrace.routing import Diagonal, Grouping
from headrace.sources.protocol import PhysicalWindow
from headrace.state import bases, state_tables
from headrace.state.manifest import _seal
from headrace.state.store import StateStore
from headrace.stream import node_of
from headrace.task import state_table_groups
from headrace.task.in_process import execute_locally
from headrace.telemetry import table_sizes
from headrace.testing import LocalRun, table_stream
from headrace.tools import plan_file
from tests.fuzz.mutating import changed

SUBSTREAMS = 24
GROUPS = 12
TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TS), ("s", pa.int32()), ("k", pa.string()), ("v", pa.int64())])
SUMS = StateTable(["k"], pa.schema([("total", pa.int64()), ("k", pa.string())]))
LAST = StateTable(["ts"], pa.schema([("ts", TS), ("substream", pa.int32())]))

Sums = dict[tuple[int, str | None], int]


@dataclass(frozen=True)
class BySubstream(Grouping):
    drop_null: ClassVar[bool] = False
    keeps_hash: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    def groups(self, table: pa.Table, total: int) -> Any:
        column = table.column("__substream" if "__substream" in table.column_names else "s")
        return (np.asarray(column).astype(np.int64) * total // SUBSTREAMS).astype(np.int32)

    def reach(self, table: pa.Table, groups: Any) -> int:
        return 0


@dataclass(frozen=True)
class Summing(DistinctOperator):
    """The sum of `v` for every (s, k); a tuple whose `v` is 0 deletes it. And the first time of every substream."""

    state_tables: ClassVar[Mapping[str, StateTable]] = {"sums": SUMS, "last": LAST}
    placement: ClassVar[None] = None

    def run(self, slot: Slot) -> Results:
        groups = slot.groups(0)
        arrived = [row for rows in slot.rows(0) for row in rows.to_pylist()]
        if not groups:
            return
        rows = slot.keyed("sums", groups).to_pylist()
        held = {(row["__substream"], row["k"]): row["total"] for row in rows}
        before, touched = {(row["__substream"], row["k"]): row["__at"] for row in rows}, set()
        for row in sorted(arrived, key=lambda row: row["ts"]):
            apply(held, row)
            touched.add((row["s"], row["k"]))
        if touched:
            put = [(*key, held[key]) for key in sorted(touched, key=str) if key in held]
            gone = [key for key in sorted(touched & before.keys(), key=str) if key not in held]
            old = np.array([before.get(key[:2], -1) for key in (*put, *gone)], np.int64)
            slot.change("sums", as_rows(put, "s", "k", "total"), as_rows(gone, "s", "k"), old)
        yield 0, self.schema.empty_table()


def apply(held: Sums, row: Mapping[str, Any]) -> None:
    key = row["s"], row["k"]
    if row["v"]:
        held[key] = held.get(key, 0) + row["v"]
    else:
        held.pop(key, None)


def as_rows(rows: list[Any], *names: str) -> pa.Table:
    kinds = {"s": pa.int32(), "k": pa.string(), "total": pa.int64()}
    columns = [pa.array([row[i] for row in rows], kinds[name]) for i, name in enumerate(names)]
    return pa.table(columns, ["__substream", *names[1:]])


def planned(node: nodes.Distinct, sofar: PlanBuilder) -> Flow:
    flows = sofar.flows(node.input)
    name, stage, groupings = sofar.name("sum"), stage_after(flows), (BySubstream(("s",)),)
    return sofar.add(Summing(name, stage, (node.schema,), node.schema, groupings, node.by, node.within), flows)


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(operators.PLANNERS, nodes.Distinct, planned)  # type: ignore[arg-type]
    for name, value in {"SMALL": 40, "FEWEST_RENEWED": 10, "MERGE_ROWS_ALLOWED": 150}.items():
        monkeypatch.setattr(bases, name, value)
    monkeypatch.setattr(state_table_groups, "FINE", 3 * GROUPS)


def query() -> hr.Stream:
    return table_stream(SCHEMA.empty_table(), name="in", lateness="1000 days").distinct(by=["s"], within="1 second")


@dataclass
class Summed:
    """A run beside a dict."""

    folder: Path
    seed: int = 0

    def __post_init__(self) -> None:
        self.random, self.held, self.clock = random.Random(self.seed), Sums(), 0
        self.run = self.opened(2)
        plan_file.write_plan(self.folder, [node_of(query())], query().plan())

    def opened(self, slots: int) -> LocalRun:
        store = StateStore.open(self.folder / "state", fsync=False)
        return LocalRun(query(), self.folder, slots=slots, groups=GROUPS, store=store, layouts=self.layout)

    def layout(self, operator: Any, groups: int, slots: int) -> Diagonal:
        return Diagonal(tuple(self.random.randrange(slots) for _ in range(groups)), slots)

    def reopen(self) -> None:
        self.run.close()
        self.run = self.opened(self.random.choice((1, 2, 3, 5)))

    def epoch(self, rows: int | None = None) -> None:
        """Some tuples; sometimes all tasks run twice, and what they wrote first is nobody's."""
        r, given = self.random, []
        for _ in range(r.randrange(60) if rows is None else rows):
            self.clock += 1
            key = r.randrange(SUBSTREAMS) if r.random() < 0.8 else 5, r.choice((None, "", *"abcdefgh"))
            given.append({"ts": self.clock, "s": key[0], "k": key[1], "v": r.choice((0, 1, 2, -7))})
            apply(self.held, given[-1])
        table = pa.table({name: [row[name] for row in given] for name in SCHEMA.names}, SCHEMA)
        windows = [[PhysicalWindow("in", table)]]

        def execute(epoch: Any) -> Any:
            for _ in range(r.choice((1, 2))):
                messages = execute_locally(epoch, windows, self.run.store.storage)
            return messages

        self.run.driver.run_epoch(Position("local"), execute)

    def rows(self) -> list[tuple[int, str | None, int]]:
        """As `read_state` should have them."""
        ordered = sorted(self.held, key=lambda key: (key[0], key[1] is None, (key[1] or "").encode()))
        return [(*key, self.held[key]) for key in ordered]


@pytest.fixture
def summed(tmp_path: Path) -> Iterator[Summed]:
    made = Summed(tmp_path)
    yield made
    made.run.close()


def found(folder: Path) -> list[tuple[int, str | None, int]]:
    table = hr.read_state(folder, "sum-1", "sums")
    assert table.schema == pa.schema([("total", pa.int64()), ("k", pa.string()), ("substream", pa.int64())])
    return [(row["substream"], row["k"], row["total"]) for row in table.to_pylist()]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 10))])
def test_a_run_holds_what_a_dict_holds(seed: int, tmp_path: Path) -> None:
    summed = Summed(tmp_path, seed)
    spans = 0
    for _ in range(40):
        summed.epoch()
        assert found(tmp_path) == summed.rows()
        if summed.random.random() < 0.3:
            summed.reopen()
            assert found(tmp_path) == summed.rows()
        state = summed.run.store.last.operators["sum-1"].tables["sums"]
        spans += any(block.low != block.high for block in state.blocks)
        assert len(state.blocks) < 60
    oldest = min(epoch for epoch, rows in zip(state.renewed, state.rows, strict=True) if rows)
    assert len(set(state.renewed)) > 1 and oldest > 5 and spans, "bases were renewed, and blocks merged"
    summed.run.close()


def test_what_was_not_committed_is_not_there(summed: Summed, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        summed.epoch()
    before, known = summed.rows(), dict(summed.held)
    with monkeypatch.context() as patched:
        patched.setattr(StateStore, "commit", lambda self, manifest: (_ for _ in ()).throw(StateError("killed")))
        with pytest.raises(StateError, match="killed"):
            summed.epoch(rows=50)
    summed.held = known
    assert found(summed.folder) == before
    summed.reopen()
    summed.epoch()
    assert found(summed.folder) == summed.rows()


# --- looks -----------------------------------------------------------------------------------------------------------


def test_a_run_that_deletes_blocks_meanwhile_is_read_again(summed: Summed, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        summed.epoch(rows=50)
    real, went_on = state_tables.open_table_block, []

    def opened(*given: Any) -> Any:
        if not went_on:
            went_on.append(True)
            for _ in range(12):
                summed.epoch(rows=50)
        return real(*given)

    monkeypatch.setattr(state_tables, "open_table_block", opened)
    assert found(summed.folder) == summed.rows()


def test_a_block_that_is_lost_is_said(summed: Summed) -> None:
    summed.epoch(rows=50)
    [block, *_] = summed.run.store.last.operators["sum-1"].tables["sums"].blocks
    path = summed.folder / "state" / block.name
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptState, match="is damaged"):
        found(summed.folder)


def test_what_is_not_there_is_named(summed: Summed, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="has not finished an epoch"):
        found(summed.folder)
    summed.epoch()
    with pytest.raises(QueryError, match="this run has no operator 'sums' with tables; operators with tables: sum-1"):
        hr.read_state(summed.folder, "sums", "sums")
    with pytest.raises(QueryError, match="sum-1 has no table 'sum'; its tables are last, sums"):
        hr.read_state(summed.folder, "sum-1", "sum")
    with pytest.raises(StateError, match="give the checkpoint of a run"):
        hr.read_state(tmp_path / "nowhere", "sum-1", "sums")


def test_a_table_without_rows_has_its_columns(summed: Summed) -> None:
    summed.epoch()
    table = hr.read_state(summed.folder, "sum-1", "last")
    assert table.num_rows == 0 and table.column_names == ["ts", "substream", "__substream"], "its own name is taken"


def by_group(rows: tuple[int, ...]) -> list[int]:
    return np.array(rows).reshape(GROUPS, -1).sum(1).tolist()


def test_sizes(summed: Summed) -> None:
    summed.epoch(rows=80)
    summed.epoch(rows=80)
    before, last = summed.run.store.previous, summed.run.store.last
    size = table_sizes.table_sizes(last, before)["sum-1"]["sums"]
    state = last.operators["sum-1"].tables["sums"]
    assert len(state.rows) == 3 * GROUPS
    now, was = (by_group(each.operators["sum-1"].tables["sums"].rows) for each in (last, before))
    assert size.rows == len(summed.held) and size.bytes == sum(block.bytes for block in state.blocks)
    assert size.largest[0] == table_sizes.GroupSize(2, 2, now[2]), "substream 5 is in it"
    assert [share.rows for share in size.largest] == sorted(now, reverse=True)[:5]
    assert size.grown == size.rows - sum(was) and size.growing[0].rows == max(
        n - w for n, w in zip(now, was, strict=True)
    )
    assert table_sizes.table_sizes(last, None)["sum-1"]["sums"].grown == 0, "it is not known"
    assert table_sizes.table_sizes(last, None)["sum-1"]["last"] == table_sizes.TableSize(0, 0, 0, 0, ())


# --- what cannot be ----------------------------------------------------------------------------------------------------

NOTHING = as_rows([], "s", "k", "total"), as_rows([], "s", "k")
ONE, NEW, OLD = as_rows([(1, "a", 1)], "s", "k", "total"), np.full(1, -1), np.zeros(1, np.int64)
WRONG: dict[str, tuple[Callable[[Slot], Any], str]] = {
    "a table that is none": (lambda slot: slot.keyed("other", [0]), "sum-1 has no table 'other'; it has sums, last"),
    "twice": (
        lambda slot: [slot.change("sums", *NOTHING, NEW[:0]) for _ in range(2)],
        "table 'sums' of sum-1 was changed twice in one epoch",
    ),
    "columns": (
        lambda slot: slot.change("sums", NOTHING[1], NOTHING[1], NEW[:0]),
        "the rows to put must have the columns",
    ),
    "a key twice": (
        lambda slot: slot.change("sums", as_rows([(1, "a", 1)] * 2, "s", "k", "total"), NOTHING[1], np.full(2, -1)),
        "names a key twice",
    ),
    "new or not": (
        lambda slot: slot.change("sums", ONE, NOTHING[1], NEW[:0]),
        "got 1 rows, but replaced epochs for 0",
    ),
    "old that was not there": (
        lambda slot: slot.change("sums", ONE, NOTHING[1], OLD),
        r"group \d+ cannot have 0 rows now; it had 0, 1 were put, 0 of them new, and 0 deleted",
    ),
    "gone that was not there": (
        lambda slot: slot.change("sums", NOTHING[0], ONE.select(["__substream", "k"]), OLD),
        r"group \d+ cannot have -1 rows now; it had 0, 0 were put, 0 of them new, and 1 deleted",
    ),
}


def test_another_slots_group_is_refused(summed: Summed, monkeypatch: pytest.MonkeyPatch) -> None:
    summed.run.close()
    monkeypatch.setattr(summed, "layout", lambda operator, groups, slots: Diagonal.even(groups, 2))
    summed.run = summed.opened(2)
    monkeypatch.setattr(Summing, "run", lambda self, slot: iter([slot.change("sums", ONE, NOTHING[1], NEW)][:0]))
    with pytest.raises(EngineError, match=r"groups \[\d\] are not those of slot 1"):
        summed.epoch()


@pytest.mark.parametrize("case", WRONG)
def test_an_operator_that_is_wrong_is_told(case: str, summed: Summed, monkeypatch: pytest.MonkeyPatch) -> None:
    does, message = WRONG[case]
    summed.run.close()
    monkeypatch.setattr(summed, "layout", lambda operator, groups, slots: Diagonal.even(groups, 1))
    summed.run = summed.opened(1)
    monkeypatch.setattr(Summing, "run", lambda self, slot: iter([does(slot)][:0]))
    with pytest.raises(EngineError, match=message):
        summed.epoch()
    assert summed.run.store.last is None


def table_of(body: Any) -> Any:
    return body["operators"]["sum-1"]["tables"]["sums"]


def filled(body: Any) -> int:
    """The group that has most rows."""
    rows = table_of(body)["rows"]
    return rows.index(max(rows))


NONSENSE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "groups": (lambda b: [table_of(b)[name].pop() for name in ("rows", "renewed")], "sums.rows should be a list of 12"),
    "the future": (lambda b: table_of(b)["renewed"].__setitem__(filled(b), 99), r"sums.renewed\[\d+\] should be a whole number"),
    "no base": (lambda b: table_of(b)["renewed"].__setitem__(filled(b), -1), r"sums.renewed\[\d+\] should be a whole number from 0"),
    "more rows than there are": (lambda b: table_of(b)["rows"].__setitem__(filled(b), 10**9), "sums.rows should be at most"),
    "other live rows": (lambda b: table_of(b)["ages"][0].__setitem__(2, 1), r"sums.ages should be the \d+ live rows, in all, found 1"),
    "rows of the future": (lambda b: table_of(b)["ages"][0].__setitem__(1, 99), "sums.ages should be epochs up to 0, ascending"),
    "epochs twice": (lambda b: table_of(b)["ages"].append(table_of(b)["ages"][0]), "sums.ages should be epochs up to 0, ascending"),
    "a block of the future": (lambda b: table_of(b)["blocks"][0].__setitem__(-1, 99), r"sums.blocks\[0\].high"),
    "a block of no epoch": (
        lambda b: table_of(b)["blocks"][0].__setitem__(slice(-2, None), [None, None]), r"sums.blocks\[0\].low should be"
    ),
    "no table": (lambda b: b["operators"]["sum-1"]["tables"].pop("last"), r"tables should be an object of \['last', 'sums'\]"),
    "another key": (lambda b: table_of(b).update(key=["total"]), r"sums.key should be \['k'\], found \['total'\]"),
    "other columns": (lambda b: table_of(b)["columns"][0].__setitem__(1, "int8"), "sums.columns should be"),
}  # fmt: skip


def edit(folder: Path, change: Callable[[Any], Any]) -> None:
    path = sorted((folder / "state" / "manifests").iterdir())[-1]
    body = json.loads(path.read_text())
    del body["checksum"]
    change(body)
    path.write_bytes(_seal(body))


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_in_a_sealed_manifest_is_named(case: str, summed: Summed) -> None:
    change, message = NONSENSE[case]
    summed.epoch(rows=60)
    summed.run.close()
    edit(summed.folder, change)
    with pytest.raises(CorruptState, match=message):
        summed.opened(2)


def test_rows_that_are_too_few_or_too_many_are_seen_when_they_are_read(summed: Summed) -> None:
    summed.epoch(rows=60)
    summed.run.close()

    def one_less(body: Any) -> None:
        table_of(body)["rows"][filled(body)] -= 1
        table_of(body)["ages"][0][2] -= 1

    edit(summed.folder, one_less)
    with pytest.raises(CorruptState, match=r"table 'sums' of sum-1 should have \d+ rows in group \d+, found \d+"):
        found(summed.folder)
    summed.run = summed.opened(2)
    with pytest.raises(CorruptState, match=r"should have \d+ rows in group \d+"):
        summed.epoch()


def test_a_block_of_other_epochs_is_refused(summed: Summed) -> None:
    summed.epoch(rows=60)
    summed.epoch(rows=60)
    summed.run.close()
    edit(summed.folder, lambda b: table_of(b)["blocks"][0].__setitem__(-1, 1))
    with pytest.raises(CorruptState, match="should have rows of the epochs 0 to 1, found"):
        found(summed.folder)


def test_a_whole_block_of_something_else_is_refused(summed: Summed) -> None:
    summed.epoch(rows=60)
    summed.run.close()

    def exchange(body: Any) -> None:
        both = body["operators"]["sum-1"]["tables"]
        both["last"].update({name: both["sums"][name] for name in ("blocks", "rows", "renewed", "ages")})

    edit(summed.folder, exchange)
    with pytest.raises(CorruptState, match="does not belong to table 'last' of sum-1: its columns are"):
        hr.read_state(summed.folder, "sum-1", "last")


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in range(1, 10))])
def test_a_section_that_was_changed_at_random_is_refused_or_harmless(part: int, summed: Summed) -> None:
    for _ in range(12):
        summed.epoch()
    summed.run.close()
    path = sorted((summed.folder / "state" / "manifests").iterdir())[-1]
    whole = json.loads(path.read_text())
    del whole["checksum"]
    refused = 0
    for seed in range(100 * part, 100 * part + 100):
        body = json.loads(json.dumps(whole))
        body["operators"]["sum-1"]["tables"]["sums"] = changed(random.Random(seed), table_of(body))
        try:
            path.write_bytes(_seal(body))
        except ValueError:  # nothing that JSON can hold
            continue
        try:
            rows = found(summed.folder)
        except HeadraceError:
            refused += 1
        else:
            assert sorted(rows, key=str) == sorted(summed.rows(), key=str), seed
    assert refused > 30
    path.write_bytes(_seal(whole))
    summed.run = summed.opened(2)
