"""`headrace bench` from beginning to end, with small sizes and without Flink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace_bench.systems import HEADRACE, SPARK_PANDAS, SPARK_ROWS

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_join_runs_both_systems_and_compares_them(tmp_path: Path):
    out = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "join", "--quick", "--rounds", "1", "--no-flink", "--json", str(out)])
    assert done.exit_code == 0, done.output
    case = json.loads(out.read_text())["benchmarks"]["join"]["cases"][0]
    assert [s["status"] for s in case["systems"]] == ["ok", "ok"]
    assert {s["rank"] for s in case["systems"]} == {1, 2}
    assert case["expected"]["rows"] > 0 and case["expected_by"] == "DuckDB"


@pytest.mark.long
def test_joins_of_three_streams_agree_and_spark_refuses_a_band(tmp_path: Path):
    found = bench("nway", "", tmp_path)
    *equal, band = found["cases"]
    assert {s["status"] for case in equal for s in case["systems"]} == {"ok"}
    assert [s["status"].split(":")[0] for s in band["systems"]] == ["ok", "ok", "refused"]
    assert all(case["expected"]["rows"] > 0 and case["expected_by"] == "DuckDB" for case in found["cases"])
    assert all(s["state_bytes"] > 0 for case in found["cases"] for s in case["systems"] if s["status"] == "ok")


@pytest.mark.long
def test_strategies_are_counted_compared_and_ranked(tmp_path: Path):
    out = tmp_path / "bench.json"
    options = ["--quick", "--rounds", "1", "--no-flink", "--only", "of 200", "--json", str(out)]
    done = CliRunner().invoke(app, ["bench", "strategies", *options])
    assert done.exit_code == 0, done.output
    case = json.loads(out.read_text())["benchmarks"]["strategies"]["cases"][0]
    found = {s["system"]: s for s in case["systems"]}
    assert {s["status"] for s in found.values()} == {"ok"} and {s["rank"] for s in found.values()} == {1, 2, 3}
    assert case["expected"]["rows"] > 0 and case["expected_by"] == "DuckDB"
    counted = {name: {k: v["median"] for k, v in s["per_epoch"].items()} for name, s in found.items()}
    assert {name: c["shuffles"] for name, c in counted.items()} == {"subquery": 2, "query": 3, "operator": 8}
    assert all(c["tasks"] == 2 * (c["shuffles"] + 1) for c in counted.values())
    assert counted["operator"]["by_value"] > counted["query"]["by_value"] > counted["subquery"]["by_value"] > 0
    assert counted["subquery"]["in_slot"] > 0 == counted["query"]["in_slot"]
    # what shares a slot under one strategy is sent by reference under the other
    kept, sent = (sum(counted["subquery"][k] for k in ("in_slot", "by_reference")), counted["query"]["by_reference"])
    assert kept == pytest.approx(sent, rel=0.1)


def processors(kind: str, out: Path) -> dict:
    options = ["--quick", "--rounds", "1", "--no-flink", "--only", kind, "--json", str(out)]
    done = CliRunner().invoke(app, ["bench", "processors", *options])
    assert done.exit_code == 0, done.output
    return json.loads(out.read_text())["benchmarks"]["processors"]["cases"][0]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sessions", "count"])
def test_processors_give_the_answers_of_sparks_transform_with_state(kind: str, tmp_path: Path):
    case = processors(kind, tmp_path / "bench.json")
    found = {s["system"]: s for s in case["systems"]}
    assert list(found) == [system.name for system in (HEADRACE, SPARK_PANDAS, SPARK_ROWS)]
    assert [s["status"] for s in found.values()] == ["ok"] * 3
    assert case["expected"]["rows"] > 0 and case["expected_by"] == "DuckDB"
    assert all(found[s.name]["headrace_is_times_as_fast"] > 0 for s in (SPARK_PANDAS, SPARK_ROWS))


def bench(name: str, only: str, folder: Path) -> dict:
    options = ["--quick", "--rounds", "1", "--no-flink", "--only", only, "--json", str(folder / "bench.json")]
    done = CliRunner().invoke(app, ["bench", name, *options, "--charts", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / f"{name}.png").exists() and (folder / f"{name}.md").exists()
    return json.loads((folder / "bench.json").read_text())["benchmarks"][name]


def statuses(found: dict) -> list[str]:
    return [system["status"] for case in found["cases"] for system in case["systems"]]


@pytest.mark.long
def test_split_gives_the_counts_of_spark_and_of_duckdb(tmp_path: Path):
    found = bench("split", "Parquet", tmp_path)
    assert statuses(found) == ["ok"] * 3
    assert [case["expected_by"] for case in found["cases"]] == ["DuckDB"] * 3
    assert len({case["expected"]["checksum"] for case in found["cases"]}) == 1
    assert len(found["ratios"]) == 2 and all(ratio > 0 for ratio in found["ratios"].values())
    shares = found["cases"][0]["case"]["facts"]
    assert 0.003 < shares["broadcast"] < 0.007 and shares["omitted"] < 0.01


@pytest.mark.long
def test_split_has_a_claim_for_every_figure(tmp_path: Path):
    found = bench("split", "", tmp_path)
    assert set(statuses(found)) == {"ok"}
    assert [claim["wanted"] for claim in found["claims"]] == [
        "at least 6",
        "at least 4",
        "at least 0.9",
        "at most 1 x",
    ]
    assert found["routes_alone"]["expensive"] > found["routes_alone"]["plain"] > 0


@pytest.mark.long
def test_state_holds_every_key_when_a_run_was_stopped_and_started_again(tmp_path: Path):
    found = bench("state", "large", tmp_path)
    assert statuses(found) == ["ok"] * 2 and found["claims"][0]["holds"]
    runs = found["parts"]["large state"]["runs"]
    assert [run["keys"] for run in runs] == [1_000, 5_000]
    assert all(run["written"] > 0 and run["first_again"] > 0 for run in runs)


@pytest.mark.long
def test_state_counts_as_sparks_transform_with_state_does(tmp_path: Path):
    found = bench("state", "beside", tmp_path)
    assert statuses(found) == ["ok"] * 2
    assert found["parts"]["beside Spark"]["headrace_is_times_as_fast"] > 0


@pytest.mark.long
def test_adaptive_runs_on_spark_where_it_must_and_says_what_holds(tmp_path: Path):
    out, charts = tmp_path / "bench.json", tmp_path / "charts"
    options = ["--quick", "--rounds", "1", "--no-flink", "--json", str(out), "--charts", str(charts)]
    done = CliRunner().invoke(app, ["bench", "adaptive", *options])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())["benchmarks"]["adaptive"]
    assert set(found["parts"]) == {"diffusion", "elasticity", "degree", "hot key"}
    assert {claim["case"] for claim in found["claims"]} == set(found["parts"])
    assert found["parts"]["degree"]["differing"] == 0 and found["parts"]["degree"]["epochs"]
    statuses = [system["status"] for case in found["cases"] for system in case["systems"]]
    assert statuses == ["ok"] * 6  # two hot keys: adaptive, static, Spark
    assert (charts / "adaptive.png").exists() and "claims" in (charts / "adaptive.md").read_text()
