"""What a slot does with its tuples, and what happens when an expression fails on data."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.columnar.types import TS_TYPE
from headrace.compile import compile_query
from headrace.difference import difference
from headrace.errors import DataError, SourceError
from headrace.kernels.joins import theta_join
from headrace.kernels.stateless.steps import in_sequence, order_rows, run_step
from headrace.kernels.windows import aggregate, order
from headrace.kernels.windows.time_windows import RegularWindows
from headrace.operators import CountJoinOperator, TimeJoinOperator
from headrace.operators.joins import JoinOperator
from headrace.reference import reference
from headrace.stream import Stream, node_of
from headrace.testing import run_locally, table_stream

SECOND = 1_000_000
BIGGEST = 2**63 - 1


def rows(ts: list[int], **columns: Any) -> pa.Table:
    times = pa.array([t * SECOND for t in ts], pa.int64()).cast(TS_TYPE)
    return pa.table({"ts": times, **columns})


def stream(table: pa.Table, name: str = "a") -> Stream:
    return table_stream(table, name=name)


def run(query: Stream, slots: int = 2) -> pa.Table:
    with tempfile.TemporaryDirectory() as folder:
        return run_locally(query, Path(folder) / "state", slots=slots)


# --- expressions that fail on data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("few_pairs", [theta_join.FEWEST_SLICE_PAIRS, 1])
@pytest.mark.parametrize("key", ["", "l.k = r.k and "])
def test_a_cast_that_fails_only_outside_the_window_does_not_fail_the_join(
    key: str, few_pairs: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every text that is no number is more than the window away from every tuple that it would be compared with."""
    monkeypatch.setattr(theta_join, "FEWEST_SLICE_PAIRS", few_pairs)
    left = rows([0, 1, 100, 101], s=["1", "2", "bad", "worse"], k=[1, 1, 1, 1])
    right = rows([0, 1, 2, 50], n=pa.array([1, 2, 3, 4], pa.int64()), k=[1, 1, 1, 1])
    query = stream(left, "a").join(stream(right, "b"), on=f"{key}CAST(l.s AS BIGINT) = r.n", within="5 seconds")
    assert difference(reference(query), run(query, slots)) is None
    assert run(query, slots).num_rows == 2


def test_a_cast_that_fails_only_outside_a_count_window_does_not_fail_the_join() -> None:
    left = rows([0, 10, 11], s=["bad", "1", "2"])
    right = rows([20, 21], n=pa.array([1, 2], pa.int64()))
    query = stream(left, "a").join(stream(right, "b"), on="CAST(l.s AS BIGINT) = r.n", last=(2, 2))
    assert difference(reference(query), run(query)) is None
    assert run(query).num_rows == 2


def test_a_cast_that_fails_on_a_pair_of_the_window_names_expression_and_tuples() -> None:
    left = rows([0, 1, 2], s=["1", "2", "bad"])
    right = rows([0, 1, 2], n=pa.array([11, 12, 13], pa.int64()))
    query = stream(left, "a").join(stream(right, "b"), on="CAST(l.s AS BIGINT) = r.n", within="1 second")
    for engine in (run, reference):
        with pytest.raises(DataError, match=r"CAST\(l.s AS BIGINT\) = r.n") as caught:
            engine(query)
        assert "bad" in str(caught.value)


FAILING = {
    "a cast": ("CAST(s AS INTEGER)", "s=bad"),
    "an overflow": (f"x + {BIGGEST}", "x=7"),
    "a product": (f"x * {BIGGEST}", "x=7"),
    "a division by zero": ("x // (x - 7)", "x=7"),
    "a remainder by zero": ("x % (x - 7)", "x=7"),
}


@pytest.mark.parametrize("what", FAILING)
def test_an_expression_that_fails_names_itself_and_the_tuple(what: str) -> None:
    text, shown = FAILING[what]
    table = rows([0, 1, 2, 3], s=["1", "2", "bad", "3"], x=pa.array([0, -1, 7, -2], pa.int64()))
    queries = [stream(table).map("s", "x", y=text)]
    if what not in ("an overflow", "a product"):  # DuckDB moves constants across a comparison, exactly
        queries.append(stream(table).filter(f"({text}) > 0"))
    for query in queries:
        for engine in (run, reference):
            with pytest.raises(DataError) as caught:
                engine(query)
            assert text.split("(")[0] in str(caught.value)
            assert shown in str(caught.value), caught.value


def test_an_aggregate_that_fails_names_its_expression() -> None:
    query = stream(rows([0, 1], s=["1", "bad"])).aggregate(window="1 day", t="sum(CAST(s AS INTEGER))")
    with pytest.raises(DataError, match=r"sum\(CAST\(s AS INTEGER\)\)"):
        run(query)


def test_a_later_step_never_sees_what_an_earlier_one_dropped() -> None:
    table = rows([0, 1, 2], s=["1", "bad", "3"])
    query = stream(table).filter("s <> 'bad'").map(n="CAST(s AS INTEGER)")
    assert sorted(run(query)["n"].to_pylist()) == [1, 3]


def test_a_case_is_asked_only_about_tuples_that_no_earlier_predicate_took() -> None:
    table = rows([0, 1, 2], s=["1", "bad", "3"])
    _, threes, others = stream(table).case("s = 'bad'", "CAST(s AS INTEGER) = 3")
    assert run(threes)["s"].to_pylist() == ["3"]
    assert run(others)["s"].to_pylist() == ["1"]


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [{"window": "1 day"}, {"last": 3}])
def test_a_sum_of_whole_numbers_widens(window: dict[str, Any]) -> None:
    table = rows([0, 1, 2], x=pa.array([BIGGEST, BIGGEST, 1], pa.int64()))
    query = stream(table).aggregate(t="sum(x)", a="avg(x)", **window)
    found = run(query)
    assert found["t"].to_pylist() == [Decimal(2 * BIGGEST + 1)]
    assert found["a"].to_pylist() == pytest.approx([(2 * BIGGEST + 1) / 3])
    assert difference(reference(query), found) is None


def test_a_sum_widens_over_panes_of_several_epochs(tmp_path: Path) -> None:
    from headrace.testing import LocalRun

    table = rows([0, 5, 10, 15], x=pa.array([BIGGEST] * 4, pa.int64()))
    query = stream(table).aggregate(window="1 day", every="6 hours", t="sum(x)", n="count(*)")
    local = LocalRun(query, tmp_path / "state", slots=2)
    for start in range(4):
        local.epoch(table.slice(start, 1))
    local.end()
    found = local.results()
    local.close()
    assert difference(reference(query), found) is None
    assert set(found["t"].to_pylist()) == {Decimal(4 * BIGGEST)}


def test_arithmetic_on_aggregates_does_not_wrap() -> None:
    table = rows([0, 1], x=pa.array([BIGGEST, BIGGEST], pa.int64()))
    with pytest.raises(DataError, match="Overflow"):
        run(stream(table).aggregate(window="1 day", t="max(x) + min(x)"))


# --- joins along the strip -------------------------------------------------------------------------------------------


def together(operator: JoinOperator, found: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([operator.schema.empty_table(), *found])


def operator_of(query: Stream) -> JoinOperator:
    plan = compile_query([node_of(query)])
    return next(o for o in plan.operators if isinstance(o, JoinOperator))


@pytest.mark.parametrize("few_pairs", [1, 7, 50, 10**9])
@pytest.mark.parametrize("on", ["l.x % 3 = r.x % 3", "l.x = r.x", "l.x <= r.x and r.x < l.x + 3", "true"])
@pytest.mark.parametrize("spread", [40, 3, 1])  # less than a window long: not worth cutting
def test_slices_hold_every_pair_once(on: str, few_pairs: int, spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theta_join, "FEWEST_SLICE_PAIRS", few_pairs)
    r = np.random.default_rng(few_pairs)
    left = rows(sorted(r.integers(20, 20 + spread, 50).tolist()), x=r.integers(0, 9, 50))
    right = rows(r.integers(20 - spread % 5, 20 + spread, 35).tolist(), x=r.integers(0, 9, 35))
    query = stream(left, "a").join(stream(right, "b"), on=on, within=("3 seconds", "1 second"))
    operator = operator_of(query)
    assert isinstance(operator, TimeJoinOperator)
    assert difference(reference(query), together(operator, theta_join.theta_join(operator, left, right))) is None


def test_windows_of_a_time_join_are_closed_at_both_ends() -> None:
    """-1, 0 and +1 microsecond around either edge."""
    w1, w2 = 3 * SECOND, 2 * SECOND
    offsets = [-w2 - 1, -w2, -w2 + 1, -1, 0, 1, w1 - 1, w1, w1 + 1]
    left = pa.table({"ts": pa.array([10 * SECOND], pa.int64()).cast(TS_TYPE), "x": [0]})
    right = pa.table({"ts": pa.array([10 * SECOND + o for o in offsets], pa.int64()).cast(TS_TYPE), "y": offsets})
    query = stream(left, "a").join(stream(right, "b"), on="true", within=("3 seconds", "2 seconds"))
    assert sorted(run(query)["y"].to_pylist()) == offsets[1:-1]


def test_empty_sides_give_an_empty_result() -> None:
    left, right = rows([0], x=[1]), rows([], x=pa.array([], pa.int64()))
    operator = operator_of(stream(left, "a").join(stream(right, "b"), on="l.x = r.x", within="1 second"))
    assert together(operator, theta_join.theta_join(operator, left, right)).num_rows == 0
    assert together(operator, theta_join.theta_join(operator, left, right)).schema.equals(operator.schema)


# --- order and ranks -------------------------------------------------------------------------------------------------


def test_sequence_is_time_then_columns_nulls_last_nan_above_numbers_text_by_bytes() -> None:
    table = pa.table(
        {
            "ts": pa.array([1, 0, 0, 0, 0, 0, 0], pa.int64()).cast(TS_TYPE),
            "f": pa.array([0.0, None, float("nan"), float("inf"), -1.0, -1.0, -1.0]),
            "s": pa.array(["a", "a", "a", "a", None, "b", "B"]),
        }
    )
    found = in_sequence(table, table.column_names)
    shown = [
        (f if f is None else str(f), s) for f, s in zip(found["f"].to_pylist(), found["s"].to_pylist(), strict=True)
    ]
    assert shown == [
        ("-1.0", "B"),
        ("-1.0", "b"),
        ("-1.0", None),
        ("inf", "a"),
        ("nan", "a"),
        (None, "a"),
        ("0.0", "a"),
    ]


ORDERED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.float64(), [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"), 5e-324]),
    (pa.float32(), [0.0, -0.0, 2.5, float("nan"), float("-inf")]),
    (pa.int8(), [-128, 127, 0]),
    (pa.int64(), [BIGGEST, -BIGGEST - 1, 0, 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.bool_(), [True, False]),
    (
        pa.string(),
        ["", "a", "B", "b", "a\0", "a\0b", "ab", "é", "z", "\U0001f600", "\uffff", "abcdefghijklmnop", "abcdefghijkl"],
    ),
    (pa.binary(), [b"", b"\0", b"\x00\x01", b"\xff", b"a", b"\x7f" * 20]),
    (pa.date32(), [0, -1, 20_000]),
    (pa.time64("us"), [0, 1, 86_399_999_999]),
    (TS_TYPE, [0, -1, 10**15]),
    (pa.timestamp("us"), [0, -1, 10**15]),
    (pa.decimal32(5, 2), [Decimal("1.25"), Decimal("-999.99"), Decimal("0.00")]),
    (pa.decimal64(12, 3), [Decimal("1.250"), Decimal("-1.000")]),
    (pa.decimal128(30, 1), [Decimal("1.2"), Decimal("1e27"), Decimal("-1e27")]),
]


def _rank(value: Any) -> tuple[Any, ...]:
    """Where a value stands: nulls last, NaN above the numbers, text by its bytes."""
    if value is None:
        return (2,)
    if value != value:
        return (1,)
    return (0, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("seed", range(8))
def test_oracle_rows_are_in_the_order_that_plain_python_gives(seed: int) -> None:
    """Every type that is not nested, in several chunks, under names that look like paths."""
    r = random.Random(seed)
    chosen = r.sample(ORDERED, 3)
    names = [".a", "[0]", 'b"c']
    drawn = [[r.choice([None, *values]) for _, values in chosen] for _ in range(60)]
    columns = [pa.array(column, kind) for column, (kind, _) in zip(zip(*drawn, strict=True), chosen, strict=True)]
    table = pa.table([*columns, pa.array(range(60))], names=[*names, "row"])
    pieces = pa.concat_tables([table.slice(0, 17), table.slice(17, 0), table.slice(17)])
    found = order_rows(pieces, names)
    assert found.schema == table.schema
    expected = sorted(drawn, key=lambda row: [_rank(value) for value in row])
    assert repr([drawn[row] for row in found["row"].to_pylist()]) == repr(expected)  # rows that are equal: as they came


def test_nested_columns_are_ordered_too() -> None:
    table = pa.table({"l": pa.array([[2], None, [1, 5], [1]]), "n": [1, 2, 3, 4]})
    assert order_rows(table, ["l"])["n"].to_pylist() == [4, 3, 1, 2]


def test_release_leaves_what_stands_at_the_bound() -> None:
    released, waiting = order.release_in_sequence(rows([3, 1, 2], x=[3, 1, 2]), 2 * SECOND)
    assert released["x"].to_pylist() == [1]
    assert sorted(waiting["x"].to_pylist()) == [2, 3]


def test_ranks_walk_both_streams_left_first_at_equal_times() -> None:
    left, right = order.rank_tuples(rows([0, 1, 1], x=[0, 0, 0]), rows([1, 2], x=[0, 0]), (10, 20))
    assert left["__rank"].to_pylist() == [10, 11, 12]
    assert left["__other"].to_pylist() == [20, 20, 20]
    assert right["__rank"].to_pylist() == [20, 21]
    assert right["__other"].to_pylist() == [13, 13]


def test_count_joins_have_two_bands() -> None:
    table = rows([0, 1], x=[1, 2])
    operator = operator_of(stream(table).join(stream(table, "b"), on="true", last=(3, 5)))
    assert isinstance(operator, CountJoinOperator)
    assert {strip.moving for strip in operator.strips} == {0, 1}


# --- windows of aggregates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [-11, -10, -1, 0, 1, 9, 10, 11])
@pytest.mark.parametrize(("window", "every", "offset"), [(10, 10, 0), (10, 4, 0), (10, 4, 3), (7, 3, 1), (3, 1, 0)])
def test_every_window_of_a_tuple_closes_exactly_once(position: int, window: int, every: int, offset: int) -> None:
    """Whatever steps the watermark takes, before 1970 too."""
    windows = RegularWindows(window, every, offset)
    table = pa.table({"ts": pa.array([position], pa.int64()).cast(TS_TYPE)})
    starts = [k * every + offset for k in range(-40, 40)]
    expected = [start for start in starts if start <= position < start + window]
    for steps in ([-60, 60], [-60, -8, 0, 3, 4, 60], list(range(-60, 61))):
        closed = [
            start
            for before, after in pairwise(steps)
            for part in aggregate.in_closing_windows(table, np.array([position]), windows, before, after)
            for start in part["__start"].to_pylist()
        ]
        assert sorted(closed) == expected


# --- windows that lie far apart, and many that lie together ----------------------------------------------------------


@pytest.mark.parametrize("function", ["count(*)", "list(i)"])
@pytest.mark.parametrize(
    ("years", "window"), [(2_000, "1 millisecond"), (150, "1 millisecond"), (56, "0.001 milliseconds")]
)
def test_two_tuples_far_apart_and_a_short_window(years: int, window: str, function: str, tmp_path: Path) -> None:
    table = pa.table({"ts": pa.array([0, -years * 365 * 86_400_000_000], TS_TYPE), "i": [3, 4]})
    query = stream(table, "a").aggregate(window=window, v=function)
    assert difference(reference(query), run_locally(query, tmp_path / "state")) is None


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_expanded_some_at_a_time_and_each_once(seed: int) -> None:
    r = np.random.default_rng(seed)
    first = r.integers(-5, 40, 30) * (1 if seed % 2 else 10**9)
    last = first + r.integers(-2, 8, 30)
    most = int(r.integers(1, 40))
    ranges = list(aggregate._some_windows(first, last, most))
    copies = [(row, int(k)) for row in range(30) for k in range(first[row], last[row] + 1)]
    found = []
    for low, high in ranges:
        inside = [copy for copy in copies if low <= copy[1] <= high]
        assert inside and (len(inside) <= most or low == high)
        found += inside
    assert sorted(found) == copies


# --- structs in structs, of which DuckDB reads no part -----------------------------------------------------------------


NESTED = {
    "join on anything": lambda s: s.join(s, on="l.id + 1 = r.id", within="1 hour"),
    "join by key": lambda s: s.join(s, on="l.k = r.k and l.id < r.id", within="5 seconds"),
    "list of it": lambda s: s.aggregate(by=["k"], window="10 seconds", v="list(e)"),
    "list of another": lambda s: s.aggregate(by=["k"], window="10 seconds", v="list(id)"),
    "median of a field": lambda s: s.aggregate(by=["k"], window="10 seconds", v="median(e.b.c)"),
    "group by it": lambda s: s.aggregate(by=["e"], window="10 seconds", n="count(*)"),
    "count windows": lambda s: s.aggregate(by=["k"], last=3, every=2, v="first(e)"),
    "count join": lambda s: s.join(s, on="l.e.b.c < r.e.b.c", last=3),
    "map": lambda s: s.map("e", c="e.b.c").filter("c % 3 = 0"),
}


@pytest.mark.parametrize("what", NESTED)
def test_a_struct_in_a_struct(what: str, tmp_path: Path) -> None:
    values = [None if i % 11 == 0 else {"b": None if i % 7 == 0 else {"c": i, "d": [str(i)]}} for i in range(60)]
    table = rows([i // 2 for i in range(60)], id=range(60), k=[i % 5 for i in range(60)], e=values)
    query = NESTED[what](stream(table, "a"))
    expected = reference(query)
    assert expected.num_rows
    for slots in (2, 5):
        assert difference(expected, run_locally(query, tmp_path / str(slots), slots=slots)) is None


def test_an_error_on_a_tuple_with_a_struct_in_a_struct_names_it(tmp_path: Path) -> None:
    table = rows([0, 1], id=[0, 7], e=[{"b": {"c": 1}}, {"b": {"c": 2}}])
    with pytest.raises(DataError, match=r"'bad = 1 // id' failed.*id=0"):
        run_locally(stream(table, "a").map(bad="1 // id"), tmp_path / "state", slots=2)


def test_text_that_is_none_is_refused_and_harms_nobody_else(tmp_path: Path) -> None:
    offsets, data = np.array([0, 3], np.int32), b"a\xffb"
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    bad = stream(pa.table({"ts": pa.array([0], TS_TYPE), "x": text}), "a").map(y="upper(x)")
    good = stream(rows([0], id=[1]), "a").map(j="id + 1")
    for number in range(2):
        with pytest.raises(SourceError, match="'x' of a contains text that is not UTF-8"):
            run_locally(bad, tmp_path / f"bad{number}")
        with pytest.raises(SourceError):
            reference(bad)
        assert run_locally(good, tmp_path / f"good{number}").num_rows == 1


def test_a_connection_that_duckdb_gave_up_is_not_used_again() -> None:
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 3], np.int32)), pa.py_buffer(b"a\xffb")]
    )
    with pytest.raises(duckdb.Error):
        duck.run_select("SELECT upper(x) FROM t", {"t": pa.table({"x": text})})
    assert duck.run_select("SELECT n FROM t", {"t": pa.table({"n": [1]})}).num_rows == 1


# --- maps ----------------------------------------------------------------------------------------------------------------


def test_columns_that_a_map_passes_on_are_not_computed(monkeypatch: pytest.MonkeyPatch):
    """What DuckDB is asked for is the rest; nested columns go through it, since it refuses some of their values."""
    table = pa.table({"ts": pa.array([1, 2], TS_TYPE), "K k": ["a", None], "n": [1, 2], "s": [{"x": 1}, {"x": 2}]})
    asked = []
    run = duck.run_select
    monkeypatch.setattr(duck, "run_select", lambda sql, tables: asked.append(sql) or run(sql, tables))

    def mapped(**columns: str) -> pa.Table:
        made = table_stream(table, name="s").map(**columns)
        step = compile_query([node_of(made)]).edges[0].steps[0]
        asked.clear()
        found, failed = run_step(table, step, keep=False)
        assert failed is None and found.schema.equals(made.schema)
        return found

    assert mapped(k='"k k"', m="N", t="ts").to_pydict() == {
        "ts": table["ts"].to_pylist(), "k": ["a", None], "m": [1, 2], "t": table["ts"].to_pylist()
    }  # fmt: skip
    assert asked == []
    assert mapped(n="n + 1", m="n")["n"].to_pylist() == [2, 3]
    assert asked == ['SELECT ((n + 1)) AS "n" FROM __tuples']
    assert mapped(s="s", x="s.x").to_pydict()["x"] == [1, 2]
    assert len(asked) == 1
