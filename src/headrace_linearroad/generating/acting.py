"""Scripted cars: their reports and questions are written line by line before the traffic is generated.

    car = script.car(xway=0, direction=EAST, number=7)
    car.enter(second=60, mile=3).drive(40).stop(4 * MILE, lane=1, times=6).drive(30).leave()

A line is a report, repeated if the car stands still. Scripted cars follow the rules of all cars, unless a line breaks a
rule on purpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from headrace_linearroad.forms import BALANCE, EXPENDITURE, NOTHING, TRAVEL
from headrace_linearroad.generating.draws import Ints
from headrace_linearroad.generating.rows import PLACE, QUESTION
from headrace_linearroad.generating.world import (
    CARS,
    EVERY,
    EXIT_FEET,
    FASTEST,
    FEET,
    MILE,
    PER_SECOND,
    PER_WAY,
    QUESTIONS,
    RAMP_OFF,
    RAMP_ON,
    position,
)

LINE = ("second", "vid", *PLACE, "times")
TURN = 2 * PER_WAY  # the first question number per second for scripted cars
UP_TO = 60  # largest miles per hour at which a car approaches a place


@dataclass
class Script:
    """Reports and questions of scripted cars, in any order."""

    lines: list[tuple[int, ...]] = field(default_factory=list)
    asked: list[dict[str, int]] = field(default_factory=list)

    def car(self, xway: int, direction: int, number: int, home: int | None = None) -> Car:
        """Return a new car. home: the expressway whose number range it uses; default: `xway`."""
        return Car(self, (xway if home is None else home) * CARS + number, xway, direction)

    def within(self, xways: range) -> Script:
        """Return the part of the script on some expressways."""
        at = LINE.index("xway")
        return Script(
            [one for one in self.lines if one[at] in xways], [one for one in self.asked if one["slot"] in xways]
        )

    def span(self, lines: int, asked: int) -> tuple[int, int]:
        """Return the first and last second of the lines and questions after the first `lines` and `asked`."""
        new = self.lines[lines:]
        first = min(line[0] for line in new)
        ends = [line[0] + (line[-1] - 1) * EVERY for line in new] + [one["second"] for one in self.asked[asked:]]
        return first, max(ends)

    def ask(self, **fields: int) -> int:
        """Add a question and return its number."""
        xway, second = fields["slot"], fields["second"]
        turn = sum(asked["slot"] == xway and asked["second"] == second for asked in self.asked[-PER_SECOND:])
        assert turn < PER_SECOND - TURN
        fields["qid"] = xway * QUESTIONS + second * PER_SECOND + TURN + turn
        self.asked.append(fields)
        return fields["qid"]


@dataclass
class Car:
    """A scripted car. `way` and `second` are those of its last report."""

    script: Script
    vid: int
    xway: int
    direction: int
    way: int = 0
    second: int = 0
    lane: int = RAMP_ON
    speed: int = 0

    def enter(self, second: int, mile: int, feet: int = 0, speed: int = 25) -> Car:
        self.second, self.way, self.speed, self.lane = second, mile * MILE + feet, speed, RAMP_ON
        return self._report()

    def drive(self, speed: int, lane: int = 1, times: int = 1) -> Car:
        for _ in range(times):
            self._on(speed, lane, speed * FEET)
        return self

    def stop(self, way: int, lane: int, times: int) -> Car:
        """Drive to a place ahead, a multiple of 44 feet away, and report `times` times from there."""
        *steps, last = steps_to(way - self.way)
        for speed in steps:
            self.drive(speed, lane)
        self._on(0, lane, last * FEET, times)
        self.second += (times - 1) * EVERY
        return self

    def shift(self, lane: int) -> Car:
        """Report from the same place in another lane."""
        return self._on(0, lane, 0)

    def leave(self, speed: int = 30) -> Car:
        """Leave by the exit of the current segment."""
        end = (self.way // MILE + 1) * MILE
        return self._on(speed, RAMP_OFF, min(max(end - EXIT_FEET // 2 - self.way, 0), FASTEST * FEET))

    def leave_at_once(self, speed: int) -> Car:
        """Leave by the exit of the segment that its speed takes it to, possibly the next one."""
        return self._on(speed, RAMP_OFF, speed * FEET)

    def _on(self, speed: int, lane: int, feet: int, times: int = 1) -> Car:
        self.second, self.way, self.speed, self.lane = self.second + EVERY, self.way + feet, speed, lane
        return self._report(times)

    def _report(self, times: int = 1) -> Car:
        self.script.lines.append((self.second, self.vid, *self.place().values(), times))
        return self

    def place(self) -> dict[str, int]:
        pos = position(self.way, self.direction)
        found = (self.speed, self.xway, self.lane, self.direction, pos // MILE, pos)
        return dict(zip(PLACE, found, strict=True))

    @property
    def seg(self) -> int:
        return self.place()["seg"]

    def ask_balance(self, before: bool = False, later: int = 0) -> int:
        """Ask for the balance and return the question's number. later: seconds after the last report."""
        return self._ask(BALANCE, before, later)

    def ask_expenditure(self, day: int) -> int:
        return self._ask(EXPENDITURE, False, 0, xway=self.xway, day=day)

    def ask_trip(self, sinit: int, send: int, dow: int, tod: int) -> int:
        return self._ask(TRAVEL, False, 0, xway=self.xway, sinit=sinit, send=send, dow=dow, tod=tod)

    def _ask(self, kind: int, before: bool, later: int, **fields: int) -> int:
        slot = {"slot": self.xway, "second": self.second + later, "type": kind, "vid": self.vid, "before": int(before)}
        known = {f"_{name}": value for name, value in self.place().items()}
        return self.script.ask(**slot, **known, **fields)


def steps_to(feet: int) -> list[int]:
    """Return speeds in miles per hour, for half a minute each, that add up to a distance."""
    speeds, rest = divmod(feet, FEET)
    assert rest == 0 < speeds
    parts = math.ceil(speeds / UP_TO)
    return [speeds * (part + 1) // parts - speeds * part // parts for part in range(parts)]


class Played:
    """A script, indexed by second."""

    def __init__(self, script: Script, filled: bool) -> None:
        self._lines = _expanded(np.array(script.lines, np.int64).reshape(-1, len(LINE)))
        self._asked = sorted(script.asked, key=lambda asked: (asked["second"], asked["qid"]))
        self._asked_at = np.array([asked["second"] for asked in self._asked], np.int64)
        self._filled = filled

    @property
    def vids(self) -> set[int]:
        return {int(vid) for vid in np.unique(self._lines[:, 1])}

    def reports(self, second: int) -> dict[str, Ints]:
        begin, end = np.searchsorted(self._lines[:, 0], [second, second + 1])
        return {name: self._lines[begin:end, n] for n, name in enumerate(LINE) if name in ("vid", *PLACE)}

    def asked(self, second: int) -> tuple[dict[str, Ints], Ints]:
        """Return the questions of a second, and whether each is placed before the reports."""
        begin, end = np.searchsorted(self._asked_at, [second, second + 1])
        asked = [self._fields(one) for one in self._asked[begin:end]]
        fields = ("type", "vid", *PLACE, *QUESTION)
        found = {name: np.array([one.get(name, NOTHING) for one in asked], np.int64) for name in fields}
        return found, np.array([one["before"] for one in asked], bool)

    def _fields(self, asked: dict[str, int]) -> dict[str, int]:
        if not self._filled or asked["type"] == TRAVEL:
            return asked
        return asked | {name: asked[f"_{name}"] for name in PLACE}


def _expanded(lines: Ints) -> Ints:
    """Return one line for every report, sorted by time."""
    times = lines[:, -1]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    found = np.repeat(lines, times, axis=0)
    found[:, 0] += nth * EVERY
    return found[np.lexsort((found[:, 1], found[:, 0]))]
