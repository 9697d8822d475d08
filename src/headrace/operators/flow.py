"""The interface between planners and the plan: what a planner receives and returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.operators.base import Operator
from headrace.plan import Step
from headrace.query import nodes


@dataclass(frozen=True)
class Flow:
    """Tuples from one output of a producer, and the steps that they pass."""

    producer: str
    output: int
    stage: int
    steps: tuple[Step, ...]
    schema: pa.Schema

    def then(self, step: Step, schema: pa.Schema) -> Flow:
        return Flow(self.producer, self.output, self.stage, (*self.steps, step), schema)


class PlanBuilder(Protocol):
    """The plan under construction."""

    def flows(self, node: nodes.Node) -> list[Flow]:
        """Return the flows whose union is the output of a node."""

    def name(self, kind: str) -> str:
        """Return a name that is unique in the plan."""

    def add(self, operator: Operator, *inputs: Sequence[Flow]) -> Flow:
        """Add an operator to the plan, with edges from its inputs, and return its first output."""


Planner = Callable[[Any, PlanBuilder], Flow | list[Flow]]  # several: their union is the output of the node


def stage_after(*inputs: Sequence[Flow]) -> int:
    return 1 + max(flow.stage for flows in inputs for flow in flows)
