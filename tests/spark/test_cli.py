"""`headrace run` and `headrace explain` as programs of their own, on Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.difference import difference
from headrace.reference import reference, references
from headrace.stream import Stream
from headrace.testing import table_stream
from headrace_demo.fraud.generator import LATENESS, Calls, generate, write_file
from headrace_demo.fraud.query import fraud
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def command(example: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", "run", str(EXAMPLES / example), *options]


def options(folder: Path) -> dict[str, Any]:
    return {"cwd": folder, "env": {**os.environ, "CALLS": str(folder / "calls")}, "text": True}


def run(folder: Path, example: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = command(example, "--checkpoint", "checkpoint", "--slots", "2", *more)
    return subprocess.run(arguments, capture_output=True, timeout=PATIENCE, **options(folder))


def made_up(folder: Path) -> Calls:
    (folder / "calls").mkdir()
    return generate(100, 30.0, 7, 1_700_000_000.0)


def write(folder: Path, calls: Calls, number: int, begin: float, end: float) -> None:
    first, last = calls.until(begin), calls.until(end)
    write_file(calls.table.slice(first, last - first), folder / "calls", number)


def stored(folder: Path, schema: pa.Schema) -> pa.Table:
    files = sorted(folder.glob("*.parquet"))
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(f).cast(schema) for f in files)])


def stream_of(calls: Calls) -> Stream:
    return table_stream(calls.table, "start", lateness=LATENESS, name="calls")


@pytest.mark.smoke
@pytest.mark.long
def test_a_second_start_continues_where_the_first_ended(tmp_path: Path) -> None:
    calls = made_up(tmp_path)
    write(tmp_path, calls, 1, 0, 8)
    write(tmp_path, calls, 2, 8, 16)
    first = run(tmp_path, "busy.py", "--out", "out", "--until-idle", "--json")
    assert first.returncode == 0, first.stderr
    write(tmp_path, calls, 3, 16, 30)
    second = run(tmp_path, "busy.py", "--out", "out", "--until-idle", "--json")
    assert second.returncode == 0, second.stderr
    lines = [json.loads(line) for line in (first.stdout + second.stdout).splitlines()]
    assert [line["epoch"] for line in lines] == list(range(len(lines)))
    assert lines[-1]["tuples_in"] == lines[-1]["sources"]["calls"] == calls.table.num_rows
    assert lines[-1]["backlog"] == 0
    assert f"ended after epoch {len(lines) - 1}: {calls.table.num_rows:,} tuples in" in second.stderr
    query = stream_of(calls).aggregate(by=["district"], window="10 seconds", calls="count(*)", longest="max(duration)")
    expected = reference(query, epochs=[calls.table], end=False)
    assert expected.num_rows
    assert difference(expected, stored(tmp_path / "out", query.schema)) is None


def test_once_takes_what_is_there_closes_all_windows_and_ends(tmp_path: Path) -> None:
    calls = made_up(tmp_path)
    write(tmp_path, calls, 1, 0, 16)
    write(tmp_path, calls, 2, 16, 30)
    first = run(tmp_path, "busy.py", "--out", "out", "--once", "--json", "--epoch", "1 hour")
    assert first.returncode == 0, first.stderr
    *_, last = (json.loads(line) for line in first.stdout.splitlines())
    assert last["tuples_in"] == calls.table.num_rows
    query = stream_of(calls).aggregate(by=["district"], window="10 seconds", calls="count(*)", longest="max(duration)")
    expected = reference(query)
    ended = f"ended after epoch {last['epoch']}: {calls.table.num_rows:,} tuples in, {expected.num_rows} results out"
    assert first.stderr.splitlines()[-1] == f"{ended}; the checkpoint is closed"
    again = run(tmp_path, "busy.py", "--out", "out", "--once")
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, f"{ended}; the checkpoint is closed"), again.stderr
    assert difference(expected, stored(tmp_path / "out", query.schema)) is None
    ordinary = run(tmp_path, "busy.py", "--out", "out")
    assert (ordinary.returncode, ordinary.stderr.startswith("error: the checkpoint is closed because its ")) == (
        1,
        True,
    )


@pytest.mark.long
def test_a_query_is_explained_and_its_edited_plan_run(tmp_path: Path) -> None:
    calls = made_up(tmp_path)
    write(tmp_path, calls, 1, 0, 30)

    def explain(*more: str) -> str:
        arguments = [sys.executable, "-m", "headrace.cli", "explain", str(EXAMPLES / "busy.py"), "--slots", "3", *more]
        found = subprocess.run(arguments, capture_output=True, timeout=PATIENCE, **options(tmp_path))
        assert found.returncode == 0, found.stderr
        return found.stdout

    text = explain()
    assert text.startswith("aggregate by district") and "chosen: hash of district" in text and "slots: 3" in text
    plan = json.loads(explain("--format", "json"))
    plan["subqueries"][0]["slots"] = 2
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    more = ("--checkpoint", "checkpoint", "--out", "out", "--until-idle", "--plan", "plan.json")
    found = subprocess.run(command("busy.py", *more), capture_output=True, timeout=PATIENCE, **options(tmp_path))
    assert found.returncode == 0, found.stderr
    query = stream_of(calls).aggregate(by=["district"], window="10 seconds", calls="count(*)", longest="max(duration)")
    expected = reference(query, epochs=[calls.table], end=False)
    assert difference(expected, stored(tmp_path / "out", query.schema)) is None
    plan["subqueries"][0]["operators"] = ["something else"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    found = subprocess.run(command("busy.py", *more), capture_output=True, timeout=PATIENCE, **options(tmp_path))
    assert found.returncode == 1
    assert found.stderr.startswith(
        "error: subquery-1 does not fit: its operators are something else, the query has agg"
    )


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """A signal to all of its process group, as a terminal and `timeout` send it: Spark's JVM is not to hear it first."""
    calls = made_up(tmp_path)
    write(tmp_path, calls, 1, 0, 30)
    arguments = command("fraud.py", "--checkpoint", "checkpoint", "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, start_new_session=True, **pipes, **options(tmp_path)) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert first["tuples_in"] == calls.table.num_rows
    assert "stopped after epoch 0; start again with the same checkpoint to continue" in said
    assert "Traceback" not in said
    streams = fraud(stream_of(calls))
    expected = references(streams, epochs=[calls.table], end=False)
    for name, stream, answer in zip(("alarms", "alarms-per-district"), streams, expected, strict=True):
        assert difference(answer, stored(tmp_path / name, stream.schema)) is None


def test_what_stops_a_run_is_one_message(tmp_path: Path) -> None:
    calls = made_up(tmp_path)
    write(tmp_path, calls, 1, 0, 1)
    (tmp_path / "calls" / "zz.parquet").write_text("not parquet")
    found = run(tmp_path, "busy.py", "--out", "out", "--seconds", "60")
    assert found.returncode == 1
    assert found.stderr.startswith("error: cannot read ")
    assert found.stderr.count("\n") == 1
