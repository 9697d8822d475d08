"""The meaning of every operator, by examples worked out by hand and by definitions written twice."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columnar.types import stream_schema
from headrace.errors import DataError, QueryError
from headrace.expressions import join_predicate
from headrace.operators import PLANNERS
from headrace.query import nodes
from headrace.reference import late_tuples, reference
from headrace.reference.admission import STATELESS_NODES
from headrace.sources import TableOrigin
from headrace.stream import Stream, node_of
from tests.helpers import sorted_rows, tuples

SECOND = 1_000_000
NAN = math.nan


class Endless:
    bounded = readable_whole = False


def source(table: pa.Table, name: str = "s", *, lateness: int = 0, ahead: int | None = None) -> Stream:
    schema = stream_schema(table.schema, "ts")
    return Stream(nodes.Source(name, table.schema, "ts", lateness, None, ahead, TableOrigin(table), schema))


def stream(*rows: tuple[Any, ...], name: str = "s", **kinds: pa.DataType) -> Stream:
    return source(tuples(*rows, **(kinds or {"x": pa.int64()})), name)


def answer(query: Stream, *columns: str, **how: Any) -> list[tuple[Any, ...]]:
    found = reference(query, **how)
    assert found.schema.equals(query.schema)
    return sorted_rows(found.select(list(columns) if columns else found.column_names))


def same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> bool:
    return Counter(map(repr, found)) == Counter(map(repr, expected))


# --- stateless operators -----------------------------------------------------------------------------------


def test_map_keeps_time_and_casts_to_the_schema() -> None:
    query = stream((1, 2), (2, None)).map("x", y="x / 4.0", z="upper('a')")
    assert answer(query) == [(1, 2, 0.5, "A"), (2, None, None, "A")]


def test_filter_keeps_only_what_is_true() -> None:
    assert answer(stream((1, 1), (2, None), (3, 5)).filter("x > 2")) == [(3, 5)]


def test_case_gives_a_tuple_to_the_first_true_predicate() -> None:
    big, small, rest = stream((1, 50), (2, 5), (3, 1), (4, None)).case("x > 10", "x > 2")
    assert (answer(big), answer(small)) == ([(1, 50)], [(2, 5)])
    assert answer(rest) == [(3, 1), (4, None)]


def test_case_asks_a_predicate_only_about_what_is_left() -> None:
    text = stream((1, "a"), (2, "7"), x=pa.string())
    _, numbers, _ = text.case("x = 'a'", "cast(x as int) > 5")
    assert answer(numbers) == [(2, "7")]
    with pytest.raises(DataError, match="x=a"):
        reference(text.filter("cast(x as int) > 5"))


def test_a_failing_expression_is_named_with_its_tuple() -> None:
    with pytest.raises(DataError, match=r"cast\(x as int\).*x=b.*TRY_CAST"):
        reference(stream((1, "1"), (2, "2"), (3, "b"), x=pa.string()).map(y="cast(x as int)"))


def test_a_struct_column_named_like_a_table_is_still_a_column() -> None:
    query = stream((1, {"x": 3}, 9), t=pa.struct([("x", pa.int64())]), x=pa.int64())
    assert answer(query.map(y="t.x")) == [(1, 3)]


def test_every_node_without_a_planner_is_known_to_be_stateless() -> None:
    """`each` has the operators of its body, and the compiler alone makes splits and substreams."""
    kinds = {node for node in vars(nodes).values() if isinstance(node, type) and issubclass(node, nodes.Node)}
    abstract = {kind for kind in kinds if kind is nodes.Node or kind.__subclasses__()}
    others = {nodes.Each, nodes.Split, nodes.Substream}
    assert set(STATELESS_NODES) == kinds - abstract - set(PLANNERS) - others


def test_union_is_a_multiset() -> None:
    s = stream((1, 1))
    assert answer(s.union(s, stream((0, 2), name="u"))) == [(0, 2), (1, 1), (1, 1)]


# --- time joins --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [0, -10 * SECOND, 300_000 * 365 * 86_400 * SECOND // 2])
def test_time_join_at_the_edges_of_the_window(origin: int) -> None:
    left = stream((origin, 1))
    offsets = [
        -5 * SECOND - 1,
        -5 * SECOND,
        -5 * SECOND + 1,
        -1,
        0,
        1,
        60 * SECOND - 1,
        60 * SECOND,
        60 * SECOND + 1,
    ]
    right = stream(*((origin + offset, offset) for offset in offsets), name="r")
    joined = left.join(right, on="true", within=("60 seconds", "5 seconds"))
    assert sorted(row[0] for row in answer(joined, "r_x")) == offsets[1:-1]
    assert all(row == (min(origin, row[1]), row[1]) for row in answer(joined, "ts", "r_ts"))


def test_time_join_names_and_fills_its_columns() -> None:
    left = stream((5, 1, "a"), x=pa.int64(), p=pa.string())
    right = stream((3, 1, "b"), name="r", x=pa.int64(), q=pa.string())
    joined = left.join(right, on="l.x = r.x", within="1 second")
    assert joined.columns == ["ts", "l_ts", "l_x", "p", "r_ts", "r_x", "q"]
    assert answer(joined) == [(3, 5, 1, "a", 3, 1, "b")]


def test_a_null_key_meets_nothing() -> None:
    left, right = stream((1, None), (1, 4)), stream((1, None), (1, 4), name="r")
    assert answer(left.join(right, on="l.x = r.x", within="1 second"), "l_x", "r_x") == [(4, 4)]


def test_self_join_holds_each_tuple_with_itself_and_both_orders() -> None:
    s = stream((1, 1), (2, 2))
    found = answer(s.join(s, on="l.x <= 9 and r.x <= 9", within="1 second"), "ts", "l_x", "r_x")
    assert found == [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 2, 2)]


def test_equal_tuples_are_different_tuples() -> None:
    s = stream((1, 1), (1, 1))
    assert len(answer(s.join(s, on="l.x = r.x", within="1 second"))) == 4


def test_a_predicate_never_sees_a_pair_outside_the_window() -> None:
    left = stream((0.0, "1"), (100.0, "bad"), x=pa.string())
    right = stream((0.0, 1), name="r")
    assert len(answer(left.join(right, on="cast(l.x as int) = r.x", within="1 second"))) == 1
    with pytest.raises(DataError, match="x=bad"):
        reference(left.join(right, on="cast(l.x as int) = r.x", within="100 seconds"))


def test_predicates_on_one_side_or_none() -> None:
    left, right = stream((1, 1), (1, 2)), stream((1, 7), (1, 8), name="r")
    assert answer(left.join(right, on="R.X > 7", within="1 second"), "l_x") == [(1,), (2,)]
    assert answer(left.join(right, on="false", within="1 second")) == []


def test_join_of_a_join() -> None:
    s, t = stream((1, 1)), stream((2, 1), name="t")
    twice = s.join(t, on="l.x = r.x", within="1 second").join(s, on="l.l_x = r.x", within="1 second")
    assert answer(twice, "ts", "l_l_ts", "l_r_ts", "r_ts") == [(1, 1, 2, 1)]


def test_empty_inputs() -> None:
    none, some = stream(x=pa.int64()), stream((1, 1), name="r")
    for query in (
        none.join(some, on="true", within="1 second"),
        some.join(none, on="true", last=2),
        none.aggregate(window="1 second", n="count(*)"),
        none.aggregate(last=1, n="count(*)"),
        none.map(y="x").filter("y = 1"),
    ):
        assert answer(query) == []


# --- count joins -------------------------------------------------------------------------------------------


def test_count_join_by_hand() -> None:
    # walk: l0@1 r0@2 l1@3 r1@3 l2@4 r2@9      (at 3: l before r)
    left, right = stream((1, 0), (3, 1), (4, 2)), stream((2, 0), (3, 1), (9, 2), name="r")
    found = answer(left.join(right, on="true", last=(2, 1)), "ts", "l_x", "r_x")
    completed_by_r = [(2, 0, 0), (3, 0, 1), (3, 1, 1), (9, 1, 2), (9, 2, 2)]
    completed_by_l = [(3, 1, 0), (4, 2, 1)]
    assert found == sorted(completed_by_r + completed_by_l, key=repr)


def test_count_join_counts_before_the_predicate() -> None:
    left, right = stream((1, 7), (2, 0)), stream((3, 7), name="r")
    assert answer(left.join(right, on="l.x = r.x", last=1)) == []
    assert len(answer(left.join(right, on="l.x = r.x", last=2))) == 1


def test_count_join_breaks_ties_by_the_columns() -> None:
    left = stream((1, None), (1, NAN), (1, 5.0), (1, -1.0), x=pa.float64())
    right = stream((1, 0), name="r")
    assert answer(left.join(right, on="true", last=1), "l_x") == [(None,)]
    assert same(answer(left.join(right, on="true", last=2), "l_x"), [(None,), (NAN,)])


def test_count_self_join_holds_each_tuple_with_itself() -> None:
    s = stream((1, 1), (2, 2), (3, 3))
    found = answer(s.join(s, on="true", last=1), "l_x", "r_x")
    assert found == [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]


# --- sequence ----------------------------------------------------------------------------------------------

DATES = [datetime.date(1969, 12, 31), datetime.date(2024, 1, 1), None]
SORTED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.float64(), [-math.inf, -1.0, 0.0, 2.5, math.inf, NAN, None]),
    (pa.bool_(), [False, True, None]),
    (pa.string(), ["", "B", "a", "ab", "z", "é", "\uffff", "\U0001f600", None]),
    (pa.binary(), [b"", b"\x00", b"a", b"\xff", None]),
    (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("10.00"), None]),
    (pa.date32(), DATES),
    (pa.timestamp("us"), [-(10**18), -1, 0, 400_000_000_000_000_000, None]),
    (pa.list_(pa.int64()), [[], [1], [1, 2], [1, None], [2], [None], None]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": "a"}, None],
    ),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 2)], [("b", 0)], None]),
]


@pytest.mark.parametrize(("kind", "values"), SORTED, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_ties_are_broken_by_the_columns_in_order(kind: pa.DataType, values: list[Any]) -> None:
    shuffled = np.random.default_rng(1).permutation(len(values)).tolist()
    query = stream(*((7, values[i], i) for i in shuffled), x=kind, i=pa.int64())
    found = reference(query.aggregate(last=len(values), order="list(i)"))
    assert found["order"].to_pylist() == [list(range(len(values)))]


# --- time aggregates ---------------------------------------------------------------------------------------


def test_time_windows_at_their_edges_and_before_1970() -> None:
    times = [-10 * SECOND - 1, -10 * SECOND, -1, 0, 10 * SECOND - 1, 10 * SECOND]
    query = stream(*((ts, 1) for ts in times)).aggregate(window="10 seconds", n="count(*)")
    assert sorted(answer(query)) == [
        (-10 * SECOND - 1, -20 * SECOND, -10 * SECOND, 1),
        (-10 * SECOND, -10 * SECOND, 0, 2),
        (0, 0, 10 * SECOND, 2),
        (10 * SECOND, 10 * SECOND, 20 * SECOND, 1),
    ]


def test_every_need_not_divide_the_window() -> None:
    query = stream((7.0, 1), (-1.0, 2)).aggregate(window="5 seconds", every="3 seconds", s="sum(x)")
    starts = sorted((row[0] // SECOND, row[1] // SECOND, row[2]) for row in answer(query, "window_start", "ts", "s"))
    assert starts == [(-3, -1, 2), (3, 7, 1), (6, 7, 1)]


def test_time_of_a_result_is_the_smallest_in_the_window() -> None:
    query = stream((5.0, 2), (3.0, 1), (8.0, 9)).aggregate(window="10 seconds", x="max(x)")
    assert answer(query, "ts", "x") == [(3 * SECOND, 9)]


def test_groups_of_null_nan_and_zero() -> None:
    rows = [(1, NAN), (2, -0.0), (3, None), (4, 0.0), (5, -NAN), (6, None)]
    query = stream(*rows, k=pa.float64()).aggregate(by=["k"], window="1 second", n="count(*)")
    assert [row[:2] for row in sorted(answer(query, "ts", "n", "k"))] == [(1, 2), (2, 2), (3, 2)]


def test_groups_of_nested_keys_and_of_nothing() -> None:
    query = stream((1, [0.0, NAN]), (2, [-0.0, NAN]), (3, [None]), k=pa.list_(pa.float64()))
    assert sorted(answer(query.aggregate(by=["k"], window="1 second", n="count(*)"), "ts", "n")) == [
        (1, 2),
        (3, 1),
    ]
    assert answer(query.aggregate(window="1 second", n="count(*)"), "n") == [(3,)]


def test_functions_see_the_sequence_and_the_key() -> None:
    query = stream((2, 1, "b"), (1, 1, "z"), (2, 1, "a"), k=pa.int64(), v=pa.string())
    found = query.aggregate(by=["k"], window="1 second", l="list(v)", f="first(v)", n="count(*) + k")
    assert answer(found, "l", "f", "n") == [(["z", "a", "b"], "z", 4)]


def test_windows_of_a_year_past_9999() -> None:
    far = 400_000_000_000_000_000  # the year 14645
    found = answer(stream((far, 1)).aggregate(window="1 second", n="count(*)"), "ts", "window_start")
    assert found == [(far, far)]


# --- count aggregates --------------------------------------------------------------------------------------


def test_count_windows_by_hand() -> None:
    query = stream(*((ts, ts) for ts in range(1, 9))).aggregate(last=3, every=2, l="list(x)")
    assert answer(query) == [(3, [1, 2, 3]), (5, [3, 4, 5]), (7, [5, 6, 7])]


def test_count_windows_are_per_group_and_never_incomplete() -> None:
    rows = [(1, None), (2, 1), (3, None), (4, 1), (5, 1), (6, 2)]
    query = stream(*rows, k=pa.int64()).aggregate(by=["k"], last=2, n="count(*)")
    assert answer(query) == [(3, None, 2), (4, 1, 2)]


# --- epochs: late, rejected, not yet -----------------------------------------------------------------------


def test_late_is_below_the_watermark_of_the_epoch_before() -> None:
    s = source(tuples(x=pa.int64()), lateness=10)
    first, second, third = (
        tuples((100, 1), (5, 2), x=pa.int64()),
        tuples((89, 3), (90, 4), (200, 5), (None, 6), x=pa.int64()),
        tuples((189, 7), (190, 8), x=pa.int64()),
    )
    epochs = [first, second, third]
    assert answer(s, "x", epochs=epochs) == [(1,), (2,), (4,), (5,), (8,)]
    late, rejected = late_tuples(s, epochs)["s"]
    assert (late["x"].to_pylist(), rejected["x"].to_pylist()) == ([3, 7], [6])
    assert late.schema.equals(s.schema) and rejected.schema.equals(s.schema)


def test_ahead_rejects_only_once_something_was_accepted() -> None:
    s = source(tuples(x=pa.int64()), ahead=50)
    cut: list[list[tuple[Any, ...]]] = [
        [(None, 0)],
        [(1000, 1), (0, 2)],
        [(1050, 3), (1051, 4), (9999, 5)],
        [(1101, 6), (1100, 7)],
    ]
    epochs = [tuples(*rows, x=pa.int64()) for rows in cut]
    assert [row[0] for row in answer(s, "x", epochs=epochs)] == [1, 2, 3, 7]
    assert late_tuples(s, epochs)["s"][1]["x"].to_pylist() == [0, 4, 5, 6]


@pytest.mark.parametrize(
    ("epochs", "idle", "words"),
    [
        (None, [[]], "found 1, with 0 epochs"),
        (2, [["s"]], "found 1, with 2 epochs"),
        (1, [["t"]], "unknown source 't'; the query has s"),
    ],
)
def test_idle_sources_are_given_for_every_epoch(epochs: int | None, idle: list[list[str]], words: str) -> None:
    given = None if epochs is None else [tuples((1, 1), x=pa.int64())] * epochs
    with pytest.raises(QueryError, match=words):
        reference(stream((1, 1)), epochs=given, idle=idle)


def test_a_rejected_time_does_not_move_the_watermark() -> None:
    s = source(tuples(x=pa.int64()), ahead=5)
    epochs = [tuples((t, t), x=pa.int64()) for t in (10, 1000, 12)]
    assert answer(s, "x", epochs=epochs) == [(10,), (12,)]


def test_bounded_input_is_never_late_and_drops_null_times() -> None:
    assert answer(stream((100, 1), (0, 2), (None, 3)), "x") == [(1,), (2,)]


def test_bounded_input_must_be_bounded() -> None:
    table = tuples(x=pa.int64())
    schema = stream_schema(table.schema, "ts")
    endless = Stream(nodes.Source("e", table.schema, "ts", 0, None, None, Endless(), schema))
    with pytest.raises(QueryError, match=r"epochs=\[\.\.\.\]"):
        reference(endless)
    assert answer(endless, epochs=[tuples((1, 1), x=pa.int64())]) == [(1, 1)]


def test_epochs_are_checked_against_the_sources() -> None:
    left, right = stream((1, 1), name="l"), stream((1, 1), name="r")
    joined = left.join(right, on="true", within="1 second")
    one = tuples((1, 1), x=pa.int64())
    with pytest.raises(QueryError, match="2 sources"):
        reference(joined, epochs=[one])
    with pytest.raises(QueryError, match="'q'; the query has l, r"):
        reference(joined, epochs=[{"q": one}])


def test_a_time_column_is_renamed_and_brought_to_utc() -> None:
    raw = pa.table({"at": pa.array([5], pa.timestamp("ms")), "x": [1]})
    schema = stream_schema(raw.schema, "at")
    s = Stream(nodes.Source("s", raw.schema, "at", 0, None, None, TableOrigin(raw), schema))
    assert answer(s) == answer(s, epochs=[raw]) == [(5000, 1)]


def open_answer(query: Stream, **epoch: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    tables = {name: tuples(*rows, x=pa.int64()) for name, rows in epoch.items()}
    return answer(query, epochs=[tables], end=False)


def test_an_open_time_window_waits_for_the_watermark() -> None:
    query = stream().aggregate(window="10 milliseconds", n="count(*)")
    assert open_answer(query, s=[(0, 1), (9_999, 1)]) == []
    assert open_answer(query, s=[(0, 1), (10_000, 1)]) == [(0, 0, 10_000, 1)]


def test_open_count_windows_wait_for_everything_before() -> None:
    query = stream().aggregate(last=1, l="list(x)")
    assert open_answer(query, s=[(1, 1), (2, 2)]) == [(1, [1])]
    joined = stream(name="l").join(stream(name="r"), on="true", last=9).map("l_x", "r_x")
    assert open_answer(joined, l=[(1, 1), (9, 2)], r=[(1, 3), (5, 4)]) == [(1, 1, 3)]
    assert open_answer(joined, l=[(1, 1), (9, 2)]) == []


def test_open_time_joins_emit_at_once() -> None:
    joined = stream(name="l").join(stream(name="r"), on="true", within="1 second").map("l_x", "r_x")
    assert open_answer(joined, l=[(5, 1)], r=[(5, 3)]) == [(5, 1, 3)]


def test_a_window_over_a_join_waits_for_the_join() -> None:
    joined = stream(name="l").join(stream(name="r"), on="true", within=("2 milliseconds", "3 milliseconds"))
    query = joined.aggregate(window="1 milliseconds", n="count(*)").map("n")
    # watermark of the join: min(W(l) - 3 ms, W(r) - 2 ms)
    assert open_answer(query, l=[(0, 1), (4_000, 1)], r=[(0, 1), (3_000, 1)]) == [(0, 1)]
    assert open_answer(query, l=[(0, 1), (3_999, 1)], r=[(0, 1), (3_000, 1)]) == []
    assert open_answer(query, l=[(0, 1), (4_000, 1)], r=[(0, 1), (2_999, 1)]) == []


def test_a_count_window_over_a_time_window_waits_one_window_longer() -> None:
    query = stream().aggregate(window="10 milliseconds", n="count(*)").aggregate(last=1, m="max(n)")
    assert open_answer(query, s=[(5, 1), (10_000, 1)]) == []
    assert open_answer(query, s=[(5, 1), (10_005, 1)]) == []
    assert open_answer(query, s=[(5, 1), (10_006, 1)]) == [(5, 1)]


def test_a_silent_source_holds_everything_back() -> None:
    both = stream(name="l").union(stream(name="r")).aggregate(last=1, n="count(*)")
    assert open_answer(both, l=[(1, 1), (9, 1)]) == []
    assert open_answer(both, l=[(1, 1), (9, 1)], r=[(2, 1)]) == [(1, 1)]


# --- the definitions, written a second time ----------------------------------------------------------------

small = st.lists(st.tuples(st.integers(-6, 6), st.integers(0, 2)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(small, small, st.integers(1, 5), st.integers(1, 5))
def test_time_join_is_its_definition(left: Any, right: Any, w1: int, w2: int) -> None:
    inputs = [node_of(stream(*rows, name=name, x=pa.int64())) for name, rows in (("l", left), ("r", right))]
    on = join_predicate("l.x = r.x", inputs[0].schema, inputs[1].schema)
    expected = [
        (min(lt, rt), lt, lx, rt, rx)
        for lt, lx in left
        for rt, rx in right
        if lx == rx and ((rt <= lt and lt - rt <= w2) or (lt <= rt and rt - lt <= w1))
    ]
    assert same(answer(Stream(nodes.TimeJoin(inputs[0], inputs[1], on, w1, w2))), expected)


@settings(max_examples=60, deadline=None)
@given(small, small, st.integers(1, 4), st.integers(1, 4))
def test_count_join_is_its_definition(left: Any, right: Any, n1: int, n2: int) -> None:
    walk = sorted([(t, 0, x) for t, x in left] + [(t, 1, x) for t, x in right])
    expected = []
    for i, (ts, side, x) in enumerate(walk):
        others = [w for w in walk[:i] if w[1] != side][-(n2 if side == 0 else n1) :]
        expected += [(ts, x, o[2]) if side == 0 else (ts, o[2], x) for o in others if o[2] <= x]
    streams = [stream(*rows, name=name, x=pa.int64()) for name, rows in (("l", left), ("r", right))]
    on = "case when l.ts > r.ts then r.x <= l.x else l.x <= r.x end"
    assert same(answer(streams[0].join(streams[1], on=on, last=(n1, n2)), "ts", "l_x", "r_x"), expected)


@settings(max_examples=40, deadline=None)
@given(st.lists(small, min_size=1, max_size=4))
def test_what_is_open_is_part_of_the_end_and_no_cut_matters(cut: Any) -> None:
    s = source(tuples((0, 0), x=pa.int64()), lateness=12)
    counted = s.aggregate(by=["x"], last=2, every=1, m="min(ts)")
    query = counted.union(s.aggregate(by=["x"], last=1, m="max(ts)"))
    epochs = [tuples(*rows, x=pa.int64()) for rows in cut]
    whole = Counter(answer(query, epochs=[pa.concat_tables(epochs)]))
    assert Counter(answer(query, epochs=epochs)) == whole
    assert not Counter(answer(query, epochs=epochs, end=False)) - whole
