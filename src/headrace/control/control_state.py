"""The state of the controller in a manifest: its decisions, and what it needs to continue after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.routing import Layout, layout_from_json
from headrace.support import validators
from headrace.support.limits import MOST_SLOTS

_DECISION = validators.record(
    epoch=validators.count,
    operator=validators.text,
    kind=validators.one_of("shape", "ranges", "move", "split", "slots", "splitters", "probes"),
    change=validators.text,
    reason=validators.text,
    before=validators.finite,
    predicted=validators.finite,
    measured=validators.optional(validators.finite),
)


@dataclass(frozen=True)
class Decision:
    """One change. Manifest `epoch` records it, and the next epoch uses it."""

    epoch: int
    operator: str
    kind: str  # shape, ranges, move, split, slots, splitters, probes
    change: str
    reason: str
    before: float  # load of the busiest slot before: relative to the mean, or tuples to read; splitters: seconds; probes: work per tuple
    predicted: float  # expected load after the change, relative to `before`
    measured: float | None = None  # measured load at the next reorganisation, relative to `before`

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)

    @staticmethod
    def from_json(data: Any, key: str = "decision") -> Decision:
        return Decision(**_DECISION(data, key))


_CONTROL_FORM = validators.record(
    active=validators.whole(1, MOST_SLOTS),
    layouts=validators.mapping_of(layout_from_json),
    history=validators.list_of(Decision.from_json),
)


@dataclass(frozen=True)
class ControlState:
    """The section `control` of a manifest."""

    active: int  # number of active slots
    layouts: Mapping[str, Layout]  # operator -> decided layout
    history: tuple[Decision, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "active": self.active,
            "layouts": {name: layout.to_json() for name, layout in self.layouts.items()},
            "history": [decision.to_json() for decision in self.history],
        }

    @staticmethod
    def from_json(data: Any) -> ControlState:
        """Return the state from JSON. Raise on data that `to_json` cannot produce."""
        found = _CONTROL_FORM(data, "control")
        return ControlState(found["active"], found["layouts"], tuple(found["history"]))
