"""Routing by rectangles: any pair of tuples can be a result, so every pair of groups is in exactly one slot.

Invariant: the square of left groups x right groups is cut into rows, and row i into b_i cells. The b_i sum to N, the
number of slots. The height of a row is proportional to b_i, so every cell is 1/N of the square for any N. One row of N
cells, or N rows of one cell, replicates one side (load diffusion); sqrt(N) equal rows are StreamCloud's grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from headrace.errors import QueryError
from headrace.plan.figures import OperatorLoad
from headrace.routing.base import GROUPS, SLOT, SLOTS, Adaptation, Layout, Router, RoutingCost, routing_cost
from headrace.routing.by_hash import Diagonal
from headrace.support import validators

Interval = tuple[int, int]  # (first group, last group + 1)


@dataclass(frozen=True)
class Rectangles(Layout):
    """A layout that cuts the square of groups into cells, one per slot.

    A row is an interval of left groups or, with `transposed`, of right groups. Every slot reads all groups of further
    inputs.
    """

    total: int  # number of groups
    rows: tuple[int, ...]  # number of cells in each row
    transposed: bool = False
    first: int = 0  # first slot that owns a cell

    kind: ClassVar[str] = "rectangles"
    FORM: ClassVar[validators.Form] = validators.record(
        kind=validators.text, groups=GROUPS, rows=validators.list_of(SLOTS), transposed=validators.flag, first=SLOT
    )

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1:
            raise QueryError(f"every row of a layout needs at least one cell; found {self.rows}")
        if max(len(self.rows), max(self.rows)) > self.total:
            raise QueryError(f"{sum(self.rows)} slots are too many for {self.total} groups")

    @property
    def slots(self) -> int:
        return self.first + sum(self.rows)

    @cached_property
    def cells(self) -> tuple[tuple[Interval, Interval], ...]:
        """Return the (left groups, right groups) of every slot."""
        found: list[tuple[Interval, Interval]] = [((0, 0), (0, 0))] * self.first
        done, busy = 0, sum(self.rows)
        for cells in self.rows:
            row = (self.total * done // busy, self.total * (done + cells) // busy)
            for cell in range(cells):
                column = (self.total * cell // cells, self.total * (cell + 1) // cells)
                found.append((column, row) if self.transposed else (row, column))
            done += cells
        return tuple(found)

    def groups(self, slot: int, side: int) -> list[int]:
        if side < 2:
            return list(range(*self.cells[slot][side]))
        return list(range(self.total)) if slot >= self.first else []

    def hot_cells(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        return []

    def slot_of(self, left: int, right: int) -> int | None:
        for slot, ((l0, l1), (r0, r1)) in enumerate(self.cells):
            if l0 <= left < l1 and r0 <= right < r1:
                return slot
        return None

    @property
    def whole(self) -> bool:
        return False

    @property
    def gathers(self) -> bool:
        return True  # the pairs of equal groups, which are all pairs of an equality join

    def handed_on(self) -> Diagonal:
        """Return the layout that gives group g to the slot of the pair (g, g), where an equality join has its results."""
        owners = tuple(self.slot_of(group, group) for group in range(self.total))
        return Diagonal(tuple(owner for owner in owners if owner is not None), self.slots)

    def fits(self, groups: int) -> bool:
        return self.total == groups

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "groups": self.total,
            "rows": list(self.rows),
            "transposed": self.transposed,
            "first": self.first,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Rectangles:
        return cls(data["groups"], tuple(data["rows"]), data["transposed"], data["first"])


# --- shapes --------------------------------------------------------------------------------------------------------


def even_shapes(slots: int) -> list[tuple[int, ...]]:
    """Return every way to cut `slots` slots into rows whose lengths differ by at most one."""
    return [tuple(slots // a + (i < slots % a) for i in range(a)) for a in range(1, slots + 1)]


def busiest_reads(rows: tuple[int, ...], left: float, right: float) -> float:
    """Return how many of `left` and `right` tuples the busiest slot must read."""
    slots = sum(rows)
    return max(left * cells / slots + right / cells for cells in rows)


def best_rectangles(groups: int, slots: int, left: float, right: float) -> Rectangles:
    """Return the shape whose busiest slot reads least.

    Ties go to the shape that is not transposed, then to the shape with the fewest rows.
    """
    options = [
        (busiest_reads(rows, *sides), transposed, rows)
        for rows in even_shapes(slots)
        for transposed, sides in ((False, (left, right)), (True, (right, left)))
    ]
    _, transposed, rows = min(options, key=lambda o: (o[0], o[1], len(o[2])))
    return Rectangles(groups, rows, transposed)


# --- routers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridRouter(Router):
    """Routing of one side by the rows and of the other side by the columns of a rectangle.

    An empty shape means the shape that suits the load.
    """

    shape: tuple[int, ...] = ()  # number of cells in each row
    transposed: bool = False

    kind: ClassVar[str] = "grid"
    FORM: ClassVar[dict[str, validators.Form]] = {"shape": validators.list_of(SLOTS), "transposed": validators.flag}
    adapts: ClassVar[Adaptation] = Adaptation.SHAPE
    sends: ClassVar[bool] = True

    @staticmethod
    def all(slots: int) -> Iterator[GridRouter]:
        for shape in even_shapes(slots):
            yield from (GridRouter(shape), GridRouter(shape, transposed=True))

    @property
    def way(self) -> tuple[Any, ...]:
        return (self.kind,)

    @property
    def preference(self) -> tuple[int, ...]:
        return (0, int(self.transposed), len(self.shape))

    @property
    def extreme(self) -> bool:
        return len(self.shape) == 1  # one side is fully replicated

    @property
    def groups(self) -> int:
        return 1

    def slots(self, given: int) -> int:
        return given

    def wrong(self, slots: int) -> str | None:
        whole = self.shape and all(type(cells) is int and cells >= 1 for cells in self.shape)
        if whole and sum(self.shape) == slots:
            return None
        return f"the shape {list(self.shape)!r} must be whole numbers, at least 1 each, with the sum {slots}"

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        across = sum(cells * cells for cells in self.shape) / slots  # copies of a tuple by rows
        down = len(self.shape)  # copies of a tuple by columns
        whole = tuple(a + b for a, b in zip(load.sending, load.state, strict=True))
        turn = slice(None, None, -1) if self.transposed else slice(None)
        by_rows, by_columns = load.sending[:2][turn]
        left, right = whole[:2][turn]
        sent = by_rows * across + by_columns * down + slots * sum(load.sending[2:])
        return routing_cost(load, sent, busiest_reads(self.shape, left, right) + sum(whole[2:]), load.pairs / slots)

    def layout(self, groups: int, slots: int, first: int = 0) -> Rectangles:
        if not self.shape:
            best = best_rectangles(groups, min(slots, groups), 1.0, 1.0)
            return Rectangles(groups, best.rows, best.transposed, first)
        return Rectangles(groups, self.shape, self.transposed, first)

    def __str__(self) -> str:
        if not self.shape:
            return "grid"
        return f"grid of {_cells(self.shape)}, {'right' if self.transposed else 'left'} by rows"


def _cells(shape: tuple[int, ...]) -> str:
    if len(shape) > 3 and len(set(shape)) == 1:
        return f"{len(shape)} x {shape[0]} cells"
    return f"{' + '.join(map(str, shape))} cells"
