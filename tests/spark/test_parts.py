"""Results that Spark's tasks write themselves: the sequential answer, whoever is killed, and a source for the next query."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sinks
from headrace.difference import difference
from headrace.errors import EngineError, QueryTypeError, SinkError
from headrace.sinks import Part, PartSink, Publication
from tests.helpers import failure_of, wait_until

from .test_faults import PER_FILE, Bench, wanted

pytestmark = pytest.mark.spark


class Deadly:
    """The first task that writes a part of epoch 1 dies with its whole process before anybody has the receipt."""

    def __init__(self, folder: Path, note: Path) -> None:
        inner = sinks.parquet(folder, parts=True)
        assert sinks.takes_parts(inner)
        self.inner: PartSink = inner
        self.note = note

    def write(self, part: Part) -> Any:
        receipt = self.inner.write(part)
        if part.epoch == 1 and not self.note.exists():
            self.note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return receipt

    def publish(self, publication: Publication) -> None:
        self.inner.publish(publication)


class Failing(Deadly):
    def write(self, part: Part) -> Any:
        raise OSError(28, "No space left on device")

    def __repr__(self) -> str:
        return "a sink without room"


class Locked(Deadly):
    def __init__(self, folder: Path) -> None:
        self.lock = threading.Lock()


def read(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.ParquetFile(path).read() for path in sorted(folder.glob("epoch-*/part-*.parquet")))


def check(bench: Bench) -> None:
    assert (text := difference(wanted(*range(bench.files)), read(bench.out))) is None, text
    assert not list(bench.out.glob("_staging*")), "nothing is left in staging"


@pytest.mark.parametrize("kind", ["files", "spark"])
def test_parts_on_spark_and_as_a_source(spark: Any, tmp_path: Path, kind: str):
    bench = Bench(spark, tmp_path, kind)
    for slots in (2, 3):
        bench.run(2, sink=sinks.parquet(bench.out, parts=True), slots=slots)
        check(bench)
    found = hr.files(spark, bench.out, time="ts", name="pairs").filter("l_v >= 0").collect(slots=2)
    assert (text := difference(wanted(*range(bench.files)), found)) is None, text


def test_a_chain_of_two_runs(spark: Any, tmp_path: Path):
    """The second follows the folder of the first while it grows, restarts included."""
    bench, after = Bench(spark, tmp_path, "files"), tmp_path / "after"
    for _ in range(2):
        bench.run(2, sink=sinks.parquet(bench.out, parts=True))
        pairs = hr.files(spark, bench.out, time="ts", lateness="1 minute", name="pairs", files_per_epoch=3)
        rows = wanted(*range(bench.files)).num_rows
        started = pairs.map("l_v", "r_v", "k").start(
            sinks.parquet(after, parts=True), checkpoint=tmp_path / "second", epoch="0 seconds", slots=2
        )
        with started as run:
            wait_until(run, lambda p, rows=rows: p.tuples_in == rows)
    assert (text := difference(wanted(*range(bench.files)), read(after))) is None, text


def test_a_worker_that_is_killed_while_it_writes_a_part(spark: Any, tmp_path: Path):
    bench = Bench(spark, tmp_path, "files")
    sink = Deadly(bench.out, tmp_path / "killed")
    bench.run(1, sink=sink)
    bench.feed(2)
    with bench.start(sink=sink) as run:
        error = failure_of(run)
    assert isinstance(error, EngineError) and (tmp_path / "killed").exists()
    assert len(list(bench.out.glob("_staging*/*.part"))) >= 1, "the part was there when its task died"
    with bench.start(sink=sink) as run:
        wait_until(run, lambda p: p.tuples_in == bench.files * PER_FILE)
    check(bench)


def test_a_disk_that_is_full_names_the_sink(spark: Any, tmp_path: Path):
    bench = Bench(spark, tmp_path, "files")
    bench.feed()
    with bench.start(sink=Failing(bench.out, tmp_path)) as run:
        error = failure_of(run)
    assert isinstance(error, SinkError)
    assert str(error).startswith("the sink a sink without room of result-0 failed to write a part in epoch 0: OSError:")
    assert "No space left" in str(error) and "nothing of the epoch was committed" in str(error)
    bench.run(0, sink=sinks.parquet(bench.out, parts=True))
    check(bench)


def test_a_sink_that_cannot_be_sent_is_refused_before_anything_is_made(spark: Any, tmp_path: Path):
    bench = Bench(spark, tmp_path, "files")
    bench.feed()
    with pytest.raises(QueryTypeError, match="cannot be pickled"):
        bench.start(sink=Locked(bench.out))
    assert not bench.checkpoint.exists()


class Staging(Deadly):
    """Fails when a part is written, and before anybody has the receipt."""

    def write(self, part: Part) -> Any:
        self.inner.write(part)
        raise OSError(28, "No space left on device")

    def discard(self, query: str, result: str) -> None:
        assert list(self.note.parent.glob("late/_staging*/*.part"))
        self.inner.discard(query, result)  # type: ignore[attr-defined]


def test_a_collect_that_fails_leaves_no_parts(spark: Any, tmp_path: Path):
    """Tuples without a time are put aside. What another query stages in the same folder stays."""
    (tmp_path / "in").mkdir()
    times = pa.array([1, None], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"ts": times, "x": [1, 2]}), tmp_path / "in" / "1.parquet")
    query, late = hr.files(spark, tmp_path / "in", time="ts", name="s"), tmp_path / "late"
    other = late / "_staging-late-s-another" / "000000000.one.part"
    other.parent.mkdir(parents=True)
    other.touch()
    with pytest.raises(SinkError, match="No space left on device"):
        query.collect(slots=2, late=Staging(late, tmp_path / "note"))
    assert [path for path in late.rglob("*") if path.is_file()] == [other]
    assert query.collect(slots=2, late=sinks.parquet(late, parts=True)).num_rows == 1
    assert read(late)["x"].to_pylist() == [2]
