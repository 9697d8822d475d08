"""The world of Linear Road in numbers, as far as traffic needs them, and who has which number.

Places are given along the way that a car drives: one that is `way` feet from where its direction begins is at `pos = way`
eastbound and at `527999 - way` westbound. So whatever holds for one direction holds for the other, mirrored.
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
EAST, WEST = 0, 1
RAMP_ON, RAMP_OFF = 0, 4  # lanes
RAMP_FEET, EXIT_FEET = 1000, 1300  # how long the ramps are, at the beginning and at the end of a segment
STAGE = 5  # miles at the beginning of expressway 0, both ways, that only cars with a part to play enter

MOST = 2000  # expressways
CARS = 2**19  # numbers that the cars of an expressway have: vid = xway * CARS + number
ACTORS = CARS - 2**16  # from here on they are cars with a part to play
QUESTIONS = 2**20  # numbers that the questions of an expressway have
PER_SECOND = 96  # of them a second has so many:
PER_WAY = 40  # for each direction, and the rest for cars with a part to play

DAYS, WEEKDAYS, MINUTES = 69, 7, 1440  # of the histories


def position(way: Any, direction: int) -> Any:
    return way if direction == EAST else LENGTH - 1 - way
