"""Layouts as adversary: at every epoch each operator gets any layout that the controller may choose, independently.

Operators that share a stage have one layout between them; the queries mostly share one key, so that many do. The adversary
also restarts the run and changes slots and strategies. A canary below shows that it finds a broken layout.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.compile import STRATEGIES, compile_query
from headrace.control.policy import Policy
from headrace.difference import difference
from headrace.operators import Operator
from headrace.reference import reference
from headrace.routing import Diagonal, Layout
from headrace.stream import Stream, node_of
from headrace.task.epoch import Epoch
from headrace.testing import LocalRun, table_stream

from .driving import Driven, drive, random_layouts
from .strategies import AGGREGATES, SECOND, Case, KeyedMaker, OuterFirstMaker, cut, make_case

TRIED = 100  # in make test
LONG = 1_000
OPERATORS = ("outer_join", "time_join", *AGGREGATES, "distinct", "asof", "union", "union", "map", "each")


@functools.cache
def keyed(seed: int) -> Case:
    """A query in which operators share slots, in every epoch or in some."""
    return make_case(
        f"layouts-{seed}",
        (*OPERATORS, "nway_join", "nway_join") if seed % 5 == 4 else OPERATORS,
        most=60,
        depth=(3, 3, 4) if seed % 2 else (2, 3, 3, 4),
        maker=OuterFirstMaker if seed % 2 else KeyedMaker,
        suitable=lambda case: bool(sharing(case)),
    )


def sharing(case: Case) -> set[str]:
    """The operators that share the slots of another, or may do so in an epoch."""
    return {o.name for o in compile_query([node_of(case.query)]).operators if o.follows or o.colocate_with}


def strategies_of(seed: int) -> tuple[str, ...]:
    """The strategies of the lives of a run, one after the other; each of several is the first in some runs."""
    found = (("subquery",), ("subquery",), ("query", "operator"), STRATEGIES)[seed % 4]
    first = seed // 4 % len(found)
    return (*found[first:], *found[:first])


def trouble(seed: int) -> str | None:
    """The difference between the run under the adversary and the reference; None: there is none."""
    case = keyed(seed)
    r = random.Random(seed)
    arrived = cut(case.tables, r.choice([3, 4, 6]), seed)
    strategies = strategies_of(seed)
    layouts = random_layouts(seed)
    options = {"groups": r.choice([None, 3, 7]), "strategies": strategies, "layouts": layouts}
    found = drive(case.query, arrived, seed, reopen=0.2, change_slots=0.4, **options)
    text = difference(reference(case.query, epochs=arrived), found)
    return None if text is None else f"seed {seed}: {text}\n{case!r}"


def first_trouble(seeds: range) -> tuple[int, str] | None:
    """The first seed whose answer is wrong, with what is wrong."""
    return next(((seed, found) for seed in seeds if (found := trouble(seed)) is not None), None)


@pytest.mark.parametrize(
    "tens", [pytest.param(tens, marks=pytest.mark.thorough if tens else ()) for tens in range(TRIED // 10)]
)
def test_any_layouts(tens: int) -> None:
    found = first_trouble(range(tens * 10, tens * 10 + 10))
    assert found is None, found[1]


@pytest.mark.long
def test_a_thousand_graphs() -> None:
    found = first_trouble(range(LONG))
    assert found is None, found[1]


@pytest.mark.thorough
def test_stages_are_shared_by_all_kinds_of_operators() -> None:
    """Otherwise the adversary would have nothing to break."""
    kinds = Counter(name.split("-")[0] for seed in range(TRIED) for name in sharing(keyed(seed)))
    assert kinds.keys() >= {"alone", "aggregate", "distinct", "asof", "join"}, kinds


@pytest.mark.thorough
def test_every_kind_of_layout_is_drawn_under_every_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adversary that runs above, as it draws: split groups and rectangles of joins, groups anywhere for the others."""
    drawn: Counter[tuple[str, str]] = Counter()
    now = ""
    open_run, draw = Driven.open, random_layouts

    def open_noted(run: Driven, slots: int) -> None:
        nonlocal now
        now = run.options["strategies"][run.lives % len(run.options["strategies"])]
        open_run(run, slots)

    def noted(*given: Any) -> Callable[[Operator, int, int], Layout | None]:
        choose = draw(*given)

        def choose_noted(operator: Operator, groups: int, slots: int) -> Layout | None:
            layout = choose(operator, groups, slots)
            split = isinstance(layout, Diagonal) and layout.grids
            drawn[now, "split" if split else type(layout).__name__] += 1
            return layout

        return choose_noted

    monkeypatch.setattr(Driven, "open", open_noted)
    monkeypatch.setattr(f"{__name__}.random_layouts", noted)
    found = first_trouble(range(36))
    assert found is None, found[1]
    for strategy in STRATEGIES:
        for kind in ("split", "Diagonal", "Rectangles"):
            assert drawn[strategy, kind] >= 3, drawn


# --- a canary: the adversary must find this fault within fifty graphs ------------------------------------------------


def elsewhere(layout: Layout) -> Layout:
    assert isinstance(layout, Diagonal)
    return replace(layout, owner=tuple((owner + 1) % layout.slots for owner in layout.owner))


@pytest.mark.thorough
def test_a_follower_with_a_layout_of_its_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(epoch: Epoch) -> dict[str, Layout]:
        plan, found = epoch.plan, dict(epoch.layouts)
        for name, leader in plan.leaders.items():
            shared = epoch.layouts[leader].handed_on() if name != leader else epoch.layouts[leader]
            found[name] = elsewhere(shared) if plan.by_name[name].follows.startswith("alone") else shared
        return found

    monkeypatch.setattr(Epoch, "layout_of", property(stale))
    assert first_trouble(range(50)) is not None


@pytest.mark.thorough
def test_followers_that_see_a_part_of_a_hot_group_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Diagonal, "gathers", property(lambda layout: True))
    monkeypatch.setattr(Diagonal, "handed_on", Diagonal.undivided)
    assert first_trouble(range(50)) is not None


# --- what trials found -----------------------------------------------------------------------------------------------


def rows_of(seed: int, seconds: int) -> pa.Table:
    r = random.Random(seed)
    times = sorted(r.randrange(10 * SECOND) + seconds * SECOND for _ in range(40))
    return pa.table({"ts": pa.array(times).cast(TS_TYPE), "k": [r.randrange(10) for _ in times]})


DOWNSTREAM: dict[str, Callable[[Stream, Stream], Stream]] = {
    "time windows": lambda j, a: j.aggregate(by=["k"], window="10 seconds", n="count(*)", m="count(w)"),
    "order": lambda j, a: j.aggregate(by=["k"], window="10 seconds", n="list(w)"),
    "count windows": lambda j, a: j.aggregate(by=["k"], last=3, every=1, n="count(w)"),
    "sessions": lambda j, a: j.aggregate(by=["k"], session="1 second", n="count(*)"),
    "distinct": lambda j, a: j.distinct(by=["k"], within="2 seconds"),
    "top": lambda j, a: j.top(2, by=["k"], order="w desc", window="5 seconds"),
    "top of sessions": lambda j, a: j.top(1, by=["k"], order="w", session="1 second"),
    "asof": lambda j, a: a.asof(j, by=["k"], how="left"),
    "join": lambda j, a: j.join(a, on="l.k = r.k", within="1 second"),
    "a union with another layout": lambda j, a: j.union(
        a.aggregate(by=["k"], window="2 seconds", w="max(k)").map("k", "w")
    ).distinct(by=["k"], within="2 seconds"),
}


@pytest.mark.parametrize("name", DOWNSTREAM)
@pytest.mark.parametrize("pinned", ["join-1", "alone-1", "aggregate-1"])
def test_an_outer_join_with_its_groups_elsewhere(name: str, pinned: str, tmp_path: Path) -> None:
    """The join and the tuples without a match may each have any layout; what is downstream has one of the two."""
    epochs = [{"a": rows_of(n, 10 * n), "b": rows_of(100 + n, 10 * n)} for n in range(4)]
    a, b = (table_stream(rows_of(0, 0).slice(0, 0), name=side, lateness="10 seconds") for side in "ab")
    joined = a.join(b, on="l.k = r.k", within="1 second", how="left").map(k="l_k", w="r_k")
    query = DOWNSTREAM[name](joined, a)
    names = {o.name for o in compile_query([node_of(query)]).operators if not o.follows}
    policy = Policy(pinned={pinned: dict.fromkeys(range(64), 1)} if pinned in names else {}, every=1)
    run = LocalRun(query, tmp_path / "state", slots=2, policy=policy)
    for tables in epochs:
        run.epoch(tables)
    run.end()
    assert difference(reference(query, epochs=epochs), run.results()) is None
    run.close()
