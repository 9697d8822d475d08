"""Results that lack something yet, because what makes them was added to a state that was there (`headrace migrate`).

    query["begun"][operator]  =  T: all of its input from event time T on came to it; earlier some may not have
    query["begun"][result]    =  from which time on nothing is missing in it; None: no time says so

Invariant: no window of an added aggregate over time windows is put out half filled: those that began before T never are.
An entry stands in the manifests until the watermark has passed it: what follows then is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace import plan as p
from headrace.engine.watermarks import Clock, input_watermarks, operator_watermarks
from headrace.moments import as_datetime
from headrace.state.manifest import Manifest

Begun = dict[str, int | None]


def begun_in(query: Mapping[str, Any]) -> Begun:
    """What the section `query` of a manifest says."""
    return dict(query.get("begun", {}))


def results_in(manifest: Manifest) -> Begun:
    """Of these, results."""
    results = manifest.query.get("results", {})
    return {name: time for name, time in begun_in(manifest.query).items() if name in results}


def still(plan: p.PhysicalPlan, begun: Mapping[str, int | None], clocks: Mapping[str, Clock]) -> Begun:
    """What holds when the sources stand there."""
    reached = operator_watermarks(plan, clocks)

    def watermark(name: str) -> int:
        if name in plan.by_name:
            operator = plan.by_name[name]
            return operator.watermark(input_watermarks(plan, operator, reached))
        return min(reached[edge.producer, edge.output] for edge in plan.entering(name, 0))

    known = {*plan.by_name, *plan.results}
    return {n: time for n, time in begun.items() if n in known and (time is None or watermark(n) < time)}


def since(plan: p.PhysicalPlan, begun: Mapping[str, int | None]) -> p.PhysicalPlan:
    """The plan, whose aggregates over time windows know from when on they have all of their input."""
    if not begun:
        return plan
    return replace(plan, operators=tuple(operator.since(begun.get(operator.name)) for operator in plan.operators))


def shown(time: int) -> str:
    """An event time for people."""
    try:
        return as_datetime(time).isoformat()
    except OverflowError:
        return f"{time} microseconds"


def in_words(result: str, time: int | None) -> str:
    if time is None:
        return (
            f"{result} begins with the state that is there; what it looks back on was not kept, however far time goes"
        )
    return f"{result} begins with the state that is there, and is complete from {shown(time)} on"
