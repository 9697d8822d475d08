"""A hot key with half of all tuples: comparing its pairs is the work, and a hash table of groups assigns it to one
slot.

At full speed on Spark: the controller, which spreads the key's group, compared with a static table, and at a lower rate
with Spark's own join. In this process: a hot key that changes, and how soon the spread group follows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pyarrow as pa

from headrace.control import group_moves
from headrace.routing import Diagonal, layout_from_json
from headrace.routing.hashing import groups_of
from headrace.state.manifest import Manifest
from headrace_bench import claims, compare, summary, systems
from headrace_bench.adaptive import local
from headrace_bench.claims import Claim, Found
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Series
from headrace_bench.running import JudgedCase, run_case
from headrace_bench.systems import System
from headrace_bench.task import Case, Query
from headrace_bench.workload import Streams
from headrace_demo.workloads import Hot, Uniform, Workload

SHARE = 0.5  # of all tuples
KEYS = 100_000  # number of other keys
ON = "l.key = r.key and l.x + r.x > 19990"  # true of one pair in two million
IMPLIED = "l.x > 9990 and r.x > 9990"  # because x is below 10,000
MOVING_ON = "l.key = r.key and l.value + r.value > 1990"
WATCHED = ("busiest", "task_milliseconds", "milliseconds")
LIMIT = 300  # seconds for a run; a run that takes longer has a rate but no rank
GROUPS, SLOTS = 64, 4  # for the part in this process


@dataclass(frozen=True)
class Size:
    rate: int  # tuples per second and epoch of each stream
    beside_spark: int  # the same for the comparison with Spark
    within: int  # seconds
    warm: int  # epochs
    measured: int
    moving: int  # tuples per second of each stream with the changing hot key
    every: int  # epochs between two changes
    moves: int


FULL = Size(80_000, 5_000, 4, 20, 20, 200, 20, 5)
QUICK = Size(100, 60, 2, 8, 4, 60, 10, 2)


# --- at full speed -------------------------------------------------------------------------------------------------


def case(name: str, rate: int, size: Size, times: int = 1) -> Case:
    """Return a case. `times` multiplies the number of epochs, for short epochs."""
    sides, warm = ("left", "right"), times * size.warm
    streams = Streams(sides, rate, 1, warm + times * size.measured, KEYS, 10.0 * size.within, seed=7, hot=SHARE)
    query = Query("join", on=ON, within=size.within, ranges=IMPLIED)
    return Case(name, streams, query, warm, limit=LIMIT, full=size.within + 1)


def watched(system: System) -> System:
    """Return the system with records of its slots, which are meaningful even on a busy machine."""
    return replace(system, options={**system.options, "watch": True})


def speed_up(measured: JudgedCase) -> float | None:
    """Return how many times faster the controller is than a static table."""
    found = {line.system: line for line in summary.lines(measured) if line.ok}
    ours, other = (found.get(system.name) for system in (systems.HEADRACE, systems.HEADRACE_STATIC))
    return ours.rate / other.rate if ours and other else None


# --- a hot key that moves ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """The reorganisations after each change until the group was spread, and the busiest slot's pairs relative to the
    mean, by epoch.
    """

    followed: list[int]
    adapted: list[float]
    static: list[float]


def moving(size: Size) -> Course:
    seconds = size.every * (size.moves + 1)
    streams = [
        Workload(size.moving, Uniform(KEYS), hot=Hot(SHARE, every=size.every), name=side) for side in local.SIDES
    ]
    tables = list(local.epochs(streams, seconds))
    left, right = (local.stream(side) for side in local.SIDES)
    query = left.join(right, on=MOVING_ON, within=f"{size.within} seconds")
    layouts = _layouts(local.drive(query, tables, slots=SLOTS, groups=GROUPS))
    moves = range(size.every, seconds, size.every)
    hot = [group(streams[0].hot_key(move) or 0) for move in moves]
    followed = [following(layouts, move, move + size.every, g) for move, g in zip(moves, hot, strict=True)]
    pairs = [np.multiply(*(_counts(each[side]) for side in local.SIDES)) for each in tables]
    even = Diagonal.even(GROUPS, SLOTS)
    return Course(
        followed,
        [_ratio(layout, load) for layout, load in zip(layouts, pairs, strict=True)],
        [_ratio(even, load) for load in pairs],
    )


def following(layouts: Sequence[Diagonal], move: int, end: int, hot: int) -> int:
    """Return the reorganisations from a change until the group of the new hot key is spread over slots.

    If that does not happen before `end`, return one more than there were.
    """
    split = next((epoch for epoch in range(move, end) if hot in layouts[epoch].grid_of), None)
    return local.reorganisations(move, end) + 1 if split is None else local.reorganisations(move, split)


def group(key: int) -> int:
    return int(groups_of(pa.table({"key": [key]}), ["key"], GROUPS)[0])


def _layouts(found: Sequence[Manifest]) -> list[Diagonal]:
    layouts = [layout_from_json(layout) for layout in local.layouts(found)]
    return [layout for layout in layouts if isinstance(layout, Diagonal)]


def _counts(table: pa.Table) -> np.ndarray:
    return np.bincount(groups_of(table, ["key"], GROUPS), minlength=GROUPS).astype(np.float64)


def _ratio(layout: Diagonal, load: np.ndarray) -> float:
    return group_moves.imbalance(group_moves.slot_loads(layout.owner, layout.grids, load.tolist(), SLOTS))


# --- showing -------------------------------------------------------------------------------------------------------


def run(options: Options) -> Found:
    size = QUICK if options.quick else FULL
    ours = [watched(system) for system in (systems.HEADRACE, systems.HEADRACE_STATIC)]
    split = run_case(case("hot key", size.rate, size), ours, options.rounds, options.say)
    beside = case("hot key, beside Spark", size.beside_spark, size, times=4)
    spark = run_case(beside, [*ours, systems.SPARK], options.rounds, options.say, once=[systems.SPARK.family])
    moved = moving(size)
    options.say(f"hot key that moves: followed after {', '.join(map(str, moved.followed))} reorganisations")
    compared = compare.data([split, spark])["cases"]
    grids = [*compare.grids([split, spark]), _busiest(split), _grid(moved)]
    panels = [compare.panel(split), compare.panel(spark), _panel(moved, size)]
    data = {"size": asdict(size), "moving": asdict(moved), "speed_up": speed_up(split)}
    return Found(_claims(split, moved), grids, panels, data, _notes([split, spark], size), compared)


def _claims(measured: JudgedCase, moved: Course) -> list[Claim]:
    times, what = speed_up(measured), "throughput beside a static hash table"
    faster = claims.at_least(what, 1.5, times, " x") if times else Claim(what, "at least 1.5 x", "not measured", False)
    return [faster, claims.at_most("reorganisations until the split follows a hot key", 3, max(moved.followed))]


def _busiest(measured: JudgedCase) -> Grid:
    """Return the work of the slots for each watched system."""
    found = [line for line in summary.lines(measured) if line.ok and all(o.per_epoch for o in line.outcomes)]
    rows = [
        [line.system, *(f"{statistics.median(o.per_epoch[name] for o in line.outcomes):.3g}" for name in WATCHED)]
        for line in found
    ]
    headings = ["system", ">busiest slot x the mean", ">tasks' CPU ms", ">epoch, ms"]
    return Grid("hot key: processor time of the slots, by epoch", headings, rows)


def _grid(moved: Course) -> Grid:
    rows = [[str(number), str(count)] for number, count in enumerate(moved.followed, start=1)]
    return Grid("hot key that moves: reorganisations until its group is split", [">move", ">after"], rows)


def _panel(moved: Course, size: Size) -> Panel:
    xs = range(len(moved.adapted))
    series = [Series("static table", xs, moved.static), Series("controller", xs, moved.adapted)]
    title = f"hot key that moves every {size.every} epochs, {SLOTS} slots"
    return Panel(title, "epoch", "pairs in the busiest slot over the mean", series, plain=True)


def _notes(measured: Sequence[JudgedCase], size: Size) -> list[str]:
    return [
        f"hot key: {ON}; {SHARE:.0%} of all tuples on one of {KEYS:,} keys, windows of {size.within} s,"
        f" {size.rate:,} tuples/s in each stream, an epoch a second of them, at full speed, 2 slots. Beside Spark it is"
        f" {size.beside_spark:,} tuples/s: the fixed cost of an epoch is then most of ours.",
        *compare.notes(measured),
    ]
