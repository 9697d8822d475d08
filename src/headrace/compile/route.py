"""How tuples find the slots of each subquery, with what every alternative would have cost.

Operators know the ways that they can be routed, ways know what they cost (`headrace.routing`). The one is taken whose
busiest slot reads least: new tuples and the windows they meet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace import plan as p
from headrace.compile.describe import describe
from headrace.compile.draft import PlanDraft
from headrace.compile.subqueries import RoutingOption
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.plan.figures import Figures, OperatorLoad, forecast
from headrace.routing import Adaptation, Router

Routers = Mapping[str, Router]  # by the name of an operator


def route(draft: PlanDraft) -> PlanDraft:
    """The plan as a user sees it."""
    figures = draft.figures or Figures()
    expected = forecast(draft.physical, figures)
    return replace(
        draft, plan=describe(draft, expected, lambda o, slots: rank_routers(o, expected.loads[o.name], slots, figures))
    )


def with_routers_applied(plan: p.PhysicalPlan, routers: Routers) -> p.PhysicalPlan:
    """The plan with the state of some operators in the groups that these routers want."""
    return replace(
        plan, operators=tuple(_routed(o, routers[o.name]) if o.name in routers else o for o in plan.operators)
    )


def _routed(operator: Operator, router: Router) -> Operator:
    found = operator.routed(router)
    if found is None:
        raise QueryError(f"{operator.name} cannot be routed by {router}; it is by {operator.router}")
    return found


def rank_routers(operator: Operator, load: OperatorLoad, slots: int, figures: Figures) -> list[RoutingOption]:
    """The ways to route an operator's input, the best first."""
    options = [RoutingOption(router, router.cost(load, slots)) for router in operator.routing_options(slots, figures)]
    return _without_twins(sorted(options, key=_cost))


def _cost(option: RoutingOption) -> tuple[float, ...]:
    """What the busiest slot reads, then what is sent; a difference in the last digits is none."""
    return *(float(f"{n:.9g}") for n in (option.numbers.opened, option.numbers.sent)), *option.router.preference


def _without_twins(options: list[RoutingOption]) -> list[RoutingOption]:
    """The best of every kind, and the extremes, between which the others lie; beside a hash one of a kind says enough."""
    best: dict[str, RoutingOption] = {}
    for option in options:
        best.setdefault(option.router.kind, option)
    hashed = options[0].router.adapts is Adaptation.PLACE
    return [o for o in options if o is best[o.router.kind] or (o.router.extreme and not hashed)]
