"""Faults that need Spark to be seen: halves of a checkpoint that do not fit, sinks and tasks that fail,
a second writer, another size of everything, and the ways to stop.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sinks
from headrace.difference import difference
from headrace.errors import DataError, EngineError, SinkError, StateMismatch, WriterConflict
from headrace.reference import reference
from headrace.spark import executors
from headrace.state import StateStore
from headrace.testing import table_stream
from headrace.tools import plan_file
from tests.helpers import add_file, failure_of, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SECOND = 1_000_000
PER_FILE = 20


def rows(number: int) -> pa.Table:
    times = [number * 2 * SECOND + i * 100_000 for i in range(PER_FILE)]
    return pa.table(
        {
            "ts": pa.array(times, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "k": pa.array([i % 5 for i in range(PER_FILE)], pa.int64()),
            "v": pa.array([number * PER_FILE + i for i in range(PER_FILE)], pa.int64()),
        }
    )


def put(folder: Path, number: int, table: pa.Table | None = None) -> Path:
    return add_file(folder, number, rows(number) if table is None else table)


def query(stream: hr.Stream) -> hr.Stream:
    """Pairs, so that the state of earlier epochs takes part in every result."""
    return stream.join(stream, on="l.k = r.k", within="1.5 seconds").map("l_v", "r_v", k="l_k")


def from_files(spark: Any, folder: Path, **options: Any) -> hr.Stream:
    return hr.files(spark, folder, time="ts", name="events", schema=rows(0).schema, **options)


def from_spark(spark: Any, folder: Path, change: Callable[[Any], Any] = lambda df: df) -> hr.Stream:
    reader = spark.readStream.schema("ts timestamp, k bigint, v bigint").option("maxFilesPerTrigger", 1)
    return hr.stream(change(reader.parquet(str(folder))), time="ts", name="events")


def wanted(*numbers: int) -> pa.Table:
    table = pa.concat_tables([rows(number) for number in numbers])
    return reference(query(table_stream(table, name="events")), epochs=[table], end=False)


class Bench:
    """A checkpoint, an input folder and a Parquet sink; the query runs on either kind of source."""

    def __init__(self, spark: Any, folder: Path, kind: str) -> None:
        self.spark, self.folder, self.kind = spark, folder, kind
        self.input, self.checkpoint, self.out = folder / "in", folder / "ckpt", folder / "out"
        self.files = 0

    def feed(self, count: int = 1) -> None:
        for _ in range(count):
            put(self.input, self.files)
            self.files += 1

    def start(self, sink: Any = None, slots: int = 2, change: Callable[[Any], Any] = lambda df: df) -> Any:
        stream = (
            from_spark(self.spark, self.input, change)
            if self.kind == "spark"
            else from_files(self.spark, self.input, files_per_epoch=1)
        )
        sink = sink or sinks.parquet(self.out)
        return query(stream).start(sink, checkpoint=self.checkpoint, epoch="0 seconds", slots=slots)

    def run(self, count: int = 1, **options: Any) -> None:
        """Feed so many files more, process all, stop."""
        self.feed(count)
        with self.start(**options) as run:
            wait_until(run, lambda p: p.tuples_in == self.files * PER_FILE)

    def check(self) -> None:
        found = pa.concat_tables([pq.ParquetFile(p).read() for p in sorted(self.out.glob("[!_]*.parquet"))])
        assert (text := difference(wanted(*range(self.files)), found)) is None, text

    def contents(self, part: str) -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in sorted((self.checkpoint / part).rglob("*"))
            if path.is_file() and path.name != "writer.lock"
        }

    def forget_commits(self, *batches: int) -> None:
        """As if killed before Spark noted that these batches are done."""
        for batch in batches:
            for name in (f"{batch}", f".{batch}.crc"):
                (self.checkpoint / "spark" / "commits" / name).unlink(missing_ok=True)

    def backup(self, part: str, name: str) -> Path:
        shutil.copytree(self.checkpoint / part, self.folder / name)
        return self.folder / name

    def restore(self, part: str, backup: Path) -> None:
        shutil.rmtree(self.checkpoint / part, ignore_errors=True)
        shutil.copytree(backup, self.checkpoint / part)


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path, "spark")


@pytest.fixture
def files(spark: Any, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path, "files")


# --- state and Spark's folder --------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_replay_delivers_the_same_again_and_leaves_the_state_alone(bench: Bench):
    """Killed between our commit and Spark's: its commit is not there, so Spark sends the batch again."""
    bench.run(2)
    bench.forget_commits(1)
    before, results = bench.contents("state"), {p.name: p.read_bytes() for p in bench.out.iterdir()}
    seen: list[tuple[int, pa.Table]] = []
    commits = bench.checkpoint / "spark" / "commits" / "1"
    run = bench.start(sinks.foreach(lambda table, epoch: seen.append((epoch, table))))
    deadline = time.monotonic() + 60
    while not commits.exists():
        assert time.monotonic() < deadline and run.exception is None, run.exception
        time.sleep(0.02)
    run.stop()
    assert [epoch for epoch, _ in seen] == [1, 1], "on start, and for the replayed batch"
    assert seen[0][1].equals(seen[1][1])
    assert bench.contents("state") == before
    bench.run(1)
    assert {name: (bench.out / name).read_bytes() for name in results} == results
    bench.check()


def test_spark_folder_deleted(bench: Bench):
    bench.run(2)
    kept = bench.backup("spark", "kept")
    shutil.rmtree(bench.checkpoint / "spark")
    before = bench.contents("state")
    bench.feed()
    for _ in range(2):
        with pytest.raises(StateMismatch, match="Spark's folder is missing; restore 'spark'"):
            bench.start()
        assert bench.contents("state") == before
        assert not (bench.checkpoint / "spark").exists()
    bench.restore("spark", kept)
    bench.run(0)
    bench.check()


def test_spark_folder_of_another_query(bench: Bench, spark: Any, tmp_path: Path):
    """A new Spark checkpoint whose batch numbers happen to fit must not be taken for the old one."""
    bench.run(2)
    (tmp_path / "other").mkdir()
    other = Bench(spark, tmp_path / "other", "spark")
    other.run(2)
    before = bench.contents("state")
    bench.restore("spark", other.checkpoint / "spark")
    with pytest.raises(StateMismatch, match=r"made with Spark query .*, this checkpoint is of query"):
        bench.start()
    assert bench.contents("state") == before


def test_state_deleted(bench: Bench):
    bench.run(2)
    kept = bench.backup("state", "kept")
    shutil.rmtree(bench.checkpoint / "state")
    before = bench.contents("spark")
    bench.feed()
    for _ in range(2):
        with pytest.raises(
            StateMismatch, match=r"Spark has committed batch \d, but there is no state; restore 'state'"
        ):
            bench.start()
        assert bench.contents("spark") == before
        assert bench.contents("state") == {}
    bench.restore("state", kept)
    bench.run(0)
    bench.check()


@pytest.mark.parametrize(
    ("part", "other", "words"),
    [
        ("state", "spark", r"the state folder is behind: it ends at batch 0, Spark at \d"),
        ("spark", "state", "Spark's folder is behind: it ends at batch 0, the state at 2"),
    ],
)
def test_one_folder_from_an_older_backup(bench: Bench, part: str, other: str, words: str):
    bench.run(1)
    old = bench.backup(part, "old")
    bench.run(2)
    new, before = bench.backup(part, "new"), bench.contents(other)
    bench.restore(part, old)
    with pytest.raises(StateMismatch, match=words):
        bench.start()
    assert bench.contents(other) == before
    bench.restore(part, new)
    bench.run(1)
    bench.check()


def test_offsets_changed(bench: Bench):
    bench.run(2)
    newest = bench.checkpoint / "spark" / "offsets" / "1"
    text = newest.read_text()
    newest.write_text(text.replace('{"logOffset":1}', '{"logOffset":0}'))
    assert newest.read_text() != text
    with pytest.raises(StateMismatch, match="batch 1 covers other input than when it was committed"):
        bench.start()


def test_spark_commits_lag_by_several(bench: Bench):
    """Spark only warns; the manifest decides: the newest offsets are those of its batch, so it is a replay."""
    bench.run(3)
    bench.forget_commits(1, 2)
    bench.run(2)
    bench.check()


def test_batch_numbers_are_consecutive(bench: Bench):
    bench.run(4)
    last = StateStore.open(bench.checkpoint / "state", read_only=True).last
    assert last is not None
    assert (last.number, last.position["batch"]["number"]) == (3, 3)


def test_sources_driven_otherwise_than_before_are_refused(bench: Bench):
    bench.run(1)
    bench.kind = "files"
    with pytest.raises(StateMismatch, match="driven was 'stream', is 'files'"):
        bench.start()


# --- a second writer ----------------------------------------------------------------------------------------------------------


def test_second_run_on_the_same_checkpoint(files: Bench):
    files.feed()
    with files.start() as run:
        with pytest.raises(WriterConflict, match=rf"in use by process {os.getpid()} on "):
            files.start()
        code = "import sys; from pathlib import Path; from headrace.state import StateStore; StateStore.open(Path(sys.argv[1]))"
        other = subprocess.run(
            [sys.executable, "-c", code, str(files.checkpoint / "state")],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert other.returncode != 0
        assert "WriterConflict" in other.stderr
        files.feed(2)
        wait_until(run, lambda p: p.tuples_in == 3 * PER_FILE)
    files.check()
    files.run(1)
    files.check()


def test_a_reader_may_look_while_a_run_goes_on(files: Bench):
    files.feed(3)
    with files.start() as run:
        while run.progress.epoch < 2:
            if (files.checkpoint / "state" / "manifests").is_dir():
                StateStore.open(files.checkpoint / "state", read_only=True)
            run.wait(0.01)


# --- tasks that fail ----------------------------------------------------------------------------------------------------------


def _dies_while(flag: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if Path(flag).exists():
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


@pytest.mark.smoke
def test_a_worker_is_killed(bench: Bench):
    """On local[2] Spark does not try again: the run ends with an error that says so, and the next goes on."""
    flag = bench.folder / "die"
    schema = "ts timestamp, k bigint, v bigint"

    def change(df: Any) -> Any:
        return df.mapInArrow(functools.partial(_dies_while, str(flag)), schema)

    bench.run(1, change=change)
    flag.write_text("")
    bench.feed(2)
    error = failure_of(bench.start(change=change))
    assert isinstance(error, EngineError)
    assert "the Spark job of this epoch failed" in str(error)
    last = StateStore.open(bench.checkpoint / "state", read_only=True).last
    assert last is not None
    assert last.number == 0
    flag.unlink()
    bench.run(0, change=change)
    bench.check()


def test_an_expression_fails_in_a_task(files: Bench):
    """The error of a task arrives as itself; what was committed before stays; with the bad row gone the run goes on."""
    files.feed(2)
    sink = sinks.memory()

    def begin() -> Any:
        stream = from_files(files.spark, files.input, files_per_epoch=1).map("v", w="CAST(100 // (v - 25) AS BIGINT)")
        return stream.start(sink, checkpoint=files.checkpoint, epoch="0 seconds", slots=2)

    error = failure_of(begin())
    assert isinstance(error, DataError)
    assert "100 // (v - 25)" in str(error)
    assert "v=25" in str(error)
    last = StateStore.open(files.checkpoint / "state", read_only=True).last
    assert last is not None
    assert last.totals.delivered == PER_FILE
    put(files.input, 1, rows(1).filter(pc.not_equal(rows(1)["v"], 25)))
    with begin() as run:
        wait_until(run, lambda p: p.tuples_in == 2 * PER_FILE - 1)
    assert sorted(sink.table()["v"].to_pylist()) == [v for v in range(2 * PER_FILE) if v != 25]


# --- sinks that fail ----------------------------------------------------------------------------------------------------------


def test_a_callback_that_raises_is_called_again(files: Bench):
    seen: list[tuple[int, list[Any]]] = []

    def fragile(table: pa.Table, epoch: int) -> None:
        seen.append((epoch, table.to_pylist()))
        if len(seen) <= 2:
            raise ValueError("the table is locked")

    files.feed(2)
    run = files.start(sinks.foreach(fragile))
    error = failure_of(run)
    assert isinstance(error, SinkError)
    assert "ValueError: the table is locked" in str(error)
    assert isinstance(error.__cause__, ValueError)
    with pytest.raises(SinkError):
        run.wait()
    with pytest.raises(SinkError):
        files.start(sinks.foreach(fragile))
    with files.start(sinks.foreach(fragile)) as again:
        wait_until(again, lambda p: p.tuples_in == 2 * PER_FILE)
    assert [epoch for epoch, _ in seen] == [0, 0, 0, 1]
    assert seen[0] == seen[1] == seen[2]
    found = pa.Table.from_pylist([row for _, table in seen[2:] for row in table], wanted(0).schema)
    assert difference(wanted(0, 1), found) is None


@pytest.mark.smoke
def test_a_callback_that_raises_under_spark_is_called_again(bench: Bench):
    seen: list[int] = []

    def fragile(table: pa.Table, epoch: int) -> None:
        seen.append(epoch)
        if len(seen) == 2:
            raise ValueError("no")

    bench.feed(2)
    error = failure_of(bench.start(sinks.foreach(fragile)))
    assert isinstance(error, SinkError)
    with bench.start(sinks.foreach(fragile)) as run:
        wait_until(run, lambda p: p.tuples_in == 2 * PER_FILE)
    assert seen[:2] == [0, 1]
    assert set(seen[2:]) == {1}


def test_a_callback_that_looks_at_little_or_hides_its_error_harms_nothing(files: Bench):
    kept: list[pa.Table] = []

    def careless(table: pa.Table, epoch: int) -> None:
        kept.append(table.slice(0, 1))
        table.slice(0, 2).to_pylist()
        try:
            raise RuntimeError("swallowed")
        except RuntimeError:
            return

    files.feed(3)
    result = query(from_files(files.spark, files.input, files_per_epoch=1))
    both = [(result, sinks.foreach(careless)), (result, sinks.parquet(files.out))]
    with hr.start(both, checkpoint=files.checkpoint, epoch="0 seconds", slots=2) as run:
        wait_until(run, lambda p: p.tuples_in == 3 * PER_FILE)
    assert len(kept) == 3
    files.check()


# --- another size ---------------------------------------------------------------------------------------------------------------


def test_partitions_and_slots_change_between_runs(bench: Bench):
    for partitions, slots in ((1, 1), (7, 3), (2, 8), (3, 2)):
        bench.run(1, slots=slots, change=lambda df, n=partitions: df.repartition(n))
    bench.check()


# --- stopping --------------------------------------------------------------------------------------------------------------------


def _run_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("headrace")]


def _no_threads(seconds: float = PATIENCE) -> bool:
    deadline = time.monotonic() + seconds
    while _run_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _run_threads()


@pytest.mark.parametrize("kind", ["files", "spark"])
def test_stop_waits_for_the_epoch_in_progress(spark: Any, tmp_path: Path, kind: str):
    bench = Bench(spark, tmp_path, kind)
    bench.feed(1)
    entered, done = threading.Event(), []

    def slow(table: pa.Table, epoch: int) -> None:
        entered.set()
        time.sleep(1.0)
        done.append(epoch)

    run = bench.start(sinks.foreach(slow))
    assert entered.wait(PATIENCE)
    run.stop()
    assert done == [0], "stop returned before the epoch was delivered"
    assert run.exception is None
    assert not run.active
    assert run.wait(0)
    assert _no_threads()
    assert run._watch.feed is None or not run._watch.feed.active
    bench.run(1)
    found = pa.concat_tables([pq.ParquetFile(p).read() for p in sorted(bench.out.glob("[!_]*.parquet"))])
    assert difference(wanted(0, 1), found) is None


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["files", "spark"])
def test_stop_in_the_middle_of_a_job_loses_nothing(spark: Any, tmp_path: Path, kind: str):
    bench = Bench(spark, tmp_path, kind)
    bench.feed(6)
    for pause in (0.0, 0.3, 0.7):
        run = bench.start()
        time.sleep(pause)
        run.stop()
        assert run.exception is None
        assert _no_threads()
    bench.run(0)
    bench.check()


def test_a_stopped_run_can_be_stopped_again_and_restarted(files: Bench):
    files.feed()
    run = files.start()
    run.stop()
    run.stop()
    files.run(1)
    files.check()


def test_stop_from_within_a_callback(files: Bench):
    """Does not wait for itself."""
    files.feed(3)
    holder: list[Any] = []
    ready = threading.Event()

    def stopping(table: pa.Table, epoch: int) -> None:
        ready.wait(PATIENCE)
        holder[0].stop()

    run = files.start(sinks.foreach(stopping))
    holder.append(run)
    ready.set()
    assert run.wait(PATIENCE)
    assert run.progress.epoch == 0
    assert _no_threads()


@pytest.mark.smoke
def test_a_failed_run_leaves_no_thread_and_no_spark_query(spark: Any, tmp_path: Path):
    """A streaming DataFrame beside files: when an epoch of the files fails, Spark's query ends as well."""
    put(tmp_path / "a", 0)
    put(tmp_path / "b", 0)
    left = from_spark(spark, tmp_path / "a")
    right = hr.files(spark, tmp_path / "b", time="ts", name="files")
    run = left.union(right).start(sinks.memory(), checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=2)
    wait_until(run, lambda p: p.tuples_in == 2 * PER_FILE)
    (tmp_path / "b" / "_bad").write_bytes(b"not parquet at all")
    (tmp_path / "b" / "_bad").rename(tmp_path / "b" / "bad.parquet")
    error = failure_of(run)
    assert isinstance(error, hr.SourceError)
    assert "bad.parquet" in str(error)
    assert _no_threads()
    assert not run._watch.feed.active
    assert not [q for q in spark.streams.active if q.id == run._watch.feed.query.id]


# --- can the tasks reach the state? ------------------------------------------------------------------------------------------------


class _Elsewhere:
    """A probe that a task does not see, or sees otherwise: as on an executor without the shared file system."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> _Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("there", [False, True])
def test_a_state_folder_that_tasks_cannot_reach_is_refused(files: Bench, monkeypatch: pytest.MonkeyPatch, there: bool):
    probe = files.folder / "probe.txt"
    if there:
        probe.write_text("of somebody else")
    files.feed()
    with monkeypatch.context() as patch:
        patch.setattr(executors.tempfile, "NamedTemporaryFile", lambda *_, **__: _Elsewhere(str(probe)))
        with pytest.raises(EngineError, match=r"cannot read the state folder .*shared file system"):
            files.start()
    assert StateStore.open(files.checkpoint / "state", read_only=True).last is None
    files.run(0)
    files.check()


def test_the_probe_leaves_nothing_behind(files: Bench):
    files.run(1)
    state = files.checkpoint / "state"
    assert sorted(p.name for p in state.iterdir()) == ["blocks", "manifests", "writer.lock"]
    assert [p.name for p in (state / "blocks").iterdir() if p.name.startswith("_")] == []


def test_a_kill_while_a_run_starts_leaves_a_folder_that_can_be_used(files: Bench, monkeypatch: pytest.MonkeyPatch):
    """The probe stays behind when nobody is left to remove it."""
    files.feed()
    real = executors.tempfile.NamedTemporaryFile
    monkeypatch.setattr(executors.tempfile, "NamedTemporaryFile", lambda *a, **k: real(*a, **k, delete=False))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_file, "write_plan", killed)
    with pytest.raises(KeyboardInterrupt):
        files.start()
    monkeypatch.undo()
    assert list((files.checkpoint / "state").rglob("_probe*"))
    files.run(0)
    files.check()
