"""The aggregate over time windows that needs the tuples of a window themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.kernels import aggregate
from headrace.operators.aggregates import WindowAggregate
from headrace.plan.columns import Names, names_of, read_by


@dataclass(frozen=True)
class TupleAggregateOperator(WindowAggregate):
    """Its functions are over the tuples; where one depends on order, they see them in sequence."""

    ordered: bool

    @property
    def position(self) -> str:
        return "ts"

    @property
    def holds_tuples(self) -> bool:
        return True

    def needs(self, side: int, live: Names) -> Names:
        if self.ordered:  # the sequence is that of whole tuples
            return names_of(self.schemas[side].names)
        return names_of(self.by) | read_by(sql for _, sql in self.functions)

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return tuples.select(names)

    def stored(self, side: int) -> set[str]:
        return set(self.schemas[side].names)

    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        return aggregate.close_tuples(self, held, before, after)
