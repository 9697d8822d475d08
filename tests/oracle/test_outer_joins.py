"""Outer joins over time windows: against plain SQL over the whole input, and in random queries."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.compile import compile_query
from headrace.difference import difference
from headrace.errors import QueryError
from headrace.kernels.joins import pairs, theta_join
from headrace.operators import joins, outer_join
from headrace.reference import reference
from headrace.state import merge_planning
from headrace.stream import Stream, node_of
from headrace.support.event_time import FOREVER
from headrace.task import outlet
from headrace.testing import run_locally, table_stream

from .driving import Driven, drive, driven, in_two_epochs, random_layouts
from .strategies import SECOND, STATELESS, Table, cut, make_case, make_table
from .test_distinct import as_table
from .test_local import KEYS, check, odd_keys, same, seeds

HOWS = ("left", "right", "full")

# Equality alone, with a rest, with conditions on one side, and without: each way through the kernels.
ON = [
    "l.k = r.k",
    "l.k = r.k and l.x < r.x",
    "l.k = r.k and l.x % 2 = 0 and r.x > 5",
    "l.k = r.k and l.s = r.s",
    "l.x <= r.x and r.x < l.x + 3",
    "(l.x + 2 * r.x) % 7 = 1",
    "abs(l.x - r.x) < 2 or l.x is null",
    "l.x % 9 = 0 and l.k > 1",
    "r.k = 1 and l.f > r.f",
    "false",
]


def in_sql(how: str, on: str, w1: int, w2: int, tables: dict[str, pa.Table]) -> pa.Table:
    """The outer join of SQL over all there is."""
    names = tables["l"].column_names
    columns = [f"{side}.{name} AS {side}_{name}" for side in "lr" for name in names]
    sql = f"""
        SELECT least(l.ts, r.ts) AS ts, {", ".join(columns)} FROM l {how} JOIN r
        ON ({on}) AND epoch_us(r.ts) BETWEEN epoch_us(l.ts) - {w2} AND epoch_us(l.ts) + {w1}
    """
    return duck.run_select(sql, tables)


@seeds(2)
@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("how", HOWS)
def test_it_is_the_outer_join_of_sql(seed: int, how: str, on: str) -> None:
    r = random.Random(f"{seed}-{how}-{on}")
    tables = {
        name: make_table(r.getrandbits(32), 120, odd=True, span=90 * SECOND, grain=SECOND, lateness=6 * SECOND)
        for name in "lr"
    }
    l, r_ = (table_stream(t, lateness="6 seconds", name=n) for n, t in tables.items())
    w1, w2 = r.choice([(5, 5), (2, 7), (7, 1), (1, 1)])
    query = l.join(r_, on=on, within=(f"{w1} seconds", f"{w2} seconds"), how=how)
    expected = in_sql(how, on, w1 * SECOND, w2 * SECOND, tables).cast(query.schema)
    assert sum(expected[name].null_count for name in ("l_ts", "r_ts")) > 5
    same(expected, reference(query), query)
    arrived = cut({n: Table(n, t, "6 seconds") for n, t in tables.items()}, r.choice([1, 3, 6]), seed)
    layouts = random_layouts(seed) if seed % 2 else None
    found = drive(query, arrived, seed, change_slots=0.5, layouts=layouts)
    same(expected, found, query)


# --- in random queries -------------------------------------------------------------------------------------------------

AMONG = (*STATELESS, "outer_join", "outer_join", "time_join", "distinct", "time_aggregate", "count_aggregate", "asof")


@seeds(16)
def test_outer_joins_among_other_operators(seed: int) -> None:
    check(make_case(f"outer-{seed}", AMONG), seed, change_slots=0.3)


@seeds(8)
def test_outer_joins_of_tuples_that_come_too_late_and_without_an_end(seed: int) -> None:
    case = make_case(f"late-outer-{seed}", ("outer_join", "filter"), depth=(1, 2), disorder=9 * SECOND)
    check(case, seed, epochs=2 + seed % 5, reopen=0.5, end=seed % 2 == 0)


@seeds(12)
def test_outer_joins_under_a_new_layout_at_every_epoch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are met in any slot, tables are cut into small pieces, runs of blocks are merged by twos."""
    if seed % 2:
        for module, name, value in SMALL:
            monkeypatch.setattr(module, name, value)
    case = make_case(f"outer-layout-{seed}", ("outer_join", "outer_join", "filter"), depth=(1, 1, 2))
    check(case, seed, epochs=6, reopen=0.1, change_slots=0.8, layouts=random_layouts(seed))


SMALL: list[tuple[Any, str, int]] = [
    (merge_planning, "FAN_IN", 2),
    (outlet, "MOST_TUPLES_TOGETHER", 5),
    (outlet, "LARGEST_BODY", 300),
    (joins, "FEW_ROWS", 0),
    (theta_join, "FEWEST_SLICE_PAIRS", 20),
    (pairs, "MOST_PAIRS", 7),
]


@seeds(4)
@pytest.mark.parametrize("how", HOWS)
def test_a_hot_key_in_several_slots(seed: int, how: str) -> None:
    """A tuple is alone only if it is in every slot that has a part of its group; they change at every epoch."""
    r = random.Random(f"hot-{seed}")
    tables = {n: make_table(r.getrandbits(32), 120, small=True, span=60 * SECOND) for n in "ab"}
    a, b = (table_stream(rows, lateness="1 minute", name=n) for n, rows in tables.items())
    query = a.join(b, on=r.choice(["l.k = r.k", "l.k = r.k and l.x + 20 < r.x"]), within="2 seconds", how=how)
    arrived = cut({n: Table(n, rows, "1 minute") for n, rows in tables.items()}, 4, seed)
    layouts = random_layouts(seed, grids=0.0)
    found = drive(query, arrived, seed, reopen=0.2, change_slots=0.5, groups=3, layouts=layouts)
    expected = reference(query, epochs=arrived)
    assert sum(expected[name].null_count for name in ("l_ts", "r_ts")) > 3
    same(expected, found, query)


@seeds(6)
def test_in_sequence_and_on_every_substream_alone(seed: int) -> None:
    rows = make_table(seed, 150, lateness=3 * SECOND)
    s = table_stream(rows, lateness="3 seconds", name="a")
    how, on = HOWS[seed % 3], ("l.k = r.k", "l.x < r.x - 40")[seed % 2]
    query = s.split(4, route="abs(x) % 4", broadcast="k = 3").each(
        lambda t: t.filter("x > 0").join(t.filter("x <= 20"), on=on, within="1 second", how=how)
    )
    arrived = cut({"a": Table("a", rows, "")}, 4, seed)
    found = drive(query, arrived, seed, change_slots=0.5, ordered=True)
    same(reference(query), found)
    assert found["ts"].to_pylist() == sorted(found["ts"].to_pylist())
    assert found["l_ts"].null_count + found["r_ts"].null_count


# --- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("by", [["f"], ["g"], ["k"], ["k", "f"]])
def test_null_has_no_partner_and_nan_and_negative_zero_their_like(by: list[str], how: str) -> None:
    rows = odd_keys()
    tables = {"l": rows, "r": rows.slice(3, 6)}
    l, r = (table_stream(t, name=n) for n, t in tables.items())
    on = " AND ".join(f"l.{name} = r.{name}" for name in by)
    query = l.join(r, on=on, within="3 seconds", how=how)
    found = in_two_epochs(query, tables, 3)
    same(reference(query), found)
    same(in_sql(how, on, 3 * SECOND, 3 * SECOND, tables).cast(query.schema), found)


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(kind: str) -> None:
    column = KEYS[kind]
    times = pa.array(range(0, len(column) * SECOND, SECOND), pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "v": column, "x": pa.array(range(len(column)), pa.int64())})
    s = table_stream(rows, name="a")
    query = s.join(s.filter("x < 6"), on="l.v = r.v", within="4 seconds", how="full")
    same(reference(query), in_two_epochs(query, {"a": rows}, 3))


def test_tuples_that_are_alike_come_as_often_as_they_were_there() -> None:
    """The same tuple twice in a stream, and a stream united with itself: the same block twice."""
    rows = as_table([(SECOND, "a", 1), (SECOND, "a", 1), (SECOND, "b", 1), (9 * SECOND, None, 1)])
    a, b = table_stream(rows, name="a"), table_stream(rows.slice(2), name="b")
    query = a.union(a).join(b, on="l.k = r.k", within="1 second", how="left")
    found = in_two_epochs(query, {"a": rows, "b": rows.slice(2)}, 2)
    assert sorted(found["l_k"].to_pylist(), key=str) == [None, None, "a", "a", "a", "a", "b", "b"]
    same(reference(query), found)


# --- time and state ----------------------------------------------------------------------------------------------------


def told(run: Driven) -> list[tuple[int | None, int | None]]:
    """Seconds of the two tuples of every result so far, sorted."""
    table = run.table()
    columns = [table[name].cast(pa.int64()).to_pylist() for name in ("l_ts", "r_ts")]
    seconds = [tuple(None if ts is None else ts // SECOND for ts in pair) for pair in zip(*columns, strict=True)]
    return sorted(seconds, key=str)


def one_at(second: float, key: str = "a") -> pa.Table:
    return as_table([(int(second * SECOND), key, 0)])


def test_it_comes_as_soon_as_none_can_come() -> None:
    """Left tuples wait for W(R) > l.ts + W1, whatever the time of the left; right ones for W(L) > r.ts + W2."""
    a, b = (table_stream(one_at(0), name=n) for n in "ab")
    query = a.join(b, on="l.k = r.k", within=("5 seconds", "2 seconds"), how="full")
    with driven(query, 2) as run:
        run.epoch({"a": one_at(10)})
        run.epoch({"a": one_at(100)})
        run.epoch({"b": one_at(15, "z")})
        assert told(run) == [(None, 15)]  # the left is at 100 already; a partner of its 10 may still come at 15
        run.epoch({"b": one_at(15.000001, "z")})
        assert told(run) == [(10, None), (None, 15), (None, 15)]
        run.epoch({"b": one_at(105, "a")})
        assert told(run) == [(10, None), (100, 105), (None, 15), (None, 15)]
        run.epoch({"a": one_at(108)})
        run.epoch({"b": one_at(113, "z")})
        assert len(told(run)) == 4
        run.epoch(final=True)
        assert told(run) == [(10, None), (100, 105), (108, None), (None, 113), (None, 15), (None, 15)]


def test_one_that_comes_when_its_time_is_past_comes_at_once() -> None:
    a, b = (table_stream(one_at(0), name=n) for n in "ab")
    with driven(a.join(b, on="l.k = r.k", within="5 seconds", how="left"), 2) as run:
        run.epoch({"b": pa.concat_tables([one_at(2), one_at(50)])})
        run.epoch({"a": pa.concat_tables([one_at(3), one_at(3, "z")])})
        assert told(run) == [(3, 2), (3, None)]


def held(run: Driven) -> dict[str, list[int]]:
    return {n: [sum(b.rows for b in side) for side in state.inputs] for n, state in run.last.operators.items()}


def test_nothing_is_held_longer_than_by_an_inner_join() -> None:
    a, b = (table_stream(one_at(0), name=n) for n in "ab")
    outer, inner = (a.join(b, on="l.k = r.k", within=("5 seconds", "2 seconds"), how=h) for h in ("full", "inner"))
    with driven(outer, 2) as run, driven(inner, 2) as other:
        for second in range(12):
            tables = {"a": one_at(second), "b": one_at(second, "ab"[second % 2])}
            run.epoch(tables)
            other.epoch(tables)
            found = held(run)
            assert found["join-1"] == held(other)["join-1"]
            assert [found["alone-1"][0], found["alone-2"][0]] == found["join-1"]
        run.epoch(final=True)
        assert held(run) == {name: [0, 0] for name in found}


def test_its_parts_share_blocks_and_merges() -> None:
    a, b = (table_stream(one_at(0), name=n) for n in "ab")
    with driven(a.join(b, on="l.k = r.k", within="1 hour", how="left"), 2) as run:
        for second in range(20):
            run.epoch({"a": one_at(second), "b": one_at(second)})
        states = run.last.operators
        shared = [{block.name for block in states[name].inputs[0]} for name in ("join-1", "alone-1")]
        assert shared[0] == shared[1] and len(shared[0]) < 10


def test_a_tuple_that_meets_in_every_epoch_is_not_marked_ever_more() -> None:
    a, b = (table_stream(one_at(0), name=n) for n in "ab")
    with driven(a.join(b, on="l.k = r.k", within="1 hour", how="left"), 1) as run:
        run.epoch({"a": one_at(0)})
        for second in range(40):
            run.epoch({"b": one_at(second)})
        assert held(run)["alone-1"][1] < 2 * merge_planning.FAN_IN
        run.epoch(final=True)
        assert run.table().num_rows == 40


# --- how it is asked for and shown -------------------------------------------------------------------------------------


def two() -> tuple[Stream, Stream]:
    return table_stream(as_table([(0, "a", 0)]), name="a"), table_stream(as_table([(0, "a", 0)]), name="b")


@pytest.mark.parametrize("how", HOWS)
def test_it_says_what_it_is(how: str) -> None:
    a, b = two()
    query = a.join(b, on="l.k = r.k", within="1 minute", how=how)
    words = f"{how} join on l.k = r.k within 1 minute"
    assert words in repr(query)
    assert words in query.explain(slots=4)
    assert query.schema.equals(a.join(b, on="true", within="1 minute").schema)
    assert len(query.plan(slots=4).subqueries) == 1


def test_the_manual_finds_orders_without_payment() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "USING.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", manual, re.S) if "unpaid" in b]
    at = [(minute * 60 * SECOND, number) for minute, number in ((0, 1), (0, 2), (1, 3), (2, 4))]
    orders = pa.table({"ts": pa.array([ts for ts, _ in at], pa.timestamp("us", "UTC")), "id": [n for _, n in at]})
    paid = [(10 * 60 * SECOND, 1), (10 * 60 * SECOND + 1, 2), (int(0.995 * 60 * SECOND), 3), (3 * 60 * SECOND, 9)]
    times = pa.array([ts for ts, _ in paid], pa.timestamp("us", "UTC"))
    payments = pa.table({"ts": times, "order_id": [n for _, n in paid]}).sort_by("ts")
    names = {"orders": table_stream(orders, name="orders"), "payments": table_stream(payments, name="payments")}
    exec(compile(block, "USING.md", "exec"), names)
    found = drive(names["unpaid"], [{"orders": orders, "payments": payments}], 1)
    assert sorted(found["id"].to_pylist()) == [2, 4]  # a microsecond too late, and never


def test_conditions_of_a_kept_side_stay_in_the_join() -> None:
    a, b = two()
    for how, pushed in (("inner", "ab"), ("left", "b"), ("right", "a"), ("full", "")):
        query = a.join(b, on="l.k = r.k and l.v > 1 and r.v > 2", within="1 second", how=how)
        edges = [edge for edge in compile_query([node_of(query)]).edges if edge.steps]
        assert "".join(sorted({edge.producer for edge in edges})) == pushed, how


def test_best_effort_is_refused() -> None:
    a, b = two()
    query = a.join(b, on="true", within="1 second", how="right")
    with pytest.raises(QueryError, match=r"best effort may miss a partner, and right join on true within 1 second"):
        with driven(query, 1, best_effort=True):
            pass


# --- broken on purpose -------------------------------------------------------------------------------------------------

Alone, Outer = outer_join.UnmatchedOperator, outer_join.OuterJoinOperator


def forgets_marks_of_earlier_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Alone, "keep_from", lambda self, inputs, ranks: [inputs[1], FOREVER])


def lets_tuples_go_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outer, "watermark_of", lambda self, output, inputs: min(inputs) if output else self.watermark(inputs))


def holds_tuples_too_long(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outer, "watermark_of", lambda self, output, inputs: self.watermark(inputs))


def says_it_again(patch: pytest.MonkeyPatch) -> None:
    real = outer_join._between
    patch.setattr(outer_join, "_between", lambda tables, low, high: real(tables, None, high))


def leaves_out_those_that_came_late(patch: pytest.MonkeyPatch) -> None:
    real = Alone.run

    def run(self: Any, slot: Any) -> Any:
        low = slot.watermarks_before[1]
        between = outer_join._between
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(outer_join, "_between", lambda tables, _, high: between(tables, low, high))
            yield from list(real(self, slot))

    patch.setattr(Alone, "run", run)


def drops_null_keys(patch: pytest.MonkeyPatch) -> None:
    real = outer_join.content_groupings
    kept = outer_join.replace

    def replaced(record: Any, **changed: Any) -> Any:
        changed.pop("drop_null", None)
        return kept(record, **changed)

    patch.setattr(outer_join, "content_groupings", real)
    patch.setattr(outer_join, "replace", replaced)


def numbers_repeat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outlet, "tuple_numbers", lambda epoch, task, first, rows: np.arange(rows) % 5)


CANARIES = [
    forgets_marks_of_earlier_epochs,
    lets_tuples_go_too_early,
    holds_tuples_too_long,
    says_it_again,
    leaves_out_those_that_came_late,
    drops_null_keys,
    numbers_repeat,
]


@pytest.mark.thorough
@pytest.mark.parametrize("canary", CANARIES)
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        case = make_case(f"canary-{seed}", ("outer_join",), depth=(1,))
        arrived = cut(case.tables, 5, seed)
        expected = reference(case.query, epochs=arrived, end=False)
        return difference(expected, drive(case.query, arrived, seed, end=False)) is not None

    assert any(wrong(seed) for seed in range(80))


def test_tuples_that_come_by_two_ways_are_not_taken_for_each_other(tmp_path: Path) -> None:
    """Branches of one stream, united again: each tuple is one."""
    rows = make_table(1, 80)
    small, _, large = table_stream(rows, name="a").case("x < 10", "x < 30")
    other = table_stream(rows.slice(0, 20), name="b")
    query = small.union(large).join(other, on="l.k = r.k and l.x > r.x", within="1 second", how="left")
    same(reference(query), run_locally(query, tmp_path / "state", slots=2))
