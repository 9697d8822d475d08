"""Changes on a running checkpoint, on Spark: columns that come and go while it runs, another filter at a restart, and state
carried over to another query by the command line."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace as hr
from headrace import cli
from headrace.difference import difference, unmatched_rows
from headrace.reference import reference
from headrace.stream import node_of
from tests.helpers import add_file, wait_until

pytestmark = pytest.mark.spark
UTC = pa.timestamp("us", "UTC")
SECOND = 1_000_000


def window(number: int) -> pa.Table:
    """Twelve tuples in two seconds."""
    return pa.table(
        {
            "at": pa.array([2 * number * SECOND + 150_000 * place for place in range(12)], UTC),
            "k": [(number + place * place) % 4 for place in range(12)],
            "v": [(31 * number + 17 * place) % 10 for place in range(12)],
            "note": ["x"] * 12,
        }
    )


FORMS = [
    lambda t: t,
    lambda t: t.append_column("more", t["v"]),
    lambda t: t.drop_columns(["note"]),
    lambda t: t.set_column(3, "note", t["v"]),
    lambda t: t.select(["v", "at", "k"]),
]


def put(folder: Path, number: int) -> None:
    add_file(folder, number, FORMS[number % len(FORMS)](window(number)))


QUERY = """
import headrace as hr

def query(spark):
    s = hr.files(spark, {folder!r}, time="at", lateness="1 second", files_per_epoch=1, name="s")
    pairs = s.join(s, on="l.k = r.k and l.v < r.v", within="3 seconds")
    busy = s.aggregate(by=["k"], window={window!r}, n="count(*)", total="sum(v)")
    recent = s.map("k", "v").aggregate(by=["k"], last=3, top="max(v)")  # by itself it would read every column
    return [
        (pairs.map("l_k", low="l_v").filter({filter!r}), hr.sinks.parquet({out!r} + "/pairs")),
        (busy, hr.sinks.parquet({out!r} + "/busy" + {number!r})),
        (recent.map("k", "top"), hr.sinks.parquet({out!r} + "/recent")),
    ]
"""


def loaded(text: str, spark: Any) -> list[tuple[hr.Stream, Any]]:
    found: dict[str, Any] = {}
    exec(text, found)
    return list(found["query"](spark))


def emitted(query: hr.Stream, first: int, last: int) -> pa.Table:
    epochs = [window(number) for number in range(last)]
    before = reference(query, epochs=epochs[:first], end=False) if first else query.schema.empty_table()
    return unmatched_rows(reference(query, epochs=epochs, end=False), before)[0]


def roots_of(results: list[tuple[hr.Stream, Any]]) -> Any:
    """As the command line has them; this session goes on."""
    return [node_of(query) for query, _ in results], [False] * len(results), None


def test_a_checkpoint_that_goes_on_through_all_of_it(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    text = {"folder": str(folder), "out": str(out)}
    lives = [
        QUERY.format(**text, window="4 seconds", filter="low > 1", number="1"),
        QUERY.format(**text, window="4 seconds", filter="low > 4", number="1"),
        QUERY.format(**text, window="2 seconds", filter="low > 4", number="2"),
    ]
    put(folder, 0)
    streams = [[query for query, _ in loaded(life, spark)] for life in lives]
    checkpoint = tmp_path / "checkpoint"
    reached = 1
    for life, (source, stop) in enumerate(zip(lives, (3, 6, 9), strict=True)):
        if life == 2:
            file = tmp_path / "query.py"
            file.write_text(source)
            with pytest.raises(hr.QueryChanged, match=r"lost: aggregate-1: .*window was 4000000, is 2000000"):
                hr.start(loaded(source, spark), checkpoint=checkpoint, show=False)
            given = roots_of(loaded(source, spark))
            monkeypatch.setattr(cli, "_query_of", lambda _, given=given: nullcontext(given))
            shown = CliRunner().invoke(cli.app, ["migrate", str(checkpoint), str(file), "--to", str(tmp_path / "new")])
            assert shown.exit_code == 0, shown.output
            for words in (
                "kept: join-1",
                "kept: aggregate-2",
                "result-1 is complete from",
                "complete from 1970-01-01T00:00:1",
            ):
                assert words in shown.output
            checkpoint = tmp_path / "new"
        options = {"checkpoint": checkpoint, "epoch": "0 seconds", "slots": 2, "show": False}
        with hr.start(loaded(source, spark), **options) as run:
            for number in range(reached, stop):
                put(folder, number)
            wait_until(run, lambda p, stop=stop: p.tuples_in == 12 * stop)
        assert run.exception is None
        reached = stop
    pairs = [emitted(streams[life][0], *span) for life, span in enumerate([(0, 3), (3, 6), (6, 9)])]
    assert difference(pa.concat_tables(pairs), pq.read_table(out / "pairs")) is None
    assert difference(emitted(streams[0][1], 0, 6), pq.read_table(out / "busy1")) is None
    assert difference(emitted(streams[0][2], 0, 9), pq.read_table(out / "recent")) is None
    begun = pq.read_table(out / "busy2")
    late = begun.filter(pa.compute.field("window_start") >= pa.scalar(14 * SECOND, UTC))
    wanted = emitted(streams[2][1], 0, 9)
    wanted = wanted.filter(pa.compute.field("window_start") >= pa.scalar(14 * SECOND, UTC))
    assert late.num_rows and difference(wanted, late) is None


def test_a_column_that_is_read_and_changes_its_type_is_named_with_both(spark: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", 0)
    stream = hr.files(spark, tmp_path / "in", time="at", name="s", files_per_epoch=1)
    query = stream.aggregate(by=["k"], window="2 seconds", n="sum(v)")
    with query.start(hr.sinks.memory(), checkpoint=tmp_path / "c", epoch="0 seconds", slots=1, show=False) as run:
        wait_until(run, lambda p: p.epoch == 0)
        bad = window(1).set_column(2, "v", window(1)["v"].cast(pa.float64()))
        pq.write_table(bad, tmp_path / "in" / "001.parquet")
        with pytest.raises(
            hr.SourceError, match=r"column 'v' of s changed its type from int64 to double.*001\.parquet"
        ):
            run.wait(60)


def test_a_function_is_added_at_a_restart(spark: Any, tmp_path: Path) -> None:
    """The other keeps its open windows; windows in which the new one saw a part of the tuples have null for it."""
    folder = tmp_path / "in"
    folder.mkdir()
    s = hr.files(spark, folder, time="at", lateness="1 second", files_per_epoch=1, name="s", schema=window(0).schema)
    found = []
    for life, functions in enumerate(({"n": "count(*)"}, {"most": "max(v)", "n": "count(*)"})):
        for number in range(3 * life, 3 * life + 3):
            put(folder, number)
        query = s.aggregate(by=["k"], window="5 seconds", **functions)
        sink = hr.sinks.memory()
        with query.start(sink, checkpoint=tmp_path / "state", epoch="0 seconds", slots=2 + life) as run:
            wait_until(run, lambda p, life=life: p.tuples_in >= 36 * (life + 1))
        found.append(sink.table())
    epochs = [window(number) for number in range(6)]
    expected = reference(query, epochs=epochs, end=False)
    counted = pa.concat_tables([table.select(["window_start", "k", "n"]) for table in found if table is not None])
    assert difference(expected.select(["window_start", "k", "n"]), counted) is None
    assert found[1] is not None
    begun = found[1]["window_start"].cast(pa.int64()).to_pylist()
    known = [most is not None for most in found[1]["most"].to_pylist()]
    largest = max(epochs[2]["at"].cast(pa.int64()).to_pylist())
    assert known == [start > largest for start in begun]
