# mypy: disable-error-code="no-untyped-def"
"""Travel time and toll of a trip, estimated from ten weeks of history, segment by segment, in whole numbers.

A segment is driven at the mean speed of that minute on the days of the weekday (those with a speed), or at 1 mph if
there is none. It costs the mean toll, rounded. The minute is that in which the car reaches the segment, at most the
last of the day.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace.processor import State
from headrace_linearroad.expenditures import DAYS
from headrace_linearroad.forms import OUTPUTS
from headrace_linearroad.lookups import NO_HISTORY, NO_ROAD, NOT_A_TRIP, UNANSWERED, count_unanswered, mapped

QUESTIONS = ("qid", "time", "xway", "sinit", "send", "dow", "tod")
WAYS, SEGMENTS, WEEK, MINUTES = 2, 100, 7, 1440
MINUTE, HOUR = 60_000, 3_600_000  # milliseconds

Longs = npt.NDArray[np.int64]


class TravelTimes(hr.Processor):
    """The processor of travel times. history: an Arrow file with `forms.SEGMENT_HISTORY`, or None."""

    schema = OUTPUTS["travel_times"]
    tables = {"unanswered": UNANSWERED}  # noqa: RUF012

    def __init__(self, history: Path | None = None) -> None:
        self.history = None if history is None else str(history)

    def open(self, substream: int, substreams: int) -> None:
        self.index = None if self.history is None else indexed(self.history)

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        given = {name: tuples[name].to_numpy() for name in QUESTIONS}
        took, cost = np.zeros((2, len(tuples)), np.int64)
        reasons = np.full(len(tuples), NO_HISTORY, np.int8)
        if self.index is not None:
            columns, starts = self.index
            travel(*(given[name] for name in QUESTIONS[2:]), starts, *columns, took, cost, reasons)
        count_unanswered(state["unanswered"], reasons)
        rows = np.flatnonzero(reasons == 0)
        found = [*(given[name][rows].astype(np.int64) for name in QUESTIONS[:2]), took[rows], cost[rows]]
        answers = [tuples["ts"].take(pa.array(rows)), *map(pa.array, found)]
        return pa.Table.from_arrays(answers, schema=self.schema)


def indexed(path: str) -> tuple[tuple[Any, ...], Longs]:
    """Return (columns minute, day, speed and toll; the first row of each segment, and the end)."""
    stat = Path(path).stat()
    return _indexed(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _indexed(path: str, size: int, modified: int) -> tuple[tuple[Any, ...], Longs]:
    columns = mapped(path)
    xways = columns["xway"]
    roads = int(xways[-1]) + 1 if len(xways) else 0
    starts = np.zeros(roads * WAYS * SEGMENTS + 1, np.int64)
    begin(xways, columns["dir"], columns["seg"], starts)
    return tuple(columns[name] for name in ("min", "day", "lav", "toll")), starts


@compile_cached
def begin(xways, ways, segments, starts):
    """Find the first row of each segment by binary search. Rows are sorted by expressway, direction, segment first."""
    for segment in range(len(starts)):
        low, high = starts[segment - 1] if segment else 0, len(xways)
        while low < high:
            middle = (low + high) // 2
            if (np.int64(xways[middle]) * WAYS + ways[middle]) * SEGMENTS + segments[middle] < segment:
                low = middle + 1
            else:
                high = middle
        starts[segment] = low


@compile_inner
def first_of(minutes, low, high, minute):
    """Return the first row of a minute, or where it would be. The guess fits if all minutes have equally many rows."""
    guess = low + (minute - 1) * ((high - low) // MINUTES)
    if low < guess < high and minutes[guess] == minute and minutes[guess - 1] < minute:
        return guess
    while low < high:
        middle = (low + high) // 2
        if minutes[middle] < minute:
            low = middle + 1
        else:
            high = middle
    return low


@compile_inner
def segment(low, high, minute, weekday, minutes, days, lavs, tolls):
    """Return (milliseconds, toll) of a segment."""
    row = first_of(minutes, low, high, minute)
    driven, speeds, known, paid = 0, 0, 0, 0
    while row < high and minutes[row] == minute:
        if 1 <= days[row] <= DAYS and days[row] % WEEK + 1 == weekday and lavs[row] >= 0:
            known += 1
            paid += tolls[row]
            if lavs[row] > 0:
                driven += 1
                speeds += lavs[row]
        row += 1
    took = HOUR * driven // speeds if driven else HOUR
    return took, (2 * paid + known) // (2 * known) if known else 0


@compile_cached
def travel(xway, sinit, send, dow, tod, starts, minutes, days, lavs, tolls, took, cost, reasons):
    roads = (len(starts) - 1) // (WAYS * SEGMENTS)
    for place in range(len(xway)):
        first, last, weekday = np.int64(sinit[place]), np.int64(send[place]), np.int64(dow[place])
        if not (0 <= first < SEGMENTS and 0 <= last < SEGMENTS and 1 <= weekday <= WEEK and 1 <= tod[place] <= MINUTES):
            reasons[place] = NOT_A_TRIP
            continue
        road = np.int64(xway[place]) * WAYS * SEGMENTS
        if not 0 <= xway[place] < roads or starts[road] == starts[road + WAYS * SEGMENTS]:
            reasons[place] = NO_ROAD
            continue
        reasons[place] = 0
        step = 1 if first <= last else -1
        way = road + (0 if step == 1 else SEGMENTS)
        begun = (np.int64(tod[place]) - 1) * MINUTE
        now, seg, tolled = begun, first, 0
        while True:
            minute = min(now // MINUTE + 1, MINUTES)
            ms, toll = segment(starts[way + seg], starts[way + seg + 1], minute, weekday, minutes, days, lavs, tolls)
            now += ms
            tolled += toll
            if seg == last:
                break
            seg += step
        took[place], cost[place] = (now - begun) // 1000, tolled
