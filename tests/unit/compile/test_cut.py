"""Queries in, subqueries out: what the papers say of their own queries."""

from __future__ import annotations

import pytest

from headrace.errors import QueryError

from . import queries


def test_figure_1_is_two_subqueries_by_phone_and_by_duration() -> None:
    assert (
        str(queries.figure_1().plan(slots=2))
        == """\
strategy subquery, 2 slots, 2 shuffles

subquery-1 <- calls, suspects
  router: hash of l.caller = r.phone; slots: 2
  join on l.caller = r.phone within 1 minute, 1 minute
  map minutes = (ended - began) // 60

subquery-2 <- subquery-1
  router: hash of minutes; slots: 2
  aggregate by minutes window 1 minute every 1 minute: count(*)"""
    )


def test_figure_2_is_three_subqueries() -> None:
    assert (
        str(queries.figure_2().plan(slots=4))
        == """\
strategy subquery, 4 slots, 2 shuffles

subquery-1 <- calls
  router: whole windows, as they come; slots: 4
  map caller, length = ended - began
  filter length > 0

subquery-2 <- subquery-1, suspects
  router: hash of l.caller = r.phone; slots: 4
  join on l.caller = r.phone within 1 minute, 1 minute
  filter length < 3600

subquery-3 <- subquery-2
  router: hash of reason; slots: 4
  aggregate by reason window 1 minute every 1 minute: count(*)
  map reason, twice = n * 2"""
    )


def test_every_operator_has_a_stage_when_asked() -> None:
    plan = queries.figure_2().plan(slots=4, strategy="operator")
    assert plan.shuffles == 6
    assert [str(s.router) for s in plan.subqueries] == [
        "hash of the whole tuple",
        "hash of the whole tuple",
        "hash of l.caller = r.phone",
        "hash of the whole tuple",
        "hash of reason",
        "hash of the whole tuple",
    ]


def test_a_union_is_part_of_the_merger() -> None:
    both = queries.calls("one").union(queries.calls("two")).aggregate(by=["caller"], window="60 seconds", n="count(*)")
    plan = both.plan(slots=2)
    assert [s.inputs for s in plan.subqueries] == [("one", "two")]
    assert plan.shuffles == 1


def test_a_join_on_any_predicate_is_a_grid() -> None:
    query = queries.calls().join(queries.suspects(), on="l.began < length(r.reason)", within="60 seconds")
    plan = query.plan(slots=9)
    assert plan.subqueries[0].router.kind == "grid" and plan.subqueries[0].router.shape == (3, 3, 3)


def test_an_unknown_strategy_says_which_there_are() -> None:
    with pytest.raises(QueryError, match="unknown strategy 'best'; the strategies are subquery, operator, query"):
        queries.figure_1().plan(strategy="best")
