"""The aggregate over count windows: the last n tuples of a group, in sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.kernels.windows import aggregate
from headrace.operators.aggregates import GroupedOperator
from headrace.operators.base import ReplacingOperator, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import HashGrouping


@dataclass(frozen=True)
class CountAggregateOperator(ReplacingOperator, GroupedOperator):
    """An aggregate over the last n tuples of each group."""

    last: int
    every: int

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.schemas[side].names)

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    def stored(self, side: int) -> set[str]:
        return {*self.schemas[side].names, aggregate.NUMBER}

    def run(self, slot: Slot) -> Results:
        if not (groups := slot.groups(0)):
            return
        held = slot.waiting_rows(0, self.schemas[0].append(pa.field(aggregate.NUMBER, pa.int64())), groups)
        results, kept = aggregate.count_windows(self, held, slot.complete_below)
        slot.replace_rows(0, kept)
        yield 0, results

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rates, lag = (inputs[0].rate,), inputs[0].lag
        results = figures.results.get(self.name, inputs[0].rate / self.every)
        held = figures.held.get(self.name, float(self.last))
        return OperatorLoad(rates, rates, (held,), 0.0, results), StreamPace(results, lag, lag)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        return {"results": counted.out / counted.span, "held": counted.held}

    @property
    def summary(self) -> str:
        return self._describe(f"last {self.last} every {self.every}")


def plan(node: nodes.CountAggregate, sofar: PlanBuilder) -> Flow:
    flows = sofar.flows(node.input)
    operator = CountAggregateOperator(
        sofar.name("aggregate"),
        stage_after(flows),
        (node.input.schema,),
        node.schema,
        (HashGrouping(node.by),),
        node.by,
        tuple((name, f.sql) for name, f in node.functions),
        tuple(f.text for _, f in node.functions),
        node.last,
        node.every,
    )
    return sofar.add(operator, flows)
