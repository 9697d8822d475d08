"""The benchmark of joins without an equality: any predicate over time windows. Spark rejects them; Flink runs them in
one task.

Pairs are those within the windows, whether they are compared or not. Constants are chosen so that a tuple finds about
as many matches in a large window as in a small one.
"""

from __future__ import annotations

import math

from headrace_bench import compare, systems
from headrace_bench.options import Options
from headrace_bench.report import Panel, Report, Series
from headrace_bench.running import CORES, JudgedCase, run_case
from headrace_bench.summary import Line, lines
from headrace_bench.task import Case, Query
from headrace_bench.workload import AREA, Streams, admitted_pairs

SIDES = ("left", "right")
WITHIN = 10  # seconds
SHARE = 0.05  # share of a window per epoch
FILL = round(1 / SHARE) + 1
PARTNERS = 0.2  # approximate matches per tuple
LIMIT = 120  # seconds for a run; a run that takes longer has a rate but no rank
DISTANCE, OVERLAP, BAND, ARBITRARY = "distance", "overlap", "band", "arbitrary"
PREDICATES = (DISTANCE, OVERLAP, BAND, ARBITRARY)
LOOKED_UP = (OVERLAP, BAND)  # kinds for which not every pair is compared


def predicate(kind: str, window: int) -> str:
    """Return a predicate in the SQL that headrace, Flink and Spark have in common."""
    share = PARTNERS / window
    if kind == DISTANCE:
        square = share * AREA**2 / math.pi
        return f"(l.x - r.x) * (l.x - r.x) + (l.y - r.y) * (l.y - r.y) < {square!r}"
    if kind == BAND:
        return f"abs(l.x - r.x) <= {share * AREA / 2!r}"
    if kind == OVERLAP:  # intervals [x, z]
        return "l.x < r.z and r.x < l.z"
    return f"abs(l.x * r.y - l.y * r.x) < {share * AREA**2 / 4!r}"  # a bilinear form, for which no order or box helps


def ranges(kind: str, window: int) -> str:
    """Return inequalities that the predicate implies, with a margin for rounding."""
    reach = PARTNERS / window * AREA
    return {BAND: f"r.x > l.x - {reach!r} and r.x < l.x + {reach!r}", OVERLAP: "l.x < r.z"}.get(kind, "")


def case(kind: str, window: int, measured: int, settled: int = 0, heap: str = "6g") -> Case:
    """Return a case with `window` tuples on each side, `measured` epochs, and `settled` further epochs that only warm
    up.
    """
    warm = FILL + settled
    streams = Streams(
        SIDES, window / WITHIN, WITHIN * SHARE, warm + measured, 1000, 10.0 * WITHIN, reach=PARTNERS / window * AREA / 2
    )
    query = Query("join", on=predicate(kind, window), equality=False, within=WITHIN, ranges=ranges(kind, window))
    facts = {"kind": kind, "window": window}
    return Case(f"{kind}, windows of {window:,}", streams, query, warm, heap, LIMIT, full=FILL, facts=facts)


def sized(kind: str, window: int) -> Case:
    """Return a case with enough epochs: small epochs are short, and a virtual machine needs about 20 s to compile the
    code.
    """
    if window < 100_000:
        return case(kind, window, 100, 200)
    if window < 1_000_000:
        return case(kind, window, 60, 100) if kind in LOOKED_UP else case(kind, window, 20)
    return case(kind, window, 6)


def pairs_per_core(measured: JudgedCase, line: Line) -> float:
    """Return the pairs per second and core, in the median round."""
    case = measured.case
    pairs = admitted_pairs(case.streams, WITHIN, case.warm, case.streams.epochs)
    tuples = (case.streams.epochs - case.warm) * case.streams.per_epoch
    return line.rate * pairs / tuples / CORES


def run(options: Options) -> Report:
    contenders = [systems.HEADRACE, *([systems.FLINK] if options.flink else [])]
    if options.quick:
        cases = [case(ARBITRARY, 4_000, 4, heap="1g")]
    else:
        cases = [sized(kind, window) for window in (10_000, 20_000, 100_000) for kind in PREDICATES]
        cases += [sized(kind, 1_000_000) for kind in (PREDICATES if options.full else LOOKED_UP)]
        cases = options.wanted(cases)
    refusing = [*contenders, systems.SPARK]
    found = [
        run_case(each, contenders if number else refusing, options.rounds, options.say, once=_once(each))
        for number, each in enumerate(cases)
    ]
    extra = compare.Extra("pairs/s/core", "pairs_per_second_per_core", pairs_per_core)
    notes = compare.notes(
        found, "Flink: an interval join needs an equality; joined on a constant, it is one task's work"
    )
    title = "Joins without an equality, at full speed, epochs of 5 % of the window"
    return Report("theta", title, notes, compare.grids(found, extra), compare.data(found, extra), _panels(found))


def _once(case: Case) -> list[str]:
    """Return the families with a single round. Flink takes minutes for each kind, so only one kind gets all rounds."""
    return [] if case.facts["kind"] == ARBITRARY else [systems.FLINK.family]


def _panels(found: list[JudgedCase]) -> list[Panel]:
    return [_panel(kind, mine) for kind in PREDICATES if (mine := [m for m in found if m.case.facts["kind"] == kind])]


def _panel(kind: str, found: list[JudgedCase]) -> Panel:
    """Return a chart of pairs per second and core over the size of the window."""
    series: dict[str, list[tuple[int, float]]] = {}
    for measured in found:
        for line in lines(measured):
            if line.measured:
                point = (measured.case.facts["window"], pairs_per_core(measured, line))
                series.setdefault(line.system, []).append(point)
    drawn = [Series(name, [x for x, _ in points], [y for _, y in points]) for name, points in series.items()]
    return Panel(kind, "window (tuples)", "pairs/s per core", drawn)
