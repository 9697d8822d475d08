"""The processors of `headrace bench processors`: sound, and equal to plain Python, DuckDB and what Spark's are made of."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from headrace import testing
from headrace.errors import ProcessorError
from headrace.testing import LocalRun, table_stream
from headrace_bench import answers, compare, processors, systems, workload
from headrace_bench.running import OK, Outcome, judged
from headrace_bench.systems import headrace_job, spark_processors
from headrace_bench.systems.headrace_processors import TS, RunningCount, Sessions
from headrace_bench.task import Case

GAP = dt.timedelta(seconds=3)
BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def tuples(seed: int, rows: int = 60, keys: int = 5) -> pa.Table:
    """Few keys and whole seconds, so that ties, gaps of just three seconds and pauses all happen."""
    r = random.Random(seed)
    pauses = itertools.accumulate(r.choice((0, 0, 1, 1, 2, 3)) for _ in range(rows))
    times = [BEGIN + dt.timedelta(seconds=seconds) for seconds in pauses]
    return pa.table({"ts": pa.array(times, TS), "key": pa.array(r.choices(range(keys), k=rows), pa.int64())})


def sessions_of(table: pa.Table, gap: dt.timedelta = GAP) -> Counter:
    """(key, first, last, how many), one tuple after the other."""
    found: dict[int, list[list[Any]]] = {}
    for row in sorted(table.to_pylist(), key=lambda row: row["ts"]):
        mine = found.setdefault(row["key"], [])
        if mine and row["ts"] - mine[-1][1] < gap:
            mine[-1][1:] = [row["ts"], mine[-1][2] + 1]
        else:
            mine.append([row["ts"], row["ts"], 1])
    return Counter((key, *session) for key, mine in found.items() for session in mine)


def counts_of(table: pa.Table) -> Counter:
    seen, found = Counter(), Counter()
    for row in sorted(table.to_pylist(), key=lambda row: row["ts"]):
        seen[row["key"]] += 1
        found[row["ts"], row["key"], seen[row["key"]]] += 1
    return found


def rows_of(table: pa.Table, *names: str) -> Counter:
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


def run(processor: Any, table: pa.Table, folder: Path, cuts: int, slots: int) -> pa.Table:
    """In so many epochs."""
    stream = table_stream(table.slice(0, 1), name="s")
    run = LocalRun(stream.split(4, by=["key"]).apply(processor), folder, slots=slots)
    size = -(-table.num_rows // cuts)
    for start in range(0, table.num_rows, size):
        run.epoch(table.slice(start, size))
    run.end()
    run.close()
    return run.results()


# --- headrace's ----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    "processor", [RunningCount(), Sessions(GAP, dt.timedelta(seconds=4))], ids=["count", "sessions"]
)
def test_check_processor_finds_nothing(processor: Any):
    for seed in range(2):
        testing.check_processor(processor, tuples(seed), substreams=2, by=["key"], seed=seed, cases=4)


class Forgetful(RunningCount):
    """Counts a chunk, and not what was before it."""

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        state["counts"].delete(state["counts"].rows().select(["key"]))
        return super().process(tuples, state)


def test_canary_a_counter_that_forgets_is_found():
    with pytest.raises(ProcessorError, match="depends on where the stream is cut"):
        testing.check_processor(Forgetful(), tuples(0), substreams=2, by=["key"])


@pytest.mark.parametrize("seed", range(4))
def test_oracle_the_processors_say_what_plain_python_says(seed: int, tmp_path: Path):
    table, cuts, slots = tuples(seed), 1 + 3 * seed, 1 + seed % 2
    counted = run(RunningCount(), table, tmp_path / "count", cuts, slots)
    assert rows_of(counted, "ts", "key", "n") == counts_of(table)
    found = run(Sessions(GAP, dt.timedelta(seconds=4)), table, tmp_path / "sessions", cuts, slots)
    assert rows_of(found, "key", "began", "last", "n") == sessions_of(table)
    assert sum(found["n"].to_pylist()) == table.num_rows and found.num_rows > 10


# --- Spark's -------------------------------------------------------------------------------------------------------


class Value:
    """A ValueState, and the timers beside it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: Any) -> Value:
        return self

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        assert all(type(part) is int for part in value)
        self.value = value

    def clear(self) -> None:
        self.value = None

    def registerTimer(self, at: int) -> None:
        assert at not in self.timers
        self.timers.add(at)

    def deleteTimer(self, at: int) -> None:
        self.timers.remove(at)


def handed(way: str, at: list[int]) -> Any:
    """The tuples of a key as Spark hands them over: in any order, frames in pieces."""
    if way == "rows":
        return iter([Row(at=time) for time in reversed(at)])
    return iter([pd.DataFrame({"at": piece}) for piece in (at[2:], at[:2]) if piece])


def put_out(way: str, rows: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for row in rows] if way == "rows" else [row for f in rows for row in f.itertuples(index=False)]


def drive(way: str, processor: Any, table: pa.Table, gap: int = 0) -> Counter:
    """Key by key, in epochs of seven tuples; timers go off when all is in."""
    found = Counter()
    for key in range(5):
        state = Value()
        processor.init(state)
        for start in range(0, table.num_rows, 7):
            rows = table.slice(start, 7).to_pylist()
            if at := [in_millis(row["ts"]) for row in rows if row["key"] == key]:
                found.update(put_out(way, processor.handleInputRows((key,), handed(way, at), None)))
                assert not gap or state.timers == {state.value[1] + gap}
        if state.timers:
            found.update(put_out(way, processor.handleExpiredTimer((key,), None, None)))
            assert state.value is None
    return found


def in_millis(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("way", ["pandas", "rows"])
@pytest.mark.parametrize("seed", range(3))
def test_oracle_sparks_processors_say_the_same(way: str, seed: int):
    table, gap = tuples(seed), 1000 * GAP.seconds
    count = spark_processors.CountInPandas() if way == "pandas" else spark_processors.CountInRows()
    sessions = spark_processors.SessionsInPandas(gap) if way == "pandas" else spark_processors.SessionsInRows(gap)
    for found, expected in (
        (drive(way, count, table), counts_of(table)),
        (drive(way, sessions, table, gap), sessions_of(table)),
    ):
        assert found == Counter(tuple(map(in_millis, row)) for row in expected.elements())


# --- the cases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["count", "sessions"])
def test_oracle_duckdb_gives_the_answer_of_the_query_that_is_run(kind: str, tmp_path: Path):
    case = processors.case(kind, 300, 150, 2, 2)
    workload.write(case.streams, tmp_path / "in")
    found = answers.answer_of([_found(case, tmp_path / "state")], case.query)
    assert found == answers.expected(case, tmp_path / "in")
    everything = pa.concat_tables(list(case.streams.tables("stream"))[:-1])
    gap = dt.timedelta(seconds=case.query.gap)
    expected = counts_of(everything) if kind == "count" else sessions_of(everything, gap)
    assert found.rows == expected.total() > 200


def _found(case: Case, folder: Path) -> pa.Table:
    """All files, one epoch each, and nothing at the end: the last one lets every session end."""
    tables = list(case.streams.tables("stream"))
    task = {"kind": case.query.kind, "gap": case.query.gap, "every": case.query.every, "substreams": 4}
    run = LocalRun(headrace_job.build(task, [table_stream(tables[0], name="stream")]), folder, slots=2)
    for table in tables:
        run.epoch(table)
    run.close()
    return run.results()


def test_a_session_that_is_cut_in_two_is_another_answer():
    query = processors.case("sessions", 300, 150).query
    columns = {"key": [1], "began": pa.array([BEGIN], TS), "last": pa.array([BEGIN + GAP], TS), "n": [2]}
    whole = pa.table(columns)
    halves = pa.concat_tables([whole.set_column(3, "n", pa.array([1]))] * 2)
    assert answers.answer_of([whole], query) != answers.answer_of([halves], query)


def test_the_ratio_is_taken_from_the_better_of_sparks_two():
    case = processors.case("count", 300, 150, 2, 2)
    right = answers.Answer(5, "aa")
    rates = [(systems.HEADRACE, 900.0), (systems.SPARK_PANDAS, 100.0), (systems.SPARK_ROWS, 300.0)]
    outcomes = [Outcome(s.name, s.family, OK, rate, 1.0, 1.0, answer=right) for s, rate in rates]
    report = compare.reported("processors", "A title", [judged(case, outcomes, right)], *processors.NOTES)
    assert [row[-2:] for row in report.grids[0].rows] == [["", "1"], ["9.00", ""], ["3.00", "2"]]
    assert set(processors.NOTES) <= set(report.notes)
