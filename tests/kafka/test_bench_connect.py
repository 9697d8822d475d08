"""headrace bench connect: what it is fed with and reads back; the whole of it, small, under `long`."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace_bench import connect, report
from headrace_bench.systems import connectors
from tests.kafka.broker import Broker
from tests.sinks import postgres


@pytest.mark.parametrize("size", [connect.QUICK, connect.FULL])
def test_every_partition_has_an_equal_share_of_an_epoch(size: connect.Size):
    for way in connect.ways(size):
        assert way.case.streams.per_epoch % (way.rows * connect.PARTITIONS) == 0
        assert way.case.streams.epochs == size.warm + size.measured


def test_messages_hold_the_rows_of_a_stream():
    for way in connect.ways(connect.QUICK):
        table = next(way.case.streams.tables("stream")).slice(0, 3 * way.rows + 1)
        values = list(connect._values(table, way))
        assert len(values) == (4 if way.rows > 1 else table.num_rows)
        if way.format == "arrow":
            assert pa.concat_tables(pa.ipc.open_stream(value).read_all() for value in values).equals(table)
        else:
            assert [json.loads(value)["payload"] for value in values] == table["payload"].to_pylist()


def test_times_of_either_system_are_read(tmp_path: Path):
    """With as many places as each writes."""
    times = ("2026-03-01T12:00:00.250000Z", "2026-03-01T12:00:00.250Z", "2026-03-01T12:00:00.250+00:00")
    lines = [json.dumps({"ts": text, "key": 1, "payload": 2**62, "x": 0.125}) for text in times]
    (tmp_path / "lines").write_text("\n".join(lines))
    found = connect._read_json(tmp_path / "lines", "copy")
    wanted = dt.datetime(2026, 3, 1, 12, 0, 0, 250_000, dt.UTC)
    assert {(row["ts"].astimezone(dt.UTC), row["payload"]) for row in found.to_pylist()} == {(wanted, 2**62)}


def test_each_jar_is_asked_for_alone():
    pom = connectors._pom()
    assert pom.count("<dependency>") == pom.count(connectors.ALONE) == len(connectors.JARS)
    assert "<artifactId>postgresql</artifactId>" in pom


def test_ages_that_were_not_found_are_said():
    aged = [
        {"case": "ages", "system": "headrace", "rate": 20_000, "p50": 0.5, "p95": 0.75, "p99": 1.0, "missing": 0},
        {"case": "ages", "system": "Spark", "rate": 20_000},
    ]
    (grid,) = connect._grids(aged)
    assert grid.rows[0][3:] == ["0.500", "1.000", ""] and grid.rows[1][3:] == ["", "", "no result"]
    assert connect._grids([]) == [] and isinstance(grid, report.Grid)


@pytest.mark.long
@pytest.mark.spark
def test_both_systems_give_the_same_answers_everywhere(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It starts a broker and a server of its own."""
    if postgres.programs() is None and not os.environ.get("HEADRACE_LEAVE_NOTHING_OUT"):
        pytest.skip(postgres.HOW)
    monkeypatch.setenv("HEADRACE_KAFKA_JARS", str(broker.jars))
    out = tmp_path / "bench.json"
    options = ["--quick", "--rounds", "1", "--no-flink", "--json", str(out), "--charts", str(tmp_path)]
    done = CliRunner().invoke(app, ["bench", "connect", *options])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())["benchmarks"]["connect"]
    assert [system["status"] for case in found["cases"] for system in case["systems"]] == ["ok"] * 8
    assert all(case["expected"]["rows"] > 0 and case["expected_by"] == "DuckDB" for case in found["cases"])
    assert len(found["ages"]) == 4 and all(age["missing"] == 0 and age["p50"] > 0 for age in found["ages"])
