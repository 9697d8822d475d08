"""Small traffic at random, in which everything happens that the rules are about: crowds, slow cars, accidents, returns.

Few places, many cars and minutes that matter; not what a road looks like, but what a rule can be wrong about. In `wild` traffic
some cars do what no car can: they are on two roads at once, in one second at two places, back where they were ten minutes ago.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace_linearroad.forms import FIELDS, INPUT

UNUSED = dict.fromkeys(FIELDS, -1)


def traffic(seed: int, cars: int = 800, minutes: int = 11, roads: int = 3) -> list[dict[str, int]]:
    r = random.Random(seed)
    segments = [r.choice((0, 3, 96, 99)), r.randrange(4, 96)]
    tuples: list[dict[str, int]] = []
    for vid in range(cars):
        tuples += _car(r, vid, minutes * 60, roads, segments)
    return asked(r, tuples, minutes * 60, cars)


def wild(seed: int, cars: int = 500, wild_cars: int = 60, minutes: int = 11, roads: int = 3) -> list[dict[str, int]]:
    """Traffic, and among it cars that are anywhere at any time."""
    r = random.Random(seed)
    tuples = [each for each in traffic(seed, cars, minutes, roads) if each["type"] == 0]
    places = sorted({(each["xway"] * 2 + each["dir"], each["seg"]) for each in tuples})
    for vid in range(cars, cars + wild_cars):
        tuples += _anywhere(r, vid, minutes * 60, places)
    return asked(r, tuples, minutes * 60, cars + wild_cars)


def asked(r: random.Random, tuples: list[dict[str, int]], end: int, cars: int) -> list[dict[str, int]]:
    """With questions for balances, all in any order."""
    for qid, (time, vid) in enumerate(_askers(r, tuples, end, cars)):
        tuples.append({**UNUSED, "type": 2, "time": time, "vid": vid, "qid": qid, "xway": r.choice((-1, 0, 7))})
    r.shuffle(tuples)
    return tuples


def _anywhere(r: random.Random, vid: int, end: int, places: Sequence[tuple[int, int]]) -> Iterator[dict[str, int]]:
    time, been = r.choice((0, 29, 59, 60, r.randrange(end))), [(0, *r.choice(places), 7)]
    pauses = r.choice(
        ((30,) * 6 + (29, 31, 60), (30, 30, 0, 0, 1, 5, 15, 45, 60, 61, 90), (30, 30, 60, 61, 62, 601, 300))
    )
    lingers = r.random()
    while time < end:
        lane, road, seg, pos = been[-1]
        chance = r.random()
        if chance < 0.7 * lingers:
            pass
        elif chance < 0.75:
            lane, seg = r.choice((0, 1, 2, 2, 3, 4)), (_next(seg, road) if r.random() < 0.5 else seg)
            pos = r.choice((7, 7, r.randrange(5000)))
        elif chance < 0.9:
            lane, road, seg, pos = r.choice(been[-4:])
        else:
            lane, (road, seg), pos = r.choice((0, 0, 1, 2, 4)), r.choice(places), r.choice((7, 7, r.randrange(5000)))
        been.append((lane, road, seg, pos))
        yield _report(time, vid, r.choice((0, 0, 0, 0, 0, 0, 0, 20, 40)), road, lane, seg, seg * 5280 + pos)
        time += r.choice(pauses)


def _askers(r: random.Random, reports: Sequence[dict[str, int]], end: int, cars: int) -> Iterator[tuple[int, int]]:
    for report in r.sample(reports, len(reports) // 10):
        yield report["time"] + r.choice((0, 0, 0, 1, 31, 200)), report["vid"]
    for _ in range(20):
        yield r.randrange(end), r.randrange(cars + 5)


def _car(r: random.Random, vid: int, end: int, roads: int, segments: Sequence[int]) -> Iterator[dict[str, int]]:
    """Journeys of a car, one after the other: it gets on by the ramp, or goes on where it left, or was never seen."""
    time, road, lane = r.randrange(end // 2), r.randrange(roads), r.choice((0, 0, 0, 0, 1, 4))
    while time < end:
        left, stood, where = False, False, None
        for report in _journey(r, vid, road, lane, time, segments):
            if report["time"] < end:
                yield report
            time, left, stood, where = report["time"], report["lane"] == 4, report["pos"] == where, report["pos"]
        time += r.choice((61, 61, 70, 90, 120, 300, 700))
        lane = 0
        if r.random() < 0.3 and not stood:  # a car that stands still cannot be elsewhere
            road = r.randrange(roads)
        elif left and r.random() < 0.4:
            lane = r.choice((0, 1, 2, 4))
            time = report["time"] + r.choice((61, 90) if lane == 4 else (5, 20, 30, 61, 90))


def _journey(
    r: random.Random, vid: int, road: int, lane: int, time: int, segments: Sequence[int]
) -> Iterator[dict[str, int]]:
    seg, pos, slow, stuck = r.choice(segments), 0, r.random() < 0.9, 0
    for step in range(r.randrange(1, 12)):
        if stuck:
            stuck -= 1
        else:
            lane = r.choice((1, 1, 2, 3)) if step else lane
            if r.random() < 0.3:
                seg = _next(seg, road)
            pos = seg * 5280 + (7 if road < 2 and r.random() < 0.2 else r.randrange(8, 5000))
            stuck = r.choice((0, 0, 0, 0, 0, 0, 3, 4, 5, 8))
        spd = r.choice((0, 20, 39, 40)) if not stuck else r.choice((0,) * 20 + (5,))
        yield _report(time, vid, spd if slow else r.choice((40, 41, 60, 80)), road, lane, seg, pos)
        time += r.choice((30,) * 30 + (29, 15, 60, 45))
        if lane == 4:
            return
    if r.random() < 0.7:
        seg = _next(seg, road) if r.random() < 0.3 else seg
        yield _report(time, vid, 10, road, 4, seg, seg * 5280 + 5000)


def _next(seg: int, road: int) -> int:
    return min(max(seg + (1 if road % 2 == 0 else -1), 0), 99)


def _report(time: int, vid: int, spd: int, road: int, lane: int, seg: int, pos: int) -> dict[str, int]:
    where = {"xway": road // 2, "dir": road % 2, "lane": lane, "seg": seg, "pos": pos}
    return {**UNUSED, "type": 0, "time": time, "vid": vid, "spd": spd, **where}


def as_table(tuples: Sequence[dict[str, int]]) -> pa.Table:
    """As it lies in files, of any seconds."""
    columns = {name: [each[name] for each in tuples] for name in FIELDS}
    ts = [each["time"] * 1_000_000 for each in tuples]
    return pa.table([pa.array(ts, pa.int64()).cast(INPUT.field(0).type), *columns.values()], schema=INPUT)
