"""Routing of all tuples to one slot, in sequence, for operators that cannot run in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.plan.figures import OperatorLoad
from headrace.routing.base import Adaptation, RoutingCost, routing_cost
from headrace.routing.by_hash import Diagonal, EvenRouter
from headrace.support.validators import Form


@dataclass(frozen=True)
class OneSlotRouter(EvenRouter):
    """Sends all tuples to one slot."""

    kind: ClassVar[str] = "one"
    FORM: ClassVar[dict[str, Form]] = {}
    adapts: ClassVar[Adaptation] = Adaptation.NOTHING

    @property
    def way(self) -> tuple[Any, ...]:
        return (self.kind,)

    @property
    def preference(self) -> tuple[int, ...]:
        return (2, 0, 0)  # at equal cost, any router that uses more slots is preferred

    def slots(self, given: int) -> int:
        return 1

    def wrong(self, slots: int) -> str | None:
        return None if slots == 1 else f"the router uses one slot; found slots = {slots}; set slots to 1"

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        sent = sum(load.sending)
        return routing_cost(load, sent, sent + sum(load.state), load.pairs or load.results)

    def layout(self, groups: int, slots: int, first: int = 0) -> Diagonal:
        return Diagonal.even(groups, 1, first)

    def __str__(self) -> str:
        return "one slot, in sequence"
