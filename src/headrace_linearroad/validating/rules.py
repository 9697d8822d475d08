"""The numbers and switches of the benchmark. Two records of them count; tests change one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Rules:
    minute: int = 60  # seconds
    # statistics
    back: tuple[int, ...] = (1, 2, 3, 4, 5)  # minutes whose speeds count
    mean_of: Literal["means", "reports"] = "means"  # of minutes, of cars | all reports alike
    half_up: bool = False  # else truncated
    no_speed: int = -1  # LAV without any report
    counted: int = 1  # NOV is that of so many minutes ago
    # tolls
    free_speed: int = 40  # from this LAV on
    free_cars: int = 50  # up to this NOV
    factor: int = 2
    power: int = 2
    waived: bool = True  # near an accident
    # journeys
    pause: int = 60  # more than this before a report on lane 0: another journey
    drops: bool = False  # reports after an exit, and exits of cars never seen
    exits_notified: bool = False
    exits_charged: bool = False  # the segment that is left by its ramp
    # accidents
    equal: int = 4  # reports from one place: a stop
    standing: bool = True  # only reports with speed 0 make a stop
    cars: int = 2  # stopped at one place: an accident
    ends: Literal["last stop", "cleared"] = "last stop"
    later: int = 1  # minutes from an accident to its effect
    reach: tuple[int, ...] = (0, 1, 2, 3, 4)  # segments downstream, nearest first
    # balances
    entries: bool = True  # result times are those of segment entries; else any within 30 s
    # travel times
    weekday: int = 1  # of a day that 7 divides
    wraps: bool = False  # after the last minute of a day; else that minute goes on
    rounded: bool = True  # tolls of segments; else truncated


OFFICIAL = Rules()
WALMART = replace(
    OFFICIAL,
    mean_of="reports",
    half_up=True,
    no_speed=0,
    drops=True,
    standing=False,
    ends="cleared",
    entries=False,
)
PROFILES = {"official": OFFICIAL, "walmart": WALMART}
