"""The rules of Linear Road, tuple by tuple, for small inputs: dicts, lists and fractions, written to be read.

`answers(tuples, profile, tolls, segments)` gives the five outputs as lists of tuples. A tuple is a dict of the fifteen fields.
Rules are by car over all expressways; second by second, each judged when it is complete.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import floor
from typing import Any

Tuple = Mapping[str, int]
Rows = list[tuple[int, ...]]


def answers(
    tuples: Iterable[Tuple], profile: str, tolls: Iterable[Tuple] = (), segments: Iterable[Tuple] = ()
) -> dict[str, Rows]:
    model = Model(profile == "official")
    tuples = list(tuples)
    by_second = defaultdict(list)
    for each in tuples:
        by_second[each["time"]].append(each)
    for time in sorted(by_second):
        model.second(time, by_second[time])
    paid = {(row["vid"], row["day"], row["xway"]): row["toll"] for row in tolls}
    return {
        **model.told,
        "expenditures": [row for asked in tuples if asked["type"] == 3 for row in expenditure(asked, paid)],
        "travel_times": [row for asked in tuples if asked["type"] == 4 for row in trip(asked, list(segments))],
    }


def expenditure(asked: Tuple, paid: Mapping[tuple[int, int, int], int]) -> Rows:
    key = asked["vid"], asked["day"], asked["xway"]
    return [(asked["qid"], asked["time"], *key, paid[key])] if 1 <= asked["day"] <= 69 and key in paid else []


def trip(asked: Tuple, history: list[Tuple]) -> Rows:
    first, last = asked["sinit"], asked["send"]
    sane = 1 <= asked["dow"] <= 7 and 1 <= asked["tod"] <= 1440 and 0 <= first <= 99 and 0 <= last <= 99
    if not sane or not any(row["xway"] == asked["xway"] for row in history):
        return []
    way = 0 if first <= last else 1
    tau, took, cost = (asked["tod"] - 1) * 60_000, 0, 0
    for seg in range(first, last + 1) if way == 0 else range(first, last - 1, -1):
        minute = min(tau // 60_000 + 1, 1440)
        where = {"xway": asked["xway"], "dir": way, "seg": seg, "min": minute}
        rows = [r for r in history if all(r[name] == value for name, value in where.items())]
        rows = [r for r in rows if r["day"] % 7 + 1 == asked["dow"] and r["lav"] >= 0]
        speeds = [r["lav"] for r in rows if r["lav"] > 0]
        ms = 3_600_000 * len(speeds) // sum(speeds) if speeds else 3_600_000
        cost += (2 * sum(r["toll"] for r in rows) + len(rows)) // (2 * len(rows)) if rows else 0
        tau, took = tau + ms, took + ms
    return [(asked["qid"], asked["time"], took // 1000, cost)]


class Car:
    """What is known of a car."""

    def __init__(self) -> None:
        self.last: Tuple | None = None  # its last report
        self.left = False
        self.run: list[Tuple] = []  # reports from one place, the last ones
        self.pending = 0
        self.charges: list[tuple[int, int]] = []  # when, how much
        self.entries: list[int] = []
        self.exits: list[int] = []

    @property
    def stands(self) -> tuple[int, ...] | None:
        return spot(self.run[-1]) if len(self.run) >= 4 else None

    def balance(self, time: int) -> int:
        return sum(charge for when, charge in self.charges if when <= time)


def place(report: Tuple) -> tuple[int, int, int]:
    return report["xway"], report["dir"], report["seg"]


def spot(report: Tuple) -> tuple[int, ...]:
    return (*place(report), report["lane"], report["pos"])


class Model:
    def __init__(self, official: bool) -> None:
        self.official = official
        self.cars: dict[int, Car] = defaultdict(Car)
        self.speeds: dict[Any, dict[int, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )  # (minute, place): car: speeds
        self.accidents: dict[int, set[Any]] = defaultdict(set)  # minute: places
        self.begun = -1
        self.told: dict[str, Rows] = {name: [] for name in ("tolls", "accidents", "balances")}

    def second(self, time: int, tuples: list[Tuple]) -> None:
        if not self.official:
            while self.begun < time // 60:
                self.begun += 1
                self.accidents[self.begun] |= {where[:3] for where, cars in self.standing().items() if len(cars) > 1}
        names = ("vid", "spd", "xway", "lane", "dir", "seg", "pos")
        for report in sorted((t for t in tuples if t["type"] == 0), key=lambda t: [t[name] for name in names]):
            self.report(report)
        if self.official:
            for where, cars in self.standing().items():
                if len(cars) > 1 and any(self.cars[vid].last["time"] == time for vid in cars):
                    self.accidents[time // 60 + 1].add(where[:3])
        for asked in tuples:
            if asked["type"] == 2:
                self.balance(asked)

    def standing(self) -> dict[Any, list[int]]:
        found = defaultdict(list)
        for vid, car in self.cars.items():
            if car.stands is not None:
                found[car.stands].append(vid)
        return found

    def report(self, report: Tuple) -> None:
        car, lane, time = self.cars[report["vid"]], report["lane"], report["time"]
        if not self.official and ((car.last is None and lane == 4) or (car.left and lane != 0)):
            return
        begins = car.last is None or car.left or (lane == 0 and time - car.last["time"] > 60)
        enters = begins or place(car.last) != place(report)
        stays = not begins and spot(car.last) == spot(report)
        if self.official and report["spd"] > 0:
            car.run = []
        else:
            car.run = [*(car.run if stays else []), report]
        if enters and not begins:
            car.charges.append((time, car.pending))
        if enters or lane == 4:
            car.pending = 0
        if lane == 4:
            car.exits.append(time)
        elif enters:
            car.pending = self.notify(report)
            car.entries.append(time)
        car.last, car.left = report, lane == 4
        self.speeds[time // 60, place(report)][report["vid"]].append(report["spd"])

    def notify(self, report: Tuple) -> int:
        minute, (xway, way, seg) = report["time"] // 60, place(report)
        lav = self.lav(minute, place(report))
        cars = len(self.speeds.get((minute - 1, place(report)), ()))
        ahead = [seg + i * (1 if way == 0 else -1) for i in range(5)]
        accidents = [each for each in ahead if (xway, way, each) in self.accidents.get(minute, ())]
        toll = 0 if accidents or lav >= 40 or cars <= 50 else 2 * (cars - 50) ** 2
        self.told["tolls"].append((report["vid"], report["time"], lav, toll, xway, way, seg))
        if accidents:
            self.told["accidents"].append((report["vid"], report["time"], xway, way, accidents[0]))
        return toll

    def lav(self, minute: int, where: Any) -> int:
        minutes = [self.speeds[m, where] for m in range(minute - 5, minute) if (m, where) in self.speeds]
        if self.official:
            means = [mean(mean(speeds) for speeds in cars.values()) for cars in minutes]
            return floor(mean(means)) if means else -1
        speeds = [speed for cars in minutes for own in cars.values() for speed in own]
        return floor(mean(speeds) + Fraction(1, 2)) if speeds else 0

    def balance(self, asked: Tuple) -> None:
        car, time = self.cars[asked["vid"]], asked["time"]
        as_of = time
        if self.official and car.entries and time not in car.exits:
            as_of = car.entries[-1]
        self.told["balances"].append((asked["qid"], time, as_of, asked["vid"], car.balance(as_of)))


def mean(values: Iterable[Any]) -> Fraction:
    given = list(values)
    return Fraction(sum(given), len(given))
