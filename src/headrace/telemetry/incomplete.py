"""Results that are incomplete because their operators were added to existing state (`headrace migrate`).

    query["begun"][operator]  =  T: it receives all of its input from event time T on; None: no such time is known
    query["begun"][result]    =  T: it is complete from event time T on; None: no such time is known
    query["functions_since"]  =  functions that were added to aggregates (headrace.evolve.added_functions)

An added operator starts with empty state. Its results are complete from T plus the time that it looks back. If it looks
back without limit, no time is known for it and for everything downstream. A kept operator has already emitted a part of
its results: an operator that is added downstream of it receives only later ones.

Invariant: an added aggregate over time windows or sessions never emits an incomplete window: windows that began before
T (sessions: before T plus the gap) are withheld, and all windows if no time is known. An entry stays in the manifests
until the watermark has passed the time from which results are complete.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from headrace import plan as p
from headrace.operators.base import Operator
from headrace.state.manifest import Manifest
from headrace.support.event_time import FOREVER, NEVER, moment_text
from headrace.task.watermarks import SourceClock, input_watermarks, operator_watermarks

Begun = dict[str, int | None]
# by function of an aggregate: [number, time; windows that began before it have null for the function]
Since = list[list[Any]]
FUNCTIONS_SINCE = "functions_since"


def incomplete_operators(query: Mapping[str, Any]) -> Begun:
    """Return the incomplete operators and results from the section `query` of a manifest."""
    return dict(query.get("begun", {}))


def incomplete_results(manifest: Manifest) -> Begun:
    """Return the incomplete results of a manifest."""
    results = manifest.query.get("results", {})
    return {name: time for name, time in incomplete_operators(manifest.query).items() if name in results}


def complete_since(
    plan: p.PhysicalPlan,
    arrived: Mapping[str, int],
    begun: Begun,
    added: Collection[str] = (),
    notes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Begun:
    """Return for each source and operator the time from which its future tuples are complete.

    From that time on, a source or operator emits everything that it would have emitted in a run without the change.

    arrived: for each source, a time later than all of its tuples so far.
    begun: for each incomplete operator, the time that the manifest has for it (see above).
    added: operators that this start adds.
    notes: for each kept operator, the notes in its state.
    """
    complete: Begun = dict(arrived)
    for operator in plan.operators:
        name, inputs = operator.name, input_complete_since(plan, operator.name, complete)
        if name in added:
            begun[name] = inputs
        emitted = NEVER if name in added else operator.emitted_before(inputs, notes.get(name, {}))
        complete[name] = latest_time([emitted, _complete(operator, begun[name]) if name in begun else NEVER])
    return complete


def input_complete_since(plan: p.PhysicalPlan, target: str, complete: Begun) -> int | None:
    """Return the time from which the input of an operator or result is complete."""
    return latest_time([complete[edge.producer] for edge in plan.edges if edge.target == target])


def latest_time(times: Sequence[int | None]) -> int | None:
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None


def _complete(operator: Operator, begun: int | None) -> int | None:
    """Return the time from which the results of an operator are complete, if its input is complete from `begun`."""
    if begun is None or begun == NEVER:
        return begun
    return None if operator.looks_back is None else begun + operator.looks_back


def still_incomplete(plan: p.PhysicalPlan, begun: Begun, clocks: Mapping[str, SourceClock]) -> Begun:
    """Return the entries that are still needed at these watermarks of the sources."""
    reached = operator_watermarks(plan, clocks)

    def is_needed(name: str, time: int | None) -> bool:
        if name in plan.results:
            return time is None or min(reached[e.producer, e.output] for e in plan.entering(name, 0)) < time
        if name not in plan.by_name:
            return False
        operator = plan.by_name[name]
        complete = _complete(operator, time)
        return complete is None or min(input_watermarks(plan, operator, reached)) < complete

    return {name: time for name, time in begun.items() if is_needed(name, time)}


def withhold_incomplete(plan: p.PhysicalPlan, begun: Begun) -> p.PhysicalPlan:
    """Return the plan with aggregates that know from which time their input is complete."""
    times = {name: FOREVER if time is None else time for name, time in begun.items()}
    operators = (o.complete_from(times[o.name]) if o.name in times else o for o in plan.operators)
    return replace(plan, operators=tuple(operators)) if begun else plan


def functions_since(query: Mapping[str, Any]) -> dict[str, Since]:
    """Return, for each aggregate with added functions, the entries in the section `query` of a manifest."""
    return dict(query.get(FUNCTIONS_SINCE, {}))


def latest_addition(query: Mapping[str, Any]) -> Begun:
    """Return, for each such aggregate, the time from which all its functions receive all tuples."""
    known = {name: [time for _, time in each if time is not None] for name, each in functions_since(query).items()}
    return {name: max(times) for name, times in known.items() if times}


def later_of(begun: Begun, since: Begun) -> Begun:
    """By operator, the later of two times from which on it is complete."""
    return {**begun, **{name: latest_time([time, begun.get(name, time)]) for name, time in since.items()}}


def complete_functions(plan: p.PhysicalPlan, query: Mapping[str, Any]) -> p.PhysicalPlan:
    """Return the plan with aggregates that know from which time each of their functions receives all tuples."""
    since = functions_since(query)
    operators = (o.functions_complete_from(since[o.name]) if o.name in since else o for o in plan.operators)
    return replace(plan, operators=tuple(operators)) if since else plan


def warning_text(result: str, time: int | None) -> str:
    if time is None:
        return f"{result} needs input from before the query was changed, which is missing, so it is never complete"
    return (
        f"{result} is complete from {moment_text(time)} on; before, input from before the query was changed is missing"
    )
