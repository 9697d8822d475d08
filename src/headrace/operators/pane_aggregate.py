"""The aggregate over time windows whose state is one row of partials per group and pane."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.expressions import Partial
from headrace.kernels import aggregate
from headrace.operators.aggregates import WindowAggregate
from headrace.plan.columns import Names, names_of, read_by


@dataclass(frozen=True)
class PaneAggregateOperator(WindowAggregate):
    """Its functions are over the merged partials."""

    pane: int
    partials: tuple[Partial, ...]

    @property
    def position(self) -> str:
        return aggregate.PANE

    @property
    def holds_tuples(self) -> bool:
        return False

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.by) | read_by(sql for part in self.partials for _, sql, _ in part.columns)

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return aggregate.partials_of(self, tuples.select(names))

    def stored(self, side: int) -> set[str]:
        made = (name for partial in self.partials for name, _, _ in partial.columns)
        return {aggregate.PANE, "ts", *self.by, *made}

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        return aggregate.merge_partials(self, state)

    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        return aggregate.close_panes(self, held, before, after)
