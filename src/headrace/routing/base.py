"""What every way to route must be able to say of itself. One file per way; this one knows none of them.

A way to route has three parts:

    Grouping  puts the tuples of one input into groups. State lies in these groups, so it never changes.
    Layout    says which slots look at which groups in one epoch. It may change between any two epochs.
    Router    stands in a plan: what the way costs, the layout it begins with, how it adapts, its words and its JSON.

Nothing has a default where a wrong one could go unnoticed: a way that lacks an answer cannot be made.
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
Rows = npt.NDArray[np.bool_]  # which tuples of a table

NOWHERE = -1  # the group of a tuple that no slot gets
EVERYWHERE = -2  # the group of a tuple that every slot gets

NUMBER = "__n"  # the column of tuples in state that holds their own number

SLOT, SLOTS = validators.whole(0, MOST_SLOTS - 1), validators.whole(1, MOST_SLOTS)
GROUP, GROUPS = validators.whole(0, MOST_GROUPS - 1), validators.whole(1, MOST_GROUPS)


@dataclass(frozen=True)
class Grouping(ABC):
    """How the tuples of one input find their group; the columns are those that it reads."""

    columns: tuple[str, ...]

    @property
    @abstractmethod
    def drop_null(self) -> bool:
        """Whether a tuple with a null in these columns meets nothing, and need not be kept."""

    @property
    @abstractmethod
    def keeps_hash(self) -> bool:
        """Whether tuples in state have the hash beside them that gave them their group."""

    @property
    @abstractmethod
    def numbered(self) -> bool:
        """Whether tuples in state have a number of their own beside them, by which others can speak of them."""

    @abstractmethod
    def groups(self, table: pa.Table, total: int) -> Groups:
        """The group of every tuple: 0 .. total - 1, or `NOWHERE`, or `EVERYWHERE`."""

    @abstractmethod
    def reach(self, table: pa.Table, groups: Groups) -> int:
        """How many groups after its own a tuple can find what it meets in; `groups` are those of the table."""


@dataclass(frozen=True)
class Layout(ABC):
    """Which slots look at which groups in one epoch."""

    kind: ClassVar[str]  # its name where it is stored
    FORM: ClassVar[Form]

    @property
    @abstractmethod
    def slots(self) -> int:
        """Slots with a larger number have nothing to look at."""

    @abstractmethod
    def groups(self, slot: int, side: int, reach: int = 0) -> list[int]:
        """The groups of one side (0 left, 1 right) that a slot reads whole; `reach` as the tuples' grouping has it."""

    @abstractmethod
    def parts(self, slot: int, side: int) -> list[tuple[int, int, int]]:
        """Groups of which a slot reads a part: (group, which, of how many)."""

    @property
    @abstractmethod
    def whole(self) -> bool:
        """Whether all of a group, of both sides, is in one slot."""

    @abstractmethod
    def handed_on(self) -> Layout:
        """How results lie in these slots, for an operator that shares them."""

    @abstractmethod
    def fits(self, groups: int) -> bool:
        """Whether it is one of so many groups."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: dict[str, Any]) -> Layout:
        """Of what has its form."""

    def shares(self, groups: Groups, side: int) -> Iterator[tuple[int, Rows]]:
        """Which of the tuples in these groups each slot gets, for those that get some."""
        everywhere = groups == EVERYWHERE
        for slot in range(self.slots):
            mine = np.isin(groups, self.groups(slot, side)) | everywhere
            if mine.any():
                yield slot, mine


@dataclass(frozen=True)
class RoutingCost:
    """What a way to route costs when windows are full: per second, or tuples."""

    arriving: float = 0.0  # tuples that come in
    sent: float = 0.0  # tuples sent to slots, a tuple for each slot that gets it
    state: float = 0.0  # tuples held
    opened: float = 0.0  # tuples that the busiest slot must read: new ones and those held
    compared: float = 0.0  # pairs that the busiest slot looks at
    results: float = 0.0


def routing_cost(load: OperatorLoad, sent: float, opened: float, compared: float) -> RoutingCost:
    return RoutingCost(sum(load.arriving), sent, sum(load.state), opened, compared, load.results)


class Adaptation(Enum):
    """What of a layout follows the load while a run goes on."""

    NOTHING = "nothing"
    SHAPE = "the shape of its rectangles"
    PLACE = "which slot a group is in, and the slots of a hot one"


@dataclass(frozen=True)
class Router(ABC):
    """How tuples find the slots of a subquery. Its fields are what a plan file has of it."""

    kind: ClassVar[str]  # its name in a plan file
    FORM: ClassVar[dict[str, Form]]  # of its fields
    adapts: ClassVar[Adaptation]
    chosen: ClassVar[bool]  # state is grouped by what was chosen for it: the manifest has it, and no run can change it
    sends: ClassVar[bool]  # False: tuples are taken where they are

    @property
    @abstractmethod
    def way(self) -> tuple[Any, ...]:
        """What of it follows from the query: the rest may be edited in a plan."""

    @property
    @abstractmethod
    def preference(self) -> tuple[int, ...]:
        """Of two ways that cost the same, the one with less is taken."""

    @property
    @abstractmethod
    def extreme(self) -> bool:
        """Whether it is worth being shown though another of its kind costs less."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """How many groups it needs at least."""

    @abstractmethod
    def slots(self, given: int) -> int:
        """How many of the slots it is given it uses."""

    @abstractmethod
    def wrong(self, slots: int) -> str | None:
        """Why it cannot route to so many slots; None: it can."""

    @abstractmethod
    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost: ...

    @abstractmethod
    def layout(self, groups: int, slots: int, first: int = 0) -> Layout:
        """To begin with, on slots from `first` on."""

    @abstractmethod
    def __str__(self) -> str: ...

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}}
