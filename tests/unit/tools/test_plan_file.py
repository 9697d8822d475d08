"""A plan can be saved, read back and compared; what is no plan is refused, saying where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.compile.subqueries import Plan
from headrace.errors import QueryError
from tests.unit.compile import queries


@pytest.mark.parametrize("make", [queries.figure_1, queries.figure_2, queries.figure_8, queries.by_phone])
@pytest.mark.parametrize("strategy", ["subquery", "operator", "query"])
def test_a_plan_comes_back_as_it_was(make: Any, strategy: str) -> None:
    plan = make().plan(slots=5, strategy=strategy)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def broken(change: Any) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(queries.figure_1().plan(slots=2).to_json()))
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("slots"), "the plan lacks the entry 'slots'"),
        (lambda d: d.update(format=99), "format 99, but this version reads 3"),
        (lambda d: d.update(colour="red"), "unknown entries: colour"),
        (lambda d: d.update(slots=True), "slots must be int; found True"),
        (
            lambda d: d["subqueries"][1].update(slots=0),
            r"subquery 2 \(subquery-2\): slots must be a whole number, at least 1",
        ),
        (lambda d: d["subqueries"][0].update(cost="much"), "cost must be a number"),
        (
            lambda d: d["subqueries"][0]["router"].update(kind="magic"),
            "subquery 1 .*: router.kind should be one of windows, hash, grid, ranges, one, content, substreams, time, part-hash, found 'magic'",
        ),
        (lambda d: d["subqueries"][0]["router"].update(columns=[1]), r"router.columns\[0\] should be a str, found 1"),
        (
            lambda d: d["subqueries"][0].update(
                router={"kind": "ranges", "columns": ["l.x"], "points": 0, "bounds": [1, float("nan")]}
            ),
            "router.bounds should be increasing numbers",
        ),
        (lambda d: d["subqueries"][0]["router"].update(shape=[2]), "router should be an object with the fields"),
        (lambda d: d["subqueries"][0].update(inputs=[None]), "inputs must be a list of texts"),
        (lambda d: d["subqueries"][0].update(cost=float("inf")), "cost must be a number"),
        (lambda d: d["subqueries"].append(7), "subquery 3 must be an object; found 7"),
    ],
)
def test_what_is_no_plan_is_refused(change: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        Plan.from_json(broken(change))
