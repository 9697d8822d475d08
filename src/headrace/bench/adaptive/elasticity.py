"""Groups that move until slots have equal work: the busiest slot over the mean, one reorganisation after another.

By tuples: an aggregate over skewed keys in the real engine; loads are counted from its input and from the layout that each
epoch had, not taken from the controller. By pairs: what a join that compares all pairs of a group would have to do,
nL * nR, from counts of the same kind of keys, driven through the functions that the controller calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.adaptive import claims, local
from headrace.bench.adaptive.claims import Claim, Found
from headrace.bench.adaptive.local import EVERY
from headrace.bench.options import Options
from headrace.bench.report import Grid, Panel, Series
from headrace.control import elastic
from headrace.control.policy import Policy
from headrace.routing.hashing import groups_of
from headrace.routing.layout import Diagonal, Split, from_json
from headrace.testing import LocalRun
from headrace.workloads import BModel, Workload

GROUPS, SLOTS, TURNS = 60, 4, 5
BY_TUPLES, BY_PAIRS = 0.9, 0.8  # bias of the keys
ENOUGH = Policy().worth / 2
Counts = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Size:
    rate: int  # tuples per second and epoch of the aggregate
    window: int  # tuples of a side, of which pairs are counted


FULL = Size(5_000, 900_000)
QUICK = Size(500, 50_000)


@dataclass(frozen=True)
class Course:
    """The busiest slot over the mean, at the beginning and after each reorganisation."""

    name: str
    ratios: list[float]


def counts(keys: Any) -> Counts:
    """Tuples by group."""
    found = groups_of(pa.table({"key": keys}), ["key"], GROUPS)
    return np.bincount(found, minlength=GROUPS).astype(np.float64)


# --- by tuples: the engine -----------------------------------------------------------------------------------------


def by_tuples(name: str, rate: int, owner: Sequence[int] | None = None) -> Course:
    """From the table that hashing gives, or from another."""
    workload = Workload(rate, BModel(BY_TUPLES), name="stream")
    tables = list(local.epochs([workload], (TURNS + 1) * EVERY))

    def begin(run: LocalRun) -> None:
        if owner is not None:
            run.driver.control.layouts[run.plan.operators[0].name] = Diagonal(tuple(owner), SLOTS)

    # a median needs the tuples themselves, so slots get tuples and not partial results
    query = local.stream("stream").aggregate(by=["key"], window="1 second", middle="median(value)")
    found = local.drive(query, tables, begin=begin, slots=SLOTS, groups=GROUPS)
    loads = [counts(each["stream"]["key"]) for each in tables]
    layouts = [from_json(layout) for layout in local.layouts(found)]
    turns = range(0, len(tables), EVERY)
    return Course(name, [_ratio(layouts[turn], np.sum(loads[turn : turn + EVERY], axis=0)) for turn in turns])


def _ratio(layout: object, load: Counts) -> float:
    assert isinstance(layout, Diagonal)
    return elastic.imbalance(elastic.slot_loads(layout.owner, layout.splits, load.tolist(), SLOTS))


# --- by pairs: the functions ---------------------------------------------------------------------------------------


def by_pairs(window: int, seed: int = 1) -> list[Course]:
    """Hashing alone, moves of groups, and moves with hot groups split."""
    keys = BModel(BY_PAIRS)
    left, right = (counts(keys.draw(np.random.default_rng([seed, side]), window)) for side in (0, 1))
    fixed = _ratio(Diagonal.even(GROUPS, SLOTS), left * right)
    return [
        Course("pairs, hashing alone", [fixed] * (TURNS + 1)),
        Course("pairs, groups move", reorganised(left, right, split=False)),
        Course("pairs, hot groups split", reorganised(left, right, split=True)),
    ]


def reorganised(left: Counts, right: Counts, *, split: bool) -> list[float]:
    """As the controller does it, on loads that stay as they are."""
    load, state = (left * right).tolist(), (left + right).tolist()
    sides = list(zip(left.tolist(), right.tolist(), strict=True))
    owner, splits = list(Diagonal.even(GROUPS, SLOTS).owner), tuple[Split, ...]()
    ratios = [elastic.imbalance(elastic.slot_loads(owner, splits, load, SLOTS))]
    for _ in range(TURNS):
        splits = elastic.splits_for(splits, sides, load, owner, SLOTS) if split else ()
        for move in elastic.moves_by_gain(owner, splits, load, state, SLOTS, Policy().moves, ENOUGH):
            owner[move.group] = move.target
        ratios.append(elastic.imbalance(elastic.slot_loads(owner, splits, load, SLOTS)))
    return ratios


def run(options: Options) -> Found:
    size = QUICK if options.quick else FULL
    found = [by_tuples("tuples, from hashing", size.rate), by_tuples("tuples, from one slot", size.rate, [0] * GROUPS)]
    found += by_pairs(size.window)
    for each in found:
        options.say(f"elasticity: {each.name}: {each.ratios[0]:.2f} to {each.ratios[-1]:.2f} x the mean")
    data = {"size": asdict(size), "groups": GROUPS, "slots": SLOTS, "courses": [asdict(each) for each in found]}
    return Found(_claims(found), [_grid(found)], [_panel(found)], data, _notes(size))


def _claims(found: Sequence[Course]) -> list[Claim]:
    from_hashing, from_one, hashing, moved, split = found
    last = "busiest slot over the mean after 5 reorganisations"
    return [
        claims.at_most(f"{last}, by tuples, from hashing", 1.1, from_hashing.ratios[-1], " x"),
        claims.at_most(f"{last}, by tuples, from one slot", 1.1, from_one.ratios[-1], " x"),
        claims.within("the same by pairs under hashing alone", 1.9, 0.1, hashing.ratios[-1], " x"),
        claims.at_most("the same by pairs when groups move", 1.4, moved.ratios[-1], " x"),
        claims.at_most("the same by pairs when hot groups are split", 1.15, split.ratios[-1], " x"),
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
        f" (windows of {size.window:,} a side); loads by tuples are counted from the input of the epochs after each"
        " reorganisation, with the layout that they had.",
    ]
