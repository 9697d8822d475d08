"""The identity of a state: the plan that arranged it, and the places that its sources read.

Invariant: a state continues only under a plan that arranges it in the same way, with sources that read the same places.
`headrace.evolve.compare` has already checked that the operators still mean the same.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from headrace import plan as p
from headrace.driver.fingerprint import without_loader
from headrace.errors import QueryChanged
from headrace.operators.base import StateKind
from headrace.sources.protocol import DrivenOrigin
from headrace.state.manifest import Manifest
from headrace.support.terminal_text import printable

_log = logging.getLogger(__name__)

STATIC_CHANGED = (
    "the static source %s has changed since this state began, and is not read again: it was %s, it is %s;"
    " the run continues with the former content; use a new checkpoint folder to read the new one"
)

CODE_CHANGED = "%s continues with the state that other code or settings made: it was %s, it is %s"


def query_fingerprint(query: Mapping[str, Any], plan: p.PhysicalPlan) -> dict[str, Any]:
    """Return the section `query` of manifests: the query of the user, its meaning, and the arrangement of its state."""
    return {**query, **state_arrangement(plan)}


def state_arrangement(plan: p.PhysicalPlan) -> dict[str, Any]:
    """Return how a plan arranges its state: the grouping columns and the stored columns of operators."""
    return {"grouped": _grouped(plan), "held": _held(plan)}


def check_state_arrangement(last: Manifest, plan: p.PhysicalPlan) -> None:
    """Raise for a plan that would arrange the state of an operator differently."""
    for part, now in state_arrangement(plan).items():
        was = {n: v for n, v in last.query[part].items() if part != "grouped" or n in now or n not in plan.by_name}
        changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if differences := "; ".join(f"{part} of {n} was {was.get(n)}, is {now.get(n)}" for n in changed):
            raise QueryChanged(
                f"this plan arranges the state differently: {differences}; use the plan that made the state, or a new"
                " checkpoint folder"
            )


def operator_code(plan: p.PhysicalPlan) -> dict[str, str]:
    """Return by operator the user's code that it runs: its name, version and settings."""
    return {o.name: o.code for o in plan.operators if o.code}


def user_code_names(plan: p.PhysicalPlan) -> list[str]:
    """Return the names of the user's Python code in a plan: processors, and functions of splits."""
    steps = (step for edge in plan.edges for step in edge.steps if isinstance(step, p.SplitStep))
    functions = [function.name for step in steps for function in step.functions]
    return list(dict.fromkeys([*operator_code(plan).values(), *functions]))


def log_changed_code(last: Manifest, plan: p.PhysicalPlan) -> None:
    """Log code whose version or settings have changed. It continues with the existing state."""
    for operator, code in operator_code(plan).items():
        known = last.versions.get(operator, code)
        if without_loader(known) != without_loader(code):
            _log.warning(CODE_CHANGED, operator, *map(printable, (known, code)))


def check_source_places(
    last: Manifest, places: Mapping[str, str], driven: Mapping[str, DrivenOrigin], static: Collection[str]
) -> None:
    """Refuse a source that reads another place, because its input would not continue the former one."""
    for name, place in places.items():
        known = last.sources[name].place
        if known is None or known == place:
            continue
        if name in static:
            _log.warning(STATIC_CHANGED, *map(printable, (name, known, place)))
        elif not (name in driven and driven[name].is_at(known)):
            moved = f" ({driven[name].if_moved})" if name in driven and driven[name].if_moved else ""
            msg = f"source {name!r} read {known!r}, now it is {place!r}; give it the former{moved}, or use a new checkpoint folder"
            raise QueryChanged(msg)


def _grouped(plan: p.PhysicalPlan) -> dict[str, list[list[str]]]:
    """Return the columns by which the state of operators is grouped. Rows that are found by a number have no groups."""
    stateful = [o for o in plan.operators if o.state is not StateKind.NONE and not o.arranged_by_number(0)]
    return {o.name: [list(grouping.described) for grouping in o.groupings] for o in stateful}


def _held(plan: p.PhysicalPlan) -> dict[str, list[list[str]]]:
    """Return the columns of state that holds tuples. The compiler drops columns that nothing reads."""
    return {o.name: [schema.names for schema in o.schemas] for o in plan.operators if o.holds_tuples}
