"""Histories of the ten weeks before: the tolls of cars by day, and the traffic of segments by minute.

Each row is a function of its key. So a history with only the rows that the questions need is a subset of the complete
one, and any row can be generated alone.

A car has one row per day: mostly on its own expressway, sometimes on the next one, so that some questions have no
answer. For a minute of a segment, the rows of one day or of all days may be missing, or have lav 0 (all cars stood) or
lav -1 (no car).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace_linearroad.forms import EXPENDITURE, SEGMENT_HISTORY, TOLL_HISTORY
from headrace_linearroad.generating.demand import LONGEST, Demand
from headrace_linearroad.generating.draws import Ints, between, draw, salt
from headrace_linearroad.generating.questions import Questions
from headrace_linearroad.generating.rows import as_array, numbers
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import CARS, DAYS, EAST, MINUTES, SEGMENTS, WEEKDAYS, WEST

ELSEWHERE = 8  # one car's day in this many is on the next expressway
FORGOTTEN = 16  # one needed row in this many is left out of a history of needed rows
MOST_TOLL = 98
AT_ONCE = 8_192  # cars whose days are generated together
GAPS = 40  # one segment's minute in this many has no rows; as many have only lav 0, and as many only lav -1
DAY_GAPS = 50  # the same for the rows of single days
HOUR = 3_600_000  # milliseconds

ROADS_AT_ONCE = 16
KEY = ("xway", "dir", "seg", "min", "day")  # key of a row, in sort order
SIZES = {"dir": 2, "seg": SEGMENTS, "min": MINUTES + 1, "day": DAYS + WEEKDAYS + 1}

Columns = dict[str, Ints]


def as_table(columns: Columns, schema: pa.Schema) -> pa.Table:
    arrays = [
        as_array(np.ascontiguousarray(columns[field.name], field.type.to_pandas_dtype()), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


class Tolls:
    """The history of tolls: a row for each car and day, except for the cars in `unknown`."""

    def __init__(self, settings: Settings, unknown: Iterable[int]) -> None:
        self.settings, self.unknown = settings, np.array(sorted(unknown), np.int64)
        self._asked: list[Ints] = []

    def see(self, tuples: pa.Table) -> None:
        """Remember the questions for expenditures."""
        kind, vid, day = (numbers(tuples, name) for name in ("type", "vid", "day"))
        rows = np.flatnonzero(kind == EXPENDITURE)
        self._asked.append(vid[rows].astype(np.int64) * (DAYS + 1) + day[rows])

    def needed(self) -> Iterator[pa.Table]:
        """Yield the rows that the questions need, except a few, sorted by (vid, day, xway)."""
        asked = np.unique(np.concatenate(self._asked)) if self._asked else np.empty(0, np.int64)
        vid, day = np.divmod(asked, DAYS + 1)
        kept = (day > 0) & (draw(salt(self.settings.seed, "forgotten"), vid, day) % np.uint64(FORGOTTEN) != 0)
        yield self._rows(vid[kept], day[kept])

    def complete(self, demand: Demand, begin: int, end: int, actors: Iterable[int]) -> Iterator[pa.Table]:
        """Yield all days of all cars that may be on the road in [begin, end), sorted by (vid, day, xway)."""
        first = demand.entered(max(demand.first, begin - LONGEST))
        extra = np.array(sorted(actors), np.int64)
        for xway in range(self.settings.roads):
            numbers = np.arange(first, demand.entered(end)) + xway * CARS
            cars = np.concatenate([numbers, extra[extra // CARS == xway]])
            for part in np.split(cars, range(AT_ONCE, len(cars), AT_ONCE)):
                vid, day = np.repeat(part, DAYS), np.tile(np.arange(1, DAYS + 1), len(part))
                yield self._rows(vid, day)

    def _rows(self, vid: Ints, day: Ints) -> pa.Table:
        known = ~np.isin(vid, self.unknown)
        vid, day = vid[known], day[known]
        drawn = draw(salt(self.settings.seed, "tolls"), vid, day)
        elsewhere = drawn % np.uint64(ELSEWHERE) == 0
        xway = (vid // CARS + elsewhere) % self.settings.roads
        return as_table({"vid": vid, "day": day, "xway": xway, "toll": between(drawn, 0, MOST_TOLL)}, TOLL_HISTORY)


class Segments:
    """The history of segments, sorted by (xway, dir, seg, min, day)."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.questions = settings, Questions(settings)

    def needed(self) -> Iterator[pa.Table]:
        """Yield the rows that the trips of the questions need."""
        for first in range(0, self.settings.roads, ROADS_AT_ONCE):
            xways = np.arange(first, min(first + ROADS_AT_ONCE, self.settings.roads))
            yield self._table(self._reached(np.repeat(xways, self.settings.trips)))

    def complete(self) -> Iterator[pa.Table]:
        """Yield all rows, one table per segment."""
        grid = np.meshgrid(np.arange(1, MINUTES + 1), np.arange(1, DAYS + 1), indexing="ij")
        minute, day = (column.ravel() for column in grid)
        for xway, direction, seg in product(range(self.settings.roads), (EAST, WEST), range(SEGMENTS)):
            place = (np.full(len(day), number) for number in (xway, direction, seg))
            yield self._table(dict(zip(KEY, (*place, minute, day), strict=True)))

    def _table(self, keys: Columns) -> pa.Table:
        rows = self._rows(keys)
        there = rows.pop("there").astype(bool)
        return as_table({name: column[there] for name, column in (keys | rows).items()}, SEGMENT_HISTORY)

    def _rows(self, keys: Columns) -> Columns:
        """Return lav, cnt and toll, and whether the row exists."""
        seed, day = self.settings.seed, keys["day"]
        always = draw(salt(seed, "minutes"), *(keys[name] for name in KEY if name != "day"))
        drawn = draw(salt(seed, "days"), always.view(np.int64), day)
        kind = np.minimum(between(always, 0, GAPS - 1), between(drawn, 0, DAY_GAPS - 1))  # 0, 1 and 2 are gaps
        lav = between(always, 12, 68, part=1) + between(drawn, -8, 8, part=1)
        count = np.clip(140 - lav * 2 + between(draw(salt(seed, "counts"), drawn.view(np.int64)), -30, 30), 0, 200)
        lav = np.where(kind == 1, 0, np.where(kind == 2, -1, lav))
        toll = np.where((lav < 40) & (count > 50), 2 * (count - 50) ** 2, 0)
        return {"there": kind != 0, "lav": lav, "cnt": count, "toll": toll}

    def _reached(self, xway: Ints) -> Columns:
        """Return the sorted keys of all rows that trips need. `xway`: the expressway of each trip."""
        trip = self.questions.trip(xway, np.arange(len(xway)) % self.settings.trips)
        sign = np.where(trip["sinit"] <= trip["send"], 1, -1)
        far = np.abs(trip["send"] - trip["sinit"])
        moment = (trip["tod"] - 1) * 60_000
        found = list[Ints]()
        for step in range(SEGMENTS):
            rows = np.flatnonzero(step <= far)
            seg, direction = (trip["sinit"] + sign * step)[rows], np.where(sign[rows] > 0, EAST, WEST)
            minute = np.minimum(moment[rows] // 60_000 + 1, MINUTES)
            day = days_of(trip["dow"][rows])
            columns = np.broadcast_arrays(*(key[:, None] for key in (xway[rows], direction, seg, minute)), day)
            keys = dict(zip(KEY, columns, strict=True))
            found.append(_packed(keys)[day <= DAYS])
            moment[rows] += self._pace(keys)
        return _unpacked(np.unique(np.concatenate(found)))

    def _pace(self, keys: Columns) -> Ints:
        """Return the milliseconds that each trip needs for a segment. keys: [trip, day]."""
        rows = self._rows(keys)
        moving = rows["there"].astype(bool) & (rows["lav"] > 0) & (keys["day"] <= DAYS)
        days, total = moving.sum(axis=1), (rows["lav"] * moving).sum(axis=1)
        return np.where(days > 0, HOUR * days // np.maximum(total, 1), HOUR)


def _packed(keys: Columns) -> Ints:
    """Return keys as single numbers with the same order."""
    found = keys[KEY[0]]
    for name in KEY[1:]:
        found = found * SIZES[name] + keys[name]
    return found


def _unpacked(numbers: Ints) -> Columns:
    found: Columns = {}
    for name in reversed(KEY[1:]):
        numbers, found[name] = np.divmod(numbers, SIZES[name])
    return found | {KEY[0]: numbers}


def days_of(weekday: npt.NDArray[np.int64]) -> Ints:
    """Return the days of the history with each weekday, at most ten. A day past the end of the history is a filler."""
    first = np.where(weekday == 1, WEEKDAYS, weekday - 1)  # day mod 7 + 1 is the weekday
    found: Ints = first[:, None] + WEEKDAYS * np.arange(-(-DAYS // WEEKDAYS))
    return found
