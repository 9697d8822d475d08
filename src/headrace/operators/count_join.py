"""The join over count windows: an ordered stage that gives tuples their ranks, then a join like any other.

On substreams tuples are counted within theirs. A substream that is silent keeps its last tuples, however old: state does
not expire by rank then, but whenever blocks are merged, what is no longer among the last of its substream is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow import Numbers
from headrace.kernels import order
from headrace.kernels.join import Strip
from headrace.kernels.pairs import numbers
from headrace.moments import FOREVER, NEVER
from headrace.operators.base import Results, Sequential, Slot
from headrace.operators.joins import JoinOperator, join_groupings
from headrace.operators.planning import Flow, PlanSoFar, stage_after
from headrace.plan.figures import Counted, Figures, Load, Pace
from headrace.query import nodes
from headrace.routing import HashGrouping
from headrace.types import SUBSTREAM

if TYPE_CHECKING:
    from headrace.state.blocks import Block

WITHIN = "given_within"  # the note of the ranks given so far, by substream
RANK_COLUMNS = (pa.field("__rank", pa.int64()), pa.field("__other", pa.int64()))


@dataclass(frozen=True)
class RankOperator(Sequential):
    """Gives the tuples of two streams their numbers, in sequence."""

    def run(self, slot: Slot) -> Results:
        if not slot.groups(0):  # all is in one slot
            return
        ready = []
        for side in (0, 1):
            released, waiting = order.release(slot.held(side, self.schemas[side], None), slot.bound)
            slot.hold(side, waiting, grouped=False)
            ready.append(released)
        if SUBSTREAM in self.schemas[0].names:
            left, right, sofar = order.rank_within(ready[0], ready[1], SUBSTREAM, slot.noted.get(WITHIN, {}))
            slot.note(**{WITHIN: sofar})
            yield from enumerate((left, right))
        else:
            given = tuple(slot.noted.get("given", (0, 0)))
            slot.note(given=[int(n + t.num_rows) for n, t in zip(given, ready, strict=True)])
            yield from enumerate(order.rank(ready[0], ready[1], given))

    @property
    def relays(self) -> bool:
        return True

    @property
    def words(self) -> None:
        return None


@dataclass(frozen=True)
class CountJoinOperator(JoinOperator):
    """Its inputs are the two streams of a `RankOperator`."""

    n1: int
    n2: int
    ranker: str

    @property
    def time_window(self) -> None:
        return None

    @property
    def strips(self) -> tuple[Strip, ...]:
        # l before r: rank(l) in [nL(r) - n1, nL(r) - 1]; r before l the other way round
        return (Strip(1, "__other", "__rank", self.n1, -1), Strip(0, "__other", "__rank", self.n2, -1))

    def admits(self, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> npt.NDArray[np.bool_]:
        since_l = numbers(right, "__other", r) - numbers(left, "__rank", l)
        since_r = numbers(left, "__other", l) - numbers(right, "__rank", r)
        found: npt.NDArray[np.bool_] = ((since_l >= 1) & (since_l <= self.n1)) | ((since_r >= 1) & (since_r <= self.n2))
        return found

    def result_ts(self, l: Numbers, r: Numbers) -> Numbers:
        return np.maximum(l, r)

    def ts_sql(self, strip: Strip) -> str:
        return ("l", "r")[strip.moving] + ".ts"

    @property
    def may_follow(self) -> bool:
        return False

    @property
    def position(self) -> str:
        return "__rank"

    def reachable(self, blocks: Sequence[Block], side: int, others: Sequence[pa.Table]) -> Sequence[Block]:
        return blocks

    @property
    def in_substreams(self) -> bool:
        return SUBSTREAM in self.schemas[0].names

    def merged(self, state: pa.Table) -> pa.Table:
        return among_last(state, max(self.n1, self.n2)) if self.in_substreams else state

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    def keep_from(self, inputs: Sequence[int], ranks: Mapping[str, Any]) -> list[int]:
        totals = ranks.get("given", [0, 0])
        done = min(inputs) == FOREVER
        if self.in_substreams and not done:
            return [NEVER, NEVER]
        return [FOREVER if done else totals[0] - self.n1, FOREVER if done else totals[1] - self.n2]

    @property
    def longest_window(self) -> None:
        return None

    @property
    def trims_by_arrival(self) -> bool:
        return False

    def load(self, inputs: Sequence[Pace], figures: Figures) -> tuple[Load, Pace]:
        rates, lag = tuple(flow.rate for flow in inputs), max(flow.lag for flow in inputs)
        pairs = rates[1] * self.n1 + rates[0] * self.n2
        results = pairs * figures.matching.get(self.name, 1 / max(self.n1, self.n2))
        reach = figures.reach.get(self.name, 0)
        return Load(rates, rates, (self.n1, self.n2), pairs, results, reach), Pace(results, lag, lag)

    def measured(self, counted: Counted) -> dict[str, float]:
        left, right = counted.arrived
        pairs = right * min(self.n1, left) + left * min(self.n2, right)
        return {"matching": counted.out / pairs if pairs else 0.0}

    @property
    def words(self) -> str:
        return f"join on {' '.join(self.text.split())} last {self.n1}, {self.n2}"

    @property
    def owner(self) -> str:
        return self.ranker


def among_last(state: pa.Table, last: int) -> pa.Table:
    """Without rows that so many of their substream, among these, came after: whatever is to come counts these first."""
    substreams, ranks = (np.asarray(state.column(name)) for name in (SUBSTREAM, "__rank"))
    newest = np.full(int(substreams.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(newest, substreams, ranks)
    return state.filter(pa.array(ranks > newest[substreams] - last))


def plan(node: nodes.CountJoin, sofar: PlanSoFar) -> Flow:
    left, right = sofar.flows(node.left), sofar.flows(node.right)
    ranker = RankOperator(
        sofar.name("rank"),
        stage_after(left, right),
        (node.left.schema, node.right.schema),
        node.schema,
        (HashGrouping(()), HashGrouping(())),
    )
    sofar.add(ranker, left, right)
    ranked = [
        Flow(ranker.name, side, ranker.stage, (), pa.schema([*source.schema, *RANK_COLUMNS]))
        for side, source in enumerate((node.left, node.right))
    ]
    operator = CountJoinOperator(
        sofar.name("join"),
        ranker.stage + 1,
        (ranked[0].schema, ranked[1].schema),
        node.schema,
        join_groupings(node.left.schema, node.right.schema, node.on),
        node.on,
        node.columns,
        node.n1,
        node.n2,
        ranker.name,
    )
    return sofar.add(operator, [ranked[0]], [ranked[1]])
