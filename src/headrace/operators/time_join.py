"""The join over time windows: pairs that satisfy `on` with r.ts in [l.ts - W2, l.ts + W1]."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.kernels.joins.join_spec import Strip
from headrace.kernels.joins.pairs import column_numbers
from headrace.kernels.joins.theta_join import TIME
from headrace.kernels.windows.aggregate import times
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.joins import JoinOperator, join_groupings
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.support.event_time import move_back

if TYPE_CHECKING:
    from headrace.state.blocks import Block


@dataclass(frozen=True)
class TimeJoinOperator(JoinOperator):
    """A join over a time window: r is at most `w1` after l, and at most `w2` before l."""

    w1: int
    w2: int

    @property
    def time_window(self) -> tuple[int, int]:
        return self.w1, self.w2

    @property
    def strips(self) -> tuple[Strip, ...]:
        return (Strip(0, TIME, TIME, self.w2, self.w1),)

    def admits(self, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> npt.NDArray[np.bool_]:
        apart = column_numbers(right, "ts", r) - column_numbers(left, "ts", l)
        found: npt.NDArray[np.bool_] = (apart >= -self.w2) & (apart <= self.w1)
        return found

    def result_ts(self, l: Numbers, r: Numbers) -> Numbers:
        return np.minimum(l, r)

    def ts_sql(self, strip: Strip) -> str:
        return "least(l.ts, r.ts)"

    @property
    def may_follow(self) -> bool:
        return bool(self.keys)

    @property
    def expiry_column(self) -> str:
        return "ts"

    def reachable(self, blocks: Sequence[Block], side: int, others: Sequence[pa.Table]) -> Sequence[Block]:
        at = np.concatenate([times(table) for table in others])
        back, ahead = (self.w1, self.w2) if side == 0 else (self.w2, self.w1)
        low, high = int(at.min()) - back, int(at.max()) + ahead
        return [b for b in blocks if b.high is not None and b.low is not None and b.high >= low and b.low <= high]

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(move_back(inputs[0], self.w2), move_back(inputs[1], self.w1))

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        return [move_back(inputs[1], self.w1), move_back(inputs[0], self.w2)]

    @property
    def longest_window(self) -> int:
        return max(self.w1, self.w2)

    @property
    def looks_back(self) -> int:
        return 0  # a result has the smaller `ts` of its pair

    @property
    def trims_by_arrival(self) -> bool:
        return True

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        left, right = inputs
        w1, w2 = self.w1 / 1e6, self.w2 / 1e6
        pairs = left.rate * right.rate * (w1 + w2)
        assumed = max(left.rate, right.rate) / pairs if pairs else 0.0  # one result per tuple of the faster stream
        results = pairs * figures.matching.get(self.name, assumed)
        state = (
            left.rate * max(w1 + right.lag - left.delay, 0.0),
            right.rate * max(w2 + left.lag - right.delay, 0.0),
        )
        behind = max(left.lag + w2, right.lag + w1)
        rates = (left.rate, right.rate)
        reach = figures.reach.get(self.name, 0)
        return OperatorLoad(rates, rates, state, pairs, results, reach), StreamPace(
            results, behind, max(left.delay, right.delay)
        )

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        left, right = counted.arrived
        pairs = left * right * window_overlap(counted.span, self.w1 / 1e6, self.w2 / 1e6)
        return {"matching": counted.out / pairs if pairs else 0.0}

    @property
    def summary(self) -> str:
        return nodes.time_join_summary("inner", self.text, self.w1, self.w2)


def plan(node: nodes.TimeJoin, sofar: PlanBuilder) -> Flow | list[Flow]:
    if node.kept:
        from headrace.operators import outer_join  # it is built on this one

        return outer_join.plan(node, sofar)
    left, right = sofar.flows(node.left), sofar.flows(node.right)
    operator = TimeJoinOperator(
        sofar.name("join"),
        stage_after(left, right),
        (node.left.schema, node.right.schema),
        node.schema,
        join_groupings(node.left.schema, node.right.schema, node.on),
        node.columns,
        node.on,
        node.w1,
        node.w2,
    )
    return sofar.add(operator, left, right)


def window_overlap(span: float, w1: float, w2: float) -> float:
    """Return the share of all pairs of two streams over a span that are within each other's windows.

    >>> window_overlap(10.0, 10.0, 10.0)
    1.0
    >>> window_overlap(10.0, 5.0, 5.0)
    0.75
    """
    if span <= 0 or math.isinf(span):
        return 1.0
    missed = sum(max(span - w, 0.0) ** 2 / 2 for w in (w1, w2))
    return max(1.0 - missed / span**2, 1e-12)
