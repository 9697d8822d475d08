"""`head`, `show`, `limit` and `peek` on Spark: what is shown of every kind of source, and that nothing is committed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.reference import reference
from tests.helpers import add_file, count_rows, numbered, rows_of
from tests.patience import PATIENCE
from tests.processors import Counter

pytestmark = pytest.mark.spark
LONG = f"{PATIENCE} seconds"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, the second of which has the earliest tuples."""
    for number, values in enumerate(([20, 25, 21], [3, 9, 1], [40])):
        add_file(tmp_path / "in", number, numbered(*values))
    return tmp_path / "in"


def stream(spark: Any, folder: Path, **options: Any) -> hr.Stream:
    return hr.files(spark, folder, time="ts", name="a", **options)


def values(table: pa.Table) -> list[int]:
    found: list[int] = table["v"].to_pylist()
    return found


def test_head_is_in_sequence_and_peek_in_order_of_arrival(spark: Any, folder: Path) -> None:
    s = stream(spark, folder)
    assert values(s.head(4)) == [1, 3, 9, 20]
    assert values(s.peek(4, timeout=LONG)) == [20, 25, 21, 3]
    assert values(s.head()) == [1, 3, 9, 20, 21, 25, 40] and values(s.peek(timeout=LONG)) == [20, 25, 21, 3, 9, 1, 40]
    assert s.head(2).schema.equals(s.schema) and s.peek(2, timeout=LONG).schema.equals(s.schema)


def test_head_of_a_query_with_windows(spark: Any, folder: Path) -> None:
    counted = stream(spark, folder).aggregate(window="10 seconds", n="count(*)")
    assert rows_of(counted.head(2), "n") == [(3,), (3,)]
    assert count_rows(counted.limit(2).collect(slots=2)) == count_rows(reference(counted.limit(2)))


def test_show_prints_the_head_and_returns_nothing(spark: Any, folder: Path, capsys: Any) -> None:
    assert stream(spark, folder).map(v="v", s="'[red]' || v").show(2) is None
    shown = capsys.readouterr().out
    assert "[red]1" in shown and "[red]3" in shown and "[red]9" not in shown


def test_peek_looks_through_stateless_verbs(spark: Any, folder: Path) -> None:
    s = stream(spark, folder)
    odd, rest = s.case("v % 2 = 1")
    assert values(odd.peek(3, timeout=LONG)) == [25, 21, 3]
    assert values(rest.map(v="v + 100").peek(timeout=LONG)) == [120, 140]
    assert sorted(values(odd.union(rest).peek(7, timeout=LONG))) == [1, 3, 9, 20, 21, 25, 40]
    zones = hr.table(spark.createDataFrame([(3, "three")], "z long, name string"), name="zones")
    assert rows_of(s.join(zones, on="l.v = r.z").peek(timeout=LONG), "name") == [("three",)]


def test_peek_of_a_static_dataframe(spark: Any) -> None:
    df = spark.range(50).selectExpr("timestamp_seconds(id) ts", "id v")
    assert values(hr.stream(df, time="ts").filter("v % 10 = 3").peek(3, timeout=LONG)) == [3, 13, 23]
    assert hr.stream(df, time="ts").filter("v < 0").peek(3, timeout=LONG).num_rows == 0, "it has an end"


def test_peek_of_a_streaming_dataframe_leaves_no_query_and_no_checkpoint(spark: Any, folder: Path) -> None:
    df = spark.readStream.schema("ts timestamp, v long").parquet(str(folder))
    assert sorted(values(hr.stream(df, time="ts").filter("v > 20").peek(3, timeout=LONG))) == [21, 25, 40]
    assert not spark.streams.active
    live = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    found = hr.stream(live, time="timestamp").map(v="value").peek(5, timeout=LONG)
    assert found.num_rows == 5 and not spark.streams.active


def test_peek_waits_for_the_first_tuple_of_a_folder_no_longer_than_its_timeout(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    s = stream(spark, tmp_path / "in", schema=numbered(1).schema)
    began = time.monotonic()
    assert s.peek(3, timeout="0.3 seconds").num_rows == 0
    assert time.monotonic() - began >= 0.3
    timer = threading.Timer(0.3, lambda: add_file(tmp_path / "in", 0, numbered(7, 5)))
    timer.start()
    assert values(s.peek(3, timeout=LONG)) == [7, 5]
    timer.join()


def test_a_peek_takes_nothing_from_a_run(spark: Any, folder: Path, tmp_path: Path) -> None:
    s = stream(spark, folder)
    before = sorted(tmp_path.rglob("*"))
    s.peek(2, timeout=LONG)
    assert sorted(tmp_path.rglob("*")) == before
    sink = hr.sinks.memory()
    assert s.start(sink, checkpoint=tmp_path / "ckpt", once=True, show=False).wait(PATIENCE)
    s.peek(2, timeout=LONG)
    assert sorted(values(sink.table())) == [1, 3, 9, 20, 21, 25, 40]


def test_late_tuples_are_shown_and_tuples_without_a_time_are_not(spark: Any, tmp_path: Path) -> None:
    table = pa.table({"ts": pa.array([9_000_000, None, 1], pa.timestamp("us", "UTC")), "v": [1, 2, 3]})
    add_file(tmp_path / "in", 0, table)
    assert values(stream(spark, tmp_path / "in").peek(timeout=LONG)) == [1, 3]


@pytest.mark.parametrize(
    ("verb", "query"),
    [
        ("aggregate", lambda s: s.aggregate(window="1 second", n="count(*)").map("n")),
        ("join", lambda s: s.join(s, on="l.v = r.v", within="1 second")),
        ("distinct", lambda s: s.distinct(by=["v"], within="1 second")),
        ("limit", lambda s: s.limit(3)),
        ("limit", lambda s: s.split(2, by=["v"]).each(lambda t: t.limit(3))),
    ],
)
def test_peek_names_the_verb_that_is_not_stateless(spark: Any, folder: Path, verb: str, query: Any) -> None:
    with pytest.raises(hr.QueryError, match=f"stateless verbs only; found {verb}: "):
        query(stream(spark, folder)).peek(timeout=LONG)


def test_wrong_arguments_and_unbounded_input(spark: Any, folder: Path) -> None:
    s = stream(spark, folder)
    with pytest.raises(hr.QueryError, match="n must be at least 1"):
        s.peek(0, timeout=LONG)
    with pytest.raises(hr.QueryError, match="timeout must be more than zero"):
        s.peek(1, timeout="0 seconds")
    live = hr.stream(spark.readStream.format("rate").load(), time="timestamp", name="clock")
    for look in (live.head, live.show):
        with pytest.raises(hr.QueryError, match=r"found 'clock', which has no end; use peek\(10\)"):
            look()


@pytest.mark.parametrize("verb", ["head", "peek"])
def test_a_substream_has_no_tuples_to_look_at(spark: Any, folder: Path, verb: str) -> None:
    with pytest.raises(hr.QueryError, match=f"{verb} was called inside each"):
        stream(spark, folder).split(2, by=["v"]).each(lambda t: getattr(t, verb)(3))


def test_start_refuses_a_limit_unless_the_input_ends(spark: Any, folder: Path, tmp_path: Path) -> None:
    s = stream(spark, folder)
    inside = s.split(2, by=["v"]).each(lambda t: t.limit(3))
    for number, query in enumerate((s.limit(3), inside, s.limit(3).aggregate(window="1 day", n="count(*)"))):
        with pytest.raises(hr.QueryError, match=r"found limit 3; give start\(..., once=True\)"):
            query.start(hr.sinks.memory(), checkpoint=tmp_path / f"refused-{number}")
        assert not (tmp_path / f"refused-{number}").exists()
    sink = hr.sinks.memory()
    assert s.limit(3).start(sink, checkpoint=tmp_path / "once", once=True, show=False).wait(PATIENCE)
    assert sorted(values(sink.table())) == [1, 3, 9]
    static = hr.stream(spark.range(9).selectExpr("timestamp_seconds(id) ts", "id v"), time="ts")
    assert static.limit(2).start(sink := hr.sinks.memory(), checkpoint=tmp_path / "static", show=False).wait(PATIENCE)
    assert sorted(values(sink.table())) == [0, 1]


def test_a_run_says_what_runs_since_when_and_how_far(spark: Any, folder: Path, tmp_path: Path) -> None:
    run = (
        stream(spark, folder)
        .filter("v > 2")
        .start(hr.sinks.memory(), checkpoint=tmp_path / "ckpt", once=True, show=False)
    )
    assert repr(run).startswith("Run(")
    assert run.wait(PATIENCE)
    assert repr(run).startswith("Run(ended since 20") and "epoch 1, 7 tuples in, 6 results" in repr(run)
    assert "result-0: filter v > 2" in repr(run) and str(tmp_path / "ckpt") in repr(run)
    assert "<td" in run._repr_html_() and "&gt; 2" in run._repr_html_()


def test_a_run_names_its_processor_and_its_source(spark: Any, folder: Path, tmp_path: Path) -> None:
    s = stream(spark, folder)
    results = [
        (s.with_columns(user="v::text").split(2, by="user").apply(Counter()), hr.sinks.memory()),
        (s, hr.sinks.memory()),
    ]
    run = hr.start(results, checkpoint=tmp_path / "ckpt", once=True, show=False)
    assert run.wait(PATIENCE)
    assert "result-0: apply Counter to each of 2 substreams" in repr(run) and "result-1: source a (ts" in repr(run)
