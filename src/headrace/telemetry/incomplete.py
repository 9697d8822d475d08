"""Results that lack something, because operators that make them were added to a state that was there (`headrace migrate`).

    query["begun"][operator]  =  T: all of its input from event time T on comes to it; None: no time is known
    query["begun"][result]    =  T: nothing from event time T on is missing in it; None: no time is known
    query["functions_since"]  =  functions that were added to aggregates (headrace.evolve.added_functions)

An operator that is added begins empty. Its results are complete from T plus the time that it looks back; if it looks back
any amount of time, no time is known, neither for it nor for what is downstream. An operator that is kept emitted a part of its
results before: an operator that is added downstream of it gets all of those that are later than these.

Invariant: an added aggregate over time windows or sessions emits no window half filled: windows that began before T (sessions:
before T plus the gap) are withheld, and all windows if no time is known. An entry stays in the manifests until the watermark has passed the time from which on
results are complete.
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
Since = list[list[Any]]  # by function of an aggregate: [number, windows that began before this time have null for it]
FUNCTIONS_SINCE = "functions_since"


def incomplete_operators(query: Mapping[str, Any]) -> Begun:
    """What the section `query` of a manifest says."""
    return dict(query.get("begun", {}))


def incomplete_results(manifest: Manifest) -> Begun:
    """Of these, results."""
    results = manifest.query.get("results", {})
    return {name: time for name, time in incomplete_operators(manifest.query).items() if name in results}


def complete_since(
    plan: p.PhysicalPlan,
    arrived: Mapping[str, int],
    begun: Begun,
    added: Collection[str] = (),
    notes: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Begun:
    """By source and operator, from when on its tuples, as far as they are still to come, are complete.

    arrived: by source, a time before which all of its tuples so far are. begun: by operator, as in a manifest; those that are
    added now are noted in it. notes: by operator that is kept, what it keeps beside its state.
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
    """From when on all that enters an operator or a result is complete."""
    return latest_time([complete[edge.producer] for edge in plan.edges if edge.target == target])


def latest_time(times: Sequence[int | None]) -> int | None:
    known = [time for time in times if time is not None]
    return max(known) if len(known) == len(times) else None


def _complete(operator: Operator, begun: int | None) -> int | None:
    """From when on the results of an operator are complete, to which all of its input comes from a time on."""
    if begun is None or begun == NEVER:
        return begun
    return None if operator.looks_back is None else begun + operator.looks_back


def still_incomplete(plan: p.PhysicalPlan, begun: Begun, clocks: Mapping[str, SourceClock]) -> Begun:
    """The entries that are needed when the sources have come this far."""
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
    """The plan, whose aggregates know from when on all of their input comes."""
    times = {name: FOREVER if time is None else time for name, time in begun.items()}
    operators = (o.complete_from(times[o.name]) if o.name in times else o for o in plan.operators)
    return replace(plan, operators=tuple(operators)) if begun else plan


def functions_since(query: Mapping[str, Any]) -> dict[str, Since]:
    """By aggregate to which functions were added, what the section `query` of a manifest says of each function."""
    return dict(query.get(FUNCTIONS_SINCE, {}))


def latest_addition(query: Mapping[str, Any]) -> Begun:
    """By such an aggregate, the time from which on all its functions see all tuples."""
    known = {name: [time for _, time in each if time is not None] for name, each in functions_since(query).items()}
    return {name: max(times) for name, times in known.items() if times}


def later_of(begun: Begun, since: Begun) -> Begun:
    """By operator, the later of two times from which on it is complete."""
    return {**begun, **{name: latest_time([time, begun.get(name, time)]) for name, time in since.items()}}


def complete_functions(plan: p.PhysicalPlan, query: Mapping[str, Any]) -> p.PhysicalPlan:
    """The plan, whose aggregates know from when on each of their functions sees all tuples."""
    since = functions_since(query)
    operators = (o.functions_complete_from(since[o.name]) if o.name in since else o for o in plan.operators)
    return replace(plan, operators=tuple(operators)) if since else plan


def warning_text(result: str, time: int | None) -> str:
    if time is None:
        return (
            f"{result} begins with the state that is there; what it looks back on was not kept, however far time goes"
        )
    return f"{result} begins with the state that is there, and is complete from {moment_text(time)} on"
