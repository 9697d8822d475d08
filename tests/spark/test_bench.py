"""`headrace bench` from beginning to end, with small sizes and without Flink."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app

pytestmark = pytest.mark.spark


def test_join_runs_both_systems_and_compares_them(tmp_path: Path):
    out = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "join", "--quick", "--rounds", "1", "--no-flink", "--json", str(out)])
    assert done.exit_code == 0, done.output
    case = json.loads(out.read_text())["benchmarks"]["join"]["cases"][0]
    assert [s["status"] for s in case["systems"]] == ["ok", "ok"]
    assert {s["rank"] for s in case["systems"]} == {1, 2}
    assert case["expected"]["rows"] > 0 and case["expected_by"] == "DuckDB"
