"""The demo's calls and its query: what is planted is found, what is ordinary is not, and the same seed is the same."""

from __future__ import annotations

import io
import itertools
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from headrace.difference import difference
from headrace.reference import late_tuples, references
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream
from headrace_demo.fraud import report, show
from headrace_demo.fraud.generator import (
    BOX,
    CLONED,
    DELAY,
    LATENESS,
    SCHEMA,
    Calls,
    Feed,
    Fraud,
    district,
    generate,
    write_file,
)
from headrace_demo.fraud.query import fraud

BEGIN = 1_700_000_000.0


def small(rate: int = 60, seconds: float = 24.0, seed: int = 7) -> Calls:
    return generate(rate, seconds, seed, BEGIN)


def query(calls: Calls) -> tuple[Stream, Stream]:
    return fraud(table_stream(calls.table, "start", lateness=LATENESS, name="calls"))


def alarm_keys(alarms: pa.Table) -> list[tuple[str, int, str]]:
    return sorted((a["kind"], a["caller"], a["other"]) for a in alarms.to_pylist())


def planted(frauds: tuple[Fraud, ...]) -> list[tuple[str, int, str]]:
    return sorted(alarm for f in frauds for alarm in f.alarms)


def test_same_seed_same_calls() -> None:
    one, two, other = small(), small(), small(seed=8)
    assert one.table.equals(two.table)
    assert one.frauds == two.frauds
    assert np.array_equal(one.arrivals, two.arrivals)
    assert not one.table.equals(other.table)


def test_begin_moves_the_calls_and_nothing_else() -> None:
    there, here = generate(60, 24.0, 7, BEGIN), generate(60, 24.0, 7, BEGIN + 3600)
    assert there.table.drop_columns(["start"]).equals(here.table.drop_columns(["start"]))
    moved = np.asarray(here.table["start"].cast(pa.int64())) - np.asarray(there.table["start"].cast(pa.int64()))
    assert set(moved.tolist()) <= {3_600_000_000 - 1, 3_600_000_000, 3_600_000_000 + 1}


@pytest.mark.parametrize(("rate", "seconds"), [(1, 1.0), (10, 3.0), (400, 5.0)])
def test_records_arrive_in_order_and_after_their_call_began(rate: int, seconds: float) -> None:
    calls = generate(rate, seconds, 7, BEGIN)
    assert calls.table.schema.equals(SCHEMA)
    assert calls.table.num_rows >= rate * seconds
    starts = np.asarray(calls.table["start"].cast(pa.int64())) / 1e6 - BEGIN
    assert (np.diff(calls.arrivals) >= 0).all()
    assert (starts >= -1e-5).all()
    assert (calls.arrivals - starts > -1e-5).all()
    assert (calls.arrivals - starts < DELAY + 1e-5).all()
    assert calls.arrivals[-1] <= seconds


def test_planted_frauds_are_what_they_are_called() -> None:
    calls = small()
    assert {f.kind for f in calls.frauds} == {CLONED, BOX}
    for f in calls.frauds:
        rows = [calls.table.slice(row, 1).to_pylist()[0] for row in f.rows]
        starts = [r["start"].timestamp() for r in rows]
        assert max(starts) - min(starts) <= 10
        if f.kind == CLONED:
            first, second = sorted(rows, key=lambda r: r["start"])
            assert first["caller"] == second["caller"]
            metres = np.hypot(first["x"] - second["x"], first["y"] - second["y"])
            assert metres > 1000 + 70 * (max(starts) - min(starts))
        else:
            assert len({r["caller"] for r in rows}) == len(rows) >= 3
            assert max(r["x"] for r in rows) - min(r["x"] for r in rows) < 5
            assert max(r["y"] for r in rows) - min(r["y"] for r in rows) < 5
            assert max(starts) < min(s + r["duration"] for s, r in zip(starts, rows, strict=True))


def test_ordinary_calls_raise_no_alarm() -> None:
    calls = small()
    fraudulent = {row for f in calls.frauds for row in f.rows}
    ordinary = calls.table.take([i for i in range(calls.table.num_rows) if i not in fraudulent])
    alarms, counts = references(query(calls), epochs=[ordinary], end=False)
    assert (alarms.num_rows, counts.num_rows) == (0, 0)


def test_the_reference_finds_exactly_what_was_planted() -> None:
    calls = small()
    alarms, _ = references(query(calls), epochs=[calls.table])
    assert alarm_keys(alarms) == planted(calls.frauds)


@pytest.mark.parametrize("slots", [1, 3])
def test_the_engine_gives_the_sequential_answer(tmp_path: Path, slots: int) -> None:
    calls = small()
    streams = query(calls)
    cuts = [calls.until(s) for s in range(0, 27, 3)]
    epochs = [calls.table.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    run = LocalRun(streams, tmp_path / "state", slots=slots)
    for epoch in epochs:
        run.epoch(epoch, splitters=2)
    found = [run.results("result-0"), run.results("result-1")]
    run.close()
    expected = references(streams, epochs=[calls.table], end=False)
    assert expected[1].num_rows > 0, "windows must have closed, or there is nothing to compare"
    for e, f in zip(expected, found, strict=True):
        assert difference(e, f) is None
    assert alarm_keys(found[0]) == planted(calls.frauds)


def test_no_cut_makes_a_call_late() -> None:
    calls = small(rate=200, seconds=6)
    single = [calls.table.slice(i, 1) for i in range(calls.table.num_rows)]
    late, rejected = late_tuples(query(calls)[0], single)["calls"]
    assert (late.num_rows, rejected.num_rows) == (0, 0)


def test_a_feed_writes_everything_once_and_never_half_a_file(tmp_path: Path) -> None:
    calls = generate(200, 1.0, 7, BEGIN)
    feed = Feed(calls, tmp_path, every=0.1)
    feed.start()
    seen: set[str] = set()
    while feed.is_alive():
        seen |= {p.name for p in tmp_path.glob("[!_]*.parquet") if pq.read_metadata(p).num_rows > 0}
        time.sleep(0.005)
    files = sorted(tmp_path.iterdir())
    assert feed.done and feed.error is None
    assert {p.name for p in files} >= seen
    assert len(files) > 5
    assert pa.concat_tables(pq.read_table(p, schema=SCHEMA) for p in files).equals(calls.table)


def test_a_feed_that_is_stopped_has_written_a_beginning(tmp_path: Path) -> None:
    calls = generate(100, 60.0, 7, BEGIN)
    feed = Feed(calls, tmp_path, every=0.05)
    feed.start()
    while not feed.written:
        time.sleep(0.01)
    feed.stop()
    assert 0 < feed.written < calls.table.num_rows
    files = sorted(tmp_path.iterdir())
    assert pa.concat_tables(pq.read_table(p) for p in files).num_rows == feed.written


def test_a_feed_that_cannot_write_says_so(tmp_path: Path) -> None:
    feed = Feed(generate(100, 1.0), tmp_path / "missing", every=0.01)
    feed.start()
    feed.join()
    assert isinstance(feed.error, OSError)


def test_found_frauds_are_counted_by_kind() -> None:
    calls = small()
    alarms, _ = references(query(calls), epochs=[calls.table])
    everything = calls.table.num_rows
    clones, boxes = report.compare(calls.frauds, alarms, everything)
    assert (clones.found, boxes.found) == (clones.planted, boxes.planted) == (12, 8)
    assert (clones.by_chance, boxes.by_chance) == (0, 0)
    clones, boxes = report.compare(calls.frauds, alarms.slice(0, 0), everything)
    assert (clones.found, boxes.found, clones.planted) == (0, 0, 12)
    clones, boxes = report.compare((), alarms, everything)
    assert clones.by_chance + boxes.by_chance == alarms.num_rows
    clones, boxes = report.compare(calls.frauds, alarms, 0)
    assert (clones.planted, boxes.planted) == (0, 0)


@pytest.mark.parametrize("spoil", [False, True])
def test_a_wrong_answer_is_a_loud_failure(tmp_path: Path, spoil: bool) -> None:
    calls = small()
    streams = query(calls)
    places = show.Places(tmp_path)
    write_file(calls.table, places.calls, 1)
    answers = references(streams, epochs=[calls.table], end=False)
    for folder, answer in zip((places.alarms, places.districts), answers, strict=True):
        folder.mkdir()
        pq.write_table(answer.slice(1 if spoil else 0), folder / "epoch-0.parquet")
    results = [
        report.Results(folder, s.schema) for folder, s in zip((places.alarms, places.districts), streams, strict=True)
    ]
    console = Console(file=io.StringIO(), width=200)
    assert show._verified(places, streams, results, console) is not spoil
    said = console.file.getvalue()  # type: ignore[attr-defined]
    if spoil:
        assert "FAILED: alarms: not the sequential answer: expected" in said
        assert "FAILED: alarms per district: not the sequential answer" in said
        assert "missing 1:" in said
    assert ("verified: " in said) is not spoil


def test_districts_cover_the_area() -> None:
    corners = [district(x, y) for x in (0.0, 50_000.0) for y in (0.0, 50_000.0)]
    assert corners == ["A1", "A5", "E1", "E5"]
