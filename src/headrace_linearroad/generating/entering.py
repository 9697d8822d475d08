"""Who enters: the cars of a second, with all that they bring along.

One in some eight cars is a car that was here before: it has the number of one that made a short trip, on this expressway or
on another. Which one follows from its own number: D numbers earlier, s expressways further. D is a multiple of the number of
pairs (D, s) and the pair is chosen by the remainder, so no two cars come back as the same one; and a car that comes back is
no short trip itself, so nobody comes back twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace_linearroad.generating.demand import Demand, Trips, usual_miles
from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.world import CARS, EVERY, MILE, RAMP_FEET, RAMP_ON, SEGMENTS, STAGE

BACK = ((6_000, 0), (10_000, 1), (16_000, 2), (24_000, -1))  # numbers earlier, expressways further
GONE = 61  # seconds at least before a car comes back
CRUISE = 9  # miles per hour between the slowest and the fastest driver
SPEEDS = (20, 32)  # on the ramp


@dataclass(frozen=True)
class Entering:
    """Cars of all expressways, by expressway and number."""

    seed: int
    expressways: int
    demand: Demand

    @property
    def trips(self) -> Trips:
        return Trips(self.seed)

    def cars(self, second: int, first: int, xways: Ints, direction: int) -> dict[str, Ints]:
        """Those that enter now, eastbound those with even numbers; `first`: the expressway whose road begins at mile 0."""
        numbers = np.array([n for n in self.demand.numbers(second) if n % 2 == direction], np.int64)
        xway, number = (grid.ravel() for grid in np.meshgrid(xways, numbers, indexing="ij"))
        reports = self.trips.reports(xway, number)
        drawn = draw(salt(self.seed, "entering"), xway, number)
        more = draw(salt(self.seed, "driver"), xway, number)
        road = (xway - first) * SEGMENTS
        mile = self._mile(second, xway, reports, drawn)
        return {
            "vid": self._vid(second, xway, number),
            "mark": more & np.uint64(0xFFFFFFFF),
            "place": (road + mile) * MILE + between(drawn, 0, RAMP_FEET - 1, part=1),
            "road": road,
            "xway": xway,
            "left": reports - 1,
            "lane": np.full(len(xway), RAMP_ON),
            "cruise": between(more, -CRUISE, 0),
            "speed": between(draw(salt(self.seed, "ramp"), xway, number), *SPEEDS),
        }

    def _mile(self, second: int, xway: Ints, reports: Ints, drawn: npt.NDArray[np.uint64]) -> Ints:
        """Where the road is long enough for the trip, as traffic is; on the first expressway not where others play."""
        far = usual_miles(reports * EVERY, self.demand.fullness(second))
        last = np.maximum(SEGMENTS - 3 - far.astype(np.int64), STAGE + 2)
        return between(drawn, np.where(xway == 0, STAGE, 0), last)

    def _vid(self, second: int, xway: Ints, number: Ints) -> Ints:
        back, far = (np.array(column)[number % len(BACK)] for column in zip(*BACK, strict=True))
        other, earlier = (xway + far) % self.expressways, number - back
        left = self.demand.second(earlier) + (self.trips.reports(other, earlier) - 1) * EVERY
        returns = (
            (earlier >= 0)
            & (left + GONE < second)
            & self.trips.is_short(other, earlier)
            & ~self.trips.is_short(xway, number)
        )
        return np.where(returns, other * CARS + earlier, xway * CARS + number)
