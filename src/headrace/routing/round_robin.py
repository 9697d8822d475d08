"""Routing of whole physical windows in turn, for the stateless steps after a source, which need no exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.plan.figures import OperatorLoad
from headrace.routing.base import Adaptation, RoutingCost, routing_cost
from headrace.routing.by_hash import EvenRouter
from headrace.support.validators import Form


@dataclass(frozen=True)
class RoundRobinRouter(EvenRouter):
    """Leaves physical windows with the splitter that reads them, so nothing is sent."""

    kind: ClassVar[str] = "windows"
    FORM: ClassVar[dict[str, Form]] = {}
    adapts: ClassVar[Adaptation] = Adaptation.NOTHING
    sends: ClassVar[bool] = False

    @property
    def way(self) -> tuple[Any, ...]:
        return (self.kind,)

    def cost(self, load: OperatorLoad, slots: int) -> RoutingCost:
        tuples = sum(load.sending)
        return routing_cost(load, tuples, tuples / slots, 0.0)

    def __str__(self) -> str:
        return "whole windows, as they come"
