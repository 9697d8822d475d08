"""Bad input where Spark, files or the checkpoint folder take part."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sinks
from headrace.difference import difference
from headrace.errors import DataError, EngineError, QueryChanged, QueryError, QueryTypeError, SourceError, StateError
from headrace.reference import reference
from headrace.state import StateStore
from headrace.testing import table_stream
from tests.helpers import add_file, failure_of, tuples, wait_until

pytestmark = pytest.mark.spark

SECOND = 1_000_000
UTC = pa.timestamp("us", "UTC")


def counted(stream: hr.Stream) -> hr.Stream:
    return stream.aggregate(by=["k"], window="10 seconds", n="count(*)", total="sum(v)")


class Bench:
    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.input, self.checkpoint = folder / "in", folder / "ckpt"
        self.input.mkdir()
        self.sink, self.late = sinks.memory(), sinks.memory()

    def start(self, query: Callable[[hr.Stream], hr.Stream] = counted, **options: Any) -> Any:
        options = {"name": "s", "schema": tuples().schema, **options}
        stream = hr.files(self.spark, self.input, time="ts", files_per_epoch=1, **options)
        return query(stream).start(self.sink, checkpoint=self.checkpoint, epoch="0 seconds", slots=2, late=self.late)

    def last(self) -> Any:
        return StateStore.open(self.checkpoint / "state", read_only=True).last


@pytest.fixture
def bench(spark: Any, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


def same(
    spark: Any, folder: Path, table: pa.Table, query: Callable[[hr.Stream], hr.Stream], *, df: bool = True
) -> None:
    """`collect` over a DataFrame and over files gives the reference's answer."""
    add_file(folder / "same", 0, table.slice(0, table.num_rows // 2))
    add_file(folder / "same", 1, table.slice(table.num_rows // 2))
    wanted = reference(query(table_stream(table, name="s")))
    files = hr.files(spark, folder / "same", time="ts", name="s", schema=table.schema)
    assert (text := difference(wanted, query(files).collect(slots=3))) is None, text
    if df:
        frame = spark.read.schema(spark.read.parquet(str(folder / "same")).schema).parquet(str(folder / "same"))
        found = query(hr.stream(frame, time="ts", name="s")).collect(slots=2)
        assert (text := difference(wanted, found)) is None, text


# --- nothing, null, strange numbers, overflow -----------------------------------------------------------------------------


def test_empty_files_only_late_rows_and_null_times(bench: Bench):
    tables = [
        tuples(),
        tuples((0, "a", 1), (12 * SECOND, "a", 2)),
        tuples(),
        tuples((1, "a", 3), (2, None, 4)),
        tuples((None, "a", 5)),
        tuples((25 * SECOND, None, 6)),
    ]
    for number, table in enumerate(tables):
        add_file(bench.input, number, table)
    with bench.start() as run:
        wait_until(run, lambda p: p.epoch == len(tables) - 1)
        progress = run.progress
    assert (progress.tuples_in, progress.accepted, progress.late, progress.rejected) == (6, 3, 2, 1)
    wanted = reference(counted(table_stream(tables[0], name="s")), epochs=tables, end=False)
    assert difference(wanted, bench.sink.table()) is None
    kept = bench.late.table()
    assert sorted(kept["_reason"].to_pylist()) == ["late", "late", "time is null"]
    assert set(kept["_source"].to_pylist()) == {"s"}


@pytest.mark.parametrize("kept", [True, False])
def test_a_run_warns_of_late_tuples_that_no_sink_receives(bench: Bench, kept: bool, caplog: pytest.LogCaptureFixture):
    for number, table in enumerate([tuples((12 * SECOND, "a", 1)), tuples((2 * SECOND, "a", 2))]):
        add_file(bench.input, number, table)
    bench.late = bench.late if kept else None
    with bench.start(name="late\x1b") as run:
        wait_until(run, lambda p: p.epoch == 1)
    found = [text for text in caplog.messages if "late" in text]
    assert len(found) == (not kept)
    assert all(
        text.startswith("source late\\x1b: 1 tuple was late in epoch 1, up to 10 seconds before") for text in found
    )


def test_an_empty_dataframe(spark: Any, tmp_path: Path):
    same(spark, tmp_path, tuples(), counted)


def test_nulls_and_strange_doubles(spark: Any, tmp_path: Path):
    doubles = [math.nan, math.inf, -math.inf, 0.0, -0.0, 5e-324, None]
    rows = [(i * 1000, d, d) for i, d in enumerate(doubles * 3)]
    table = tuples(*rows, k=pa.float64(), v=pa.float64())
    same(
        spark,
        tmp_path,
        table,
        lambda s: s.aggregate(by=["k"], window="1 second", n="count(*)", low="min(v)", high="max(v)"),
    )
    same(spark, tmp_path, table, lambda s: s.join(s, on="l.k = r.k", within="1 second"))


def test_overflow_arrives_as_itself(bench: Bench):
    add_file(bench.input, 0, tuples((0, "a", 2**63 - 1)))
    error = failure_of(bench.start(lambda s: s.map("k", w="v + 1")))
    assert isinstance(error, DataError)
    assert "verflow" in str(error)
    assert "9223372036854775807" in str(error)
    assert bench.last() is None


# --- time -----------------------------------------------------------------------------------------------------------------


def test_far_future_with_ahead(bench: Bench):
    add_file(bench.input, 0, tuples((0, "a", 1)))
    add_file(bench.input, 1, tuples((253_402_300_799_999_999, "a", 2), (SECOND, "a", 3)))
    add_file(bench.input, 2, tuples((2 * SECOND, "a", 4)))
    with bench.start(ahead="1 hour") as run:
        wait_until(run, lambda p: p.epoch == 2)
        assert (run.progress.rejected, run.progress.late) == (1, 0)
        assert run.progress.watermark["s"] == 2 * SECOND


@pytest.mark.smoke
def test_before_1970_and_time_zones(spark: Any, tmp_path: Path):
    """A Spark timestamp is an instant whatever the zone of the session; one without a zone is read as UTC."""
    table = tuples(*((-35 * SECOND + i * 1_700_000, "a", i) for i in range(20)))
    same(spark, tmp_path, table, counted)
    wanted = reference(counted(table_stream(table, name="s")))
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
        frame = spark.read.parquet(str(tmp_path / "same"))
        assert difference(wanted, counted(hr.stream(frame, time="ts", name="s")).collect(slots=2)) is None
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    plain = frame.selectExpr("cast(ts as timestamp_ntz) as ts", "k", "v")
    assert difference(wanted, counted(hr.stream(plain, time="ts", name="s")).collect(slots=2)) is None


def test_nanoseconds_are_taken_when_nothing_is_lost(spark: Any, tmp_path: Path):
    far = spark.sql("select timestamp'3000-01-01 00:00:00.000001' as ts, 1 as v")  # not even the year has room
    far.write.parquet(str(tmp_path / "spark"))
    assert hr.files(spark, tmp_path / "spark", time="ts").collect().column("ts").cast(pa.int64()).to_pylist() == [
        32503680000000001
    ]
    for name, value in (("whole", 5_000), ("part", 5_001)):
        (tmp_path / name).mkdir()
        table = pa.table({"ts": pa.array([value], pa.timestamp("ns")), "v": [1]})
        pq.write_table(table, tmp_path / name / "a.parquet", version="2.6")
    assert hr.files(spark, tmp_path / "whole", time="ts").collect().column("ts").cast(pa.int64()).to_pylist() == [5]
    with pytest.raises(QueryTypeError, match="'ts' has nanoseconds"):
        hr.files(spark, tmp_path / "part", time="ts")
    (tmp_path / "part" / "a.parquet").rename(tmp_path / "whole" / "b.parquet")
    with pytest.raises(SourceError, match=r"'ts'.*does not fit"):
        hr.files(spark, tmp_path / "whole", time="ts").collect()


@pytest.mark.smoke
def test_text_of_spark_that_is_none(spark: Any):
    df = spark.sql("select timestamp'2024-01-01 00:00:00' as ts, cast(X'61FF62' as string) as x")
    with pytest.raises(SourceError, match=r"'x' of s contains text that is not UTF-8.*make_valid_utf8"):
        hr.stream(df, time="ts", name="s").collect(slots=1)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["interval '1' year", "make_interval(1, 1)", "interval '1' day", "null"])
def test_types_of_spark_that_streams_do_not_carry(spark: Any, kind: str):
    with pytest.raises(QueryTypeError, match=r"'x' has type .*which streams do not carry"):
        hr.stream(spark.sql(f"select timestamp'2024-01-01 00:00:00' as ts, {kind} as x"), time="ts")


def test_what_no_schema_is(spark: Any, tmp_path: Path):
    for schema in ({}, {"ts": "timestamp"}, [("ts", pa.timestamp("us"))]):
        with pytest.raises(QueryTypeError, match=r"schema must be a pyarrow\.Schema"):
            hr.files(spark, tmp_path, time="ts", schema=schema)
    for wrong in ({"time": None}, {"time": "ts", "name": 5}):
        with pytest.raises(QueryTypeError, match="must be text"):
            hr.files(spark, tmp_path, schema=pa.schema([("ts", pa.timestamp("us"))]), **wrong)


def test_the_memory_of_a_task_has_a_limit(spark: Any):
    df = spark.sql("select timestamp'2024-01-01 00:00:00' as ts, cast(700000000 as bigint) as a")
    with pytest.raises(EngineError, match=r"needs more than the 2GB a task may use.*HEADRACE_TASK_MEMORY"):
        hr.stream(df, time="ts").map(n="len(range(a))").collect(slots=1)
    assert hr.stream(df, time="ts").map(n="a + 1").collect(slots=1).column("n").to_pylist() == [700_000_001]


@pytest.mark.smoke
def test_structs_in_structs_on_spark(spark: Any):
    df = spark.sql(
        "select timestamp'2024-01-01 00:00:00' + make_interval(0, 0, 0, 0, 0, 0, id % 50) as ts, id, id % 5 as k,"
        " struct(struct(id as c) as b) as e from range(200)"
    )
    s = hr.stream(df, time="ts", name="s")
    assert s.join(s, on="l.id + 1 = r.id", within="1 hour").collect(slots=5).num_rows == 199
    assert s.aggregate(by=["k"], window="1 hour", l="list(e)").collect(slots=2).num_rows == 5


# --- schemas that change ----------------------------------------------------------------------------------------------------

CHANGED = [
    (lambda t: t.drop_columns(["v"]), "missing ['v']"),
    (lambda t: t.rename_columns(["ts", "k", "w"]), "missing ['v'], which the query reads; there are ts, k, w"),
    (lambda t: t.set_column(2, "v", t["v"].cast(pa.float64())), "'v' of s changed its type from int64 to double"),
]


def test_schema_changes_mid_stream(bench: Bench):
    """Each time: stop, nothing committed; a good file under the same name is read instead, and the run goes on."""
    good = [tuples((number * SECOND, "a", number)) for number in range(4)]
    add_file(bench.input, 0, good[0])
    with bench.start() as run:
        wait_until(run, lambda p: p.epoch == 0)
    for number, (change, message) in enumerate(CHANGED, start=1):
        add_file(bench.input, number, change(good[number]))
        error = failure_of(bench.start())
        assert isinstance(error, SourceError)
        assert message in str(error)
        assert f"found in '{bench.input}/{number:03d}.parquet'" in str(error)
        assert bench.last().number == number - 1
        add_file(bench.input, number, good[number])
        with bench.start() as run:
            wait_until(run, lambda p, n=number: p.epoch == n)
    assert bench.last().totals.delivered == 4


@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_a_file_that_cannot_be_read(bench: Bench, damage: str, monkeypatch: pytest.MonkeyPatch):
    add_file(bench.input, 0, tuples((0, "a", 1)))
    bad = add_file(bench.input, 1, tuples((SECOND, "a", 2)))
    good = bad.read_bytes()
    if damage == "truncated":
        bad.write_bytes(good[:-30])
    else:
        from headrace.spark import cluster

        piece_rows = cluster.dataframes.piece_rows

        def late(sc: Any, files: Any, slots: int) -> Any:
            if any(path == bad for _, path, *_ in files):
                bad.unlink()
            return piece_rows(sc, files, slots)

        monkeypatch.setattr(cluster.dataframes, "piece_rows", late)
    error = failure_of(bench.start())
    monkeypatch.undo()
    assert isinstance(error, SourceError)
    assert str(bad) in str(error)
    assert bench.last().number == 0
    bad.write_bytes(good)
    with bench.start() as run:
        wait_until(run, lambda p: p.epoch == 1)


def test_the_folder_goes_away(bench: Bench):
    add_file(bench.input, 0, tuples((0, "a", 1)))
    run = bench.start()
    wait_until(run, lambda p: p.epoch == 0)
    bench.input.rename(bench.folder / "elsewhere")
    error = failure_of(run)
    assert isinstance(error, SourceError)
    assert "cannot be listed" in str(error)
    (bench.folder / "elsewhere").rename(bench.input)
    add_file(bench.input, 1, tuples((SECOND, "a", 1)))
    with bench.start() as again:
        wait_until(again, lambda p: p.epoch == 1)


# --- names, text ------------------------------------------------------------------------------------------------------------


def test_odd_column_names(spark: Any, tmp_path: Path):
    names = ["a.b", "a`b", 'say "no"', "it's", "select", "数", "%s", "{x}", "x-y", "1"]
    table = tuples((0, *names), (1, *names), **dict.fromkeys(names, pa.string()))

    def query(stream: hr.Stream) -> hr.Stream:
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        joined = " and ".join(f"l.{q} = r.{q}" for q in quoted)
        return stream.aggregate(by=names, last=1, every=1, n="count(*)").join(stream, on=joined, within="1 second")

    same(spark, tmp_path, table, query)


@pytest.mark.parametrize("name", ["__x", " x", "x" * 256])
def test_impossible_names_of_a_dataframe(spark: Any, name: str):
    frame = spark.createDataFrame([(0,)], ["v"]).selectExpr("timestamp_micros(v) as ts", f"v as `{name}`")
    with pytest.raises(QueryError, match="column name"):
        hr.stream(frame, time="ts")


def test_twins_of_a_dataframe(spark: Any):
    frame = spark.createDataFrame([(0,)], ["v"]).selectExpr("timestamp_micros(v) as ts", "v as a", "v as A")
    with pytest.raises(QueryError, match="differ only in case"):
        hr.stream(frame, time="ts")


def test_texts_are_kept_exactly(spark: Any, tmp_path: Path):
    texts = ["../../x", "/", "a\0b", "\0", "a\nb\r", "", " ", "'; --", "💧", "e\u0301", "é", "\u202e", "x" * 1_000_000]
    table = tuples(*((i, text, i) for i, text in enumerate(texts * 2)))
    same(spark, tmp_path, table, counted)
    same(spark, tmp_path, table, lambda s: s.join(s, on="l.k = r.k", within="1 second"))


# --- many and large ---------------------------------------------------------------------------------------------------------


def test_many_small_epochs_leave_few_files(bench: Bench):
    count = 40
    for number in range(count):
        add_file(bench.input, number, tuples(*((number * SECOND + i, "abc"[i], i) for i in range(3))))
    with bench.start() as run:
        wait_until(run, lambda p: p.epoch == count - 1)
    blocks = list((bench.checkpoint / "state" / "blocks").iterdir())
    assert len(blocks) < 60
    assert len(list((bench.checkpoint / "state" / "manifests").iterdir())) == 3


def test_one_large_batch(spark: Any, tmp_path: Path):
    frame = spark.range(1_000_000).selectExpr("timestamp_micros(id * 100) as ts", "id % 1000 as k", "id as v")
    found = counted(hr.stream(frame, time="ts", name="s")).collect(slots=2)
    assert sum(found["n"].to_pylist()) == 1_000_000
    assert sum(found["total"].to_pylist()) == 999_999 * 1_000_000 // 2


# --- another query, another folder ------------------------------------------------------------------------------------------


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "writer.lock"}


def test_a_checkpoint_belongs_to_one_query(bench: Bench):
    add_file(bench.input, 0, tuples((0, "a", 1)))
    with bench.start() as run:
        wait_until(run, lambda p: p.epoch == 0)
        with pytest.raises(StateError, match="in use by"):
            bench.start(lambda s: s.filter("v > 0"))
    before = _contents(bench.checkpoint)
    with pytest.raises(QueryChanged, match=r"window was 10000000, is 20000000"):
        bench.start(lambda s: s.aggregate(by=["k"], window="20 seconds", n="count(*)", total="sum(v)"))
    with pytest.raises(QueryChanged, match=r"its input was \w+, is \w+, filter v > 1"):
        bench.start(lambda s: counted(s.filter("v > 1")))
    assert _contents(bench.checkpoint) == before
    add_file(bench.input, 1, tuples((11 * SECOND, "a", 1)))
    with bench.start() as run:
        wait_until(run, lambda p: p.epoch == 1)


def test_impossible_checkpoints(bench: Bench, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("mine")
    cases = {
        tmp_path / "file": "is a file",
        tmp_path / "link": "is a symbolic link",
        tmp_path / "foreign": "contains other files: thesis.tex",
        Path("/proc/headrace"): "cannot be created",
        Path("/sys/headrace"): "cannot be created",
        tmp_path / "file" / "below": "file",
    }
    for path, message in cases.items():
        bench.checkpoint = path
        with pytest.raises((QueryError, StateError), match=message):
            bench.start()
    assert (tmp_path / "file").read_text() == "mine"
    assert list((tmp_path / "real").iterdir()) == []
    assert [p.name for p in (tmp_path / "foreign").iterdir()] == ["thesis.tex"]


def test_a_relative_checkpoint(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    add_file(bench.input, 0, tuples((0, "a", 1)))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    bench.checkpoint = Path("some/ckpt")
    with bench.start() as run:
        monkeypatch.chdir(tmp_path)
        wait_until(run, lambda p: p.epoch == 0)
    assert (tmp_path / "here" / "some" / "ckpt" / "state" / "manifests").is_dir()


def test_two_results_and_late_tuples_in_one_parquet_folder_lose_nothing(bench: Bench):
    """One file per epoch *and result*: results that share a folder must not hide each other."""
    add_file(bench.input, 0, tuples((0, "a", 1), (20 * SECOND, "b", 2)))
    stream = hr.files(bench.spark, bench.input, time="ts", name="s", schema=tuples().schema)
    out = bench.folder / "out"
    pairs = [(stream.filter("v = 1"), sinks.parquet(out)), (stream.filter("v = 2"), sinks.parquet(out))]
    with hr.start(pairs, checkpoint=bench.checkpoint, epoch="0 seconds", slots=2) as run:
        wait_until(run, lambda p: p.epoch == 0)
    found = pa.concat_tables([pq.ParquetFile(path).read() for path in out.glob("[!_]*.parquet")])
    assert sorted(found["v"].to_pylist()) == [1, 2]
