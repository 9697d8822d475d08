"""The join of each tuple with the last change of its key: a slowly changing table that arrives as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.expressions import KeyEquality
from headrace.kernels.windows.asof import join_asof
from headrace.operators.base import ReplacingOperator, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.joins import PairedOperator, aligned_keys, drop_null_keys, key_groupings
from headrace.operators.keyed_operator import KeyedOperator
from headrace.operators.placement import Placement
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import Grouping, HashGrouping


@dataclass(frozen=True)
class AsOfOperator(ReplacingOperator, PairedOperator, KeyedOperator):
    """A join that holds left tuples until both watermarks pass, and right tuples while a later left tuple can need
    them."""

    keys: tuple[KeyEquality, ...]
    within: int | None
    keep: bool

    # --- its inputs --------------------------------------------------------------------------------------------------

    def needs(self, side: int, live: Names) -> Names:
        if side == 1:  # whole tuples decide ties between changes
            return names_of(self.schemas[1].names)
        return names_of(self.by) | names_of(c for out, of, c in self.columns if of == "l" and out.lower() in live)

    def as_sent(self, side: int, tuples: pa.Table) -> pa.Table:
        """Drop tuples with a null key, unless the join keeps them: they match nothing."""
        return tuples if side == 0 and self.keep else drop_null_keys(tuples, self.by)

    # --- whose slots it can share --------------------------------------------------------------------------------------

    @property
    def placement(self) -> Placement | None:
        grouping = self.groupings[0]
        assert isinstance(grouping, HashGrouping)
        sides = "l" if self.keep else "lr"  # a null on the right is not placed by the key
        named = [{out for out, side, c in self.columns if c == name and side in sides} for name in grouping.columns]
        return Placement(self.follows or self.name, tuple(map(frozenset, named)), grouping.types) if self.by else None

    def aligned(self, handed: Sequence[Sequence[Placement]]) -> tuple[Grouping, ...] | None:
        keys = aligned_keys(self.keys, self.schemas, handed)
        return key_groupings(keys, drop_null=False) if keys else None

    # --- time and state ------------------------------------------------------------------------------------------------

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    @property
    def longest_window(self) -> int:
        return self.within or 0  # `within` does not delay tuples: they wait only for the slower input

    @property
    def looks_back(self) -> int | None:
        return self.within

    def stored(self, side: int) -> set[str]:
        return set(self.schemas[side].names)

    # --- its work ------------------------------------------------------------------------------------------------------

    def run(self, slot: Slot) -> Results:
        if not (groups := slot.groups(0)):
            return
        asking, changes = (slot.waiting_rows(side, self.schemas[side], groups) for side in (0, 1))
        results, waiting, kept = join_asof(self, asking, changes, slot.watermarks_after)  # the same under best effort
        slot.replace_rows(0, waiting)
        slot.replace_rows(1, kept)
        yield 0, results

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        left, right = inputs
        lag = max(left.lag, right.lag)
        waiting = left.rate * max(lag - left.delay, 0.0)
        back = lag if self.within is None else lag + self.within / 1e6
        held = figures.held.get(self.name, waiting + right.rate * max(back - right.delay, 0.0))
        results = left.rate * figures.matching.get(self.name, 1.0)
        rates = (left.rate, right.rate)
        return OperatorLoad(rates, rates, (waiting, max(held - waiting, 0.0)), 0.0, results), StreamPace(
            results, lag, lag
        )

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        share = counted.out / counted.arrived[0] if counted.arrived[0] else 1.0
        return {"matching": share, "held": counted.held}

    @property
    def summary(self) -> str:
        return nodes.asof_summary(self.by, self.within, self.keep)


def plan(node: nodes.AsOf, sofar: PlanBuilder) -> Flow:
    left, right = sofar.flows(node.left), sofar.flows(node.right)
    operator = AsOfOperator(
        sofar.name("asof"),
        stage_after(left, right),
        (node.left.schema, node.right.schema),
        node.schema,
        key_groupings(node.keys, drop_null=False),
        node.by,
        node.columns,
        node.keys,
        node.within,
        node.keep,
    )
    return sofar.add(operator, left, right)
