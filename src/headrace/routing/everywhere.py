"""Routing of joins of several streams in which some streams are read by every slot.

Invariant: the tuples of the inputs that are not partitioned are in the group `EVERYWHERE`: they are written once, and every
slot reads them. A combination is evaluated in the slot that its partitioned tuples have in common, and in no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.columnar.types import public_text
from headrace.plan.figures import OperatorLoad
from headrace.routing.base import EVERYWHERE, Adaptation, Grouping, Groups, RoutingCost, routing_cost
from headrace.routing.by_hash import EvenRouter
from headrace.support import validators

MOST_INPUTS = 64
ALL_SLOTS = "__everywhere"  # stands before the columns in a manifest; no column has this name


@dataclass(frozen=True)
class EverywhereGrouping(Grouping):
    """One group that every slot reads. If there are columns, state is sorted by their hash, each cast to its type."""

    types: tuple[pa.DataType, ...]
    numbered: ClassVar[bool] = False

    @property
    def drop_null(self) -> bool:
        return bool(self.columns)

    @property
    def described(self) -> tuple[str, ...]:
        return (ALL_SLOTS, *self.columns)

    @property
    def keeps_hash(self) -> bool:
        return bool(self.columns)

    def groups(self, table: pa.Table, total: int) -> Groups:
        return np.full(table.num_rows, EVERYWHERE, dtype=np.int32)


@dataclass(frozen=True)
class PartHashRouter(EvenRouter):
    """Routing of some inputs by the hash of some columns. Every slot receives the other inputs, given by their numbers."""

    columns: tuple[str, ...]
    everywhere: tuple[int, ...]

    kind: ClassVar[str] = "part-hash"
    FORM: ClassVar[dict[str, validators.Form]] = {
        "columns": validators.list_of(validators.text),
        "everywhere": validators.list_of(validators.whole(0, MOST_INPUTS - 1)),
    }
    adapts: ClassVar[Adaptation] = Adaptation.PLACE

    @property
    def way(self) -> tuple[Any, ...]:
        return self.kind, self.columns, self.everywhere

    @property
    def extreme(self) -> bool:
        return True  # several of its kind are shown

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        copies = [slots if side in self.everywhere else 1 for side in range(len(load.sending))]
        sent = sum(rate * times for rate, times in zip(load.sending, copies, strict=True))
        held = sum(rows * times for rows, times in zip(load.state, copies, strict=True))
        return routing_cost(load, sent, (sent + held) / slots, load.results / slots)

    def __str__(self) -> str:
        return public_text(f"hash of {', '.join(self.columns)}, the other streams to every slot")
