"""Whole physical windows as they come, dealt out in turn: the stateless steps behind a source need no exchange."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.plan.figures import Load
from headrace.routing.base import Adapts, Numbers, numbers
from headrace.routing.by_hash import Spread
from headrace.support.validators import Form


@dataclass(frozen=True)
class WindowsRouter(Spread):
    kind: ClassVar[str] = "windows"
    FORM: ClassVar[dict[str, Form]] = {}
    adapts: ClassVar[Adapts] = Adapts.NOTHING
    sends: ClassVar[bool] = False

    @property
    def way(self) -> tuple[Any, ...]:
        return (self.kind,)

    def cost(self, load: Load, slots: int) -> Numbers:
        taken = sum(load.sending)
        return numbers(load, taken, taken / slots, 0.0)

    def __str__(self) -> str:
        return "whole windows, as they come"
