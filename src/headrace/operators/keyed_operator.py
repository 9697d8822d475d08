"""The base class of operators that group their input by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from headrace.operators.base import Operator
from headrace.operators.placement import Placement
from headrace.plan.columns_read import Names
from headrace.plan.figures import Figures
from headrace.routing import Grouping, HashGrouping, HashRouter, OneSlotRouter, Router


@dataclass(frozen=True)
class KeyedOperator(Operator):
    """An operator with one input that has all tuples of a key in one slot."""

    by: tuple[str, ...]

    @property
    def router(self) -> Router:
        return HashRouter(self.key_texts) if self.key_texts else OneSlotRouter()  # without a key, all tuples share one

    def routing_options(self, slots: int, figures: Figures) -> Sequence[Router]:
        return [self.router, OneSlotRouter()] if self.key_texts else [self.router]

    @property
    def routing_note(self) -> str:
        return "" if self.key_texts else "in one slot, because all tuples are one group without a key"

    @property
    def key_texts(self) -> tuple[str, ...]:
        return self.groupings[0].columns

    def narrowed(self, schemas: tuple[pa.Schema, ...], live: Names) -> Self:
        return replace(self, schemas=schemas)

    @property
    def takes_whole(self) -> bool:
        return False

    @property
    def may_follow(self) -> bool:
        return True

    @property
    def placement(self) -> Placement | None:
        grouping = self.groupings[0]
        assert isinstance(grouping, HashGrouping)
        placed = tuple(frozenset([name]) for name in grouping.columns)
        return Placement(self.follows or self.name, placed, grouping.types) if self.by else None

    def aligned(self, handed: Sequence[Sequence[Placement]]) -> tuple[Grouping, ...] | None:
        places = len(next(placed for side in handed for placed in side).columns)
        types_of = {placed.types for placed in handed[0]}
        names = [
            next((c for c in self.by if all(c in placed.columns[place] for placed in handed[0])), None)
            for place in range(places)
        ]
        if len(types_of) != 1 or not names or None in names:
            return None
        return (HashGrouping(tuple(name for name in names if name), types_of.pop()),)
