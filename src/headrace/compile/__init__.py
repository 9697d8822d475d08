"""From the query a user wrote to the plan the engine runs, pass by pass.

    normalise conditions on one side of a join go below it; what runs on substreams becomes ordinary operators
    cut       at the stateful operators: one stage, and so one exchange, for each
    coalesce  operators that are partitioned alike into one stage: no exchange between them
    prune     columns that nobody reads go no further than the end of an edge
    route     how tuples find the slots of each subquery, and what the alternatives would have cost
    allocate  how many slots each would get by its cost
    deploy    a plan, perhaps edited, bound to the query again: what the engine is to do

Strategies, to compare: `subquery` is all of it; `query` does not coalesce; `operator` cuts at every operator, stateless ones
too. How state is grouped, and which columns it holds, does not depend on the strategy, so a run may go on under another
one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from headrace import plan as p
from headrace.compile.allocate import allocate
from headrace.compile.coalesce import coalesce
from headrace.compile.cut import cut
from headrace.compile.draft import STRATEGIES, PlanDraft, check_strategy
from headrace.compile.normalise import normalise
from headrace.compile.prune import Held, columns_held_in, prune
from headrace.compile.prune import columns_missing as lacking_in
from headrace.compile.route import Routers, route, with_routers_applied
from headrace.compile.subqueries import Plan
from headrace.errors import QueryError
from headrace.plan.figures import LARGEST_FIGURE, Figures, is_number
from headrace.query import nodes
from headrace.support.limits import check_slots


def _normalise(draft: PlanDraft) -> PlanDraft:
    return replace(draft, roots=normalise(draft.roots))


def _cut(draft: PlanDraft) -> PlanDraft:
    return replace(draft, physical=cut(draft.roots, draft.ordered))


def _coalesce(draft: PlanDraft) -> PlanDraft:
    """Together where the strategy wants it; grouped alike under every strategy."""
    together = coalesce(draft.physical)
    if draft.strategy == "subquery":
        return replace(draft, physical=together)
    apart = draft.physical
    if draft.strategy == "operator":
        apart = cut(draft.roots, draft.ordered, at_every_operator=True)
    return replace(draft, physical=with_groupings_of(together, apart))


def _prune(draft: PlanDraft) -> PlanDraft:
    """State holds the same columns under every strategy."""
    if draft.strategy == "subquery":
        return replace(draft, physical=prune(draft.physical, draft.held))
    together = prune(coalesce(cut(draft.roots, draft.ordered)), draft.held)
    return replace(draft, physical=prune(draft.physical, columns_held_in(together)))


PASSES: tuple[Callable[[PlanDraft], PlanDraft], ...] = (_normalise, _cut, _coalesce, _prune, route, allocate)


def compile_query(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool] | None = None,
    strategy: str = "subquery",
    routers: Routers | None = None,
    held: Held | None = None,
) -> p.PhysicalPlan:
    """What the engine runs for one or more results; `ordered[i]` asks for result i in sequence.

    held: the columns that the state of operators has already, which are at least those that it would be given.
    """
    draft = PlanDraft(roots, ordered or [False] * len(roots), strategy, held=held or {})
    found = reduce(lambda done, step: step(done), PASSES[:4], draft)
    return with_routers_applied(found.physical, routers or {})


def missing_columns(roots: Sequence[nodes.Node], ordered: Sequence[bool], held: Held) -> Held:
    """What the query reads of operators' inputs beyond the columns that their state has."""
    return lacking_in(coalesce(cut(normalise(roots), ordered)), held)


def plan_of(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    strategy: str,
    slots: int,
    figures: Figures | None = None,
    costs: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of a query, as a user sees it. Costs that are given count instead of measured ones."""
    check_strategy(strategy)
    check_slots(slots)
    for name, cost in (costs or {}).items():
        if not is_number(cost) or not 0 <= cost <= LARGEST_FIGURE:
            raise QueryError(f"the cost of {name} must be microseconds per tuple; found {cost!r}")
    draft = PlanDraft(roots, ordered, strategy, slots, figures, costs or {})
    plan = reduce(lambda done, step: step(done), PASSES, draft).plan
    assert plan is not None
    _demand_finite(plan)
    known = [subquery.name for subquery in plan.subqueries]
    for name in costs or {}:
        if name not in known:
            raise QueryError(f"there is no subquery {name!r} to give a cost; there are {', '.join(known)}")
    return plan


def _demand_finite(plan: Plan) -> None:
    """Figures that are large, one by one, can multiply to what is no number any more."""
    for subquery in plan.subqueries:
        for numbers in (subquery.numbers, *(option.numbers for option in subquery.rejected)):
            for name, value in vars(numbers).items():
                if not is_number(value):
                    msg = f"by these figures {name} of {subquery.name} would be {value}; are they in tuples per second?"
                    raise QueryError(msg)


def with_groupings_of(other: p.PhysicalPlan, plan: p.PhysicalPlan) -> p.PhysicalPlan:
    """The plan with the groupings that the same operators have in another."""
    groupings = {operator.name: operator.groupings for operator in other.operators}
    operators = tuple(replace(o, groupings=groupings.get(o.name, o.groupings)) for o in plan.operators)
    return replace(plan, operators=operators)


__all__ = ["PASSES", "STRATEGIES", "Held", "check_strategy", "compile_query", "missing_columns", "plan_of"]
