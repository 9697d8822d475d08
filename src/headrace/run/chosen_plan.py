"""The plan that a run executes: routed by a sample or by existing state, or given by the user."""

from __future__ import annotations

from dataclasses import dataclass

from headrace import plan as p
from headrace.compile import CompiledQuery, Held
from headrace.compile.bind import LayoutChooser, bind_plan, other_routers
from headrace.compile.subqueries import Plan
from headrace.errors import HeadraceError, QueryError
from headrace.plan.figures import Figures
from headrace.tools.calibrate import calibrate, sample_bounds

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
) -> ChosenPlan:
    """Choose the plan of a run: the given plan, or the one that the compiler prefers.

    held: the columns in existing state.
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
    physical = query.physical(strategy, routers=other_routers(wanted), held=held)
    if strategy == "operator" and figures is not None:  # slots are assigned by share
        return ChosenPlan(*bind_plan(shown, query, held), shown)
    return ChosenPlan(physical, None, shown)


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
