"""What splits, `each` and `apply` mean: every sentence of the meaning by a small case worked out by hand."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter as Multiset
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import Processor, StateTable
from headrace.errors import DataError, HeadraceError
from headrace.reference import failed_tuples, reference, references
from headrace.reference.state_tables import DictTable
from headrace.stream import Stream
from headrace.support.limits import MOST_TICKS
from headrace.testing import table_stream
from tests.processors import TS, Break, Counter, Extremes, Sessions, Silence, table

SECOND = 1_000_000
UTC = dt.UTC


def rows(*given: tuple[Any, ...], **kinds: pa.DataType) -> pa.Table:
    """`ts` in seconds, and further columns; by default `k` and `x`, whole numbers."""
    schema = pa.schema([("ts", TS), *(kinds or {"k": pa.int64(), "x": pa.int64()}).items()])
    columns: list[list[Any]] = [list(column) for column in zip(*given, strict=True)] or [[] for _ in schema]
    columns[0] = [round(ts * SECOND) for ts in columns[0]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def stream(*given: tuple[Any, ...], name: str = "s", lateness: str = "0 seconds", **kinds: pa.DataType) -> Stream:
    return table_stream(rows(*given, **kinds), name=name, lateness=lateness)


def seconds(found: pa.Table) -> list[tuple[Any, ...]]:
    """Rows with every time in seconds, smallest first."""
    times = [pa.types.is_timestamp(field.type) for field in found.schema]
    columns = [
        c.cast(pa.int64()).to_pylist() if t else c.to_pylist() for c, t in zip(found.columns, times, strict=True)
    ]
    columns = [[v / SECOND if t and v is not None else v for v in c] for c, t in zip(columns, times, strict=True)]
    return sorted(zip(*columns, strict=True), key=repr)


def answer(query: Stream, **how: Any) -> list[tuple[Any, ...]]:
    found = reference(query, **how)
    assert found.schema.equals(query.schema)
    return seconds(found)


class Calls(Processor):
    """Puts out how it was called."""

    schema = pa.schema([("ts", TS), ("call", pa.string()), ("number", pa.int64()), ("x", pa.list_(pa.int64()))])
    tables = {"calls": StateTable(key=["one"], columns=pa.schema([("one", pa.int64()), ("number", pa.int64())]))}
    every = "10 seconds"

    def put(self, call: str, time: Any, x: list[Any] | None, state: Any) -> pa.Table:
        number = state["calls"].get(pa.table({"one": [1]}))["number"][0].as_py() or 0
        state["calls"].put(pa.table({"one": [1], "number": [number + 1]}))
        return table(self.schema, (time, call, number, x))

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        assert len(set(tuples["ts"].to_pylist())) == 1
        return self.put("process", tuples["ts"][0].as_py(), tuples["x"].to_pylist(), state)

    def tick(self, time: dt.datetime, state: Any) -> pa.Table:
        assert time.tzinfo is UTC
        return self.put("tick", time, None, state)

    def end(self, time: dt.datetime, state: Any) -> pa.Table:
        return self.put("end", time, None, state)


class Tagged(Processor):
    """Every tuple, with the substream that it was in."""

    schema = pa.schema([("ts", TS), ("x", pa.int64()), ("of", pa.int64())])

    def open(self, substream: int, substreams: int) -> None:
        self.substream, self.substreams = substream, substreams

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        of = pa.array([self.substream] * tuples.num_rows, pa.int64())
        return pa.table([tuples["ts"], tuples["x"], of], schema=self.schema)


def calls(query: Stream, **how: Any) -> list[tuple[Any, ...]]:
    """(time, call, tuples) in the order in which they came."""
    found = sorted(answer(query, **how), key=lambda row: row[2])
    return [(ts, call, x) if x is not None else (ts, call) for ts, call, _, x in found]


FOUR = ((1, 0, 10), (2, 1, 20), (3, None, 30), (4, 1, 40))


# --- split ------------------------------------------------------------------------------------------------------------


def test_a_tuple_goes_where_route_says_and_nowhere_if_that_is_null() -> None:
    assert answer(stream(*FOUR).split(2, route="k").apply(Tagged())) == [(1, 10, 0), (2, 20, 1), (4, 40, 1)]


def test_a_broadcast_tuple_goes_everywhere_once_also_where_nothing_else_is() -> None:
    found = answer(stream(*FOUR).split(3, route="k", broadcast="x = 20").apply(Tagged()))
    assert found == [(1, 10, 0), (2, 20, 0), (2, 20, 1), (2, 20, 2), (4, 40, 1)]


def test_null_is_not_broadcast() -> None:
    query = stream((1, 0, None), (2, 1, 7)).split(2, route="k", broadcast="x = 7")
    assert answer(query.apply(Tagged())) == [(1, None, 0), (2, 7, 0), (2, 7, 1)]


def test_the_route_of_a_broadcast_tuple_is_not_looked_at() -> None:
    far = stream((1, 99, 0), (2, 1, 5))
    assert answer(far.split(2, route="k", broadcast="k = 99").apply(Tagged())) == [(1, 0, 0), (1, 0, 1), (2, 5, 1)]
    zero = stream((1, 0, 0), (2, 1, 5)).split(2, route="10 // k - 9", broadcast="k = 0")
    assert len(answer(zero.apply(Tagged()))) == 3
    text = stream((1, "no", 1), (2, "1", 2), k=pa.string(), x=pa.int64())
    assert len(answer(text.split(2, route="k::int", broadcast="k = 'no'").apply(Tagged()))) == 3


def test_a_function_is_not_asked_for_the_route_of_a_broadcast_tuple() -> None:
    asked = []

    def route(tuples: pa.Table) -> pa.ChunkedArray:
        asked.extend(tuples["x"].to_pylist())
        return tuples["k"]

    found = answer(stream(*FOUR).split(2, route=route, broadcast=lambda t: pc.equal(t["x"], 20)).apply(Tagged()))
    assert (asked[:3], set(asked), len(found)) == ([10, 30, 40], {10, 30, 40}, 4), "some are asked twice"


@pytest.mark.parametrize("value", [2, -1, 2**40])
@pytest.mark.parametrize("way", ["sql", "function"])
def test_a_route_outside_names_value_and_tuple(value: int, way: str) -> None:
    route: Any = "k" if way == "sql" else lambda t: t["k"]
    query = stream((1, 0, 1), (2, value, 77)).split(2, route=route).apply(Tagged())
    with pytest.raises(
        DataError, match=rf"the route of the split into 2 substreams by .* gives {value} for .*x=77.*0 \.\. 1.*null"
    ):
        reference(query)
    with pytest.raises(DataError, match=rf"gives {value} for"):
        reference(query, errors="keep")


@pytest.mark.parametrize(
    "made",
    [
        lambda k: k,
        lambda k: k.combine_chunks().cast(pa.int8()),
        lambda k: k.to_pylist(),
        lambda k: tuple(k.to_pylist()),
    ],
)
def test_functions_may_give_any_column(made: Any) -> None:
    found = answer(stream(*FOUR).split(2, route=lambda t: made(t["k"])).apply(Tagged()))
    assert found == [(1, 10, 0), (2, 20, 1), (4, 40, 1)]


def test_functions_may_give_numpy_arrays_and_nothing_at_all() -> None:
    s = stream(*FOUR)
    found = s.split(2, route=lambda t: np.asarray(t["x"]) // 10 % 2, broadcast=lambda t: np.asarray(t["x"]) == 10)
    assert answer(found.apply(Tagged())) == [(1, 10, 0), (1, 10, 1), (2, 20, 0), (3, 30, 1), (4, 40, 0)]
    assert answer(s.split(2, route=lambda t: [None] * t.num_rows).apply(Tagged())) == []


@pytest.mark.parametrize(
    ("route", "broadcast", "words"),
    [
        (lambda t: [0], None, "route .*gives 1 values for 4 tuples"),
        (lambda t: [0.5] * 4, None, "route .*whole numbers.*double"),
        (lambda t: [True] * 4, None, "route .*whole numbers.*bool"),
        (lambda t: 1 / 0, None, "route .*ZeroDivisionError"),
        (lambda t: "0123", None, "route .*array, or a list; found '0123'"),
        (lambda t: [0, "a", 0, 0], None, "route .*gave values that are not a column"),
        ("k", lambda t: [1] * 4, "broadcast .*booleans.*int64"),
        ("k", lambda t: [True], "broadcast .*gives 1 values for 4 tuples"),
    ],
)
@pytest.mark.parametrize("errors", ["stop", "keep"])
def test_a_function_that_gives_something_else_stops_and_is_named(
    route: Any, broadcast: Any, words: str, errors: str
) -> None:
    with pytest.raises(DataError, match=words):
        reference(stream(*FOUR).split(2, route=route, broadcast=broadcast).apply(Tagged()), errors=errors)


def test_by_hash_equal_values_are_together_and_every_tuple_is_somewhere() -> None:
    users = [None, "", "a", "b", "c", "d", "e", "f"]
    given = [(i, user, i) for i, user in enumerate(users * 3)]
    found = answer(stream(*given, k=pa.string(), x=pa.int64()).split(3, by=["k"]).apply(Tagged()))
    of = {x: number for _, x, number in found}
    assert sorted(of) == list(range(24)) and len(found) == 24
    assert all(of[x] == of[x % 8] for x in of)
    assert set(of.values()) == {0, 1, 2}


def test_with_keep_a_tuple_on_which_the_sql_of_a_split_fails_is_left_out() -> None:
    s = stream((1, "0", 1), (2, "a", 2), (3, "1", 0), (4, "b", 4), k=pa.string(), x=pa.int64())
    query = s.split(2, route="k::int", broadcast="4 // x = 1").apply(Tagged())
    with pytest.raises(DataError, match=r"'4 // x = 1' failed on .*x=0"):
        reference(query)
    assert answer(query, errors="keep") == [(1, 1, 0), (4, 4, 0), (4, 4, 1)]
    failed = failed_tuples(query)
    words = "split into 2 substreams by k::int, to all where 4 // x = 1"
    expected = [("s", words, [(2, "a", 2), (3, "1", 0)])]
    assert [(f.source, f.summary, seconds(f.table)) for f in failed] == expected


def test_with_keep_a_function_still_stops() -> None:
    def route(tuples: pa.Table) -> Any:
        return [int(k) for k in tuples["k"].to_pylist()]

    s = stream((1, "0", 1), (2, "a", 2), k=pa.string(), x=pa.int64())
    with pytest.raises(
        DataError, match=r"the route of the split into 2 substreams by route, route, failed: ValueError.*'a'"
    ):
        reference(s.split(2, route=route).apply(Tagged()), errors="keep")


def test_what_fails_before_apply_is_left_out_too_and_a_broadcast_tuple_fails_once() -> None:
    s = stream((1, 0, 0), (2, 1, 1), (3, 1, 0), (4, 5, 0))
    query = s.split(3, route="k", broadcast="k = 5").filter("1 // x = 1").apply(Tagged())
    assert answer(query, errors="keep") == [(2, 1, 1)]
    (failed,) = failed_tuples(query)
    assert (failed.source, failed.summary) == ("s", "filter 1 // x = 1")
    assert seconds(failed.table) == [(1, 0, 0), (3, 1, 0), (4, 5, 0)]


# --- each -------------------------------------------------------------------------------------------------------------


def test_each_aggregates_every_substream_alone() -> None:
    s = stream((1, 0, 1), (2, 1, 2), (3, 0, 3), (11, 0, 4), (3, None, 5), (12, 7, 6))
    found = s.split(2, route="CASE WHEN k < 2 THEN k END", broadcast="k = 7").each(
        lambda t: t.aggregate(window="10 seconds", n="count(*)", total="sum(x)")
    )
    assert found.columns == ["ts", "window_start", "window_end", "n", "total", "substream"]
    assert answer(found) == [
        (1, 0, 10, 2, 4, 0),
        (11, 10, 20, 2, 10, 0),
        (12, 10, 20, 1, 6, 1),
        (2, 0, 10, 1, 2, 1),
    ]


def test_each_counts_every_substream_alone() -> None:
    s = stream((1, 0, 1), (2, 1, 2), (3, 0, 3), (4, 1, 4), (5, 1, 5), (6, 9, 6))
    found = s.split(3, route="k", broadcast="k = 9").each(lambda t: t.aggregate(last=2, every=1, m="max(x)"))
    assert answer(found) == [(3, 3, 0), (4, 4, 1), (5, 5, 1), (6, 6, 0), (6, 6, 1)]


def test_each_joins_within_a_substream_only() -> None:
    s = stream((1, 0, 1), (2, 1, 2), (3, 0, 3))
    found = s.split(2, route="k").each(
        lambda t: t.filter("x < 3").map(a="x").join(t.map(b="x"), on="l.a < r.b", within="5 seconds")
    )
    assert found.columns[-1] == "substream"
    assert [(row[2], row[4], row[5]) for row in answer(found)] == [(1, 3, 0)]


def test_each_count_join_counts_the_substream() -> None:
    s = stream((1, 0, 1), (2, 1, 2), (3, 1, 3), (4, 0, 4))
    found = s.split(2, route="k").each(lambda t: t.map(a="x").join(t.map(b="x"), on="l.a < r.b", last=2))
    assert [(row[2], row[4], row[5]) for row in answer(found)] == [(2, 3, 1), (1, 4, 0)]


def test_each_is_distinct_within_a_substream() -> None:
    s = stream((1, 0, 7), (2, 1, 7), (3, 0, 7), (9, 0, 7))
    found = s.split(2, route="k").each(lambda t: t.distinct(by=["x"], within="5 seconds"))
    assert answer(found) == [(1, 0, 7, 0), (2, 1, 7, 1), (9, 0, 7, 0)]


def test_each_of_steps_is_the_stream_with_its_substreams() -> None:
    found = stream(*FOUR).split(2, route="k").filter("x < 40").each(lambda t: t.map(y="x + k"))
    assert answer(found) == [(1, 10, 0), (2, 21, 1)]
    assert answer(stream(*FOUR).split(2, route="k").each(lambda t: t)) == [(1, 0, 10, 0), (2, 1, 20, 1), (4, 1, 40, 1)]


def test_each_of_no_tuples_is_empty() -> None:
    assert answer(stream().split(2, route="k").each(lambda t: t.aggregate(last=1, n="count(*)"))) == []


def test_each_has_the_watermark_of_its_body() -> None:
    epochs = [rows((1, 0, 1), (12, 1, 2), (25, 0, 3))]
    s = stream(name="s")
    windows = s.split(2, route="k").each(lambda t: t.aggregate(window="10 seconds", n="count(*)"))
    assert [row[:5] for row in answer(windows, epochs=epochs, end=False)] == [(1, 0, 10, 1, 0), (12, 10, 20, 1, 1)]
    later = windows.map(n="n").aggregate(last=1, n="sum(n)")  # complete below 25 - 10 seconds only
    assert answer(later, epochs=epochs, end=False) == [(1, 1), (12, 1)]
    assert answer(windows.aggregate(window="10 seconds", n="count(*)"), epochs=epochs, end=False) == [(1, 0, 10, 1)]


def test_with_keep_what_fails_on_each_is_told_once_for_a_step() -> None:
    s = stream((1, 0, 0), (2, 1, 0), (3, 1, 1))
    query = s.split(2, route="k").each(lambda t: t.filter("1 // x = 1").aggregate(last=1, n="count(*)"))
    assert answer(query, errors="keep") == [(3, 1, 1)]
    (failed,) = failed_tuples(query)
    assert seconds(failed.table) == [(1, 0, 0), (2, 1, 0)]


QUERIES: list[Any] = [
    lambda t: t.aggregate(window="10 seconds", every="5 seconds", n="count(*)", m="max(x)"),
    lambda t: t.aggregate(by=["k"], last=3, every=2, n="list(x)"),
    lambda t: t.aggregate(by=["x"], session="3 seconds", n="count(*)"),
    lambda t: t.distinct(by=["x"], within="4 seconds"),
    lambda t: t.map("x").asof(t.filter("k < 3").map("x", "k"), by=["x"], within="9 seconds", how="left"),
    lambda t: t.map(a="x").join(t.filter("x > 3").map(b="x"), on="l.a <> r.b", within="2 seconds"),
    lambda t: t.map(a="x").join(t.map(b="x"), on="l.a >= r.b", last=(2, 3)),
    lambda t: t.filter("x > 2").map(y="x * 2").union(t.map(y="x")),
]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_each_is_the_query_on_what_filters_leave_of_every_substream(query: Any, seed: int) -> None:
    r = random.Random(seed)
    given = [(r.randrange(-20, 20), r.choice([0, 1, 2, 3, 9, None]), r.randrange(7)) for _ in range(40)]
    epochs = [rows(*given)]
    s = stream()
    each = s.split(4, route="k", broadcast="k = 9").each(query)
    for end in (True, False):
        alone = [seconds(reference(query(s.filter(f"k = {i} or k = 9")), epochs=epochs, end=end)) for i in range(4)]
        expected = [(*row, i) for i, found in enumerate(alone) for row in found]
        assert answer(each, epochs=epochs, end=end) == sorted(expected, key=repr)


# --- apply: order, ticks, end -----------------------------------------------------------------------------------------


def test_tuples_come_in_sequence_and_those_of_one_time_together() -> None:
    s = stream((5, 0, 2), (3, 0, 9), (5, 0, 1), (5, 0, None), (4, 0, 1))
    assert calls(s.split(1, route="k").apply(Calls()))[:3] == [
        (3, "process", [9]),
        (4, "process", [1]),
        (5, "process", [1, 2, None]),
    ]


def test_a_tick_comes_after_earlier_tuples_and_before_its_own() -> None:
    s = stream((3, 0, 1), (10, 0, 2), (11, 0, 3))
    assert calls(s.split(1, route="k").apply(Calls())) == [
        (3, "process", [1]),
        (10, "tick"),
        (10, "process", [2]),
        (11, "process", [3]),
        (20, "tick"),
        (11, "end"),
    ]


def test_ticks_begin_behind_the_first_tuple_also_if_that_is_on_a_multiple() -> None:
    assert calls(stream((10, 0, 1)).split(1, route="k").apply(Calls())) == [
        (10, "process", [1]),
        (20, "tick"),
        (10, "end"),
    ]


def test_ticks_go_on_where_nothing_comes() -> None:
    found = calls(stream((1, 0, 1), (35, 0, 2)).split(1, route="k").apply(Calls()))
    assert [c for c in found if c[1] == "tick"] == [(10, "tick"), (20, "tick"), (30, "tick"), (40, "tick")]


def test_ticks_before_1970_are_multiples_too() -> None:
    assert calls(stream((-25, 0, 1), (-10, 0, 2), (-1, 0, 3)).split(1, route="k").apply(Calls())) == [
        (-25, "process", [1]),
        (-20, "tick"),
        (-10, "tick"),
        (-10, "process", [2]),
        (-1, "process", [3]),
        (0, "tick"),
        (-1, "end"),
    ]


def test_at_the_end_ticks_and_end_go_by_the_whole_stream_omitted_tuples_included() -> None:
    s = stream((1, 0, 1), (12, 1, 2), (33, None, 3))
    found = s.split(3, route="k").filter("x = 1").apply(Calls())
    assert calls(found) == [(1, "process", [1]), *((t, "tick") for t in (10, 20, 30, 40)), (33, "end")]


def test_the_end_counts_what_is_filtered_out_before_apply_but_not_before_the_split() -> None:
    s = stream((1, 0, 1), (55, 0, 9))
    assert calls(s.split(1, route="k").filter("x < 9").apply(Calls()))[-2:] == [(60, "tick"), (55, "end")]
    # the watermark has come to 55 before the end, as it would in a run of many epochs; the stream that is split ended at 1
    assert calls(s.filter("x < 9").split(1, route="k").apply(Calls()))[-2:] == [(50, "tick"), (55, "end")]


def test_with_keep_the_end_counts_tuples_that_fail_in_the_split() -> None:
    s = stream((1, "0", 1), (25, "a", 2), k=pa.string(), x=pa.int64())
    found = calls(s.split(1, route="k::int").apply(Calls()), errors="keep")
    assert found == [(1, "process", [1]), (10, "tick"), (20, "tick"), (30, "tick"), (25, "end")]


def test_the_first_time_is_that_of_what_passed() -> None:
    s = stream((1, 0, 0), (22, 0, 1))
    assert calls(s.split(1, route="k").filter("x = 1").apply(Calls())) == [
        (22, "process", [1]),
        (30, "tick"),
        (22, "end"),
    ]


def test_a_substream_without_a_tuple_is_never_called() -> None:
    class Opened(Calls):
        opened: list[int] = []  # of the class: copies share it

        def open(self, substream: int, substreams: int) -> None:
            self.opened.append(substream)
            assert substreams == 4

    s = stream((1, 1, 1), (2, 3, 2), (3, 3, 3))
    answer(s.split(4, route="k").filter("x <> 1").apply(Opened()))
    assert Opened.opened == [3]
    assert answer(stream((1, None, 1)).split(4, route="k").apply(Opened())) == []
    assert Opened.opened == [3]


def test_broadcast_tuples_alone_make_every_substream_live() -> None:
    found = answer(stream((1, None, 1)).split(3, route="k", broadcast="true").apply(Calls()))
    assert Multiset(row[:2] for row in found) == {(1, "process"): 3, (10, "tick"): 3, (1, "end"): 3}


def test_broadcast_tuples_stand_in_sequence_among_the_others() -> None:
    s = stream((2, 0, 5), (2, 9, 3), (2, 9, 7), (1, 9, 1))
    found = calls(s.map(k="k", x="x").split(1, route="k", broadcast="k = 9").map("x").apply(Calls()))
    assert found[:2] == [(1, "process", [1]), (2, "process", [3, 5, 7])]


def test_filter_and_map_before_apply_are_steps_of_the_substream() -> None:
    s = stream(*FOUR).split(2, route="k").map("k", x="x + k").filter("x > 10").apply(Tagged())
    assert answer(s) == [(2, 21, 1), (4, 41, 1)]


# --- apply: input that goes on ----------------------------------------------------------------------------------------


def test_before_the_end_tuples_come_once_the_watermark_has_passed_them() -> None:
    epochs = [rows((3, 0, 1), (20, 0, 2)), rows((30, 0, 3), (29, 0, 4))]
    query = stream(lateness="5 seconds").split(1, route="k").apply(Calls())  # W = 15, then 25
    first = [(3, "process", [1]), (10, "tick")]
    assert calls(query, epochs=epochs[:1], end=False) == first
    second = [*first, (20, "tick"), (20, "process", [2])]
    assert calls(query, epochs=epochs, end=False) == second
    rest = [(29, "process", [4]), (30, "tick"), (30, "process", [3]), (40, "tick"), (30, "end")]
    assert calls(query, epochs=epochs) == second + rest


def test_a_tick_comes_when_the_watermark_is_there_and_a_tuple_only_when_it_is_past() -> None:
    query = stream().split(1, route="k").apply(Calls())
    found = calls(query, epochs=[rows((3, 0, 1), (20, 0, 2))], end=False)
    assert found == [(3, "process", [1]), (10, "tick"), (20, "tick")]


def test_before_the_first_tuple_nothing_is_called() -> None:
    assert answer(stream().split(1, route="k").apply(Calls()), epochs=[rows()], end=False) == []
    assert answer(stream().split(1, route="k").apply(Calls()), epochs=[rows()]) == []


def test_a_substream_is_ticked_by_the_watermark_of_the_whole_stream() -> None:
    query = stream().split(2, route="k").filter("k = 0").apply(Calls())
    found = calls(query, epochs=[rows((3, 0, 1), (41, 1, 2))], end=False)
    assert found == [(3, "process", [1]), *((t, "tick") for t in (10, 20, 30, 40))]


def test_outputs_have_the_watermark_of_the_input() -> None:
    query = stream().split(1, route="k").apply(Tagged()).aggregate(window="10 seconds", n="count(*)")
    assert answer(query, epochs=[rows((1, 0, 1), (9, 0, 1), (19, 0, 1))], end=False) == [(1, 0, 10, 2)]


def test_late_tuples_are_not_handed_over() -> None:
    query = stream().split(1, route="k").apply(Tagged())
    assert answer(query, epochs=[rows((9, 0, 1)), rows((3, 0, 2), (10, 0, 3))]) == [(10, 3, 0), (9, 1, 0)]


def walked(given: list[tuple[int, int, int]], every: int, until: int | None) -> list[tuple[Any, ...]]:
    """The calls of one substream as a clock that goes forward second by second has them; until: None for the end."""
    times = [ts for ts, _, _ in given]
    found: list[tuple[Any, ...]] = []
    begun = False
    for now in range(min(times), max(times) + every + 1):
        if begun and now % every == 0 and (now <= until if until is not None else now - every <= max(times)):
            found.append((now, "tick"))
        here = sorted(x for ts, k, x in given if ts == now and k == 0)
        if here and (until is None or now < until):
            found.append((now, "process", here))
            begun = True
    return [*found, (max(times), "end")] if begun and until is None else found


@pytest.mark.parametrize("seed", range(8))
def test_calls_are_those_of_a_clock_that_goes_forward(seed: int) -> None:
    r = random.Random(seed)
    low = r.choice([-70, 0, 1_000_000])
    given = [(low + r.randrange(60), r.choice([0, 0, 1]), r.randrange(5)) for _ in range(r.randrange(1, 25))]
    query = stream().split(1, route="CASE WHEN k = 0 THEN 0 END").apply(Calls())
    assert calls(query, epochs=[rows(*given)]) == walked(given, 10, None)
    largest = max(ts for ts, _, _ in given)
    assert calls(query, epochs=[rows(*given)], end=False) == walked(given, 10, largest)


# --- apply: outputs, chains -------------------------------------------------------------------------------------------

USERS: Any = {"user": pa.string(), "kind": pa.string(), "n": pa.int64()}


def test_several_outputs_share_one_run() -> None:
    class Once(Extremes):
        opened: list[int] = []

        def open(self, substream: int, substreams: int) -> None:
            self.opened.append(substream)
            super().open(substream, substreams)

    s = stream((1, "a", "", 3), (2, "b", "", None), (3, "a", "", 2), (4, "a", "", 5), **USERS)
    outputs = s.split(2, route="0").apply(Once())
    records, without, both = references(
        [outputs["records"], outputs["without"], outputs["records"].map("user").union(outputs["without"].map("user"))]
    )
    assert (seconds(records), seconds(without)) == ([(1, "a", 3), (4, "a", 5)], [(4, "b", 0)])
    assert seconds(both) == [(1, "a"), (4, "a"), (4, "b")]
    assert Once.opened == [0]


def test_an_output_that_is_left_out_is_empty() -> None:
    s = stream((1, "a", "", 3), **USERS)
    assert answer(s.split(1, route="0").apply(Extremes())["without"]) == []


def test_what_an_upstream_end_puts_out_is_processed_before_a_downstream_end() -> None:
    class Late(Tagged):
        schema = pa.schema([("ts", TS), ("k", pa.int64()), ("x", pa.int64())])

        def process(self, tuples: pa.Table, state: Any) -> None:
            return None

        def end(self, time: dt.datetime, state: Any) -> pa.Table:
            return table(self.schema, (time + dt.timedelta(seconds=31), 0, 8))

    found = stream((1, 0, 1), (4, None, 2)).split(1, route="k").apply(Late()).split(1, route="k").apply(Calls())
    assert calls(found) == [(35, "process", [8]), (40, "tick"), (35, "end")]


def test_chains_of_splits() -> None:
    s = stream((1, 0, 10), (2, 1, 11), (3, 0, 12), (4, 1, 13))
    chain = s.split(2, route="k").apply(Tagged()).split(3, route="x % 3", broadcast="of = 0").apply(Tagged())
    assert Multiset(row[1] for row in answer(chain)) == {10: 3, 12: 3, 11: 1, 13: 1}
    numbered = chain.split(3, route="of").each(lambda t: t.aggregate(last=2, every=1, x="min(x)"))
    assert answer(numbered) == [(2, 10, 2), (3, 10, 0), (3, 10, 1), (3, 11, 2), (4, 12, 1)]


def test_each_then_apply_and_apply_behind_a_join() -> None:
    s, other = stream((1, 0, 1), (2, 1, 2), (3, 1, 3)), stream((2, 1, 9), name="o")
    joined = s.join(other, on="l.k = r.k", within="1 second").map(k="l_k", x="l_x")
    assert answer(joined.split(2, route="k").apply(Tagged())) == [(2, 2, 1), (2, 3, 1)]
    each = s.split(2, route="k").each(lambda t: t.aggregate(last=1, x="sum(x)")).split(2, route="1 - substream")
    assert answer(each.apply(Tagged())) == [(1, 1, 1), (2, 2, 0), (3, 3, 0)]


# --- apply: copies, state, errors -------------------------------------------------------------------------------------


def test_every_substream_has_its_own_copy_and_the_one_given_is_not_touched() -> None:
    class Counting(Tagged):
        count = 0

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            self.count += tuples.num_rows
            found = super().process(tuples, state)
            return found.set_column(1, "x", pa.array([self.count] * found.num_rows, pa.int64()))

    given = Counting()
    assert answer(stream(*FOUR).split(2, route="k").apply(given)) == [(1, 1, 0), (2, 1, 1), (4, 2, 1)]
    assert vars(given) == {}


def test_state_is_per_substream() -> None:
    s = stream((1, "a", "", 0), (2, "a", "", 1), (3, "a", "", 0), (4, "b", "", 0), **USERS)
    assert answer(s.split(2, route="n").apply(Counter())) == [(1, "a", 1), (2, "a", 1), (3, "a", 2), (4, "b", 1)]


def failing(what: str, **more: Any) -> Processor:
    """A processor of which one method does what it should not."""

    def process(self: Any, tuples: pa.Table, state: Any) -> Any:
        return more["put"](tuples) if "put" in more else more["do"](state) if what == "process" else None

    def other(self: Any, time: Any, state: Any) -> Any:
        return more["do"](state)

    schema = pa.schema([("ts", TS), ("x", pa.int64())])
    held = StateTable(key=["a", "b"], columns=pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", TS)]), due="c")
    no_due = StateTable(key=["a"], columns=pa.schema([("a", pa.int64())]))
    members = {"schema": schema, "process": process, "tables": {"t": held, "plain": no_due}}
    if what != "process":
        members |= {what: other, "every": "10 seconds"}
    kind: Any = type("Odd", (Processor,), members)
    return kind()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "process",
            r"Odd in substream 1 failed in process of 1 tuples at 1970-01-01 00:00:02\+00:00: ZeroDivisionError",
        ),
        ("tick", r"Odd in substream 1 failed in tick at 1970-01-01 00:00:10\+00:00: ZeroDivisionError"),
        ("end", r"Odd in substream 1 failed in end at 1970-01-01 00:00:02\+00:00: ZeroDivisionError"),
    ],
)
def test_an_exception_names_processor_substream_and_time_and_keeps_its_traceback(what: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as told:
        reference(stream((2, 1, 1)).split(2, route="k").apply(failing(what, do=lambda state: 1 // 0)))
    assert isinstance(told.value.__cause__, ZeroDivisionError)


def test_an_exception_in_open_is_named() -> None:
    class Closed(Tagged):
        def open(self, substream: int, substreams: int) -> None:
            raise FileNotFoundError("model.bin")

    with pytest.raises(DataError, match=r"Closed in substream 1 failed in open: FileNotFoundError: model\.bin"):
        reference(stream((2, 1, 1)).split(2, route="k").apply(Closed()))


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (lambda t: t, "must have the columns ts, x; found ts, k, x"),
        (lambda t: t.select(["ts"]), "must have the columns ts, x; found ts"),
        (lambda t: t.select(["ts", "x"]).set_column(1, "x", pa.array(["a"])), "'x' as int64; found string; cast it"),
        (lambda t: pa.table({"ts": pa.array([None], TS), "x": [1]}), "'ts' is null"),
        (lambda t: {"x": t}, "pyarrow.Table; found a dict"),
        (lambda t: [1], "pyarrow.Table; found a list"),
        (lambda t: pa.table({"ts": pa.array([2 * SECOND - 1], TS), "x": [1]}), "too early.*00:00:01.999999.*00:00:02"),
    ],
)
def test_what_is_put_out_is_checked(put: Any, words: str) -> None:
    with pytest.raises(DataError, match=rf"Odd in substream 1, in process of 1 tuples at .*{words}"):
        reference(stream((2, 1, 1)).split(2, route="k").apply(failing("process", put=put)))


def test_a_row_is_not_before_its_tick_or_end() -> None:
    early = table(pa.schema([("ts", TS), ("x", pa.int64())]), (dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1))
    for what in ("tick", "end"):
        with pytest.raises(DataError, match=f"in {what} at .*too early"):
            reference(stream((2, 1, 1)).split(2, route="k").apply(failing(what, do=lambda state: early)))


def test_columns_may_come_in_any_order_and_narrower() -> None:
    def put(tuples: pa.Table) -> pa.Table:
        return pa.table({"x": tuples["x"].cast(pa.int16()), "ts": tuples["ts"].cast(pa.timestamp("ns", "UTC"))})

    assert answer(stream((2, 1, 1)).split(2, route="k").apply(failing("process", put=put))) == [(2, 1)]


def test_outputs_are_known_by_name() -> None:
    class Other(Extremes):
        def process(self, tuples: pa.Table, state: Any) -> Any:
            return {"record": None}

    class Bare(Extremes):
        def process(self, tuples: pa.Table, state: Any) -> Any:
            return tuples

    s = stream((1, "a", "", 3), **USERS).split(1, route="0")
    with pytest.raises(DataError, match="no output 'record'; it has records, without"):
        reference(s.apply(Other())["records"])
    with pytest.raises(DataError, match=r"must be a dict.*records, without.*found a Table of pyarrow"):
        reference(s.apply(Bare())["records"])


def test_more_ticks_than_a_run_may_have_stop_it_and_name_ahead() -> None:
    s = stream((1, 0, 1), (10 * MOST_TICKS + 20, 0, 1))
    with pytest.raises(DataError, match=r"Calls would get 100,003 ticks in substream 0.*100,000.*ahead="):
        reference(s.split(1, route="k").apply(Calls()))


def test_times_that_python_does_not_have_are_an_error_only_where_they_are_needed() -> None:
    far = stream((300_000_000_000, 0, 1))
    assert answer(far.split(1, route="k").filter("x = 2").apply(Tagged())) == []
    assert reference(far.split(1, route="k").apply(Tagged())).num_rows == 1, "it has no end, nor ticks"
    ends = type("Ends", (Tagged,), {"end": lambda self, time, state: None})()
    with pytest.raises(DataError, match="beyond those that Python has"):
        reference(far.split(1, route="k").apply(ends))


# --- tables -----------------------------------------------------------------------------------------------------------

HELD = StateTable(key=["a", "b"], columns=pa.schema([("a", pa.float64()), ("v", TS), ("b", pa.string())]), due="v")


def held(*given: tuple[Any, Any, Any]) -> pa.Table:
    a, v, b = zip(*given, strict=True) if given else ((), (), ())
    times = [None if t is None else t * SECOND for t in v]
    return pa.table([pa.array(a, pa.float64()), pa.array(times, TS), pa.array(b, pa.string())], schema=HELD.columns)


def keys(*given: tuple[Any, Any]) -> pa.Table:
    return held(*((a, None, b) for a, b in given)).select(["a", "b"])


def test_get_gives_one_row_for_each_key_in_the_order_asked_for() -> None:
    t = DictTable("t", HELD)
    t.put(held((1.0, 5, "x"), (None, 6, None), (float("nan"), 7, "x"), (0.0, 8, "z")))
    asked = keys((3.0, "x"), (-0.0, "z"), (1.0, "x"), (1.0, "x"), (None, None), (float("nan"), "x"))
    found = t.get(asked)
    assert found.schema == HELD.columns
    assert [v and v.second for v in found["v"].to_pylist()] == [None, 8, 5, 5, 6, 7]
    assert [repr(a) for a in found["a"].to_pylist()] == ["3.0", "-0.0", "1.0", "1.0", "None", "nan"]
    assert t.has(asked).to_pylist() == [False, True, True, True, True, True]
    assert t.get(keys()).num_rows == 0 and len(t) == 4


def test_put_replaces_delete_forgets_and_rows_are_in_order_of_the_key() -> None:
    t = DictTable("t", HELD)
    t.put(held((2.0, 1, "b"), (None, 2, "a"), (2.0, 3, None), (float("nan"), 4, "a"), (2.0, 5, "Z"), (-1.0, 6, "")))
    t.put(held((2.0, 9, "b")))
    t.delete(keys((None, "a"), (77.0, "nobody")))
    assert [(v.second, b) for v, b in zip(*(t.rows()[c].to_pylist() for c in "vb"), strict=True)] == [
        (6, ""),
        (5, "Z"),
        (9, "b"),
        (3, None),
        (4, "a"),
    ]
    assert len(t) == 5


def test_due_gives_rows_in_order_of_time_and_key() -> None:
    t = DictTable("t", HELD)
    t.put(held((3.0, 5, "a"), (1.0, 7, "a"), (2.0, 5, "a"), (4.0, None, "a"), (5.0, 9, "a")))
    assert t.due(dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC))["a"].to_pylist() == [2.0, 3.0, 1.0]
    zoned = dt.datetime(1970, 1, 1, 1, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert t.due(zoned)["a"].to_pylist() == [2.0, 3.0]
    assert t.due(dt.datetime(1960, 1, 1, tzinfo=UTC)).schema == HELD.columns


@pytest.mark.parametrize(
    ("do", "words"),
    [
        (
            lambda s: s["t"].put(pa.table({"a": [1, 1], "b": ["x", "x"], "c": pa.array([0, 0], TS)})),
            "key .*b=x.*twice",
        ),
        (lambda s: s["t"].put(pa.table({"a": [1], "b": ["x"]})), "must have the columns a, b, c; found a, b"),
        (lambda s: s["t"].put(pa.table({"a": [1], "b": ["x"], "c": ["y"]})), "'c' as timestamp.*found string"),
        (lambda s: s["t"].get(pa.table({"a": [1]})), "keys of table 't' must have the columns a, b; found a"),
        (lambda s: s["t"].get([1]), "keys of table 't' must be a pyarrow.Table; found a list"),
        (lambda s: s["t"].due(7), "takes a datetime with a zone.*found 7"),
        (lambda s: s["t"].due(dt.datetime(2020, 1, 1)), "takes a datetime with a zone"),
        (lambda s: s["plain"].due(dt.datetime(2020, 1, 1, tzinfo=UTC)), "table 'plain' has no due column"),
        (lambda s: s["seen"], "there is no table 'seen'; declared are: t, plain"),
    ],
)
def test_misuse_of_a_table_is_named_with_its_processor(do: Any, words: str) -> None:
    with pytest.raises(DataError, match=f"Odd in substream 0 failed in process .*{words}"):
        reference(stream((2, 0, 1)).split(2, route="k").apply(failing("process", do=do)))


def test_values_of_any_type_stay_what_they_are() -> None:
    kinds = {
        "k": pa.binary(),
        "m": pa.map_(pa.string(), pa.int64()),
        "s": pa.struct([("p", pa.list_(pa.int64()))]),
        "d": pa.decimal128(5, 2),
        "t": TS,
    }
    schema = pa.schema(list(kinds.items()))
    t = DictTable("t", StateTable(key=["k"], columns=schema))
    far = pa.array([2**61, None], pa.int64()).cast(TS)
    values = [
        pa.array(v, k)
        for v, k in zip([[b"a", b"b"], [[("x", 1)], None], [{"p": [1]}, None], [1, None]], kinds.values(), strict=False)
    ]
    given = pa.table([*values, far], schema=schema)
    t.put(given)
    assert t.rows().equals(given)
    assert t.get(pa.table({"k": [b"b", b"c"]})).slice(1)["m"].null_count == 1


def test_a_table_is_what_a_dict_is_under_random_use() -> None:
    r = random.Random(4)
    t, plain = DictTable("t", HELD), {}
    for _ in range(300):
        some = {(r.choice([1.0, 2.0, None]), r.choice(["a", "b", None])) for _ in range(r.randrange(4))}
        match r.choice(["put", "put", "delete", "get"]):
            case "put":
                new = [(a, r.choice([None, r.randrange(60)]), b) for a, b in some]
                t.put(held(*new))
                plain |= {(a, b): v for a, v, b in new}
            case "delete":
                t.delete(keys(*some))
                plain = {key: v for key, v in plain.items() if key not in some}
            case _:
                found = t.get(keys(*some))["v"].to_pylist()
                assert [v and v.second for v in found] == [plain.get(key) for key in some]
        assert len(t) == len(plain)
        until = r.randrange(60)
        due = t.due(dt.datetime(1970, 1, 1, 0, 0, until, tzinfo=UTC))["v"].to_pylist()
        assert [v.second for v in due] == sorted(v for v in plain.values() if v is not None and v <= until)


# --- the processors that other tests use, by hand -----------------------------------------------------------------------


def test_sessions_by_hand() -> None:
    s = stream((1, "a", "", 0), (3, "b", "", 0), (6, "a", "", 0), (21, "b", "", 0), **USERS)
    # a: 1..6 closes 11, b: 3 closes 8: both by a tick; b: 21 closes 26, by the tick at 30, which is before the end
    assert answer(s.split(1, route="0").apply(Sessions(gap=5))) == [(10, "b", 3, 1), (20, "a", 1, 2), (30, "b", 21, 1)]
    s = stream((1, "a", "", 0), (8, "b", "", 0), (9, "b", "", 0), **USERS)
    assert answer(s.split(1, route="0").apply(Sessions(gap=5))) == [(8, "a", 1, 1), (9, "b", 8, 2)]


def test_a_break_by_hand() -> None:
    kinds = ["fail", "fail", "fail", "success", "fail", "success", "fail", "fail", "other", "fail", "fail", "success"]
    s = stream(*((i, "a", kind, 0) for i, kind in enumerate(kinds)), **USERS)
    assert answer(s.split(1, route="0").apply(Break())) == [(11, "a", 4), (3, "a", 3)]


def test_silence_by_hand() -> None:
    s = stream((1, "a", "", 0), (4, "b", "", 0), (5, "b", "", 0), (13, None, "", 0), **USERS)
    found = answer(s.split(1, route="0").apply(Silence()))
    assert found == [(12, 0, 3), (16, 1, 4), (4, 1, 1), (8, 2, 3)]


def test_errors_of_the_reference_are_errors_of_headrace() -> None:
    with pytest.raises(HeadraceError):
        reference(stream((2, 9, 1)).split(2, route="k").apply(Tagged()))
