"""Joins of several streams over time windows, without stored intermediate results.

State is the tuples of each alias that are still in a window, as blocks. In each epoch a slot lets the new tuples of each
alias probe the others (`headrace.kernels.joins.nway_probe`).

The slot of a combination is that of its partitioned tuples:

    a key that all aliases share       every alias is partitioned by it
    a key that some aliases share      those are partitioned by it, and every slot reads the others
    no key                             the first two are partitioned by rectangles, and every slot reads the others

Invariant: in each case exactly one slot has all tuples of a combination.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.columnar.types import JoinColumn
from headrace.expressions import NWayPredicate
from headrace.expressions.nway_predicates import KeyClass
from headrace.kernels.joins.equijoin import concat_runs
from headrace.kernels.joins.nway_probe import kind_of_probe, nway_join
from headrace.kernels.joins.probe_order import ProbeCounts, choose_order, order_cost
from headrace.kernels.joins.probed_tuples import ProbedBlock
from headrace.kernels.joins.stored_orders import KeyColumns, with_orders, without_orders
from headrace.operators.base import AppendingOperator, Arrangement, Results, Slot
from headrace.operators.flow import Flow, PlanBuilder, stage_after
from headrace.operators.joins import stored_tuples
from headrace.operators.placement import Placement
from headrace.plan.columns_read import Names, names_of, narrow_step
from headrace.plan.figures import Figures, OperatorLoad, SampleCounts, StreamPace
from headrace.query import nodes
from headrace.routing import (
    EverywhereGrouping,
    GridRouter,
    Grouping,
    HashGrouping,
    HashRouter,
    OneSlotRouter,
    PartHashRouter,
    Router,
)
from headrace.routing.hashing import HASH
from headrace.state.blocks import Block
from headrace.support.event_time import move_back

PROBES, ROWS = "probes", "rows"  # the notes with the counts of probes, and with the tuples of each alias in all slots


@dataclass(frozen=True)
class NWayJoinOperator(AppendingOperator):
    """A join of several streams under aliases. The inputs are the aliases, in their order."""

    aliases: tuple[str, ...]
    columns: tuple[JoinColumn, ...]
    on: NWayPredicate
    windows: tuple[int, ...]
    routed_by: tuple[KeyClass, ...]  # the keys that decide slots; empty: none

    # --- what the kernel asks ------------------------------------------------------------------------------------------

    def stored_key(self, alias: int) -> KeyColumns | None:
        grouping = self.groupings[alias]
        if not self.is_keyed or not grouping.columns:
            return None
        assert isinstance(grouping, HashGrouping | EverywhereGrouping) and grouping.types is not None
        return KeyColumns(grouping.columns, grouping.types)

    # --- its inputs --------------------------------------------------------------------------------------------------

    @property
    def is_keyed(self) -> bool:
        """Return whether a key decides the slot of some aliases."""
        return bool(self.routed_by)

    @property
    def everywhere(self) -> tuple[int, ...]:
        """Return the inputs that every slot reads."""
        return tuple(side for side, grouping in enumerate(self.groupings) if isinstance(grouping, EverywhereGrouping))

    @property
    def router(self) -> Router:
        if not self.is_keyed:
            return GridRouter()
        return PartHashRouter(self.key_texts, self.everywhere) if self.everywhere else HashRouter(self.key_texts)

    def routing_options(self, slots: int, figures: Figures) -> Sequence[Router]:
        if not self.is_keyed:
            return [*GridRouter.all(slots), OneSlotRouter()]
        others = [other.router for other in self._routed_by_others() if other.router.way != self.router.way]
        return [self.router, *others, OneSlotRouter()]

    def routed(self, router: Router) -> Self | None:
        options = [self, *self._routed_by_others()]
        return next((each for each in options if each.router.way == router.way), None)

    def _routed_by_others(self) -> list[Self]:
        """Return this operator, partitioned by each of the keys that some aliases share; empty if all share one."""
        if not self.everywhere:
            return []
        return [
            replace(self, groupings=key_groupings(len(self.aliases), self.on, [key]), routed_by=(key,))
            for key in self.on.keys
        ]

    @property
    def needs_rates(self) -> bool:
        return bool(self.everywhere) and len(self.on.keys) > 1

    @property
    def key_texts(self) -> tuple[str, ...]:
        return tuple(
            " = ".join(f"{self.aliases[place]}.{name}" for place, name in key.columns) for key in self.routed_by
        )

    def needs(self, side: int, live: Names) -> Names:
        alias = self.aliases[side]
        passed = names_of(column for out, of, column in self.columns if of == alias and out.lower() in live)
        return passed | self.on.columns(side)

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        columns = tuple(column for column in self.columns if column.name.lower() in live)
        schema = narrow_step(self.schema, names_of(column.name for column in columns))
        return replace(self, schemas=schemas, schema=schema, columns=columns)

    @property
    def takes_whole(self) -> bool:
        return not self.is_keyed  # the group depends on the whole tuple

    @property
    def placement(self) -> Placement | None:
        if not self.is_keyed or self.everywhere:
            return None
        places = {alias: place for place, alias in enumerate(self.aliases)}
        named = [{c.name for c in self.columns if c.source == key.column(places[c.side])} for key in self.routed_by]
        return Placement(self.name, tuple(map(frozenset, named)), tuple(key.type for key in self.routed_by))

    # --- time ----------------------------------------------------------------------------------------------------------

    def watermark(self, inputs: Sequence[int]) -> int:
        """Return the smallest time of a result that a later tuple of some alias can complete."""
        return min(move_back(known, self._longest_but(alias)) for alias, known in enumerate(inputs))

    def keep_from(self, inputs: Sequence[int], notes: Mapping[str, Any]) -> list[int]:
        return [
            move_back(min(known for other, known in enumerate(inputs) if other != alias), window)
            for alias, window in enumerate(self.windows)
        ]

    def _longest_but(self, alias: int) -> int:
        return max(window for other, window in enumerate(self.windows) if other != alias)

    @property
    def longest_window(self) -> int:
        return max(self.windows)

    @property
    def looks_back(self) -> int:
        return 0  # a result has the smallest `ts` of its tuples

    @property
    def trims_by_arrival(self) -> bool:
        return True

    # --- its state -----------------------------------------------------------------------------------------------------

    @property
    def expiry_column(self) -> str:
        return "ts"

    @property
    def arrangement_kind(self) -> Arrangement:
        return Arrangement.HASH if self.is_keyed else Arrangement.POSITION

    def arrangement(self, side: int) -> Arrangement:
        return Arrangement.HASH if self.stored_key(side) else Arrangement.POSITION

    @property
    def holds_tuples(self) -> bool:
        return True

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return stored_tuples(self.groupings[side], tuples, names)

    def stored(self, side: int) -> set[str]:
        return {*self.schemas[side].names, *([HASH] if self.groupings[side].keeps_hash else [])}

    def further_keys(self, side: int) -> tuple[KeyColumns, ...]:
        """Return the keys by which an alias is looked up, other than the one that its blocks are sorted by."""
        stored = self.stored_key(side)
        keys = (KeyColumns((key.column(side),), (key.type,)) for key in self.on.keys if side in key.aliases)
        return tuple(key for key in keys if stored is None or key.columns[0] not in stored.columns)

    def further_orders(self, side: int) -> tuple[str, ...]:
        return tuple(key.text for key in self.further_keys(side))

    def with_orders(self, side: int, state: pa.Table, arrangement: Numbers) -> pa.Table:
        return with_orders(state, self.further_keys(side), arrangement)

    def widened(self, side: int, state: pa.Table) -> pa.Table:
        return without_orders(state)  # the orders of merged blocks are not that of the merge

    def merge_notes(self, before: Mapping[str, Any] | None, notes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the counts of probes of all slots, added to those of earlier epochs, which fade."""
        if not notes:
            return dict(before or {})
        found = _counts(before or {}).faded()
        for noted in notes:
            for probe, counts in _counts(noted).items():
                found.add(probe, *counts)
        rows = [sum(each) for each in zip(*(noted[ROWS] for noted in notes), strict=True)]
        return {PROBES: found.to_json(), ROWS: rows}

    def orders(self, notes: Mapping[str, Any]) -> dict[str, str]:
        counts = _counts(notes)
        if not counts.rows:
            return {}
        orders = (
            choose_order(start, len(self.aliases), counts, lambda probe: kind_of_probe(self, probe, counts.rows))
            for start in range(len(self.aliases))
        )
        texts = (", ".join(self.aliases[alias] for alias in order) for order in orders)
        return dict(zip(self.aliases, texts, strict=True))

    def order_cost(self, what: str, order: str, notes: Mapping[str, Any]) -> float:
        counts, places = _counts(notes), [self.aliases.index(alias) for alias in order.split(", ")]
        start = self.aliases.index(what)
        return order_cost(start, places, counts, lambda probe: kind_of_probe(self, probe, counts.rows))

    # --- its work ------------------------------------------------------------------------------------------------------

    @property
    def can_spread_group(self) -> bool:
        return self.is_keyed and not {0, 1} & set(self.everywhere)

    @property
    def pairing(self) -> str:
        whole = ", ".join(self.aliases[side] for side in self.everywhere)
        if len(self._routed_by_others()) > 1:
            whole = "the streams without the chosen key"
        parts = [
            f"each new tuple probes the other streams {self._probed_by}",
            f"every slot reads {whole}" if whole else "",
            f"{self.on.may_fail} may fail, so it is evaluated last" if self.on.may_fail else "",
        ]
        return "; ".join(filter(None, parts))

    @property
    def _probed_by(self) -> str:
        if self.is_keyed and not self.everywhere:
            return "by key"
        has_band = any(part.band is not None for part in self.on.safe)
        ways = [*(["by key"] if self.on.keys else []), *(["along a number"] if has_band else []), "by time"]
        return " or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))

    @property
    def predicate(self) -> str:
        return self.on.text

    def alternative(self, load: OperatorLoad) -> str:
        """Return what a chain of joins of two streams would cost, if pairs are as many as tuples of the faster stream."""
        if len(self.aliases) < 3:
            return ""
        rates, windows = list(load.arriving), [window / 1e6 for window in self.windows]
        pairs, within, sent, held = rates[0], windows[0], 0.0, 0.0
        for rate, window in zip(rates[1:], windows[1:], strict=True):
            sent, held = sent + pairs + rate, held + pairs * within + rate * window
            pairs, within = max(pairs, rate), max(within, window)
        return (
            f"a chain of {len(rates) - 1} joins of two streams would send about {sent:,.0f} tuples/s and hold {held:,.0f},"
            " if each tuple of the faster side has one match"
        )

    def run(self, slot: Slot) -> Results:
        new = [list(self._new(slot, side)) for side in range(len(self.aliases))]
        if not any(new):
            return
        old = [list(self._old(slot, side, new)) for side in range(len(self.aliases))]
        slot.count(read=sum(block.table.num_rows for blocks in old for block in blocks))
        known, found = _counts(slot.notes), ProbeCounts()
        for table in nway_join(self, new, old, known, found, lambda pairs: slot.count(pairs=pairs)):
            yield 0, table
        if found.counts:
            slot.note(**{PROBES: found.to_json(), ROWS: found.rows})

    def _new(self, slot: Slot, side: int) -> Iterator[ProbedBlock]:
        """Yield the tuples of an alias that arrived, as one block."""
        blocks = sorted(slot.new(side), key=lambda block: block.name)
        if found := slot.read_pieces(blocks, side):
            key = self.stored_key(side)
            tables = [each.table for each in found]
            yield ProbedBlock(concat_runs(tables) if key else pa.concat_tables(tables).combine_chunks(), key)

    def _old(self, slot: Slot, side: int, new: Sequence[Sequence[ProbedBlock]]) -> Iterator[ProbedBlock]:
        """Yield the blocks of an alias that can belong to a combination with a new tuple of another alias."""
        others = [(other, block.times) for other, blocks in enumerate(new) for block in blocks if other != side]
        if not others:
            return
        low = min(int(times.min()) for _, times in others) - self.windows[side]
        high = max(int(times.max()) + self.windows[other] for other, times in others)
        for found in slot.read_pieces([block for block in slot.old(side) if _overlaps(block, low, high)], side):
            yield ProbedBlock(found.table, self.stored_key(side), found)

    def load(self, inputs: Sequence[StreamPace], figures: Figures) -> tuple[OperatorLoad, StreamPace]:
        rates, windows = tuple(each.rate for each in inputs), [window / 1e6 for window in self.windows]
        combinations = math.prod(rates) * _one_leads(windows)
        assumed = max(rates) / combinations if combinations else 0.0  # one result per tuple of the fastest stream
        results = combinations * figures.matching.get(self.name, assumed)
        lags = [max(each.lag for each in [*inputs[:side], *inputs[side + 1 :]]) for side in range(len(inputs))]
        state = tuple(
            each.rate * max(window + lag - each.delay, 0.0)
            for each, window, lag in zip(inputs, windows, lags, strict=True)
        )
        behind = max(each.lag + self._longest_but(side) / 1e6 for side, each in enumerate(inputs))
        compared = results if self.is_keyed else combinations
        return OperatorLoad(rates, rates, state, compared, results), StreamPace(
            results, behind, max(each.delay for each in inputs)
        )

    def measured(self, counted: SampleCounts) -> dict[str, float]:
        windows = [1.0 if counted.span <= 0 else min(window / 1e6 / counted.span, 1.0) for window in self.windows]
        combinations = math.prod(counted.arrived) * min(_one_leads(windows), 1.0)
        return {"matching": counted.out / combinations if combinations else 0.0}

    @property
    def summary(self) -> str:
        return nodes.nway_join_summary(self.aliases, self.on.text, self.windows)


def _counts(notes: Mapping[str, Any]) -> ProbeCounts:
    return ProbeCounts(ProbeCounts.from_json(notes.get(PROBES, {})).counts, list(notes.get(ROWS, [])))


def _one_leads(windows: Sequence[float]) -> float:
    """Return the sum over the aliases of the product of all other windows.

    It is the share of combinations that lie within the windows if each alias in turn has the latest tuple.

    >>> _one_leads([2.0, 3.0, 5.0])
    31.0
    """
    return float(sum(np.prod([w for at, w in enumerate(windows) if at != alias]) for alias in range(len(windows))))


def _overlaps(block: Block, low: int, high: int) -> bool:
    return block.low is not None and block.high is not None and block.high >= low and block.low <= high


# --- planning ------------------------------------------------------------------------------------------------------------


def routing_keys(on: NWayPredicate, aliases: int) -> list[KeyClass]:
    """Return the keys that decide slots: all that every alias has, or else the one that most aliases have."""
    shared = [key for key in on.keys if len(key.aliases) == aliases]
    return shared or list(on.keys[:1])


def content_groupings(schemas: Sequence[pa.Schema]) -> tuple[Grouping, ...]:
    """Return the grouping of each alias of a join without a key: the first two by their content, the others everywhere."""
    first_two = [HashGrouping(tuple(schema.names)) for schema in schemas[:2]]
    return (*first_two, *(EverywhereGrouping((), ()) for _ in schemas[2:]))


def key_groupings(aliases: int, on: NWayPredicate, routed: Sequence[KeyClass]) -> tuple[Grouping, ...]:
    """Return the grouping of each alias: by the routing keys, or everywhere, sorted by the key that most aliases have."""
    return tuple(_grouping(alias, on, routed) for alias in range(aliases))


def _grouping(alias: int, on: NWayPredicate, routed: Sequence[KeyClass]) -> Grouping:
    if alias in routed[0].aliases:
        columns, types = tuple(key.column(alias) for key in routed), tuple(key.type for key in routed)
        return HashGrouping(columns, types, drop_null=True)
    key = next((key for key in on.keys if alias in key.aliases), None)
    return EverywhereGrouping((key.column(alias),), (key.type,)) if key else EverywhereGrouping((), ())


def plan(node: nodes.NWayJoin, sofar: PlanBuilder) -> Flow:
    flows = [sofar.flows(stream) for stream in node.streams]
    schemas = tuple(stream.schema for stream in node.streams)
    keys = routing_keys(node.on, len(schemas))
    operator = NWayJoinOperator(
        sofar.name("nway-join"),
        stage_after(*flows),
        schemas,
        node.schema,
        key_groupings(len(schemas), node.on, keys) if keys else content_groupings(schemas),
        node.aliases,
        node.columns,
        node.on,
        node.windows,
        tuple(keys),
    )
    return sofar.add(operator, *flows)
