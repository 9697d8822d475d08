"""The join over count windows: an ordered stage ranks the tuples, then a join like any other matches them.

On substreams, tuples are counted within their substream, so each substream is ranked in the slot that has it. A silent
substream keeps its last tuples, however old they are, so state does not expire by rank. Instead, merges drop the rows
that are no longer among the last of their substream. Blocks of any size are therefore merged (`trims_by_merging`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.arrow import Numbers
from headrace.columnar.types import SUBSTREAM
from headrace.kernels.joins.join_spec import Strip
from headrace.kernels.joins.pairs import column_numbers
from headrace.kernels.windows import order
from headrace.operators.base import ReplacingOperator, Results, SequentialOperator, Slot, load_of_waiting
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.joins import JoinOperator, join_groupings
from headrace.operators.keyed_operator import KeyedOperator
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import HashGrouping, RangeGrouping
from headrace.support.event_time import FOREVER, NEVER

if TYPE_CHECKING:
    from headrace.state.blocks import Block

RANK_COLUMNS = (pa.field("__rank", pa.int64()), pa.field("__other", pa.int64()))


@dataclass(frozen=True)
class RankOperator(SequentialOperator):
    """The operator that ranks the tuples of two streams, in sequence.

    The first rank of a slot follows from the counts of all earlier stretches. In the notes, `given` is the number of
    tuples that have ranks.
    """

    def run(self, slot: Slot) -> Results:
        if not slot.groups(0):
            return
        (left, right), notes = self.release(slot)
        slot.note(**notes, given=[left.num_rows, right.num_rows])
        sofar = slot.notes.get("given", (0, 0))
        yield from enumerate(
            order.rank_tuples(left, right, (sofar[0] + slot.rows_before(0), sofar[1] + slot.rows_before(1)))
        )

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        given = [(before or {}).get("given", (0, 0)), *(each["given"] for each in notes)]
        return {**super().merge_notes(before, notes), "given": [sum(side) for side in zip(*given, strict=True)]}

    @property
    def relays(self) -> bool:
        return True

    @property
    def summary(self) -> None:
        return None


@dataclass(frozen=True)
class RankWithinOperator(ReplacingOperator, KeyedOperator):
    """The operator that ranks tuples within each substream.

    The state of the left input also has one row for each substream with the ranks given so far; only these rows have
    ranks.
    """

    @property
    def may_follow(self) -> bool:
        return False

    @property
    def placement(self) -> None:
        return None

    def needs(self, side: int, live: Names) -> Names:
        return names_of(self.schemas[side].names)

    def stored(self, side: int) -> set[str]:
        return set(self._held(side).names)

    def _held(self, side: int) -> pa.Schema:
        return self.schemas[side] if side else pa.schema([*self.schemas[0], *RANK_COLUMNS])

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    def run(self, slot: Slot) -> Results:
        if not (groups := slot.groups(0)):
            return
        held = [slot.waiting_rows(side, self._held(side), groups) for side in (0, 1)]
        counts = held[0].column("__rank").is_valid()
        given, left = held[0].filter(counts), held[0].filter(pc.invert(counts))
        before = zip(*(given.column(name).to_pylist() for name in (SUBSTREAM, "__rank", "__other")), strict=True)
        ready, waiting = zip(
            *(order.release_in_sequence(table, slot.complete_below) for table in (left, held[1])), strict=True
        )
        ready_left = ready[0].drop_columns([field.name for field in RANK_COLUMNS])
        ranked_left, ranked_right, sofar = order.rank_within(
            ready_left, ready[1], SUBSTREAM, {key: (l, r) for key, l, r in before}
        )
        slot.replace_rows(0, pa.concat_tables([waiting[0], self._counts(sofar)]))
        slot.replace_rows(1, waiting[1])
        yield from enumerate((ranked_left, ranked_right))

    def _counts(self, given: Mapping[int, Sequence[int]]) -> pa.Table:
        """Return a row for every substream: how many left and right tuples have been ranked."""
        known = {
            "ts": [0] * len(given),
            SUBSTREAM: list(given),
            "__rank": [left for left, _ in given.values()],
            "__other": [right for _, right in given.values()],
        }
        return pa.table(
            [pa.array(known.get(field.name, [None] * len(given)), field.type) for field in self._held(0)],
            schema=self._held(0),
        )

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        return load_of_waiting(inputs)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        return {}

    @property
    def relays(self) -> bool:
        return True

    @property
    def summary(self) -> None:
        return None


@dataclass(frozen=True)
class CountJoinOperator(JoinOperator):
    """A join over count windows. Its inputs are the two outputs of a ranker."""

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
        since_l = column_numbers(right, "__other", r) - column_numbers(left, "__rank", l)
        since_r = column_numbers(left, "__other", l) - column_numbers(right, "__rank", r)
        found: npt.NDArray[np.bool_] = ((since_l >= 1) & (since_l <= self.n1)) | ((since_r >= 1) & (since_r <= self.n2))
        return found

    def result_ts(self, l: Numbers, r: Numbers) -> Numbers:
        return np.maximum(l, r)

    def ts_sql(self, strip: Strip) -> str:
        return ("l", "r")[strip.moving] + ".ts"

    @property
    def expiry_column(self) -> str:
        return "__rank"

    def reachable(self, blocks: Sequence[Block], side: int, others: Sequence[pa.Table]) -> Sequence[Block]:
        return blocks

    @property
    def in_substreams(self) -> bool:
        return SUBSTREAM in self.schemas[0].names

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        return last_of_substream(state, max(self.n1, self.n2)) if self.in_substreams else state

    @property
    def trims_by_merging(self) -> bool:
        return self.in_substreams

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        totals = notes.get("given", [0, 0])
        done = min(inputs) == FOREVER
        if self.in_substreams and not done:
            return [NEVER, NEVER]
        return [FOREVER if done else totals[0] - self.n1, FOREVER if done else totals[1] - self.n2]

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rates, lag = tuple(flow.rate for flow in inputs), max(flow.lag for flow in inputs)
        pairs = rates[1] * self.n1 + rates[0] * self.n2
        results = pairs * figures.matching.get(self.name, 1 / max(self.n1, self.n2))
        reach = figures.reach.get(self.name, 0)
        return OperatorLoad(rates, rates, (self.n1, self.n2), pairs, results, reach), StreamPace(results, lag, lag)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        left, right = counted.arrived
        pairs = right * min(self.n1, left) + left * min(self.n2, right)
        return {"matching": counted.out / pairs if pairs else 0.0}

    @property
    def summary(self) -> str:
        return f"join on {' '.join(self.text.split())} last {self.n1}, {self.n2}"

    @property
    def routing_note(self) -> str:
        within = SUBSTREAM in self.schemas[0].names
        return "" if within else "slots first number the tuples, each in a stretch of ts; tuples of one ts share a slot"

    @property
    def owner(self) -> str:
        return self.ranker


def last_of_substream(state: pa.Table, last: int) -> pa.Table:
    """Return the last `last` rows of each substream; any later tuple is matched with these only."""
    substreams, ranks = (np.asarray(state.column(name)) for name in (SUBSTREAM, "__rank"))
    newest = np.full(int(substreams.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(newest, substreams, ranks)
    return state.filter(pa.array(ranks > newest[substreams] - last))


def plan(node: nodes.CountJoin, sofar: PlanBuilder) -> Flow:
    left, right = sofar.flows(node.left), sofar.flows(node.right)
    ranker = _ranker(node, sofar.name("rank"), stage_after(left, right))
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
        node.columns,
        node.on,
        node.n1,
        node.n2,
        ranker.name,
    )
    return sofar.add(operator, [ranked[0]], [ranked[1]])


def _ranker(node: nodes.CountJoin, name: str, stage: int) -> RankOperator | RankWithinOperator:
    schemas = (node.left.schema, node.right.schema)
    if SUBSTREAM not in schemas[0].names:
        return RankOperator(name, stage, schemas, node.schema, (RangeGrouping(("ts",)),) * 2)
    by = (SUBSTREAM,)
    return RankWithinOperator(name, stage, schemas, node.schema, (HashGrouping(by),) * 2, by)
