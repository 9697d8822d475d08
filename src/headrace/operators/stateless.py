"""The operator that runs stateless steps in separate slots; only the strategy `operator` plans it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyarrow as pa

from headrace.operators.base import Results, Slot, StateKind, UnkeyedOperator
from headrace.plan import Step, schema_after, step_text
from headrace.plan.columns_read import Names, columns_before, narrow_table_steps, table_columns_needed
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace, assumed_share
from headrace.routing import ContentRouter, HashGrouping, Router
from headrace.support.event_time import NEVER


@dataclass(frozen=True)
class StatelessOperator(UnkeyedOperator):
    """Stateless steps in separate slots, as the strategy `operator` plans them."""

    steps: tuple[Step, ...]

    state: ClassVar[StateKind] = StateKind.NONE

    @property
    def router(self) -> Router:
        return ContentRouter()

    def needs(self, side: int, live: Names) -> Names:
        return columns_before(self.steps, live)

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        """Return the operator with narrower steps. Having no state, it places tuples by whichever columns remain."""
        groupings = (HashGrouping(tuple(schemas[0].names)),)
        steps = narrow_table_steps(self.steps, dict(table_columns_needed(self.steps, live)))
        return replace(self, schemas=schemas, schema=schema_after(steps, schemas[0]), groupings=groupings, steps=steps)

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        return [NEVER]

    @property
    def holds_tuples(self) -> bool:
        return False

    def stored(self, side: int) -> set[str]:
        return set()

    def run(self, slot: Slot) -> Results:
        for rows in slot.rows(0):
            yield 0, slot.run_steps(rows, self.steps)

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rate = inputs[0].rate
        results = rate * figures.matching.get(self.name, assumed_share(self.steps))
        return OperatorLoad((rate,), (rate,), (), 0.0, results), StreamPace(results, inputs[0].lag, inputs[0].delay)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        return {"matching": counted.out / counted.arrived[0] if counted.arrived[0] else 1.0}

    @property
    def summary(self) -> str:
        return ", ".join(map(step_text, self.steps)) or "union"
