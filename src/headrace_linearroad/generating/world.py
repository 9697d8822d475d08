"""The world of Linear Road in numbers, as far as traffic needs them; places are given along the way that a car drives.

A car that has driven `way` feet from where its direction begins is at `pos = way` eastbound and at `527999 - way`
westbound, so whatever holds for one direction holds for the other, mirrored.
"""

from __future__ import annotations

from typing import Any

MILE = 5280  # feet
SEGMENTS = 100
LENGTH = MILE * SEGMENTS
FEET = 44  # that one mile per hour makes in 30 s
EVERY = 30  # seconds between two reports of a car
FASTEST = 100  # miles per hour
HOURS = 10_800  # seconds that the benchmark lasts: three hours
RAMP_ON, RAMP_OFF = 0, 4
RAMP_FEET, EXIT_FEET = 1000, 1300  # where ramps are: at the beginning and at the end of a segment
EAST, WEST = 0, 1
STAGE = 5  # miles at the beginning of expressway 0, both ways, that are left to cars with a part to play

MOST = 2000  # expressways
CARS = 2**19  # numbers of cars that an expressway has: vid = xway * CARS + number
ACTORS = CARS - 2**16  # from here on they are cars with a part to play
QUESTIONS = 2**20  # numbers of questions that an expressway has
PER_SECOND = 96  # and of them, that a second has:
PER_WAY = 40  # for each direction; the rest is for cars with a part to play


def position(way: Any, direction: int) -> Any:
    return way if direction == EAST else LENGTH - 1 - way


def segment(mile: Any, direction: int) -> Any:
    return mile if direction == EAST else SEGMENTS - 1 - mile
