"""What drivers ask: one report in a hundred goes with a question. Half of them about the balance, a tenth about what a day has
cost, the others how long a trip will take.

Trips that are asked about are a fixed number per expressway, drawn from (expressway, trip), so that the history that answers
them has a size that does not grow with the traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace_linearroad.forms import BALANCE, EXPENDITURE, NOTHING, TRAVEL
from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.world import PER_SECOND, PER_WAY, QUESTIONS, SEGMENTS

DAYS, WEEKDAYS, MINUTES = 69, 7, 1440
KINDS = np.array([BALANCE] * 5 + [EXPENDITURE] + [TRAVEL] * 4)


@dataclass(frozen=True)
class Questions:
    seed: int
    trips: int  # per expressway
    filled: bool  # fields of a report are filled, where the kind of question has no use for them

    def ask(self, second: int, reports: dict[str, Ints]) -> dict[str, Ints]:
        """A question for each report; those of all expressways whose reports these are, once per second."""
        xway, vid = reports["xway"].astype(np.int64), reports["vid"]
        drawn = draw(salt(self.seed, "questions"), vid, second)
        kind = KINDS[between(drawn, 0, len(KINDS) - 1)]
        more = draw(salt(self.seed, "details"), vid, second)
        asked = {
            "type": kind,
            "vid": vid,
            "qid": xway * QUESTIONS + second * PER_SECOND + reports["dir"] * PER_WAY + _turns(xway, vid),
            "day": np.where(kind == EXPENDITURE, between(more, 1, DAYS), NOTHING),
            "before": drawn & np.uint64(1) == 0,
        }
        trip = self.trip(xway, between(more, 0, self.trips - 1))
        asked |= {name: np.where(kind == TRAVEL, column, NOTHING) for name, column in trip.items()}
        return asked | self._place(kind, reports)

    def _place(self, kind: Ints, reports: dict[str, Ints]) -> dict[str, Ints]:
        known = (kind != TRAVEL) if self.filled else np.zeros(len(kind), bool)
        found = {name: np.where(known, reports[name], NOTHING) for name in ("spd", "lane", "dir", "seg", "pos")}
        return found | {"xway": np.where(known | (kind != BALANCE), reports["xway"], NOTHING)}

    def trip(self, xway: Ints, trip: Ints) -> dict[str, Ints]:
        ends, starts = (draw(salt(self.seed, what), xway, trip) for what in ("trip", "start"))
        return {
            "sinit": between(ends, 0, SEGMENTS - 1),
            "send": between(ends, 0, SEGMENTS - 1, part=1),
            "dow": between(starts, 1, WEEKDAYS),
            "tod": between(starts, 1, MINUTES, part=1),
        }


def _turns(xway: Ints, vid: Ints) -> Ints:
    """0, 1, ... within each expressway, in order of the cars."""
    order = np.lexsort((vid, xway))
    ordered = xway[order]
    turn = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    found = np.empty(len(order), np.int64)
    found[order] = turn
    return found
