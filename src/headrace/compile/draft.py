"""The record that each pass of the compiler takes and returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace import plan as p
from headrace.compile.prune import Held
from headrace.compile.subqueries import Plan
from headrace.errors import QueryError
from headrace.plan.figures import Figures
from headrace.query import nodes

STRATEGIES = ("subquery", "operator", "query")
EMPTY_PLAN = p.PhysicalPlan((), (), (), ())


@dataclass(frozen=True)
class PlanDraft:
    """A query and its options, and the results of the passes so far."""

    roots: Sequence[nodes.Node]
    ordered: Sequence[bool]
    strategy: str = "subquery"
    slots: int = 2
    figures: Figures | None = None
    costs: Mapping[str, float] = field(default_factory=dict)  # subquery -> cost given by the user
    confined: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # subquery -> (first slot, number of slots)
    held: Held = field(default_factory=dict)  # columns in existing state, by operator and input
    physical: p.PhysicalPlan = EMPTY_PLAN
    plan: Plan | None = None


def check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise QueryError(f"unknown strategy {strategy!r}; the strategies are {', '.join(STRATEGIES)}")
