"""Routing by ranges of a number, for joins whose predicate bounds the distance of two numbers (band joins).

One side of the join has points, the other side intervals. State is sorted by the number: points by their value, intervals
by their start. So a slot finds the rows of any range by binary search, and ranges may change in every epoch without a
change of state.

Invariant: the ranges of a layout divide all numbers (NaN is the largest, as in DuckDB), and each point is in one range. A
pair belongs to the range of its point. A slot of that range reads every interval that can contain one of its points: those
that start in the range, and those that start before it by at most the extent of their block, the length of its longest
interval. Lengths and distances are rounded up. Where several slots share a range, the rows of the range in each block are
cut into parts by their position: left rows by the grid's rows, right rows by its columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import QueryError
from headrace.plan.figures import OperatorLoad, are_rising
from headrace.routing.base import (
    SLOT,
    SLOTS,
    Adaptation,
    Grouping,
    Groups,
    Layout,
    Router,
    RoutingCost,
    routing_cost,
)
from headrace.support import validators
from headrace.support.limits import MOST_GROUPS

Values = npt.NDArray[np.float64] | npt.NDArray[np.int64]
Rows = tuple[int, int]  # first row, and the row after the last
BOTH = 2  # instead of a side: both sides have points
_MORE = 1 + 2.0**-50  # a computed distance of d can be one of d * (1 + 2^-53)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def as_numbers(column: pa.ChunkedArray) -> Values:
    """Return numbers and times as 64-bit integers or doubles in the same order. The column must not contain nulls."""
    kind = column.type
    if pa.types.is_floating(kind):
        return np.asarray(column.cast(pa.float64()))
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return np.asarray(column.cast(pa.int64()))


def even_bounds(values: Values, ranges: int) -> tuple[float, ...]:
    """Return the bounds of at most `ranges` ranges that contain about equally many values; fewer if values repeat.

    >>> even_bounds(np.arange(8), 4)
    (2, 4, 6)
    >>> even_bounds(np.full(8, 3.5), 4)
    ()
    """
    ordered = np.sort(values[np.isfinite(values)])
    if not len(ordered):
        return ()
    cuts = ordered[[len(ordered) * i // ranges for i in range(1, ranges)]]
    return tuple(np.unique(cuts[cuts > ordered[0]]).tolist())


@dataclass(frozen=True)
class RangeGrouping(Grouping):
    """Grouping for state that is sorted by a number: points (one column), or intervals (start and end).

    All rows are in one group, because a layout finds its rows by their number. An interval is from the first column minus
    `width` to the second column plus `width`. Blocks do not depend on `width`, so inputs of different width can share them.
    """

    width: float = field(default=0.0, compare=False)
    drop_null: ClassVar[bool] = True
    keeps_hash: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    def groups(self, table: pa.Table, total: int) -> Groups:
        return np.zeros(table.num_rows, np.int32)

    def values(self, table: pa.Table) -> Values:
        """Return the number by which state is sorted, for each row."""
        return as_numbers(table.column(self.columns[0]))

    def extent(self, table: pa.Table) -> float:
        """Return the length of the longest interval, rounded up; 0 for points."""
        if len(self.columns) == 1 or not table.num_rows:
            return 0.0
        ends = [as_numbers(table.column(name)) for name in self.columns]
        start, end = (each.astype(np.float64) for each in ends)
        with np.errstate(invalid="ignore", over="ignore"):
            lengths = np.where(start == end, 0.0, end - start)
        lengths[np.isnan(lengths) & np.isnan(start)] = 0.0  # it contains only NaN, which is at the end as well
        lengths[np.isnan(lengths)] = np.inf
        longest = float(lengths.max())
        rounding = 2048.0 if ends[0].dtype == np.int64 else 0.0  # of large whole numbers that become doubles
        return math.nextafter(longest * _MORE + rounding, math.inf) if longest > 0 or rounding else 0.0


@dataclass(frozen=True)
class SortedRows:
    """The rows of a block as a layout sees them: their numbers, ascending, and the extent of the block."""

    values: Values
    extent: float
    width: float  # by which the operator widens intervals

    def points(self, low: float | None, high: float | None) -> Rows:
        """Return the rows in [low, high). None: no bound."""
        return self._from(low), self._from(high) if high is not None else len(self.values)

    def intervals(self, low: float | None, high: float | None) -> Rows:
        """Return at least the rows whose interval contains a number of [low, high)."""
        before, after = (self.extent + self.width) * _MORE, self.width * _MORE
        start = self._from(_down(self._compared(low), before)) if low is not None else 0
        return start, self._from(_up(self._compared(high), after)) if high is not None else len(self.values)

    def _compared(self, bound: float) -> float:
        """Return a bound as it is compared with the numbers: doubles are compared with the double nearest to it."""
        return bound if self.values.dtype == np.int64 else float(bound)

    def _from(self, bound: float | None) -> int:
        if bound is None:
            return 0
        bound = self._compared(bound)
        if self.values.dtype == np.int64:
            if bound > _MOST:
                return len(self.values)
            bound = max(math.ceil(bound), _LEAST) if math.isfinite(bound) else _LEAST
        return int(np.searchsorted(self.values, bound, side="left"))


def _down(value: float, by: float) -> float:
    if isinstance(value, int) and math.isfinite(by):
        return value - math.ceil(by)
    return math.nextafter(value - by, -math.inf)


def _up(value: float, by: float) -> float:
    """Return a bound behind every start that is at most `value` + `by`."""
    if isinstance(value, int) and math.isfinite(by):
        return value + math.ceil(by) + 1
    return math.nextafter(math.nextafter(value + by, math.inf), math.inf)


@dataclass(frozen=True)
class Ranges(Layout):
    """A layout of a band join: neighbouring slots own neighbouring ranges of the points; the other side has intervals."""

    bounds: tuple[float, ...]  # start of each range but the first
    grids: tuple[tuple[int, int], ...]  # of each range: rows and columns of its slots
    points: int  # side of the points: 0 left, 1 right, or `BOTH`
    first: int = 0  # first slot that owns a range

    kind: ClassVar[str] = "ranges"
    FORM: ClassVar[validators.Form] = validators.record(
        kind=validators.text,
        bounds=lambda value, key: _rising(value, key),
        grids=validators.list_of(validators.exact_list(SLOTS, SLOTS)),
        points=validators.whole(0, BOTH),
        first=SLOT,
    )

    def __post_init__(self) -> None:
        whole = all(rows >= 1 and columns >= 1 for rows, columns in self.grids)
        rising = all(a < b for a, b in pairwise(self.bounds))
        if len(self.grids) != len(self.bounds) + 1 or not whole or not rising or self.points not in (0, 1, BOTH):
            raise QueryError(
                f"ranges need increasing bounds, a grid for each range, and points on side 0, 1 or both ({BOTH}); found {self!s:.200}"
            )

    @staticmethod
    def even(bounds: Sequence[float], slots: int, points: int, first: int = 0) -> Ranges:
        """Return a layout with an equal number of the given ranges for each slot, or of slots for each range."""
        many = len(bounds) + 1
        if many >= slots:
            kept = tuple(bounds[many * slot // slots - 1] for slot in range(1, slots))
            return Ranges(kept, ((1, 1),) * slots, points, first)
        shares = [slots * (r + 1) // many - slots * r // many for r in range(many)]
        return Ranges(tuple(bounds), tuple((1, share) if points else (share, 1) for share in shares), points, first)

    @cached_property
    def _cells(self) -> list[tuple[int, int]]:
        """Return by slot, counted from the first that owns a range: its range, and the number of its cell."""
        return [(r, cell) for r, (rows, columns) in enumerate(self.grids) for cell in range(rows * columns)]

    @property
    def slots(self) -> int:
        return self.first + len(self._cells)

    def range_at(self, number: int) -> tuple[float | None, float | None]:
        """Return the bounds of a range; None: no bound."""
        ends = (None, *self.bounds, None)
        return ends[number], ends[number + 1]

    def ranges_of(self, values: Values) -> npt.NDArray[np.int64]:
        """Return the number of the range of each value."""
        return np.searchsorted(np.asarray(self.bounds, values.dtype), values, side="right")

    def rows(self, block: SortedRows, slot: int, side: int) -> Rows:
        """Return the rows of a block that a slot reads."""
        if not self.first <= slot < self.slots:
            return 0, 0
        number, cell = self._cells[slot - self.first]
        start, stop = (block.points if self.points in (side, BOTH) else block.intervals)(*self.range_at(number))
        rows, columns = self.grids[number]
        which, parts = (cell // columns, rows) if side == 0 else (cell % columns, columns)
        many = max(stop - start, 0)
        return start + many * which // parts, start + many * (which + 1) // parts

    def groups(self, slot: int, side: int) -> list[int]:
        return [0] if self.first <= slot < self.slots else []

    def hot_cells(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        return []

    @property
    def whole(self) -> bool:
        return False

    @property
    def gathers(self) -> bool:
        return False

    def handed_on(self) -> Layout:
        raise QueryError("no operator can share the slots of a join by ranges")

    def fits(self, groups: int) -> bool:
        return True

    def to_json(self) -> dict[str, Any]:
        grids = [list(grid) for grid in self.grids]
        return {
            "kind": self.kind,
            "bounds": list(self.bounds),
            "grids": grids,
            "points": self.points,
            "first": self.first,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ranges:
        return cls(tuple(data["bounds"]), tuple(map(tuple, data["grids"])), data["points"], data["first"])


def _rising(value: Any, key: str) -> Any:
    if type(value) is not list or not len(value) < MOST_GROUPS or not (not value or are_rising(value)):
        raise validators.refuse(key, "increasing numbers", value)
    return value


@dataclass(frozen=True)
class RangesRouter(Router):
    """Routing by the range that contains a number."""

    columns: tuple[str, ...]
    bounds: tuple[float, ...]  # start of each range but the first
    points: int  # side with the number: 0 left, 1 right; the other side has intervals

    kind: ClassVar[str] = "ranges"
    FORM: ClassVar[dict[str, validators.Form]] = {
        "columns": validators.list_of(validators.text),
        "bounds": _rising,
        "points": validators.whole(0, 1),
    }
    adapts: ClassVar[Adaptation] = Adaptation.SHAPE
    sends: ClassVar[bool] = True

    @property
    def way(self) -> tuple[Any, ...]:
        return self.kind, self.columns, self.points

    @property
    def preference(self) -> tuple[int, ...]:
        return (1, 0, 0)

    @property
    def extreme(self) -> bool:
        return False

    @property
    def groups(self) -> int:
        return 1

    def slots(self, given: int) -> int:
        return given

    def wrong(self, slots: int) -> str | None:
        if self.bounds and are_rising(self.bounds):
            return None
        return f"ranges need increasing bounds, at least one; found {list(self.bounds)!r:.100}"

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        used = len(self.bounds) + 1
        parts = [((used * s // slots), (used * (s + 1) // slots)) for s in range(slots)]
        # a slot also reads intervals that begin in an earlier range and extend into its own
        point = [(stop - start) / used for start, stop in parts]
        interval = [(stop - max(start - load.reach, 0)) / used if stop > start else 0.0 for start, stop in parts]
        whole = [a + b for a, b in zip(load.sending, load.state, strict=True)]
        mine, other = self.points, 1 - self.points
        opened = max(p * whole[mine] + i * whole[other] for p, i in zip(point, interval, strict=True))
        sent = load.sending[mine] + sum(interval) * load.sending[other]
        compared = max(a * b for a, b in zip(point, interval, strict=True)) * load.pairs
        return routing_cost(load, sent, opened, compared)

    def layout(self, groups: int, slots: int, first: int = 0) -> Ranges:
        return Ranges.even(self.bounds, slots, self.points, first)

    def __str__(self) -> str:
        return f"{len(self.bounds) + 1} ranges of {', '.join(self.columns)}"
