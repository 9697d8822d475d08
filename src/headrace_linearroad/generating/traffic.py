"""The traffic of some expressways, second by second.

The tuples of a second are a function of the settings and the second: a run that begins later has the same ones from there on
(as a multiset), because it lets those drive, unheard, who are still under way when it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace_linearroad.generating import speeds
from headrace_linearroad.generating.cars import Cars, Room
from headrace_linearroad.generating.demand import LONGEST, Demand
from headrace_linearroad.generating.draws import Ints, draw, salt
from headrace_linearroad.generating.entering import Entering
from headrace_linearroad.generating.questions import Questions
from headrace_linearroad.generating.rows import Rows
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import EAST, EVERY, PER_SECOND, SEGMENTS, WEST

TOGETHER = 16  # expressways whose cars are moved at once: their columns fit into a processor's cache


class Group:
    """Some expressways, one after the other, and their cars in both directions."""

    def __init__(self, settings: Settings, entering: Entering, xways: Ints, room: Room) -> None:
        self.settings, self.entering, self.xways = settings, entering, xways
        self.cars = [Cars(settings.seed, way, room, settings.style == "walmart") for way in (EAST, WEST)]
        self._limits: dict[int, tuple[int, Ints]] = {}

    def move(self, second: int, rows: Rows | None, questions: Questions) -> None:
        for way, cars in enumerate(self.cars):
            entering = self.entering.cars(second, int(self.xways[0]), self.xways, way)
            moved = cars.move(second, self.limits(second // 60, way), entering)
            if rows is not None:
                asked = questions.ask(second, moved.reports(moved.asking()))
                before = asked.pop("before").astype(bool)
                rows.add({name: column[before] for name, column in asked.items()}, int(before.sum()))
                moved.write(rows)
                rows.add({name: column[~before] for name, column in asked.items()}, int((~before).sum()))
            moved.leave()

    def limits(self, minute: int, way: int) -> Ints:
        if self._limits.get(way, (None,))[0] != minute:
            fullness = self.entering.demand.fullness(minute * 60)
            found = speeds.limits(self.settings.seed, self.xways, way, minute, fullness)
            self._limits[way] = minute, found.ravel()
        return self._limits[way][1]

    def most(self, second: int) -> int:
        """Tuples of a second, at most."""
        under_way = sum(cars.rounds[second % EVERY].count for cars in self.cars)
        return under_way + len(self.xways) * (len(self.entering.demand.numbers(second)) + 2 * PER_SECOND)


class Traffic:
    """Of the expressways that are asked for (all there are), from the settings' beginning on."""

    def __init__(self, settings: Settings, xways: range | None = None) -> None:
        self.settings = settings
        self.xways = xways if xways is not None else range(settings.expressways)
        self.entering = Entering(settings.seed, settings.expressways, self.demand)
        self.questions = Questions(settings.seed, settings.trips, settings.style == "walmart")

    @cached_property
    def demand(self) -> Demand:
        return Demand(self.settings.density)

    def seconds(self, begin: int, end: int) -> Iterator[tuple[int, pa.Table]]:
        """(second, its tuples), one after the other; seconds without a tuple are there too."""
        groups = self._groups()
        for second in range(max(self.demand.first, begin - LONGEST), begin):
            for group in groups:
                group.move(second, None, self.questions)
        for second in range(begin, end):
            yield second, self._second(second, groups)

    def _groups(self) -> list[Group]:
        room = Room()
        xways = np.arange(self.xways.start, self.xways.stop)
        cuts = range(TOGETHER, len(xways), TOGETHER)
        return [Group(self.settings, self.entering, part, room) for part in np.split(xways, cuts)]

    def _second(self, second: int, groups: list[Group]) -> pa.Table:
        rows = Rows(second, sum(group.most(second) for group in groups))
        for group in groups:
            group.move(second, rows, self.questions)
        return rows.table(self._order(second, rows) if self.settings.shuffle else None)

    def _order(self, second: int, rows: Rows) -> Ints:
        place = draw(salt(self.settings.seed, "shuffle", second), np.arange(rows.count))
        return np.argsort(place, kind="stable")


__all__ = ["SEGMENTS", "Traffic"]
