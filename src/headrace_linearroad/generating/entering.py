"""Cars that enter, with all their properties, one minute at a time.

About one car in nine returns: it has the number of a car that made a short trip on this or another expressway and has
left. That number follows from the car's own number: D numbers earlier, s expressways further. The remainder of the
car's number selects the pair (D, s), and every D is a multiple of the number of pairs, so no two cars return as the
same car. A returning car makes no short trip, so no car returns twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace_linearroad.generating.demand import Demand, Trips, usual_miles
from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import CARS, EVERY, LENGTH, MILE, RAMP_FEET, RAMP_ON, SEGMENTS, STAGE

BACK = ((600, 0), (420, 1), (780, 2), (1020, -1))  # approximate seconds earlier; expressways further
GONE = 61  # minimum seconds before a car returns
CRUISE = 9  # miles per hour between the slowest and the fastest driver
SPEEDS = (20, 32)  # miles per hour on the ramp


@dataclass(frozen=True)
class Arrivals:
    """Cars that enter within a minute, sorted by second."""

    minute: int
    bounds: Ints  # the first car of each second, and the end
    cars: dict[str, Ints]

    def of(self, second: int) -> dict[str, Ints]:
        begin, end = self.bounds[second % 60 : second % 60 + 2]
        return {name: column[begin:end] for name, column in self.cars.items()}


class Entering:
    """The entering cars of any expressway. Even numbers drive east, odd ones west."""

    def __init__(self, settings: Settings, demand: Demand) -> None:
        self.settings, self.demand, self.trips = settings, demand, Trips(settings.seed)
        self._back = np.array([max(1, round(seconds * demand.pace / len(BACK))) * len(BACK) for seconds, _ in BACK])
        self._far = np.array([far for _, far in BACK])
        self._ways = np.array([len(settings.ways(xway)) for xway in range(settings.roads)])

    def minute(self, minute: int, xways: Ints, direction: int) -> Arrivals:
        """Return the cars of a minute. Their places count along the expressways `xways`, 100 miles each."""
        seed, before = self.settings.seed, self.demand.before(minute)
        numbers = np.arange(before[0], before[-1])
        numbers = numbers[numbers % 2 == direction]
        number, nth = (grid.ravel() for grid in np.meshgrid(numbers, np.arange(len(xways)), indexing="ij"))
        xway, reports = xways[nth], self.trips.reports(xways[nth], number)
        place, driver = (draw(salt(seed, what), xway, number) for what in ("entry", "driver"))
        cars = {
            "vid": self._vid(xway, number, direction),
            "mark": driver & np.uint64(0xFFFFFFFF),
            "place": nth * LENGTH
            + self._mile(minute, xway, reports, place) * MILE
            + between(place, 0, RAMP_FEET - 1, 1),
            "end": (nth + 1) * LENGTH,
            "xway": xway,
            "left": reports - 1,
            "lane": np.full(len(xway), RAMP_ON),
            "cruise": between(driver, -CRUISE, 0),
            "speed": between(draw(salt(seed, "ramp"), xway, number), *SPEEDS),
        }
        return Arrivals(minute, np.searchsorted(numbers, before) * len(xways), cars)

    def _mile(self, minute: int, xway: Ints, reports: Ints, drawn: npt.NDArray[np.uint64]) -> Ints:
        """Return the mile of entry, such that the rest of the road is long enough for the trip in this traffic."""
        miles = usual_miles(reports * EVERY, self.demand.fullness(minute * 60)).astype(np.int64)
        return between(drawn, np.where(xway == 0, STAGE, 0), np.maximum(SEGMENTS - 3 - miles, STAGE + 2))

    def _vid(self, xway: Ints, number: Ints, direction: int) -> Ints:
        pair = number % len(BACK)
        other, earlier = (xway + self._far[pair]) % self.settings.roads, number - self._back[pair]
        left = self.demand.second(earlier) + (self.trips.reports(other, earlier) - 1) * EVERY
        returns = (
            (earlier >= 0)
            & (direction < self._ways[other])
            & (left + GONE < self.demand.second(number))
            & self.trips.is_short(other, earlier)
            & ~self.trips.is_short(xway, number)
        )
        return np.where(returns, other * CARS + earlier, xway * CARS + number)
