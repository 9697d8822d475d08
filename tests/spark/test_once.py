"""Runs that end, on Spark: they take what is there, close their windows and their checkpoint."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.difference import difference
from headrace.state.store import StateStore
from headrace.testing import table_stream
from tests.helpers import add_file, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])


def rows(number: int, side: int = 0) -> pa.Table:
    """The rows of a file: one second of event time, up to half a second of disorder."""
    rng = random.Random(2 * number + side)
    times = [number * SECOND + rng.randrange(-SECOND // 2, SECOND // 2) for _ in range(9)]
    keys = [rng.randrange(3) for _ in times]
    values = [100 * number + place for place in range(9)]
    return pa.table([pa.array(times, SCHEMA.field(0).type), keys, values], schema=SCHEMA)


def put(folder: Path, numbers: Sequence[int], side: int = 0) -> None:
    for number in numbers:
        add_file(folder, number, rows(number, side))


def files(spark: Any, folder: Path, **options: Any) -> hr.Stream:
    given = {"lateness": "1 second", "files_per_epoch": 2, "name": folder.name, "schema": SCHEMA, **options}
    return hr.files(spark, folder, time="ts", **given)


def streaming(spark: Any, folder: Path, files_per_batch: int = 2) -> hr.Stream:
    reader = spark.readStream.schema("ts timestamp, k bigint, v bigint").option("maxFilesPerTrigger", files_per_batch)
    return hr.stream(reader.parquet(str(folder)), time="ts", lateness="1 second", name=folder.name)


def table(numbers: Sequence[int], name: str, side: int = 0) -> hr.Stream:
    """The same stream, for the reference."""
    return table_stream(pa.concat_tables([rows(n, side) for n in numbers]), lateness="1 second", name=name)


def counted(stream: hr.Stream) -> hr.Stream:
    return stream.aggregate(by=["k"], window="4 seconds", every="2 seconds", n="count(*)", s="sum(v)")


def joined(left: hr.Stream, right: hr.Stream) -> hr.Stream:
    pairs = left.join(right, on="l.k = r.k", within="2 seconds")
    return pairs.aggregate(by=["l_k"], window="3 seconds", n="count(*)", s="sum(l_v * 1000 + r_v)")


def last(checkpoint: Path) -> Any:
    found = StateStore.open(checkpoint / "state", read_only=True).last
    assert found is not None
    return found


def to_the_end(query: hr.Stream, sink: Any, checkpoint: Path, **options: Any) -> Any:
    run = query.start(sink, checkpoint=checkpoint, once=True, **{"slots": 2, "show": False, **options})
    assert run.wait(PATIENCE) is True
    assert not run.active and not run.busy and run.exception is None
    assert last(checkpoint).closed
    return run


# --- what is taken, and that it ends ----------------------------------------------------------------------------------


def test_files_are_taken_in_bounded_epochs_and_then_it_ends(spark, tmp_path):
    """The last windows are those that only an end closes. It does not wait for the next hour between two epochs."""
    put(tmp_path / "in", range(5))
    sink = hr.sinks.memory()
    run = to_the_end(counted(files(spark, tmp_path / "in")), sink, tmp_path / "ckpt", epoch="1 hour")
    assert run.progress.epoch == 3, "2 + 2 + 1 files, and the end"
    assert run.progress.last.tuples_in == 0 and run.progress.last.results_out > 0
    assert difference(hr.reference(counted(table(range(5), "in"))), sink.table()) is None


@pytest.mark.smoke
def test_a_streaming_dataframe_is_taken_in_batches_of_its_own_limit(spark, tmp_path):
    put(tmp_path / "in", range(5))
    sink = hr.sinks.memory()
    run = to_the_end(counted(streaming(spark, tmp_path / "in")), sink, tmp_path / "ckpt", epoch="1 hour")
    assert run.progress.epoch == 3
    assert difference(hr.reference(counted(table(range(5), "in"))), sink.table()) is None
    assert not spark.streams.active


@pytest.mark.smoke
def test_files_a_stream_and_a_static_source_together(spark, tmp_path):
    put(tmp_path / "a", range(7))
    put(tmp_path / "b", range(4), side=1)
    names = pa.table({"ts": pa.array([0], SCHEMA.field(0).type), "k": [1], "v": [5]}, schema=SCHEMA)

    def query(a: hr.Stream, b: hr.Stream, c: hr.Stream) -> hr.Stream:
        return joined(a.union(c), b)

    frame = spark.createDataFrame([(1, 5)], "k long, v long").selectExpr("timestamp_micros(0) ts", "k", "v")
    found = query(
        files(spark, tmp_path / "a"), streaming(spark, tmp_path / "b", 1), hr.stream(frame, time="ts", name="c")
    )
    wanted = query(table(range(7), "a"), table(range(4), "b", side=1), table_stream(names, name="c"))
    sink = hr.sinks.memory()
    run = to_the_end(found, sink, tmp_path / "ckpt")
    assert run.progress.sources == {"a": 63, "b": 36, "c": 1}
    assert difference(hr.reference(wanted), sink.table()) is None


def test_static_sources_alone_end_as_ever(spark, tmp_path):
    frame = spark.createDataFrame([(n,) for n in range(6)], "n long").selectExpr("n", "timestamp_seconds(n) at")
    query = hr.stream(frame, time="at").aggregate(by=[], window="4 seconds", n="count(*)")
    sink = hr.sinks.memory(ordered=True)
    for _ in range(2):
        to_the_end(query, sink, tmp_path / "ckpt")
    assert sink.table().column("n").to_pylist() == [4, 2]


@pytest.mark.parametrize("kind", [files, streaming])
def test_where_nothing_is_it_ends_at_once(spark, tmp_path, kind):
    (tmp_path / "in").mkdir()
    sink = hr.sinks.memory()
    run = to_the_end(counted(kind(spark, tmp_path / "in")), sink, tmp_path / "ckpt")
    assert (run.progress.epoch, run.progress.tuples_in, sink.table()) == (0, 0, None)


def test_a_static_source_beside_an_empty_folder_is_read(spark, tmp_path):
    (tmp_path / "in").mkdir()
    frame = spark.createDataFrame([(1, 5)], "k long, v long").selectExpr("timestamp_micros(0) ts", "k", "v")
    both = files(spark, tmp_path / "in").union(hr.stream(frame, time="ts", name="c"))
    sink = hr.sinks.memory()
    to_the_end(counted(both), sink, tmp_path / "ckpt")
    assert sink.table().column("n").to_pylist() == [1, 1]


def test_tuples_are_late_as_in_a_run_that_goes_on(spark, tmp_path):
    """The old file comes in the second epoch, an hour behind the first."""
    put(tmp_path / "in", [3600, 3601])
    os.utime(tmp_path / "in" / "3600.parquet", (1, 1))
    put(tmp_path / "in", [5])
    os.utime(tmp_path / "in" / "005.parquet", (2, 2))
    sink, late = hr.sinks.memory(), hr.sinks.memory()
    query = counted(files(spark, tmp_path / "in", files_per_epoch=1))
    run = to_the_end(query, sink, tmp_path / "ckpt", late=late)
    assert run.progress.late == late.table().num_rows == rows(5).num_rows
    epochs = [rows(3600), rows(5), rows(3601)]
    assert difference(hr.reference(counted(table([5], "in")), epochs=epochs), sink.table()) is None


# --- closed checkpoints -----------------------------------------------------------------------------------------------


def test_a_closed_checkpoint_delivers_again_and_has_ended(spark, tmp_path):
    put(tmp_path / "in", range(3))
    query, got = counted(files(spark, tmp_path / "in")), []
    run = to_the_end(query, hr.sinks.foreach(lambda table, epoch: got.append((epoch, table))), tmp_path / "ckpt")
    put(tmp_path / "in", [3])
    again = query.start(
        hr.sinks.foreach(lambda table, epoch: got.append((epoch, table))), checkpoint=tmp_path / "ckpt", once=True
    )
    assert not again.active and again.wait() is True and again.exception is None
    assert again.progress.epoch == run.progress.epoch and again.progress.tuples_in == 27
    again.stop()
    assert [epoch for epoch, _ in got[-2:]] == [2, 2] and got[-1][1].equals(got[-2][1])
    with pytest.raises(hr.StateMismatch, match="the checkpoint is closed because its bounded input has been processed"):
        query.start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt")


def test_results_of_the_end_that_could_not_be_delivered_come_with_the_next_start(spark, tmp_path):
    put(tmp_path / "in", [1])
    query, sink = counted(files(spark, tmp_path / "in")), hr.sinks.memory()

    def fails(table: pa.Table, epoch: int) -> None:
        raise OSError("no room")

    run = query.start(hr.sinks.foreach(fails), checkpoint=tmp_path / "ckpt", once=True)
    with pytest.raises(hr.SinkError, match="no room"):
        run.wait(PATIENCE)
    to_the_end(query, sink, tmp_path / "ckpt")
    assert difference(hr.reference(counted(table([1], "in"))), sink.table()) is None


# --- stopped, and started again ---------------------------------------------------------------------------------------


class Stops:
    """A sink in memory that stops its run in a given epoch, when its results are delivered."""

    ordered = False

    def __init__(self, epoch: int) -> None:
        self.epoch, self.inner, self.started, self.run = epoch, hr.sinks.memory(), threading.Event(), None

    def deliver(self, delivery: Any) -> None:
        self.inner.deliver(delivery)
        if delivery.epoch == self.epoch:
            assert self.started.wait(PATIENCE)
            self.run.stop()


def half_way(query: hr.Stream, checkpoint: Path, **options: Any) -> Any:
    """A run that was stopped in epoch 1, in which it must have results; its results so far."""
    sink = Stops(1)
    sink.run = query.start(sink, checkpoint=checkpoint, slots=1, **options)
    sink.started.set()
    assert sink.run.wait(PATIENCE) and sink.run.progress.epoch == 1
    assert not last(checkpoint).closed
    return sink.inner


def passed(stream: hr.Stream) -> hr.Stream:
    """Two results for everybody: at once, and at the end of a window."""
    return stream.join(stream, on="l.k = r.k and l.v < r.v", within="2 seconds").map("l_v", "r_v")


@pytest.mark.parametrize(("kind", "taken"), [(files, 6), (streaming, 9)], ids=["its list", "what is there then"])
def test_a_run_that_was_stopped_goes_on_with(kind, taken, spark, tmp_path):
    put(tmp_path / "in", range(6))
    query = passed(kind(spark, tmp_path / "in"))
    sink = half_way(query, tmp_path / "ckpt", once=True)
    put(tmp_path / "in", range(6, 9))
    run = to_the_end(query, sink, tmp_path / "ckpt")
    assert run.progress.tuples_in == taken * 9
    assert difference(hr.reference(passed(table(range(taken), "in"))), sink.table()) is None


def test_an_ordinary_run_goes_on_where_one_that_was_to_end_was_stopped(spark, tmp_path):
    put(tmp_path / "in", range(6))
    query = passed(files(spark, tmp_path / "in"))
    sink = half_way(query, tmp_path / "ckpt", once=True)
    assert last(tmp_path / "ckpt").ledgers["in"].listed is not None
    put(tmp_path / "in", range(6, 9))
    with query.start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=2) as run:
        wait_until(run, lambda p: p.tuples_in == 9 * 9)
    found = last(tmp_path / "ckpt")
    assert not found.closed and found.ledgers["in"].listed is None
    wanted = hr.reference(passed(table(range(9), "in")), epochs=[{"in": rows(n)} for n in range(9)], end=False)
    assert difference(wanted, sink.table()) is None


@pytest.mark.parametrize("kind", [files, streaming])
def test_what_an_ordinary_run_left_is_taken_and_ended(spark, tmp_path, kind):
    put(tmp_path / "in", range(6))
    query = passed(kind(spark, tmp_path / "in"))
    sink = half_way(query, tmp_path / "ckpt", epoch="0 seconds")
    put(tmp_path / "in", range(6, 9))
    to_the_end(query, sink, tmp_path / "ckpt")
    assert difference(hr.reference(passed(table(range(9), "in"))), sink.table()) is None


def test_files_that_come_while_it_runs_are_left(spark, tmp_path):
    put(tmp_path / "in", range(3))

    class Adds:
        ordered = False

        def __init__(self) -> None:
            self.inner = hr.sinks.memory()

        def deliver(self, delivery: Any) -> None:
            self.inner.deliver(delivery)
            put(tmp_path / "in", [10 + delivery.epoch])

    sink = Adds()
    run = to_the_end(passed(files(spark, tmp_path / "in", files_per_epoch=1)), sink, tmp_path / "ckpt")
    assert run.progress.tuples_in == 3 * 9 and len(list((tmp_path / "in").iterdir())) > 3
    assert difference(hr.reference(passed(table(range(3), "in"))), sink.inner.table()) is None


def test_a_file_of_the_list_that_vanished_is_an_error_and_can_be_put_back(spark, tmp_path):
    put(tmp_path / "in", range(6))
    query = passed(files(spark, tmp_path / "in"))
    sink = half_way(query, tmp_path / "ckpt", once=True)
    (tmp_path / "in" / "005.parquet").unlink()
    run = query.start(sink, checkpoint=tmp_path / "ckpt", once=True)
    with pytest.raises(hr.SourceError, match=r"005.parquet' was deleted before it was processed; restore it"):
        run.wait(PATIENCE)
    put(tmp_path / "in", [5])
    os.utime(tmp_path / "in" / "005.parquet")  # written anew: it is another time, and the same place in the list
    to_the_end(query, sink, tmp_path / "ckpt")
    assert difference(hr.reference(passed(table(range(6), "in"))), sink.table()) is None


@pytest.mark.smoke
def test_a_query_of_spark_that_is_stopped_from_outside_does_not_end_the_input(spark, tmp_path):
    """To close the checkpoint then would lose what was still to come."""
    put(tmp_path / "in", range(6))
    query = passed(streaming(spark, tmp_path / "in", 1))
    sink = hr.sinks.memory()

    class Outside:
        ordered = False

        def deliver(self, delivery: Any) -> None:
            sink.deliver(delivery)
            if delivery.epoch == 1:
                (running,) = spark.streams.active
                threading.Thread(target=running.stop, daemon=True).start()
                while running.isActive:  # no other batch begins
                    time.sleep(0.01)

    run = query.start(Outside(), checkpoint=tmp_path / "ckpt", once=True, slots=1)
    with pytest.raises(hr.EngineError, match="stopped from outside"):
        run.wait(PATIENCE)
    assert not last(tmp_path / "ckpt").closed
    to_the_end(query, sink, tmp_path / "ckpt")
    assert difference(hr.reference(passed(table(range(6), "in"))), sink.table()) is None


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_once_is_true_or_false(spark, tmp_path, value):
    put(tmp_path / "in", [1])
    with pytest.raises(TypeError, match=f"once must be True or False; found {value!r}"):
        files(spark, tmp_path / "in").start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt", once=value)
    assert not (tmp_path / "ckpt").exists()
