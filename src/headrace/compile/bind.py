"""Validation of a plan against a query, and the layouts that the plan requires.

A user may edit a plan within these limits: the slots of a subquery (from one up to those of the plan), the shape of a
grid, the bounds of ranges. What a query computes cannot be edited: operators, inputs and the routers' columns must be
those that the compiler chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace import plan as p
from headrace.compile import CompiledQuery, Held, check_strategy
from headrace.compile.describe import subquery_members
from headrace.compile.route import with_routers_applied
from headrace.compile.subqueries import Plan, Subquery
from headrace.errors import QueryError
from headrace.operators.base import Operator
from headrace.routing import Layout, Router
from headrace.support.limits import check_slots
from headrace.support.terminal_text import printable

LayoutChooser = Callable[[Operator, int, int], Layout | None]  # (operator, groups, slots)


def bind_plan(plan: Plan, query: CompiledQuery, held: Held | None = None) -> tuple[p.PhysicalPlan, LayoutChooser]:
    """Return the physical plan and the function that returns the plan's layouts. Raise if the plan does not fit the
    query.

    held: the columns that the operators' state has (see `CompiledQuery.physical`).
    """
    check_strategy(plan.strategy)
    check_slots(plan.slots, "the plan: slots")
    physical = query.physical(plan.strategy, held=held)
    own = query.plan(plan.strategy, plan.slots)
    if len(plan.subqueries) != len(own.subqueries) or plan.shuffles != own.shuffles:
        msg = (
            f"the plan has {len(plan.subqueries)} subqueries and {plan.shuffles} shuffles, this query"
            f" {len(own.subqueries)} and {own.shuffles}; it was made for another query, or edited in ways that are not allowed"
        )
        raise QueryError(msg)
    pairs = _pairs(plan, physical)
    operators = {id(subquery): found for subquery, found in pairs}
    for given, expected in zip(plan.subqueries, own.subqueries, strict=True):
        _fits(given, expected, operators.get(id(given), []), plan.slots)
    named = {operator.name: subquery for subquery, found in pairs for operator in found}
    chosen = other_routers((o, subquery.router) for subquery, found in pairs for o in found)
    return with_routers_applied(physical, chosen), lambda operator, groups, slots: _layout(
        named[operator.name], operator, groups, slots
    )


def other_routers(wanted: Iterable[tuple[Operator, Router]]) -> dict[str, Router]:
    """Return, by operator, the wanted routers that are not the operators' usual ones."""
    return {o.name: router for o, router in wanted if router.way != o.router.way and o.routed(router)}


def _pairs(plan: Plan, physical: p.PhysicalPlan) -> list[tuple[Subquery, list[Operator]]]:
    """Pair subqueries with their operators. A stateless first subquery has none and is left out."""
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
        where = f" starting at slot {given.first}" if given.first else ""
        raise QueryError(f"{given.name} has {given.slots} slots{where}; it needs at least 1 and the plan has {slots}")
    if wrong := given.router.wrong(given.slots):
        raise QueryError(f"{given.name}: {wrong}")


def _show(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layout(subquery: Subquery, operator: Operator, groups: int, slots: int) -> Layout:
    if subquery.first + subquery.slots > slots:  # this run has fewer slots than the plan
        last = subquery.first + subquery.slots
        raise QueryError(
            f"{subquery.name} has slots up to {last}, but this run has {slots}; start it with slots={last} or more"
        )
    # the operator prepares input for another operator and has its own routing
    if subquery.router.way != operator.router.way:
        return operator.router.layout(groups, slots)
    return subquery.router.layout(groups, subquery.slots, subquery.first)
