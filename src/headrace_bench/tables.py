"""The benchmark of common queries: points joined with a table of zones, outer joins, sessions.

A point is in about one of 5,000 zones. Boxes are two bands; circles are haversine distances, whose trigonometry an
index of boxes does not help directly. Epochs contain half a second of the given rate: 100,000 points/s with boxes,
2,000 with circles. A higher rate at full speed means that an epoch takes less than half a second. The ages of results
at exactly that rate are measured too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace_bench import compare, systems
from headrace_bench.feed import figures, run_live, words
from headrace_bench.options import Options
from headrace_bench.report import Grid, Report, number
from headrace_bench.running import JudgedCase, alternating, run_case
from headrace_bench.summary import lines
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams

MANY = 5_000  # zones
EPOCH = 0.5  # seconds
BOX = "l.x between r.x0 and r.x1 and l.y between r.y0 and r.y1"
HALF = "pow(sin(radians(r.zone_{0} - l.{0}) / 2), 2)"
HAVERSINE = (
    f"2 * 6371 * asin(sqrt({HALF.format('lat')}"
    f" + cos(radians(l.lat)) * cos(radians(r.zone_lat)) * {HALF.format('lon')})) <= r.radius"
)
PLANE = {"x": "x", "y": "y"}
DEGREES = {"lat": "40 + x / 1000", "lon": "y / 1000"}
POINTS = {"boxes": (BOX, PLANE, 100_000), "circles": (HAVERSINE, DEGREES, 2_000)}
WITHIN, GAP = 10, 30  # seconds


def points(shape: str, measured: int, warm: int = 4, zones: int = MANY, how: str = "inner", live: float = 0) -> Case:
    """Return a case of points. live: seconds per file, if files arrive in real time."""
    on, places, rate = POINTS[shape]
    streams = Streams(("points",), rate, live or EPOCH, warm + measured, 1000, gap=100.0, zones=zones)
    name = f"{shape}, {zones:,} zones, epochs of {streams.per_epoch:,}" + (", left" if how == "left" else "")
    strip = ("y", "y0", "y1") if shape == "boxes" else ()
    return Case(name, streams, Query("table", on=on, how=how, places=places, strip=strip), warm)


def partners(how: str, rate: int = 10_000, epoch: int = 10, measured: int = 8) -> Case:
    """Return a case of two streams, in which half of the left tuples have no match."""
    warm = WITHIN // epoch + 2
    streams = Streams(("left", "right"), rate, epoch, warm + measured, 30 * rate, gap=10.0 * WITHIN)
    query = Query("join", on="l.key = r.key", within=WITHIN, how=how)
    return Case(f"{how} join of two streams, epochs of {streams.per_epoch:,}", streams, query, warm)


def session(rate: int = 20_000, users: int = 100_000, epoch: int = 10, measured: int = 12) -> Case:
    warm = 2 * GAP // epoch
    streams = Streams(("clicks",), rate, epoch, warm + measured, users, gap=10.0 * GAP)
    query = Query("session", gap=GAP)
    return Case(f"sessions of {users:,} users, epochs of {streams.per_epoch:,}", streams, query, warm)


def cases(options: Options) -> list[Case]:
    if options.quick:
        return [points("circles", 3, zones=50), partners("left", 100), session(100, 50)]
    found = [points("boxes", 40), points("boxes", 40, how="left"), points("circles", 40)]
    return options.wanted([*found, partners("inner"), partners("left"), session()])


def run(options: Options) -> Report:
    contenders = [systems.HEADRACE, systems.SPARK]
    found = [run_case(each, contenders, options.rounds, options.say) for each in cases(options)]
    aged = [] if options.quick else _ages(options, contenders)
    title = "Points beside a table of zones, outer joins and sessions, at full speed"
    report = compare.reported("tables", title, found, *_ratios(found))
    grids = [*report.grids, *([_grid(aged)] if aged else [])]
    return Report("tables", title, report.notes, grids, {**report.data, "ages": aged}, report.panels)


def _ratios(found: Sequence[JudgedCase]) -> list[str]:
    """Return the time of headrace's left join relative to its inner join."""
    rates = {
        measured.case.name: line.rate
        for measured in found
        for line in lines(measured)
        if line.system == systems.HEADRACE.name and line.measured
    }
    inner = next((rate for name, rate in rates.items() if name.startswith("inner join")), None)
    left = next((rate for name, rate in rates.items() if name.startswith("left join")), None)
    return [f"a left join takes {inner / left:.2f} times what the inner join takes"] if inner and left else []


# --- ages -------------------------------------------------------------------------------------------------------------


def _ages(options: Options, contenders: Sequence[systems.System]) -> list[dict[str, Any]]:
    """Measure how old results are when they are delivered. Files hold 0.1 s of input and arrive in real time; epochs last 0.5 s."""
    found = []
    live = [points(shape, 200, warm=100, live=0.1) for shape in POINTS]
    for case in [c for c in live if not options.only or options.only in c.name]:
        for turn in range(options.rounds):
            for system in alternating(contenders, turn):
                age = run_live(system, case, "500 milliseconds")
                options.say(f"{case.name}, {system.name}: {words(age)}")
                found.append({"case": case.name, "system": system.name, "rate": case.streams.rate, **figures(age)})
    return found


def _grid(aged: Sequence[dict[str, Any]]) -> Grid:
    rows = [
        [
            each["case"],
            each["system"],
            number(each["rate"]),
            *(f"{each[q]:.2f}" if q in each else "" for q in ("p50", "p95", "p99")),
            "no result" if "missing" not in each else f"{each['missing']:,} missing" if each["missing"] else "",
        ]
        for each in aged
    ]
    return Grid("age of results in seconds", ["case", "system", ">tuples/s", ">p50", ">p95", ">p99", ""], rows)
