"""Sources of partitions against a plain model: the watermark is that of the slowest partition that is awake.

The model walks the epochs once more in plain Python: which tuples are late, where the watermark is, who is idle.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.difference import difference
from headrace.driver.position import Position
from headrace.errors import EngineError
from headrace.reference import reference
from headrace.sources.protocol import PhysicalWindow
from headrace.state.manifest import TopicsState
from headrace.stream import Stream
from headrace.support.event_time import NEVER
from headrace.task import watermarks
from headrace.task.in_process import execute_locally
from headrace.task.watermarks import PartitionClock, SourceClock
from headrace.testing import LocalRun, table_stream

SECOND = 1_000_000
LATENESS = 2 * SECOND
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64())])


def rows(times: list[int]) -> pa.Table:
    return pa.table([pa.array(times, SCHEMA.field(0).type), [time % 3 for time in times]], schema=SCHEMA)


def query(table: pa.Table) -> Stream:
    source = table_stream(table, time="ts", lateness="2 seconds", name="calls")
    return source.aggregate(by=["k"], window="4 seconds", every="2 seconds", n="count(*)")


class Model:
    """One machine, one tuple at a time."""

    def __init__(self) -> None:
        self.newest: dict[str, int | None] = {}
        self.idle: set[str] = set()
        self.watermark = NEVER
        self.late = 0
        self.accepted: list[int] = []

    def epoch(self, partitions: list[str], quiet: set[str], given: dict[str, list[int]]) -> None:
        for name in partitions:
            self.newest.setdefault(name, None)
        self.idle |= quiet
        before = self.watermark
        for name, times in given.items():
            for time in times:
                self.idle.discard(name)
                if time < before:
                    self.late += 1
                else:
                    self.accepted.append(time)
                    known = self.newest[name]
                    self.newest[name] = time if known is None or time > known else known
        awake = [self.newest[name] for name in self.newest if name not in self.idle]
        known_times = [time for time in self.newest.values() if time is not None]
        if awake:
            if None not in awake:
                self.watermark = max(before, min(awake) - LATENESS)  # type: ignore[type-var]
        elif known_times:
            self.watermark = max(before, max(known_times) - LATENESS)


class Engine:
    def __init__(self, folder: Path, slots: int) -> None:
        self.run = LocalRun(query(rows([])), folder / "state", slots=slots)

    def epoch(self, partitions: list[str], quiet: set[str], given: dict[str, list[int]], splitters: int) -> None:
        driver: Any = self.run.driver
        driver.ledgers = {
            "calls": SimpleNamespace(partitions=partitions, state=TopicsState(), reader=None, unit="messages")
        }
        windows: list[list[PhysicalWindow]] = [[] for _ in range(splitters)]
        for name, times in given.items():  # pieces of a partition may be read by several tasks
            for number in range(splitters):
                part = times[len(times) * number // splitters : len(times) * (number + 1) // splitters]
                windows[number].append(PhysicalWindow("calls", rows(part), partition=name))
        execute = partial(execute_locally, windows=windows, storage=self.run.store.storage)
        driver.run_epoch(Position("local"), execute, idle_partitions={"calls": sorted(quiet)})


def times_of(rng: random.Random, newest: dict[str, int], name: str) -> list[int]:
    found = []
    for _ in range(rng.randrange(8)):
        newest[name] = newest.get(name, rng.randrange(10 * SECOND)) + rng.randrange(2 * SECOND)
        found.append(max(newest[name] - rng.randrange(4 * SECOND), 0))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_partitions_go_by_the_slowest_that_is_awake(seed: int, tmp_path: Path):
    rng, model, newest = random.Random(seed), Model(), dict[str, int]()
    engine, partitions = Engine(tmp_path, 1 + seed % 3), [f"t/{n}" for n in range(rng.randrange(1, 4))]
    for _ in range(14):
        if rng.random() < 0.15:
            partitions.append(f"t/{len(partitions)}")
        quiet = {name for name in partitions if rng.random() < 0.2}
        given = {name: times_of(rng, newest, name) for name in partitions if rng.random() < 0.7}
        model.epoch(partitions, quiet, given)
        engine.epoch(partitions, quiet, given, 1 + rng.randrange(3))
        found = engine.run.store.last.sources["calls"]
        assert (found.watermark, found.late) == (model.watermark, model.late)
        assert {n: p.largest for n, p in found.partitions.items()} == model.newest
        assert {n for n, p in found.partitions.items() if p.idle} == model.idle
        assert found.idle == (model.idle == set(partitions))
        if rng.random() < 0.2:
            engine.run.close()
            engine = Engine(tmp_path, 1 + rng.randrange(3))
    assert model.late or seed != 0, "the model is about late tuples too"
    last = engine.run
    engine.run.epoch(None, final=True)
    assert last.store.last.totals.accepted == len(model.accepted)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_ahead_of_what_between_partitions_makes_nothing_late(seed: int, tmp_path: Path):
    """Within a partition tuples are at most the lateness out of order: any cut, and each partition at a pace of its own."""
    rng = random.Random(seed)
    streams = {}
    for number in range(3):
        time, found = number * 100 * SECOND, []
        for _ in range(60):
            time += rng.randrange(SECOND)
            found.append(max(time - rng.randrange(LATENESS), 0))
        streams[f"t/{number}"] = found
    everything = rows([time for found in streams.values() for time in found])
    engine, left = Engine(tmp_path, 2), {name: list(found) for name, found in streams.items()}
    results = []
    while any(left.values()):
        given = {}
        for name in left:
            many = rng.randrange(15)
            given[name], left[name] = left[name][:many], left[name][many:]
        engine.epoch(list(streams), set(), given, 2)
    engine.run.epoch(None, final=True)
    results.append(engine.run.results())
    assert engine.run.store.last.totals.late == 0
    assert difference(reference(query(everything)), pa.concat_tables(results)) is None


# --- one clock ----------------------------------------------------------------------------------------------------------


def moved(clock: SourceClock, **heard: int | None) -> SourceClock:
    return watermarks._moved(clock, heard, LATENESS)


def test_an_empty_partition_holds_the_watermark_until_it_is_idle():
    clock = SourceClock().with_partitions(["a", "b"])
    clock = moved(clock, a=50 * SECOND)
    assert clock.watermark == NEVER and clock.largest == 50 * SECOND and not clock.idle
    clock = moved(clock.silenced(["b"]))
    assert clock.watermark == 48 * SECOND and not clock.idle
    clock = moved(clock, b=10 * SECOND)
    assert clock.watermark == 48 * SECOND, "it never goes back"
    assert moved(clock, a=70 * SECOND).watermark == 48 * SECOND, "b is awake again"


def test_a_partition_that_is_added_begins_at_the_watermark():
    clock = moved(SourceClock().with_partitions(["a"]), a=50 * SECOND)
    clock = clock.with_partitions(["a", "b"])
    assert moved(clock, a=60 * SECOND).watermark == 48 * SECOND
    assert moved(clock, a=60 * SECOND, b=55 * SECOND).watermark == 53 * SECOND


def test_where_all_are_idle_none_holds_back_the_fastest():
    clock = moved(SourceClock().with_partitions(["a", "b"]), a=50 * SECOND, b=20 * SECOND)
    clock = moved(clock.silenced(["a", "b"]))
    assert clock.idle and clock.watermark == 48 * SECOND
    assert not moved(clock, b=None).idle, "who comes late speaks"


def test_tuples_of_a_partition_that_nobody_knows_are_an_error():
    with pytest.raises(EngineError, match=r"unknown partitions \['c'\]"):
        moved(SourceClock(partitions={"a": PartitionClock()}), c=1)


def test_how_far_ahead_is_believed_goes_by_the_largest_of_all():
    clock = moved(SourceClock().with_partitions(["a", "b"]), a=50 * SECOND)
    assert watermarks.accepts_until(clock, LATENESS, 5 * SECOND) == 55 * SECOND
