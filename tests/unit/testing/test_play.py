"""`play`: what users of a query write as its unit tests, each kind of step, and what is told when a step is wrong."""

from __future__ import annotations

import datetime as dt
import inspect
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing as t
from headrace.errors import DataError, QueryChanged, QueryError, QueryTypeError, SourceError

CALLS = t.source("calls", {"k": "string"}, lateness="2 seconds")
PAYMENTS = t.source("payments", {"k": "string"})
ZONES = t.table("zones", {"k": "string", "zone": "int64"}, [("a", 1)])


def counts(calls: hr.Stream, window: str = "10 seconds") -> hr.Stream:
    return calls.aggregate(by=["k"], window=window, n="count(*)")


def zoned(calls: hr.Stream, zones: hr.Table = ZONES) -> hr.Stream:
    return calls.join(zones, on="l.k = r.k").map("zone", k="l_k")


# --- each in at most ten lines -----------------------------------------------------------------------------------------


def test_a_late_tuple() -> None:
    steps = t.play(CALLS, [t.epoch(calls=[(9, "a")]), t.epoch(calls=[(6, "b"), (7, "c")])])
    assert steps[1].late == 1 and steps[1].watermark == {"calls": 7}
    steps[1].expect([{"ts": 7, "k": "c"}])


def test_an_idle_source() -> None:
    both = counts(CALLS.union(PAYMENTS))
    steps = t.play(both, [t.epoch(calls=[(1, "a"), (30, "a")]), t.epoch(idle=["payments"])])
    steps[0].expect([])
    steps[1].expect([{"k": "a", "window_start": 0, "n": 1}])


def test_a_window_that_closes() -> None:
    steps = t.play(counts(CALLS), [t.epoch(calls=[(1, "a"), (9, "a")]), t.epoch(calls=[(12, "b")])])
    steps[0].expect([])
    steps[1].expect([{"k": "a", "window_start": 0, "window_end": 10, "n": 2}])


def test_a_restart_in_mid_window() -> None:
    steps = t.play(counts(CALLS), [t.epoch(calls=[(1, "a")]), t.restart(slots=3), t.epoch(calls=[(9, "a")]), t.end()])
    steps[3].expect([{"k": "a", "n": 2}])


def test_a_table_that_changes() -> None:
    moved = t.epoch(calls=[(2, "a")], tables={"zones": [("a", 7)]})
    steps = t.play(zoned(CALLS), [t.epoch(calls=[(1, "a")]), moved, t.epoch(calls=[(3, "a")])])
    assert [step.results["zone"].to_pylist() for step in steps] == [[1], [7], [7]]


def test_an_outer_join_that_waits() -> None:
    paid = CALLS.join(PAYMENTS, on="l.k = r.k", within="10 seconds", how="left").map(k="l_k", paid="r_ts")
    steps = t.play(paid, [t.epoch(calls=[(1, "a")], payments=[(11, "x")]), t.epoch(payments=[(12, "x")])])
    steps[0].expect([])
    steps[1].expect([{"k": "a", "paid": None}])


EXPRESSED = (
    test_a_late_tuple,
    test_an_idle_source,
    test_a_window_that_closes,
    test_a_restart_in_mid_window,
    test_a_table_that_changes,
    test_an_outer_join_that_waits,
)


@pytest.mark.parametrize("test", EXPRESSED)
def test_ten_lines_are_enough(test: Any) -> None:
    assert len(inspect.getsource(test).splitlines()) <= 10


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_play_has_an_entry_for_every_step() -> None:
    given = [t.epoch(calls=[(1, "a"), (9, "a")]), t.restart(), t.epoch(calls=[(12, "b")]), t.epoch(), t.end()]
    steps = t.play(counts(CALLS), given)
    assert [step.results.num_rows for step in steps] == [0, 0, 1, 0, 1]
    assert [step.watermark["calls"] for step in steps] == [7, 7, 10, 10, "end"]
    steps[4].expect([{"k": "b", "n": 1}])
    told = "<step 2, epoch(calls: 1 tuple): results 1, late 0, rejected 0, watermark {'calls': 10}>"
    assert repr(steps[2]) == told


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_no_answer_depends_on_slots(slots: int) -> None:
    rows = [(second, key) for second in range(40) for key in "abc"]
    steps = t.play(counts(CALLS), [t.epoch(calls=rows), t.restart(slots=slots + 1), t.end()], slots=slots)
    assert sum(step.results.num_rows for step in steps) == 12
    assert steps[2].results.num_rows == 3 and set(steps[0].results["n"].to_pylist()) == {10}


def test_a_restart_opens_the_state_that_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    whole = t.local_run.LocalRun.__init__

    def counted(run: Any, *given: Any, **options: Any) -> None:
        whole(run, *given, **options)
        opened.append(run.store.last.number if run.store.last else None)

    monkeypatch.setattr(t.local_run.LocalRun, "__init__", counted)
    t.play(counts(CALLS), [t.epoch(), t.epoch(), t.restart(), t.restart(), t.epoch()])
    assert opened == [None, 1, 1]


def test_a_changed_query_follows_the_rules_of_a_restart() -> None:
    first = t.epoch(calls=[(1, "a")])
    fewer = counts(CALLS).filter("n > 1")
    steps = t.play(counts(CALLS), [first, t.restart(query=fewer), t.epoch(calls=[(2, "a"), (3, "b")]), t.end()])
    steps[3].expect([{"k": "a", "n": 2}])
    with pytest.raises(QueryChanged, match="window was") as told:
        t.play(counts(CALLS), [first, t.restart(query=counts(CALLS, "20 seconds"))])
    assert told.value.__notes__ == ["in step 1, restart(a changed query) of the play"]


def test_times_are_seconds_or_datetimes() -> None:
    utc, plus_one = dt.UTC, dt.timezone(dt.timedelta(hours=1))
    naive, zoned = dt.datetime(1970, 1, 1, 0, 0, 2), dt.datetime(1970, 1, 1, 1, 0, 3, tzinfo=plus_one)
    rows = [(0.5, "a"), (naive, "b"), (zoned, "c"), (-1, "d")]
    (step,) = t.play(CALLS, [t.epoch(calls=rows)])
    step.expect([{"ts": 0.5}, {"ts": 2}, {"ts": dt.datetime(1970, 1, 1, 0, 0, 3, tzinfo=utc)}, {"ts": -1}])
    assert step.watermark == {"calls": 1}
    assert t.play(CALLS, [t.epoch(calls=[(2.25, "a")])])[0].watermark == {"calls": 0.25}


def test_a_missing_time_and_one_too_far_ahead_are_rejected() -> None:
    near = t.source("near", {"k": "string"}, ahead="5 seconds")
    steps = t.play(near, [t.epoch(near=[(None, "a"), (1, "b")]), t.epoch(near=[(7, "c"), (6, "d")])])
    assert [step.rejected for step in steps] == [1, 1]
    assert steps[1].results["k"].to_pylist() == ["d"]


def test_rows_are_tuples_dicts_or_arrow() -> None:
    wide = t.source("wide", {"k": "string", "n": "int64", "at": "timestamp", "l": "int[]", "d": pa.decimal128(4, 1)})
    one = {"ts": 1, "n": 3}
    arrow = pa.table({"ts": pa.array([2_000_000], pa.timestamp("us", "UTC"))})
    arrow = arrow.append_column("k", pa.array(["x"])).append_column("n", pa.array([4]))
    arrow = arrow.append_column("at", pa.array([0], pa.timestamp("us"))).append_column("l", pa.array([[1]]))
    arrow = arrow.append_column("d", pa.array([None], pa.decimal128(4, 1)))
    steps = t.play(wide, [t.epoch(wide=[one]), t.epoch(wide=arrow), t.epoch(wide=[(3, "y", 5, 9, [1, 2], None)])])
    steps[0].expect([{"ts": 1, "k": None, "n": 3, "at": None, "l": None, "d": None}])
    steps[1].expect([{"k": "x", "n": 4, "at": 0, "l": [1]}])
    steps[2].expect([{"at": 9, "l": [1, 2]}])


NESTED = {
    "n": "int64",
    "day": "date",
    "s": pa.struct([("a", pa.int64())]),
    "l": pa.list_(pa.int32()),
    "m": pa.map_(pa.string(), pa.int8()),
}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("n", 1.5),
        ("day", dt.datetime(2024, 1, 1, 12)),
        ("s", {"a": 1, "b": 2}),
        ("s", {"a": 1.5}),
        ("s", [("a", 1)]),
        ("l", [1, 2.5]),
        ("m", {"x": 0.5}),
        ("m", [("x", 0.5)]),
    ],
)
def test_no_value_is_cut_to_fit(column: str, value: Any) -> None:
    nested = t.source("nested", NESTED)
    with pytest.raises(QueryTypeError, match=f"row 0 of 'nested' in step 0: column '{column}' must be .*; found"):
        t.play(nested, [t.epoch(nested=[{"ts": 1, column: value}])])


def test_values_that_fit_are_stored() -> None:
    day = dt.date(1969, 12, 31)
    given = {"n": 2.0, "day": day, "s": {}, "l": (1, None), "m": {"x": None, "y": 1}}
    (step,) = t.play(t.source("nested", NESTED), [t.epoch(nested=[{"ts": 1, **given}])])
    step.expect([{"n": 2, "day": day, "s": {"a": None}, "l": [1, None], "m": [("x", None), ("y", 1)]}])
    with pytest.raises(QueryTypeError, match=r"column 'n' must be int64; found 2\.5"):
        step.expect([{"n": 2.5}])


def test_results_are_in_sequence() -> None:
    (step,) = t.play(CALLS, [t.epoch(calls=[(3, "b"), (1, "z"), (3, "a"), (2, None)])])
    assert step.results["k"].to_pylist() == ["z", None, "a", "b"]


def test_sources_of_any_kind_can_be_played(tmp_path: Any) -> None:
    """The source of a production query: its time column has another name and place, its table is a folder."""
    schema = pa.schema([("k", pa.string()), ("start", pa.timestamp("ms"))])
    calls = hr.files(None, tmp_path, time="start", schema=schema, name="calls")  # type: ignore[arg-type]
    zones = hr.table(tmp_path / "zones", schema=pa.schema([("k", pa.string()), ("zone", pa.int64())]), name="zones")
    steps = t.play(zoned(calls, zones), [t.epoch(calls=[(1, "a")], tables={"zones": [{"k": "a", "zone": 4}]})])
    steps[0].expect([{"ts": 1, "k": "a", "zone": 4}])
    with pytest.raises(SourceError, match=r"give the rows with epoch\(tables=\{'zones': \.\.\.\}\)"):
        t.play(zoned(calls, zones), [t.epoch(calls=[(1, "a")])])


def test_several_results_go_by_name_or_position() -> None:
    given = [t.epoch(calls=[(1, "a"), (12, "b")]), t.end()]
    steps = t.play([counts(CALLS), CALLS.filter("k = 'b'")], given)
    steps[0].expect([{"k": "a", "n": 1}], result=0)
    steps[0].expect([{"k": "b"}], result="result-1")
    assert steps[0].results[1] is steps[0].results["result-1"] and len(steps[0].results) == 2
    assert repr(steps[0]).startswith("<step 0, epoch(calls: 2 tuples): results 1 and 1, late 0")
    with pytest.raises(QueryError, match="add result=, one of result-0, result-1"):
        steps[0].expect([])
    with pytest.raises(QueryError, match="no result 2; the play has result-0, result-1"):
        steps[0].expect([], result=2)


def test_a_named_result_goes_by_its_name() -> None:
    steps = t.play([counts(CALLS), CALLS.filter("k = 'b'").named("alarms")], [t.epoch(calls=[(1, "b")]), t.end()])
    steps[0].expect([{"k": "b"}], result="alarms")
    steps[1].expect([{"k": "b", "n": 1}], result="result-0")
    with pytest.raises(QueryError, match="no result 'result-1'; the play has result-0, alarms, numbered from 0"):
        steps[0].expect([], result="result-1")


def test_processors_tick_and_end_in_a_play() -> None:
    class Silence(hr.Processor):
        schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("what", pa.string())])
        every = "10 seconds"

        def process(self, tuples: pa.Table, state: Any) -> None:
            return None

        def tick(self, time: dt.datetime, state: Any) -> pa.Table:
            return pa.table({"ts": [time], "what": ["tick"]}, schema=self.schema)

        def end(self, time: dt.datetime, state: Any) -> pa.Table:
            return pa.table({"ts": [time], "what": ["end"]}, schema=self.schema)

    steps = t.play(CALLS.split(2, by=["k"]).apply(Silence()), [t.epoch(calls=[(1, "a"), (15, "a")]), t.end()])
    steps[0].expect([{"ts": 10, "what": "tick"}])
    steps[1].expect([{"ts": 15, "what": "end"}, {"ts": 20, "what": "tick"}])


def test_a_play_needs_no_spark() -> None:
    code = (
        "import sys; from headrace import testing as t; s = t.source('s', {'n': 'int64'});"
        "t.play(s.filter('n > 1'), [t.epoch(s=[(1, 2)]), t.end()])[0].expect([{'n': 2}]);"
        "assert not [name for name in sys.modules if name.startswith(('pyspark', 'py4j'))]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- expectations -----------------------------------------------------------------------------------------------------


def test_a_difference_names_the_step_and_shows_the_rows() -> None:
    (step,) = t.play(CALLS, [t.epoch(calls=[(1, "a"), (2, "b"), (2, "b")])])
    with pytest.raises(AssertionError) as told:
        step.expect([{"k": "a"}, {"k": "b"}, {"k": "c"}])
    assert str(told.value) == (
        "step 0, epoch(calls: 3 tuples): the results are not the expected ones\n"
        "expected 3 rows, found 3\nmissing 1:\n  (k=c)\nextra 1:\n  (k=b)"
    )
    with pytest.raises(AssertionError, match=r"(?s)expected 0 rows, found 3.*\(ts=1970-01-01 00:00:01\+00, k=a\)"):
        step.expect([])


def test_a_missing_row_that_another_step_emitted_is_found_there() -> None:
    given = [t.epoch(calls=[(1, "a"), (2, "b")]), t.restart(), t.epoch(calls=[(12, "a")]), t.end()]
    steps = t.play([counts(CALLS), CALLS.filter("k = 'c'").named("none")], given)
    with pytest.raises(AssertionError) as told:
        steps[0].expect([{"k": "a", "n": 1}, {"k": "b", "n": 1}, {"k": "a", "n": 1}], result=0)
    *_, first, second = str(told.value).splitlines()
    assert first == "2 of the missing rows were emitted by step 2, epoch(calls: 1 tuple)"
    assert second == "1 of the missing rows was emitted by step 3, end()"
    with pytest.raises(AssertionError) as told:
        steps[3].expect([{"k": "d", "n": 1}], result=0)
    assert "were emitted" not in str(told.value) and "was emitted" not in str(told.value)


def test_other_steps_of_a_changed_query_may_have_other_columns() -> None:
    given = [t.epoch(calls=[(1, "a")]), t.restart(query=counts(CALLS).map("k", m="n + 1")), t.end()]
    steps = t.play(counts(CALLS), given)
    with pytest.raises(AssertionError, match="missing 1"):
        steps[2].expect([{"m": 3}])
    with pytest.raises(AssertionError, match=r"1 of the missing rows was emitted by step 2, end\(\)"):
        steps[0].expect([{"k": "a"}])


def test_doubles_are_compared_with_a_tolerance() -> None:
    numbers = t.source("numbers", {"x": "double"})
    (step,) = t.play(numbers, [t.epoch(numbers=[(1, 0.1), (2, 3)])])
    step.expect([{"x": 0.1 * (1 + 1e-12)}, {"x": 3}])
    with pytest.raises(AssertionError):
        step.expect([{"x": 0.1 * (1 + 1e-6)}, {"x": 3}])


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ([{"x": 1}], "step 0, epoch(calls: 1 tuple): the results have no column 'x'; there are ts, k"),
        ([{"k": 3}], "row 0 of the expected rows: column 'k' must be string; found 3"),
        ([{"k": "a"}, {"k": "a", "ts": 1}], "row 1 of the expected rows has an unknown column 'ts'"),
        ([{"k": "a", "ts": 1}, {"ts": 1}], "row 1 of the expected rows has no column 'k'"),
        ([("a",)], "expect takes dicts by column, such as {'k': 'a', 'n': 2}; found a tuple ('a',)"),
        ([{}], "expect got [{}], and a dict without columns checks nothing; name the columns to compare, such as"),
        ({"k": "a"}, "expect takes a list of dicts by column; found a dict"),
        (3, "expect takes a list of dicts by column; found 3"),
    ],
)
def test_an_expectation_that_cannot_be_met(expected: Any, message: str) -> None:
    (step,) = t.play(CALLS, [t.epoch(calls=[(1, "a")])])
    with pytest.raises(hr.HeadraceError) as told:
        step.expect(expected)
    assert str(told.value).startswith(message)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([t.epoch(cals=[])], "the query has no source 'cals'; it has 'calls'"),
        ([t.epoch(idle=["cals"])], "the query has no source 'cals'; it has 'calls'"),
        ([t.epoch(tables={"zone": []})], "the query has no table 'zone'; it has 'zones'"),
        ([t.epoch(calls=[(1,)])], "row 0 of 'calls' in step 0 has 1 values, the columns are 2; found (1,); expected (time, k)"),
        ([t.epoch(calls=[(1, "a", 2)])], "row 0 of 'calls' in step 0 has 3 values"),
        ([t.epoch(), t.epoch(calls=[(1, "a"), (1, 2)])], "row 1 of 'calls' in step 1: column 'k' must be string; found 2"),
        ([t.epoch(calls=[("1", "a")])], "row 0 of 'calls' in step 0: column 'ts' must be seconds since 1970 or a datetime; found '1'"),
        ([t.epoch(calls=[(True, "a")])], "row 0 of 'calls' in step 0: column 'ts' must be seconds"),
        ([t.epoch(calls=[(1e30, "a")])], "row 0 of 'calls' in step 0: column 'ts' must be seconds"),
        ([t.epoch(calls=["a"])], "row 0 of 'calls' in step 0 must be a tuple (time, k); found 'a'"),
        ([t.epoch(calls=(1, "a"))], "row 0 of 'calls' in step 0 must be a tuple (time, k); found 1"),
        ([t.epoch(calls=[{"ts": 1, "z": 2}])], "row 0 of 'calls' in step 0 has an unknown column 'z'"),
        ([t.epoch(calls=5)], "'calls' in step 0 must be a list of rows, each a tuple (time, k); found 5"),
        ([t.epoch(calls=pa.table({"k": ["a"]}))], "'calls' in step 0 must have the columns ts, k; found k"),
        ([t.epoch(tables={"zones": [("a", "b")]})], "row 0 of table 'zones' in step 0: column 'zone' must be int64; found 'b'"),
        ([t.end(), t.epoch()], "step 1, epoch(), comes after end()"),
        ([t.end(), t.end()], "step 1, end(), comes after end()"),
        ([t.end], "step 0 must be epoch(...), restart(...) or end(); found the function end"),
        (t.end(), "steps must be a list of epoch(...), restart(...) and end(); found one step, end(); put it into a list: "),
        (t.epoch(calls=[(1, "a")]), "steps must be a list of epoch(...), restart(...) and end(); found one step, epoch(calls: 1"),
        (5, "steps must be a list of epoch(...), restart(...) and end(); found 5"),
        ([t.epoch(), t.restart(query="q")], "a query is a stream; found 'q'"),
    ],
)  # fmt: skip
def test_a_wrong_step_is_named(steps: Any, message: str) -> None:
    with pytest.raises(hr.HeadraceError) as told:
        t.play(zoned(CALLS), steps)
    assert str(told.value).startswith(message)


LISTS = t.source(
    "lists", {"tags": "varchar[]", "codes": "int64[]", "deep": "varchar[][]", "by_name": "map(varchar, varchar[])"}
)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"tags": "xyz"}, "tags"),
        ({"codes": b"xyz"}, "codes"),
        ({"deep": [["a"], "xyz"]}, "deep"),
        ({"by_name": {"a": "xyz"}}, "by_name"),
    ],
)
def test_a_text_is_no_list(row: dict[str, Any], column: str) -> None:
    with pytest.raises(hr.errors.QueryTypeError) as told:
        t.play(LISTS, [t.epoch(lists=[{"ts": 1}, {"ts": 1, **row}])])
    assert str(told.value).startswith(f"row 1 of 'lists' in step 0: column {column!r} must be ")
    assert "Arrow would take it apart; write a list, such as [" in str(told.value)
    (step,) = t.play(LISTS.select("tags"), [t.epoch(lists=[{"ts": 1, "tags": ["xyz"]}])])
    step.expect([{"tags": ["xyz"]}])


KINDS = [
    *(pa.list_(pa.string()), pa.list_(pa.list_(pa.float64())), pa.map_(pa.string(), pa.list_(pa.int32()))),
    pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string()), ("d", pa.bool_())])))]),
    *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us"), pa.decimal128(38, 0), pa.uint8()),
    *(pa.binary(), pa.float32(), pa.list_(pa.timestamp("us", "UTC")), pa.map_(pa.date32(), pa.decimal128(5, 2))),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_type_as_a_stream_shows_it(kind: pa.DataType) -> None:
    shown = t.source("s", {"k": kind}).schema.field("k").type
    assert t.source("s", {"k": str(shown)}).schema.field("k").type == shown


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("array<string>", pa.list_(pa.string())),
        ("list<string>", pa.list_(pa.string())),
        ("map<string,int>", pa.map_(pa.string(), pa.int32())),
        ("struct<a:int,b:array<decimal(10,2)>>", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.decimal128(10, 2)))])),
        (" varchar[] ", pa.list_(pa.string())),
    ],
)
def test_types_of_spark_and_duckdb(text: str, kind: pa.DataType) -> None:
    assert t.source("s", {"k": text}).schema.field("k").type == kind


@pytest.mark.parametrize(
    "text", ["list<strng>", "list<>", "list<string, string>", "map<string>", "struct<a>", "struct<>", "array<"]
)
def test_a_nested_type_that_does_not_exist(text: str) -> None:
    with pytest.raises(hr.errors.QueryTypeError, match=r"or a type of DuckDB, such as .* or 'varchar\[\]'; found "):
        t.source("s", {"k": text})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: t.source("s", {"k": "strng"}), "the type of column 'k' of source 's' must be an Arrow type"),
        (lambda: t.source("s", {"k": 3}), "the type of column 'k' of source 's' must be an Arrow type"),
        (lambda: t.source("s", ["k"]), "the columns of source 's' must be a dict of names and types"),
        (lambda: t.source("s", {"ts": "int64"}), "every source has its time as the first column, 'ts'"),
        (lambda: t.source("idle", {}), "the name of a source must be text, other than 'idle' and 'tables'"),
        (lambda: t.source(3, {}), "the name of a source must be text"),  # type: ignore[arg-type]
        (lambda: t.source("s", {}, lateness="2 sec onds"), "lateness"),
        (lambda: t.table("z", {"ts": "int64"}), "a table has no event time"),
        (lambda: t.table(None, {}), "the name of a table must be text; found None"),  # type: ignore[arg-type]
        (lambda: t.table("z", {"k": "string"}, [(3,)]), "row 0 of the rows of table 'z': column 'k' must be string"),
        (lambda: t.epoch(idle="calls"), "idle must be a list of names of sources"),
        (lambda: t.epoch(idle=[1]), "idle must be a list of names of sources"),  # type: ignore[list-item]
        (lambda: t.source("a", {5: "string"}), "the columns of source 'a' must have names of text"),  # type: ignore[dict-item]
        (lambda: t.source("a", {"k": "interval"}), "column 'k' has type month_day_nano_interval"),
        (lambda: t.epoch(tables=[1]), "tables must be a dict of rows by name"),  # type: ignore[arg-type]
        (lambda: t.restart(slots=0), "slots must be a whole number"),
        (lambda: t.play([], []), "play takes a query: a stream, or a list of streams; found an empty list"),
        (lambda: t.play(CALLS, [], slots=0), "slots must be a whole number"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(hr.HeadraceError) as told:
        make()
    assert str(told.value).startswith(message)
    assert isinstance(told.value, QueryError | QueryTypeError)


def test_an_error_of_the_data_names_its_step() -> None:
    failing = CALLS.map(n="k::int")
    with pytest.raises(DataError) as told:
        t.play(failing, [t.epoch(calls=[(1, "2")]), t.epoch(calls=[(2, "x")])])
    assert told.value.__notes__ == ["in step 1, epoch(calls: 1 tuple) of the play"]
