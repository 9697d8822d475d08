"""Exactness: whatever the cut, the slots, the layouts and the restarts, the answer is the sequential one.

One test per seed, so that a failing one can be run alone; HEADRACE_EXAMPLES=10 takes ten times as many. The fresh seeds
are others in every run; a failure names its seed, and HEADRACE_SEED repeats it.
"""

from __future__ import annotations

import datetime
import os
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.columnar import duck
from headrace.columnar.types import TS_TYPE
from headrace.compile import STRATEGIES
from headrace.difference import difference, unmatched_rows
from headrace.kernels.joins import pairs, theta_join
from headrace.operators import joins
from headrace.query import nodes
from headrace.reference import late_tuples, reference
from headrace.state import merge_planning
from headrace.stream import Stream, node_of
from headrace.task import outlet
from headrace.testing import table_stream

from .driving import SLOTS, Driven, drive, driven, random_layouts, shrink
from .strategies import AGGREGATES, SECOND, STATELESS, Case, Table, cut, make_case, make_table

MORE = int(os.environ.get("HEADRACE_EXAMPLES", "1"))
FRESH = 25
QUICK, FEW = 2, 6  # seeds of each test that `make unit` takes, and below which `make test` takes all


def seeds(count: int) -> Any:
    """`make test` takes a quarter of those beyond a few, `make soak` the others."""
    count *= MORE
    most = min(count, FEW + max(count - FEW, 0) // 4)

    def mark(seed: int) -> Any:
        return () if seed < QUICK else pytest.mark.thorough if seed < most else pytest.mark.long

    return pytest.mark.parametrize("seed", [pytest.param(seed, marks=mark(seed)) for seed in range(count)])


def same(expected: pa.Table, found: pa.Table, case: Any = "") -> None:
    assert found.schema.equals(expected.schema), f"{found.schema}\n{expected.schema}"
    text = difference(expected, found)
    assert text is None, f"{text}\n{case!r}"


def check(case: Case, seed: int, *, epochs: int | None = None, end: bool = True, **options: Any) -> pa.Table:
    """Run the case over a random cut; equal to the reference over the same epochs. A failing case is made small."""
    arrived = cut(case.tables, epochs or random.Random(seed).choice([1, 2, 3, 4, 6]), seed)
    expected = reference(case.query, epochs=arrived, end=end)
    found = drive(case.query, arrived, seed, end=end, **options)
    assert found.schema.equals(expected.schema)
    text = difference(expected, found)
    if text is not None:
        pytest.fail(explain(case, seed, arrived, text, end=end, **options))
    return found


def explain(case: Case, seed: int, arrived: list[dict[str, pa.Table]], text: str, *, end: bool, **options: Any) -> str:
    options.pop("check", None)

    def fails(epochs: list[dict[str, pa.Table]]) -> bool:
        expected = reference(case.query, epochs=epochs, end=end)
        return difference(expected, drive(case.query, epochs, seed, end=end, **options)) is not None

    few = shrink(arrived, fails)
    shown = "\n".join(f"epoch {n}, {name}: {t.to_pylist()}" for n, e in enumerate(few) for name, t in e.items())
    small = difference(reference(case.query, epochs=few, end=end), drive(case.query, few, seed, end=end, **options))
    return f"seed {seed}: {text}\n{case.query!r}\nwith few rows:\n{shown}\n{small}"


# --- the answer is the sequential one --------------------------------------------------------------------------------


def check_transparent(seed: int) -> None:
    case = make_case(seed)
    found = check(case, seed)
    same(reference(case.query), found, case)  # nothing was late: the cut does not matter


@seeds(150)
def test_any_query_any_cut_any_slots(seed: int) -> None:
    check_transparent(seed)


@pytest.mark.thorough
def test_any_query_fresh_seeds() -> None:
    first = int(os.environ.get("HEADRACE_SEED", random.SystemRandom().randrange(10**6, 10**9)))
    print(f"HEADRACE_SEED={first}")
    for seed in range(first, first + FRESH * MORE):
        check_transparent(seed)


@seeds(40)
def test_a_new_layout_at_every_epoch(seed: int) -> None:
    case = make_case(f"layout-{seed}")
    check(case, seed, epochs=4, reopen=0.1, change_slots=0.8, layouts=random_layouts(seed))


@seeds(30)
def test_joins_under_a_new_layout_at_every_epoch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(f"join-layout-{seed}", ("time_join", "time_join", "count_join", "filter"), depth=(1, 1, 2))
    if seed % 2:
        monkeypatch.setattr(theta_join, "FEWEST_SLICE_PAIRS", 20)
        monkeypatch.setattr(joins, "FEW_ROWS", 0)
    monkeypatch.setattr(pairs, "MOST_PAIRS", 7)
    check(case, seed, epochs=5, reopen=0.1, change_slots=0.8, layouts=random_layouts(seed))


@seeds(24)
def test_hot_groups_on_grids_of_their_own(seed: int) -> None:
    """Few keys, so that most pairs are in groups that are split, in another way at every epoch."""
    r = random.Random(f"hot-{seed}")
    tables = {n: make_table(r.getrandbits(32), r.choice([40, 150]), small=True) for n in ("a", "b")}
    a, b = (table_stream(rows, lateness="1 minute", name=n) for n, rows in tables.items())
    on = r.choice(["l.k = r.k", "l.k = r.k and l.x < r.x"])
    query = a.join(b, on=on, within="20 seconds") if seed % 3 else a.join(b, on=on, last=(30, 20))
    arrived = cut({n: Table(n, rows, "1 minute") for n, rows in tables.items()}, 4, seed)
    layouts = random_layouts(seed, grids=0.0)
    found = drive(query, arrived, seed, reopen=0.2, change_slots=0.5, groups=3, layouts=layouts)
    same(reference(query, epochs=arrived), found, query)


@seeds(45)
def test_any_strategy_and_another_after_a_restart(seed: int) -> None:
    strategies = STRATEGIES[seed % 3 :] + STRATEGIES[: seed % 3]
    check(make_case(f"strategy-{seed}"), seed, epochs=4, reopen=0.4, change_slots=0.5, strategies=strategies)


@seeds(25)
def test_seven_groups(seed: int) -> None:
    check(make_case(f"groups-{seed}", depth=(1, 2)), seed, groups=7)


@seeds(30)
def test_small_limits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are merged by twos, splitters flush after every window, messages and joins are cut into small pieces."""
    monkeypatch.setattr(merge_planning, "FAN_IN", 2)
    monkeypatch.setattr(outlet, "MOST_TUPLES_TOGETHER", 5)
    monkeypatch.setattr(joins, "FEW_ROWS", 0)
    monkeypatch.setattr(outlet, "LARGEST_BODY", 300)
    monkeypatch.setattr(theta_join, "FEWEST_SLICE_PAIRS", 20)
    monkeypatch.setattr(pairs, "MOST_PAIRS", 7)
    check(make_case(f"limits-{seed}"), seed, epochs=5, change_slots=0.3)


@seeds(25)
def test_aggregates_of_aggregates(seed: int) -> None:
    check(make_case(f"aggregates-{seed}", AGGREGATES, depth=(1, 2)), seed, change_slots=0.5, groups=5)


# --- late and rejected tuples ----------------------------------------------------------------------------------------


def counters(case: Case, arrived: list[dict[str, pa.Table]]) -> Any:
    fates = late_tuples(case.query, arrived)
    schemas = {n: s.schema for n, s in nodes.named_sources(node_of(case.query)).items()}

    def check_run(run: Driven) -> None:
        for name, (late, rejected) in fates.items():
            same(late, run.late_of(name, "late", schemas[name]), case)
            same(rejected, run.late_of(name, "rejected", schemas[name]), case)
            counted = run.last.sources[name]
            assert counted.delivered == sum(epoch[name].num_rows for epoch in arrived if name in epoch)
            assert counted.late == late.num_rows
            assert counted.rejected == rejected.num_rows
            assert counted.delivered == counted.accepted + counted.late + counted.rejected

    return check_run


def has_late(case: Case, epochs: int, seed: int, fate: int) -> bool:
    return any(fates[fate].num_rows for fates in late_tuples(case.query, cut(case.tables, epochs, seed)).values())


@seeds(40)
def test_disorder_beyond_the_lateness(seed: int) -> None:
    epochs = 2 + seed % 5
    case = make_case(
        f"late-{seed}",
        disorder=9 * SECOND,
        suitable=lambda case: seed % 8 == 0 or has_late(case, epochs, seed, 0),
    )
    arrived = cut(case.tables, epochs, seed)
    check(case, seed, epochs=epochs, reopen=0.5, end=seed % 2 == 0, check=counters(case, arrived))


@seeds(25)
def test_null_times_and_times_too_far_ahead_are_rejected(seed: int) -> None:
    case = make_case(f"ahead-{seed}", disorder=6 * SECOND, ahead="3 seconds")
    r = np.random.default_rng(seed)
    for table in case.tables.values():
        ts = table.rows["ts"].combine_chunks()
        nulled = pc.if_else(pa.array(r.random(len(ts)) < 0.1), pa.scalar(None, TS_TYPE), ts)
        table.rows = table.rows.set_column(table.rows.schema.get_field_index("ts"), "ts", nulled)
    check(case, seed, epochs=4, reopen=0.5, check=counters(case, cut(case.tables, 4, seed)))


@seeds(35)
def test_without_an_end_only_what_is_certain(seed: int) -> None:
    check(make_case(f"endless-{seed}"), seed, end=False)


# --- order, best effort, metamorphic ---------------------------------------------------------------------------------


@seeds(25)
def test_ordered_results_are_in_sequence(seed: int) -> None:
    found = check(make_case(f"ordered-{seed}"), seed, ordered=True)
    assert found["ts"].to_pylist() == sorted(found["ts"].to_pylist())


@seeds(30)
def test_best_effort_time_joins_give_no_wrong_result(seed: int) -> None:
    case = make_case(
        f"best-effort-{seed}",
        ("time_join", *STATELESS),
        disorder=4 * SECOND,
        depth=(1, 2, 3),
        suitable=lambda case: case.single_time_join,
    )
    arrived = cut(case.tables, 4, seed)
    found = drive(case.query, arrived, seed, best_effort=True)
    _, extra = unmatched_rows(reference(case.query, epochs=arrived), found)
    assert extra.num_rows == 0, f"{extra.to_pylist()[:5]}\n{case!r}"


def _has_inner_joins_only(case: Case) -> bool:
    """Best effort refuses outer joins over time."""
    return all(getattr(node, "how", "inner") == "inner" for node in nodes.walk_nodes(node_of(case.query)))


@seeds(20)
def test_best_effort_runs_any_query(seed: int) -> None:
    case = make_case(f"any-best-effort-{seed}", depth=(1, 2), suitable=_has_inner_joins_only)
    found = drive(case.query, cut(case.tables, 3, seed), seed, best_effort=True)
    assert found.schema.equals(case.query.schema)


@seeds(30)
def test_cut_and_permuted_otherwise_the_answer_is_the_same(seed: int) -> None:
    case = make_case(f"metamorphic-{seed}", depth=(1, 2, 3))
    found = drive(case.query, cut(case.tables, 1 + seed % 5, seed), seed)
    r = np.random.default_rng(seed)
    for name, table in case.tables.items():
        lateness = nodes.named_sources(node_of(case.query))[name].lateness
        ts = np.asarray(table.rows["ts"].cast(pa.int64()))
        table.rows = table.rows.take(np.lexsort((r.random(len(ts)), ts + r.integers(0, lateness + 1, len(ts)))))
    same(found, drive(case.query, cut(case.tables, 3, seed + 1), seed + 1), case)


# --- runs are merged -------------------------------------------------------------------------------------------------

LONG_RUNS = {
    "self-join on a key": lambda s, t: s.join(s, on="l.k = r.k and l.x < r.x", within="20 seconds"),
    "join on any predicate": lambda s, t: s.join(t, on="(l.x + r.x) % 9 = 1", within=("30 seconds", "20 seconds")),
    "panes": lambda s, t: s.aggregate(
        by=["k"], window="60 seconds", every="20 seconds", n="count(*)", a="avg(x)", m="min(f)", t="sum(x)"
    ),
    "tuples": lambda s, t: s.aggregate(by=["s"], window="60 seconds", every="20 seconds", m="median(x)", l="list(x)"),
    "united with itself": lambda s, t: s.union(s, s.filter("x > 0")).aggregate(
        by=["k"], window="60 seconds", every="20 seconds", l="list(x)"
    ),
    "count join": lambda s, t: s.join(t, on="l.k = r.k", last=(300, 150)),
    "count aggregate": lambda s, t: s.aggregate(by=["k"], last=30, every=7, l="list(x)", n="sum(x)"),
    "sessions": lambda s, t: s.aggregate(by=["k"], session="3 seconds", n="count(*)", a="avg(x)", m="min(f)"),
    "tuples of sessions": lambda s, t: s.aggregate(by=["k"], session="3 seconds", l="list(x)", m="median(x)"),
    "asof": lambda s, t: s.asof(t, by=["k"], how="left"),
    "join, then panes": lambda s, t: s.join(t, on="l.k = r.k", within="10 seconds").aggregate(
        by=["l_k"], window="60 seconds", n="count(*)"
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", LONG_RUNS)
def test_many_tiny_epochs_keep_few_blocks(name: str) -> None:
    rows = {
        "a": make_table(1, 600, span=120 * SECOND, grain=250_000, lateness=SECOND),
        "b": make_table(2, 300, span=120 * SECOND, grain=250_000, small=True),
    }
    query = LONG_RUNS[name](table_stream(rows["a"], lateness="1 second", name="a"), table_stream(rows["b"], name="b"))
    used = nodes.named_sources(node_of(query))
    with driven(query, 3) as run:
        for number in range(60):
            if number in (20, 41):
                run.close()
                run.open(5 if number == 20 else 2)
            each = {n: t.num_rows // 60 for n, t in rows.items()}
            run.epoch({n: rows[n].slice(number * each[n], each[n]) for n in used}, splitters=2)
        # without merging: two blocks per epoch and input, some 60 to 120 of them within the window
        assert run.most_blocks <= (90 if name == "united with itself" else 60), run.most_blocks
        run.epoch(final=True)
        same(reference(query), run.table())


# --- null, NaN, -0.0 -------------------------------------------------------------------------------------------------


def odd_keys() -> pa.Table:
    f = [0.0, -0.0, float("nan"), -float("nan"), None, 1.5, 1.5, float("inf"), None, -float("inf"), float("nan"), 0.0]
    return pa.table(
        {
            "ts": pa.array([i * SECOND // 2 for i in range(len(f))], pa.int64()).cast(TS_TYPE),
            "f": pa.array(f, pa.float64()),
            "g": pa.array(f[::-1], pa.float32()),
            "k": pa.array([None, 1, 2, None, 1, 2, None, 1, 2, 3, None, 1], pa.int64()),
            "x": pa.array(range(len(f)), pa.int64()),
        }
    )


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("by", [["f"], ["g"], ["k"], ["k", "f"]])
def test_null_nan_and_negative_zero_as_groups(by: list[str], slots: int) -> None:
    rows = odd_keys()
    query = table_stream(rows, name="a").aggregate(by=by, window="1 day", n="count(*)", t="sum(x)", m="min(f)")
    found = in_epochs(query, rows, slots)
    same(reference(query), found)
    keys = ", ".join(by)
    sql = f"SELECT {keys}, count(*) AS n, sum(x) AS t, min(f) AS m FROM rows GROUP BY {keys}"
    same(duck.run_select(sql, {"rows": rows}), found.select([*by, "n", "t", "m"]))


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize(
    "on",
    ["l.f = r.f", "l.f = r.g", "l.g = r.g", "l.k = r.k", "l.k = r.k and l.f = r.f", "l.f <= r.f", "l.k = r.f"],
)
def test_null_nan_and_negative_zero_in_joins(on: str, slots: int) -> None:
    rows = odd_keys()
    s = table_stream(rows, name="a")
    query = s.join(s, on=on, within="1 day").map("l_x", "r_x")
    found = in_epochs(query, rows, slots)
    same(reference(query), found)
    direct = duck.run_select(f"SELECT l.x AS l_x, r.x AS r_x FROM rows l JOIN rows r ON {on}", {"rows": rows})
    same(direct, found.select(["l_x", "r_x"]))


KEYS: dict[str, Any] = {
    "int64": pa.array([1, 2, None, 1, -5, 2, 2**62, None], pa.int64()),
    "int8": pa.array([1, 2, None, 1, -5, 2, 7, None], pa.int8()),
    "uint64": pa.array([1, 2, None, 1, 2**64 - 1, 2, 7, None], pa.uint64()),
    "bool": pa.array([True, False, None, True, False, None, True, True]),
    "float": pa.array([0.0, -0.0, None, float("nan"), 1.5, -float("nan"), 0.1, None], pa.float32()),
    "text": pa.array(["a", "A", None, "ä", "a", "", "a\0", None]),
    "bytes": pa.array([b"a", b"", None, b"a", b"\xff", b"", b"a\0", None], pa.binary()),
    "decimal": pa.array(
        [Decimal("1.10"), Decimal("1.1"), None, Decimal(0), Decimal("-1.1"), None, Decimal(2), Decimal(2)]
    ),
    "date": pa.array([datetime.date(2024, 1, d) if d else None for d in (1, 2, 0, 1, 3, 2, 1, 0)]),
    "time": pa.array([1, 2, None, 1, 5, 2, 0, None], pa.int64()).cast(pa.time64("us")),
    "timestamp": pa.array([1, 2, None, 1, -5, 2, 0, None], pa.int64()).cast(pa.timestamp("us")),
    "list": pa.array([[1], [], None, [1], [None], [None], [1, 2], None], pa.list_(pa.int64())),
    "list of doubles": pa.array([[0.0], [-0.0], None, [1.0], [float("nan")], [float("nan")], [], None]),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": 1, "b": None}] * 2 + [None, {"a": None, "b": None}] * 2),
}


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(kind: str, slots: int) -> None:
    """Joined and grouped as DuckDB does it over the whole input."""
    column = KEYS[kind]
    times = pa.array(range(0, len(column) * SECOND, SECOND), pa.int64()).cast(TS_TYPE)
    rows = pa.table({"ts": times, "v": column, "x": pa.array(range(len(column)), pa.int64())})
    s = table_stream(rows, name="a")
    for on in ("l.v = r.v", "l.v = r.v and l.x <> r.x", "l.v IS NOT DISTINCT FROM r.v"):
        query = s.join(s, on=on, within="1 day").map("l_x", "r_x")
        found = in_epochs(query, rows, slots)
        same(reference(query), found)
        direct = duck.run_select(f"SELECT l.x AS l_x, r.x AS r_x FROM rows l JOIN rows r ON {on}", {"rows": rows})
        same(direct, found.select(["l_x", "r_x"]))
    for function in ("sum(x)", "list(x)"):
        query = s.aggregate(by=["v"], window="1 day", t=function)
        found = in_epochs(query, rows, slots)
        same(reference(query), found)
        assert found.num_rows == len(duck.run_select("SELECT v FROM rows GROUP BY v", {"rows": rows}))


def in_epochs(query: Stream, rows: pa.Table, slots: int) -> pa.Table:
    with driven(query, slots) as run:
        for start in range(0, rows.num_rows, 5):
            run.epoch({"a": rows.slice(start, 5)}, splitters=2)
        run.epoch(final=True)
        return run.table()
