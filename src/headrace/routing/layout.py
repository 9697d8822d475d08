"""Layouts: which slot meets which pair of groups in one epoch.

Invariant: a layout over G groups and N slots maps every pair (left group, right group) that can hold a result to
exactly one slot. A pair of tuples is looked at only in the epoch in which the later of the two arrives, and there
only in the slot that this epoch's layout gives to their groups; state knows nothing of slots. So every pair is met
exactly once whatever the layouts of other epochs were, and a layout may be replaced between any two epochs.

- `Diagonal`: only pairs (g, g) can hold results (equality joins, grouped aggregates): group g belongs to one slot, or,
  where a hot key makes it too much for one, to a small grid of slots of its own: the rows that each block holds of the
  group are cut into parts, the left ones by the grid's rows, the right ones by its columns. Blocks never change, so a row
  is in exactly one part, and a pair of rows in exactly one cell.
- `Ranges`: groups are ranges of a number. A pair belongs to the group of its point; the interval that must hold the point
  begins in that group or in one before it, at most `reach` groups before. A slot owns neighbouring groups of points and
  reads intervals from as many groups before its own as any of them can reach over.
- `Rectangles`: any pair can. The square of groups is cut into rows, row i into b_i cells, the b_i sum to N; a row's
  height is in proportion to b_i, so every cell is 1/N of the square for any N. One row of N cells, or N rows of one
  cell, replicates one side (load diffusion); sqrt(N) equal rows are StreamCloud's grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace import form
from headrace.errors import CorruptState, QueryError
from headrace.limits import MOST_GROUPS, MOST_SLOTS

Interval = tuple[int, int]  # groups from .. to, the end excluded


@dataclass(frozen=True)
class Split:
    """A group that has a grid of slots: `rows` parts of its left tuples, `columns` parts of its right ones."""

    group: int
    rows: int
    columns: int
    slots: tuple[int, ...]  # row by row

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or len(set(self.slots)) != self.rows * self.columns:
            raise QueryError(f"a split group needs rows x columns different slots; found {self}")

    def part(self, slot: int, side: int) -> tuple[int, int]:
        """Which part of one side's rows a slot reads, of how many."""
        cell = self.slots.index(slot)
        return (cell // self.columns, self.rows) if side == 0 else (cell % self.columns, self.columns)


@dataclass(frozen=True)
class Diagonal:
    """Group g and its pairs (g, g) belong to slot `owner[g]`, or to the slots of its split."""

    owner: tuple[int, ...]
    slots: int
    splits: tuple[Split, ...] = ()

    def __post_init__(self) -> None:
        used = {*self.owner, *(slot for split in self.splits for slot in split.slots)}
        if any(not 0 <= slot < self.slots for slot in used):
            raise QueryError(f"a layout of {self.slots} slots gives a group to another slot; found {sorted(used)}")
        if len({split.group for split in self.splits}) != len(self.splits):
            raise QueryError(f"a group is split twice; found {self.splits}")

    @staticmethod
    def even(groups: int, slots: int, first: int = 0) -> Diagonal:
        """Neighbouring groups together, so that a slot reads one range of every block; slots from `first` on."""
        return Diagonal(tuple(first + group * slots // groups for group in range(groups)), first + slots)

    @cached_property
    def split(self) -> dict[int, Split]:
        return {split.group: split for split in self.splits}

    def groups(self, slot: int, side: int, reach: int = 0) -> list[int]:
        """The groups of one side (0 left, 1 right) that a slot reads whole."""
        return [g for g, owner in enumerate(self.owner) if owner == slot and g not in self.split]

    def parts(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        """Groups of which a slot reads a part: (group, which, of how many)."""
        return [(split.group, *split.part(slot, side)) for split in self.splits if slot in split.slots]

    def slot_of(self, left: int, right: int) -> int | None:
        """The slot of a pair of groups that is in one."""
        return self.owner[left] if left == right and left not in self.split else None

    def diagonal(self) -> Diagonal:
        """How results lie; those of a split group would lie in several slots."""
        if self.splits:
            raise QueryError("no operator can share the slots of a join with split groups")
        return self

    def to_json(self) -> dict[str, Any]:
        splits = [[s.group, s.rows, s.columns, list(s.slots)] for s in self.splits]
        return {"kind": "diagonal", "owner": list(self.owner), "slots": self.slots, "splits": splits}


@dataclass(frozen=True)
class Rectangles:
    """The square of groups cut into cells; `transposed` makes the rows intervals of the right groups."""

    total: int  # groups
    rows: tuple[int, ...]  # cells in each row
    transposed: bool = False
    first: int = 0  # slot: those before it have nothing to do

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
        """(left groups, right groups) of every slot."""
        found: list[tuple[Interval, Interval]] = [((0, 0), (0, 0))] * self.first
        done, busy = 0, sum(self.rows)
        for cells in self.rows:
            row = (self.total * done // busy, self.total * (done + cells) // busy)
            for cell in range(cells):
                column = (self.total * cell // cells, self.total * (cell + 1) // cells)
                found.append((column, row) if self.transposed else (row, column))
            done += cells
        return tuple(found)

    def groups(self, slot: int, side: int, reach: int = 0) -> list[int]:
        return list(range(*self.cells[slot][side]))

    def parts(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        return []

    def slot_of(self, left: int, right: int) -> int | None:
        for slot, ((l0, l1), (r0, r1)) in enumerate(self.cells):
            if l0 <= left < l1 and r0 <= right < r1:
                return slot
        return None

    def diagonal(self) -> Diagonal:
        """Every group where its pair with itself is met: how the results of an equality join lie in these slots."""
        owners = tuple(self.slot_of(group, group) for group in range(self.total))
        return Diagonal(tuple(owner for owner in owners if owner is not None), self.slots)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "rectangles",
            "groups": self.total,
            "rows": list(self.rows),
            "transposed": self.transposed,
            "first": self.first,
        }


@dataclass(frozen=True)
class Ranges:
    """Every slot owns neighbouring groups of points; intervals are on the other side."""

    total: int  # groups
    busy: int  # slots that own some
    points: int  # side of the points: 0 left, 1 right
    first: int = 0

    def __post_init__(self) -> None:
        if self.total < 1 or self.busy < 1 or self.points not in (0, 1):
            raise QueryError(f"ranges need groups, slots and a side, 0 or 1; found {self}")

    @property
    def slots(self) -> int:
        return self.first + self.busy

    def groups(self, slot: int, side: int, reach: int = 0) -> list[int]:
        """`reach`: the most groups after its own that an interval in question extends to."""
        if slot < self.first:
            return []
        start, stop = (self.total * (slot - self.first + end) // self.busy for end in (0, 1))
        if start == stop:
            return []
        return list(range(start if side == self.points else max(start - reach, 0), stop))

    def parts(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        return []

    def diagonal(self) -> Diagonal:
        raise QueryError("no operator can share the slots of a join by ranges")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "ranges", "groups": self.total, "busy": self.busy, "points": self.points, "first": self.first}


Layout = Diagonal | Rectangles | Ranges


_SLOT, _SLOTS = form.whole(0, MOST_SLOTS - 1), form.whole(1, MOST_SLOTS)
_GROUP, _GROUPS = form.whole(0, MOST_GROUPS - 1), form.whole(1, MOST_GROUPS)
_FORMS = {
    "diagonal": form.record(
        kind=form.text,
        owner=form.items(_SLOT),
        slots=_SLOTS,
        splits=form.items(form.row(_GROUP, _SLOTS, _SLOTS, form.items(_SLOT))),
    ),
    "rectangles": form.record(
        kind=form.text, groups=_GROUPS, rows=form.items(_SLOTS), transposed=form.flag, first=_SLOT
    ),
    "ranges": form.record(kind=form.text, groups=_GROUPS, busy=_SLOTS, points=form.whole(0, 1), first=_SLOT),
}


def from_json(data: Any, key: str = "layout") -> Layout:
    """What `to_json` gave; CorruptState, with the key that it stands under, for anything else."""
    kind = form.having(kind=form.one_of(*_FORMS))(data, key)["kind"]
    found = _FORMS[kind](data, key)
    try:
        layout = _layout(found)
    except QueryError as error:
        raise CorruptState(f"{key}: {error!s:.300}") from None
    if layout.slots > MOST_SLOTS:
        raise form.refuse(key, f"of at most {MOST_SLOTS} slots", layout.slots)
    if isinstance(layout, Diagonal) and any(split.group >= len(layout.owner) for split in layout.splits):
        raise form.refuse(key, f"of {len(layout.owner)} groups", [split.group for split in layout.splits])
    return layout


def _layout(data: dict[str, Any]) -> Layout:
    match data["kind"]:
        case "diagonal":
            splits = tuple(Split(group, rows, columns, tuple(slots)) for group, rows, columns, slots in data["splits"])
            return Diagonal(tuple(data["owner"]), data["slots"], splits)
        case "ranges":
            return Ranges(data["groups"], data["busy"], data["points"], data["first"])
        case _:
            return Rectangles(data["groups"], tuple(data["rows"]), data["transposed"], data["first"])


def shapes(slots: int) -> list[tuple[int, ...]]:
    """Every way to cut N slots into rows that are as even as N allows."""
    return [tuple(slots // a + (i < slots % a) for i in range(a)) for a in range(1, slots + 1)]


def reads(rows: tuple[int, ...], left: float, right: float) -> float:
    """The most that one slot must read of `left` and `right` tuples."""
    slots = sum(rows)
    return max(left * cells / slots + right / cells for cells in rows)


def best_rectangles(groups: int, slots: int, left: float, right: float) -> Rectangles:
    """The shape, or its transpose, whose busiest slot reads least; ties go to the fewest rows."""
    options = [
        (reads(rows, *sides), transposed, rows)
        for rows in shapes(slots)
        for transposed, sides in ((False, (left, right)), (True, (right, left)))
    ]
    _, transposed, rows = min(options, key=lambda o: (o[0], o[1], len(o[2])))
    return Rectangles(groups, rows, transposed)
