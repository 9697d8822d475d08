"""Random queries by plans that went through a file, with shares and edits within the rules: the sequential answer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from headrace.compile import STRATEGIES, compile_query
from headrace.compile.subqueries import Plan, Subquery
from headrace.plan.figures import Figures
from headrace.stream import Stream, node_of

from .driving import composition
from .strategies import make_case
from .test_local import check, seeds


def random_plans(seed: int) -> Callable[[Stream, int], Plan]:
    """Another plan in every life of a run: any strategy, costs drawn at random, slots and shapes edited."""
    r = random.Random(f"plans-{seed}")
    numbers = np.random.default_rng(seed)

    def choose(query: Stream, slots: int) -> Plan:
        strategy = r.choice(STRATEGIES)
        figures = random_figures(r, query, strategy) if r.random() < 0.6 else None
        plan = query.plan(slots=slots, strategy=strategy, figures=figures)
        plan = Plan.from_json(json.loads(json.dumps(plan.to_json())))
        if r.random() < 0.5:
            return plan
        return replace(plan, subqueries=tuple(edited(r, numbers, s, slots) for s in plan.subqueries))

    return choose


def random_figures(r: random.Random, query: Stream, strategy: str) -> Figures:
    operators = compile_query([node_of(query)], [False], strategy).operators
    return Figures(costs={operator.name: r.choice([0.1, 1.0, 50.0]) for operator in operators})


def edited(r: random.Random, numbers: np.random.Generator, subquery: Subquery, slots: int) -> Subquery:
    if subquery.router.kind not in ("hash", "content", "grid"):
        return subquery
    count = r.randint(1, slots)
    router = subquery.router
    if router.kind == "grid":
        router = replace(router, shape=composition(numbers, count), transposed=r.random() < 0.5)
    return replace(subquery, slots=count, first=r.randint(0, slots - count), router=router)


@seeds(60)
def test_any_query_by_plans_from_files(seed: int) -> None:
    check(make_case(f"plans-{seed}"), seed, epochs=4, reopen=0.4, plans=random_plans(seed))


@pytest.mark.thorough
def test_shares_and_edits_do_occur() -> None:
    """Else the test above would be about nothing new."""
    confined = shifted = 0
    for seed in range(90):
        plan = random_plans(seed)(make_case(f"plans-{seed}").query, 5)
        confined += any(s.slots < plan.slots for s in plan.subqueries if s.router.kind != "one")
        shifted += any(s.first for s in plan.subqueries)
    assert confined > 20 and shifted > 10
