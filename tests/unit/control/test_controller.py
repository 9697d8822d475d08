"""The controller on the engine, in this process: the claims of the papers and ours, in counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.compile import compile_query
from headrace.compile.uncoalesce import share_slots
from headrace.control import controller
from headrace.control.control_state import ControlState
from headrace.control.controller import Controller, MeasuredLoad, group_work
from headrace.control.group_moves import imbalance, slot_loads
from headrace.control.policy import Policy
from headrace.control.space_saving import SpaceSavingSketch
from headrace.control.splitter_count import MORE, SplitLoad
from headrace.difference import difference
from headrace.reference import reference
from headrace.routing import Diagonal, HotGroup
from headrace.stream import Stream, node_of
from headrace.task.work import WorkTotals
from headrace.testing import LocalRun, table_stream
from headrace_demo.workloads import BModel, Hot, Workload
from headrace_demo.workloads.stream import BEGIN

SCHEMA = pa.schema([("ts", TS_TYPE), ("k", pa.int64()), ("x", pa.float64())])


def second(rng: np.random.Generator, number: int, rate: int) -> pa.Table:
    ts = np.sort(rng.integers(number * 1_000_000, (number + 1) * 1_000_000, rate))
    return pa.table({"ts": pa.array(ts, TS_TYPE), "k": rng.integers(0, 99, rate), "x": rng.normal(size=rate)})


def streams() -> tuple[Stream, Stream]:
    left, right = (table_stream(SCHEMA.empty_table(), name=name) for name in ("left", "right"))
    return left, right


# --- diffusion -------------------------------------------------------------------------------------------------------


def flipping(epochs: int) -> Iterator[dict[str, pa.Table]]:
    """Rates of 1 to 8 that change places every 30 epochs."""
    rng = np.random.default_rng(7)
    for number in range(epochs):
        rates = (40, 5) if number // 30 % 2 else (5, 40)
        yield {name: second(rng, number, rate) for name, rate in zip(("left", "right"), rates, strict=True)}


def reads(policy: str, epochs: int, folder: Path) -> tuple[int, list[int]]:
    """Tuples that slots read in all, new ones and those of windows; epochs in which the shape changed."""
    left, right = streams()
    query = left.join(right, on="l.x + r.x > 6", within="4 seconds")
    run = LocalRun(query, folder, slots=8, policy=Policy(diffusion=policy, every=3))
    for tables in flipping(epochs):
        run.epoch(tables)
    last = run.store.last
    assert last is not None
    work, history = WorkTotals.from_json(last.work).counts, ControlState.from_json(last.control).history
    run.close()
    return sum(work.sent["join-1"]) + work.read["join-1"], [d.epoch for d in history if d.kind == "shape"]


@pytest.mark.long
def test_ragged_reads_less_and_settles_soon(tmp_path: Path) -> None:
    found = {policy: reads(policy, 120, tmp_path / policy) for policy in ("ssp", "adaptive-ssp", "ragged")}
    assert found["ragged"][0] <= 0.6 * found["ssp"][0]
    assert found["ragged"][0] <= found["adaptive-ssp"][0]
    for changed in found["ragged"][1]:  # within three reorganisations of a flip, or of the beginning
        assert changed % 30 <= 9, found["ragged"][1]
    assert found["ssp"][1] == []


# --- elasticity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", ["hash", "one slot"])
def test_groups_are_balanced_after_five_reorganisations(begin: str, tmp_path: Path) -> None:
    left, _ = streams()
    query = left.aggregate(by=["k"], window="4 seconds", last_x="first(x)")
    run = LocalRun(query, tmp_path / "state", slots=4, groups=60, policy=Policy(every=2))
    if begin == "one slot":
        run.driver.control.layouts["aggregate-1"] = Diagonal((0,) * 60, 4)
    rng = np.random.default_rng(3)
    keys = BModel(0.9)
    balance = []
    for number in range(11):
        table = second(rng, number, 4_000)
        run.epoch(table.set_column(1, "k", pa.array(keys.draw(rng, 4_000))))
        layout = run.driver._next_epoch(final=False, idle_sources=(), idle_partitions={}).layouts["aggregate-1"]
        assert isinstance(layout, Diagonal)
        load = group_work(run.driver.control.measured["aggregate-1"]).tolist()
        balance.append(imbalance(slot_loads(layout.owner, layout.grids, load, 4)))
    run.close()
    assert balance[0] > 1.25 or begin == "hash"
    assert balance[-1] <= 1.1, balance


# --- hot keys --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_hot_key_that_moves_is_followed(tmp_path: Path) -> None:
    """Every 20 epochs another key; its group is split within three reorganisations, and the answer stays exact."""
    tables = {n: list(Workload(60, hot=Hot(0.5, every=20), seed=4, name=n).tables(40)) for n in ("left", "right")}
    left, right = (table_stream(pa.concat_tables(parts), name=n) for n, parts in tables.items())
    query = left.join(right, on="l.key = r.key and l.value + r.value > 1980", within="6 seconds")
    run = LocalRun(query, tmp_path / "state", slots=4, policy=Policy(every=2))
    splits = []
    for number in range(40):
        run.epoch({n: parts[number] for n, parts in tables.items()})
        layout = run.driver._next_epoch(final=False, idle_sources=(), idle_partitions={}).layouts["join-1"]
        assert isinstance(layout, Diagonal)
        splits.append({split.group for split in layout.grids})
    run.end()
    assert difference(reference(query), run.results()) is None
    first, second_half = splits[19], splits[39]
    assert first and second_half and first != second_half
    assert splits[6] & first  # epochs are numbered from 0: three reorganisations of two epochs each
    assert splits[26] & second_half
    reasons = [d.reason for d in run.driver.control.remembered().history if d.kind == "split"]
    assert any("% of a stream" in reason for reason in reasons)
    run.close()


def hot_join(downstream: Callable[[Stream], Stream] = lambda joined: joined) -> tuple[Controller, MeasuredLoad]:
    """A controller of 16 slots and 64 groups, in which group 0 has become very hot."""
    left, right = streams()
    query = downstream(left.join(right, on="l.k = r.k and l.x < r.x", within="4 seconds"))
    control = Controller(compile_query([node_of(query)]), Policy(), 16, 16)
    load = np.full(64, 10.0)
    load[0] = 10_000.0
    control.measured["join-1"] = MeasuredLoad(
        [load, load.copy()], [SpaceSavingSketch(), SpaceSavingSketch()], [0.0, 0.0]
    )
    return control, control.measured["join-1"]


def test_the_grid_of_a_hot_group_grows_with_it() -> None:
    control, _ = hot_join()
    small = Diagonal(tuple(g % 16 for g in range(64)), 16, (HotGroup(0, 1, 2, (0, 1)),))
    decisions = control.reorganise(9, 64, {"join-1": small})
    assert [d.kind for d in decisions if d.change.startswith("group 0 on ")] == ["split"]
    after = control.layouts["join-1"]
    assert isinstance(after, Diagonal) and len(after.grid_of[0].slots) > 2
    assert control.reorganise(14, 64, {"join-1": after}) == []  # and stays as it is


def grouped(joined: Stream) -> Stream:
    return joined.map(k="l_k").aggregate(by=["k"], window="4 seconds", n="count(*)")


@pytest.mark.parametrize(("seconds", "split"), [(0.02, False), (0.5, True)])
def test_a_hot_group_with_followers_is_split_if_that_saves_more_than_an_exchange(seconds: float, split: bool) -> None:
    control, measured = hot_join(grouped)
    assert control.plan.by_name["aggregate-1"].follows == "join-1"
    control.occupancy, control.seconds = [1.0] * 16, 10.0  # by other operators
    measured.cpu = seconds
    control.reorganise(9, 64, {"join-1": Diagonal(tuple(g % 16 for g in range(64)), 16)})
    after = control.layouts.get("join-1", Diagonal.even(64, 16))
    assert isinstance(after, Diagonal) and bool(after.grids) is split


def test_a_hot_group_with_followers_is_joined_again_when_epochs_become_small() -> None:
    control, measured = hot_join(grouped)
    small = Diagonal(tuple(g % 16 for g in range(64)), 16, (HotGroup(0, 4, 4, tuple(range(16))),))
    for seconds, grids in ((0.5, True), (0.005, False)):
        measured.cpu = seconds
        control.reorganise(9, 64, {"join-1": small})
        after = control.layouts.get("join-1", small)
        assert isinstance(after, Diagonal) and bool(after.grids) is grids


def test_the_second_join_of_a_chain_must_pay_for_its_exchange_too() -> None:
    """It follows the first in the usual plan, and leads the aggregate while a hot group of the first is split."""
    third = table_stream(SCHEMA.empty_table(), name="third")
    control, _ = hot_join(lambda joined: grouped(joined.map(k="l_k").join(third, on="l.k = r.k", within="1 second")))
    spread = Diagonal(tuple(g % 16 for g in range(64)), 16, (HotGroup(0, 1, 2, (0, 1)),))
    layouts = {"join-1": spread, "join-2": spread.undivided()}
    plan = share_slots(control.plan, lambda name: layouts.get(name, spread.undivided()))
    assert plan.leaders["aggregate-1"] == "join-2"
    control.observe({}, {}, [0.0] * 16, 1.0, plan=plan)
    control.measured["join-2"] = replace(control.measured["join-1"], cpu=0.001)
    after, _ = control._place(0, plan.by_name["join-2"], 16, spread.undivided(), control.measured["join-2"])
    assert isinstance(after, Diagonal) and not after.grids


@pytest.mark.thorough
@pytest.mark.parametrize("slots", [2, 4])
def test_a_hot_key_is_split_though_its_results_are_grouped(
    slots: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aggregate gets a stage, a layout and a measured load of its own, and loses them when the key cools down."""
    monkeypatch.setattr(controller, "EXCHANGE", -1.0)  # epochs of this size would not be worth it
    tables = {n: list(Workload(60, hot=Hot(0.5), seed=4, name=n).tables(12)) for n in ("left", "right")}
    tables = {n: [*hot, *Workload(60, seed=5, name=n, begin=BEGIN + 12).tables(12)] for n, hot in tables.items()}
    left, right = (table_stream(pa.concat_tables(parts), name=n) for n, parts in tables.items())
    joined = left.join(right, on="l.key = r.key and l.value < r.value", within="3 seconds")
    query = joined.map(key="l_key").aggregate(by=["key"], window="4 seconds", n="count(*)")
    run = LocalRun(query, tmp_path / "state", slots=slots, policy=Policy(every=2))
    led, measured, kept = [], [], []
    for number in range(24):
        run.epoch({n: parts[number] for n, parts in tables.items()})
        led.append(set(run.driver._next_epoch(final=False, idle_sources=(), idle_partitions={}).layouts))
        measured.append("aggregate-1" in run.driver.control.measured)
        kept.append(run.driver.progress.last.kept_bytes)
    run.end()
    assert difference(reference(query), run.results()) is None
    run.close()
    assert led[0] == led[-1] == {"join-1"} and {"join-1", "aggregate-1"} in led
    assert any(measured) and not measured[-1]
    assert any(kept) and not any(now for before, now in zip(led, kept[1:], strict=False) if "aggregate-1" in before)


def test_more_slots_than_groups_split_nothing() -> None:
    control, measured = hot_join()
    control.active = control.limit = 100
    measured.new = [np.full(64, 10.0), np.full(64, 10.0)]
    assert control.reorganise(0, 64, {"join-1": Diagonal(tuple(range(64)), 64)}) == []


@pytest.mark.parametrize("rules", [{"hot": False}, {"elastic": "off"}])
def test_splits_of_before_are_not_kept_by_a_policy_without_them(rules: dict[str, Any]) -> None:
    control, _ = hot_join()
    control.layouts["join-1"] = Diagonal(tuple(g % 16 for g in range(64)), 16, (HotGroup(0, 1, 2, (0, 1)),))
    later = Controller(control.plan, Policy(**rules), 16, 16)
    later.restore(ControlState.from_json(control.remembered().to_json()))
    layout = later.layout(control.plan.operators[0], 64, 16, [0, 0])
    assert isinstance(layout, Diagonal) and not layout.grids


@pytest.mark.parametrize("policy", ["off", "adaptive-ssp", "ragged"])
def test_a_shape_stays_until_another_is_decided(policy: str, tmp_path: Path) -> None:
    left, right = streams()
    query = left.join(right, on="l.x + r.x > 6", within="4 seconds")
    run = LocalRun(query, tmp_path / "state", slots=8, policy=Policy(diffusion=policy, every=1_000))
    rng = np.random.default_rng(3)
    found = set()
    for number in range(6):
        run.epoch({"left": second(rng, number, 4 + 90 * (number % 2)), "right": second(rng, number, 60)})
        last = run.store.last
        assert last is not None
        found.add(json.dumps(last.layouts["join-1"]))
    run.close()
    assert len(found) == 1


# --- splitters -----------------------------------------------------------------------------------------------------------


def splitting(cpu: float, **policy: Any) -> Controller:
    """A controller of 8 slots after ten epochs in which two splitters took so many seconds for 64 MiB."""
    query = table_stream(SCHEMA.empty_table(), name="left").aggregate(by=["k"], window="1 second", n="count(*)")
    control = Controller(compile_query([node_of(query)]), Policy(**policy), 8, 8)
    for _ in range(10):
        control.observe({}, {}, [0.0] * 8, 1.0, SplitLoad(2, 1e6, 64 << 20, cpu, cpu / 2))
    return control


def test_splitters_are_decided_once_for_a_load_said_why_and_judged() -> None:
    control = splitting(1.0)
    (made,) = control.reorganise(9, 64, {})
    assert (made.kind, made.operator) == ("splitters", "all")
    assert made.change == "2 with windows of 16 MiB to 8 with windows of 2 MiB"
    assert made.reason == "1,000,000 tuples and 64.0 MiB an epoch, split in 1.000 CPU s"
    assert made.before == pytest.approx(0.5 + 2 * MORE) and made.predicted == pytest.approx(
        (1 / 8 + 8 * MORE) / made.before
    )
    for _ in range(20):  # as it was foretold
        control.observe({}, {}, [0.0] * 8, 1.0, SplitLoad(8, 1e6, 64 << 20, 1.0, 1 / 8))
    assert control.reorganise(14, 64, {}) == []
    assert control.history[0].measured == pytest.approx(made.predicted, abs=1e-3)


def test_decisions_on_splitters_stand_in_the_manifest_and_a_new_start_measures_again() -> None:
    control = splitting(1.0)
    (made,) = control.reorganise(9, 64, {})
    later = Controller(control.plan, Policy(), 8, 8)
    later.restore(ControlState.from_json(json.loads(json.dumps(control.remembered().to_json()))))
    assert later.history == [made] and later.splitters is None and later.splitters_for(1 << 30) is None


def test_an_epoch_with_much_more_to_read_does_not_wait_for_a_decision() -> None:
    control = splitting(0.01)
    assert control.splitters_for(64 << 20) is None  # nothing was decided
    control.reorganise(9, 64, {})
    few, many = (control.splitters_for(size) for size in (64 << 20, 64 << 30))
    assert few == control.splitters and few is not None and few.count == 2
    assert many is not None and many.count == 8
    assert control.splitters == few  # and that it was once so much changes nothing
    control.frozen = True
    assert control.splitters_for(64 << 30) == few


def test_splitters_are_no_more_than_slots_and_nobodys_where_the_policy_says_so() -> None:
    control = splitting(100.0)
    control.active = control.limit = 3
    control.reorganise(9, 64, {})
    assert control.splitters is not None and control.splitters.count == 3
    off = splitting(100.0, splitters=False)
    assert off.reorganise(9, 64, {}) == [] and off.splitters_for(1 << 30) is None


def test_a_look_at_what_would_be_decided_decides_nothing() -> None:
    control = splitting(1.0)
    first = control.proposals(9, 64, {})
    assert [d.kind for d in first] == ["splitters"] and control.splitters is None
    assert control.proposals(9, 64, {}) == first == control.reorganise(9, 64, {})


def test_one_epoch_that_took_long_is_not_taken_for_the_load() -> None:
    control = splitting(0.36)
    control.reorganise(9, 64, {})
    assert control.splitters is not None and control.splitters.count == 6
    control.observe({}, {}, [0.0] * 8, 1.0, SplitLoad(6, 1e6, 64 << 20, 1.44, 0.24))  # 8 would be best for that
    assert control.splitting is not None and control.splitting.cpu == pytest.approx(0.36 + 0.4 * 1.08)
    assert control.reorganise(14, 64, {}) == []


def test_epochs_without_files_say_nothing_of_splitters() -> None:
    control = splitting(1.0)
    before = control.splitting
    control.observe({}, {}, [0.0] * 8, 1.0)
    assert control.splitting == before is not None


# --- slots that somebody asks for --------------------------------------------------------------------------------------


def test_slots_asked_for_are_not_judged_by_what_others_did() -> None:
    """Three idle slots were measured, one is asked for: there is none to give up."""
    query = table_stream(SCHEMA.empty_table(), name="left").aggregate(by=["k"], window="1 second", n="count(*)")
    control = Controller(compile_query([node_of(query)]), Policy(), 3, 4, auto=True)
    control.observe({}, {}, [0.0] * 3, 1.0)
    assert control.reorganise(0, 64, {}) == []  # fewer are wanted, for the first time
    assert [d.change for d in control.proposals(0, 64, {})] == ["3 to 2"]
    control.set_slots(1, 0)
    assert control.proposals(0, 64, {}) == [] and control.active == 1
    assert [(d.epoch, d.change, d.reason) for d in control.history] == [(0, "3 to 1", "asked for")]
