"""Moves of groups until slots have equal work: the busiest slot relative to the mean, after each reorganisation.

By tuples: an aggregate over skewed keys in the real engine. Loads are counted from its input and the layout of each
epoch, not taken from the controller. By pairs: the comparisons of a join, from counts of the same kind of keys,
processed by the functions that the controller calls. A nested loop compares all nL * nR pairs of a group. An equality
join compares only pairs of equal keys, the sum of nL * nR over the keys of a group, which is far more uneven because a
single key dominates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.control import group_moves
from headrace.control.policy import Policy
from headrace.routing import Diagonal, HotGroup, layout_from_json
from headrace.routing.hashing import groups_of
from headrace.testing import LocalRun
from headrace_bench import claims
from headrace_bench.adaptive import local
from headrace_bench.adaptive.local import EVERY
from headrace_bench.claims import Claim, Found
from headrace_bench.options import Options
from headrace_bench.report import Grid, Panel, Series
from headrace_demo.workloads import BModel, Workload

GROUPS, SLOTS, TURNS = 60, 4, 5
BY_TUPLES, BY_PAIRS = 0.9, 0.8  # bias of the keys
MILLION = 1_000_000
AFTER = f"busiest slot over the mean after {TURNS}"
ENOUGH = Policy().worth / 2
Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    rate: int  # tuples per second and epoch of the aggregate
    window: int  # tuples on each side of the join, whose pairs are counted


FULL = Size(5_000, 900_000)
QUICK = Size(500, 50_000)


@dataclass(frozen=True)
class Course:
    """The busiest slot relative to the mean, at the beginning and after each reorganisation."""

    name: str
    ratios: list[float]


def counts(keys: Any) -> Counts:
    """Return the number of tuples by group."""
    found = groups_of(pa.table({"key": keys}), ["key"], GROUPS)
    return np.bincount(found, minlength=GROUPS).astype(np.float64)


# --- by tuples: the engine -----------------------------------------------------------------------------------------


def by_tuples(name: str, rate: int, owner: Sequence[int] | None = None) -> Course:
    """Run the aggregate from the default table of groups, or from `owner`."""
    workload = Workload(rate, BModel(BY_TUPLES), name="stream")
    tables = list(local.epochs([workload], (TURNS + 1) * EVERY))

    def begin(run: LocalRun) -> None:
        if owner is not None:
            run.driver.control.layouts[run.plan.operators[0].name] = Diagonal(tuple(owner), SLOTS)

    # a median needs the tuples themselves, so slots receive no partials
    query = local.stream("stream").aggregate(by=["key"], window="1 second", middle="median(value)")
    found = local.drive(query, tables, begin=begin, slots=SLOTS, groups=GROUPS)
    loads = [counts(each["stream"]["key"]) for each in tables]
    layouts = [layout_from_json(layout) for layout in local.layouts(found)]
    turns = range(0, len(tables), EVERY)
    return Course(name, [_ratio(layouts[turn], np.sum(loads[turn : turn + EVERY], axis=0)) for turn in turns])


def _ratio(layout: object, load: Counts) -> float:
    assert isinstance(layout, Diagonal)
    return group_moves.imbalance(group_moves.slot_loads(layout.owner, layout.grids, load.tolist(), SLOTS))


# --- by pairs: the functions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """The tuples of each side by group, and the load of their pairs."""

    name: str
    left: Counts
    right: Counts
    load: Counts


def windows(name: str, window: int, keys: int, *, equal: bool) -> Pairs:
    """Return two windows of skewed keys. `equal`: count pairs of equal keys; otherwise all pairs of a group."""
    drawn = [BModel(BY_PAIRS, keys).draw(np.random.default_rng([1, side]), window) for side in (0, 1)]
    left, right = map(counts, drawn)
    if not equal:
        return Pairs(name, left, right, left * right)
    (l, nl), (r, nr) = (np.unique(side, return_counts=True) for side in drawn)
    both, i, j = np.intersect1d(l, r, assume_unique=True, return_indices=True)
    found = groups_of(pa.table({"key": both}), ["key"], GROUPS)
    load: Counts = np.bincount(found, weights=(nl[i] * nr[j]).astype(np.float64), minlength=GROUPS).astype(np.float64)
    return Pairs(name, left, right, load)


def reorganised(pairs: Pairs, *, split: bool) -> list[float]:
    """Return the ratios under the controller's functions with a constant load."""
    load, state = pairs.load.tolist(), (pairs.left + pairs.right).tolist()
    sides = list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
    owner, splits = list(Diagonal.even(GROUPS, SLOTS).owner), tuple[HotGroup, ...]()
    ratios = [group_moves.imbalance(group_moves.slot_loads(owner, splits, load, SLOTS))]
    for _ in range(TURNS):
        splits = group_moves.hot_groups_for(splits, sides, load, owner, SLOTS) if split else ()
        for move in group_moves.moves_by_gain(owner, splits, load, state, SLOTS, Policy().moves, ENOUGH):
            owner[move.group] = move.target
        ratios.append(group_moves.imbalance(group_moves.slot_loads(owner, splits, load, SLOTS)))
    return ratios


def by_pairs(pairs: Pairs) -> list[Course]:
    """Return the courses with moves only, and with hot groups spread as well. Both start with the default table."""
    return [
        Course(f"{pairs.name}, groups move", reorganised(pairs, split=False)),
        Course(f"{pairs.name}, hot ones split", reorganised(pairs, split=True)),
    ]


def run(options: Options) -> Found:
    size = QUICK if options.quick else FULL
    tuples = [by_tuples("tuples, from hashing", size.rate), by_tuples("tuples, from one slot", size.rate, [0] * GROUPS)]
    loads = [
        windows("equal keys of 1 M", size.window, MILLION, equal=True),
        windows("equal keys of 10 M", size.window, 10 * MILLION, equal=True),
        windows("all pairs, 10 M keys", size.window, 10 * MILLION, equal=False),
    ]
    pairs = [by_pairs(load) for load in loads]
    found = [*tuples, *(course for courses in pairs for course in courses)]
    for each in found:
        options.say(f"elasticity: {each.name}: {each.ratios[0]:.2f} to {each.ratios[-1]:.2f} x the mean")
    data = {"size": asdict(size), "groups": GROUPS, "slots": SLOTS, "courses": [asdict(each) for each in found]}
    made = [*_tuple_claims(tuples), *(claim for courses in pairs for claim in _pair_claims(*courses))]
    return Found(made, [_grid(found)], [_panel([*tuples, *pairs[0]])], data, _notes(size))


def _tuple_claims(found: Sequence[Course]) -> list[Claim]:
    return [claims.at_most(f"{each.name}: {AFTER}", 1.1, each.ratios[-1], " x") for each in found]


def _pair_claims(moved: Course, split: Course) -> list[Claim]:
    return [
        claims.within(
            f"{moved.name.split(', groups')[0]}: busiest slot under hashing alone", 1.9, 0.1, moved.ratios[0], " x"
        ),
        claims.at_most(f"{moved.name}: {AFTER}", 1.4, moved.ratios[-1], " x"),
        claims.at_most(f"{split.name}: {AFTER}", 1.15, split.ratios[-1], " x"),
    ]


def _grid(found: Sequence[Course]) -> Grid:
    rows = [[each.name, *(f"{ratio:.2f}" for ratio in each.ratios)] for each in found]
    headings = ["load", ">at first", *(f">{turn}" for turn in range(1, TURNS + 1))]
    return Grid("elasticity: the busiest slot over the mean, after each reorganisation", headings, rows)


def _panel(found: Sequence[Course]) -> Panel:
    series = [Series(each.name, range(TURNS + 1), each.ratios) for each in found]
    title = f"elasticity: {GROUPS} groups, {SLOTS} slots"
    return Panel(title, "reorganisations", "busiest slot over the mean", series, plain=True)


def _notes(size: Size) -> list[str]:
    return [
        f"elasticity: keys by the b-model, {BY_TUPLES} by tuples ({size.rate:,} of them an epoch), {BY_PAIRS} by pairs"
        f" (windows of {size.window:,} a side); loads by tuples are counted from the input of the epochs behind each"
        " reorganisation, with the layout that they had. Equal keys: pairs that an equality join compares; all pairs: of a group,"
        " as a nested loop does.",
    ]
