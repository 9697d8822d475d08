"""The operator that emits the first tuple of a key and drops further tuples of that key for a while."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.kernels.windows.distinct import KEPT, keep_first
from headrace.operators.base import ReplacingOperator, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.keyed_operator import KeyedOperator
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import HashGrouping
from headrace.support.durations import format_duration


@dataclass(frozen=True)
class DistinctOperator(ReplacingOperator, KeyedOperator):
    """An operator that holds tuples until the watermark, and emitted tuples while they can suppress a later one."""

    within: int

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.schemas[side].names)  # the sequence depends on whole tuples

    def stored(self, side: int) -> set[str]:
        return {*self.schemas[side].names, KEPT}

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    @property
    def longest_window(self) -> int:
        return self.within

    @property
    def looks_back(self) -> None:
        return None  # a kept tuple depends on earlier ones, without limit

    def run(self, slot: Slot) -> Results:
        if not (groups := slot.groups(0)):
            return
        held = slot.waiting_rows(0, self.schemas[0].append(pa.field(KEPT, pa.bool_())), groups)
        waits = held.column(KEPT).fill_null(False)  # arriving tuples have no mark
        held = held.set_column(held.num_columns - 1, pa.field(KEPT, pa.bool_()), waits)
        results, kept = keep_first(self.by, self.within, held, min(slot.watermarks_after))
        slot.replace_rows(0, kept)
        yield 0, results

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rate, lag = inputs[0].rate, inputs[0].lag
        results = rate * figures.matching.get(self.name, 1.0)
        held = figures.held.get(self.name, results * self.within / 1e6 + rate * max(lag - inputs[0].delay, 0.0))
        return OperatorLoad((rate,), (rate,), (held,), 0.0, results), StreamPace(results, lag, lag)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        kept = counted.out / counted.arrived[0] if counted.arrived[0] else 1.0
        return {"matching": kept, "held": counted.held}

    @property
    def summary(self) -> str:
        return f"distinct by {', '.join(self.by) or 'nothing'} within {format_duration(self.within)}"


def plan(node: nodes.Distinct, sofar: PlanBuilder) -> Flow:
    flows = sofar.flows(node.input)
    operator = DistinctOperator(
        sofar.name("distinct"),
        stage_after(flows),
        (node.schema,),
        node.schema,
        (HashGrouping(node.by),),
        node.by,
        node.within,
    )
    return sofar.add(operator, flows)
