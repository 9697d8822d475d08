"""Accidents (two cars that stand at one place in one lane), and the time from which a reader of the tuples can detect
them.

Each expressway has one accident at a time, 15 to 25 minutes after the last was cleared, for 10 to 20 minutes. The
traffic upstream of it slows down. A reader detects a stopped car by four equal reports, so detection depends on the
part it reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace_linearroad.generating.acting import Car, Script, steps_to
from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import ACTORS, EVERY, FEET, HOURS, MILE, SEGMENTS, STAGE, position

STANDS = 4  # equal reports that make a stop
FIRST, PAUSE, LASTS = (130, 400), (900, 1500), (600, 1200)  # seconds
SLOW = (12, 15, 19, 24, 30)  # speed limits in miles per hour: in the segment of an accident, and in those upstream
BEHIND = len(SLOW) - 1  # segments upstream that slow down
NUMBERS = ACTORS + 2**15  # first number of the cars in accidents


@dataclass(frozen=True)
class Stop:
    """The equal reports of a stopped car."""

    vid: int
    first: int
    last: int

    @property
    def moved(self) -> int:
        """The second of the first report from another place."""
        return self.last + EVERY

    def seen(self, begin: int, end: int) -> range:
        """Return the seconds of the equal reports within [begin, end)."""
        missed = max(0, -(-(begin - self.first) // EVERY))
        return range(self.first + missed * EVERY, min(self.moved, end), EVERY)


@dataclass(frozen=True)
class Accident:
    """An accident. way: feet along its direction."""

    xway: int
    direction: int
    way: int
    lane: int
    stops: tuple[Stop, Stop]

    @property
    def begins(self) -> int:
        return min(stop.first for stop in self.stops)

    @property
    def cleared(self) -> int:
        return min(stop.moved for stop in self.stops)

    def slow(self, minute: int, limits: Ints) -> None:
        """Lower the speed limits (by mile) of its expressway and direction, in its segment and upstream."""
        if self.begins < (minute + 1) * 60 and minute * 60 < self.cleared:
            mile = self.way // MILE
            for behind, most in enumerate(SLOW[: mile + 1]):
                limits[mile - behind] = min(limits[mile - behind], most)

    def truth(self, begin: int, end: int) -> dict[str, Any] | None:
        """Return what the tuples of [begin, end) show of the accident, or None if they do not show it."""
        seen = [stop.seen(begin, end) for stop in self.stops]
        if min(len(reports) for reports in seen) < STANDS:
            return None
        detected = max(reports[STANDS - 1] for reports in seen)
        if detected >= self.cleared:
            return None
        pos = position(self.way, self.direction)
        return {
            "xway": self.xway,
            "dir": self.direction,
            "seg": pos // MILE,
            "pos": pos,
            "lane": self.lane,
            "vids": [stop.vid for stop in self.stops],
            "detected": detected,
            "last_stopped": max(moment for reports in seen for moment in reports if moment < self.cleared),
            "cleared": self.cleared if self.cleared < end else None,
        }


def collide(cars: tuple[Car, Car], way: int, lane: int, firsts: tuple[int, int], times: tuple[int, int]) -> Accident:
    """Let two cars stand at a place, each from its second in `firsts` for `times` reports, then drive and leave."""
    stops = []
    for car, first, reports in zip(cars, firsts, times, strict=True):
        stand(car, way, lane, first, reports)
        stops.append(Stop(car.vid, first, car.second))
        car.drive(25, lane).leave()
    return Accident(cars[0].xway, cars[0].direction, way, lane, (stops[0], stops[1]))


def stand(car: Car, way: int, lane: int, first: int, times: int) -> Car:
    """Let a car enter a segment before the place, such that its first report from the place is in second `first`."""
    mile = max(way // MILE - 1, 0)
    feet = (way - mile * MILE) % FEET
    steps = steps_to(way - mile * MILE - feet)
    return car.enter(first - len(steps) * EVERY, mile, feet).stop(way, lane, times)


def happening(settings: Settings, xway: int, first: int, script: Script) -> Iterator[Accident]:
    """Write the accidents of an expressway into the script, and yield them. Traffic begins in second `first`."""

    def drawn(what: str, low: int, high: int) -> int:
        return int(between(draw(salt(settings.seed, "accident", what), xway, nth), low, high)[0])

    nth, second = 0, first
    second += drawn("first", *FIRST)
    while second < HOURS:
        direction = drawn("direction", 0, len(settings.ways(xway)) - 1)
        mile = drawn("mile", STAGE + BEHIND, SEGMENTS - 2)
        way, lane = mile * MILE + drawn("feet", 500, 4000), drawn("lane", 1, 3)
        cars = (script.car(xway, direction, NUMBERS + 2 * nth), script.car(xway, direction, NUMBERS + 2 * nth + 1))
        reports = drawn("lasts", *LASTS) // EVERY
        firsts = (second, second + drawn("apart", 1, EVERY - 1))
        found = collide(cars, way, lane, firsts, (reports, reports))
        yield found
        nth, second = nth + 1, found.cleared
        second += drawn("pause", *PAUSE)
