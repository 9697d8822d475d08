"""Which operators share their slots, and which do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.compile import STRATEGIES
from headrace.difference import difference
from headrace.operators import Operator
from headrace.operators.joins import JoinOperator
from headrace.query.nodes import named_sources
from headrace.reference import reference
from headrace.routing import Layout, Rectangles
from headrace.stream import Stream, node_of
from headrace.testing import LocalRun, run_locally, table_stream

from . import queries


def test_a_join_by_phone_and_a_group_by_phone_are_one_subquery() -> None:
    plan = queries.by_phone().plan(slots=2)
    assert (
        str(plan)
        == """\
strategy subquery, 2 slots, 1 shuffle

subquery-1 <- calls, suspects
  router: hash of l.caller = r.phone; slots: 2
  join on l.caller = r.phone within 1 minute, 1 minute
  map number = phone, reason
  aggregate by reason, number window 1 minute every 1 minute: count(*)"""
    )
    assert queries.by_phone().plan(slots=2, strategy="query").shuffles == 2


def test_figure_8_shares_slots_where_it_can() -> None:
    plan = queries.figure_8().plan(slots=2)
    assert plan.shuffles == 2  # the count by caller and the join by caller; then by reason
    assert [len(s.operators) for s in plan.subqueries] == [4, 1]  # with the condition on n, part of the join


# --- what is shared gives the same answer -----------------------------------------------------------------------------


def table(seed: int, rows: int = 80) -> pa.Table:
    r = np.random.default_rng(seed)
    return pa.table(
        {
            "ts": pa.array(np.sort(r.integers(0, 60, rows)) * 1_000_000).cast(TS_TYPE),
            "a": pa.array(r.integers(0, 5, rows), pa.int32(), mask=r.random(rows) < 0.1),
            "b": pa.array(r.integers(0, 3, rows), pa.int64()),
            "x": pa.array(r.integers(0, 9, rows) / 2.0),
        }
    )


def left() -> Stream:
    return table_stream(table(1), name="left")


def right() -> Stream:
    return table_stream(table(2).rename_columns(["ts", "c", "d", "y"]), name="right")


def joined() -> Stream:
    return left().join(right(), on="l.a = r.c", within="5 seconds")


SHARED = {
    "join, group by its key": lambda: joined().aggregate(by=["c"], window="8 seconds", n="count(*)"),
    "join, group by more than its key": lambda: joined().aggregate(by=["b", "a"], window="8 seconds", n="sum(x)"),
    "join, renamed, filtered, counted": lambda: (
        joined().map(key="c", x="x").filter("x > 1").aggregate(by=["key"], last=3, n="sum(x)")
    ),
    "join, join by the same key": lambda: joined().join(
        right_again(), on="l.a = r.c2 and l.x < r.y2", within="3 seconds"
    ),
    "join on two keys, then on one more": lambda: (
        left()
        .join(right(), on="l.a = r.c and l.b = r.d", within="5 seconds")
        .aggregate(by=["d", "x", "a"], window="8 seconds", n="count(*)")
    ),
    "group, group": lambda: (
        left()
        .aggregate(by=["a"], window="4 seconds", n="count(*)")
        .aggregate(by=["a", "n"], window="9 seconds", m="max(n)")
    ),
    "group, self-join": lambda: self_joined(),
    "join, tuples kept, ordered": lambda: joined().aggregate(by=["a"], window="8 seconds", all="list(x)"),
    "three in a row": lambda: (
        joined()
        .aggregate(by=["a"], window="8 seconds", n="count(*)")
        .join(right_again(), on="l.a = r.c2", within="9 seconds")
        .aggregate(by=["a"], window="20 seconds", m="max(n)")
    ),
}
NOT_SHARED = {
    "a union of two joins, each with slots of its own": lambda: (
        joined().map("a", "x").union(joined_again().map("a", "x")).aggregate(by=["a"], window="8 seconds", n="count(*)")
    ),
    "group by something computed": lambda: (
        joined().map(a="a + 1").aggregate(by=["a"], window="8 seconds", n="count(*)")
    ),
    "group by another column": lambda: joined().aggregate(by=["b"], window="8 seconds", n="count(*)"),
    "group by a part of the key": lambda: (
        left()
        .join(right(), on="l.a = r.c and l.b = r.d", within="5 seconds")
        .aggregate(by=["a"], window="8 seconds", n="count(*)")
    ),
    "join by another column": lambda: joined().join(right_again(), on="l.b = r.d2", within="3 seconds"),
    "a union of what lies and what does not": lambda: (
        joined()
        .map("a")
        .union(left_again().aggregate(by=["b", "a"], window="3 seconds", n="count(*)").map("a"))
        .aggregate(by=["a"], window="8 seconds", n="count(*)")
    ),
}


def right_again() -> Stream:
    return table_stream(table(3).rename_columns(["ts", "c2", "d2", "y2"]), name="again")


def joined_again() -> Stream:
    return left_again().join(right_again(), on="l.a = r.c2", within="2 seconds")


def left_again() -> Stream:
    return table_stream(table(4), name="left again")


def self_joined() -> Stream:
    counted = left().aggregate(by=["a"], window="4 seconds", n="count(*)")
    return counted.join(counted, on="l.a = r.a and l.n < r.n", within="12 seconds")


@pytest.mark.parametrize("name", [*SHARED, *NOT_SHARED])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_oracle_shared_slots_give_the_sequential_answer(name: str, strategy: str, tmp_path: Path) -> None:
    query = {**SHARED, **NOT_SHARED}[name]()
    expected = reference(query)
    assert expected.num_rows > 0
    for slots in (1, 3):
        found = run_locally(query, tmp_path / str(slots), slots=slots, strategy=strategy)
        assert difference(expected, found) is None


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("transposed", [False, True])
def test_oracle_a_leader_whose_slots_are_rectangles(name: str, transposed: bool, tmp_path: Path) -> None:
    """Such a leader reads a group in several slots; who follows it must find it in one."""

    def layouts(operator: Operator, groups: int, slots: int) -> Layout | None:
        return Rectangles(groups, (1, 2), transposed) if isinstance(operator, JoinOperator) else None

    query = SHARED[name]()
    tables = {source: s.origin.table() for source, s in named_sources(node_of(query)).items()}
    run = LocalRun(query, tmp_path / "state", slots=3, layouts=layouts)
    try:
        for start in range(0, 80, 20):  # over several epochs: what is new is in one slot anyway, what is old is not
            run.epoch({source: table.slice(start, 20) for source, table in tables.items()})
        run.end()
        assert difference(reference(query), run.results()) is None
    finally:
        run.close()


@pytest.mark.parametrize("name", SHARED)
def test_what_lies_alike_crosses_one_exchange(name: str) -> None:
    assert SHARED[name]().plan(slots=2).shuffles < SHARED[name]().plan(slots=2, strategy="query").shuffles


@pytest.mark.parametrize("name", NOT_SHARED)
def test_what_does_not_lie_alike_is_exchanged(name: str) -> None:
    assert NOT_SHARED[name]().plan(slots=2).shuffles == NOT_SHARED[name]().plan(slots=2, strategy="query").shuffles


@pytest.mark.parametrize("name", ["2023", "1", "a + b", "true", "a.b", 'q"uote'])
def test_a_column_that_is_called_like_an_expression_is_none(name: str, tmp_path: Path) -> None:
    """The same number for everybody is another grouping than the column of that name."""
    rows = table(5).rename_columns(["ts", name, "b", "x"])
    counted = table_stream(rows, name="s").aggregate(by=[name], window="9 seconds", n="count(*)")
    text = name if name in ("2023", "1", "true") else "n * 0"
    query = counted.map("n", y=text).aggregate(by=["y"], window="9 seconds", m="sum(n)")
    assert query.plan(slots=3).shuffles == 2
    assert difference(reference(query), run_locally(query, tmp_path / "state", slots=3)) is None
    quoted = '"' + name.replace('"', '""') + '"'
    renamed = counted.map("n", y=quoted).aggregate(by=["y"], window="9 seconds", m="sum(n)")
    assert renamed.plan(slots=3).shuffles == 1
    assert difference(reference(renamed), run_locally(renamed, tmp_path / "renamed", slots=3)) is None
