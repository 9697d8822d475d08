"""The base of all joins of two streams: tuples stored as they are, groups by key or by content, and the choice of
pairs.

Invariant: `run` compares new left with new and old right tuples, then old left with new right tuples. These sets of
pairs are disjoint and contain every pair whose later tuple arrived in this epoch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.columnar.types import JoinColumn
from headrace.expressions import JoinPredicate, KeyEquality
from headrace.expressions.predicates import BandCondition
from headrace.kernels.joins.equijoin import concat_runs, equijoin
from headrace.kernels.joins.join_spec import Strip
from headrace.kernels.joins.theta_join import pairing_method, theta_join
from headrace.operators.base import AppendingOperator, Arrangement, Operator, Results, Slot
from headrace.operators.placement import Placement, is_placed_by
from headrace.plan.columns_read import Names, names_of, narrow_step, side_columns
from headrace.plan.figures import Figures
from headrace.routing import (
    NUMBER,
    EverywhereGrouping,
    GridRouter,
    Grouping,
    HashGrouping,
    HashRouter,
    OneSlotRouter,
    RangeGrouping,
    RangesRouter,
    Router,
)
from headrace.routing.hashing import HASH, hash_rows

if TYPE_CHECKING:
    from headrace.state.blocks import Block

FEW_ROWS = 50_000  # up to this many rows, sorting several runs into one costs less than searching each


@dataclass(frozen=True)
class PairedOperator(Operator):
    """An operator whose results have columns from both sides of a join."""

    columns: tuple[JoinColumn, ...]

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        columns = tuple(column for column in self.columns if column[0].lower() in live)
        schema = narrow_step(self.schema, names_of(out for out, _, _ in columns))
        return replace(self, schemas=schemas, schema=schema, columns=columns)


@dataclass(frozen=True)
class JoinOperator(PairedOperator, AppendingOperator):
    """A join of two streams over windows, by any predicate.

    Its state is the tuples of both sides that are still in a window. In each epoch a slot compares the new tuples of each side
    with the new and the old tuples of the other side, in its groups. Subclasses add the window: `TimeJoinOperator` for time
    windows, `headrace.operators.count_join` for count windows.
    """

    on: JoinPredicate
    bounds: tuple[float, ...] = field(default=(), kw_only=True)  # of the ranges of the first layout of a band join

    # --- what the kernels ask ------------------------------------------------------------------------------------------

    @property
    def keys(self) -> tuple[KeyEquality, ...]:
        return self.on.keys

    @property
    def sql(self) -> str:
        return self.on.sql

    @property
    def text(self) -> str:
        return self.on.text

    @property
    def plain_keys(self) -> bool:
        return self.on.plain_keys

    def used(self, side: str) -> list[str]:
        """Return the columns of one side that the predicate reads; at least one, because a table needs a column to have
        rows."""
        schema = self.schemas[0 if side == "l" else 1]
        named = {path[1].lower() for path in self.on.columns if path[0].lower() == side}
        return [name for name in schema.names if name.lower() in named] or ["ts"]

    @property
    @abstractmethod
    def strips(self) -> tuple[Strip, ...]:
        """Return the window as strips. Every pair that the window admits is in exactly one strip."""

    @property
    @abstractmethod
    def time_window(self) -> tuple[int, int] | None:
        """Return W1 and W2 if the window is over `ts`, else None."""

    @abstractmethod
    def admits(self, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> npt.NDArray[np.bool_]:
        """Return which pairs of rows the window admits."""

    @abstractmethod
    def result_ts(self, l: Numbers, r: Numbers) -> Numbers:
        """Return the event times of results from those of their pairs."""

    @abstractmethod
    def ts_sql(self, strip: Strip) -> str:
        """Return the SQL expression of a result's event time, for pairs of one strip."""

    @abstractmethod
    def reachable(self, blocks: Sequence[Block], side: int, others: Sequence[pa.Table]) -> Sequence[Block]:
        """Return the old blocks of one side that can match new tuples of the other."""

    # --- inputs --------------------------------------------------------------------------------------------------------

    @property
    def router(self) -> Router:
        if self.keys:
            return HashRouter(self.key_texts)
        return self._by_ranges(self.bounds) if self.bounds else GridRouter()

    def routing_options(self, slots: int, figures: Figures) -> Sequence[Router]:
        others = (*GridRouter.all(slots), OneSlotRouter())
        if self.keys:
            return [HashRouter(self.key_texts), *others]
        bounds = figures.bounds.get(self.name) if self.band else None
        return [self._by_ranges(bounds), *others] if bounds else others

    def _by_ranges(self, bounds: tuple[float, ...]) -> RangesRouter:
        assert self.band is not None
        return RangesRouter(self.key_texts, tuple(bounds), self.band.points_side)

    def routed(self, router: Router) -> Self | None:
        band = self.band
        if band is None or not isinstance(router, RangesRouter):
            return self if router.way == self.router.way else None
        return replace(self, bounds=router.bounds) if router.way == self._by_ranges(router.bounds).way else None

    @property
    def key_texts(self) -> tuple[str, ...]:
        if self.keys:
            pairs = zip(self.groupings[0].columns, self.groupings[1].columns, strict=True)
            return tuple(f"l.{left} = r.{right}" for left, right in pairs)
        return (".".join(self.on.band.point),) if self.on.band else ()

    @property
    def band(self) -> BandCondition | None:
        return routable_band(self.on)

    def needs(self, side: int, live: Names) -> Names:
        me = "lr"[side]
        passed = names_of(column for out, of, column in self.columns if of == me and out.lower() in live)
        ranks = names_of(name for name in self.schemas[side].names if name.startswith("__"))
        return passed | ranks | side_columns(self.sql, me)

    @property
    def takes_whole(self) -> bool:
        return not self.keys and self.band is None  # the group depends on the whole tuple

    # --- whose slots it can share --------------------------------------------------------------------------------------

    @property
    def placement(self) -> Placement | None:
        if not self.keys:
            return None
        left = self.groupings[0]
        assert isinstance(left, HashGrouping)
        pairs = list(zip(left.columns, self.groupings[1].columns, strict=True))
        named = [{out for out, s, c in self.columns if c == (l if s == "l" else r)} for l, r in pairs]
        return Placement(self.follows or self.name, tuple(map(frozenset, named)), left.types)

    def aligned(self, handed: Sequence[Sequence[Placement]]) -> tuple[Grouping, ...] | None:
        keys = aligned_keys(self.keys, self.schemas, handed)
        return key_groupings(keys, drop_null=True) if keys else None

    # --- state -----------------------------------------------------------------------------------------------------------

    @property
    def arrangement_kind(self) -> Arrangement:
        if self.keys:
            return Arrangement.HASH
        return Arrangement.NUMBER if self.band else Arrangement.POSITION

    @property
    def holds_tuples(self) -> bool:
        return True

    def as_state(self, side: int, tuples: pa.Table, names: list[str]) -> pa.Table:
        return stored_tuples(self.groupings[side], tuples, names)

    def stored(self, side: int) -> set[str]:
        grouping = self.groupings[side]
        beside = ((HASH, grouping.keeps_hash), (NUMBER, grouping.numbered))
        return {*self.schemas[side].names, *(name for name, there in beside if there)}

    # --- its work ------------------------------------------------------------------------------------------------------

    @property
    def can_spread_group(self) -> bool:
        return True

    @property
    def compares_in_loops(self) -> bool:
        return self.time_window is not None and self.on.residual is not None

    @property
    def pairing(self) -> str:
        return pairing_method(self.on, in_time=self.time_window is not None)

    @property
    def routing_note(self) -> str:
        return (
            f"ranges of {self.band.along} replace a grid if that is less work, and follow the values"
            if self.band
            else ""
        )

    @property
    def predicate(self) -> str:
        return self.on.text

    def run(self, slot: Slot) -> Results:
        for l, r in self.pairs_of_tables(slot):
            yield from ((0, found) for found in self.meet(slot, l, r))

    def meet(self, slot: Slot, left: pa.Table, right: pa.Table) -> Iterator[pa.Table]:
        """Return the results of all pairs of two tables."""
        kernel = equijoin if self.keys else theta_join
        return kernel(self, left, right, lambda pairs: slot.count(pairs=pairs))

    def pairs_of_tables(self, slot: Slot) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Return pairs of tables to compare in this epoch."""
        new = [self._without_null_keys(slot.read_blocks(slot.new(side), side), side) for side in (0, 1)]
        if self.keys:
            new = [[concat_runs(tables)] if tables else [] for tables in new]
        old = [
            self._without_null_keys(slot.read_blocks(self.reachable(slot.old(side), side, new[1 - side]), side), side)
            if new[1 - side]
            else []
            for side in (0, 1)
        ]
        slot.count(read=sum(table.num_rows for side in old for table in side))
        return _by_key(new, old) if self.keys else _by_pairs(new, old)

    def _without_null_keys(self, tables: list[pa.Table], side: int) -> list[pa.Table]:
        """Drop tuples with a null key, which match nothing. Sides that keep them store them."""
        if not self.keys or self.groupings[side].drop_null:
            return tables
        found = [drop_null_keys(table, [(key.left, key.right)[side] for key in self.keys]) for table in tables]
        return [table for table in found if table.num_rows]


def _by_key(new: list[list[pa.Table]], old: list[list[pa.Table]]) -> Iterator[tuple[pa.Table, pa.Table]]:
    old = [[concat_runs(tables)] if len(tables) > 1 and _few(tables) else tables for tables in old]
    yield from [(l, r) for l in new[0] for r in [*new[1], *old[1]]]
    yield from [(l, r) for l in old[0] for r in new[1]]


def _by_pairs(new: list[list[pa.Table]], old: list[list[pa.Table]]) -> Iterator[tuple[pa.Table, pa.Table]]:
    for left, right in ((new[0], [*new[1], *old[1]]), (old[0], new[1])):
        if left and right:
            yield pa.concat_tables(left), pa.concat_tables(right)


def routable_band(on: JoinPredicate) -> BandCondition | None:
    """Return the band of a predicate that cannot fail. Otherwise the slots would decide which pairs are evaluated."""
    return on.band if on.safe and not on.keys else None


def join_groupings(left: pa.Schema, right: pa.Schema, on: JoinPredicate) -> tuple[Grouping, Grouping]:
    """Return groupings by the columns of the equalities, by the numbers of a band, or by the whole content."""
    if band := routable_band(on):
        point, interval = RangeGrouping(band.point[1:]), RangeGrouping(band.interval, width=band.width)
        if band.interval[0] == band.interval[1]:
            interval = RangeGrouping(band.interval[:1], width=band.width)  # equal to the other in a join with itself
        return (point, interval) if band.point[0] == "l" else (interval, point)
    return content_groupings(left, right, on)


def content_groupings(left: pa.Schema, right: pa.Schema, on: JoinPredicate) -> tuple[HashGrouping, HashGrouping]:
    """Return groupings by the columns of the equalities, or by the whole content."""
    if not on.keys:
        return HashGrouping(tuple(left.names)), HashGrouping(tuple(right.names))
    return key_groupings(on.keys, drop_null=True)


def stored_tuples(grouping: Grouping, tuples: pa.Table, names: list[str]) -> pa.Table:
    """Return some columns of the tuples that a join stores: not those whose null key matches nothing."""
    if grouping.drop_null:
        tuples = drop_null_keys(tuples, grouping.columns)
    return with_group_hash(grouping, tuples, names) if grouping.keeps_hash else tuples.select(names)


def with_group_hash(grouping: Grouping, tuples: pa.Table, names: list[str]) -> pa.Table:
    """Return some columns of tuples and the hash of their group. The hash may depend on all columns."""
    assert isinstance(grouping, HashGrouping | EverywhereGrouping)
    hashed = hash_rows(tuples, grouping.columns, grouping.types)
    return tuples.select(names).append_column(HASH, pa.array(hashed))


def key_groupings(keys: Sequence[KeyEquality], *, drop_null: bool) -> tuple[HashGrouping, HashGrouping]:
    """Return groupings of both inputs by the columns of the equalities."""
    types = tuple(key.type for key in keys)
    return (
        HashGrouping(tuple(key.left for key in keys), types, drop_null=drop_null),
        HashGrouping(tuple(key.right for key in keys), types, drop_null=drop_null),
    )


def aligned_keys(
    keys: Sequence[KeyEquality], schemas: Sequence[pa.Schema], handed: Sequence[Sequence[Placement]]
) -> list[KeyEquality]:
    """Return one equality for each column that places the tuples handed over; empty if a column has none."""
    places = len(next(placed for side in handed for placed in side).columns)
    found = [key for place in range(places) if (key := _key_at(keys, schemas, handed, place))]
    return found if len(found) == places else []


def _key_at(
    keys: Sequence[KeyEquality], schemas: Sequence[pa.Schema], handed: Sequence[Sequence[Placement]], place: int
) -> KeyEquality | None:
    """Return the equality whose columns hold the value at `place` on every side that is handed over."""
    for key in keys:
        sides = zip((key.left, key.right), schemas, handed, strict=True)
        if all(is_placed_by(column, schema, p, place, key.type) for column, schema, here in sides for p in here):
            return key
    return None


def _few(tables: Sequence[pa.Table]) -> bool:
    return bool(sum(table.num_rows for table in tables) <= FEW_ROWS)


def drop_null_keys(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    if not any(table.column(name).null_count for name in columns):
        return table
    keep = np.ones(table.num_rows, dtype=bool)
    for name in columns:
        keep &= np.asarray(table.column(name).is_valid())
    return table.filter(pa.array(keep))
