"""What can be chosen of traffic; checked when it is made."""

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
    """Traffic of `expressways` (a half: the last has eastbound lanes only).

    density: tuples per second and expressway, from the beginning on; None: rising as in official data. plain: without the
    rare cases that are planted. trips: which are asked about, per expressway.
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
            msg = f"there can be 0.5 to {MOST:,} expressways, in steps of a half; found {self.expressways:g}"
            raise WorkloadError(msg)
        if self.density is not None and not 1 <= self.density <= DENSEST:
            msg = f"the density must be 1 to {DENSEST:,} tuples per second and expressway; found {self.density:g}"
            raise WorkloadError(f"{msg}; full density is {FULL:,}")
        if self.style not in STYLES:
            raise WorkloadError(f"there is no style {self.style!r}; known are {', '.join(STYLES)}")
        if not 1 <= self.trips <= MOST_TRIPS:
            raise WorkloadError(f"there can be 1 to {MOST_TRIPS:,} trips to ask about; found {self.trips}")

    @property
    def roads(self) -> int:
        """Numbers of expressways are less than this."""
        return math.ceil(self.expressways)

    def ways(self, xway: int) -> tuple[int, ...]:
        """Directions that an expressway has."""
        return (EAST, WEST) if xway + 1 <= self.expressways else (EAST,)

    @property
    def walmart(self) -> bool:
        """An exit may be the first report from a segment; questions repeat the fields of a report."""
        return self.style == "walmart"
