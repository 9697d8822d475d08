"""Questions of drivers: one for every hundred reports.

Half of the questions are about balances, a tenth about the expenditure of a day, and the rest about travel times. Each
expressway has a fixed number of trips, drawn from (expressway, trip), so the size of the history that answers them does
not grow with the traffic.
"""

from __future__ import annotations

import numpy as np

from headrace_linearroad.forms import BALANCE, EXPENDITURE, NOTHING, TRAVEL
from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import DAYS, MINUTES, PER_SECOND, PER_WAY, QUESTIONS, SEGMENTS, WEEKDAYS

KINDS = np.array([BALANCE] * 5 + [EXPENDITURE] + [TRAVEL] * 4)


class Questions:
    """The questions of all expressways."""

    def __init__(self, settings: Settings) -> None:
        self.seed, self.trips = settings.seed, settings.trips
        self.filled = settings.walmart

    def ask(self, second: int, reports: dict[str, Ints]) -> tuple[dict[str, Ints], Ints]:
        """Return the questions of a second, for the given reports, and whether each is placed before the reports."""
        turn = _turns(reports)
        reports = {name: column[turn < PER_WAY] for name, column in reports.items()}
        xway, vid = reports["xway"].astype(np.int64), reports["vid"]
        drawn, more = (draw(salt(self.seed, what), vid, second) for what in ("questions", "details"))
        kind = KINDS[between(drawn, 0, len(KINDS) - 1)]
        asked = {
            "type": kind,
            "vid": vid,
            "qid": xway * QUESTIONS + second * PER_SECOND + reports["dir"] * PER_WAY + turn[turn < PER_WAY],
            "day": np.where(kind == EXPENDITURE, between(more, 1, DAYS), NOTHING),
        }
        trip = self.trip(xway, between(more, 0, self.trips - 1))
        asked |= {name: np.where(kind == TRAVEL, column, NOTHING) for name, column in trip.items()}
        return asked | self.place(kind, reports), drawn & np.uint64(1) == 0

    def place(self, kind: Ints, reports: dict[str, Ints]) -> dict[str, Ints]:
        known = (kind != TRAVEL) if self.filled else np.zeros(len(kind), bool)
        found = {name: np.where(known, reports[name], NOTHING) for name in ("spd", "lane", "dir", "seg", "pos")}
        return found | {"xway": np.where(known | (kind != BALANCE), reports["xway"], NOTHING)}

    def trip(self, xway: Ints, trip: Ints) -> dict[str, Ints]:
        """Return the segments, weekday and first minute of trips. The first few trips are edge cases."""
        ends, starts = (draw(salt(self.seed, what), xway, trip) for what in ("trip", "start"))
        last = SEGMENTS - 1
        drawn = {
            "sinit": between(ends, 0, last),
            "send": between(ends, 0, last, part=1),
            "dow": between(starts, 1, WEEKDAYS),
            "tod": between(starts, 1, MINUTES, part=1),
        }
        edges = {
            "sinit": {0: 0, 1: last, 2: 50},
            "send": {0: last, 1: 0, 2: 50},
            "tod": {1: MINUTES - 20, 3: MINUTES, 4: 1},
        }
        for name, fixed in edges.items():
            for which, value in fixed.items():
                drawn[name] = np.where(trip == which, value, drawn[name])
        return drawn


def _turns(reports: dict[str, Ints]) -> Ints:
    """Number the reports 0, 1, ... within each expressway and direction, in order of car numbers."""
    ways = reports["xway"].astype(np.int64) * 2 + reports["dir"]
    order = np.lexsort((reports["vid"], ways))
    ordered, found = ways[order], np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return found
