"""What `headrace bench nway` asks, checks and shows. No Spark here; tests/spark/test_bench.py runs it."""

from __future__ import annotations

import datetime as dt
import importlib
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

from headrace.testing import LocalRun, table_stream
from headrace_bench import answers, nway, workload
from headrace_bench.answers import Answer
from headrace_bench.options import Options
from headrace_bench.running import OK, Outcome, judged
from headrace_bench.systems import FLINK, HEADRACE, HEADRACE_CHAIN, SPARK, headrace_job
from headrace_bench.systems.spark_job import states
from headrace_bench.task import Case

SMALL = {kind: nway.case(kind, 6, 2, 2, within=4) for kind in nway.KINDS}
KINDS = pytest.mark.parametrize("kind", nway.KINDS)


def combinations(case: Case) -> list[tuple[int, int, int]]:
    """All combinations, one by one, in plain Python."""
    a, b, c = (pa.concat_tables(list(case.streams.tables(side))).to_pylist() for side in case.streams.sides)
    near = nway.reach(6 * 4)
    fits = {
        nway.ONE_KEY: lambda x, y, z: x["key"] == y["key"] == z["key"],
        nway.TWO_KEYS: lambda x, y, z: x["key"] == y["key"] and y["part"] == z["part"],
        nway.BAND: lambda x, y, z: abs(x["x"] - y["x"]) <= near and abs(y["x"] - z["x"]) <= near,
    }[case.facts["kind"]]
    found = []
    for each in itertools.product(a, b, c):
        times = [row["ts"] for row in each]
        if max(times) - min(times) <= dt.timedelta(seconds=4) and fits(*each):
            found.append(tuple(row["payload"] for row in each))
    return found


@KINDS
def test_the_expected_combinations_are_those_of_a_nested_loop(kind: str, tmp_path: Path):
    case = SMALL[kind]
    workload.write(case.streams, tmp_path)
    found = combinations(case)
    table = pa.table(dict(zip("abc", zip(*found, strict=True), strict=True)))
    right = answers.answer_of([table], case.query)
    assert answers.expected(case, tmp_path) == right and right.rows > 20


@KINDS
def test_oracle_one_join_and_a_chain_of_two_give_the_answer_of_duckdb(kind: str, tmp_path: Path):
    case = SMALL[kind]
    workload.write(case.streams, tmp_path / "in")
    tables = {side: list(case.streams.tables(side)) for side in case.streams.sides}
    for chain in (False, True):
        task = {"kind": "nway", "joins": case.query.joins, "within": case.query.within, "chain": chain}
        query = headrace_job.build(task, [table_stream(files[0][:0], name=side) for side, files in tables.items()])
        run = LocalRun(query, tmp_path / f"state-{chain}", slots=2)
        for epoch in range(case.streams.epochs + 1):
            run.epoch({side: files[epoch] for side, files in tables.items()})
        run.close()
        assert answers.answer_of([run.results()], case.query) == answers.expected(case, tmp_path / "in")


@KINDS
def test_the_chain_uses_an_index_as_the_one_join_does(kind: str):
    case = SMALL[kind]
    task = {"kind": "nway", "joins": case.query.joins, "within": case.query.within, "chain": True}
    streams = [table_stream(next(case.streams.tables(side))[:0], name=side) for side in case.streams.sides]
    pairs = [line for line in headrace_job.build(task, streams).explain().splitlines() if "pairs: " in line]
    assert len(pairs) == 2 and all("pairs: index" in line for line in pairs)


@KINDS
def test_a_tuple_has_about_one_match_whatever_the_window(kind: str, tmp_path: Path):
    for rate in (50, 200):
        case = nway.case(kind, rate, 2, 8, within=4)
        workload.write(case.streams, tmp_path / str(rate))
        found = answers.expected(case, tmp_path / str(rate))
        assert found is not None and 0.6 < found.rows / case.streams.tuples < 1.2


def test_closing_tuples_have_a_second_key_of_their_own():
    *_, last = SMALL[nway.TWO_KEYS].streams.tables("a")
    assert last["part"].to_pylist() == last["key"].to_pylist() == [workload.CLOSING]


def test_windows_are_full_before_anything_is_measured():
    for case in nway.cases(quick=False) + nway.cases(quick=True):
        assert case.warm * case.streams.seconds >= case.query.length and case.streams.epochs > case.warm
    assert {case.query.within for case in nway.cases(quick=False)} == {60}


def test_spark_is_asked_once_where_it_refuses_and_flink_only_if_wanted():
    options = Options(1, quick=False, full=False, flink=False, say=print)
    equal, _, band = nway.cases(quick=False)
    assert [s.name for s in nway.contenders(band, options)] == [HEADRACE.name, HEADRACE_CHAIN.name, SPARK.name]
    assert [s.family for s in nway.contenders(equal, options)].count("Spark") == 3
    assert nway.contenders(band, replace(options, flink=True))[-1] == FLINK


def test_spark_tells_the_bytes_of_both_joins_in_memory_and_in_files():
    operators = [
        {"memoryUsedBytes": 5, "customMetrics": {}},
        {"memoryUsedBytes": 7, "customMetrics": {"rocksdbSstFileSize": 100}},
    ]
    batches = [{"numInputRows": 10, "stateOperators": operators[:1]}, {"numInputRows": 20, "stateOperators": operators}]
    assert states(batches) == [{"tuples": 10, "state": 5}, {"tuples": 30, "state": 112}]


def test_a_report_has_the_bytes_of_state_where_they_are_known():
    def outcome(system: object, status: str = OK, **counted: float) -> Outcome:
        figures = (10.0, 1.0, 100.0) if status == OK else (None, None, None)
        answer = Answer(5, "aa") if status == OK else None
        name, family = system.name, system.family  # type: ignore[attr-defined]
        return Outcome(name, family, status, *figures, answer=answer, per_epoch=counted)

    rounds = [outcome(HEADRACE, state=2e6), outcome(HEADRACE, state=4e6), outcome(HEADRACE, state=3e6)]
    others = [outcome(HEADRACE_CHAIN, state=7e6), outcome(SPARK, "refused: no equality"), outcome(FLINK)]
    found = nway.reported([judged(SMALL[nway.BAND], rounds + others, Answer(5, "aa"))])
    rows = found.grids[0].rows
    assert [row[0] for row in rows[2:]] == ["Spark, default store: refused: no equality", "Flink"]
    assert [row[3] for row in rows] == ["3 MB", "7 MB", "", ""]
    systems = found.data["cases"][0]["systems"]
    assert [s.get("state_bytes") for s in systems] == [3e6, 7e6, None, None]


@pytest.fixture
def flink_job(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module without Flink, which has a Python environment of its own."""
    names = {
        "common": ["Configuration"],
        "table": ["EnvironmentSettings", "TableEnvironment"],
        "version": ["__version__"],
    }
    monkeypatch.setitem(sys.modules, "pyflink", ModuleType("pyflink"))
    for name, members in names.items():
        module = ModuleType(f"pyflink.{name}")
        module.__dict__.update(dict.fromkeys(members))
        monkeypatch.setitem(sys.modules, f"pyflink.{name}", module)
    monkeypatch.delitem(sys.modules, "headrace_bench.systems.flink_job", raising=False)
    loaded = importlib.import_module("headrace_bench.systems.flink_job")
    monkeypatch.delitem(sys.modules, "headrace_bench.systems.flink_job")
    return loaded


def test_the_pairs_between_two_joins_of_flink_are_no_tuples(flink_job: ModuleType):
    joins = [("v2", "IntervalJoin[15].numRecordsIn"), ("v1", "IntervalJoin[8].numRecordsIn")]
    assert flink_job.counters(joins) == [
        ("v1", "IntervalJoin[8].numRecordsIn", 1),
        ("v2", "IntervalJoin[15].numRecordsIn", 1),
        ("v1", "IntervalJoin[8].numRecordsOut", -1),
    ]
    assert flink_job.counters(joins[:1]) == [("v2", "IntervalJoin[15].numRecordsIn", 1)]
    assert flink_job.counters([("s", "Source__stream[1].numRecordsOut")]) == [
        ("s", "Source__stream[1].numRecordsOut", 1)
    ]


@KINDS
def test_flink_joins_on_a_constant_only_without_an_equality(flink_job: ModuleType, kind: str):
    class Table:
        def execute_sql(self, text: str) -> None:
            pass

    query, streams = SMALL[kind].query, SMALL[kind].streams
    task = {"joins": query.joins, "within": 4, "equality": query.equality, "sides": "abc", "work": "w"}
    text = flink_job.nway(Table(), {**task, "columns": streams.columns})
    assert ("a.same = b.same AND" in text) == ("p.same = c.same AND" in text) == (kind == nway.BAND)
    assert text.count("BETWEEN") == 3 and text.count("INTERVAL '0 00:00:04' DAY TO SECOND") == 6
