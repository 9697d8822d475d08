# mypy: disable-error-code="no-untyped-def"
"""Compiled loops over the reports of a chunk, road by road and second by second.

A road is one direction of an expressway. Its cars are in thirty pages, by the second of the half minute of their last
report. A car reports every 30 seconds, so nearly all cars that report in a second are in one page, sorted by number
like the reports. Processing a second of a road merges the reports with that page, and changes one page in thirty.

    a car     its number, and four more words (`rest`): the time of its last report; its place (position, lane, number
              of successive reports from there, whether it has left, the second of the half minute in which its journey
              began); its segment, with the sum and number of its speeds in this minute; the same for the segment before
    a road    its minute, and for each segment in this minute: LAV, toll, whether there is an accident, and whether two
              cars have stood still at one place so far
    minutes   the last six minutes of a road, by segment: cars, their speeds, reports
    stops     cars that stand still: place, car and last report, sorted by place and car

Invariant: a car has at most one record on a road, and pages are sorted by car. The results of a report depend on the
earlier reports of its road and on those of its second, never on the division into chunks. All arithmetic uses whole
numbers: LAV is the exact mean, rounded once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace_linearroad.pages import PAGES, Ints, Longs, Mask, Pages, has, place_after, place_in, put_in, take_out

PERIOD = PAGES  # seconds from report to report
MINUTE = 60
GAP = 60  # seconds: a report from an entrance begins a journey if the last report is longer ago
GONE = 600  # seconds without a report after which a car is removed
SEGMENTS = 100
REACH = 5  # segments in which drivers are alerted: that of the accident and those before it
STOPPED = 4  # successive reports from one place that make a stop
ENTRANCE, EXIT = 0, 4  # lanes
SLOTS = 6  # minutes that are kept: the current one and five before it

TIME, PLACE, HERE, THERE = range(4)
REST = 4
LANE_SHIFT, RUN_SHIFT, LEFT_SHIFT, BEGAN_SHIFT = 20, 23, 26, 27  # in PLACE, above the position
SPOT, RUNS, SECONDS = (1 << 23) - 1, 7, 31
SUM_SHIFT, COUNT_SHIFT = 7, 17  # in HERE and THERE, above the segment
SEGMENT, SUMS, COUNTS = 127, 1023, 15
MOST_REPORTS = 10  # reports of a car from one segment in a minute
PARTS = 2_329_089_562_800  # units per mile per hour: a multiple of 1 to 30, so that means of up to 30 reports are exact

AT, LAV, TOLL, ACCIDENT, MARK = 0, 1, 1 + SEGMENTS, 1 + 2 * SEGMENTS, 1 + 3 * SEGMENTS
HEAD = 1 + 4 * SEGMENTS
CARS, SPEEDS, REPORTS = 1, 1 + SEGMENTS, 1 + 2 * SEGMENTS  # word 0 is the minute itself
MINUTE_WORDS = 1 + 3 * SEGMENTS
STOP = 3  # words: place, car, time
NONE = -1_000  # the minute of a road without reports
FREE, CROWDED, FACTOR = (
    40,
    50,
    2,
)  # no toll if LAV >= FREE or cars <= CROWDED, else FACTOR * (cars - CROWDED) ** 2
MOST_CARS = 30_000  # cars in a segment and minute: the toll for more does not fit 32 bits
LARGEST = 1 << 61

CHARGED, LEAVES = 1, 2  # bits of an event: the toll notified before is charged; the car leaves
TURN_SHIFT = 3  # above these bits: the number of the report among those of its car in this second
DONE, OFTEN, MANY, INEXACT = range(4)  # outcomes


class Reports(NamedTuple):
    """Columns of reports in sequence: by time, road and car."""

    time: Longs  # seconds
    road: Longs  # index among the roads of the chunk
    vid: Ints
    spd: npt.NDArray[np.int8]
    lane: npt.NDArray[np.int8]
    seg: npt.NDArray[np.int8]
    pos: Ints


class Roads(NamedTuple):
    heads: Ints  # [road, word]
    minutes: Longs  # [road, slot, word]
    renewed: Mask  # [road, slot]
    stops: Ints  # [stop, word]
    stop_starts: Longs
    stop_counts: Longs


class Found(NamedTuple):
    """Results of the reports: tolls, alerts and events, each with the index of its report, and their counts."""

    toll_of: Longs
    lav: Longs
    toll: Longs
    alert_of: Longs
    alert: Longs  # the segment of the accident
    event_of: Longs
    event: npt.NDArray[np.int8]
    page: npt.NDArray[np.int8]  # the second of the half minute in which the journey began
    counts: Longs  # numbers of tolls, alerts and events


class Scratch(NamedTuple):
    car: Ints  # the words of one car
    vids: Ints  # the cars that are new in a page
    rest: Ints


# --- pages -----------------------------------------------------------------------------------------------------------


@compile_cached
def strangers(time, road, vid, vids, starts, counts, needed):
    """Mark in `needed` the pages with a car that now reports in another second of the half minute."""
    before, found = -1, 0
    for report in range(len(time)):
        own = road[report] * PAGES + time[report] % PERIOD
        if own != before or vid[report] < vid[report - 1]:
            before, found = own, 0
        found = place_after(vids, starts[own], counts[own], vid[report], found)
        if found < counts[own] and vids[starts[own] + found] == vid[report]:
            continue
        for page in range(road[report] * PAGES, (road[report] + 1) * PAGES):
            if page != own and has(vids, starts[page], counts[page], vid[report]):
                needed[page] = True


@compile_inner
def found_elsewhere(pages, road, own, vid, car):
    """Return whether another page of the road has the car. If so, remove it there and copy its words to `car`."""
    for page in range(road * PAGES, (road + 1) * PAGES):
        start, count = pages.starts[page], pages.counts[page]
        if page != own and count:
            place = place_in(pages.vids, start, count, vid)
            if place < count and pages.vids[start + place] == vid:
                take_out(pages, page, place, car)
                return True
    return False


@compile_inner
def is_forgotten(car, now, official):
    """Return whether the record can affect no later result."""
    last = car[TIME]
    if now - last > GONE:
        return True
    return official and has_left(car) and now // MINUTE > last // MINUTE


@compile_inner
def has_left(car):
    return (car[PLACE] >> LEFT_SHIFT) & 1 == 1


# --- stops -----------------------------------------------------------------------------------------------------------


@compile_inner
def stop_place(roads, road, spot, vid):
    """Return the place of a stop among those of its road, or where it would be inserted."""
    low, high = 0, roads.stop_counts[road]
    start = roads.stop_starts[road]
    while low < high:
        middle = (low + high) // 2
        where, who = roads.stops[start + middle, 0], roads.stops[start + middle, 1]
        if where < spot or (where == spot and who < vid):
            low = middle + 1
        else:
            high = middle
    return start + low


@compile_inner
def stands(roads, road, spot, vid, now):
    end = roads.stop_starts[road] + roads.stop_counts[road]
    place = stop_place(roads, road, spot, vid)
    if place == end or roads.stops[place, 0] != spot or roads.stops[place, 1] != vid:
        for later in range(end, place, -1):
            for word in range(STOP):
                roads.stops[later, word] = roads.stops[later - 1, word]
        roads.stop_counts[road] += 1
    roads.stops[place, 0], roads.stops[place, 1], roads.stops[place, 2] = spot, vid, now


@compile_inner
def moves(roads, road, vid):
    """Remove the stops of a car, if any. All stops are examined, because the car's record may have been removed."""
    start, count = roads.stop_starts[road], roads.stop_counts[road]
    kept = start
    for place in range(start, start + count):
        if roads.stops[place, 1] != vid:
            for word in range(STOP):
                roads.stops[kept, word] = roads.stops[place, word]
            kept += 1
    roads.stop_counts[road] = kept - start


@compile_inner
def has_company(roads, road, place):
    """Return whether another car stands at the same place."""
    start = roads.stop_starts[road]
    end = start + roads.stop_counts[road]
    spot = roads.stops[place, 0]
    return (place > start and roads.stops[place - 1, 0] == spot) or (
        place + 1 < end and roads.stops[place + 1, 0] == spot
    )


@compile_inner
def segment_of(spot):
    return spot >> RUN_SHIFT


@compile_inner
def mark(roads, road, now):
    """Mark, after a second, the segments in which a car reported that it stands while another stands at its place."""
    start = roads.stop_starts[road]
    for place in range(start, start + roads.stop_counts[road]):
        if roads.stops[place, 2] == now and has_company(roads, road, place):
            roads.heads[road, MARK + segment_of(roads.stops[place, 0])] = 1


# --- minutes ---------------------------------------------------------------------------------------------------------


@compile_inner
def divisor(a, b):
    while b:
        a, b = b, a % b
    return a


@compile_inner
def mean_of_means(minutes, road, minute, segment):
    """Return the exact mean over cars and then over minutes, truncated. -1: there was no car; -2: overflow."""
    whole, above, below, many = 0, 0, 1, 0
    for slot in range(SLOTS):
        cars = minutes[road, slot, CARS + segment]
        if not minute - SLOTS < minutes[road, slot, 0] < minute or not cars:
            continue
        speeds = minutes[road, slot, SPEEDS + segment]
        whole += speeds // cars
        common = divisor(below, cars)
        if below // common > LARGEST // cars:
            return -2
        above = above * (cars // common) + speeds % cars * (below // common)
        below = below // common * cars
        whole += above // below
        above %= below
        many += 1
    return whole // (PARTS * many) if many else -1


@compile_inner
def mean_of_reports(minutes, road, minute, segment):
    """Return the mean speed of all reports, rounded half up, or 0 if there were none."""
    speeds, many = 0, 0
    for slot in range(SLOTS):
        if minute - SLOTS < minutes[road, slot, 0] < minute:
            speeds += minutes[road, slot, SPEEDS + segment]
            many += minutes[road, slot, REPORTS + segment]
    return (2 * speeds + many) // (2 * many) if many else 0


@compile_inner
def begin_minute(roads, road, minute, official):
    """Compute LAV, tolls and accidents of a minute from the minutes before it, and clear the counters of the minute."""
    heads, minutes = roads.heads, roads.minutes
    slot, before = minute % SLOTS, (minute - 1) % SLOTS
    for segment in range(SEGMENTS):
        if official:
            lav = mean_of_means(minutes, road, minute, segment)
            if lav == -2:
                return INEXACT
        else:
            lav = mean_of_reports(minutes, road, minute, segment)
        cars = minutes[road, before, CARS + segment] if minutes[road, before, 0] == minute - 1 else 0
        if cars > MOST_CARS:
            return MANY
        excess = cars - CROWDED
        heads[road, LAV + segment] = lav
        heads[road, TOLL + segment] = FACTOR * excess * excess if lav < FREE and excess > 0 else 0
        marked = official and heads[road, AT] == minute - 1 and heads[road, MARK + segment]
        heads[road, ACCIDENT + segment] = 1 if marked else 0
        heads[road, MARK + segment] = 0
    if not official:
        start = roads.stop_starts[road]
        for place in range(start, start + roads.stop_counts[road]):
            if has_company(roads, road, place):
                heads[road, ACCIDENT + segment_of(roads.stops[place, 0])] = 1
    heads[road, AT] = minute
    for word in range(MINUTE_WORDS):
        minutes[road, slot, word] = 0
    minutes[road, slot, 0] = minute
    roads.renewed[road, slot] = True
    return DONE


@compile_inner
def count_speed(roads, road, now, seg, spd, car, known, official):
    """Count a report in its segment and minute, and write HERE and THERE of its car.

    In the official profile a car counts once, with its mean speed.
    """
    minute = now // MINUTE
    slot = minute % SLOTS
    here, there = car[HERE], car[THERE]
    if not known or car[TIME] // MINUTE != minute:
        here = there = 0
    if here >> COUNT_SHIFT and here & SEGMENT != seg:
        here, there = there, here  # the car may be back in the segment that it was in before
        if here >> COUNT_SHIFT and here & SEGMENT != seg:
            here = 0
    speeds, many = (here >> SUM_SHIFT) & SUMS, here >> COUNT_SHIFT
    counted = roads.minutes[road, slot]
    if not many:
        counted[CARS + seg] += 1
    if official:
        if many == MOST_REPORTS:
            return OFTEN
        counted[SPEEDS + seg] += PARTS * (speeds + spd) // (many + 1) - (PARTS * speeds // many if many else 0)
    else:
        counted[SPEEDS + seg] += spd
        counted[REPORTS + seg] += 1
        many = min(many, MOST_REPORTS - 1)
        speeds = 0
    car[HERE] = seg | (speeds + spd) << SUM_SHIFT | (many + 1) << COUNT_SHIFT
    car[THERE] = there
    roads.renewed[road, slot] = True
    return DONE


# --- a report --------------------------------------------------------------------------------------------------------


@compile_inner
def nearest_accident(heads, road, seg, eastbound):
    """Return the segment of the nearest accident ahead within REACH, or -1."""
    for ahead in range(REACH):
        segment = seg + ahead if eastbound else seg - ahead
        if 0 <= segment < SEGMENTS and heads[road, ACCIDENT + segment]:
            return segment
    return -1


@compile_inner
def notify(roads, road, report, seg, eastbound, found):
    """Add the toll, and the alert if there is an accident ahead, for a car that enters a segment."""
    accident = nearest_accident(roads.heads, road, seg, eastbound)
    place = found.counts[0]
    found.toll_of[place] = report
    found.lav[place] = roads.heads[road, LAV + seg]
    found.toll[place] = 0 if accident >= 0 else roads.heads[road, TOLL + seg]
    found.counts[0] = place + 1
    if accident >= 0:
        found.alert_of[found.counts[1]] = report
        found.alert[found.counts[1]] = accident
        found.counts[1] += 1


@compile_inner
def tell(found, report, event, began):
    place = found.counts[2]
    found.event_of[place], found.event[place], found.page[place] = report, event, began
    found.counts[2] = place + 1


@compile_inner
def drive_on(reports, report, roads, eastbound, car, known, found, official):
    """Process one report and update the car's record in `car`. known: `car` has a record. Return (outcome, known)."""
    road, now, vid = reports.road[report], reports.time[report], reports.vid[report]
    lane, seg = np.int32(reports.lane[report]), np.int32(reports.seg[report])
    pos, spd = reports.pos[report], np.int32(reports.spd[report])
    known = known and now - car[TIME] <= GONE  # whether or not a merge of the page has removed the record
    left = known and has_left(car)
    silent = now - car[TIME] if known else 0
    if not official and ((not known and lane == EXIT) or (left and lane != ENTRANCE)):
        return DONE, known  # the report is dropped
    begins = not known or left or (lane == ENTRANCE and silent > GAP)
    enters = begins or car[HERE] & SEGMENT != seg

    # the number of successive reports from this place
    spot = pos | lane << LANE_SHIFT
    stood = (car[PLACE] >> RUN_SHIFT) & RUNS if known else 0
    run = 1
    if not enters and car[PLACE] & SPOT == spot:
        run = min(stood + 1, STOPPED)
    if official and spd != 0:
        run = 0
    if run == STOPPED:
        stands(roads, road, spot | seg << RUN_SHIFT, vid, now)
    elif stood == STOPPED or (not known and roads.stop_counts[road]):
        moves(roads, road, vid)

    went = count_speed(roads, road, now, seg, spd, car, known, official)
    if went != DONE:
        return went, known
    began = now % PERIOD if begins else (car[PLACE] >> BEGAN_SHIFT) & SECONDS
    car[TIME] = now
    car[PLACE] = spot | run << RUN_SHIFT | (1 if lane == EXIT else 0) << LEFT_SHIFT | began << BEGAN_SHIFT

    charged = CHARGED if enters and not begins else 0
    if lane == EXIT:
        tell(found, report, LEAVES | charged, began)
    elif enters:
        notify(roads, road, report, seg, eastbound, found)
        tell(found, report, charged, began)
    return DONE, True


# --- seconds ---------------------------------------------------------------------------------------------------------


@compile_inner
def drive_second(reports, first, last, roads, eastbound, pages, found, scratch, official):
    """Process the reports [first, last), all of one second and road. Return (outcome, failed report)."""
    road, now = reports.road[first], reports.time[first]
    page = road * PAGES + now % PERIOD
    start, count = pages.starts[page], pages.counts[page]
    vids, rest, car = pages.vids, pages.rest, scratch.car
    read, kept, new, report = 0, 0, 0, first
    stops = False
    while report < last or read < count:
        vid = reports.vid[report] if report < last else np.int32(0)
        here = read < count and (report == last or vids[start + read] <= vid)
        known = here
        if here:
            for word in range(REST):
                car[word] = rest[start + read, word]
            if report == last or vids[start + read] < vid:
                if not is_forgotten(car, now, official):
                    vids[start + kept] = vids[start + read]
                    for word in range(REST):
                        rest[start + kept, word] = car[word]
                    kept += 1
                read += 1
                continue
            read += 1
        else:
            known = found_elsewhere(pages, road, page, vid, car)
        while report < last and reports.vid[report] == vid:
            went, known = drive_on(reports, report, roads, eastbound, car, known, found, official)
            if went != DONE:
                return went, report
            stops = stops or (car[PLACE] >> RUN_SHIFT) & RUNS == STOPPED
            report += 1
        if not known:
            continue
        if here:
            vids[start + kept] = vid
            for word in range(REST):
                rest[start + kept, word] = car[word]
            kept += 1
        else:
            scratch.vids[new] = vid
            for word in range(REST):
                scratch.rest[new, word] = car[word]
            new += 1
    put_in(pages, page, kept, new, scratch.vids, scratch.rest)
    if stops:
        mark(roads, road, now)
    return DONE, last


@compile_cached
def drive(reports, eastbound, pages, roads, found, scratch, official):
    """Process all reports of a chunk. Return (outcome, failed report)."""
    reports, pages, roads = Reports(*reports), Pages(*pages), Roads(*roads)
    found, scratch = Found(*found), Scratch(*scratch)
    first, many = 0, len(reports.time)
    while first < many:
        road, now = reports.road[first], reports.time[first]
        last = first + 1
        while last < many and reports.road[last] == road and reports.time[last] == now:
            last += 1
        if roads.heads[road, AT] < now // MINUTE:
            went = begin_minute(roads, road, now // MINUTE, official)
            if went != DONE:
                return went, first
        went, where = drive_second(reports, first, last, roads, eastbound[road], pages, found, scratch, official)
        if went != DONE:
            return went, where
        first = last
    return DONE, many
