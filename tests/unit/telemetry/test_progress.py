"""Figures of a run: how long tuples waited, what an epoch says, how busy slots are."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import pyarrow as pa
import pytest

from headrace.driver.position import Position
from headrace.errors import EngineError
from headrace.task.in_process import execute_locally
from headrace.task.reports import SourceCounts
from headrace.telemetry.progress import LATENCY_SECONDS, Progress, busy_shares, latency_of, waiting_times
from headrace.testing import LocalRun, table_stream


def test_latency_is_never_below_zero():
    """Files of a machine whose clock is ahead are modified in the future."""
    counts = SourceCounts(arrivals=[(5000.0, 3), (None, 1)])
    found = waiting_times(counts, begun=1000.0, ended=1001.0, since=0.0)
    assert found == [(0.0, 3), (1.0, 1)]
    assert latency_of(found) == {"p50": 0.0, "p99": 1.0}


def test_files_that_were_there_before_the_run_count_from_its_beginning():
    found = waiting_times(SourceCounts(arrivals=[(3.0, 1)]), begun=1000.5, ended=1002.0, since=1000.0)
    assert latency_of(found) == {"p50": 2.0, "p99": 2.0}
    found += waiting_times(SourceCounts(arrivals=[(1001.5, 99)]), begun=1001.6, ended=1002.0, since=1000.0)
    assert latency_of(found)["p50"] == 0.5


def test_without_tuples_there_is_no_latency():
    assert latency_of([]) == {"p50": None, "p99": None} == Progress().latency


def test_latency_forgets_the_first_epoch(tmp_path, monkeypatch):
    """The first epoch of a run is slow, and says nothing about the tuples of the last minutes."""
    now, took = [time.time() + 1], [0.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    moment = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC"))})
    run = LocalRun(table_stream(moment, name="s"), tmp_path)
    execute = execute_locally

    def slow(*given, **named):
        now[0] += took[0]
        return execute(*given, **named)

    monkeypatch.setattr("headrace.testing.local_run.execute_locally", slow)
    found = []
    for took[0], rows in ((50.0, 100), (1.0, 1), (2.0, 99), (1.0, 0), (200.0, 0)):
        now[0] += LATENCY_SECONDS / 2 - 10
        run.epoch({"s": pa.concat_tables([moment] * rows) if rows else moment.slice(0, 0)})
        found.append(run.driver.progress.latency)
    run.close()
    nothing = {"p50": None, "p99": None}
    slow_first = {"p50": 50.0, "p99": 50.0}
    assert [{q: s and round(s, 3) for q, s in each.items()} for each in found] == [
        slow_first,
        slow_first,
        {"p50": 2.0, "p99": 50.0},
        {"p50": 2.0, "p99": 2.0},
        nothing,
    ]


def test_a_watermark_is_a_time_nothing_or_the_end(tmp_path):
    moment = pa.table({"ts": pa.array([3_000_000], pa.timestamp("us", "UTC"))})
    run = LocalRun(table_stream(moment, lateness="1 second", name="s"), tmp_path)
    found = [run.driver.progress.watermark]
    for epoch in (lambda: run.epoch({"s": moment}), run.end):
        epoch()
        found.append(run.driver.progress.watermark)
    run.close()
    assert found == [{"s": None}, {"s": 2_000_000}, {"s": "end"}]
    assert '"watermark": {"s": "end"}' in json.dumps(run.driver.progress.to_json())


def test_every_epoch_has_the_same_keys(tmp_path):
    """Also one without results, of a result or of all."""
    s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [1]}), name="s")
    run = LocalRun([s.filter("x > 5"), s.filter("x > 0")], tmp_path)
    told = []
    for x in (1, 9, 0):
        run.epoch({"s": pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [x]})})
        told.append(asdict(run.driver.progress.last))
    assert [last["results"] for last in told] == [
        {"result-0": 0, "result-1": 1},
        {"result-0": 1, "result-1": 1},
        {"result-0": 0, "result-1": 0},
    ]
    assert all(last["sources"] == {"s": 1} for last in told)
    assert all(last.keys() == told[0].keys() for last in told)


def test_slots_are_busy_while_a_long_epoch_runs():
    assert busy_shares([0.25, 0.5], 2, 4.0, None) == [0.25, 0.5]
    assert busy_shares([0.25, 0.5], 2, 4.0, 3.0) == [0.25, 0.5], (
        "no longer than what was measured: nothing is known yet"
    )
    assert busy_shares([0.25, 0.5], 2, 4.0, 4.0) == [0.25, 0.5]
    assert busy_shares([0.25, 0.5], 2, 4.0, 8.0) == [0.625, 0.75], "half of the time as measured, half at work"
    assert busy_shares([0.25], 2, 0.0, 8.0) == [1.0, 1.0], "the first epoch, or another number of slots"


def test_progress_knows_the_epoch_that_is_under_way(tmp_path):
    s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [1]}), name="s")
    run = LocalRun(s, tmp_path, slots=2)
    seen = []

    def look(epoch):
        seen.append((run.driver.running, run.driver.busy))
        raise EngineError("enough")

    with pytest.raises(EngineError):
        run.driver.run_epoch(Position("local"), look)
    assert seen[0][0] >= 0 and seen[0][1] == [1.0, 1.0]
    assert run.driver.running is None and run.driver.busy == []
