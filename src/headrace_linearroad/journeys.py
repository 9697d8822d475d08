# mypy: disable-error-code="no-untyped-def"
"""Journeys of cars over all roads: the first operator of the longer plan.

The longer plan is for inputs in which a car is on two roads at once, or does something else that the usual plan does
not support (`wandering.py`). It removes no car, so it follows the rules to the letter:

    reports, by car ──> Journeys ──> facts, by road ──> Lanes ──> tolls, accidents, events

A fact is the effect of a report on its road: whether the car enters a segment, stands or stands no longer, and what it
adds to the figures of the minute. If a car stood on one road and reports from another, both roads get a fact.

    a car    (`LAST` and following) its last valid report, the number of successive reports from that place, the second
             of the half minute in which its journey began; and for each segment of its last minute, speeds and reports
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace.processor import State
from headrace_linearroad import driving
from headrace_linearroad.driving import DONE, ENTRANCE, EXIT, GAP, LANE_SHIFT, MINUTE, OFTEN, PARTS, PERIOD, STOPPED
from headrace_linearroad.forms import TS
from headrace_linearroad.pages import Ints, Longs, Pieces, binary
from headrace_linearroad.profiles import Profile

REPORTS = ("vid", "spd", "xway", "lane", "dir", "seg", "pos")
"""Reports of a car in one second are processed in the order of these columns."""

FACTS = pa.schema(
    [
        ("ts", TS),
        ("road", pa.int32()),
        ("turn", pa.int8()),  # number of the report among those of its car in this second
        ("vid", pa.int32()),
        ("what", pa.int8()),
        ("seg", pa.int8()),
        ("spot", pa.int32()),  # position and lane
        ("cars", pa.int8()),  # cars to add to the segment in this minute
        ("speeds", pa.int64()),  # speeds to add
        ("page", pa.int8()),  # second of the half minute in which the journey began
    ]
)

CHARGED, LEAVES = driving.CHARGED, driving.LEAVES  # bits of `what`, with those of the next line
ENTERS, STANDS, MOVES, COUNTS = 4, 8, 16, 32

LAST, ROAD, SEG, SPOT, RUN, BEGAN, TURN = range(7)  # the words of a car
HEAD = 7
VISIT = 4  # words of each segment of the car's minute: road, segment, sum of speeds, reports
MOST_REPORTS = 30  # reports of a car from a segment in a minute: `driving.PARTS` is a multiple of 1 to 30
MOST_TURNS = 15
SECOND = 1_000_000
TURNS = 100  # outcome: too many reports in a second
WORDS = {
    OFTEN: f"is one of more than {MOST_REPORTS} of its car from one segment within a minute; a car reports every 30 s",
    TURNS: f"is one of more than {MOST_TURNS + 1} of its car within a second; a car reports every 30 s",
}


class Reports(NamedTuple):
    """Columns of reports, by car, and those of one car in sequence."""

    time: Longs
    vid: Ints
    spd: npt.NDArray[np.int8]
    xway: npt.NDArray[np.int16]
    lane: npt.NDArray[np.int8]
    dir: npt.NDArray[np.int8]
    seg: npt.NDArray[np.int8]
    pos: Ints


class Facts(NamedTuple):
    """Columns of facts, at most two for each report."""

    of: Longs  # index of the report
    road: Ints
    turn: npt.NDArray[np.int8]
    what: npt.NDArray[np.int8]
    seg: npt.NDArray[np.int8]
    spot: Ints
    cars: npt.NDArray[np.int8]
    speeds: Longs
    page: npt.NDArray[np.int8]


class Journeys(hr.Processor):
    """The processor of one substream: some cars."""

    schema = FACTS
    tables = {  # noqa: RUF012
        "cars": hr.StateTable(key=["vid"], columns=pa.schema([("vid", pa.int32()), ("bytes", pa.binary())]))
    }

    def __init__(self, profile: str = Profile.official) -> None:
        self.profile = str(profile)

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        given = {name: tuples[name].to_numpy() for name in REPORTS}
        micros = tuples["ts"].to_numpy().astype(np.int64)
        order = np.argsort(given["vid"], kind="stable")
        reports = Reports(micros[order] // SECOND, *(given[name][order] for name in REPORTS))
        firsts = np.flatnonzero(np.diff(reports.vid, prepend=-1))
        vids, bounds = reports.vid[firsts], np.append(firsts, len(order))
        old = Pieces(state["cars"], [("vid", vids)])
        room = old.lengths + HEAD + VISIT * np.diff(bounds)
        new, lengths = np.zeros(int(room.sum()), np.int32), np.zeros(len(vids), np.int64)
        starts = np.cumsum(room) - room
        facts = _room_for(2 * len(order))
        official = self.profile == Profile.official
        known = old.data, old.starts, old.lengths
        many, went, where = follow(tuple(reports), bounds, *known, new, starts, lengths, tuple(facts), official)
        if went != DONE:
            report = {name: values[where].item() for name, values in reports._asdict().items()}
            raise hr.DataError(f"the report {report} {WORDS[went]}")
        kept = np.flatnonzero(lengths)
        state["cars"].put(pa.table([pa.array(vids[kept]), _cut(new, starts[kept], lengths[kept])], ["vid", "bytes"]))
        found = Facts._make(column[:many] for column in facts)
        columns = [micros[order][found.of], found.road, found.turn, reports.vid[found.of], *found[3:]]
        arrays = [pa.array(column).cast(field.type) for field, column in zip(FACTS, columns, strict=True)]
        return pa.Table.from_arrays(arrays, schema=FACTS)


def _room_for(facts: int) -> Facts:
    kinds = [np.int64, np.int32, np.int8, np.int8, np.int8, np.int32, np.int8, np.int64, np.int8]
    return Facts(*(np.zeros(facts, kind) for kind in kinds))


def _cut(words: Ints, starts: Longs, lengths: Longs) -> pa.Array:
    behind = np.cumsum(lengths)
    places = np.arange(int(lengths.sum())) + np.repeat(starts - behind + lengths, lengths)
    return binary(words[places], lengths)


# --- compiled --------------------------------------------------------------------------------------------------------


@compile_inner
def visited(car, words, road, seg):
    """Return the place of the segment among the car's segments of this minute, or the end if it is not there."""
    place = HEAD
    while place < words and not (car[place] == road and car[place + 1] == seg):
        place += VISIT
    return place


@compile_inner
def counted(car, words, road, seg, spd, official):
    """Count a report in its segment and minute. Return (outcome, words of the car, cars to add, speeds to add)."""
    place = visited(car, words, road, seg)
    if place == words:
        car[place], car[place + 1], car[place + 2], car[place + 3] = road, seg, 0, 0
        words += VISIT
    speeds, many = np.int64(car[place + 2]), np.int64(car[place + 3])
    if official and many == MOST_REPORTS:
        return OFTEN, words, 0, np.int64(0)
    mean = PARTS * (speeds + spd) // (many + 1) - (PARTS * speeds // many if many else 0)
    car[place + 2] = speeds + spd
    car[place + 3] = many + 1
    return DONE, words, 0 if many else 1, mean if official else np.int64(spd)


@compile_inner
def put(facts, many, report, road, turn, what, seg, spot, cars, speeds, page):
    facts.of[many], facts.road[many], facts.turn[many], facts.what[many] = report, road, turn, what
    facts.seg[many], facts.spot[many] = seg, spot
    facts.cars[many], facts.speeds[many], facts.page[many] = cars, speeds, page
    return many + 1


@compile_inner
def step(reports, report, car, words, facts, many, official):
    """Process one report. words: length of the car's record, 0 if none. Return (outcome, words, number of facts)."""
    now, lane, seg = reports.time[report], np.int64(reports.lane[report]), np.int64(reports.seg[report])
    road = np.int64(reports.xway[report]) * 2 + reports.dir[report]
    spd, spot = np.int64(reports.spd[report]), np.int64(reports.pos[report]) | lane << LANE_SHIFT
    left = words and car[SPOT] >> LANE_SHIFT == EXIT
    if not official and ((not words and lane == EXIT) or (left and lane != ENTRANCE)):
        return DONE, words, many
    begins = not words or left or (lane == ENTRANCE and now - car[LAST] > GAP)
    enters = begins or car[ROAD] != road or car[SEG] != seg
    stays = not enters and car[SPOT] == spot
    stood = car[RUN] if words else 0
    run = 0 if official and spd else min(stood + 1, STOPPED) if stays else 1
    turn = car[TURN] + 1 if words and car[LAST] == now else 0
    if turn > MOST_TURNS:
        return TURNS, words, many
    began = now % PERIOD if begins else car[BEGAN]

    what = COUNTS | (STANDS if run == STOPPED else 0)
    what |= (LEAVES if lane == EXIT else ENTERS if enters else 0) | (CHARGED if enters and not begins else 0)
    if stood == STOPPED and run < STOPPED:
        if car[ROAD] == road:
            what |= MOVES
        else:
            many = put(facts, many, report, car[ROAD], turn, MOVES, 0, 0, 0, 0, 0)

    if not words or car[LAST] // MINUTE != now // MINUTE:
        words = HEAD
    went, words, cars, speeds = counted(car, words, road, seg, spd, official)
    car[LAST], car[ROAD], car[SEG], car[SPOT], car[RUN], car[BEGAN], car[TURN] = now, road, seg, spot, run, began, turn
    many = put(facts, many, report, road, turn, what, seg, spot, cars, speeds, began)
    return went, words, many


@compile_cached
def follow(reports, bounds, old, old_starts, old_lengths, new, starts, lengths, facts, official):
    """Process all reports of a chunk, car by car. Return (number of facts, outcome, failed report)."""
    reports, facts = Reports(*reports), Facts(*facts)
    many = 0
    for each in range(len(lengths)):
        words = old_lengths[each]
        car = new[starts[each] : starts[each] + words + HEAD + VISIT * (bounds[each + 1] - bounds[each])]
        for word in range(words):
            car[word] = old[old_starts[each] + word]
        for report in range(bounds[each], bounds[each + 1]):
            went, words, many = step(reports, report, car, words, facts, many, official)
            if went != DONE:
                return many, went, report
        lengths[each] = words
    return many, DONE, 0
