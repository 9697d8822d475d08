"""Traffic that looks for trouble, by a seed: small, crowded, and not always what a road would let happen.

Of its own: the generator of the application is not asked, so that what it never makes is tried too.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa

from tests.linearroad.by_tuple import Tuple

SPEEDS = (0, 0, 0, 10, 20, 38, 39, 39, 40, 40, 41, 79, 100)
PAUSES = (30, 30, 30, 30, 30, 30, 15, 60, 61, 62, 90, 200)
SPOTS = (17, 17, 17, 5279)  # positions within a segment


class Car:
    """Somewhere on a road. Each step is what the next report says."""

    def __init__(self, random: Random, vid: int, xways: int, segments: Sequence[int]) -> None:
        self.random, self.vid, self.xways, self.segments = random, vid, xways, segments
        self.enter(random.choice((0, 0, 0, 1, 2, 4)))

    def enter(self, lane: int) -> None:
        self.xway = self.random.randrange(self.xways)
        self.dir = self.random.randrange(2)
        self.seg = self.random.choice(self.segments)
        self.spot = SPOTS[0]
        self.lane, self.spd = lane, self.random.choice(SPEEDS)

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.65:  # the same place again
            self.spd = 0 if self.random.random() < 0.9 else self.random.choice(SPEEDS)
        elif chance < 0.85:
            self.lane = self.random.choice((1, 2, 2, 2))
            self.seg = max(0, min(99, self.seg + self.random.choice((0, 1, 1)) * (1 - 2 * self.dir)))
            self.spot, self.spd = self.random.choice(SPOTS), self.random.choice(SPEEDS)
        elif chance < 0.9:
            self.lane = 4
            self.seg = max(0, min(99, self.seg + self.random.choice((0, 0, 1)) * (1 - 2 * self.dir)))
        elif chance < 0.95:
            self.enter(0)
        else:
            self.enter(self.random.choice((0, 1, 2)))

    def report(self, time: int) -> Tuple:
        return Tuple(0, time, self.vid, self.spd, self.xway, self.lane, self.dir, self.seg, self.seg * 5280 + self.spot)


def wild(seed: int, cars: int = 60, seconds: int = 900, xways: int = 2) -> list[Tuple]:
    """Cars that do what they like, on few segments; and questions at all times."""
    random = Random(seed)
    base = random.choice((0, 40, 97))
    segments = range(base, base + 3)
    tuples = []
    for vid in range(cars):
        car = Car(random, vid, xways, segments)
        time = random.choice((0, 29, 30, 59, 60, random.randrange(seconds)))
        while time < seconds and random.random() > 0.01:
            tuples.append(car.report(time))
            if random.random() < 0.2:
                tuples.append(Tuple(2, time, vid, qid=0))
            if random.random() < 0.03:
                tuples.append(Tuple(2, min(time + random.randrange(100), seconds), vid, qid=0))
            if random.random() < 0.01:  # twice in one second
                car.step()
                tuples.append(car.report(time))
            car.step()
            time += random.choice(PAUSES)
    tuples += [Tuple(2, random.randrange(seconds), cars + 1, qid=0) for _ in range(2)]
    tuples += asked(random, cars, seconds, xways)
    return numbered(random, tuples)


def crowd(seed: int, cars: int = 600, seconds: int = 900, xways: int = 2) -> list[Tuple]:
    """Queues: cars crawl through few segments, some stop on the same spot, leave, come back on another road."""
    random = Random(seed)
    tuples = []
    for vid in range(cars):
        time = random.randrange(seconds // 3)
        xway, dir = random.randrange(xways), random.randrange(2)
        while time < seconds:
            time = _journey(random, tuples, vid, time, seconds, xway, dir)
            if random.random() < 0.4:
                break
            time += random.choice((30, 60, 61, 62, 100))
            if random.random() < 0.7:
                xway = (xway + 1) % xways
    tuples += asked(random, cars, seconds, xways)
    return numbered(random, tuples)


def mixed(seed: int) -> list[Tuple]:
    """All of it, on roads of their own."""
    strangers = [
        each._replace(vid=each.vid + 1000, xway=each.xway + 2 if each.type == 0 else each.xway) for each in wild(seed)
    ]
    return numbered(Random(seed), crowd(seed) + strangers + staged())


def staged(xway: int = 5, first: int = 5000) -> list[Tuple]:
    """Borders by hand: speeds of 39, 40 and 41 with 50, 51 and 60 cars; who is told of an accident, and who is not."""
    tuples = []
    fleet = iter(range(first, first + 10_000))
    for seg, (speed, cars) in enumerate((speed, cars) for speed in (39, 40, 41) for cars in (50, 51, 60)):
        here = [next(fleet) for _ in range(cars)]
        tuples += [Tuple(0, 5, vid, speed, xway, 1, 0, seg, seg * 5280 + at) for at, vid in enumerate(here)]
        follower = next(fleet)  # is told, drives on and asks what it paid
        tuples += [Tuple(0, 60 + 30 * n, follower, 50, xway, n, 0, seg + n, (seg + n) * 5280) for n in (0, 1)]
        tuples.append(Tuple(2, 90, follower, qid=0))
    for dir in (0, 1):
        wrecks = [next(fleet), next(fleet)]
        beside = [next(fleet), next(fleet)]  # the same spot of two lanes
        for time in range(0, 300, 30):
            tuples += [Tuple(0, time, vid, 0, xway, 2, dir, 50, 264_100) for vid in wrecks]
            tuples += [Tuple(0, time, vid, 0, xway, 1 + n, dir, 80, 422_500) for n, vid in enumerate(beside)]
        for time in range(0, 600, 30):
            for seg in (*range(43, 58), *range(73, 88)):
                tuples.append(Tuple(0, time, next(fleet), 30, xway, 0, dir, seg, seg * 5280 + 7))
    return tuples


def _journey(random: Random, tuples: list[Tuple], vid: int, time: int, seconds: int, xway: int, dir: int) -> int:
    """From a ramp to a ramp; how long it goes on and where it stops is chance."""
    way = 1 - 2 * dir
    seg = 50 if dir == 0 else 56
    reports = random.randrange(6, 20)
    stop = random.randrange(3, 9) if random.random() < 0.12 else None
    lane, spot = 0, random.randrange(1000)
    for number in range(reports):
        if time >= seconds:
            break
        standing = stop is not None and stop <= number < stop + random.choice((3, 4, 5, 6, 7, 8))
        if standing:
            lane, spot, spd = 2, (17 if vid % 2 else 5000), 0
        else:
            spd = random.choice((10, 20, 30, 39, 40, 45, 60))
            lane = 0 if number == 0 else random.choice((1, 2, 3))
            spot = random.randrange(5280)
            if number and random.random() < 0.2:
                seg = max(0, min(99, seg + way))
        tuples.append(Tuple(0, time, vid, spd, xway, lane, dir, seg, seg * 5280 + spot))
        if random.random() < 0.08:
            tuples.append(Tuple(2, time, vid, qid=0))
        time += 30
    if time < seconds and random.random() < 0.8:
        seg = max(0, min(99, seg + way * random.choice((0, 0, 1))))
        tuples.append(Tuple(0, time, vid, 20, xway, 4, dir, seg, seg * 5280 + 5000))
        if random.random() < 0.3:
            tuples.append(Tuple(2, time + random.choice((0, 0, 7)), vid, qid=0))
    return time


def asked(random: Random, cars: int, seconds: int, xways: int) -> list[Tuple]:
    """Questions for history: days that are none, trips that are none."""
    found = []
    for _ in range(60):
        time, vid, xway = random.randrange(seconds), random.randrange(cars), random.randrange(xways + 1)
        found.append(Tuple(3, time, vid, xway=xway, qid=0, day=random.choice((0, 1, 2, 68, 69, 70))))
        sinit, send, dow = random.randrange(-1, 101), random.randrange(-1, 101), random.randrange(9)
        tod = random.choice((0, 1, 700, 1400, 1439, 1440, 1441))
        found.append(Tuple(4, time, vid, xway=xway, qid=0, sinit=sinit, send=send, dow=dow, tod=tod))
    found.append(Tuple(4, seconds // 2, 0, xway=0, qid=0, sinit=0, send=0, dow=0, tod=0))
    return found


def numbered(random: Random, tuples: Iterable[Tuple]) -> list[Tuple]:
    """In order of time, shuffled within seconds; queries have numbers of their own, unused fields anything."""
    mixed = sorted(tuples, key=lambda each: (each.time, random.random()))
    mixed = [each if each.type == 0 else each._replace(qid=qid) for qid, each in enumerate(mixed)]
    return [each if each.type != 2 else each._replace(xway=random.randrange(-1, 3), lane=7) for each in mixed]


def toll_history(seed: int, cars: int, xways: int) -> list[tuple[int, ...]]:
    random = Random(seed)
    days = (0, 1, 2, 30, 68, 69, 70)  # two of them are none
    return [(vid, day, random.randrange(xways), random.randrange(99)) for vid in range(cars) for day in days]


def segment_history(seed: int, xways: int) -> list[tuple[int, ...]]:
    """Whole for a few minutes, with gaps, slow enough for trips to pass midnight."""
    random = Random(seed)
    minutes = (1, 2, 3, 60, 700, 701, 702, 710, 1400, 1401, 1420, 1439, 1440)
    return [
        (
            day,
            minute,
            xway,
            dir,
            seg,
            random.choice((-1, 0, 1, 7, 33, 60, 90)),
            random.randrange(200),
            random.randrange(99),
        )
        for xway in range(xways)
        for dir in (0, 1)
        for seg in range(100)
        for minute in minutes
        for day in random.sample(range(-1, 72), 12)  # some of them are none
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def write_csv(path: Path, rows: Iterable[Sequence[int]], packed: bool = False) -> Path:
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode(), 1) if packed else text.encode())
    return path


def write_seconds(folder: Path, tuples: Sequence[Tuple]) -> Path:
    """A folder of Arrow files of one second."""
    folder.mkdir()
    for time in sorted({each.time for each in tuples}):
        rows = [each for each in tuples if each.time == time]
        columns = {"ts": pa.array([time * 1_000_000] * len(rows), pa.timestamp("us", "UTC"))}
        columns |= {name: pa.array([getattr(row, name) for row in rows], pa.int32()) for name in Tuple._fields}
        table = pa.table(columns)
        with pa.ipc.new_file(str(folder / f"{time:06}.arrow"), table.schema) as file:
            file.write_table(table)
    (folder / "_complete.json").write_text(json.dumps({}))
    return folder
