"""Failure points: the stateless steps in which a tuple can fail, and the reading of messages. Each has a name in the
outbox.

The identity of a step consists of the step and the steps before it since its producer. Edges that begin with the same
steps therefore share these steps, and a tuple that fails in one of them fails once. The branches of a `case` are one
step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace import plan as p
from headrace.columnar.types import SUBSTREAM
from headrace.operators.base import StateKind

LATE = "late:"  # prefix of results in the outbox with late and rejected tuples of a source
FAILED = "failed:"  # prefix of results in the outbox with failed tuples
READING = "read a message"


@dataclass(frozen=True)
class FailurePoint:
    """A place where tuples can fail."""

    name: str  # in the outbox
    source: str  # the source or producer of the tuples
    summary: str  # what the step does
    schema: pa.Schema  # of the tuples before the step


def step_key(edge: p.Edge, depth: int) -> tuple[Any, ...]:
    """Return the identity of a step of an edge. The branches of one `case` have the same."""
    step = edge.steps[depth]
    own = step.text if isinstance(step, p.FilterStep) else step
    return edge.producer, edge.output, edge.steps[:depth], own


def failure_points(plan: p.PhysicalPlan) -> list[FailurePoint]:
    """Return all failure points of a plan."""
    return [
        *edge_failure_points(plan).values(),
        *operator_failure_points(plan).values(),
        *unread_message_points(plan).values(),
    ]


def rejected_results(plan: p.PhysicalPlan, *, failed: bool) -> dict[str, tuple[str, pa.Schema]]:
    """Return what the sink `late` may get: by name in the outbox, a description and the schema.

    failed: tuples that fail are kept.
    """
    found = {f"{LATE}{s.name}": (f"late tuples of {s.name!r}", s.schema) for s in plan.sources}
    if failed:
        found |= {place.name: (f"what fails in {place.summary!r}", place.schema) for place in failure_points(plan)}
    return {name: (words, with_reason_columns(schema)) for name, (words, schema) in found.items()}


def with_reason_columns(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the columns `_source` and `_reason` of rejected tuples."""
    return schema.append(pa.field("_source", pa.string())).append(pa.field("_reason", pa.string()))


def edge_failure_points(plan: p.PhysicalPlan) -> dict[tuple[Any, ...], FailurePoint]:
    """Return the failure points of the steps along edges, by `step_key`."""
    found: dict[tuple[Any, ...], FailurePoint] = {}
    for edge in plan.edges:
        for depth, step in enumerate(edge.steps):
            key = step_key(edge, depth)
            if key not in found and p.may_fail(step):
                number = 1 + sum(known[0] == edge.producer for known in found)
                name = f"{FAILED}{edge.producer}:{number}"
                found[key] = FailurePoint(
                    name, origin_source(plan, edge.producer), p.step_text(step), _before(plan, edge, depth)
                )
    return found


def operator_failure_points(plan: p.PhysicalPlan) -> dict[str, FailurePoint]:
    """Return the failure point of each operator that runs steps itself, by its name."""
    stateless = [o for o in plan.operators if o.state is StateKind.NONE]
    return {
        o.name: FailurePoint(
            f"{FAILED}{o.name}", origin_source(plan, o.name), o.summary or o.name, without_substream(o.schemas[0])
        )
        for o in stateless
    }


def unread_message_points(plan: p.PhysicalPlan) -> dict[str, FailurePoint]:
    """Return the failure point of messages that cannot be read, by source."""
    return {
        s.name: FailurePoint(f"{FAILED}{s.name}:read", s.name, READING, s.unread_schema)
        for s in plan.sources
        if s.unread_schema is not None
    }


def origin_source(plan: p.PhysicalPlan, producer: str) -> str:
    """Return the source of a producer's tuples; the producer itself if they come from several sources or from windows."""
    operator = plan.by_name.get(producer)
    if operator is None or operator.state is not StateKind.NONE:
        return producer
    found = {origin_source(plan, edge.producer) for edge in plan.edges if edge.target == producer}
    return found.pop() if len(found) == 1 else producer


def _before(plan: p.PhysicalPlan, edge: p.Edge, depth: int) -> pa.Schema:
    operator = plan.by_name.get(edge.producer)
    sources = {source.name: source.schema for source in plan.sources}
    begin = operator.output_schema(edge.output) if operator else sources[edge.producer]
    return without_substream(p.schema_after(edge.steps[:depth], begin))


def without_substream(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the substream, which the user's step never saw."""
    return pa.schema([field for field in schema if field.name != SUBSTREAM])
