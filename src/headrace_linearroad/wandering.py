# mypy: disable-error-code="no-untyped-def"
"""The choice between the two plans. The usual plan processes each road separately and is right if cars behave as
follows.

    one road      a car that reports from another road has left the road before, or did not report for more than a
                  minute, and then enters by an entrance; it did not stand still at its last place
    few pauses    a car that reports again after more than ten minutes does so from an entrance
    every 30 s    a car does not report twice within a second, nor from more than three segments or more than ten times
                  within a minute

Any other input needs the longer plan, which follows each car first (`journeys.py`). It is as exact and costs more.
`Watch` sees only valid reports, in order of time. For a report that the profile drops it stores only the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace_linearroad.driving import ENTRANCE, EXIT, GAP, GONE, MINUTE, MOST_REPORTS
from headrace_linearroad.profiles import Profile

FIRST = 1 << 16  # places for cars, at first
FIELDS = ("time", "vid", "xway", "lane", "dir", "seg", "pos")
NOTHING, TWO_ROADS, SILENT, OFTEN = range(4)
WORDS = {
    TWO_ROADS: "reports from another road without having left the one before",
    SILENT: "reports again after more than ten minutes",
    OFTEN: "reports more often than every half minute",
}

# A record is two words. The first has car, road and time; the second, which is never 0, has above the position:
LANE, SEGMENT, STANDS, CHANGES, TIMES, HEARD = 20, 23, 30, 31, 33, 40
CHANGED, OFTEN_ENOUGH = 3, 127


class Watch:
    """A check of the cars' behaviour so far."""

    def __init__(self, profile: str) -> None:
        self.official = str(profile) == Profile.official
        self.cars = np.zeros((FIRST, 2), np.int64)
        self.known = 0
        self.found = ""  # the first unsupported behaviour, or ""

    def see(self, reports: dict[str, npt.NDArray[Any]]) -> None:
        """Check valid reports with the columns `FIELDS`, in order of time and after all reports seen so far."""
        if self.found or not len(reports["vid"]):
            return
        while 2 * (self.known + len(reports["vid"])) > len(self.cars):
            larger = np.zeros((2 * len(self.cars), 2), np.int64)
            moved(self.cars, larger)
            self.cars = larger
        given = tuple(np.ascontiguousarray(reports[name]) for name in FIELDS)
        new, why, where = watched(*given, self.cars, self.official)
        self.known += new
        if why != NOTHING:
            self.found = f"car {given[1][where]} {WORDS[why]}, at {given[0][where]} s"


@compile_inner
def place_of(cars, vid):
    """Return the place of a car's record, or the free place for it."""
    mask = len(cars) - 1
    place = (vid * 0x9E3779B1 >> 7) & mask
    while cars[place, 1] and cars[place, 0] >> 32 != vid:
        place = (place + 1) & mask
    return place


@compile_cached
def moved(cars, larger):
    for old in range(len(cars)):
        if cars[old, 1]:
            place = place_of(larger, cars[old, 0] >> 32)
            larger[place, 0], larger[place, 1] = cars[old, 0], cars[old, 1]


@compile_inner
def oddness(last, was, now, road, lane, changes, times):
    """Return what is unsupported about a report after an earlier one of its car, or NOTHING."""
    time = last & 0xFFFF
    if times > MOST_REPORTS or changes == CHANGED:
        return OFTEN
    if now - time > GONE and lane != ENTRANCE:
        return SILENT
    left = (was >> LANE) & 7 == EXIT
    if (last >> 16) & 0xFFFF != road and (lane != ENTRANCE or (was >> STANDS) & 1 or not (left or now - time > GAP)):
        return TWO_ROADS
    return NOTHING


@compile_cached
def watched(time, vid, xway, lane, dir, seg, pos, cars, official):
    """Check some reports. Return (number of new cars, what is unsupported, index of that report)."""
    new = 0
    for report in range(len(time)):
        now, car = np.int64(time[report]), np.int64(vid[report])
        road, on = np.int64(xway[report]) * 2 + dir[report], np.int64(lane[report])
        where = np.int64(pos[report]) | on << LANE | np.int64(seg[report]) << SEGMENT
        record = place_of(cars, car)
        last, was = cars[record, 0], cars[record, 1]
        if was >> HEARD == now + 1:
            return new, OFTEN, report
        new += 0 if was else 1
        counted = (was >> TIMES) & OFTEN_ENOUGH  # 0: all reports of the car were dropped
        stands, changes, times = np.int64(0), np.int64(0), np.int64(1)
        dropped = not official and on == EXIT
        if counted:
            one_road = (last >> 16) & 0xFFFF == road
            if now // MINUTE == (last & 0xFFFF) // MINUTE:
                times = counted + 1
                same = one_road and (was >> SEGMENT) & 127 == seg[report]
                changes = ((was >> CHANGES) & CHANGED) + (0 if same else 1)
            why = oddness(last, was, now, road, on, changes, times)
            if why != NOTHING:
                return new, why, report
            dropped = not official and on != ENTRANCE and (was >> LANE) & 7 == EXIT
            stands = np.int64(one_road and was & ((1 << STANDS) - 1) == where)
        if dropped:  # only the time of the report is stored
            cars[record, 0] = last if counted else car << 32
            cars[record, 1] = (was & ((1 << HEARD) - 1)) | (now + 1) << HEARD
        else:
            cars[record, 0] = car << 32 | road << 16 | now
            cars[record, 1] = where | stands << STANDS | changes << CHANGES | times << TIMES | (now + 1) << HEARD
    return new, NOTHING, 0
