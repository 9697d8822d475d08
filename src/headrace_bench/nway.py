"""The benchmark of joins of three streams within 60 s: headrace's join of several streams, and chains of two joins with
the same answer in headrace, Spark and Flink.

A result is a combination of one tuple of each stream, all within the window of each other. A tuple has about one match
in a window of each stream that it is compared with, so there is about one result per tuple, and two pairs of the first
join for three tuples.
"""

from __future__ import annotations

from headrace_bench import compare, systems
from headrace_bench.measure import Spread
from headrace_bench.options import Options
from headrace_bench.report import Report, size
from headrace_bench.running import JudgedCase, run_case
from headrace_bench.summary import Line
from headrace_bench.task import Case, Query
from headrace_bench.workload import AREA, Streams

SIDES = ("a", "b", "c")
WITHIN = 60  # seconds
LIMIT = 300  # seconds for a run without an equality
ONE_KEY, TWO_KEYS, BAND = "one key", "two keys", "band"
KINDS = (ONE_KEY, TWO_KEYS, BAND)
STATE = "state"  # name of a figure that processes count


def conditions(kind: str, window: int) -> tuple[str, str]:
    """Return the condition of a and b, and that of c with them, for windows of this many tuples of each stream."""
    near = reach(window)
    return {
        ONE_KEY: ("a.key = b.key", "a.key = c.key"),
        TWO_KEYS: ("a.key = b.key", "b.part = c.part"),
        BAND: (f"abs(a.x - b.x) <= {near!r}", f"abs(b.x - c.x) <= {near!r}"),
    }[kind]


def reach(window: int) -> float:
    """Return the difference of numbers within which there is one match in such a window."""
    return AREA / window / 2


def case(kind: str, rate: int, seconds: int, measured: int, within: int = WITHIN, heap: str = "12g") -> Case:
    """Return a case with `rate` tuples per second in each stream and epochs of `seconds`."""
    window, warm, band = rate * within, round(within / seconds) + 1, kind == BAND
    streams = Streams(
        SIDES,
        rate,
        seconds,
        warm + measured,
        window,
        gap=10.0 * within,
        reach=1.0 if band else None,
        parts=window if kind == TWO_KEYS else 0,
    )
    joins = conditions(kind, window)
    query = Query("nway", joins=joins, equality=not band, within=within, near=reach(window) if band else 0)
    name = f"{kind}, {within} s windows of {window:,}, epochs of {streams.per_epoch:,}"
    return Case(name, streams, query, warm, heap, LIMIT if band else 600, facts={"kind": kind})


def cases(quick: bool) -> list[Case]:
    if quick:
        return [case(kind, 200, 2, 4, within=10, heap="1g") for kind in KINDS]
    return [case(ONE_KEY, 10_000, 10, 12), case(TWO_KEYS, 10_000, 10, 12), case(BAND, 4_000, 10, 12)]


def contenders(each: Case, options: Options) -> list[systems.System]:
    """Return the systems of a case. One variant of Spark is enough to show that it refuses a join without an equality."""
    ours, flink = [systems.HEADRACE, systems.HEADRACE_CHAIN], [systems.FLINK] if options.flink else []
    every = [systems.SPARK, systems.SPARK_NEWEST, systems.SPARK_ROCKSDB_NEWEST]
    few = options.quick or not each.query.equality
    return [*ours, *(every[:1] if few else every), *flink]


def state(measured: JudgedCase, line: Line) -> float | None:
    """Return the mean bytes of state over the measured epochs, in the median round, if the system reports them."""
    found = [outcome.per_epoch.get(STATE) for outcome in line.outcomes]
    known = [each for each in found if each is not None]
    return Spread.of(known).median if known else None


def run(options: Options) -> Report:
    found = [
        run_case(each, contenders(each, options), options.rounds, options.say, once=_once(each))
        for each in options.wanted(cases(options.quick))
    ]
    return reported(found)


def _once(each: Case) -> list[str]:
    """Return the families with a single round: Flink compares all pairs of a join without an equality in one task."""
    return [] if each.query.equality else [systems.FLINK.family]


def reported(found: list[JudgedCase]) -> Report:
    extra = compare.Extra("state", "state_bytes", state, size)
    notes = compare.notes(
        found,
        "a result: one tuple of each stream, all within the window; a chain of two joins needs a further condition for"
        " that: the third tuple is within the window of both others",
        "state: mean over the measured epochs; headrace: blocks in the checkpoint; Spark: its memoryUsedBytes, with RocksDB"
        " and its files; Flink: the completed checkpoints of these epochs, if there were any",
        "Spark needs an equality in every join of streams; Flink: without one, each join is on a constant, in one task",
    )
    title = "Joins of three streams within 60 s, at full speed: one join, and chains of two"
    panels = [compare.panel(measured) for measured in found]
    return Report("nway", title, notes, compare.grids(found, extra), compare.data(found, extra), panels)
