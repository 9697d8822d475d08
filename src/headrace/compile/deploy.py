"""A plan bound to a query: what does not fit is refused, saying where; what fits decides the layouts of a run.

Within its rules a plan may be edited by hand: the slots of a subquery (at least one, at most those of the plan) and the
shape of a grid. What a query computes cannot be edited: operators, routers' columns and inputs must be those that the
compiler gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.compile import check_strategy, compile_query
from headrace.compile import plan as p
from headrace.compile.subqueries import GRID, ONE, Plan, Subquery, describe, members
from headrace.errors import QueryError
from headrace.query import nodes
from headrace.routing.layout import Diagonal, Layout, Rectangles

Layouts = Callable[[p.Operator, int, int], Layout | None]


def deploy(plan: Plan, roots: Sequence[nodes.Node], ordered: Sequence[bool]) -> tuple[p.Plan, Layouts]:
    """What the engine runs, and the layouts that this plan wants; refuses a plan that does not fit the query."""
    check_strategy(plan.strategy)
    if plan.slots < 1:
        raise QueryError(f"the plan has {plan.slots} slots; it needs at least one")
    physical = compile_query(roots, ordered, plan.strategy)
    own = describe(physical, plan.strategy, plan.slots)
    if len(plan.subqueries) != len(own.subqueries) or plan.shuffles != own.shuffles:
        msg = (
            f"the plan has {len(plan.subqueries)} subqueries and {plan.shuffles} shuffles, this query"
            f" {len(own.subqueries)} and {own.shuffles}; it was made for another query, or edited beyond its rules"
        )
        raise QueryError(msg)
    for given, expected in zip(plan.subqueries, own.subqueries, strict=True):
        _fits(given, expected, plan.slots)
    named = {operator.name: subquery for subquery, own in _pairs(plan, physical) for operator in own}
    return physical, lambda operator, groups, slots: _layout(named[operator.name], groups, slots)


def _pairs(plan: Plan, physical: p.Plan) -> list[tuple[Subquery, list[p.Operator]]]:
    """Subqueries with their operators; the stateless ones before the first have none."""
    found = members(physical)
    stateful = plan.subqueries[len(plan.subqueries) - len(found) :]
    return list(zip(stateful, found, strict=True))


def _fits(given: Subquery, expected: Subquery, slots: int) -> None:
    for what in ("name", "operators", "inputs"):
        mine, theirs = getattr(given, what), getattr(expected, what)
        if mine != theirs:
            raise QueryError(
                f"{expected.name} does not fit: its {what} are {_show(mine)}, the query has {_show(theirs)}"
            )
    if (given.router.kind, given.router.columns) != (expected.router.kind, expected.router.columns):
        raise QueryError(f"{given.name} does not fit: it is routed by {given.router}, the query by {expected.router}")
    if not 1 <= given.slots <= slots:
        raise QueryError(f"{given.name} has {given.slots} slots; it needs at least 1 and the plan has {slots}")
    if given.router.kind == ONE and given.slots != 1:
        raise QueryError(f"{given.name} has {given.slots} slots, but it is all done by one; write 1")
    if given.router.kind == GRID:
        shape = given.router.shape
        if not shape or any(type(cells) is not int or cells < 1 for cells in shape) or sum(shape) != given.slots:
            msg = f"{given.name}: the shape {list(shape)!r} must be whole numbers, at least 1 each, with the sum {given.slots}"
            raise QueryError(msg)


def _show(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _layout(subquery: Subquery, groups: int, slots: int) -> Layout:
    if subquery.slots > slots:  # fewer slots were asked for than the plan was made for
        raise QueryError(f"{subquery.name} has {subquery.slots} slots, this run has {slots}; give the run as many")
    if subquery.router.kind == GRID:
        return Rectangles(groups, subquery.router.shape, subquery.router.transposed)
    return Diagonal.even(groups, min(subquery.slots, groups))
