"""Constants of Linear Road's world that traffic needs, and the ranges of car and question numbers.

A place is given as `way`, the feet from where its direction begins. Its position is `pos = way` eastbound and
`pos = 527999 - way` westbound, so both directions share the same code.
"""

from __future__ import annotations

from typing import Any

MILE = 5280  # feet
SEGMENTS = 100
LENGTH = MILE * SEGMENTS
FEET = 44  # distance in 30 s at one mile per hour
EVERY = 30  # seconds between two reports of a car
FASTEST = 100  # miles per hour
HOURS = 10_800  # duration of the benchmark in seconds: three hours
EAST, WEST = 0, 1
RAMP_ON, RAMP_OFF = 0, 4  # lanes
RAMP_FEET, EXIT_FEET = 1000, 1300  # lengths of the ramps at the beginning and end of a segment
STAGE = 5  # miles at the beginning of expressway 0, in both directions, that only scripted cars enter

MOST = 2000  # largest number of expressways
CARS = 2**19  # car numbers per expressway: vid = xway * CARS + number
ACTORS = CARS - 2**16  # numbers from here on are for scripted cars
QUESTIONS = 2**20  # question numbers per expressway
PER_SECOND = 96  # question numbers per expressway and second
PER_WAY = 40  # of these, numbers for each direction; the rest is for scripted cars

DAYS, WEEKDAYS, MINUTES = 69, 7, 1440  # dimensions of the histories


def position(way: Any, direction: int) -> Any:
    return way if direction == EAST else LENGTH - 1 - way
