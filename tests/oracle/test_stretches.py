"""Operators that take tuples in sequence: slots share them out by stretches of event time, whatever the stretches are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace import sinks
from headrace.columnar.types import TS_TYPE
from headrace.difference import difference
from headrace.operators import Operator
from headrace.reference import reference
from headrace.routing import BOTH, Layout, Ranges
from headrace.routing.by_range import SortedRows
from headrace.stream import Stream
from headrace.task.outlet import Outlet
from headrace.task.slots import EpochSlot
from headrace.task.stretch_counts import StretchCounts
from headrace.testing import LocalRun, table_stream

from .test_local import seeds

SECOND = 1_000_000
Tables = dict[str, pa.Table]


def rows(rng: random.Random, count: int, span: int) -> pa.Table:
    times = sorted(rng.randrange(span) * SECOND // rng.choice([1, 2, 4]) for _ in range(count))
    for _ in range(count // 3):  # out of order
        a = rng.randrange(count)
        b = min(a + rng.randrange(9), count - 1)
        times[a], times[b] = times[b], times[a]
    values = [rng.randrange(5) for _ in times]
    return pa.table(
        {"ts": pa.array(times, TS_TYPE), "k": pa.array(values, pa.int64()), "n": pa.array(range(count), pa.int64())}
    )


def disorder(table: pa.Table) -> int:
    """Seconds by which tuples come behind earlier ones."""
    times = np.asarray(table["ts"].cast(pa.int64()))
    return int(np.max(np.maximum.accumulate(times) - times, initial=0)) // SECOND + 1


def case(rng: random.Random) -> tuple[Stream, Tables]:
    span = rng.choice([1, 4, 60])
    tables = {name: rows(rng, rng.choice([0, 30, 90]), span) for name in ("left", "right")}
    left, right = (
        table_stream(table, lateness=f"{disorder(table)} seconds", name=name) for name, table in tables.items()
    )
    if rng.random() < 0.5:  # a relayed count: one side comes through another stage
        right = right.distinct(by=["n"], within="1 day")
    return left.join(right, on="l.k = r.k", last=(rng.randint(1, 20), rng.randint(1, 20))), tables


def any_stretches(rng: random.Random, tables: Tables) -> Callable[[Operator, int, int], Layout | None]:
    def choose(operator: Operator, groups: int, slots: int) -> Layout | None:
        if not operator.name.startswith(("rank", "order")) or rng.random() < 0.3:
            return None
        times = [0, *(time for table in tables.values() for time in table["ts"].cast(pa.int64()).to_pylist())]
        bounds = sorted({rng.choice(times) for _ in range(rng.randrange(slots))})
        return Ranges(tuple(bounds), ((1, 1),) * (len(bounds) + 1), BOTH)

    return choose


def trouble(seed: int, folder: Path, *, chosen: bool = True) -> str | None:
    rng = random.Random(seed)
    query, tables = case(rng)
    sink = sinks.memory(ordered=bool(seed % 2))
    cuts = [0, *sorted(rng.sample(range(1, 90), 3)), 10**6]
    for start, stop in pairwise(cuts):  # every epoch under other slots, after a restart
        options: dict[str, Any] = {"layouts": any_stretches(rng, tables)} if chosen else {}
        run = LocalRun(query, folder, slots=rng.choice([1, 3, 8]), sink=sink, ordered=sink.ordered, **options)
        cut = {name: table.slice(start, stop - start) for name, table in tables.items()}
        run.epoch(cut, splitters=rng.choice([1, 3]), final=stop == 10**6)
        run.close()
    found = sink.table()
    found = query.schema.empty_table() if found is None else found
    if sink.ordered and found["ts"].to_pylist() != sorted(found["ts"].to_pylist()):
        return "results are not in order"
    return difference(reference(query), found)


@seeds(40)
def test_any_stretches_give_the_sequential_answer(seed: int, tmp_path: Path) -> None:
    assert trouble(seed, tmp_path) is None


@seeds(20)
def test_the_stretches_that_a_run_chooses_do_too(seed: int, tmp_path: Path) -> None:
    assert trouble(seed, tmp_path, chosen=False) is None


# --- canaries ----------------------------------------------------------------------------------------------------------


def loses_a_stretch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StretchCounts, "total", lambda self, operator, side: 0)


def counts_what_is_relayed_twice(patch: pytest.MonkeyPatch) -> None:
    """Every slot of the next stage passes the counts for later stages on, not one."""

    def everything(self: Outlet, slot: int) -> StretchCounts:
        return StretchCounts({**self._stretches.of, **stretches_for(self, slot).of})

    stretches_for = Outlet._stretches_for
    patch.setattr(Outlet, "_stretches_for", everything)


def forgets_what_is_relayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outlet, "pass_on", lambda self, stretches: None)


def forgets_what_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochSlot, "_rows_below", lambda self, block, side, time: 0)


def divides_one_time(patch: pytest.MonkeyPatch) -> None:
    points = SortedRows.points

    def fewer(self: SortedRows, low: float | None, high: float | None) -> tuple[int, int]:
        start, stop = points(self, low, high)
        return (start + 1, stop) if low is not None and stop > start else (start, stop)

    patch.setattr(SortedRows, "points", fewer)


@pytest.mark.parametrize(
    "canary",
    [
        loses_a_stretch,
        counts_what_is_relayed_twice,
        forgets_what_is_relayed,
        forgets_what_waits,
        divides_one_time,
    ],
)
def test_a_fault_is_found(canary: Callable[[pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        canary(patch)
        assert any(trouble(seed, tmp_path / str(seed)) is not None for seed in range(150))


# --- balance -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slots", "most"), [(8, 1.5), (64, 2.5)])
def test_no_slot_reads_much_more_than_its_share(
    slots: int, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second epoch on; nothing is known here about the first one. The last slot gets what comes later than
    expected.
    """
    read: Counter[tuple[int, int]] = Counter()
    now = 0
    waiting_rows = EpochSlot.waiting_rows

    def counted(slot: EpochSlot, side: int, schema: pa.Schema, groups: list[int] | None) -> pa.Table:
        found = waiting_rows(slot, side, schema, groups)
        read[now, slot.number] += found.num_rows
        return found

    monkeypatch.setattr(EpochSlot, "waiting_rows", counted)
    rng = np.random.default_rng(slots)
    per_epoch, epochs = 8_000, 5
    times = np.sort(rng.integers(0, epochs * 10 * SECOND, epochs * per_epoch))
    table = pa.table({"ts": pa.array(times, TS_TYPE), "k": rng.integers(0, 10**6, len(times))})
    streams = [table_stream(table, lateness="2 seconds", name=name) for name in ("left", "right")]
    query = streams[0].join(streams[1], on="l.k = r.k", last=10)
    run = LocalRun(query, tmp_path, slots=slots)
    for now in range(epochs):
        part = table.slice(now * per_epoch, per_epoch)
        run.epoch({"left": part, "right": part})
    run.close()
    for epoch in range(1, epochs):
        counts = [read[epoch, slot] for slot in range(slots)]
        assert max(counts) <= most * sum(counts) / slots, (epoch, counts)
