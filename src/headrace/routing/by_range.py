"""Routing by ranges of a number, for joins whose predicate bounds the distance of two numbers (band joins).

Invariant: the group of a value increases with the value (NaN is the largest, as in DuckDB), so a point between the two
ends of an interval is in a group between the groups of the ends. An interval that is widened by a distance d is widened
by slightly more than d, so that the interval contains every point whose computed distance is d, however the computation
was rounded.

One side of the join has points, the other intervals. A pair belongs to the group of its point. The interval that must
contain the point begins in that group or at most `reach` groups before. A slot owns neighbouring groups of points and
also reads the intervals of the `reach` groups before its own. Bounds are chosen once, from a sample, because state is
grouped by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import QueryError
from headrace.plan.figures import OperatorLoad, are_rising
from headrace.routing.base import (
    GROUPS,
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
_MORE = 1 + 2.0**-50  # a computed distance of d can be one of d * (1 + 2^-53)


def range_of(table: pa.Table, column: str, bounds: Sequence[float], move: float = 0.0) -> Groups:
    """Return the range of every value after adding `move` to the value. The column must not contain nulls."""
    values = as_numbers(table.column(column))
    if move:
        values = np.nextafter(values + move * _MORE, np.inf if move > 0 else -np.inf)
    return np.searchsorted(np.asarray(bounds, dtype=values.dtype), values, side="right").astype(np.int32)


def as_numbers(column: pa.ChunkedArray) -> Values:
    """Return numbers and times as 64-bit integers or doubles in the same order."""
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
    """Grouping by the range that contains a number (one column) or the start of an interval (two columns).

    The interval is from the first column minus `width` to the second column plus `width`.
    """

    bounds: tuple[float, ...]  # start of each range but the first
    width: float = 0.0
    drop_null: ClassVar[bool] = True
    keeps_hash: ClassVar[bool] = False
    numbered: ClassVar[bool] = False

    @property
    def is_point(self) -> bool:
        return len(self.columns) == 1

    def groups(self, table: pa.Table, total: int) -> Groups:
        return range_of(table, self.columns[0], self.bounds, -self.width)

    def reach(self, table: pa.Table, groups: Groups) -> int:
        if self.is_point or not len(groups):
            return 0
        return max(int((range_of(table, self.columns[1], self.bounds, self.width) - groups).max()), 0)


@dataclass(frozen=True)
class Ranges(Layout):
    """A layout of a band join: each slot owns neighbouring groups of points of one side; the other side has intervals."""

    total: int  # number of groups
    busy: int  # number of slots that own groups
    points: int  # side of the points: 0 left, 1 right
    first: int = 0  # first slot that owns groups

    kind: ClassVar[str] = "ranges"
    FORM: ClassVar[validators.Form] = validators.record(
        kind=validators.text, groups=GROUPS, busy=SLOTS, points=validators.whole(0, 1), first=SLOT
    )

    def __post_init__(self) -> None:
        if self.total < 1 or self.busy < 1 or self.points not in (0, 1):
            raise QueryError(f"ranges need at least one group and one slot, and points on side 0 or 1; found {self}")

    @property
    def slots(self) -> int:
        return self.first + self.busy

    def groups(self, slot: int, side: int, reach: int = 0) -> list[int]:
        if slot < self.first:
            return []
        start, stop = (self.total * (slot - self.first + end) // self.busy for end in (0, 1))
        if start == stop:
            return []
        return list(range(start if side == self.points else max(start - reach, 0), stop))

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
        return self.total <= groups

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "groups": self.total, "busy": self.busy, "points": self.points, "first": self.first}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Ranges:
        return cls(data["groups"], data["busy"], data["points"], data["first"])


def _rising(value: Any, key: str) -> Any:
    if type(value) is not list or not 0 < len(value) < MOST_GROUPS or not are_rising(value):
        raise validators.refuse(key, "increasing numbers, at least one", value)
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
    adapts: ClassVar[Adaptation] = Adaptation.NOTHING
    chosen: ClassVar[bool] = True
    sends: ClassVar[bool] = True

    @property
    def way(self) -> tuple[Any, ...]:
        return self.kind, self.columns, self.points

    @property
    def preference(self) -> tuple[int, ...]:
        return (1, 0, 0)  # a grid is preferred: its shape can change later, ranges cannot

    @property
    def extreme(self) -> bool:
        return False

    @property
    def groups(self) -> int:
        return len(self.bounds) + 1

    def slots(self, given: int) -> int:
        return given

    def wrong(self, slots: int) -> str | None:
        if self.bounds and are_rising(self.bounds):
            return None
        return f"ranges need increasing bounds, at least one; found {list(self.bounds)!r:.100}"

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        used = self.groups
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
        return Ranges(self.groups, slots, self.points, first)

    def __str__(self) -> str:
        return f"{self.groups} ranges of {', '.join(self.columns)}"
