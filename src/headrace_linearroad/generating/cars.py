"""The movement of the cars of some expressways in one direction, half a minute at a time.

A car reports every 30 s from its entry on, so the cars that report in one second (a round) are always the same: a round
is moved as a whole once in 30 s, and each of its cars makes one report. The reported speed is the mean of the half
minute, so a car has moved 44 feet for each mile per hour. These cars never stand still; scripted cars do (acting.py).

State is stored in columns. When a car leaves, the last car of the round takes its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace_linearroad.generating.draws import Ints, between, draw, salt, shaken
from headrace_linearroad.generating.rows import Rows
from headrace_linearroad.generating.world import (
    EAST,
    EVERY,
    EXIT_FEET,
    FASTEST,
    FEET,
    LENGTH,
    MILE,
    RAMP_OFF,
    position,
)

SLOWEST = 3  # miles per hour
VANISH = 10  # one car in this many stops reporting instead of taking the exit
ASKS = 2**16 // 100  # of 2 ** 16 draws, those for which a question accompanies the report

STATE: dict[str, Any] = {
    "vid": np.int32,
    "mark": np.uint32,  # seed of its random numbers
    "place": np.int32,  # feet along the concatenated expressways
    "end": np.int32,  # the end of its expressway, in the same feet
    "xway": np.int16,
    "left": np.int16,  # remaining reports
    "lane": np.int8,
    "cruise": np.int8,  # miles per hour relative to the traffic
    "speed": np.int8,  # speed of its last report
}


def _lanes() -> npt.NDArray[np.int8]:
    """Return the next lane by lane and four random bits. The ramp leads to lane 1; later one car in eight changes."""
    table = np.zeros((RAMP_OFF + 1, 16), np.int8)
    table[0], table[1:4] = 1, np.array([1, 2, 3])[:, None]
    table[1, :2], table[2, 0], table[2, 1], table[3, :2] = 2, 1, 3, 2
    return table.ravel()


LANES = _lanes()


class Round:
    """The cars that report in the same seconds."""

    def __init__(self) -> None:
        self.count = 0
        self._columns = {name: np.empty(0, kind) for name, kind in STATE.items()}

    def __getitem__(self, name: str) -> Ints:
        return self._columns[name][: self.count]

    def add(self, cars: dict[str, Ints]) -> None:
        count = self.count + len(cars["vid"])
        if count > len(self._columns["vid"]):
            self._widen(count + count // 4)
        for name, column in self._columns.items():
            column[self.count : count] = cars[name]
        self.count = count

    def _widen(self, size: int) -> None:
        for name, column in self._columns.items():
            self._columns[name] = np.empty(size, column.dtype)
            self._columns[name][: self.count] = column[: self.count]

    def remove(self, gone: Ints) -> None:
        """Remove cars. gone: their rows, ascending."""
        count = self.count - len(gone)
        holes = gone[gone < count]
        behind = np.ones(len(gone), bool)
        behind[gone[len(holes) :] - count] = False
        movers = np.flatnonzero(behind) + count
        for column in self._columns.values():
            column[holes] = column[movers]
        self.count = count


class Room:
    """Scratch columns that all rounds use in turn."""

    def __init__(self) -> None:
        self._make(0)

    def fit(self, count: int) -> None:
        if count > self.size:
            self._make(count + count // 4)

    def _make(self, size: int) -> None:
        self.size = size
        self.bits, self.words = (np.empty(size, np.uint32) for _ in range(2))
        self.mile, self.speed, self.feet = (np.empty(size, np.int32) for _ in range(3))


class Cars:
    """The cars of some expressways in one direction. new_segment: an exit may be the first report from a segment."""

    def __init__(self, seed: int, direction: int, room: Room, *, new_segment: bool) -> None:
        self.seed, self.direction, self.room, self.new_segment = seed, direction, room, new_segment
        self.rounds = [Round() for _ in range(EVERY)]

    def move(self, second: int, limits: Ints, entering: dict[str, Ints]) -> Moved:
        """Move the round of a second, and add the cars that enter.

        The result is valid until the next move, and the caller must call its `leave`.
        """
        cars = self.rounds[second % EVERY]
        under_way = cars.count
        cars.add(entering)
        self.room.fit(cars.count)
        moment = salt(self.seed, "noise", self.direction, second) & 0xFFFFFFFF
        shaken(cars["mark"], moment, self.room.bits[: cars.count], self.room.words[: cars.count])
        ending = self._drive(second, cars, under_way, limits)
        return Moved(self, cars, ending)

    def _drive(self, second: int, cars: Round, count: int, limits: Ints) -> Ints:
        """Move the first `count` cars by half a minute. Return the rows of those that make their last report."""
        room, place, lane, left = self.room, cars["place"][:count], cars["lane"][:count], cars["left"][:count]
        bits, words, mile, speed, feet = (
            column[:count] for column in (room.bits, room.words, room.mile, room.speed, room.feet)
        )
        np.floor_divide(place, MILE, out=mile)
        np.take(limits, mile, out=speed, mode="clip")
        np.bitwise_and(bits, np.uint32(7), out=words)
        np.add(speed, words.view(np.int32), out=speed)
        np.add(speed, cars["cruise"][:count], out=speed)
        np.clip(speed, SLOWEST, FASTEST, out=speed)
        cars["speed"][:count] = speed
        np.multiply(speed, FEET, out=feet)
        np.add(place, feet, out=place)

        np.right_shift(bits, np.uint32(4), out=words)
        np.bitwise_and(words, np.uint32(15), out=words)
        np.add(words, np.multiply(lane, np.int8(16)).view(np.uint8), out=words)
        np.take(LANES, words, out=lane, mode="clip")

        np.subtract(left, 1, out=left)
        over = place >= cars["end"][:count]
        ending = np.flatnonzero((left == 0) | over)
        if len(ending):
            self._end(second, cars, ending, over[ending])
        return ending

    def _end(self, second: int, cars: Round, ending: Ints, over: npt.NDArray[np.bool_]) -> None:
        """Let the ending cars take the exit of their segment or stop reporting. No car passes the end of the road."""
        drawn = draw(salt(self.seed, "ends", self.direction), cars["mark"][ending], second)
        by_ramp = over | (drawn % np.uint64(VANISH) != 0)
        rows, drawn, over = ending[by_ramp], drawn[by_ramp], over[by_ramp]
        was = cars["place"][rows] - self.room.feet[rows]
        exits = (self.room.mile[rows] + 1) * MILE - between(drawn, 1, EXIT_FEET)
        exits = np.clip(exits, was, was + FASTEST * FEET)
        if self.new_segment:
            exits = np.where(over, exits, cars["place"][rows])
        cars["lane"][rows] = RAMP_OFF
        cars["place"][rows] = exits


@dataclass(frozen=True)
class Moved:
    """A round that was just moved."""

    cars: Cars
    round: Round
    ending: Ints

    def asking(self) -> Ints:
        """Return the rows of the cars with a question."""
        bits, words = (column[: self.round.count] for column in (self.cars.room.bits, self.cars.room.words))
        np.right_shift(bits, np.uint32(16), out=words)
        return np.flatnonzero(words < ASKS)

    def write(self, rows: Rows) -> None:
        """Write the reports of the round."""
        cars, direction, room = self.round, self.cars.direction, self.cars.room
        where, columns = rows.take(cars.count), rows.columns
        for name, state in (("vid", "vid"), ("spd", "speed"), ("xway", "xway"), ("lane", "lane")):
            columns[name][where] = cars[state]
        columns["dir"][where] = direction
        pos, seg = columns["pos"][where], room.mile[: cars.count]
        np.subtract(cars["place"], cars["end"], out=pos)  # feet to the end of the road, negative
        np.add(pos, LENGTH, out=pos) if direction == EAST else np.subtract(-1, pos, out=pos)
        np.floor_divide(pos, MILE, out=seg)
        columns["seg"][where] = seg

    def reports(self, rows: Ints) -> dict[str, Ints]:
        """Return the reports of some cars, by row."""
        cars, direction = self.round, self.cars.direction
        pos = position(cars["place"][rows] - cars["end"][rows] + LENGTH, direction)
        return {
            "vid": cars["vid"][rows],
            "spd": cars["speed"][rows],
            "xway": cars["xway"][rows],
            "lane": cars["lane"][rows],
            "dir": np.full(len(rows), direction),
            "seg": pos // MILE,
            "pos": pos,
        }

    def leave(self) -> None:
        """Remove the cars that made their last report."""
        if len(self.ending):
            self.round.remove(self.ending)
