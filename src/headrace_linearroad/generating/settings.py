"""What a user may choose; checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import WorkloadError
from headrace_linearroad.generating.world import MOST

STYLES = ("official", "walmart")
DENSITIES = 1, 2000


@dataclass(frozen=True)
class Settings:
    """density: tuples per second and expressway all the time; None: rising from 10 to 1,700 in three hours."""

    expressways: int = 1
    seed: int = 1
    density: float | None = None
    style: str = "official"
    shuffle: bool = False
    trips: int = 128

    def __post_init__(self) -> None:
        if not 1 <= self.expressways <= MOST:
            raise WorkloadError(f"there can be 1 to {MOST} expressways; found {self.expressways!r}")
        if self.density is not None and not DENSITIES[0] <= self.density <= DENSITIES[1]:
            raise WorkloadError(
                f"the density is {DENSITIES[0]} to {DENSITIES[1]} tuples per second; found {self.density!r}"
            )
        if self.style not in STYLES:
            raise WorkloadError(f"there is no style {self.style!r}; known are {', '.join(STYLES)}")
