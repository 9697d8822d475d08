"""The numbers and switches of the benchmark's rules. There are two profiles; tests change one rule at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Rules:
    minute: int = 60  # seconds
    # statistics
    back: tuple[int, ...] = (1, 2, 3, 4, 5)  # LAV uses the speeds of these minutes before
    mean_of: Literal["means", "reports"] = "means"  # mean over minutes of means over cars, or mean over all reports
    half_up: bool = False  # LAV is rounded half up; otherwise it is truncated
    no_speed: int = -1  # LAV if there are no reports
    counted: int = 1  # NOV is that of this many minutes ago
    # tolls
    free_speed: int = 40  # no toll from this LAV on
    free_cars: int = 50  # no toll up to this NOV
    factor: int = 2
    power: int = 2
    waived: bool = True  # no toll near an accident
    # journeys
    pause: int = 60  # seconds: a report on lane 0 after a longer pause begins a journey
    drops: bool = False  # reports after an exit, and exits of unknown cars, are dropped
    exits_notified: bool = False
    exits_charged: bool = False  # a car is also charged for the segment that it leaves by its ramp
    # accidents
    equal: int = 4  # successive reports from one place that make a stop
    standing: bool = True  # only reports with speed 0 make a stop
    cars: int = 2  # cars stopped at one place that make an accident
    ends: Literal["last stop", "cleared"] = "last stop"
    later: int = 1  # minutes from an accident to its effect
    reach: tuple[int, ...] = (0, 1, 2, 3, 4)  # distances at which a car is warned of an accident downstream
    # balances
    entries: bool = True  # result times are those of segment entries; otherwise any time within 30 s
    # travel times
    weekday: int = 1  # the weekday of days divisible by 7
    wraps: bool = False  # the first minute follows the last of a day; otherwise the last minute continues
    rounded: bool = True  # tolls of segments are rounded; otherwise truncated


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
