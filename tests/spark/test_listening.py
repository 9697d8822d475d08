"""Listeners of real runs: each epoch once and in order, over stops and restarts; what ended a run is told too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.cli import explain_output
from headrace.columnar.types import TS_TYPE
from headrace.telemetry.epoch_record import EpochRecord
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def put(folder: Path, number: int, rows: int = 50) -> None:
    folder.mkdir(exist_ok=True)
    ts = pa.array([(number * 10 + i % 10) * SECOND for i in range(rows)], TS_TYPE)
    pq.write_table(pa.table({"ts": ts, "k": [i % 4 for i in range(rows)]}), folder / f"{number:04d}.parquet")


def joined(spark: Any, folder: Path) -> hr.Stream:
    a = hr.files(spark, folder, time="ts", files_per_epoch=1, name="a")
    return a.filter("k < 3").join(a, on="l.k = r.k", within="2 seconds")


def follow(query: hr.Stream, sink: Any, checkpoint: Path, files: int, **options: Any) -> list[EpochRecord]:
    """What a listener heard of a run until it has taken so many files."""
    found: list[EpochRecord] = []
    with query.start(sink, checkpoint=checkpoint, epoch="0 seconds", slots=2, **options) as run:
        run.listen(found.append)
        while run.progress.tuples_in < files * 50:
            assert not run.wait(0.02)
    assert run.exception is None
    return found


def test_each_epoch_is_heard_once_over_restarts_and_adds_up(spark: Any, tmp_path: Path) -> None:
    found: list[EpochRecord] = []
    for life in range(3):
        for number in range(life * 7, life * 7 + 7):
            put(tmp_path / "in", number)
        query = joined(spark, tmp_path / "in")
        found += follow(query, hr.sinks.parquet(tmp_path / "out"), tmp_path / "ckpt", life * 7 + 7)
    assert [record.epoch for record in found] == list(range(21))
    assert not any(record.repeated or record.error for record in found)
    assert sum(record.sources["a"].delivered for record in found) == found[-1].progress.tuples_in == 21 * 50
    assert sum(r.results["result-0"].rows for r in found if r.results) == found[-1].progress.results_out > 0
    for record in found:
        assert record.phases is not None and record.seconds is not None
        spent = record.phases
        whole = spent.reading + spent.exchange + spent.operators + spent.commit + spent.delivery
        assert min(spent.reading, spent.operators, spent.commit) > 0
        assert whole >= record.seconds * 0.99 - 0.001
    text = explain_output.explain_run(tmp_path / "ckpt", "text")
    assert "in it: a 50 tuples; result-0" in text and "join-1: " in text
    newest = json.loads(explain_output.explain_run(tmp_path / "ckpt", "json"))["epoch"]
    assert newest["epoch"] == 20 and newest["sources"]["a"]["delivered"] == 50


def test_what_ended_a_run_is_told(spark: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", 0)
    found: list[EpochRecord] = []
    broken = hr.files(spark, tmp_path / "in", time="ts", name="a").map(n="1 // (k - 2)", m="('a' || k)::int")
    run = broken.start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt", epoch="0 seconds")
    run.listen(found.append)
    with pytest.raises(hr.HeadraceError):
        run.wait(PATIENCE)
    (record,) = found
    assert record.epoch == 0 and record.error is not None and "Error" in record.error and record.sources == {}


def test_a_listener_may_stop_the_run(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        put(tmp_path / "in", number)
    run = joined(spark, tmp_path / "in").start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt", epoch="0 seconds")
    run.listen(lambda record: run.stop() if record.epoch == 1 else None)
    assert run.wait(PATIENCE) and run.progress.epoch >= 1
    assert (
        "has ended before the listener" not in caplog.text
    )  # the end of the run waited for it, and it not for the end
