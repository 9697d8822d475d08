"""Band joins routed by ranges: the sequential answer for any bounds, slots and cut, through restarts and odd values."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.difference import difference
from headrace.operators import Operator
from headrace.reference import reference
from headrace.routing import Layout, Ranges, RangesRouter, Rectangles
from headrace.routing.by_range import SortedRows
from headrace.testing import LocalRun, table_stream

from .test_local import seeds

ODD = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e308, -1e308, 5e-324, None]
BANDS = {
    "abs(l.x - r.x) <= 0.75": True,
    "abs(l.x - r.y) < 3": True,
    "abs(l.x - r.x) <= 0": True,
    "abs(r.x - l.x) <= 0.1 and l.i <> r.i": True,
    "l.x between r.x and r.y": True,
    "r.x between l.x and l.y and l.i < r.i": True,
    "l.i between r.i and r.j": False,
    "l.t between r.t and r.u": False,
}


def rows(rng: random.Random, count: int) -> pa.Table:
    def double() -> float | None:
        return rng.choice(ODD) if rng.random() < 0.1 else round(rng.gauss(0, 3), rng.choice([1, 15]))

    whole = [rng.choice([None, rng.randint(-9, 9), rng.randint(-9, 9)]) for _ in range(2 * count)]
    return pa.table(
        {
            "ts": pa.array([rng.randrange(20) * 1_000_000 for _ in range(count)], TS_TYPE),
            "x": pa.array([double() for _ in range(count)], pa.float64()),
            "y": pa.array([double() for _ in range(count)], pa.float64()),
            "i": pa.array(whole[:count], pa.int32()),
            "j": pa.array(whole[count:], pa.int32()),
            "t": pa.array([rng.randrange(99) for _ in range(count)], TS_TYPE),
            "u": pa.array([rng.randrange(99) for _ in range(count)], TS_TYPE),
        }
    )


def some_bounds(rng: random.Random, doubles: bool) -> tuple[float, ...]:
    count = rng.choice([1, 2, 7, 80])
    drawn = [round(rng.gauss(0, 3), 2) if doubles else rng.randint(-9, 99) for _ in range(count)]
    return tuple(sorted(set(drawn)))


def any_layouts(rng: random.Random, doubles: bool) -> Callable[[Operator, int, int], Layout | None]:
    """Other ranges in every epoch, and sometimes a grid; each range is in some slots."""

    def choose(operator: Operator, groups: int, slots: int) -> Layout | None:
        if operator.band is None or rng.random() < 0.2:
            return None
        bounds = some_bounds(rng, doubles)[: slots - 1]
        grids, left = [], slots - len(bounds) - 1
        for _ in range(len(bounds) + 1):
            more = rng.randint(0, left)
            left -= more
            grids.append((1, 1 + more) if rng.random() < 0.5 else (1 + more, 1))
        return Ranges(bounds, tuple(grids), operator.band.points_side)

    return choose


def trouble(on: str, seed: int, folder: Path) -> str | None:
    """Every epoch has other ranges, under other slots, after a restart."""
    rng = random.Random(f"{on} {seed}")
    left, right = rows(rng, rng.choice([20, 90])), rows(rng, rng.choice([20, 90]))
    streams = [table_stream(t, lateness="1 minute", name=n) for t, n in ((left, "left"), (right, "right"))]
    window: dict[str, Any] = {"within": ("4 seconds", "2 seconds")} if seed % 3 else {"last": (9, 5)}
    query = streams[0].join(streams[1], on=on, **window)
    found = []
    cuts = sorted(rng.sample(range(1, 19), 3))
    for start, stop in zip([0, *cuts], [*cuts, 10**6], strict=True):
        run = LocalRun(query, folder, slots=rng.choice([1, 2, 3, 7]), layouts=any_layouts(rng, BANDS[on]))
        tables = {n: t.slice(start, stop - start) for n, t in (("left", left), ("right", right))}
        run.epoch(tables, splitters=rng.choice([1, 3]), final=stop == 10**6)
        found.append(run.results())
        run.close()
    return difference(reference(query), pa.concat_tables(_without_repeats(found)))


@pytest.mark.parametrize("on", BANDS)
@seeds(6)
def test_any_ranges_give_the_sequential_answer(on: str, seed: int, tmp_path: Path) -> None:
    assert trouble(on, seed, tmp_path) is None


def _without_repeats(tables: list[pa.Table]) -> list[pa.Table]:
    """A restart delivers the last epoch's results again; each run's sink began empty, so the first part is a repeat."""
    kept, before = [], 0
    for table in tables:
        kept.append(table.slice(before))
        before = table.num_rows - before
    return kept


def test_an_interval_is_read_only_where_it_can_reach(tmp_path: Path) -> None:
    """Ranges must save something: with narrow bands a slot reads little more than its part."""
    n = 4000
    x = np.linspace(0, 100, n)
    side = pa.table({"ts": pa.array(np.zeros(n, dtype=np.int64), TS_TYPE), "x": x})
    streams = [table_stream(side, name=name) for name in ("left", "right")]
    query = streams[0].join(streams[1], on="abs(l.x - r.x) <= 0.01", within="1 second")
    bounds = tuple(np.linspace(0, 100, 65)[1:-1].tolist())
    plan = query.plan(slots=8)
    plan = replace(plan, subqueries=(replace(plan.subqueries[0], router=RangesRouter(("r.x",), bounds, 1)),))
    run = LocalRun(query, tmp_path / "state", slots=8, plan=plan, bounded=True)
    run.epoch({"left": side, "right": side}, final=True)
    assert difference(reference(query), run.results()) is None
    sent: Any = run.store.last.work["counts"]["sent"]["join-1"]  # type: ignore[union-attr]
    assert sent[1] == n and n < sent[0] < 1.2 * n
    run.close()


# --- canaries ----------------------------------------------------------------------------------------------------------


def has_a_range_that_nobody_reads(patch: pytest.MonkeyPatch) -> None:
    rows_of = Ranges.rows

    def fewer(self: Ranges, block: SortedRows, slot: int, side: int) -> tuple[int, int]:
        return (0, 0) if slot and slot == self.slots - 1 else rows_of(self, block, slot, side)

    patch.setattr(Ranges, "rows", fewer)


def has_border_points_in_two_ranges(patch: pytest.MonkeyPatch) -> None:
    def points(self: SortedRows, low: float | None, high: float | None) -> tuple[int, int]:
        start = 0 if low is None else int(np.searchsorted(self.values, low, side="left"))
        stop = len(self.values) if high is None else int(np.searchsorted(self.values, high, side="right"))
        return start, stop

    patch.setattr(SortedRows, "points", points)


def ignores_the_extent(patch: pytest.MonkeyPatch) -> None:
    intervals = SortedRows.intervals
    patch.setattr(SortedRows, "intervals", lambda self, low, high: intervals(replace(self, extent=0.0), low, high))


def ignores_the_distance(patch: pytest.MonkeyPatch) -> None:
    intervals = SortedRows.intervals
    patch.setattr(SortedRows, "intervals", lambda self, low, high: intervals(replace(self, width=0.0), low, high))


@pytest.mark.parametrize(
    "canary",
    [has_a_range_that_nobody_reads, has_border_points_in_two_ranges, ignores_the_extent, ignores_the_distance],
)
def test_a_fault_is_found(canary: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        canary(patch)
        assert any(
            trouble(on, seed, tmp_path / f"{place} {seed}") for seed in range(6) for place, on in enumerate(BANDS)
        )


# --- bounds that follow the values -------------------------------------------------------------------------------------


def shares(run: LocalRun, layout: Layout, values: list[np.ndarray]) -> float:
    """How much busier than the mean the busiest slot is, by the tuples of both sides in its range."""
    assert isinstance(layout, Ranges)
    rows = [SortedRows(np.sort(each), 0.0, 0.05) for each in values]
    read = [sum(b - a for a, b in (layout.rows(rows[s], slot, s) for s in (0, 1))) for slot in range(layout.slots)]
    return max(read) / (sum(map(len, values)) / layout.slots)


@pytest.mark.parametrize("epochs", [90, pytest.param(3_600, marks=pytest.mark.long)])
def test_ranges_follow_values_that_drift(epochs: int, tmp_path: Path) -> None:
    """The state begins empty and without a sample. In an hour of epochs of one second, the values move by ten times
    their range.
    """
    rng = np.random.default_rng(5)
    per_epoch, slots = 800, 8
    empty = pa.table({"ts": pa.array([], TS_TYPE), "x": pa.array([], pa.float64())})
    streams = [table_stream(empty, name=name) for name in ("left", "right")]
    query = streams[0].join(streams[1], on="abs(l.x - r.x) <= 0.05", within="5 seconds")
    run = LocalRun(query, tmp_path, slots=slots)
    run.epoch()  # a poll that finds nothing
    held: list[list[np.ndarray]] = [[], []]
    worst, kinds = [], []
    for epoch in range(epochs):
        tables = {}
        for side, name in enumerate(("left", "right")):
            x = rng.random(per_epoch) * 100 + epoch * 1_000 / 3_600
            held[side] = [*held[side][-5:], x]
            times = np.sort(rng.integers(epoch * 10**6, (epoch + 1) * 10**6, per_epoch))
            tables[name] = pa.table({"ts": pa.array(times, TS_TYPE), "x": x})
        used = run.driver.layouts.plan_epoch(64, dict(run.store.last.operators))[1]["join-1"]  # type: ignore[union-attr]
        kinds.append(isinstance(used, Ranges))
        if kinds[-1]:
            worst.append(shares(run, used, [np.concatenate(side) for side in held]))
        run.epoch(tables)
    first = next(decision for decision in run.driver.control.history if decision.kind == "ranges")
    run.close()
    assert first.measured is not None and abs(first.measured - first.predicted) < 0.2
    assert all(kinds[10:]), "ranges within ten epochs"
    assert max(worst[5:]) <= 1.3, [round(each, 2) for each in worst]


def test_values_that_rise_like_times_get_a_grid(tmp_path: Path) -> None:
    """Whenever ranges are chosen, all later values are beyond the last of them."""
    rng = np.random.default_rng(5)
    empty = pa.table({"ts": pa.array([], TS_TYPE), "x": pa.array([], pa.float64())})
    streams = [table_stream(empty, name=name) for name in ("left", "right")]
    query = streams[0].join(streams[1], on="abs(l.x - r.x) <= 0.001", within="3 seconds")
    run = LocalRun(query, tmp_path, slots=8)
    for epoch in range(21):
        times = [np.sort(rng.integers(epoch * 10**6, (epoch + 1) * 10**6, 300)) for _ in range(2)]
        run.epoch(
            {
                name: pa.table({"ts": pa.array(t, TS_TYPE), "x": t / 1e6})
                for name, t in zip(("left", "right"), times, strict=True)
            }
        )
    used = run.driver.layouts.plan_epoch(64, dict(run.store.last.operators))[1]["join-1"]  # type: ignore[union-attr]
    run.close()
    assert isinstance(used, Rectangles)
