"""Several sources in one run: silent ones, static ones, one used twice; late tuples kept aside."""

from __future__ import annotations

import os
import re
import time

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.control.splitter_count import Splitters
from headrace.difference import difference
from headrace.run import collect as collect_module
from headrace.spark import dataframes
from headrace.task.messages import unpack
from tests.helpers import add_file, wait_until
from tests.mapping import deleted_blocks
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SECOND = 1_000_000


def rows(*seconds: float, key: int = 1) -> pa.Table:
    ts = pa.array([int(s * SECOND) for s in seconds], pa.timestamp("us", "UTC"))
    return pa.table({"ts": ts, "key": pa.array([key] * len(seconds), pa.int64())})


def test_a_silent_source_holds_the_others_back_unless_it_is_idle(spark, tmp_path):
    add_file(tmp_path / "a", 0, rows(1, 2, 3, 30))
    add_file(tmp_path / "b", 0, rows(1))
    results = {}
    for idle in (None, "500 milliseconds"):
        a = hr.files(spark, tmp_path / "a", time="ts", name="a")
        b = hr.files(spark, tmp_path / "b", time="ts", name="b", idle=idle)
        counted = a.union(b).aggregate(by=["key"], window="10 seconds", n="count(*)")
        sink = hr.sinks.memory()
        with counted.start(sink, checkpoint=tmp_path / f"ckpt-{idle}", epoch="0 seconds", slots=2) as run:
            wait_until(run, lambda p: p.tuples_in == 5)
            if idle:
                wait_until(run, lambda p: p.results_out > 0)
            else:
                time.sleep(1)
        results[idle] = sink.table()
    assert results[None] is None
    assert results["500 milliseconds"].column("n").to_pylist() == [4]


def test_an_idle_source_that_returns_is_late_where_the_others_have_been(spark, tmp_path):
    add_file(tmp_path / "a", 0, rows(1, 30))
    add_file(tmp_path / "b", 0, rows(1))
    a = hr.files(spark, tmp_path / "a", time="ts", name="a")
    b = hr.files(spark, tmp_path / "b", time="ts", name="b", idle="300 milliseconds")
    late = hr.sinks.memory()
    union = a.union(b).aggregate(by=["key"], window="10 seconds", n="count(*)")
    with union.start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=2, late=late) as run:
        wait_until(run, lambda p: p.watermark.get("b") == 30 * SECOND)
        add_file(tmp_path / "b", 1, rows(2, 31))
        wait_until(run, lambda p: p.tuples_in == 5)
        assert run.progress.late == 1
    assert late.table().select(["_source", "_reason"]).to_pylist() == [{"_source": "b", "_reason": "late"}]


def test_the_driver_maps_no_deleted_block(spark, tmp_path):
    """Neither while the run lasts nor after it has stopped."""
    for number in range(14):
        add_file(tmp_path / "in", number, rows(*range(number, number + 3)))
    stream = hr.files(spark, tmp_path / "in", time="ts", name="in", lateness="10 seconds", files_per_epoch=1)
    counted = stream.join(stream, on="l.key = r.key", within="2 seconds").aggregate(window="2 seconds", n="count(*)")
    with counted.start(
        hr.sinks.parquet(tmp_path / "out"), checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=2
    ) as run:
        wait_until(run, lambda p: p.epoch >= 13)
        assert deleted_blocks(os.getpid(), tmp_path) == []
    assert deleted_blocks(os.getpid(), tmp_path) == []


def test_a_static_source_beside_files_is_read_once_and_whole(spark, tmp_path):
    names = spark.createDataFrame([(1, "one"), (2, "two")], "key long, name string")
    static = hr.stream(names.selectExpr("timestamp_micros(0) at", "*"), time="at", name="names")
    add_file(tmp_path / "a", 0, rows(1, 2))
    a = hr.files(spark, tmp_path / "a", time="ts", name="a")
    joined = a.join(static, on="l.key = r.key", within="1 days")
    sink = hr.sinks.memory()
    for number in (0, 1):
        with joined.start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=1 + number) as run:
            wait_until(run, lambda p, n=number: p.sources["a"] == 2 + n)
            assert run.progress.sources["names"] == 2
        add_file(tmp_path / "a", 1, rows(3))
    assert sink.table().column("name").to_pylist() == ["one"] * 3


def test_a_source_used_twice_is_read_once(spark, tmp_path):
    add_file(tmp_path / "a", 0, rows(1, 2, 3))
    a = hr.files(spark, tmp_path / "a", time="ts", name="a")
    twice = a.join(a, on="l.key = r.key and l.ts < r.ts", within="9 seconds")
    sink = hr.sinks.memory()
    with twice.start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds") as run:
        wait_until(run, lambda p: p.tuples_in >= 3)
    assert run.progress.tuples_in == 3
    assert difference(hr.reference(twice), sink.table()) is None


def test_one_large_file_is_split_by_several_tasks(spark, tmp_path, monkeypatch):
    ts = pa.array(range(0, 1_000 * SECOND, SECOND), pa.timestamp("us", "UTC"))
    table = pa.table({"ts": ts, "key": [n % 7 for n in range(1_000)], "unread": ["x" * 50] * 1_000})
    (tmp_path / "a").mkdir()
    pq.write_table(table, tmp_path / "a" / "all.parquet", row_group_size=100)
    feather.write_feather(table, str(tmp_path / "a" / "more.arrow"), compression="uncompressed")  # one record batch
    counted = hr.files(spark, tmp_path / "a", time="ts", name="a").aggregate(by=["key"], window="1 hour", n="count(*)")
    monkeypatch.setattr(collect_module, "Splitters", lambda slots: Splitters(3, 1_000))
    partitions = []
    piece_rows = dataframes.piece_rows

    def noted(*given):
        found = piece_rows(*given)
        partitions.append(found.getNumPartitions())
        return found

    monkeypatch.setattr(dataframes, "piece_rows", noted)
    assert difference(hr.reference(counted), counted.collect(slots=2)) is None
    sink = hr.sinks.memory()
    run = counted.start(sink, checkpoint=tmp_path / "ckpt", once=True, slots=2, splitters=3, physical_window=1_024)
    assert run.wait(PATIENCE)
    assert difference(hr.reference(counted), sink.table()) is None
    assert run.progress.tuples_in == 2_000
    assert partitions == [3, 3]


@pytest.mark.smoke
def test_only_columns_that_are_read_are_packed(spark, tmp_path):
    made = spark.range(5).selectExpr("id `a.b`", "timestamp_seconds(id) at", "'x' `un``read`", "id * 2 k")
    query = hr.stream(made, time="at", name="s").map(twice="k * 2")
    assert query.collect(slots=2)["twice"].to_pylist() == [0, 4, 8, 12, 16]
    rows = dataframes.pack_dataframe("s", made, ["at", "a.b"]).collect()
    assert {name for row in rows for name in unpack(bytes(row.body)).column_names} == {"at", "a.b"}
    rate = spark.readStream.format("rate").load()  # timestamp, value
    plain = (
        rate.filter("value > 3").selectExpr("value", "timestamp at", "value + 1 more").withWatermark("at", "1 second")
    )
    stateful = plain.dropDuplicates(["value"])
    for frame, sent in ((plain, 2), (plain.union(plain), 2), (stateful, 3), (stateful.select("*"), 3)):
        planned = dataframes.pack_dataframe("s", frame, ["at", "value"])._jdf.queryExecution().analyzed()
        assert planned.children().apply(0).output().size() == sent


@pytest.mark.smoke
def test_static_sources_alone_come_to_an_end_and_close_the_checkpoint(spark, tmp_path):
    frame = spark.createDataFrame([(i,) for i in range(10)], "n long").selectExpr("n", "timestamp_seconds(n) at")
    counted = hr.stream(frame, time="at").aggregate(by=[], window="4 seconds", n="count(*)")
    sink = hr.sinks.memory(ordered=True)
    run = counted.start(sink, checkpoint=tmp_path / "ckpt")
    assert run.wait(PATIENCE)
    assert sink.table().column("n").to_pylist() == [4, 4, 2]
    with pytest.raises(hr.StateMismatch, match="closed"):
        counted.start(sink, checkpoint=tmp_path / "ckpt")


@pytest.mark.smoke
def test_a_static_source_that_cannot_be_read_fails_as_a_job_of_the_epoch(spark):
    """The sample for the first stretches of an ordered stage must not raise the error of Spark itself."""
    frame = spark.sql("select cast(assert_true(id < 3) as timestamp) as at, id from range(5)")
    assert dataframes.sample_times(frame, "at") == []
    stream = hr.stream(frame, time="at")
    with pytest.raises(hr.HeadraceError, match="the Spark job of this epoch failed"):
        stream.join(stream, on="l.id = r.id", last=3).collect(slots=1)


def test_an_ordered_sink_delivers_by_ts_across_epochs(spark, tmp_path):
    for number, seconds in enumerate([(1, 3, 2), (5, 4, 6), (9, 8, 7), (20,)]):
        add_file(tmp_path / "a", number, rows(*seconds))
    a = hr.files(spark, tmp_path / "a", time="ts", name="a", lateness="3 seconds", files_per_epoch=1)
    sink = hr.sinks.memory(ordered=True)
    with a.start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=3) as run:
        wait_until(run, lambda p: p.tuples_in == 10)
    assert sink.table().column("ts").cast(pa.int64()).to_pylist() == [s * SECOND for s in range(1, 10)]


def test_a_closed_checkpoint_still_delivers_what_was_not_delivered(spark, tmp_path):
    frame = spark.createDataFrame([(1,)], "n long").selectExpr("n", "timestamp_seconds(n) at")
    stream, got = hr.stream(frame, time="at"), []

    def fails_once(table, epoch):
        got.append(table.num_rows)
        if len(got) == 1:
            raise OSError("no room")

    run = stream.start(hr.sinks.foreach(fails_once), checkpoint=tmp_path / "ckpt")
    with pytest.raises(hr.SinkError):
        run.wait(PATIENCE)
    with pytest.raises(hr.StateMismatch, match="closed"):
        stream.start(hr.sinks.foreach(fails_once), checkpoint=tmp_path / "ckpt")
    assert got == [1, 1]


def test_a_sink_may_stop_its_run(spark, tmp_path):
    frame = spark.createDataFrame([(1,)], "n long").selectExpr("n", "timestamp_seconds(n) at")
    run = hr.stream(frame, time="at").start(
        hr.sinks.foreach(lambda table, epoch: run.stop()), checkpoint=tmp_path / "ckpt"
    )
    assert run.wait(PATIENCE)


def test_a_run_stopped_at_once_ends_without_an_error(spark, tmp_path):
    frame = spark.createDataFrame([(1,)], "n long").selectExpr("n", "timestamp_seconds(n) at")
    with hr.stream(frame, time="at").start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt") as run:
        pass
    assert run.exception is None


def test_an_error_ends_the_run_before_the_next_epoch_is_due(spark, tmp_path):
    def fails(table, epoch):
        raise OSError("no room")

    add_file(tmp_path / "a", 0, rows(1))
    a = hr.files(spark, tmp_path / "a", time="ts", name="a")
    run = a.start(hr.sinks.foreach(fails), checkpoint=tmp_path / "ckpt", epoch="10 hours")
    with pytest.raises(hr.SinkError):
        run.wait(PATIENCE)
    assert not run.active


# --- a checkpoint knows what its sources read ----------------------------------------------------------------------


def joined(one: hr.Stream, two: hr.Stream) -> hr.Stream:
    return one.join(two, on="l.key <= r.key", within="10 seconds")


def test_folders_are_not_exchanged_under_a_checkpoint(spark, tmp_path):
    """Sides swapped would pair a stream with itself; a file of another folder would be taken for one taken already."""
    add_file(tmp_path / "a", 0, rows(1))
    add_file(tmp_path / "b", 0, rows(1, key=2))

    def start(*names: str):
        sides = [hr.files(spark, tmp_path / name, time="ts") for name in names]
        return joined(*sides).start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=1)

    sink = hr.sinks.memory()
    with start("a", "b") as run:
        wait_until(run, lambda p: p.tuples_in == 2)
    for sides in (("b", "a"), ("a", "a")):
        with pytest.raises(hr.QueryChanged, match=r"source 'source-\d' read '.*/\w', now it is '.*/\w'; give it"):
            start(*sides)
    (tmp_path / "b").rename(tmp_path / "c")
    with pytest.raises(hr.QueryChanged, match=r"source-2.*/b', now it is .*/c'.*symbolic link"):
        start("a", "c")
    (tmp_path / "b").symlink_to(tmp_path / "c")
    add_file(tmp_path / "c", 1, rows(2, key=2))
    with start("a", "b") as run:
        wait_until(run, lambda p: p.tuples_in == 3)
    (tmp_path / "b").unlink()
    with start("a", "c") as run:  # where it is from now on
        assert run.progress.tuples_in == 3
    assert sink.table().num_rows == 2


@pytest.mark.smoke
def test_streaming_dataframes_are_not_exchanged_under_a_checkpoint(spark, tmp_path):
    add_file(tmp_path / "a", 0, rows(1))
    add_file(tmp_path / "b", 0, rows(1, key=2))

    def start(*names: str):
        reader = spark.readStream.schema("ts timestamp, key bigint")
        sides = [hr.stream(reader.parquet(str(tmp_path / name)).filter("key > 0"), time="ts") for name in names]
        return joined(*sides).start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=1)

    with start("a", "b") as run:
        wait_until(run, lambda p: p.tuples_in == 2)
    with pytest.raises(hr.QueryChanged, match=r"source 'source-1' read 'FileSource\[.*/a\]', now it is"):
        start("b", "a")
    with start("a", "b") as run:
        assert run.progress.tuples_in == 2


@pytest.mark.smoke
def test_a_place_tells_what_is_read_and_no_secrets(spark, tmp_path, monkeypatch):
    options = {
        "rowsPerBatch": "5",
        "host": "h",
        "path": "s3a://key:secret@bucket/x",
        "kafka.sasl.jaas.config": "secret",
    }
    frame = spark.readStream.format("rate-micro-batch").options(**options).load()
    place = hr.stream(frame, time="timestamp")._node.origin.place
    assert place == "rate-micro-batch['path=s3a://bucket/x', 'host=h']"
    empty = hr.stream(spark.createDataFrame([], "at timestamp"), time="at")._node.origin.place
    assert empty == "0 rows of (at timestamp), hash 0"
    for path in (tmp_path, f"{tmp_path}/", f"file://{tmp_path}"):
        frame = spark.readStream.schema("ts timestamp").parquet(str(path))
        assert hr.stream(frame, time="ts")._node.origin.place == f"FileSource[{tmp_path}]"
    monkeypatch.setattr(os, "getcwd", lambda: "/there")
    assert re.sub(r".+", dataframes._one_spelling, "in/x") == "/there/in/x"
    assert re.sub(r".+", dataframes._one_spelling, "s3a://bucket/x") == "s3a://bucket/x"
