"""Abstract base classes of a routing method. This module depends on none of the methods.

A routing method has three parts:

    Grouping  assigns the tuples of one input to groups. State is stored by group, so a grouping never changes.
    Layout    assigns groups to slots in one epoch. A layout may change between any two epochs.
    Router    represents the method in a plan: its cost, its initial layout, how it adapts, its text and its JSON.

A property has no default where a wrong default could go unnoticed. A class that lacks one cannot be instantiated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.plan.figures import OperatorLoad
from headrace.support import validators
from headrace.support.limits import MOST_GROUPS, MOST_SLOTS
from headrace.support.validators import Form

Groups = npt.NDArray[np.int32]
Rows = npt.NDArray[np.bool_]  # a mask over the tuples of a table

NOWHERE = -1  # the group of a tuple that no slot receives
EVERYWHERE = -2  # the group of a tuple that every slot receives

NUMBER = "__n"  # the column in state with the number of a tuple

SLOT, SLOTS = validators.whole(0, MOST_SLOTS - 1), validators.whole(1, MOST_SLOTS)
GROUP, GROUPS = validators.whole(0, MOST_GROUPS - 1), validators.whole(1, MOST_GROUPS)


@dataclass(frozen=True)
class Grouping(ABC):
    """The assignment of the tuples of one input to groups. `columns` are the columns that the grouping reads."""

    columns: tuple[str, ...]

    @property
    @abstractmethod
    def drop_null(self) -> bool:
        """Return whether a tuple with a null in `columns` matches nothing and need not be kept."""

    @property
    @abstractmethod
    def keeps_hash(self) -> bool:
        """Return whether state stores, in the column `__h`, the hash that determines the group of a tuple."""

    @property
    @abstractmethod
    def numbered(self) -> bool:
        """Return whether state stores a number for each tuple, in the column `__n`, by which other rows refer to it."""

    @property
    def described(self) -> tuple[str, ...]:
        """Return what a manifest stores of the grouping, by which a restarted run recognises it."""
        return self.columns

    @abstractmethod
    def groups(self, table: pa.Table, total: int) -> Groups:
        """Return the group of every tuple: 0 .. total - 1, or `NOWHERE`, or `EVERYWHERE`."""


@dataclass(frozen=True)
class Layout(ABC):
    """The assignment of groups to slots in one epoch."""

    kind: ClassVar[str]  # the name of the class in JSON
    FORM: ClassVar[Form]

    @property
    @abstractmethod
    def slots(self) -> int:
        """Return the number of slots; slots with this number or a larger one have no groups."""

    @abstractmethod
    def groups(self, slot: int, side: int) -> list[int]:
        """Return the groups of one side (0 left, 1 right) that a slot reads whole."""

    @abstractmethod
    def hot_cells(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        """Return the groups of which a slot reads only a part, as (group, number of the part, number of parts)."""

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Return whether each group, on both sides, is in a single slot."""

    @property
    @abstractmethod
    def gathers(self) -> bool:
        """Return whether all results of a group are in one slot, so that another operator can share the slots."""

    @abstractmethod
    def handed_on(self) -> Layout:
        """Return the layout of the results in these slots, for a following operator that shares the slots."""

    def undivided(self) -> Layout:
        """Return this layout with every hot group in the slot that owns it."""
        return self

    @abstractmethod
    def fits(self, groups: int) -> bool:
        """Return whether this layout is valid for `groups` groups."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        """Return the layout for data that has passed `FORM`."""

    def shares(self, groups: Groups, side: int) -> Iterator[tuple[int, Rows]]:
        """Yield (slot, mask over the tuples that the slot receives) for every slot that receives some.

        groups: the group of each tuple.
        """
        everywhere = groups == EVERYWHERE
        for slot in range(self.slots):
            mine = np.isin(groups, self.groups(slot, side)) | everywhere
            if mine.any():
                yield slot, mine


@dataclass(frozen=True)
class RoutingCost:
    """The cost of a routing method when windows are full."""

    arriving: float = 0.0  # input tuples per second
    sent: float = 0.0  # tuples sent to slots per second, counted once per slot that receives them
    state: float = 0.0  # tuples held
    opened: float = 0.0  # tuples that the busiest slot must read: new tuples (per second) and tuples held
    compared: float = 0.0  # pairs per second that the busiest slot compares
    results: float = 0.0  # results per second


def routing_cost(load: OperatorLoad, sent: float, opened: float, compared: float) -> RoutingCost:
    return RoutingCost(sum(load.arriving), sent, sum(load.state), opened, compared, load.results)


class Adaptation(Enum):
    """The part of a layout that adapts to the load during a run."""

    NOTHING = "nothing"
    SHAPE = "the shape of its rectangles"
    BOUNDS = "the bounds of its stretches, in every epoch"
    PLACE = "which slot a group is in, and the slots of a hot one"


@dataclass(frozen=True)
class Router(ABC):
    """The routing of tuples to the slots of a subquery. The fields of a router are stored in plan files."""

    kind: ClassVar[str]  # the name of the class in a plan file
    FORM: ClassVar[dict[str, Form]]  # the form of its fields
    adapts: ClassVar[Adaptation]
    sends: ClassVar[bool]  # False: tuples are processed where they are read, without an exchange

    @property
    @abstractmethod
    def way(self) -> tuple[Any, ...]:
        """Return the part of the router that the query determines. The rest may be edited in a plan."""

    @property
    @abstractmethod
    def preference(self) -> tuple[int, ...]:
        """Return the sort key among routers of equal cost: the smallest is preferred."""

    @property
    @abstractmethod
    def extreme(self) -> bool:
        """Return whether `explain` shows this router even though another of its kind costs less."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Return the smallest number of groups that the router needs."""

    @abstractmethod
    def slots(self, given: int) -> int:
        """Return how many of the given slots the router uses."""

    @abstractmethod
    def wrong(self, slots: int) -> str | None:
        """Return why the router cannot route to this number of slots, or None if the router can."""

    @abstractmethod
    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost: ...

    @abstractmethod
    def layout(self, groups: int, slots: int, first: int = 0) -> Layout:
        """Return the initial layout, on `slots` slots starting with slot `first`."""

    @abstractmethod
    def __str__(self) -> str: ...

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}}
