"""Plans on real Spark: ranges chosen from the data, figures of a live run, a plan by shares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.cli import explain_output
from headrace.columnar.types import TS_TYPE
from headrace.compile.subqueries import Plan
from headrace.difference import difference
from headrace.reference import reference
from headrace.routing import Ranges, layout_from_json
from headrace.state.store import StateStore
from headrace.tools import plan_file
from tests.helpers import wait_until
from tests.patience import PATIENCE

from .test_exactness import read_results

pytestmark = pytest.mark.spark

SECONDS, RATE = 20, 60


def window(rng: np.random.Generator, second: int) -> pa.Table:
    ts = np.sort(rng.integers(second * 1_000_000, (second + 1) * 1_000_000, RATE))
    keys = rng.integers(0, 9, RATE)
    return pa.table({"ts": pa.array(ts, TS_TYPE), "x": rng.normal(0, 50, RATE), "k": keys})


def folder(path: Path, seed: int, seconds: int = SECONDS) -> Path:
    rng = np.random.default_rng(seed)
    path.mkdir()
    for second in range(seconds):
        pq.write_table(window(rng, second), path / f"{second:03}.parquet")
    return path


def streams(spark: Any, tmp_path: Path) -> list[hr.Stream]:
    paths = [folder(tmp_path / name, seed) for seed, name in enumerate(("left", "right"))]
    return [hr.files(spark, path, time="ts", name=path.name, files_per_epoch=2) for path in paths]


def band(spark: Any, tmp_path: Path) -> hr.Stream:
    left, right = streams(spark, tmp_path)
    return left.join(right, on="abs(l.x - r.x) <= 0.5", within="4 seconds")


def test_a_band_join_chooses_ranges_and_continues_with_other_slots(spark: Any, tmp_path: Path) -> None:
    query, checkpoint = band(spark, tmp_path), tmp_path / "checkpoint"
    total = 2 * SECONDS * RATE
    layouts = []
    for slots, enough in ((4, total // 3), (7, total)):
        sink = hr.sinks.parquet(tmp_path / "out")
        with query.start(sink, checkpoint=checkpoint, epoch="0 seconds", slots=slots) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
            assert "chosen: " in explain_output.explain_run(checkpoint, "text")  # while it is live
        assert run.exception is None
        with StateStore.open(checkpoint / "state", read_only=True) as store:
            assert store.last is not None
            layouts.append(layout_from_json(store.last.layouts["join-1"]))
        assert plan_file.read_plan(checkpoint)[1].subqueries[0].router.kind == "ranges"
    assert all(isinstance(layout, Ranges) and layout.bounds for layout in layouts)
    found = read_results(tmp_path / "out", query.schema)
    assert difference(reference(query), found) is None
    left, right = (hr.files(spark, tmp_path / name, time="ts", name=name) for name in ("left", "right"))
    for other in (left.join(right, on="l.k = r.k", within="4 seconds"), left.filter("k > 1")):
        with pytest.raises(hr.QueryChanged, match="the state belongs to another query"):
            other.start(hr.sinks.memory(), checkpoint=checkpoint)


@pytest.mark.long
def test_collect_by_ranges_and_by_a_plan_with_shares(spark: Any, tmp_path: Path) -> None:
    query = band(spark, tmp_path)
    assert difference(reference(query), query.collect(slots=5)) is None
    more = tmp_path / "more"
    more.mkdir()
    left, right = streams(spark, more)
    joined = left.join(right, on="l.k = r.k", within="1 second").map("l_x")
    both = joined.union(left.join(right, on="l.x < r.x", within="1 second").map("l_x"))
    for strategy in ("subquery", "operator"):
        plan = both.plan(slots=6, strategy=strategy, figures=hr.calibrate(both, slots=6, tuples=500))
        assert any(s.slots < 6 for s in plan.subqueries)
        plan = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        assert difference(reference(both), both.collect(plan=plan)) is None


def test_operators_get_slots_by_cost_and_keep_ranges_over_strategies(spark: Any, tmp_path: Path) -> None:
    """Ranges from a sample, then slots by share on top of them, then all slots again."""
    query, checkpoint = band(spark, tmp_path).map("l_x"), tmp_path / "checkpoint"
    total = 2 * SECONDS * RATE
    for share, strategy in enumerate(("subquery", "operator", "query"), start=1):
        sink, enough = hr.sinks.parquet(tmp_path / "out"), total * share // 3
        with query.start(sink, checkpoint=checkpoint, epoch="0 seconds", slots=5, strategy=strategy) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
        assert run.exception is None
        plan = plan_file.read_plan(checkpoint)[1]
        assert "ranges" in {s.router.kind for s in plan.subqueries}
        assert any(s.slots < 5 for s in plan.subqueries) == (strategy == "operator")
    assert difference(reference(query), read_results(tmp_path / "out", query.schema)) is None


QUERY = """
import headrace as hr

def query(spark):
    left, right = (hr.files(spark, f"{FOLDER}/{name}", time="ts", name=name, files_per_epoch=1) for name in ("left", "right"))
    joined = left.join(right, on="l.k = r.k and l.x < r.x", within="2 seconds")
    return joined.aggregate(by=["l_k"], window="4 seconds", n="count(*)")
"""


@pytest.mark.long
def test_calibrate_explain_run_and_explain_the_run(tmp_path: Path) -> None:
    """As a user would, in processes of this test's own: only the command line."""
    for seed, name in enumerate(("left", "right")):
        folder(tmp_path / name, seed)
    file = tmp_path / "query.py"
    file.write_text(QUERY.replace("{FOLDER}", str(tmp_path)))
    figures, plan, checkpoint = tmp_path / "figures.json", tmp_path / "plan.json", tmp_path / "checkpoint"

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "headrace.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = call("calibrate", str(file), "--out", str(figures), "--slots", "2", "--tuples", "900")
    assert "numbers for full windows, from a sample of the input" in said and "bottleneck: subquery-" in said
    plan.write_text(call("explain", str(file), "--figures", str(figures), "--slots", "2", "--format", "json"))
    call(
        *("run", str(file), "--plan", str(plan), "--checkpoint", str(checkpoint), "--out", str(tmp_path / "out")),
        *("--epoch", "0 seconds", "--until-idle"),
    )
    text = call("explain", "--checkpoint", str(checkpoint))
    assert "source left" in text and "\n  measured " in text and "us per tuple" in text
    assert f"{2 * SECONDS * RATE:,} tuples so far, which cover 20 s of event time" in text
    data = json.loads(call("explain", "--checkpoint", str(checkpoint), "--format", "json"))
    predicted = {s["name"]: s["numbers"] for s in data["plan"]["subqueries"]}
    assert data["measured"]["subquery-1"]["sent"] == pytest.approx(predicted["subquery-1"]["sent"], rel=0.2)
    assert data["measured"]["subquery-1"]["state"] == pytest.approx(predicted["subquery-1"]["state"], rel=0.2)
    assert "measured:" in explain_output.explain_run(checkpoint, "svg")
