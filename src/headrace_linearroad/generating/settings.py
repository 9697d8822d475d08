"""Settings of the traffic, validated on creation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace.errors import WorkloadError
from headrace_linearroad.generating.demand import FULL
from headrace_linearroad.generating.world import EAST, MOST, WEST

STYLES = ("official", "walmart")
DENSEST = 2000
MOST_TRIPS = 100_000


@dataclass(frozen=True)
class Settings:
    """Settings of the traffic of `expressways` (with a half, the last one has only eastbound lanes).

    density: constant tuples per second and expressway; None: rising as in official data. plain: omit the planted rare
    cases. trips: number of different trips in travel time questions, per expressway.
    """

    expressways: float = 1
    seed: int = 1
    density: float | None = None
    style: str = "official"
    shuffle: bool = False
    plain: bool = False
    trips: int = 128

    def __post_init__(self) -> None:
        if not (0.5 <= self.expressways <= MOST and self.expressways * 2 == int(self.expressways * 2)):
            msg = f"the number of expressways must be 0.5 to {MOST:,}, in steps of a half; found {self.expressways:g}"
            raise WorkloadError(msg)
        if self.density is not None and not 1 <= self.density <= DENSEST:
            msg = f"the density must be 1 to {DENSEST:,} tuples per second and expressway; found {self.density:g}"
            raise WorkloadError(f"{msg}; full density is {FULL:,}")
        if self.style not in STYLES:
            raise WorkloadError(f"there is no style {self.style!r}; expected one of {', '.join(STYLES)}")
        if not 1 <= self.trips <= MOST_TRIPS:
            raise WorkloadError(f"the number of trips must be 1 to {MOST_TRIPS:,}; found {self.trips}")

    @property
    def roads(self) -> int:
        """The number of expressways, rounded up."""
        return math.ceil(self.expressways)

    def ways(self, xway: int) -> tuple[int, ...]:
        """Return the directions of an expressway."""
        return (EAST, WEST) if xway + 1 <= self.expressways else (EAST,)

    @property
    def walmart(self) -> bool:
        """Whether an exit may be the first report from a segment, and questions repeat the fields of a report."""
        return self.style == "walmart"
