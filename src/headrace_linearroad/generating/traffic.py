"""The traffic of some expressways, second by second.

The tuples of a second depend only on the settings and the second. To generate a part of the three hours, the traffic
before it is simulated without output, for as long as a car can be on the road.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from headrace_linearroad.generating import speeds
from headrace_linearroad.generating.accidents import Accident
from headrace_linearroad.generating.cars import Cars, Moved, Room
from headrace_linearroad.generating.cast import Cast
from headrace_linearroad.generating.demand import LONGEST, Demand
from headrace_linearroad.generating.draws import Ints, draw, salt
from headrace_linearroad.generating.entering import Arrivals, Entering
from headrace_linearroad.generating.questions import Questions
from headrace_linearroad.generating.rows import Rows
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import EAST, EVERY, PER_SECOND, WEST

TOGETHER = 16  # expressways whose cars are moved at once: their columns fit in a CPU cache


class Way:
    """The cars of some expressways in one direction, and the speed limits and arrivals of their current minute."""

    def __init__(
        self,
        settings: Settings,
        entering: Entering,
        accidents: list[Accident],
        xways: Ints,
        direction: int,
        room: Room,
    ) -> None:
        self.settings, self.entering, self.xways, self.direction = settings, entering, xways, direction
        self.accidents = [one for one in accidents if one.direction == direction and xways[0] <= one.xway <= xways[-1]]
        self.cars = Cars(settings.seed, direction, room, new_segment=settings.walmart)
        self._turn(entering.demand.first // 60)

    def _turn(self, minute: int) -> None:
        fullness = self.entering.demand.fullness(minute * 60)
        self.arrivals: Arrivals = self.entering.minute(minute, self.xways, self.direction)
        limits = speeds.limits(self.settings.seed, self.xways, self.direction, minute, fullness)
        for accident in self.accidents:
            accident.slow(minute, limits[accident.xway - self.xways[0]])
        self.limits = limits.ravel()

    def count(self, second: int) -> int:
        """Return the number of reports of the next second."""
        if self.arrivals.minute != second // 60:
            self._turn(second // 60)
        return self.cars.rounds[second % EVERY].count + len(self.arrivals.of(second)["vid"])

    def move(self, second: int) -> Moved:
        if self.arrivals.minute != second // 60:
            self._turn(second // 60)
        return self.cars.move(second, self.limits, self.arrivals.of(second))


class Traffic:
    """The traffic of all expressways, or of those in `xways`."""

    def __init__(self, settings: Settings, xways: range | None = None) -> None:
        self.settings = settings
        self.xways = range(settings.roads) if xways is None else xways
        self.demand = Demand(settings.density)
        self.entering = Entering(settings, self.demand)
        self.questions = Questions(settings)
        self.cast = Cast(settings, self.xways, self.demand.first)

    def seconds(self, begin: int, end: int, tell: Callable[[], None] = lambda: None) -> Iterator[tuple[int, pa.Table]]:
        """Yield (second, its tuples), also for seconds without tuples. `tell` is called before the first one."""
        ways = self._ways()
        for second in range(max(self.demand.first, begin - LONGEST), begin):
            for way in ways:
                way.move(second).leave()
            tell()
        for second in range(begin, end):
            yield second, self._second(second, ways)

    def _ways(self) -> list[Way]:
        room, found = Room(), list[Way]()
        for first in range(self.xways.start, self.xways.stop, TOGETHER):
            together = range(first, min(first + TOGETHER, self.xways.stop))
            for direction in (EAST, WEST):
                xways = np.array([xway for xway in together if direction in self.settings.ways(xway)])
                if len(xways):
                    found.append(Way(self.settings, self.entering, self.cast.accidents, xways, direction, room))
        return found

    def _second(self, second: int, ways: list[Way]) -> pa.Table:
        acted = self.cast.played.reports(second)
        reports = sum(way.count(second) for way in ways) + len(acted["vid"])
        rows = Rows(second, reports, PER_SECOND * len(self.xways))
        rows.report(acted)
        asking = []
        for way in ways:
            moved = way.move(second)
            moved.write(rows)
            asking.append(moved.reports(moved.asking()))
            moved.leave()
        together = {name: np.concatenate([part[name] for part in asking]) for name in asking[0]}
        rows.ask(*self.questions.ask(second, together))
        rows.ask(*self.cast.played.asked(second))
        return rows.table(self._order(second, rows) if self.settings.shuffle else None)

    def _order(self, second: int, rows: Rows) -> Ints:
        return np.argsort(draw(salt(self.settings.seed, "shuffle", second), np.arange(len(rows))))
