"""A plan that fits its query is run as it says; one that does not is refused, saying where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace import sinks
from headrace.compile import CompiledQuery
from headrace.compile.bind import bind_plan
from headrace.compile.subqueries import Plan, Subquery
from headrace.difference import difference
from headrace.errors import QueryError
from headrace.reference import reference
from headrace.stream import Stream, node_of
from headrace.testing import run_locally

from . import queries
from .test_coalesce import NOT_SHARED, SHARED, left, right


def grid() -> Stream:
    return left().join(right(), on="l.x < r.y and l.b < r.d", within="5 seconds")


QUERIES = {**SHARED, **NOT_SHARED, "grid": grid}


def edited(plan: Plan, number: int, **changes: Any) -> Plan:
    subqueries: list[Subquery] = list(plan.subqueries)
    subqueries[number] = replace(subqueries[number], **changes)
    return replace(plan, subqueries=tuple(subqueries))


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("strategy", ["subquery", "operator", "query"])
def test_oracle_a_plan_from_a_file_gives_the_sequential_answer(name: str, strategy: str, tmp_path: Path) -> None:
    query = QUERIES[name]()
    plan = Plan.from_json(json.loads(json.dumps(query.plan(slots=4, strategy=strategy).to_json())))
    for number, subquery in enumerate(plan.subqueries):  # fewer slots, and another number for each
        if subquery.router.kind in ("hash", "content"):
            plan = edited(plan, number, slots=1 + number % 4)
        if subquery.router.kind == "grid":
            plan = edited(plan, number, slots=3, router=replace(subquery.router, shape=(1, 2), transposed=True))
    found = run_locally(query, tmp_path / "state", slots=4, plan=plan)
    assert difference(reference(query), found) is None


def refuse(plan: Plan, query: Stream, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        bind_plan(plan, CompiledQuery([node_of(query)]))


def test_a_plan_of_another_query_is_refused() -> None:
    refuse(
        queries.figure_1().plan(slots=2), queries.by_phone(), "the plan has 2 subqueries and 2 shuffles, this query 1"
    )
    refuse(queries.figure_1().plan(slots=2), queries.figure_8(), "subquery-1 does not fit: its operators are join")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": "auto"}, 'a plan fixes the number of slots; leave out slots="auto" or the plan'),
        ({"policy": {"every": 2}}, "a run that follows a plan does not adapt, so it takes no policy"),
    ],
)
def test_what_a_plan_leaves_no_choice_in_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    query = queries.figure_1()
    with pytest.raises(QueryError, match=message):
        query.start(sinks.memory(), checkpoint=tmp_path / "checkpoint", plan=query.plan(), **options)
    assert not any(tmp_path.iterdir())


def test_edits_beyond_the_rules_are_refused() -> None:
    query = queries.figure_1()
    plan = query.plan(slots=2)
    refuse(edited(plan, 1, slots=3), query, "subquery-2 has 3 slots; it needs at least 1 and the plan has 2")
    refuse(edited(plan, 1, slots=0), query, "subquery-2 has 0 slots")
    refuse(edited(plan, 0, inputs=("calls",)), query, "its inputs are calls, the query has calls; suspects")
    router = replace(plan.subqueries[0].router, columns=("l.callee = r.phone",))
    refuse(
        edited(plan, 0, router=router), query, "it is routed by hash of l.callee = r.phone, the query by hash of l.cal"
    )
    refuse(
        replace(plan, slots=0), query, "the plan: slots must be a whole number, at least 1 and at most 1024; found 0"
    )


def test_a_grid_needs_a_shape_that_uses_its_slots() -> None:
    plan = grid().plan(slots=4)
    for shape in [(), (1, 2), (0, 4), (2.0, 2)]:
        router = replace(plan.subqueries[0].router, shape=shape)
        refuse(edited(plan, 0, router=router), grid(), "must be whole numbers, at least 1 each, with the sum 4")
