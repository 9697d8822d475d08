"""How a node of a query becomes operators of a plan: what a planner is given, and what it gives."""

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
    """Tuples on their way: from one output of a producer through steps."""

    producer: str
    output: int
    stage: int
    steps: tuple[Step, ...]
    schema: pa.Schema

    def then(self, step: Step, schema: pa.Schema) -> Flow:
        return Flow(self.producer, self.output, self.stage, (*self.steps, step), schema)


class PlanBuilder(Protocol):
    """The plan as far as it is made."""

    def flows(self, node: nodes.Node) -> list[Flow]:
        """The flows whose union is the output of a node."""

    def name(self, kind: str) -> str:
        """A name that nothing else in the plan has."""

    def add(self, operator: Operator, *inputs: Sequence[Flow]) -> Flow:
        """Put an operator into the plan, with edges from its inputs; its first output."""


Planner = Callable[[Any, PlanBuilder], Flow | list[Flow]]  # several: their union is the output of the node


def stage_after(*inputs: Sequence[Flow]) -> int:
    return 1 + max(flow.stage for flows in inputs for flow in flows)
