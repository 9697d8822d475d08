"""The plan that a run executes: routed by a sample or by existing state, or given by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace import plan as p
from headrace.compile import CompiledQuery, Held
from headrace.compile.bind import LayoutChooser, bind_plan, other_routers
from headrace.compile.subqueries import Plan
from headrace.errors import HeadraceError, QueryError
from headrace.operators.base import Operator
from headrace.plan.figures import Figures
from headrace.routing import Router
from headrace.tools.calibrate import calibrate, sample_bounds

Grouped = Mapping[str, Sequence[Sequence[str]]]  # by operator and input, from a manifest

SAMPLED_TUPLES = 5_000  # tuples sampled from each source to find the distribution of a band join's values


@dataclass(frozen=True)
class ChosenPlan:
    """The physical plan, the layouts of a given plan (None: those of the routers), and the plan that users see."""

    physical: p.PhysicalPlan
    layouts: LayoutChooser | None
    shown: Plan


def choose_plan(
    query: CompiledQuery,
    strategy: str,
    slots: int,
    plan: Plan | None = None,
    held: Held | None = None,
    grouped: Grouped | None = None,
) -> ChosenPlan:
    """Choose the plan of a run: the given plan, or the one that the compiler prefers.

    held, grouped: the columns in existing state, and how the state is grouped.
    """
    if plan is not None:
        if plan.slots > slots:
            raise QueryError(
                f"the plan needs {plan.slots} slots, but this run has {slots}; start it with slots={plan.slots}"
            )
        return ChosenPlan(*bind_plan(plan, query, held), plan)
    figures = _sampled(query, strategy, slots)
    shown = query.plan(strategy, slots, figures)
    known = query.physical(strategy).by_name  # operators that prepare the input of a subquery have separate routers
    wanted = [(known[name], s.router) for s in shown.subqueries for name in s.members if name in known]
    kept = _routers_of_state(known, grouped or {}, slots)
    shown = _with_routers(shown, kept)
    wanted = [(operator, kept.get(operator.name, router)) for operator, router in wanted]
    physical = query.physical(strategy, routers=other_routers(wanted), held=held)
    if strategy == "operator" and figures is not None:  # slots are assigned by share
        return ChosenPlan(*bind_plan(shown, query, held), shown)
    return ChosenPlan(physical, None, shown)


def _routers_of_state(known: Mapping[str, Operator], grouped: Grouped, slots: int) -> dict[str, Router]:
    """Return, for the operators whose router their state keeps, the router that groups tuples as the state is grouped."""
    found = {}
    for operator in (known[name] for name in grouped if name in known and known[name].needs_rates):
        for router in operator.routing_options(slots, Figures()):
            other = operator.routed(router)
            if other and [list(grouping.described) for grouping in other.groupings] == list(grouped[operator.name]):
                found[operator.name] = router
    return found


def _with_routers(plan: Plan, routers: Mapping[str, Router]) -> Plan:
    """Return the plan with the routers by which existing state is grouped."""
    named = {name: subquery for subquery in plan.subqueries for name in subquery.members if name in routers}
    changed = {
        subquery.name: replace(subquery, router=routers[name], rejected=())
        for name, subquery in named.items()
        if subquery.router.way != routers[name].way
    }
    return replace(plan, subqueries=tuple(changed.get(each.name, each) for each in plan.subqueries))


def _sampled(query: CompiledQuery, strategy: str, slots: int) -> Figures | None:
    """Return the bounds of band joins and the rates of sources, and with the strategy `operator` the costs of operators.
    None: no sample is possible or needed.
    """
    try:
        if strategy == "operator" and slots >= len(query.physical(strategy).operators):
            return calibrate(query.roots, query.ordered, slots=slots, tuples=SAMPLED_TUPLES)
        if any(o.band is not None or o.needs_rates for o in query.physical().operators):
            return sample_bounds(query.roots, query.ordered, slots=slots, tuples=SAMPLED_TUPLES)
    except HeadraceError:  # no file yet, a stream that can be read only once, or data that the run will reject
        pass
    return None
