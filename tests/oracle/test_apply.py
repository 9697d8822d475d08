"""Splits and processors: whatever the cut, the slots, the layouts and the restarts, the answer is the sequential one."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar.types import TS_TYPE
from headrace.operators import apply
from headrace.state import merge_planning
from headrace.testing import table_stream

from .driving import random_layouts
from .strategies import AGGREGATES, SECOND, SPLITS, STATELESS, Case, Table, cut, make_case, make_table
from .test_local import check, counters, has_late, seeds

ONE = ("apply",)
MIXED = (*STATELESS, *SPLITS, *SPLITS, "apply", "time_join", *AGGREGATES, "distinct")


@seeds(100)
def test_a_processor_on_every_substream(seed: int) -> None:
    """Every fourth without caches."""
    options = {"cache": 0} if seed % 4 == 1 else {}
    check(make_case(f"apply-{seed}", ONE, depth=(1,)), seed, change_slots=0.3, **options)


@seeds(40)
def test_what_waits_is_written_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of any size are trimmed, and merged in between."""
    monkeypatch.setattr(apply, "WORTH", 0)
    monkeypatch.setattr(merge_planning, "FAN_IN", 2 + seed % 3)
    case = make_case(f"trimmed-{seed}", ONE, depth=(1, 2))
    check(case, seed, epochs=8, end=seed % 4 > 0, change_slots=0.3, layouts=random_layouts(seed) if seed % 2 else None)


@seeds(60)
def test_splits_among_other_operators(seed: int) -> None:
    check(make_case(f"splits-{seed}", MIXED), seed, change_slots=0.3)


@seeds(24)
def test_disorder_beyond_the_lateness(seed: int) -> None:
    """Late tuples are left out, and counted, wherever the epochs are cut."""
    epochs = 2 + seed % 5
    operators = ("apply", "apply", "each", *STATELESS)
    case = make_case(
        f"late-splits-{seed}",
        operators,
        depth=(1, 2, 2),
        disorder=9 * SECOND,
        suitable=lambda case: seed % 8 == 0 or has_late(case, epochs, seed, 0),
    )
    arrived = cut(case.tables, epochs, seed)
    check(case, seed, epochs=epochs, reopen=0.5, end=seed % 2 == 0, change_slots=0.3, check=counters(case, arrived))


class Ending(hr.Processor):
    """Puts out what it has when the input ends."""

    schema = pa.schema([("ts", TS_TYPE), ("n", pa.int64())])
    tables = {"n": hr.StateTable(key=["one"], columns=pa.schema([("one", pa.int64()), ("n", pa.int64())]))}

    def process(self, tuples: pa.Table, state: Any) -> None:
        known = state["n"].get(pa.table({"one": [1]}))["n"][0].as_py() or 0
        state["n"].put(pa.table({"one": [1], "n": [known + len(tuples)]}))

    def end(self, time: datetime.datetime, state: Any) -> pa.Table:
        return pa.table({"ts": pa.array([time], TS_TYPE), "n": state["n"].rows()["n"]})


@seeds(12)
def test_what_the_end_puts_out_is_never_late(seed: int) -> None:
    """The watermark may be far past what was split: a filter stands before it, and others go on."""
    r = random.Random(seed)
    table = Table("a", make_table(seed, 60, lateness=SECOND, span=60 * SECOND), "1 second")
    first = table_stream(table.rows, lateness=table.lateness, name="a").filter(f"epoch(ts) % 600 < {r.choice([5, 20])}")
    ended = first.split(r.choice([1, 3]), by=["k"]).apply(Ending())
    behind = {
        "aggregate": lambda: ended.aggregate(window="4 seconds", total="sum(n)"),
        "apply": lambda: ended.split(2, by=["n"]).apply(Ending()),
        "distinct": lambda: ended.distinct(by=["n"], within="1 second"),
    }[r.choice(["aggregate", "apply", "distinct"])]()
    check(Case(behind, {"a": table}, frozenset()), seed, epochs=r.choice([1, 3, 6]), change_slots=0.3)
