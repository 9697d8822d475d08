"""A plan bound to a query: what does not fit is refused, saying where; what fits decides the layouts of a run.

Within its rules a plan may be edited by hand: the slots of a subquery (at least one, at most those of the plan), the
shape of a grid, the bounds of ranges. What a query computes cannot be edited: operators, routers' columns and inputs
must be those that the compiler gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from headrace import plan as p
from headrace.compile import check_strategy, compile_query, plan_of
from headrace.compile.describe import members
from headrace.compile.route import Bounds, by_ranges, can_be_ranged
from headrace.compile.subqueries import GRID, ONE, RANGES, Plan, Router, Subquery
from headrace.errors import QueryError
from headrace.limits import check_slots
from headrace.operators.base import Operator
from headrace.query import nodes
from headrace.routing.layout import Diagonal, Layout, Ranges, Rectangles

Layouts = Callable[[Operator, int, int], Layout | None]


def deploy(plan: Plan, roots: Sequence[nodes.Node], ordered: Sequence[bool]) -> tuple[p.Plan, Layouts]:
    """What the engine runs, and the layouts that this plan wants; refuses a plan that does not fit the query."""
    check_strategy(plan.strategy)
    check_slots(plan.slots, "the plan: slots")
    physical = compile_query(roots, ordered, plan.strategy)
    own = plan_of(roots, ordered, plan.strategy, plan.slots)
    if len(plan.subqueries) != len(own.subqueries) or plan.shuffles != own.shuffles:
        msg = (
            f"the plan has {len(plan.subqueries)} subqueries and {plan.shuffles} shuffles, this query"
            f" {len(own.subqueries)} and {own.shuffles}; it was made for another query, or edited beyond its rules"
        )
        raise QueryError(msg)
    pairs = _pairs(plan, physical)
    joins = {id(subquery): operator for subquery, found in pairs for operator in found if can_be_ranged(operator)}
    for given, expected in zip(plan.subqueries, own.subqueries, strict=True):
        _fits(given, expected, joins.get(id(given)), plan.slots)
    named = {operator.name: subquery for subquery, found in pairs for operator in found}
    bounds = {joins[id(s)].name: s.router.bounds for s, _ in pairs if s.router.kind == RANGES}
    return by_ranges(physical, bounds), lambda operator, groups, slots: _layout(
        named[operator.name], operator, groups, slots
    )


def with_bounds(plan: Plan, physical: p.Plan, bounds: Bounds) -> Plan:
    """The plan as it runs on a state whose band joins are grouped by these ranges."""
    named = {name: subquery for subquery in plan.subqueries for name in subquery.members}
    changed = {}
    for name, found in bounds.items():
        operator = physical.by_name[name]
        if named[name].router.kind != RANGES:
            router = Router(RANGES, operator.key_words, bounds=found)
            changed[named[name].name] = replace(named[name], router=router, rejected=())
    return replace(plan, subqueries=tuple(changed.get(s.name, s) for s in plan.subqueries))


def _pairs(plan: Plan, physical: p.Plan) -> list[tuple[Subquery, list[Operator]]]:
    """Subqueries with their operators; the stateless ones before the first have none."""
    found = members(physical)
    stateful = plan.subqueries[len(plan.subqueries) - len(found) :]
    return list(zip(stateful, found, strict=True))


def _fits(given: Subquery, expected: Subquery, band: Operator | None, slots: int) -> None:
    for what in ("name", "operators", "inputs"):
        mine, theirs = getattr(given, what), getattr(expected, what)
        if mine != theirs:
            raise QueryError(
                f"{expected.name} does not fit: its {what} are {_show(mine)}, the query has {_show(theirs)}"
            )
    if given.router.kind == RANGES and band is not None:
        _fits_ranges(given, band)
    elif (given.router.kind, given.router.columns) != (expected.router.kind, expected.router.columns):
        raise QueryError(f"{given.name} does not fit: it is routed by {given.router}, the query by {expected.router}")
    if given.slots < 1 or given.first < 0 or given.first + given.slots > slots:
        where = f" from slot {given.first} on" if given.first else ""
        raise QueryError(f"{given.name} has {given.slots} slots{where}; it needs at least 1 and the plan has {slots}")
    if given.router.kind == ONE and given.slots != 1:
        raise QueryError(f"{given.name} has {given.slots} slots, but it is all done by one; write 1")
    if given.router.kind == GRID:
        shape = given.router.shape
        if not shape or any(type(cells) is not int or cells < 1 for cells in shape) or sum(shape) != given.slots:
            msg = f"{given.name}: the shape {list(shape)!r} must be whole numbers, at least 1 each, with the sum {given.slots}"
            raise QueryError(msg)


def _fits_ranges(given: Subquery, band: Operator) -> None:
    if given.router.columns != band.key_words:
        columns, own = ", ".join(given.router.columns), ", ".join(band.key_words)
        raise QueryError(f"{given.name} does not fit: it is routed by ranges of {columns}, the query can be by {own}")
    bounds = given.router.bounds
    if not bounds or any(after <= before for before, after in pairwise(bounds)):
        raise QueryError(f"{given.name}: ranges need bounds that rise, at least one; found {list(bounds)!r:.100}")


def _show(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layout(subquery: Subquery, operator: Operator, groups: int, slots: int) -> Layout:
    if subquery.first + subquery.slots > slots:  # fewer slots were asked for than the plan was made for
        last = subquery.first + subquery.slots
        raise QueryError(f"{subquery.name} has slots up to {last}, this run has {slots}; give the run as many")
    first = subquery.first
    if subquery.router.kind == GRID:
        return Rectangles(groups, subquery.router.shape, subquery.router.transposed, first)
    if subquery.router.kind == RANGES:
        side = 0 if len(operator.groupings[0].columns) == 1 else 1
        return Ranges(len(subquery.router.bounds) + 1, subquery.slots, side, first)
    return Diagonal.even(groups, min(subquery.slots, groups), first)
