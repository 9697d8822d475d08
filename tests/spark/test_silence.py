"""Streams that fall silent, streams that are drained, and a query that Spark was told to end, on Spark itself."""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.difference import difference
from tests.helpers import add_file, keyed, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SECOND = 1_000_000
FILES = 30


@pytest.mark.smoke
def test_a_silent_stream_beside_a_busy_one_and_a_query_that_spark_ends(spark, tmp_path):
    add_file(tmp_path / "a", 0, keyed(0))
    for number in range(FILES):
        add_file(tmp_path / "b", number, keyed(*range(number * 10, number * 10 + 10)))

    def start(files: int, sink: hr.sinks.Sink) -> hr.Run:
        read = spark.readStream.schema("ts timestamp, k bigint").option("maxFilesPerTrigger", files)
        a = hr.stream(read.parquet(str(tmp_path / "a")), time="ts", name="a", idle="200 milliseconds")
        b = hr.stream(read.parquet(str(tmp_path / "b")), time="ts", name="b")
        query = a.union(b).aggregate(by=["k"], window="10 seconds", n="count(*)")
        return query.start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=1)

    sink = hr.sinks.parquet(tmp_path / "out")
    run = start(1, sink)
    first = wait_until(run, lambda p: p.results_out > 0)
    assert first.sources["b"] < FILES * 10, "the first result came when the other stream had nothing left"

    for query in spark.streams.active:
        query.stop()
    with pytest.raises(hr.EngineError, match=r"stopped from outside.*start again"):
        run.wait(PATIENCE)
    assert not run.busy

    with start(FILES, sink) as run:
        wait_until(run, lambda p: p.sources["b"] == FILES * 10)
        wait_until(run, lambda _: not run.busy)
        looks = [(run.busy, time.sleep(0.01)) for _ in range(40)]
        assert not any(busy for busy, _ in looks), "busy though drained"
    assert run.exception is None and run.progress.late == 0
    assert pq.read_table(tmp_path / "out").column("n").to_pylist() == [11] + [10] * (FILES - 2)


def test_a_source_that_returns_behind_the_others_is_late_only_where_they_had_been(spark, tmp_path):
    add_file(tmp_path / "a", 0, keyed(0))
    add_file(tmp_path / "b", 0, keyed(100))
    a = hr.files(spark, tmp_path / "a", time="ts", name="a", idle="500 milliseconds", files_per_epoch=1)
    b = hr.files(spark, tmp_path / "b", time="ts", name="b", files_per_epoch=1)
    query, late, sink = a.join(b, on="l.k = r.k", within="60 seconds"), hr.sinks.memory(), hr.sinks.memory()
    with query.start(sink, checkpoint=tmp_path / "ckpt", epoch="0 seconds", slots=1, late=late) as run:
        wait_until(run, lambda p: p.watermark["a"] == 100 * SECOND)
        for number in range(1, 7):
            add_file(tmp_path / "b", number, keyed(100 + 10 * number))
            add_file(tmp_path / "a", number, keyed(80 + 10 * number))
        wait_until(run, lambda p: p.tuples_in == 14)
    assert late.table().column("ts").cast(pa.int64()).to_pylist() == [90 * SECOND]
    (tmp_path / "a" / "001.parquet").unlink()  # the late one
    assert difference(hr.reference(query), sink.table()) is None
