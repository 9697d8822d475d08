"""Tolls, accident alerts and balances (profile official) with Spark's transformWithStateInPandas.

The code is written as an experienced user would write it. One call of a processor has all tuples of a road, or of a
sixteenth of all cars. Its state is one value, which is read and written once per call, because Spark's map state needs
a socket round trip per car. Within a call the code is plain Python, tuple by tuple. It shares nothing with headrace's
query.

An event from roads to accounts is a row of EVENTS. Its `what` determines which columns are used:

    TOLL      a notice: vid, time, lav, toll, xway, dir, seg
    ALERT     an accident ahead: vid, time, xway, dir, seg (that of the accident)
    CHARGE    vid, time, toll
    EXIT      vid, time
    ASKED     a question for a balance: vid, time, qid
    BALANCE   its answer: qid, time, resulttime, vid, bal
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

CHARGE, EXIT, TOLL, ALERT, ASKED, BALANCE = range(6)  # events of one second are processed in this order
COLUMNS = ("what", "vid", "time", "lav", "toll", "xway", "dir", "seg", "qid", "resulttime", "bal")
EVENTS = StructType([StructField(name, LongType()) for name in COLUMNS])
VALUE = StructType([StructField("pickled", BinaryType())])

Event = tuple[int, ...]


def event(what: int, vid: int, time: int, **more: int) -> Event:
    given = {"what": what, "vid": vid, "time": time, **more}
    return tuple(given.get(name, 0) for name in COLUMNS)


class OneValue(StatefulProcessor):  # type: ignore[misc]
    """A processor whose state per key is one pickled Python object."""

    def init(self, handle: Any) -> None:
        self._kept = handle.getValueState("kept", VALUE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        found = self._kept.get()
        state = self.begin(int(key[0])) if found is None else pickle.loads(found[0])  # noqa: S301 (its own)
        told = self.told(state, pd.concat(list(rows)))
        self._kept.update((pickle.dumps(state, pickle.HIGHEST_PROTOCOL),))
        yield pd.DataFrame(told, columns=COLUMNS)

    def begin(self, key: int) -> Any:
        raise NotImplementedError

    def told(self, state: Any, rows: pd.DataFrame) -> list[Event]:
        raise NotImplementedError


@dataclass
class Road:
    """One direction of an expressway.

    A car is: time, seg, lane and pos of its last report, the number of successive reports from there, and the notified
    toll.
    """

    xway: int
    way: int
    cars: dict[int, tuple[int, int, int, int, int, int]] = field(default_factory=dict)
    speeds: dict[int, dict[int, dict[int, tuple[int, int]]]] = field(default_factory=dict)  # minute: seg: car: sum, n
    means: dict[tuple[int, int], Fraction | None] = field(default_factory=dict)  # by past minute and segment
    stopped: dict[tuple[int, int, int], set[int]] = field(default_factory=dict)  # cars by lane, pos, seg
    accidents: dict[int, set[int]] = field(default_factory=dict)  # minute: segments
    minute: int = -1

    def begin_minute(self, minute: int) -> None:
        """Remove what no rule needs any more, and compute the means of the last minute."""
        self.minute = minute
        self.speeds = {when: segs for when, segs in self.speeds.items() if when >= minute - 1}
        self.means = {key: mean for key, mean in self.means.items() if key[0] >= minute - 5}
        self.accidents = {when: segs for when, segs in self.accidents.items() if when >= minute}
        self.cars = {vid: car for vid, car in self.cars.items() if car[0] >= (minute - 10) * 60}
        for seg, cars in self.speeds.get(minute - 1, {}).items():
            self.means[minute - 1, seg] = mean_of_means(cars.values())

    def lav(self, seg: int) -> int:
        found = [mean for back in range(1, 6) if (mean := self.means.get((self.minute - back, seg))) is not None]
        return int(sum(found) / len(found)) if found else -1

    def accident_ahead(self, seg: int) -> int | None:
        there = self.accidents.get(self.minute, ())
        ahead = range(seg, seg + 5) if self.way == 0 else range(seg, seg - 5, -1)
        return next((each for each in ahead if each in there), None)


def mean_of_means(cars: Iterable[tuple[int, int]]) -> Fraction:
    by_reports: dict[int, int] = {}
    many = 0
    for total, n in cars:
        by_reports[n] = by_reports.get(n, 0) + total
        many += 1
    return sum((Fraction(total, n) for n, total in by_reports.items()), Fraction()) / many


class Roads(OneValue):
    """From the reports of a road to notices, alerts, charges and exits."""

    def begin(self, key: int) -> Road:
        return Road(xway=key // 2, way=key % 2)

    def told(self, state: Road, rows: pd.DataFrame) -> list[Event]:
        rows = rows.sort_values(["time", "vid"], kind="stable")
        columns = (rows[name].tolist() for name in ("time", "vid", "spd", "lane", "seg", "pos"))
        told: list[Event] = []
        now, seen = -1, set[tuple[int, int, int]]()
        for time, vid, spd, lane, seg, pos in zip(*columns, strict=True):
            if time != now:
                end_second(state, seen)
                now = time
                if time // 60 != state.minute:
                    state.begin_minute(time // 60)
            report(state, told, seen, time, vid, spd, lane, seg, pos)
        end_second(state, seen)
        return told


def report(
    road: Road, told: list[Event], seen: set[Any], time: int, vid: int, spd: int, lane: int, seg: int, pos: int
) -> None:
    before = road.cars.get(vid)
    begins = before is None or before[2] == 4 or (lane == 0 and time - before[0] > 60)
    same, due = 1 if spd == 0 else 0, 0
    if before is not None:
        _, was_seg, was_lane, was_pos, was_same, due = before
        if was_same >= 4:
            road.stopped.get((was_lane, was_pos, was_seg), set()).discard(vid)
        if spd == 0 and not begins and (was_seg, was_lane, was_pos) == (seg, lane, pos):
            same = was_same + 1
    if same >= 4:
        road.stopped.setdefault((lane, pos, seg), set()).add(vid)
        seen.add((lane, pos, seg))
    enters = begins or (before is not None and before[1] != seg)
    if enters and not begins:
        told.append(event(CHARGE, vid, time, toll=due))
    if lane == 4:
        told.append(event(EXIT, vid, time))
        due = 0
    elif enters:
        due = notify(road, told, time, vid, seg)
    road.cars[vid] = (time, seg, lane, pos, same, due)
    cars = road.speeds.setdefault(road.minute, {}).setdefault(seg, {})
    total, n = cars.get(vid, (0, 0))
    cars[vid] = (total + spd, n + 1)


def notify(road: Road, told: list[Event], time: int, vid: int, seg: int) -> int:
    lav, cars = road.lav(seg), len(road.speeds.get(road.minute - 1, {}).get(seg, ()))
    accident = road.accident_ahead(seg)
    toll = 0 if accident is not None or lav >= 40 or cars <= 50 else 2 * (cars - 50) ** 2
    where = {"xway": road.xway, "dir": road.way}
    told.append(event(TOLL, vid, time, lav=lav, toll=toll, seg=seg, **where))
    if accident is not None:
        told.append(event(ALERT, vid, time, seg=accident, **where))
    return toll


def end_second(road: Road, seen: set[tuple[int, int, int]]) -> None:
    """Add an accident at each place where two cars stand at the end of a second and one of them reported in it."""
    for place in seen:
        if len(road.stopped.get(place, ())) > 1:
            road.accidents.setdefault(road.minute + 1, set()).add(place[2])
    seen.clear()


Account = tuple[int, int, int]  # balance at the last segment entry, second of that entry, balance now


class Accounts(OneValue):
    """From events and questions of cars to answers. Notices and alerts pass through."""

    def begin(self, key: int) -> dict[int, Account]:
        return {}

    def told(self, state: dict[int, Account], rows: pd.DataFrame) -> list[Event]:
        rows = rows.sort_values(["time", "what"], kind="stable")
        columns = (rows[name].tolist() for name in COLUMNS)
        told: list[Event] = []
        left: dict[int, int] = {}  # second in which a car left
        for each in zip(*columns, strict=True):
            what, vid, time, toll = each[0], each[1], each[2], each[4]
            then, entered, balance = state.get(vid, (0, -1, 0))
            if what == CHARGE:
                state[vid] = (then, entered, balance + toll)
            elif what == EXIT:
                left[vid] = time
            elif what == ASKED:
                at_entry = entered >= 0 and left.get(vid) != time
                answer = {"resulttime": entered, "bal": then} if at_entry else {"resulttime": time, "bal": balance}
                told.append(event(BALANCE, vid, time, qid=each[8], **answer))
            else:
                told.append(each)
                if what == TOLL:
                    state[vid] = (balance, time, balance)
        return told
