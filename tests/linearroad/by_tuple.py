"""Linear Road tuple by tuple: dictionaries and loops, one second after the other, nothing clever.

A second reading of the benchmark, held against the validator, which looks at all of an input at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor
from typing import Any, NamedTuple


class Tuple(NamedTuple):
    type: int
    time: int
    vid: int
    spd: int = -1
    xway: int = -1
    lane: int = -1
    dir: int = -1
    seg: int = -1
    pos: int = -1
    qid: int = -1
    sinit: int = -1
    send: int = -1
    dow: int = -1
    tod: int = -1
    day: int = -1


@dataclass
class Car:
    last: Tuple | None = None
    pending: int = 0  # toll of the segment it is in
    standing: int = 0  # equal reports up to now
    charges: list[tuple[int, int, int]] = field(default_factory=list)  # (time, toll, journey)
    entries: list[tuple[int, int, int]] = field(default_factory=list)  # (time, toll, journey)
    journey: int = 0
    exits: dict[int, int] = field(default_factory=dict)  # time of an exit: its journey


class ByTuple:
    def __init__(self, tuples: Iterable[Tuple], profile: str, free_cars: int = 50) -> None:
        self.walmart = profile == "walmart"
        self.free_cars = free_cars
        self.cars: dict[int, Car] = defaultdict(Car)
        self.speeds: dict[tuple[int, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.stopped: dict[tuple[int, ...], set[int]] = defaultdict(set)  # by place
        self.active: set[tuple[int, ...]] = set()  # (xway, dir, seg, minute)
        self.minute = 1
        self.lavs: dict[tuple[int, ...], int] = {}  # of segments in this minute, once they were asked for
        self.tolls: list[tuple[int, ...]] = []
        self.accidents: list[tuple[int, ...]] = []
        self.accepted: list[tuple[Any, ...]] = []  # (query, {(low, high, bal)}, needed)
        seconds: dict[int, list[Tuple]] = defaultdict(list)
        for each in tuples:
            seconds[each.time].append(each)
        for time in sorted(seconds):
            self._second(time, sorted(seconds[time]))

    def _second(self, time: int, tuples: Sequence[Tuple]) -> None:
        while self.minute < time // 60 + 1:
            self.minute += 1
            self.lavs.clear()
            if self.walmart:  # who stands when a minute begins
                self.active |= {self._where(p, self.minute) for p, cars in self.stopped.items() if len(cars) >= 2}
        kept = [each for each in tuples if each.type == 0 and self._report(each)]
        for each in kept:
            cars = self.stopped[place(each)]
            if not self.walmart and each.vid in cars and len(cars) >= 2:
                self.active.add(self._where(place(each), self.minute + 1))
        for each in tuples:
            if each.type == 2:
                self.accepted.append((each, *(self._balance_w(each) if self.walmart else self._balance_o(each))))

    @staticmethod
    def _where(spot: tuple[int, ...], minute: int) -> tuple[int, ...]:
        xway, dir, _, seg, _ = spot
        return xway, dir, seg, minute

    # --- position reports ---------------------------------------------------------------------------------------------

    def _report(self, now: Tuple) -> bool:
        """False: it is dropped."""
        car, last = self.cars[now.vid], self.cars[now.vid].last
        if self.walmart and last is None and now.lane == 4:
            return False
        if self.walmart and last is not None and last.lane == 4 and now.lane != 0:
            return False
        self.speeds[(*segment(now), self.minute)][now.vid].append(now.spd)
        fresh = last is None or last.lane == 4 or (now.lane == 0 and now.time - last.time > 60)
        self._stand(car, None if fresh else last, last, now)
        moved = fresh or segment(last) != segment(now)
        if fresh:
            car.journey += 1
        elif moved:
            car.charges.append((now.time, car.pending, car.journey))
        if moved and now.lane != 4:
            self._notify(car, now)
        if now.lane == 4:
            car.exits[now.time] = car.journey
        car.last = now
        return True

    def _stand(self, car: Car, before: Tuple | None, last: Tuple | None, now: Tuple) -> None:
        same = before is not None and place(before) == place(now)
        if not self.walmart:
            same = same and before is not None and before.spd == 0 and now.spd == 0
        car.standing = car.standing + 1 if same else 1
        if last is not None and not same:
            self.stopped[place(last)].discard(now.vid)
        if car.standing >= 4:
            self.stopped[place(now)].add(now.vid)

    def _notify(self, car: Car, now: Tuple) -> None:
        if segment(now) not in self.lavs:
            self.lavs[segment(now)] = self._lav(now)
        lav = self.lavs[segment(now)]
        cars = len(self.speeds.get((*segment(now), self.minute - 1), {}))
        ahead = self._ahead(now)
        free = ahead is not None or lav >= 40 or cars <= self.free_cars
        car.pending = 0 if free else 2 * (cars - self.free_cars) ** 2
        car.entries.append((now.time, car.pending, car.journey))
        self.tolls.append((now.vid, now.time, lav, car.pending, now.xway, now.dir, now.seg))
        if ahead is not None:
            self.accidents.append((now.vid, now.time, now.xway, now.dir, ahead))

    def _ahead(self, now: Tuple) -> int | None:
        for i in range(5):
            seg = now.seg + i if now.dir == 0 else now.seg - i
            if 0 <= seg <= 99 and (now.xway, now.dir, seg, self.minute) in self.active:
                return seg
        return None

    def _lav(self, now: Tuple) -> int:
        minutes = [self.speeds.get((*segment(now), self.minute - i)) for i in range(1, 6)]
        if not any(minutes):
            return 0 if self.walmart else -1
        if self.walmart:
            every = [spd for cars in minutes if cars for speeds in cars.values() for spd in speeds]
            return floor(Fraction(sum(every), len(every)) + Fraction(1, 2))
        return floor(mean([mean([mean(speeds) for speeds in cars.values()]) for cars in minutes if cars]))

    # --- balances -----------------------------------------------------------------------------------------------------

    def _balance_o(self, query: Tuple) -> tuple[set[tuple[int, int, int]], bool]:
        car, time = self.cars[query.vid], query.time
        entries = [at for at, _, _ in car.entries if at <= time]
        if not entries:
            return {(time, time, 0)}, False
        wanted = [entries[-1]]  # 1 and 4
        if entries[-1] > time - 30 and len(entries) > 1:
            wanted.append(entries[-2])  # 2
        wanted += [at for at in entries if at > time - 60][:1]  # 3
        right = set()
        for at in wanted:
            paid = sum(toll for when, toll, _ in car.charges if when <= at)
            told = sum(toll for when, toll, _ in car.entries if when < at)
            right |= {(at, at, paid), (at, at, told)}
        if time in car.exits:
            paid = sum(toll for when, toll, _ in car.charges if when <= time)
            right |= {(time, time, paid), (time, time, paid + self._unpaid(car, car.exits[time]))}
        return right, True

    @staticmethod
    def _unpaid(car: Car, journey: int) -> int:
        """On journeys before this one."""
        told, paid = (sum(toll for _, toll, on in rows if on < journey) for rows in (car.entries, car.charges))
        return told - paid

    def _balance_w(self, query: Tuple) -> tuple[set[tuple[int, int, int]], bool]:
        charges = [toll for _, toll, _ in self.cars[query.vid].charges if toll > 0]
        low = 0 if len(charges) < 2 else max(query.time - 30, 0)
        return {(low, query.time, sum(charges)), (low, query.time, sum(charges[:-1]))}, True


def segment(each: Tuple) -> tuple[int, ...]:
    return each.xway, each.dir, each.seg


def place(each: Tuple) -> tuple[int, ...]:
    return each.xway, each.dir, each.lane, each.seg, each.pos


def mean(values: Sequence[Any]) -> Fraction:
    return Fraction(sum(values)) / len(values)


# --- out of history --------------------------------------------------------------------------------------------------


def expenditures(tuples: Iterable[Tuple], history: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    tolls = {(vid, day, xway): toll for vid, day, xway, toll in history}
    return [
        (q.qid, q.time, q.vid, q.day, q.xway, tolls[q.vid, q.day, q.xway])
        for q in tuples
        if q.type == 3 and 1 <= q.day <= 69 and (q.vid, q.day, q.xway) in tolls
    ]


def travel_times(tuples: Iterable[Tuple], history: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    rows = defaultdict(list)
    for day, minute, xway, dir, seg, lav, _, toll in history:
        if 1 <= day <= 69:
            rows[xway, dir, seg, minute, day % 7 + 1].append((lav, toll))
    known = {xway for xway, *_ in rows}
    return [(q.qid, q.time, *_trip(q, rows)) for q in tuples if q.type == 4 and q.xway in known and _is_real(q)]


def _is_real(q: Tuple) -> bool:
    return 1 <= q.dow <= 7 and 1 <= q.tod <= 1440 and 0 <= q.sinit <= 99 and 0 <= q.send <= 99


def _trip(q: Tuple, rows: Mapping[tuple[int, ...], list[tuple[int, int]]]) -> tuple[int, int]:
    way = range(q.sinit, q.send + 1) if q.sinit <= q.send else range(q.sinit, q.send - 1, -1)
    tau = begin = (q.tod - 1) * 60_000
    cost = 0
    for seg in way:
        mu = min(tau // 60_000 + 1, 1440)
        there = rows.get((q.xway, 0 if q.sinit <= q.send else 1, seg, mu, q.dow), [])
        speeds = [lav for lav, _ in there if lav > 0]
        tolls = [toll for lav, toll in there if lav >= 0]
        tau += 3_600_000 * len(speeds) // sum(speeds) if speeds else 3_600_000
        cost += (2 * sum(tolls) + len(tolls)) // (2 * len(tolls)) if tolls else 0
    return (tau - begin) // 1000, cost
