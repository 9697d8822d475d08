"""The benchmark of headrace's growth: one quantity doubles, the others stay, and the exponent of the effect is fitted.

    y = c * x ** e, so e = 0: does not grow, e = 1: grows in proportion

The number of keys grows with the windows, so that a tuple always finds one match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headrace_bench import workload
from headrace_bench.measure import Spread
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Report, Series, number
from headrace_bench.running import OK, Outcome, run_once, scratch
from headrace_bench.systems import HEADRACE
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams

SIDES = ("left", "right")
MEASURED = 8  # epochs
TENTHS = 10
FIXED = "operators, little data"


@dataclass(frozen=True)
class Point:
    """A case at one point of an axis, with the outcomes of all rounds."""

    x: float
    case: Case
    outcomes: tuple[Outcome, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.outcomes) and all(o.status == OK for o in self.outcomes)

    def figure(self, name: str) -> Spread:
        return Spread.of(getattr(o, name) for o in self.outcomes)

    @property
    def work(self) -> float:
        """Return the seconds of processing per second of the streams."""
        return self.case.streams.rate * len(self.case.streams.sides) / self.figure("tuples_per_second").median


@dataclass(frozen=True)
class Axis:
    name: str
    points: tuple[Point, ...]

    def exponent(self, figure: str) -> float | None:
        good = [p for p in self.points if p.ok]
        return fitted([p.x for p in good], [_value(p, figure) for p in good]) if len(good) > 1 else None


FIGURES = ("tuples_per_second", "work", "cpu_per_million", "peak_mb")
SHOWN = ("tuples/s", "work", "CPU per tuple", "memory")


def _value(point: Point, figure: str) -> float:
    return point.work if figure == "work" else point.figure(figure).median


def fitted(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the exponent of a power law, fitted by least squares to the logarithms.

    >>> round(fitted([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def join(rate: int, within: int, seconds: float, operators: int = 1, slots: int = 2, measured: int = MEASURED) -> Case:
    warm = round(within / seconds) + 1
    streams = Streams(SIDES, rate, seconds, warm + measured, 2 * rate * within, gap=10.0 * within)
    query = Query("join", on="l.key = r.key", within=within, operators=operators)
    return Case("join", streams, query, warm, slots=slots)


def aggregate(groups: int, rate: int = 20_000) -> Case:
    streams = Streams(("stream",), rate, 2, 6 + MEASURED, groups, gap=100.0)
    return Case("aggregate", streams, Query("aggregate", window=10, every=2), 6)


def axes(quick: bool) -> list[Axis]:
    steps, rate = range(6), 4_000
    if quick:
        return [_axis("operators", [(n, join(200, 4, 2, operators=n, measured=3)) for n in (1, 2)])]
    return [
        _axis("window (s)", [(5 * 2**i, join(rate, 5 * 2**i, 2.5)) for i in steps]),
        _axis("rate (tuples/s)", [(2_000 * 2**i, join(1_000 * 2**i, 10, 2)) for i in steps]),
        _axis("groups", [(2_000 * 2**i, aggregate(2_000 * 2**i)) for i in steps]),
        _axis("epoch (s)", [(0.5 * 2**i, join(rate, 16, 0.5 * 2**i)) for i in steps]),
        _axis("operators", [(n, join(rate, 10, 2, operators=n)) for n in (1, 2, 4, 8)]),
        _axis("slots", [(n, join(5 * rate, 10, 2, slots=n)) for n in (1, 2)]),
    ]


def _axis(name: str, cases: Sequence[tuple[float, Case]]) -> Axis:
    return Axis(name, tuple(Point(float(x), case) for x, case in cases))


def little(operators: int, measured: int) -> Case:
    """Return a case of epochs with hardly any data, whose duration is their fixed cost."""
    return join(100, 5, 1, operators=operators, measured=measured)


def run(options: Options) -> Report:
    found = [_measured(axis, options) for axis in options.wanted(axes(options.quick))]
    chain, epochs = ((1, 2), 5) if options.quick else ((1, 2, 4, 8), 150)
    fixed = _measured(_axis(FIXED, [(n, little(n, epochs)) for n in chain]), options)
    endurance = _endurance(options)
    data = {"axes": [_json(axis) for axis in found], "fixed": _json(fixed), "endurance": endurance}
    grids = [_grid(axis) for axis in found] + [_exponents(found), _fixed_grid(fixed), _endurance_grid(endurance)]
    notes = [
        "work: seconds of processing for a second of the streams; memory: peak of all processes",
        "exponent e of y = c * x ** e, least squares over logarithms of the medians",
    ]
    return Report("growth", "Growth of headrace", notes, grids, data, _panels(found))


def _measured(axis: Axis, options: Options) -> Axis:
    outcomes: dict[float, list[Outcome]] = {point.x: [] for point in axis.points}
    for turn in range(options.rounds):
        for point in axis.points if turn % 2 == 0 else reversed(axis.points):
            outcome = _once(point.case)
            outcomes[point.x].append(outcome)
            rate = "" if outcome.tuples_per_second is None else f", {number(outcome.tuples_per_second)} tuples/s"
            options.say(f"{axis.name} {point.x:g}, round {turn + 1} of {options.rounds}: {outcome.status}{rate}")
    return Axis(axis.name, tuple(Point(p.x, p.case, tuple(outcomes[p.x])) for p in axis.points))


def _once(case: Case) -> Outcome:
    with scratch("data") as folder:
        workload.write(case.streams, folder)
        return run_once(HEADRACE, case, folder)


def _endurance(options: Options) -> dict[str, Any]:
    """Run many small epochs, an hour's worth at one per second. Memory must not grow with their number."""
    epochs = 10 if options.quick else 3_600
    case = Case("endurance", **_many(epochs), limit=3_600)
    options.say(f"endurance: {epochs:,} epochs")
    outcome = _once(case)
    course = outcome.memory_course
    # after the heaps have filled
    late = list(zip(range(1, TENTHS + 1), course, strict=True))[TENTHS // 5 :] if course else []
    exponent = fitted([x for x, _ in late], [y for _, y in late]) if late else None
    return {"epochs": epochs, "status": outcome.status, "memory_mb": course, "exponent": exponent}


def _many(epochs: int) -> dict[str, Any]:
    case = join(100, 5, 1, measured=epochs)
    return {"streams": case.streams, "query": case.query, "warm": case.warm}


# --- showing -------------------------------------------------------------------------------------------------------


def _grid(axis: Axis) -> Grid:
    rows = [_row(point) for point in axis.points]
    return Grid(axis.name, [f">{axis.name}", ">tuples/s", ">spread", ">work", ">CPU s/M", ">memory"], rows)


def _row(point: Point) -> list[str]:
    if not point.ok:
        return [f"{point.x:g}", next((o.status for o in point.outcomes if o.status != OK), "not run"), "", "", "", ""]
    rate = point.figure("tuples_per_second")
    spread = f"{number(rate.least)} .. {number(rate.most)}"
    cpu, memory = (point.figure(name).median for name in ("cpu_per_million", "peak_mb"))
    return [f"{point.x:g}", number(rate.median), spread, number(point.work), number(cpu), f"{memory:,.0f} MB"]


def _fixed_grid(axis: Axis) -> Grid:
    """Return the milliseconds per epoch, and the increase per operator."""
    rows, first = [], axis.points[0]
    for point in axis.points:
        if not point.ok:
            rows.append([f"{point.x:g}", *_row(point)[1:2], "", ""])
            continue
        spread = _per_epoch(point)
        more = (spread.median - _per_epoch(first).median) / (point.x - first.x) if point is not first else None
        text = f"{spread.least:.0f} .. {spread.most:.0f}"
        rows.append([f"{point.x:g}", f"{spread.median:.0f}", text, "" if more is None else f"{more:.0f}"])
    tuples = first.case.streams.per_epoch
    title = f"fixed cost: milliseconds per epoch of {tuples} tuples, all of its writes and logs included"
    return Grid(title, [">stateful operators", ">ms", ">spread", ">for each further"], rows)


def _per_epoch(point: Point) -> Spread:
    """Return the milliseconds per epoch."""
    return Spread.of(1000 * point.case.streams.per_epoch / (o.tuples_per_second or 1) for o in point.outcomes)


def _exponents(found: Sequence[Axis]) -> Grid:
    rows = [[axis.name, *(_text(axis.exponent(figure)) for figure in FIGURES)] for axis in found]
    return Grid("fitted exponents", ["with", *(f">{name}" for name in SHOWN)], rows)


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def _endurance_grid(endurance: dict[str, Any]) -> Grid:
    course = endurance["memory_mb"]
    title = (
        f"memory over {endurance['epochs']:,} epochs of one run, by tenths (MB), and its exponent over the last eight"
    )
    if not course:
        return Grid("memory over many epochs", [""], [[f"{endurance['status']}, too short to be cut into tenths"]])
    headings = [f">{i}" for i in range(1, TENTHS + 1)]
    return Grid(title, [*headings, ">e"], [[*(f"{mb:,.0f}" for mb in course), _text(endurance["exponent"])]])


def _json(axis: Axis) -> dict[str, Any]:
    points = [
        {"x": p.x, "case": p.case.describe(), "rounds": [asdict(o) for o in p.outcomes]}
        | ({figure: _value(p, figure) for figure in FIGURES} if p.ok else {})
        for p in axis.points
    ]
    return {"axis": axis.name, "points": points, "exponents": {f: axis.exponent(f) for f in FIGURES}}


def _panels(found: Sequence[Axis]) -> list[Panel]:
    return [_panel(axis) for axis in found]


def _panel(axis: Axis) -> Panel:
    good = [p for p in axis.points if p.ok]
    xs = [p.x for p in good]
    rates = [p.figure("tuples_per_second") for p in good]
    shown = zip(FIGURES, SHOWN, strict=True)
    exponents = {figure: f"{name}, e = {_text(axis.exponent(figure))}" for figure, name in shown}
    series = [
        Series(
            exponents["tuples_per_second"], xs, *([getattr(r, n) for r in rates] for n in ("median", "least", "most"))
        ),
        Series(f"{exponents['peak_mb']} (MB)", xs, [p.figure("peak_mb").median for p in good]),
    ]
    return Panel(f"with {axis.name}", axis.name, "tuples/s, MB", series)
