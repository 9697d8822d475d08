"""What state belongs to: a query, by its fingerprint, and the places that its sources read.

Invariant: state is only continued under a plan that lays it as it was laid, by sources that read what they read before. That the
operators mean what they meant is checked before (`headrace.evolve.compare`).
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
    " the run goes on with what it was; use a new checkpoint folder for what it is"
)

CODE_CHANGED = "%s goes on with the state that other code or settings made: it was %s, it is %s"


def query_fingerprint(query: Mapping[str, Any], plan: p.PhysicalPlan) -> dict[str, Any]:
    """What a user wrote, what that means, and how the compiler lays the state of it."""
    return {**query, **state_arrangement(plan)}


def state_arrangement(plan: p.PhysicalPlan) -> dict[str, Any]:
    """How the state of a plan lies on the disk."""
    return {"grouped": _grouped(plan), "held": _held(plan), "routers": _chosen(plan)}


def check_state_arrangement(last: Manifest, plan: p.PhysicalPlan) -> None:
    """Refuse a plan under which the state of an operator would lie in another way than it does."""
    for part, now in state_arrangement(plan).items():
        was = last.query[part]
        changed = [name for name in {**was, **now} if was.get(name) != now.get(name)]
        if differences := "; ".join(f"{part} of {n} was {was.get(n)}, is {now.get(n)}" for n in changed):
            raise QueryChanged(
                f"the state does not lie as this plan has it: {differences}; use the plan that the state was made with, or a new"
                " checkpoint folder"
            )


def operator_code(plan: p.PhysicalPlan) -> dict[str, str]:
    """The user's own code that operators run: what it is called, its version and settings."""
    return {o.name: o.code for o in plan.operators if o.code}


def user_code_names(plan: p.PhysicalPlan) -> list[str]:
    """What the user wrote in Python: processors, and functions that split."""
    steps = (step for edge in plan.edges for step in edge.steps if isinstance(step, p.SplitStep))
    functions = [function.name for step in steps for function in step.functions]
    return list(dict.fromkeys([*operator_code(plan).values(), *functions]))


def log_changed_code(last: Manifest, plan: p.PhysicalPlan) -> None:
    """Code may change its version and its settings and continue with the state that it finds."""
    for operator, code in operator_code(plan).items():
        known = last.versions.get(operator, code)
        if without_loader(known) != without_loader(code):
            _log.warning(CODE_CHANGED, operator, *map(printable, (known, code)))


def check_source_places(
    last: Manifest, places: Mapping[str, str], driven: Mapping[str, DrivenOrigin], static: Collection[str]
) -> None:
    """What was taken and what is held came from there: another input would be taken for its continuation."""
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
    """By which columns the state of every operator is grouped: part of what state on disk means."""
    stateful = [o for o in plan.operators if o.state is not StateKind.NONE]
    return {o.name: [list(grouping.columns) for grouping in o.groupings] for o in stateful}


def _chosen(plan: p.PhysicalPlan) -> dict[str, Any]:
    """Routers that were chosen with the first epoch, for good: blocks are grouped by them."""
    return {o.name: o.router.to_json() for o in plan.operators if o.router.chosen}


def _held(plan: p.PhysicalPlan) -> dict[str, list[list[str]]]:
    """Which columns the state of every operator holds, where it holds tuples: the compiler drops what nobody reads."""
    return {o.name: [schema.names for schema in o.schemas] for o in plan.operators if o.holds_tuples}
