"""The pass that chooses how tuples are routed to the slots of each subquery, and estimates the alternatives.

Operators list their routing options and routers estimate their cost (`headrace.routing`). The pass takes the option
whose busiest slot reads least: new tuples and the windows they are joined with.
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

Routers = Mapping[str, Router]  # operator -> router


def route(draft: PlanDraft) -> PlanDraft:
    """Return the draft with the plan that users see."""
    figures = draft.figures or Figures()
    expected = forecast(draft.physical, figures)
    return replace(
        draft, plan=describe(draft, expected, lambda o, slots: rank_routers(o, expected.loads[o.name], slots, figures))
    )


def with_routers_applied(plan: p.PhysicalPlan, routers: Routers) -> p.PhysicalPlan:
    """Return the plan with the state of some operators grouped for these routers."""
    return replace(
        plan, operators=tuple(_routed(o, routers[o.name]) if o.name in routers else o for o in plan.operators)
    )


def _routed(operator: Operator, router: Router) -> Operator:
    found = operator.routed(router)
    if found is None:
        raise QueryError(f"{operator.name} cannot be routed by {router}; it is routed by {operator.router}")
    return found


def rank_routers(operator: Operator, load: OperatorLoad, slots: int, figures: Figures) -> list[RoutingOption]:
    """Return the routing options of an operator's input, the best first."""
    options = [RoutingOption(router, router.cost(load, slots)) for router in operator.routing_options(slots, figures)]
    return _without_twins(sorted(options, key=_cost))


def _cost(option: RoutingOption) -> tuple[float, ...]:
    """Return the sort key of an option: what the busiest slot reads, then what is sent, both rounded to hide rounding
    errors.
    """
    return *(float(f"{n:.9g}") for n in (option.numbers.opened, option.numbers.sent)), *option.router.preference


def _without_twins(options: list[RoutingOption]) -> list[RoutingOption]:
    """Return the best option of each kind, and the extreme ones unless the best is the only hash."""
    best: dict[str, RoutingOption] = {}
    for option in options:
        best.setdefault(option.router.kind, option)
    hashed = options[0].router.adapts is Adaptation.PLACE and not options[0].router.extreme
    return [o for o in options if o is best[o.router.kind] or (o.router.extreme and not hashed)]
