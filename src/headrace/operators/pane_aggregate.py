"""The aggregate over time windows whose state is one row of partials per group and pane."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.kernels.windows import aggregate
from headrace.operators.aggregates import OverPartials, WindowAggregate


@dataclass(frozen=True)
class PaneAggregateOperator(OverPartials, WindowAggregate):
    """A time-window aggregate that keeps one partial for each group and pane instead of tuples."""

    pane: int

    @property
    def expiry_column(self) -> str:
        return aggregate.PANE

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return aggregate.partials_of(self, tuples.select(names))

    def stored(self, side: int) -> set[str]:
        return {aggregate.PANE, "ts", *self.by, *self.made}

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        return aggregate.merge_partials(self, state)

    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        return aggregate.close_panes(self, held, before, after)
