"""A play emits what the reference answers for the same epochs, idle sources and tables, and counts what was late.

The reference knows nothing of restarts and slots, so a play that has some must give the same results as one without.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import testing as t
from headrace.difference import difference
from headrace.testing.play_steps import EpochStep, PlayStep
from tests.oracle.test_local import seeds

LATENESS = 3
COLUMNS = {"k": "string", "v": "int64"}
A, B = (t.source(name, COLUMNS, lateness=f"{LATENESS} seconds") for name in ("a", "b"))
ZONES = t.table("zones", {"k": "string", "zone": "int64"}, [("x", 0)])
Rows = list[tuple[int, str | None, int]]

QUERIES: dict[str, Callable[[], hr.Stream]] = {
    "windows": lambda: A.union(B).aggregate(by=["k"], window="10 seconds", every="5 seconds", n="count(*)", s="sum(v)"),
    "outer": lambda: A.join(B, on="l.k = r.k and l.v <= r.v", within=("5 seconds", "8 seconds"), how="full"),
    "count": lambda: A.join(B, on="l.k = r.k", last=3),
    "sessions": lambda: A.aggregate(by=["k"], session="4 seconds", n="count(*)").map("k", "n").union(B.map("k", n="v")),
    "asof": lambda: A.asof(B, by=["k"], how="left"),
    "distinct": lambda: A.union(B).distinct(by=["k"], within="6 seconds"),
    "table": lambda: A.union(B).join(ZONES, on="l.k = r.k", how="left"),
}


def random_steps(r: random.Random, joined: bool) -> list[PlayStep]:
    steps: list[PlayStep] = []
    for number in range(r.randint(2, 6)):
        if r.random() < 0.4:
            steps.append(t.restart(slots=r.choice([None, 1, 2, 3])))
        given: dict[str, Any] = {name: random_rows(r, number) for name in ("a", "b") if r.random() < 0.8}
        idle = [name for name in ("a", "b") if name not in given and r.random() < 0.5]
        tables = (
            {"zones": [(k, r.randrange(3)) for k in "xy" if r.random() < 0.7]} if joined and r.random() < 0.4 else {}
        )
        steps.append(t.epoch(idle=idle, tables=tables, **given))
    return steps


def random_rows(r: random.Random, number: int) -> Rows:
    times = (number * 6 + r.randrange(-6, 9) for _ in range(r.randrange(6)))
    return [(time, r.choice(["x", "y", None]), r.randrange(4)) for time in times]


def as_table(rows: Rows) -> pa.Table:
    ts, k, v = ([row[i] for row in rows] for i in range(3))
    times = pa.array([second * 1_000_000 for second in ts], pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "k": pa.array(k, pa.string()), "v": pa.array(v, pa.int64())})


def answer(query: hr.Stream, epochs: list[EpochStep], end: bool) -> pa.Table:
    """The answer of the reference, which is told of epochs, idle sources and tables in its own way."""
    zones, versions = [("x", 0)], []
    for each in epochs:
        zones = list(each.tables.get("zones", zones))  # type: ignore[arg-type]
        columns = {
            "k": pa.array([k for k, _ in zones], pa.string()),
            "zone": pa.array([z for _, z in zones], pa.int64()),
        }
        versions.append(pa.table(columns))
    arrived = [{name: as_table(rows) for name, rows in each.sources.items()} for each in epochs]  # type: ignore[arg-type]
    joins = {"versions": [{"zones": version} for version in versions]} if "zone" in query.columns else {}
    return hr.reference(query, arrived, end, idle=[list(each.idle) for each in epochs], **joins)


def late_tuples(epochs: list[EpochStep], name: str) -> list[int]:
    """By epoch, for a source that is never idle: counted in plain Python."""
    largest, found = float("-inf"), []
    for each in epochs:
        times = [row[0] for row in each.sources.get(name, [])]  # type: ignore[index, union-attr]
        found.append(sum(time < largest - LATENESS for time in times))
        largest = max([largest, *(time for time in times if time >= largest - LATENESS)])
    return found


@pytest.mark.parametrize("query", QUERIES)
@seeds(3)
def test_a_play_is_the_reference(query: str, seed: int) -> None:
    r = random.Random(f"{query} {seed}")
    stream = QUERIES[query]()
    steps, end = random_steps(r, "zone" in stream.columns), r.random() < 0.7
    played = t.play(stream, [*steps, *([t.end()] if end else [])], slots=r.choice([1, 2, 3]))
    epochs = [step for step in steps if isinstance(step, EpochStep)]
    told = difference(answer(stream, epochs, end), pa.concat_tables(step.results for step in played))
    assert told is None, told


@seeds(3)
def test_late_tuples_are_counted_in_their_step(seed: int) -> None:
    r = random.Random(seed)
    rows = [random_rows(r, number) for number in range(6)]
    steps = [step for each in rows for step in (t.epoch(a=each), t.restart())]
    played = t.play(A, steps)
    assert [step.late for step in played[::2]] == late_tuples(steps[::2], "a")  # type: ignore[arg-type]
    assert Counter(step.late for step in played[1::2]) == Counter({0: 6})
