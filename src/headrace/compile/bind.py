"""A plan bound to a query: what does not fit is refused, saying where; what fits decides the layouts of a run.

Within its rules a plan may be edited by hand: the slots of a subquery (at least one, at most those of the plan), the
shape of a grid, the bounds of ranges. What a query computes cannot be edited: operators, routers' columns and inputs
must be those that the compiler gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace import plan as p
from headrace.compile import CompiledQuery, Held, check_strategy
from headrace.compile.describe import subquery_members
from headrace.compile.route import Routers, with_routers_applied
from headrace.compile.subqueries import Plan, Subquery
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.routing import Layout
from headrace.support.limits import check_slots
from headrace.support.terminal_text import printable

LayoutChooser = Callable[[Operator, int, int], Layout | None]  # (operator, groups, slots)


def bind_plan(plan: Plan, query: CompiledQuery, held: Held | None = None) -> tuple[p.PhysicalPlan, LayoutChooser]:
    """Return what the engine runs and the layouts that the plan asks for. A plan that does not fit the query is refused.

    held: the columns that the state of operators has (`CompiledQuery.physical`).
    """
    check_strategy(plan.strategy)
    check_slots(plan.slots, "the plan: slots")
    physical = query.physical(plan.strategy, held=held)
    own = query.plan(plan.strategy, plan.slots)
    if len(plan.subqueries) != len(own.subqueries) or plan.shuffles != own.shuffles:
        msg = (
            f"the plan has {len(plan.subqueries)} subqueries and {plan.shuffles} shuffles, this query"
            f" {len(own.subqueries)} and {own.shuffles}; it was made for another query, or edited beyond its rules"
        )
        raise QueryError(msg)
    pairs = _pairs(plan, physical)
    operators = {id(subquery): found for subquery, found in pairs}
    for given, expected in zip(plan.subqueries, own.subqueries, strict=True):
        _fits(given, expected, operators.get(id(given), []), plan.slots)
    named = {operator.name: subquery for subquery, found in pairs for operator in found}
    wanted = [(o, subquery.router) for subquery, found in pairs if subquery.router.chosen for o in found]
    chosen = {operator.name: router for operator, router in wanted if operator.routed(router)}
    return with_routers_applied(physical, chosen), lambda operator, groups, slots: _layout(
        named[operator.name], operator, groups, slots
    )


def with_routers(plan: Plan, routers: Routers) -> Plan:
    """The plan as it runs on a state that was grouped by these routers, once and for good."""
    named = {name: subquery for subquery in plan.subqueries for name in subquery.members}
    changed = {
        named[name].name: replace(named[name], router=router, rejected=())
        for name, router in routers.items()
        if named[name].router.way != router.way
    }
    return replace(plan, subqueries=tuple(changed.get(s.name, s) for s in plan.subqueries))


def _pairs(plan: Plan, physical: p.PhysicalPlan) -> list[tuple[Subquery, list[Operator]]]:
    """Subqueries with their operators; the stateless ones before the first have none."""
    found = subquery_members(physical)
    stateful = plan.subqueries[len(plan.subqueries) - len(found) :]
    return list(zip(stateful, found, strict=True))


def _fits(given: Subquery, expected: Subquery, operators: Sequence[Operator], slots: int) -> None:
    for what in ("name", "operators", "inputs"):
        mine, theirs = getattr(given, what), getattr(expected, what)
        if mine != theirs:
            raise QueryError(
                f"{expected.name} does not fit: its {what} are {printable(_show(mine))}, the query has {printable(_show(theirs))}"
            )
    if given.router.way != expected.router.way and not any(o.routed(given.router) for o in operators):
        raise QueryError(f"{given.name} does not fit: it is routed by {given.router}, the query by {expected.router}")
    if given.slots < 1 or given.first < 0 or given.first + given.slots > slots:
        where = f" from slot {given.first} on" if given.first else ""
        raise QueryError(f"{given.name} has {given.slots} slots{where}; it needs at least 1 and the plan has {slots}")
    if wrong := given.router.wrong(given.slots):
        raise QueryError(f"{given.name}: {wrong}")


def _show(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layout(subquery: Subquery, operator: Operator, groups: int, slots: int) -> Layout:
    if subquery.first + subquery.slots > slots:  # fewer slots were asked for than the plan was made for
        last = subquery.first + subquery.slots
        raise QueryError(f"{subquery.name} has slots up to {last}, this run has {slots}; give the run as many")
    if subquery.router.way != operator.router.way:  # it prepares the input of another, in its own way
        return operator.router.layout(groups, slots)
    return subquery.router.layout(groups, subquery.slots, subquery.first)
