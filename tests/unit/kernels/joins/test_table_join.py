"""Ranges with open ends, `l.x >= r.a and l.x < r.b`: found, looked up, and true where DuckDB says so."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columnar import duck
from headrace.compile import compile_query
from headrace.difference import difference
from headrace.expressions.predicates import join_predicate
from headrace.kernels.joins import pair_loop, table_join
from headrace.plan import TableStep
from headrace.stream import node_of
from headrace.testing import arrow_table, table_stream

BORDERS = [0.0, -0.0, 1.0, 2.0, -1.0, 1e16, 1e16 + 2, 5e-324]
ODD = [*BORDERS, None, float("nan"), float("inf"), -float("inf")]
WHOLE = [0, 1, 2, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), None]
SIGNS = [*itertools.product((">", ">="), ("<", "<="))]


def rows(kind: pa.DataType, values: list[Any], *names: str) -> Any:
    """Tables with these columns."""
    row = st.tuples(*[st.sampled_from(values)] * len(names))
    return st.lists(row, max_size=12).map(
        lambda found: pa.table({n: pa.array([each[i] for each in found], kind) for i, n in enumerate(names)})
    )


def step_of(left: pa.Table, right: pa.Table, on: str) -> tuple[TableStep, pa.Table]:
    tuples = left.add_column(0, "ts", pa.array([0] * left.num_rows, pa.timestamp("us", "UTC")))
    query = table_stream(tuples, name="a").join(arrow_table(right, name="t"), on=on)
    plan = compile_query([node_of(query)])
    return next(s for edge in plan.edges for s in edge.steps if isinstance(s, TableStep)), tuples


@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"),
    [(pa.float64(), BORDERS), (pa.float64(), ODD), (pa.int64(), WHOLE)],
    ids=["doubles", "odd", "whole"],
)
def test_beside_a_table_it_is_what_duckdb_says(
    monkeypatch: pytest.MonkeyPatch, signs: tuple[str, str], turned: bool, kind: pa.DataType, values: list[Any]
) -> None:
    """turned: the table has the points."""
    above, below = signs
    point, side = ("r.p", "l") if turned else ("l.p", "r")
    on = f"{point} {above} {side}.a and {point} {below} {side}.b"
    points, boxes = rows(kind, values, "p", "q"), rows(kind, values, "a", "b")
    number = iter(range(1 << 30))
    if signs == (">=", "<"):  # in a loop over what is near
        monkeypatch.setattr(pair_loop, "WORTH_COMPILING", 0)

    @settings(max_examples=15, derandomize=True, deadline=None)
    @given(boxes if turned else points, points if turned else boxes)
    def check(left: pa.Table, right: pa.Table) -> None:
        step, tuples = step_of(left, right, on)
        assert table_join.near_part(step.on) == table_join.BandCondition((point[0], "p"), side, ("a", "b"), 0.0)
        kept = table_join.indexed_table(step, right, f"{next(number)}")
        found = pa.concat_tables([step.schema.empty_table(), *table_join.join_table(tuples, kept)])
        expected = duck.run_select(f"SELECT l.*, r.* FROM l JOIN r ON {on}", {"l": left, "r": right})
        assert difference(expected, found.drop_columns(["ts", *[n for n in found.column_names if n == "l_ts"]])) is None

    check()


SCHEMA = pa.schema([("p", pa.float64()), ("q", pa.float64()), ("i", pa.int32()), ("s", pa.string())])


@pytest.mark.parametrize(
    "on",
    [
        "l.p >= r.p",  # one end
        "l.p >= r.p and l.p > r.q",  # the same end twice
        "l.p >= r.p and l.q < r.q",  # of two points
        "l.p >= r.p and r.q < l.p and l.p > 3",
        "l.p >= l.q and l.p < r.q",  # of one side
        "l.p >= r.p or l.p < r.q",
        "l.p >= r.i and l.p < r.q",  # brought to another type first
        "l.s >= r.s and l.s < r.s",
        "not (l.p >= r.p and l.p < r.q)",
    ],
)
def test_what_is_no_box(on: str) -> None:
    found = join_predicate(on, SCHEMA, SCHEMA)
    assert found.box is None and found.near is None


def test_an_end_that_is_computed_is_no_box_and_serves_the_search() -> None:
    found = join_predicate("l.p >= r.p + 1 and l.p < r.q", SCHEMA, SCHEMA)
    assert found.box is None and found.near is not None and found.near.interval == ("__near_0", "q")
    assert table_join.near_part(found) == found.near


@pytest.mark.parametrize(
    ("on", "point"),
    [
        ("l.p >= r.p and l.p < r.q", ("l", "p")),
        ("r.q > l.p and r.p <= l.p and l.i = 3", ("l", "p")),
        ("l.i < r.i and l.p < r.q and l.p >= r.p", ("l", "p")),
        ("L.P >= r.p and l.p < R.q", ("l", "p")),
    ],
)
def test_what_is_one(on: str, point: tuple[str, str]) -> None:
    found = join_predicate(on, SCHEMA, SCHEMA)
    assert found.box is not None and found.near is not None
    assert (found.box.point, found.box.interval) == (point, ("p", "q"))
    assert found.band is None, "states lie by hash or content as ever"
