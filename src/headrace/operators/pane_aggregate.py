"""The aggregate over time windows whose state is one row of partials per group and pane.

Functions may be added while the state continues. Older rows have null for the partials of an added function. A result
has null for a function if its window starts before the function has received all tuples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.expressions import parse_aggregate
from headrace.kernels.windows import aggregate
from headrace.operators.aggregates import OverPartials, WindowAggregate


@dataclass(frozen=True)
class PaneAggregateOperator(OverPartials, WindowAggregate):
    """A time-window aggregate that keeps one partial for each group and pane instead of tuples."""

    since: tuple[tuple[int, int | None], ...] = field(default=(), kw_only=True)
    """By function, where some were added: its number, and the time from which on all tuples came to it."""

    @property
    def expiry_column(self) -> str:
        return aggregate.PANE

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return aggregate.partials_of(self, tuples.select(names))

    def stored(self, side: int) -> set[str]:
        return {aggregate.PANE, "ts", *self.by, *self.made} - self._added_columns

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        return aggregate.merge_partials(self, state)

    def close(self, held: pa.Table, before: int, after: int) -> pa.Table:
        found = aggregate.close_panes(self, held, before, after)
        starts = np.asarray(found.column("window_start").cast(pa.int64()))
        for (name, _), (_, time) in zip(self.functions, self.since, strict=False):
            if time is not None:
                values = pc.if_else(pa.array(starts < time), None, found.column(name))
                found = found.set_column(found.schema.get_field_index(name), self.schema.field(name), values)
        return found

    # --- functions that were added -----------------------------------------------------------------------------------

    @property
    def takes_functions(self) -> bool:
        return True

    def functions_complete_from(self, since: Sequence[Sequence[Any]]) -> Self:
        numbers = [number for number, _ in since]
        parsed = [
            parse_aggregate(text, self.schemas[0], self.by, name, number)
            for text, (name, _), number in zip(self.texts, self.functions, numbers, strict=True)
        ]
        in_order = sorted(zip(numbers, parsed, strict=True), key=lambda each: each[0])
        return replace(
            self,
            since=tuple((number, time) for number, time in since),
            partials=tuple(partial for _, function in in_order for partial in function.partials or ()),
            functions=tuple((name, str(f.merged_sql)) for (name, _), f in zip(self.functions, parsed, strict=True)),
        )

    def widened(self, side: int, state: pa.Table) -> pa.Table:
        if not self._added_columns or self._added_columns <= set(state.column_names):
            return state
        for name in self.made:
            if name not in state.column_names:
                state = state.append_column(name, pa.nulls(state.num_rows, self._partials_schema.field(name).type))
        return state

    @cached_property
    def _added_columns(self) -> set[str]:
        """Return the partial columns of added functions. Their names contain the number of the function."""
        added = tuple(f"__f{number}m" for number, time in self.since if time is not None)
        return {name for name in self.made if added and name.startswith(added)}

    @cached_property
    def _partials_schema(self) -> pa.Schema:
        return aggregate.partials_of(self, self.schemas[0].empty_table()).schema
