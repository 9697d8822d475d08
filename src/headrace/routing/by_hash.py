"""Routing by hash: tuples with equal values are in the same group, and a group belongs to one slot.

Invariant of `Diagonal`: only pairs of groups (g, g) can contain results (equality joins, grouped aggregates). Group g
belongs to one slot. If a hot key makes the group too large for one slot, the group belongs to a grid of slots instead:
the rows of the group in each block are cut into parts, left rows by the rows of the grid and right rows by its columns.
Blocks are immutable, so each row is in exactly one part and each pair of rows in exactly one cell of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.columnar.types import public_text
from headrace.errors import QueryError
from headrace.plan.figures import OperatorLoad
from headrace.routing.base import (
    EVERYWHERE,
    GROUP,
    SLOT,
    SLOTS,
    Adaptation,
    Grouping,
    Groups,
    Layout,
    Router,
    RoutingCost,
    Rows,
    routing_cost,
)
from headrace.routing.hashing import HASH, groups_of, hash_column_of, scale
from headrace.support import validators


@dataclass(frozen=True)
class HashGrouping(Grouping):
    """Grouping by the hash of columns, each cast to its type in `types`. Without columns, all tuples are in one group."""

    types: tuple[pa.DataType, ...] | None = None
    drop_null: bool = False
    numbered: bool = False
    keeps_hash: ClassVar[bool] = True

    def groups(self, table: pa.Table, total: int) -> Groups:
        if HASH in table.column_names:  # computed once, before columns were dropped
            return scale(hash_column_of(table), total)
        return groups_of(table, self.columns, total, self.types)


# --- layout --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HotGroup:
    """A group that is spread over a grid of slots: `rows` parts of its left tuples, `columns` parts of its right tuples.

    Every slot of the grid reads the tuples of all further inputs.
    """

    group: int
    rows: int
    columns: int
    slots: tuple[int, ...]  # row by row

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or len(set(self.slots)) != self.rows * self.columns:
            raise QueryError(f"a hot group needs rows x columns different slots; found {self}")

    def cell(self, slot: int, side: int) -> tuple[int, int]:
        """Return which share of one side's rows a slot reads, as (number of the share, number of shares)."""
        if side > 1:
            return 0, 1
        cell = self.slots.index(slot)
        return (cell // self.columns, self.rows) if side == 0 else (cell % self.columns, self.columns)


@dataclass(frozen=True)
class Diagonal(Layout):
    """A layout in which group g and its pairs (g, g) belong to slot `owner[g]`, or to the grid of g in `grids`."""

    owner: tuple[int, ...]
    among: int  # number of slots
    grids: tuple[HotGroup, ...] = ()

    kind: ClassVar[str] = "diagonal"
    FORM: ClassVar[validators.Form] = validators.record(
        kind=validators.text,
        owner=validators.list_of(SLOT),
        slots=SLOTS,
        splits=validators.list_of(validators.exact_list(GROUP, SLOTS, SLOTS, validators.list_of(SLOT))),
    )

    def __post_init__(self) -> None:
        used = {*self.owner, *(slot for grid in self.grids for slot in grid.slots)}
        if any(not 0 <= slot < self.slots for slot in used):
            msg = f"a layout uses a slot outside 0 to {self.slots - 1}; found slots {sorted(used)}"
            raise QueryError(msg)
        if len({grid.group for grid in self.grids}) != len(self.grids):
            raise QueryError(f"a layout has two grids for one hot group; found {self.grids}")
        if any(not 0 <= grid.group < len(self.owner) for grid in self.grids):
            raise QueryError(f"a layout has a hot group outside 0 to {len(self.owner) - 1}; found {self.grids}")

    @staticmethod
    def even(groups: int, slots: int, first: int = 0) -> Diagonal:
        """Return a layout that gives each slot an equal range of groups, starting with slot `first`.

        Neighbouring groups share a slot, so that a slot reads one range of every block.
        """
        return Diagonal(tuple(first + group * slots // groups for group in range(groups)), first + slots)

    @property
    def slots(self) -> int:
        return self.among

    @cached_property
    def grid_of(self) -> dict[int, HotGroup]:
        """Return the grids of hot groups, by group."""
        return {grid.group: grid for grid in self.grids}

    @cached_property
    def _whole(self) -> list[list[int]]:
        """Return the groups of every slot, without the hot groups."""
        groups: list[list[int]] = [[] for _ in range(self.slots)]
        for group, slot in enumerate(self.owner):
            if group not in self.grid_of:
                groups[slot].append(group)
        return groups

    def groups(self, slot: int, side: int) -> list[int]:
        return self._whole[slot]

    def hot_cells(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        return [(grid.group, *grid.cell(slot, side)) for grid in self.grids if slot in grid.slots]

    def shares(self, groups: Groups, side: int) -> Iterator[tuple[int, Rows]]:
        everywhere = groups == EVERYWHERE
        owner = np.where(groups >= 0, np.array(self.owner)[np.maximum(groups, 0)], -1)
        for slot in range(self.slots) if everywhere.any() else np.unique(owner[owner >= 0]).tolist():
            yield slot, (owner == slot) | everywhere

    def slot_of(self, left: int, right: int) -> int | None:
        """Return the slot that evaluates a pair of groups, or None if no slot or more than one slot does."""
        return self.owner[left] if left == right and left not in self.grid_of else None

    @property
    def whole(self) -> bool:
        return not self.grids

    @property
    def gathers(self) -> bool:
        return not self.grids

    def handed_on(self) -> Diagonal:
        if self.grids:  # the results of a hot group are in several slots
            raise QueryError("no operator can share the slots of a join that has hot groups")
        return self

    def undivided(self) -> Diagonal:
        return replace(self, grids=()) if self.grids else self

    def fits(self, groups: int) -> bool:
        return len(self.owner) == groups

    def to_json(self) -> dict[str, Any]:
        grids = [[s.group, s.rows, s.columns, list(s.slots)] for s in self.grids]
        return {"kind": self.kind, "owner": list(self.owner), "slots": self.slots, "splits": grids}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Diagonal:
        grids = tuple(HotGroup(group, rows, columns, tuple(slots)) for group, rows, columns, slots in data["splits"])
        return cls(tuple(data["owner"]), data["slots"], grids)


# --- routers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvenRouter(Router):
    """The base of routers that send each tuple to one slot, evenly. Only tuples of the same group are compared."""

    sends: ClassVar[bool] = True

    @property
    def preference(self) -> tuple[int, ...]:
        return (0, 0, 0)

    @property
    def extreme(self) -> bool:
        return False

    @property
    def groups(self) -> int:
        return 1

    def slots(self, given: int) -> int:
        return given

    def wrong(self, slots: int) -> str | None:
        return None

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        sent = sum(load.sending)
        return routing_cost(load, sent, (sent + sum(load.state)) / slots, load.results / slots)

    def layout(self, groups: int, slots: int, first: int = 0) -> Diagonal:
        return Diagonal.even(groups, min(slots, groups), first)


@dataclass(frozen=True)
class HashRouter(EvenRouter):
    """Routing by the hash of some columns."""

    columns: tuple[str, ...]

    kind: ClassVar[str] = "hash"
    FORM: ClassVar[dict[str, validators.Form]] = {"columns": validators.list_of(validators.text)}
    adapts: ClassVar[Adaptation] = Adaptation.PLACE

    @property
    def way(self) -> tuple[Any, ...]:
        return self.kind, self.columns

    def __str__(self) -> str:
        return public_text(f"hash of {', '.join(self.columns)}")


@dataclass(frozen=True)
class ContentRouter(EvenRouter):
    """Routing by the hash of the whole tuple, for operators without keys.

    The slot of a tuple then does not depend on the task that sent the tuple.
    """

    kind: ClassVar[str] = "content"
    FORM: ClassVar[dict[str, validators.Form]] = {}
    adapts: ClassVar[Adaptation] = Adaptation.NOTHING

    @property
    def way(self) -> tuple[Any, ...]:
        return (self.kind,)

    def __str__(self) -> str:
        return "hash of the whole tuple"
