"""Runs that change while they run, on real Spark: the sequential answer, whatever was decided or asked for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli import decision_history
from headrace.compile import STRATEGIES
from headrace.control import gain
from headrace.control.policy import DIFFUSION
from headrace.driver import driver
from headrace.driver.layouts import RunLayouts
from headrace.reference import reference
from tests.helpers import wait_until
from tests.oracle.driving import random_layouts
from tests.oracle.strategies import make_table, transplanted
from tests.oracle.test_layouts import keyed
from tests.patience import PATIENCE

from .test_exactness import files as case_files
from .test_exactness import read_results, same, write_files

pytestmark = pytest.mark.spark

CASES = 20
ADVERSE, TRIED = 30, 6  # graphs under any layouts: all of them in make soak, some in make test


def files(spark: Any, folder: Path, seed: int, rows: int) -> tuple[hr.Stream, Any]:
    table = make_table(seed, rows, small=True)
    parts = [table.slice(start, -(-rows // 8)) for start in range(0, rows, -(-rows // 8))]
    path = write_files(folder, parts, seed)
    return hr.files(spark, path, time="ts", lateness="1 minute", name=folder.name, files_per_epoch=1), table


@pytest.mark.parametrize("seed", range(CASES))
def test_a_run_that_never_rests(spark: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reorganised at every epoch, resized by hand or by load, frozen and thawed, stopped and started again."""
    monkeypatch.setattr(gain, "NOISE", 0.0)
    monkeypatch.setattr(gain, "SECONDS", 0.0)
    r = random.Random(f"never-rests-{seed}")
    (a, left), (b, right) = (files(spark, tmp_path / n, r.getrandbits(32), r.choice([80, 160])) for n in ("a", "b"))
    on = ["l.k = r.k", "l.k = r.k and l.x < r.x", "l.x < r.x", "l.x + r.x = 7"][seed % 4]
    query = a.join(b, on=on, within="15 seconds")
    if seed % 3 == 0:
        query = query.aggregate(by=["l_k"], window="5 seconds", n="count(*)")
    total = left.num_rows + right.num_rows
    policy = {"every": 1, "worth": 0.001, "diffusion": DIFFUSION[seed % 5], "supplier": 0.05, "consumer": 0.01}
    for life, enough in enumerate((total // 2, total)):
        slots = "auto" if (seed + life) % 2 else r.choice([2, 3])
        options = {"checkpoint": tmp_path / "checkpoint", "epoch": "0 seconds", "policy": policy, "most_slots": 5}
        with query.start(hr.sinks.parquet(tmp_path / "out"), slots=slots, **options) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough // 2)
            run.set_slots(r.choice([1, 4, 5]))
            if seed % 4 == 0:
                run.freeze()
                run.rebalance(dry_run=True)
                run.thaw()
            run.rebalance()
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
        assert run.exception is None
    expected = reference(query, epochs=[{"a": left, "b": right}], end=False)
    same(expected, read_results(tmp_path / "out", query.schema), query)
    kept = decision_history.decision_history(tmp_path / "checkpoint")
    assert run.decisions[: len(kept)] == kept
    assert all(d["reason"] == "asked for" for d in run.decisions[len(kept) :])  # and no epoch came after it


def test_an_operator_of_the_system_is_told_what_cannot_be(spark: Any, tmp_path: Path, capsys: Any) -> None:
    a, table = files(spark, tmp_path / "a", 7, 80)
    query = a.aggregate(by=["k"], window="5 seconds", n="count(*)")
    checkpoint = tmp_path / "checkpoint"
    with query.start(hr.sinks.memory(), checkpoint=checkpoint, slots=2, most_slots=3, epoch="0 seconds") as run:
        wait_until(run, lambda p: p.tuples_in >= table.num_rows)
        for wrong in (0, -1, True, 2.5, "many"):
            with pytest.raises(hr.HeadraceError, match="slots must be a whole number, at least 1"):
                run.set_slots(wrong)
        with pytest.raises(hr.HeadraceError, match="at most 3 slots; found 4; start it with a higher limit"):
            run.set_slots(4)
        run.freeze()
        with pytest.raises(hr.HeadraceError, match=r"the run is frozen; call thaw\(\) first"):
            run.rebalance()
        assert isinstance(run.rebalance(dry_run=True), list)
    assert run.progress.tuples_in == table.num_rows and run.exception is None
    for wrong, message in (
        ({"slots": 0}, "slots must be a whole number"),
        ({"slots": "many"}, "slots must be a whole number"),
        ({"most_slots": 1}, r"most_slots \(1\) is less than slots \(2\)"),
        (
            {"policy": {"pinned": {"join-1": {0: 0}}}},
            "pins groups of 'join-1'; operators with groups to pin: aggregate-1",
        ),
        (
            {"policy": {"pinned": {"aggregate-1": {"900": 0}}}},
            "pins group 900 of aggregate-1, which has groups 0 to 63",
        ),
        ({"policy": {"supplier": 0.1, "consumer": 0.2}}, "thresholds are out of order"),
    ):
        with pytest.raises(hr.HeadraceError, match=message):
            query.start(hr.sinks.memory(), checkpoint=tmp_path / "other", **{"slots": 2, **wrong})


def test_pinned_groups_stay_where_they_are(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain, "NOISE", 0.0)
    a, table = files(spark, tmp_path / "a", 9, 120)
    query = a.aggregate(by=["x"], window="5 seconds", n="count(*)")
    policy = tmp_path / "policy.toml"
    policy.write_text("every = 1\nworth = 0.001\n[pinned.aggregate-1]\n0 = 2\n63 = 0\n")
    checkpoint = tmp_path / "checkpoint"
    with query.start(
        hr.sinks.parquet(tmp_path / "out"), checkpoint=checkpoint, slots=3, policy=policy, epoch="0 seconds"
    ) as run:
        wait_until(run, lambda p: p.tuples_in >= table.num_rows)
    last = run._driver.store.last
    assert last is not None
    owner = last.layouts["aggregate-1"]["owner"]
    assert owner[0] == 2 and owner[63] == 0
    assert any(d["kind"] == "move" for d in run.decisions)
    assert json.dumps(run.decisions)
    read = run._driver.control.splitting
    assert read is not None and 0 < read.bytes <= max(path.stat().st_size for path in (tmp_path / "a").iterdir())
    same(reference(query, epochs=[{"a": table}], end=False), read_results(tmp_path / "out", query.schema), query)


def test_a_sink_may_ask_for_slots(spark: Any, tmp_path: Path) -> None:
    """It is called within an epoch, once that is committed."""
    a, table = files(spark, tmp_path / "a", 11, 80)
    query = a.filter("k is not null")
    asked: list[list[dict[str, Any]]] = []

    def ask(_: Any, epoch: int) -> None:
        run.set_slots(1 + epoch % 3)
        asked.append(run.rebalance(dry_run=True))

    options = {"checkpoint": tmp_path / "checkpoint", "slots": 2, "most_slots": 3, "epoch": "0 seconds"}
    with query.start(hr.sinks.foreach(ask), **options) as run:
        wait_until(run, lambda p: p.tuples_in >= table.num_rows)
    assert run.exception is None and asked
    assert any(d["reason"] == "asked for" for d in run.decisions)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < TRIED else pytest.mark.long) for s in range(ADVERSE)])
def test_any_layouts_at_every_epoch(spark: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adversary of `tests/oracle/test_layouts.py` on Spark, under each strategy."""
    case, strategy = keyed(seed), STRATEGIES[seed % 3]
    layouts = random_layouts(seed)
    monkeypatch.setattr(driver, "RunLayouts", lambda plan, control, *_: RunLayouts(plan, control, layouts))
    query = transplanted(case.query, {n: case_files(spark, case, n, tmp_path, 3 + 4 * seed) for n in case.tables})
    sink = hr.sinks.parquet(tmp_path / "out")
    options = {"checkpoint": tmp_path / "checkpoint", "epoch": "0 seconds", "slots": 3, "strategy": strategy}
    assert query.start(sink, once=True, **options).wait(PATIENCE)
    same(reference(case.query), read_results(tmp_path / "out", query.schema), case)
