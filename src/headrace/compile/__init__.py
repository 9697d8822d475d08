"""The compiler: passes that turn the query a user wrote into the physical plan that runs, and into the plan that is shown.

`STAGE_PASSES` and then `prune` make the physical plan, which the tasks execute:

    normalise  moves conditions on one side of a join before it; lowers operators on substreams to ordinary operators
    cut        cuts at the stateful operators: one stage, and so one exchange, for each
    coalesce   puts operators with the same partitioning into one stage, without an exchange between them
    prune      drops columns that no later operator reads at the end of an edge

`SHOWN_PASSES` make the `Plan` that users see, which changes nothing in a run unless a user gives it to the run:

    route      chooses how tuples are routed to the slots of each subquery, and estimates the alternatives
    allocate   gives each subquery a number of slots by its cost

A plan that a user gives to a run, possibly edited, is then checked:

    bind       checks a plan against the query, and returns the physical plan with the layouts that the plan demands

Strategies: `subquery` runs all passes; `query` does not coalesce; `operator` cuts at every operator, stateless ones
too. The grouping and the columns of state do not depend on the strategy, so a run may continue under another
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
    """Coalesce under the strategy `subquery`. Groupings are the same under every strategy."""
    together = coalesce(draft.physical)
    if draft.strategy == "subquery":
        return replace(draft, physical=together)
    apart = draft.physical
    if draft.strategy == "operator":
        apart = cut(draft.roots, draft.ordered, at_every_operator=True)
    return replace(draft, physical=with_groupings_of(together, apart))


def _prune(draft: PlanDraft) -> PlanDraft:
    """Drop unread columns. State holds the same columns under every strategy."""
    if draft.strategy == "subquery":
        return replace(draft, physical=prune(draft.physical, draft.held))
    together = prune(coalesce(cut(draft.roots, draft.ordered)), draft.held)
    return replace(draft, physical=prune(draft.physical, columns_held_in(together)))


Passes = tuple[Callable[[PlanDraft], PlanDraft], ...]

STAGE_PASSES: Passes = (_normalise, _cut, _coalesce)  # from the query to stages, whose edges still have all columns
SHOWN_PASSES: Passes = (route, allocate)  # from the pruned plan, which runs, to the plan that is shown
PASSES: Passes = (*STAGE_PASSES, _prune, *SHOWN_PASSES)


def _apply(passes: Passes, draft: PlanDraft) -> PlanDraft:
    return reduce(lambda done, step: step(done), passes, draft)


class CompiledQuery:
    """A query whose plans are compiled once for each strategy and each set of columns in state.

    roots: one node for each result; `ordered[i]` requires result i in sequence.
    """

    def __init__(self, roots: Sequence[nodes.Node], ordered: Sequence[bool] | None = None) -> None:
        self.roots = list(roots)
        self.ordered = list(ordered or [False] * len(self.roots))
        self._coalesced: dict[str, PlanDraft] = {}
        self._pruned: dict[tuple[str, frozenset[tuple[tuple[str, int], Names]]], PlanDraft] = {}

    def over(self, roots: Sequence[nodes.Node]) -> CompiledQuery:
        """Return the same query with other root nodes, such as nodes over sources with fewer columns."""
        same = len(roots) == len(self.roots) and all(one is two for one, two in zip(roots, self.roots, strict=True))
        return self if same else CompiledQuery(roots, self.ordered)

    def physical(
        self, strategy: str = "subquery", *, routers: Routers | None = None, held: Held | None = None
    ) -> p.PhysicalPlan:
        """Return the plan that runs.

        held: the columns that the operators' state has, at least those that the compiler would choose.
        """
        return with_routers_applied(self._draft(strategy, held or {}).physical, routers or {})

    def missing_columns(self, held: Held) -> Held:
        """Return the columns of operators' inputs that the query reads but their state does not have."""
        return columns_missing(self._unpruned("subquery").physical, held)

    def plan(
        self,
        strategy: str,
        slots: int,
        figures: Figures | None = None,
        costs: Mapping[str, float] | None = None,
    ) -> Plan:
        """Return the plan that users see. `costs` replace measured costs."""
        check_strategy(strategy)
        check_slots(slots)
        for name, cost in (costs or {}).items():
            if not is_number(cost) or not 0 <= cost <= LARGEST_FIGURE:
                raise QueryError(f"the cost of {name} must be a number of microseconds per tuple; found {cost!r}")
        draft = replace(self._draft(strategy, {}), slots=slots, figures=figures, costs=costs or {})
        plan = _apply(SHOWN_PASSES, draft).plan
        assert plan is not None
        _demand_finite(plan)
        known = [subquery.name for subquery in plan.subqueries]
        for name in costs or {}:
            if name not in known:
                raise QueryError(f"costs name an unknown subquery {name!r}; the subqueries are {', '.join(known)}")
        return plan

    def _unpruned(self, strategy: str) -> PlanDraft:
        if strategy not in self._coalesced:
            self._coalesced[strategy] = _apply(STAGE_PASSES, PlanDraft(self.roots, self.ordered, strategy))
        return self._coalesced[strategy]

    def _draft(self, strategy: str, held: Held) -> PlanDraft:
        if held and held == columns_held_in(self._draft("subquery", {}).physical):
            held = {}  # an unchanged query: state has the columns that the compiler chooses
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
    """Return the plan that runs, for one or more results, as `CompiledQuery.physical` does."""
    return CompiledQuery(roots, ordered).physical(strategy, routers=routers, held=held)


def plan_of(
    roots: Sequence[nodes.Node],
    ordered: Sequence[bool],
    strategy: str,
    slots: int,
    figures: Figures | None = None,
    costs: Mapping[str, float] | None = None,
) -> Plan:
    """Return the plan that users see, as `CompiledQuery.plan` does."""
    return CompiledQuery(roots, ordered).plan(strategy, slots, figures, costs)


def _demand_finite(plan: Plan) -> None:
    """Raise if an estimate overflows, because products of large figures can become infinite."""
    for subquery in plan.subqueries:
        for numbers in (subquery.numbers, *(option.numbers for option in subquery.rejected)):
            for name, value in vars(numbers).items():
                if not is_number(value):
                    msg = f"with these figures {name} of {subquery.name} would be {value}; check that the rates are in tuples per second"
                    raise QueryError(msg)


def with_groupings_of(other: p.PhysicalPlan, plan: p.PhysicalPlan) -> p.PhysicalPlan:
    """Return the plan with the groupings that the same operators have in another plan."""
    groupings = {operator.name: operator.groupings for operator in other.operators}
    operators = tuple(replace(o, groupings=groupings.get(o.name, o.groupings)) for o in plan.operators)
    return replace(plan, operators=operators)


__all__ = ["PASSES", "STRATEGIES", "CompiledQuery", "Held", "check_strategy", "compile_query", "plan_of"]
