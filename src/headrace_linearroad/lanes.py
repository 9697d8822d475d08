# mypy: disable-error-code="no-untyped-def"
"""Tolls and accident alerts from the facts of `journeys.py`, for the longer plan.

`Lanes` does what `Roads` (`roads.py`) does with reports, and uses its figures, minutes and stops of a road. It keeps no
cars, because `Journeys` does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.columnar.numba_cache import compile_cached
from headrace.processor import State
from headrace_linearroad import driving
from headrace_linearroad.driving import DONE, MINUTE, RUN_SHIFT, SLOTS, TURN_SHIFT
from headrace_linearroad.journeys import CHARGED, COUNTS, ENTERS, LEAVES, MOVES, STANDS
from headrace_linearroad.pages import Ints, Longs
from headrace_linearroad.profiles import Profile
from headrace_linearroad.roads import (
    PIECE,
    WORDS,
    Roads,
    numbered,
    put_pieces,
    read_roads,
    road_pieces,
    room_for,
    told,
)

SECOND = 1_000_000


class Facts(NamedTuple):
    """Columns of facts in sequence: by time and road, and those of one car by turn."""

    time: Longs
    road: Longs  # place among the roads of the chunk
    turn: npt.NDArray[np.int8]
    vid: Ints
    what: npt.NDArray[np.int8]
    seg: npt.NDArray[np.int8]
    spot: Ints
    cars: npt.NDArray[np.int8]
    speeds: Longs
    page: npt.NDArray[np.int8]


class Lanes(hr.Processor):
    """The processor of one substream: some roads (directions of expressways)."""

    outputs = Roads.outputs
    tables = {"minutes": PIECE}  # noqa: RUF012

    def __init__(self, profile: str = Profile.official) -> None:
        self.profile = str(profile)

    def process(self, tuples: pa.Table, state: State) -> dict[str, pa.Table]:
        columns = {name: tuples[name].to_numpy() for name in tuples.column_names}
        micros = columns["ts"].astype(np.int64)
        numbers, of = numbered(columns["road"])
        facts = Facts(micros // SECOND, of, *(columns[name] for name in Facts._fields[2:]))
        roads = read_roads(state["minutes"], numbers, np.bincount(of))
        found = room_for(len(of))
        official = self.profile == Profile.official
        went, where = follow(tuple(facts), numbers % 2 == 0, tuple(roads), tuple(found), official)
        if went != DONE:
            fact = {name: columns[name][where].item() for name in ("road", "vid", "seg")}
            raise hr.DataError(f"the report {fact} at {facts.time[where]} s {WORDS[went]}")
        put_pieces(state["minutes"], numbers, road_pieces(roads))
        return told(columns, micros, found)


@compile_cached
def follow(facts, eastbound, roads, found, official):
    """Process all facts of a chunk. Return (outcome, the fact that failed)."""
    facts, roads, found = Facts(*facts), driving.Roads(*roads), driving.Found(*found)
    stands = False
    for fact in range(len(facts.time)):
        road, now, what = facts.road[fact], facts.time[fact], facts.what[fact]
        if roads.heads[road, driving.AT] < now // MINUTE:
            went = driving.begin_minute(roads, road, now // MINUTE, official)
            if went != DONE:
                return went, fact
        seg = np.int32(facts.seg[fact])
        if what & MOVES:
            driving.moves(roads, road, facts.vid[fact])
        if what & STANDS:
            driving.stands(roads, road, facts.spot[fact] | seg << RUN_SHIFT, facts.vid[fact], now)
            stands = True
        if what & COUNTS:
            slot = (now // MINUTE) % SLOTS
            roads.minutes[road, slot, driving.CARS + seg] += facts.cars[fact]
            roads.minutes[road, slot, driving.SPEEDS + seg] += facts.speeds[fact]
            roads.minutes[road, slot, driving.REPORTS + seg] += 1
            roads.renewed[road, slot] = True
        if what & ENTERS:
            driving.notify(roads, road, fact, seg, eastbound[road], found)
        if what & (ENTERS | LEAVES):
            event = what & (CHARGED | LEAVES) | facts.turn[fact] << TURN_SHIFT
            driving.tell(found, fact, event, facts.page[fact])
        last = fact + 1 == len(facts.time) or facts.road[fact + 1] != road or facts.time[fact + 1] != now
        if last and stands:
            driving.mark(roads, road, now)
            stands = False
    return DONE, 0
