"""The operator `limit`: the first tuples of the sequence, of the whole stream or of every substream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.kernels.windows.limit import RELEASED, first_tuples, release_first
from headrace.operators.base import ReplacingOperator, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.keyed_operator import KeyedOperator
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import HashGrouping


@dataclass(frozen=True)
class LimitOperator(ReplacingOperator, KeyedOperator):
    """An operator that holds tuples until the watermark. Its state is at most `count` tuples and one counter per key."""

    count: int

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.schemas[side].names)  # the sequence is defined on whole tuples

    def stored(self, side: int) -> set[str]:
        return {*self.schemas[side].names, RELEASED}

    def as_sent(self, side: int, tuples: pa.Table) -> pa.Table:
        return first_tuples(self.by, self.count, tuples)

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    def run(self, slot: Slot) -> Results:
        if not (groups := slot.groups(0)):
            return
        held = slot.waiting_rows(0, self.schemas[0].append(pa.field(RELEASED, pa.int64())), groups)
        results, kept = release_first(
            self.by, self.count, held, min(slot.watermarks_after)
        )  # the same under best effort
        slot.replace_rows(0, kept)
        yield 0, results

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rate, lag = inputs[0].rate, inputs[0].lag
        results = figures.results.get(self.name, rate)
        held = figures.held.get(self.name, min(rate * max(lag - inputs[0].delay, 0.0), float(self.count)))
        return OperatorLoad((rate,), (rate,), (held,), 0.0, results), StreamPace(results, lag, lag)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        return {"results": counted.out / counted.span, "held": counted.held}

    @property
    def summary(self) -> str:
        return nodes.limit_summary(self.count)


def plan(node: nodes.Limit, sofar: PlanBuilder) -> Flow:
    flows = sofar.flows(node.input)
    operator = LimitOperator(
        sofar.name("limit"),
        stage_after(flows),
        (node.schema,),
        node.schema,
        (HashGrouping(node.by),),
        node.by,
        node.count,
    )
    return sofar.add(operator, flows)
