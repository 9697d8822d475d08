"""What `headrace bench state` is fed with, holds and claims. No Spark here; tests/spark/test_bench.py runs it."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import testing
from headrace.telemetry.epoch_record import EpochRecord
from headrace.testing import LocalRun, table_stream
from headrace_bench import answers, report, show, state, systems, workload
from headrace_bench.keys import Keys
from headrace_bench.running import OK, Outcome, judged
from headrace_bench.state import QUICK, Held
from headrace_bench.systems import headrace_job
from headrace_bench.systems.headrace_processors import TS, CountInPlace, RunningCount, RunningCountInPlace
from headrace_bench.systems.state_job import Written, told
from headrace_bench.workload import CLOSING

pytestmark = pytest.mark.thorough

SMALL = Keys(("stream",), 20, 1, 3, 50, gap=30.0, load=30, few=2)


def keys_of(table: pa.Table) -> list[int]:
    return table["key"].to_pylist()


# --- the stream ----------------------------------------------------------------------------------------------------


def test_every_key_comes_once_and_then_some_of_them():
    *epochs, last = SMALL.tables("stream")
    assert SMALL.loads == 2 and [len(epoch) for epoch in epochs] == [30, 20, 20, 20, 20, 2, 2]
    loaded = keys_of(epochs[0]) + keys_of(epochs[1])
    assert sorted(loaded) == list(range(50)) != loaded
    assert all(len(set(keys_of(epoch))) == len(epoch) for epoch in epochs)  # no key twice
    assert sum(map(len, epochs)) == SMALL.tuples and keys_of(last) == [CLOSING]


def test_times_rise_from_epoch_to_epoch_in_whole_milliseconds():
    times = [epoch["ts"].cast(pa.int64()).to_numpy() for epoch in SMALL.tables("stream")]
    assert all((each % 1000 == 0).all() and (np.diff(each) >= 0).all() for each in times)
    assert all(one[-1] < two[0] for one, two in pairwise(times))


def test_the_same_seed_gives_the_same_stream():
    one, two = (pa.concat_tables(SMALL.tables("stream")) for _ in range(2))
    other = Keys(("stream",), 20, 1, 3, 50, gap=30.0, load=30, few=2, seed=8)
    assert one.equals(two) and not one.equals(pa.concat_tables(other.tables("stream")))


def test_oracle_counts_are_those_of_plain_python():
    found = Counter(key for epoch in list(SMALL.tables("stream"))[:-1] for key in keys_of(epoch))
    assert SMALL.counts().tolist() == [found[key] for key in range(50)]


# --- the processors ------------------------------------------------------------------------------------------------


def tuples(seed: int, rows: int = 60) -> pa.Table:
    rng = np.random.default_rng(seed)
    ts = pa.array((10**15 + 10**6 * np.sort(rng.integers(0, 20, rows))).astype("datetime64[us]")).cast(TS)
    return pa.table({"ts": ts, "key": rng.integers(0, 5, rows)})


@pytest.mark.parametrize("processor", [RunningCountInPlace(), CountInPlace()], ids=["running", "held"])
def test_check_processor_finds_nothing(processor: Any):
    testing.check_processor(processor, tuples(1), substreams=2, by=["key"], cases=3)


def test_oracle_in_place_and_by_get_and_put_are_the_same(tmp_path: Path):
    found = []
    for processor in (RunningCount(), RunningCountInPlace()):
        folder = tmp_path / type(processor).__name__
        run = LocalRun(table_stream(tuples(0).slice(0, 1), name="s").split(4, by=["key"]).apply(processor), folder)
        for start in range(0, 60, 17):
            run.epoch(tuples(0).slice(start, 17))
        run.end()
        run.close()
        found.append(run.results().sort_by([("key", "ascending"), ("n", "ascending")]))
    assert found[0].equals(found[1]) and found[0].num_rows == 60


def run_in(folder: Path, stream: Keys, lose: bool = False) -> Path:
    """A checkpoint as the job leaves one, without Spark."""
    tables = list(stream.tables("stream"))
    query = table_stream(tables[0], name="stream").split(4, by=["key"]).apply(CountInPlace())
    run = LocalRun(query, folder / "state", slots=2)
    for number, table in enumerate(tables):
        run.epoch(table.slice(1) if lose and number == 3 else table)
    run.close()
    return folder


def test_what_is_held_is_compared_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("headrace.tools.plan_file.require_plan", lambda folder: None)
    assert state.is_right(SMALL, run_in(tmp_path / "whole", SMALL))
    assert not state.is_right(SMALL, run_in(tmp_path / "less", SMALL, lose=True))
    assert not state.is_right(Keys(("stream",), 20, 1, 3, 51, gap=30.0, load=30, few=2), tmp_path / "whole")


def test_oracle_duckdb_gives_the_answer_of_the_query_that_is_run_beside_spark(tmp_path: Path):
    case = state.case(60, 30, 2)
    workload.write(case.streams, tmp_path / "in")
    tables = list(case.streams.tables("stream"))
    task = {"kind": "count", "every": 0, "gap": 0, "substreams": 4, "in_place": True}
    run = LocalRun(headrace_job.build(task, [table_stream(tables[0], name="stream")]), tmp_path / "state", slots=2)
    for table in tables:
        run.epoch(table)
    run.close()
    assert case.warm == 2 and case.streams.per_epoch == 30
    found = answers.answer_of([run.results()], case.query)
    assert found == answers.expected(case, tmp_path / "in") and found.rows == case.streams.tuples


# --- figures -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_what_is_new(tmp_path: Path):
    written = Written(tmp_path)
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(b"1234")
    assert (written.more(), written.more()) == (4, 0)
    (tmp_path / "deep" / "b").write_bytes(b"12")
    (tmp_path / "a").unlink()
    assert written.more() == 2


def test_tables_in_place_are_told_where_the_engine_tells_them():
    plain = EpochRecord(3, seconds=0.5)
    assert told(plain, 7) == {
        "epoch": 3,
        "tuples": 0,
        "milliseconds": 500,
        "written": 7,
        "found": 0,
        "built": 0,
        "read": 0,
    }
    uses = {"apply-1": SimpleNamespace(found=3, built={"cold": 2, "stamp": 1}, seconds=0.5)}
    record = SimpleNamespace(epoch=3, seconds=0.5, sources={}, table_use=uses)
    found = told(record, 7)  # type: ignore[arg-type]
    assert (found["found"], found["built"], found["read"]) == (3, 3, 0.5)


def epoch(tuples: int, milliseconds: float, written: int) -> dict[str, float]:
    tables = {"found": 48, "built": 16, "read": 0.25}
    return {"epoch": 0, "tuples": tuples, "milliseconds": milliseconds, "written": written, **tables}


def test_the_first_epoch_of_a_second_start_is_told_by_itself():
    first = [epoch(500, ms, 1_000) for ms in (10, 30, 20, 12)]
    again = [epoch(50, 700, 500), epoch(50, 5, 100), epoch(50, 7, 100), epoch(50, 6, 100), epoch(1, 99, 99)]
    found = state.figures(5_000, first, again, OK, 80.0)
    assert (found.median, found.longest, found.written) == (16, 30, 1_000)
    assert (found.first_again, found.few_median, found.few_written) == (700, 6, 100)
    assert (found.read, found.in_place) == (250, 0.75)


def made(keys: int, status: str = OK, **figures: float) -> Held:
    usual = {"median": 100.0, "longest": 200.0, "written": 1e6, "few_median": 50.0, "few_written": 1e5}
    usual |= {"read": 300.0, "in_place": 1.0}
    return Held(keys=keys, status=status, first_again=900.0, peak_mb=500.0, epochs={}, **{**usual, **figures})


def test_claims_are_about_many_keys_beside_few(tmp_path: Path):
    few = [made(1_000, median=ms) for ms in (90, 100, 300)]
    many = [made(5_000, median=140, longest=400, few_written=3e5)]
    found = state.reported(QUICK, {1_000: few, 5_000: many})
    assert [claim.holds for claim in found.claims] == [True, True, False, True, False]
    assert {len(row) for row in found.grids[0].rows} == {len(found.grids[0].headings)}
    assert [row[:3] for row in found.grids[0].rows] == [["1,000", "100", "200"], ["5,000", "140", "400"]]
    whole = report.Report("state", "Title", found.notes, found.grids, {}, found.panels)
    chart = report.draw(tmp_path, whole, report.machine())
    assert chart is not None and chart.read_bytes().startswith(b"\x89PNG")


def test_a_run_that_holds_something_else_fails_the_benchmark():
    found = state.reported(QUICK, {1_000: [made(1_000)], 5_000: [made(5_000, status="wrong answer")]})
    assert not found.claims[0].holds
    assert show.wrong(report.Report("state", "Title", [], [], {"cases": found.compared}))


def test_the_ratio_beside_spark_is_a_claim():
    case, right = state.case(60, 30, 2), answers.Answer(5, "aa")
    rates = [(systems.HEADRACE, 900.0), (systems.SPARK_PANDAS, 100.0)]
    outcomes = [Outcome(s.name, s.family, OK, rate, 1.0, 1.0, answer=right) for s, rate in rates]
    found = state.compared(judged(case, outcomes, right))
    assert found.data["headrace_is_times_as_fast"] == 9 and [claim.holds for claim in found.claims] == [False]


def test_sizes_are_those_of_the_issue_and_can_be_smaller():
    assert state.FULL.keys == (100_000, 10_000_000) and state.FULL.touched == 50_000
    tenth = state.scaled(state.FULL, 0.1)
    assert tenth.keys == (10_000, 1_000_000) and tenth.touched == 5_000 and tenth.epochs == state.FULL.epochs
