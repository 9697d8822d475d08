"""The outer join over time windows: a join that marks tuples with a partner, and operators for those without.

    join    finds pairs as the inner join does, and emits marks: the numbers of kept tuples that are in a pair
    alone   one for each kept side: holds its tuples (in the same blocks as the join) and their marks, by group. It emits
            a tuple that leaves its window without a mark, with nulls for the other side

Invariant: a pair is evaluated in one place, in the epoch in which its later tuple arrives, and marked there. The
watermark of a side's marks is that of the other side less the window. When it passes a tuple, every pair of that tuple
has been evaluated and every mark has been sent to the slot that has the tuple's group downstream. Results therefore do
not depend on where pairs are evaluated, in how many slots, or under which layouts. If each group is in one slot, that
slot runs both operators and nothing is sent. No tuple is held longer than an inner join holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow
from headrace.columnar.arrow import Numbers
from headrace.columnar.types import SUBSTREAM, TS_TYPE, JoinColumn
from headrace.kernels.joins.match_marks import is_marked
from headrace.kernels.windows.aggregate import times
from headrace.operators.base import AppendingOperator, Arrangement, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.joins import JoinOperator, PairedOperator, content_groupings, with_group_hash
from headrace.operators.placement import Placement
from headrace.operators.time_join import TimeJoinOperator
from headrace.plan.columns_read import Names, names_of
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import NUMBER, ContentRouter, HashGrouping, HashRouter, OneSlotRouter, Router
from headrace.routing.hashing import HASH

if TYPE_CHECKING:
    from headrace.state.blocks import Block

MARKS = pa.schema([("ts", TS_TYPE), (NUMBER, pa.int64()), (HASH, pa.uint64())])  # of a tuple that has a partner
ROW = "__row"  # the column with the row number in a table that is being joined
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class OuterJoinOperator(TimeJoinOperator):
    """The join of an outer join: output 0 has the pairs, outputs 1 and 2 the marks of left and right tuples."""

    how: str

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple("lr".index(side) for side in nodes.KEPT_SIDES[self.how])

    @property
    def band(self) -> None:
        """Return None: ranges cannot be groups, because marks find their tuples by hash."""
        return None

    @property
    def may_follow(self) -> bool:
        return False  # marks are placed by the hash of all keys

    @property
    def placement(self) -> None:
        return None  # operators downstream also receive tuples without a partner

    def watermark_of(self, output: int, inputs: Sequence[int]) -> int:
        """Return the watermark of an output; for marks, no tuple below it can still find a partner."""
        return self.keep_from(inputs, {})[output - 1] if output else self.watermark(inputs)

    @property
    def looks_back(self) -> int:
        return self.longest_window  # a partner may be older than the tuple that it marks

    @property
    def only_exact(self) -> bool:
        return True

    def output_schema(self, output: int) -> pa.Schema:
        return MARKS if output else self.schema

    def is_result(self, output: int) -> bool:
        return output == 0

    def run(self, slot: Slot) -> Results:
        met: dict[int, _MatchRecorder] = {}
        counting = self._counting
        for pair in self.pairs_of_tables(slot):
            sides = [met.setdefault(id(table), _MatchRecorder(side, table)) for side, table in enumerate(pair)]
            tables = (each.numbered if each.side in self.kept else each.table for each in sides)
            for found in counting.meet(slot, *tables):
                for side in self.kept:
                    sides[side].marked[np.asarray(found.column(f"{ROW}{side}"))] = True
                yield 0, found.select(self.schema.names)
        for each in met.values():
            if each.side in self.kept and each.marked.any():
                yield 1 + each.side, each.marks()

    @cached_property
    def _counting(self) -> JoinOperator:
        """Return this join with the row numbers of each result's tuples as further columns."""
        columns = tuple(JoinColumn(f"{ROW}{side}", "lr"[side], ROW) for side in self.kept)
        schema = pa.schema([*self.schema, *((name, pa.int64()) for name, _, _ in columns)])
        return replace(self, columns=(*self.columns, *columns), schema=schema)

    @property
    def summary(self) -> str:
        return nodes.time_join_summary(self.how, self.text, self.w1, self.w2)


class _MatchRecorder:
    """A table of one side of the join, and which of its rows have a partner."""

    def __init__(self, side: int, table: pa.Table) -> None:
        self.side, self.table = side, table

    @cached_property
    def numbered(self) -> pa.Table:
        rows = pa.array(np.arange(self.table.num_rows))
        return self.table.drop_columns([NUMBER]).append_column(ROW, rows)  # results do not need the number

    @cached_property
    def marked(self) -> Marks:
        return np.zeros(self.table.num_rows, bool)

    def marks(self) -> pa.Table:
        return arrow.take_rows(self.table.select(MARKS.names), np.flatnonzero(self.marked))


@dataclass(frozen=True)
class UnmatchedOperator(PairedOperator, AppendingOperator):
    """The tuples of one side of a join, and the marks of those that have a partner.

    The windows are the join's. It never follows the join: a hot key of the join may be in several slots.
    """

    joined: str  # the join
    side: str  # l or r
    by: tuple[str, ...]  # columns of the key; none: tuples are placed by their content

    # --- its inputs --------------------------------------------------------------------------------------------------

    @property
    def router(self) -> Router:
        return HashRouter(self.by) if self.by else ContentRouter()

    def routing_options(self, slots: int, figures: Figures) -> Sequence[Router]:
        return [self.router, OneSlotRouter()]

    @property
    def key_texts(self) -> tuple[str, ...]:
        return self.by

    def needs(self, side: int, live: Names) -> Names:
        if side == 1:
            return names_of(MARKS.names)
        return names_of(column for out, column in self._own if out.lower() in live)

    @property
    def _own(self) -> list[tuple[str, str]]:
        """Return the columns that a result takes from its tuple: (name in the result, name in the tuple). Both sides
        have the substream."""
        return [(out, column) for out, side, column in self.columns if side == self.side or column == SUBSTREAM]

    @property
    def takes_whole(self) -> bool:
        return not self.by  # the group depends on the whole tuple

    # --- whose slots it can share --------------------------------------------------------------------------------------

    @property
    def colocate_with(self) -> str:
        return self.joined if self.by else ""

    @property
    def placement(self) -> Placement | None:
        grouping = self.groupings[0]
        assert isinstance(grouping, HashGrouping)
        named = [{out for out, column in self._own if column == name} for name in grouping.columns]
        return Placement(self.follows or self.name, tuple(map(frozenset, named)), grouping.types) if self.by else None

    # --- time and state ------------------------------------------------------------------------------------------------

    def watermark(self, inputs: Sequence[int]) -> int:
        return min(inputs)

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        return [inputs[1], inputs[1]]

    @property
    def looks_back(self) -> int:
        return 0  # the join looks back

    @property
    def expiry_column(self) -> str:
        return "ts"

    @property
    def arrangement_kind(self) -> Arrangement:
        return Arrangement.HASH if self.by else Arrangement.POSITION

    def arrangement(self, side: int) -> Arrangement:
        return Arrangement.ANYHOW if side == 1 else self.arrangement_kind

    def merged(self, side: int, state: pa.Table) -> pa.Table:
        """Drop repeated marks: a tuple is marked in every epoch in which it finds a partner, and one mark is enough."""
        if side == 0:
            return state
        numbers, first = np.unique(_numbers(state, slice(None)), return_index=True)
        return state if len(numbers) == state.num_rows else arrow.take_rows(state, np.sort(first))

    @property
    def holds_tuples(self) -> bool:
        return True

    def stored(self, side: int) -> set[str]:
        return {*self.schemas[side].names, HASH, NUMBER}

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        if side == 1:
            return tuples.select(names)
        grouping = self.groupings[0]
        assert isinstance(grouping, HashGrouping)
        return with_group_hash(grouping, tuples, names)

    # --- its work ------------------------------------------------------------------------------------------------------

    def run(self, slot: Slot) -> Results:
        low, high = slot.watermarks_before[1], slot.watermarks_after[1]
        old = slot.read_blocks([b for b in slot.old(0) if _within(b, low, high)], 0)
        new = slot.read_blocks([b for b in slot.new(0) if _within(b, None, high)], 0)
        leaving = [*_between(old, low, high), *_between(new, None, high)]
        if not leaving:
            return
        numbers = np.concatenate([_numbers(table, rows) for table, rows in leaving])
        first = min(int(times(table)[rows].min()) for table, rows in leaving)
        marks = self._marks(slot, first, high)
        slot.count(read=len(numbers) + sum(map(len, marks)))
        alone = ~is_marked(numbers, marks)
        for table, rows in leaving:
            mine, alone = alone[: len(rows)], alone[len(rows) :]
            if mine.any():
                yield 0, self._padded(arrow.take_rows(table.select(self._read), rows[mine]))

    def _marks(self, slot: Slot, first: int, end: int) -> list[Numbers]:
        """Return the numbers of marked tuples in [first, end). The range matters: a block of marks can span a whole
        window."""
        blocks = [b for b in (*slot.old(1), *slot.new(1)) if _within(b, first, end)]
        found = [(table, times(table)) for table in slot.read_blocks(blocks, 1)]
        return [_numbers(table, (at >= first) & (at < end)) for table, at in found]

    @property
    def _read(self) -> list[str]:
        return list(dict.fromkeys(["ts", *(column for _, column in self._own)]))

    def _padded(self, tuples: pa.Table) -> pa.Table:
        """Return results with nulls for the other side."""
        own = dict(self._own)
        columns = [
            tuples.column(own[name]) if name in own else pa.nulls(tuples.num_rows, self.schema.field(name).type)
            for name, _, _ in self.columns
        ]
        return pa.Table.from_arrays([tuples.column("ts"), *columns], schema=self.schema)

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        tuples, marks = inputs
        rates = (tuples.rate, marks.rate)
        held = (tuples.rate * max(marks.lag - tuples.delay, 0.0), marks.rate * max(marks.lag - marks.delay, 0.0))
        results = tuples.rate * figures.matching.get(self.name, 0.0)
        lag = max(tuples.lag, marks.lag)
        sending = (0.0, marks.rate)  # its tuples are in blocks that the join receives anyway
        return OperatorLoad(rates, sending, held, 0.0, results), StreamPace(results, lag, marks.lag)

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        return {"matching": counted.out / counted.arrived[0] if counted.arrived[0] else 0.0}

    # --- for people ------------------------------------------------------------------------------------------------------

    @property
    def summary(self) -> None:
        return None

    @property
    def owner(self) -> str:
        return self.joined


def _within(block: Block, low: int | None, high: int) -> bool:
    """Return whether a block may have tuples in [low, high)."""
    if block.low is None or block.high is None:
        return False
    return block.low < high and (low is None or block.high >= low)


def _between(tables: Sequence[pa.Table], low: int | None, high: int) -> Iterator[tuple[pa.Table, Numbers]]:
    """Yield the tables with rows in [low, high), and the numbers of those rows."""
    for table in tables:
        at = times(table)
        rows = np.flatnonzero(at < high if low is None else (at < high) & (at >= low))
        if len(rows):
            yield table, rows


def _numbers(table: pa.Table, rows: Any) -> Numbers:
    found: Numbers = np.asarray(table.column(NUMBER))[rows]
    return found


def plan(node: nodes.TimeJoin, sofar: PlanBuilder) -> list[Flow]:
    inputs = [sofar.flows(node.left), sofar.flows(node.right)]
    groupings = [
        replace(grouping, drop_null=False, numbered=True) if side in node.kept else grouping
        for side, grouping in zip("lr", content_groupings(node.left.schema, node.right.schema, node.on), strict=True)
    ]
    schemas = (node.left.schema, node.right.schema)
    join = OuterJoinOperator(
        sofar.name("join"),
        stage_after(*inputs),
        schemas,
        node.schema,
        tuple(groupings),
        node.columns,
        node.on,
        node.w1,
        node.w2,
        node.how,
    )
    found = [sofar.add(join, *inputs)]
    for side in join.kept:
        alone = UnmatchedOperator(
            sofar.name("alone"),
            join.stage + 1,
            (schemas[side], MARKS),
            node.schema,
            (groupings[side], HashGrouping((HASH,))),
            node.columns,
            join.name,
            "lr"[side],
            groupings[side].columns if node.on.keys else (),
        )
        marks = Flow(join.name, 1 + side, join.stage, (), MARKS)
        found.append(sofar.add(alone, inputs[side], [marks]))
    return found
