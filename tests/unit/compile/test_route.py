"""Queries and rates in, routes out: which way is taken, and what the others would have cost."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.compile.subqueries import Subquery
from headrace.plan.figures import Figures
from headrace.stream import Stream
from headrace.testing import table_stream

from . import queries

SCHEMA = pa.schema([("ts", TS_TYPE), ("x", pa.float64()), ("a", pa.float64()), ("n", pa.int64()), ("m", pa.int64())])


def left() -> Stream:
    return table_stream(SCHEMA.empty_table(), name="left")


def right() -> Stream:
    return table_stream(SCHEMA.empty_table(), name="right")


def routes(subquery: Subquery) -> str:
    """The ways, the one taken first, as a table: sent/s, held, read by a slot, compared by a slot/s."""
    ways = [(subquery.router, subquery.numbers), *((o.router, o.numbers) for o in subquery.rejected)]
    return "\n".join(f"{r} | {n.sent:.0f} | {n.state:.0f} | {n.opened:.0f} | {n.compared:.0f}" for r, n in ways)


def test_an_equality_is_hashed() -> None:
    figures = Figures(rates={"calls": 2000, "suspects": 10}, matching={"join-1": 0.001})
    plan = queries.figure_1().plan(slots=60, figures=figures)
    assert (
        routes(plan.subqueries[0])
        == """\
hash of l.caller = r.phone | 2010 | 120600 | 2044 | 40
grid of 60 x 1 cells, left by rows | 2600 | 120600 | 2643 | 40000
one slot, in sequence | 2010 | 120600 | 122610 | 2400000"""
    )


def test_a_join_on_any_predicate_is_a_grid_that_fits_the_rates() -> None:
    query = left().join(right(), on="l.x < r.x", within="10 seconds")
    even = query.plan(slots=4, figures=Figures(rates={"left": 100, "right": 100}))
    assert (
        routes(even.subqueries[0])
        == """\
grid of 2 + 2 cells, left by rows | 400 | 2000 | 1100 | 50000
grid of 4 cells, left by rows | 500 | 2000 | 1375 | 50000
grid of 4 cells, right by rows | 500 | 2000 | 1375 | 50000
one slot, in sequence | 200 | 2000 | 2200 | 200000"""
    )
    uneven = query.plan(slots=4, figures=Figures(rates={"left": 1000, "right": 1}))
    assert str(uneven.subqueries[0].router) == "grid of 4 x 1 cells, left by rows"


def test_a_band_is_routed_by_ranges_once_a_sample_says_where_values_lie() -> None:
    query = left().join(right(), on="abs(l.x - r.x) <= 2", within="10 seconds")
    assert query.plan(slots=9).subqueries[0].router.kind == "grid"
    figures = Figures(rates={"left": 1000, "right": 1000}, bounds={"join-1": tuple(range(1, 64))}, reach={"join-1": 2})
    assert (
        routes(query.plan(slots=9, figures=figures).subqueries[0])
        == """\
64 ranges of r.x | 2250 | 20000 | 3094 | 390625
grid of 3 + 3 + 3 cells, left by rows | 6000 | 20000 | 7333 | 2222222
grid of 9 cells, left by rows | 10000 | 20000 | 12222 | 2222222
grid of 9 cells, right by rows | 10000 | 20000 | 12222 | 2222222
one slot, in sequence | 2000 | 20000 | 22000 | 20000000"""
    )


@pytest.mark.parametrize(
    ("on", "kind"),
    [
        ("abs(l.x - r.x) <= 0", "ranges"),
        ("l.x between r.x and r.a", "ranges"),
        ("r.n between l.n and l.m and l.x > r.x", "ranges"),
        ("r.ts between l.ts and l.ts", "ranges"),
        ("abs(l.n - r.n) <= 2", "grid"),  # the difference of whole numbers can overflow, and must on any slots
        ("l.x between r.n and r.m", "grid"),  # types differ: DuckDB compares them in a way of its own
        ("l.x <= r.x", "grid"),
        ("abs(l.x - r.x) <= 2 and 10 / (l.n - r.n) > 1", "grid"),  # a condition that can fail
        ("abs(l.x - r.x) <= 2 and l.n = r.n", "hash"),
    ],
)
def test_which_predicates_can_be_routed_by_ranges(on: str, kind: str) -> None:
    figures = Figures(bounds={"join-1": tuple(range(1, 64))})
    plan = left().join(right(), on=on, within="10 seconds").plan(slots=9, figures=figures)
    assert plan.subqueries[0].router.kind == kind


def test_ranges_that_hold_everything_are_rejected() -> None:
    """A band so wide, or values so alike, that a slot would read more than in a grid."""
    query = left().join(right(), on="abs(l.x - r.x) <= 2", within="10 seconds")
    wide = Figures(bounds={"join-1": tuple(range(1, 64))}, reach={"join-1": 60})
    alike = Figures(bounds={"join-1": (5.0,)})
    for figures in (wide, alike):
        (only,) = query.plan(slots=16, figures=figures).subqueries
        assert only.router.kind == "grid" and "ranges" in {o.router.kind for o in only.rejected}


def test_operators_that_share_slots_are_weighed_together() -> None:
    figures = Figures(rates={"calls": 1000, "suspects": 100}, matching={"join-1": 1e-4}, partials={"aggregate-1": 0.5})
    (only,) = queries.by_phone().plan(slots=4, figures=figures).subqueries
    assert only.numbers.sent == 1100  # what the join hands to the aggregate stays in its slot
    assert only.numbers.state > 66_000
    assert all(option.numbers.state == only.numbers.state for option in only.rejected)
