"""A query on its way through the passes: what every pass takes and gives."""

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
    """What was asked for, and what the passes so far made of it."""

    roots: Sequence[nodes.Node]
    ordered: Sequence[bool]
    strategy: str = "subquery"
    slots: int = 2
    figures: Figures | None = None
    costs: Mapping[str, float] = field(default_factory=dict)  # given by the user, by subquery
    confined: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # subquery: its first slot, how many
    held: Held = field(default_factory=dict)  # what a state that is there holds, by operator and input
    physical: p.PhysicalPlan = EMPTY_PLAN
    plan: Plan | None = None


def check_strategy(strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise QueryError(f"unknown strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
