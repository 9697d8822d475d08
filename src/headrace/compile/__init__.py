"""From the query a user wrote to the plan the engine runs, pass by pass.

    normalise conditions on one side of a join go below it; what runs on substreams becomes ordinary operators
    cut       at the stateful operators: one stage, and so one exchange, for each
    coalesce  operators that are partitioned alike into one stage: no exchange between them
    prune     columns that nobody reads go no further than the end of an edge
    route     how tuples find the slots of each subquery, and what the alternatives would have cost
    allocate  how many slots each would get by its cost
    bind      a plan, perhaps edited, bound to the query again: what the engine is to do

Strategies, to compare: `subquery` is all of it; `query` does not coalesce; `operator` cuts at every operator, stateless ones
too. How state is grouped, and which columns it holds, does not depend on the strategy, so a run may go on under another
one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from headrace import plan as p
from headrace.compile.allocate import allocate
from headrace.compile.coalesce import coalesce
from headrace.compile.cut import cut
from headrace.compile.draft import STRATEGIES, PlanDraft, check_strategy
from headrace.compile.normalise import normalise
from headrace.compile.prune import Held, columns_held_in, columns_missing, prune
from headrace.compile.route import Routers, route, with_routers_applied
from headrace.compile.subqueries import Plan
from headrace.errors import QueryError
from headrace.plan.columns_read import Names
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


class CompiledQuery:
    """A query whose plans are compiled once each: by strategy, and by the columns that a state holds.

    roots: one node for each result; `ordered[i]` asks for result i in sequence.
    """

    def __init__(self, roots: Sequence[nodes.Node], ordered: Sequence[bool] | None = None) -> None:
        self.roots = list(roots)
        self.ordered = list(ordered or [False] * len(self.roots))
        self._coalesced: dict[str, PlanDraft] = {}
        self._pruned: dict[tuple[str, frozenset[tuple[tuple[str, int], Names]]], PlanDraft] = {}

    def over(self, roots: Sequence[nodes.Node]) -> CompiledQuery:
        """Return the same query over other nodes, such as sources with fewer columns."""
        same = len(roots) == len(self.roots) and all(one is two for one, two in zip(roots, self.roots, strict=True))
        return self if same else CompiledQuery(roots, self.ordered)

    def physical(
        self, strategy: str = "subquery", *, routers: Routers | None = None, held: Held | None = None
    ) -> p.PhysicalPlan:
        """Return what the engine runs.

        held: the columns that the state of operators has, which are at least those that the compiler would give it.
        """
        return with_routers_applied(self._draft(strategy, held or {}).physical, routers or {})

    def missing_columns(self, held: Held) -> Held:
        """Return the columns of operators' inputs that the query reads and that their state does not have."""
        return columns_missing(self._unpruned("subquery").physical, held)

    def plan(
        self,
        strategy: str,
        slots: int,
        figures: Figures | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> Plan:
        """Return the plan as a user sees it. A given cost counts instead of the measured one."""
        check_strategy(strategy)
        check_slots(slots)
        for name, cost in (costs or {}).items():
            if not is_number(cost) or not 0 <= cost <= LARGEST_FIGURE:
                raise QueryError(f"the cost of {name} must be microseconds per tuple; found {cost!r}")
        draft = replace(self._draft(strategy, {}), slots=slots, figures=figures, costs=costs or {})
        plan = reduce(lambda done, step: step(done), PASSES[4:], draft).plan
        assert plan is not None
        _demand_finite(plan)
        known = [subquery.name for subquery in plan.subqueries]
        for name in costs or {}:
            if name not in known:
                raise QueryError(f"there is no subquery {name!r} to give a cost; there are {', '.join(known)}")
        return plan

    def _unpruned(self, strategy: str) -> PlanDraft:
        if strategy not in self._coalesced:
            draft = PlanDraft(self.roots, self.ordered, strategy)
            self._coalesced[strategy] = reduce(lambda done, step: step(done), PASSES[:3], draft)
        return self._coalesced[strategy]

    def _draft(self, strategy: str, held: Held) -> PlanDraft:
        if held and held == columns_held_in(self._draft("subquery", {}).physical):
            held = {}  # an unchanged query: the state has what the compiler gives it
        key = (strategy, frozenset(held.items()))
        if key not in self._pruned:
            self._pruned[key] = _prune(replace(self._unpruned(strategy), held=held))
        return self._pruned[key]


def compile_query(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool] | None = None,
    strategy: str = "subquery",
    routers: Routers | None = None,
    held: Held | None = None,
) -> p.PhysicalPlan:
    """Return what the engine runs for one or more results: `CompiledQuery.physical` of a query that is used once."""
    return CompiledQuery(roots, ordered).physical(strategy, routers=routers, held=held)


def plan_of(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    strategy: str,
    slots: int,
    figures: Figures | None = None,
    costs: Mapping[str, float] | None = None,
) -> Plan:
    """Return the plan as a user sees it: `CompiledQuery.plan` of a query that is used once."""
    return CompiledQuery(roots, ordered).plan(strategy, slots, figures, costs)


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


__all__ = ["PASSES", "STRATEGIES", "CompiledQuery", "Held", "check_strategy", "compile_query", "plan_of"]
