"""The aggregate over time windows whose functions need the tuples themselves."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.kernels.windows import aggregate
from headrace.operators.aggregates import OverTuples, WindowAggregate


@dataclass(frozen=True)
class TupleAggregateOperator(OverTuples, WindowAggregate):
    """A time-window aggregate that keeps tuples, because its functions have no partials."""

    @property
    def expiry_column(self) -> str:
        return "ts"

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return tuples.select(names)

    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        return aggregate.close_tuples(self, held, before, after)
