"""Tuples that fail, with errors="keep": whatever the cut, the slots and the restarts, the same ones, each counted once.

The reference is one judge. The other is plain DuckDB, one tuple at a time, with no code of ours: it decides what
"fails alone" means.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import headrace as hr
from headrace.compile import STRATEGIES
from headrace.difference import difference
from headrace.errors import DataError
from headrace.query import nodes
from headrace.reference import FailedByStep, failed_tuples, reference
from headrace.state.manifest import Manifest
from headrace.stream import Stream, node_of
from headrace.testing import table_stream
from tests.choosing import some
from tests.helpers import duckdb_in_utc

from .driving import Driven, drive, driven
from .strategies import SECOND, Table, cut
from .test_local import seeds

TS = pa.timestamp("us", "UTC")
TEXTS = ["1", "2", "17", "40", "99", "abc", "", "1e3", "-5", None]

# partial: each fails on some tuples, and each in its own way
VALUES = ["s::int", "s::tinyint", "n + 100::tinyint", "100 // v", "100 % v", "strptime(s, '%Y')::varchar"]
VALUES += ["list_transform([s], lambda e: e::int)[1]", "case when v > 2 then s::int else v end", "chr((v - 3)::int)"]
CONDITIONS = [
    "s::int > 10",
    "v > 2 and s::int > 10",
    "100 // v > 20",
    "s::int > 10 or k is null",
    "(n * 2::tinyint) > 5",
]
CONDITIONS += ["'abc'::int = 1", "case when v > 2 then s::int > 3 else true end"]
SAFE = ["k is not null", "v < 7", "try_cast(s as int) is not null or v > 1"]


def tuples(seed: Any, rows: int) -> pa.Table:
    r = random.Random(seed)
    return pa.table(
        {
            "ts": pa.array([r.randrange(30) * SECOND for _ in range(rows)], TS),
            "k": pa.array([r.choice([0, 1, 2, None]) for _ in range(rows)], pa.int64()),
            "s": pa.array([r.choice(TEXTS) for _ in range(rows)], pa.string()),
            "n": pa.array([r.choice([0, 5, 27, 28, 100, 127, None]) for _ in range(rows)], pa.int8()),
            "v": pa.array([r.randrange(-1, 8) for _ in range(rows)], pa.int64()),
        }
    )


# --- random queries ---------------------------------------------------------------------------------------------------


def one_step(r: random.Random, stream: Stream) -> Stream:
    """A step that may fail and keeps the columns, so that it can stand anywhere."""
    match r.choice(["map", "map", "filter", "filter", "case", "safe", "sample"]):
        case "map":
            made = f"({r.choice(VALUES)})::varchar"
            return stream.map(k="k", s=f"case when {made} is null then s else s end", n="n", v="v")
        case "filter":
            return stream.filter(r.choice(CONDITIONS))
        case "sample":
            return stream.sample(0.8, by=r.choice([None, ["k", "v"]]))
        case "case":
            branches = stream.case(*r.sample(CONDITIONS, 2))
            chosen = r.sample(branches, r.choice([1, 2, 3]))
            return chosen[0].union(*chosen[1:]) if chosen[1:] else chosen[0]
        case _:
            return stream.filter(r.choice(SAFE))


def steps(r: random.Random, stream: Stream, most: int = 3) -> Stream:
    for _ in range(r.randrange(1, most + 1)):
        stream = one_step(r, stream)
    return stream


def random_query(r: random.Random, a: Stream, b: Stream) -> Stream:
    match r.choice(
        [
            "alone",
            "union",
            "twice",
            "join",
            "self",
            "several",
            "aggregate",
            "count",
            "distinct",
            "session",
            "asof",
            "behind",
            "behind sums",
        ]
    ):
        case "alone":
            return steps(r, a)
        case "union":
            return steps(r, a.union(steps(r, b, 1)))
        case "twice":
            shared = one_step(r, a)
            return one_step(r, shared).union(one_step(r, shared), shared)
        case "join":
            return steps(r, a).join(steps(r, b), on="l.k = r.k and l.v < r.v", within="3 seconds")
        case "self":
            shared = steps(r, a)
            return shared.join(shared, on="l.k = r.k", within="1 second")
        case "several":
            streams = {"x": steps(r, a), "y": steps(r, b), "z": steps(r, a)}
            joined = hr.join(streams, on="x.k = y.k and y.k = z.k and y.v < z.v", within="1 second")
            return steps(r, joined.map(k="x_k", s="x_s", n="y_n", v="z_v"))
        case "aggregate":
            return steps(r, a).aggregate(by=["k"], window="5 seconds", n="count(*)", v="sum(v)", s="max(s)")
        case "count":
            return steps(r, a).aggregate(by=["k"], last=3, v="sum(v)", all="list(s)")
        case "distinct":
            return steps(r, a.distinct(by=["k", "v"], within="4 seconds"))
        case "session":
            return steps(r, a).aggregate(by=["k"], session="1 second", n="count(*)", v="sum(v)", s="max(s)")
        case "asof":
            return steps(r, a).asof(steps(r, b), by=["k"], within="3 seconds", how=r.choice(["inner", "left"]))
        case "behind":
            joined = a.join(b, on="l.k = r.k and l.v <= r.v", within="2 seconds")
            return steps(r, joined.map(k="l_k", s="l_s", n="r_n", v="r_v")).map("k", i=r.choice(VALUES))
        case _:
            sums = a.aggregate(by=["k"], window="3 seconds", s="max(s)", n="max(n)", v="min(v)")
            return steps(r, sums.map("k", "s", "n", "v"))


def behind_windows(query: Stream) -> bool:
    return any(
        isinstance(node, nodes.PairingNode | nodes.NWayJoin | nodes.Aggregation | nodes.Distinct | nodes.Limit)
        for node in nodes.walk_nodes(node_of(query))
    )


# --- what failed, as text ---------------------------------------------------------------------------------------------


def texts(table: pa.Table) -> Iterator[str]:
    names = [name for name in table.column_names if not name.startswith("_")]
    return (str([(name, row[name]) for name in names]) for row in table.to_pylist())


def kind(words: str) -> str:
    return words.removeprefix("filter ").split()[0] if words.startswith("filter case") else words.split()[0]


def expected_failures(failed: Sequence[FailedByStep]) -> Counter[tuple[str, ...]]:
    """With a source: who, in what kind of step, which tuple. Behind windows the engine knows only what it still needs."""
    known = [(f.source, kind(f.summary), row) for f in failed if f.source is not None for row in texts(f.table)]
    return Counter(known) + Counter(("", kind(f.summary)) for f in failed if f.source is None for _ in texts(f.table))


def kept_failures(run: Driven) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for name, sink in run.late.items():
        table = sink.table() if name.startswith("failed:") else None
        for row, text in zip(table.to_pylist() if table else (), texts(table) if table else (), strict=True):
            reason = row["_reason"].removeprefix("failed: ")
            assert reason != row["_reason"] and "Error: " in reason, "which step, and why"
            known = row["_source"] in ("a", "b")
            found[(row["_source"], kind(reason), text) if known else ("", kind(reason))] += 1
    return found


def check_counts(last: Manifest, failed: Sequence[FailedByStep]) -> None:
    for name, source in last.sources.items():
        assert source.failed == sum(f.table.num_rows for f in failed if f.source == name)
        assert source.delivered == source.accepted + source.late + source.rejected, "a failed tuple stays accepted"
    assert sum(last.totals.failed.values()) == sum(f.table.num_rows for f in failed)


# --- against the reference --------------------------------------------------------------------------------------------


def case_of(seed: Any) -> tuple[Stream, list[dict[str, pa.Table]]]:
    """A query in which some tuples fail and some do not."""
    for attempt in range(30):
        r = random.Random(f"failing-{seed}-{attempt}")
        tables = {name: Table(name, tuples(f"{seed}-{attempt}-{name}", 45), "40 seconds") for name in ("a", "b")}
        a, b = (table_stream(t.rows, lateness=t.lateness, name=n) for n, t in tables.items())
        query = random_query(r, a, b)
        used = nodes.named_sources(node_of(query))
        epochs = cut({n: t for n, t in tables.items() if n in used}, r.choice([1, 2, 4]), attempt)
        if failed_tuples(query, epochs) and reference(query, epochs, errors="keep").num_rows:
            return query, epochs
    raise AssertionError("no query fails")


@seeds(36)
def test_the_same_tuples_fail_whatever_the_cut_the_slots_and_the_restarts(seed: int) -> None:
    query, epochs = case_of(seed)
    failed = failed_tuples(query, epochs)

    def check(run: Driven) -> None:
        assert kept_failures(run) == expected_failures(failed)
        check_counts(run.last, failed)

    found = drive(query, epochs, seed, errors="keep", change_slots=0.3, check=check, strategies=("subquery", "query"))
    text = difference(reference(query, epochs, errors="keep"), found)
    assert text is None, f"{text}\n{query!r}"
    whole = [{n: pa.concat_tables([e[n] for e in epochs if n in e]) for n in nodes.named_sources(node_of(query))}]
    assert expected_failures(failed_tuples(query, whole)) == expected_failures(failed), "nor on what came together"
    if not behind_windows(query):
        with pytest.raises(DataError):
            drive(query, epochs, seed)


@seeds(12)
def test_the_answer_is_the_same_under_every_strategy(seed: int) -> None:
    query, epochs = case_of(f"strategy-{seed}")
    strategies = STRATEGIES[seed % 3 :] + STRATEGIES[: seed % 3]
    found = drive(query, epochs, seed, errors="keep", reopen=0.6, strategies=strategies)
    text = difference(reference(query, epochs, errors="keep"), found)
    assert text is None, f"{text}\n{query!r}"


# --- against plain DuckDB, one tuple at a time ------------------------------------------------------------------------


def alone(expression: str, one: pa.Table) -> Any:
    """The value for a table of one tuple; raises what DuckDB raises."""
    con = duckdb_in_utc()
    con.register("one", one)
    return con.sql(f"SELECT {expression} AS c FROM one").fetchall()[0][0]


@pytest.mark.parametrize("expression", some([*VALUES, *CONDITIONS]))
def test_who_fails_alone_fails(expression: str) -> None:
    """A map, and where it is a condition a filter and both branches of a case, tuple by tuple."""
    table = tuples(expression, 50)
    stream = table_stream(table, name="a", lateness="1 minute")
    judged: dict[str, list[Any]] = {"value": [], "condition": []}
    for row in range(table.num_rows):
        for how, sql in (("value", expression), ("condition", f"CASE WHEN {expression} THEN true ELSE false END")):
            if how == "condition" and expression in VALUES:
                continue
            try:
                judged[how].append(("is", alone(sql, table.slice(row, 1))))
            except duckdb.Error:
                judged[how].append("fails")
    assert "fails" in judged["value"], "nothing is tested"
    check_against(stream.map("k", "s", "n", "v", y=expression), table, judged["value"], lambda value: True)
    if expression in CONDITIONS:
        check_against(stream.filter(expression), table, judged["value"], lambda value: value is True)
        true, rest = stream.case(expression)
        check_against(true, table, judged["condition"], lambda value: value is True)
        check_against(rest, table, judged["condition"], lambda value: value is not True)


def check_against(query: Stream, table: pa.Table, judged: Sequence[Any], stays: Any) -> None:
    failing = Counter(row for row, fate in zip(texts(table), judged, strict=True) if fate == "fails")
    left = [(row, fate[1]) for row, fate in enumerate(judged) if fate != "fails" and stays(fate[1])]
    epochs, kept = cut({"a": Table("a", table, "1 minute")}, 3, 3), Counter[str]()

    def look(run: Driven) -> None:
        for (_, _, text), count in kept_failures(run).items():
            kept[text] += count

    found = drive(query, epochs, 3, errors="keep", check=look)
    assert kept == failing
    names = [name for name in table.column_names if name in found.column_names]
    staying = table.take(pa.array([row for row, _ in left], pa.int64())).select(names)
    assert Counter(texts(found.select(names))) == Counter(texts(staying))
    if "y" in found.column_names:
        assert Counter(map(repr, found["y"].to_pylist())) == Counter(repr(value) for _, value in left)
    assert difference(reference(query, epochs, errors="keep"), found) is None


# --- what is counted --------------------------------------------------------------------------------------------------


def source(texts: Sequence[str | None], name: str = "a") -> Stream:
    table = pa.table(
        {
            "ts": pa.array([number * SECOND for number in range(len(texts))], TS),
            "s": pa.array(texts, pa.string()),
            "v": pa.array(range(len(texts)), pa.int64()),
        }
    )
    return table_stream(table, name=name)


def run(query: Stream | list[Stream], rows: dict[str, pa.Table], **options: Any) -> tuple[Driven, Manifest]:
    with driven(query, 2, errors="keep", **options) as live:  # type: ignore[arg-type]
        live.epoch(rows, final=True, splitters=2)
        return live, live.last


def rows_of(stream: Stream) -> pa.Table:
    return nodes.named_sources(node_of(stream))["a"].origin.table()


def test_a_tuple_is_counted_once_for_a_step_that_two_edges_share() -> None:
    a = source(["1", "x", "3", "4"])
    shared = a.map("v", i="s::int")
    live, last = run(shared.filter("v < 3").union(shared.filter("100 // (v - 3) > 0"), shared), {"a": rows_of(a)})
    assert last.sources["a"].failed == 2 and last.sources["a"].accepted == 4
    assert last.totals.failed == {"a: map v, i = s::int": 1, "a: filter 100 // (v - 3) > 0": 1}
    assert live.run is None and live.table().num_rows == 3 + 2 + 0


def test_the_branches_of_a_case_are_one_step() -> None:
    a = source(["1", "x", "30", "y", "z"])
    first, second, rest = a.case("v < 1", "s::int > 10")
    _, last = run(first.union(second, rest), {"a": rows_of(a)})
    assert last.totals.failed == {"a: filter case v < 1, s::int > 10": 3}
    _, last = run(first, {"a": rows_of(a)})
    assert last.totals.failed == {}, "a branch that asks less fails less"


def test_a_failed_tuple_moves_the_watermark() -> None:
    a = source(["1", "x"]).filter("s::int > 0")
    with driven(a, 1, errors="keep") as live:
        live.epoch({"a": rows_of(a)})
        assert live.last.sources["a"].watermark == SECOND
        progress = live.run.driver.progress  # type: ignore[union-attr]
        assert progress.last is not None and (progress.failed, progress.last.failed) == (1, 1)
        live.epoch({"a": rows_of(a).slice(0, 1)})
        assert (live.last.sources["a"].late, live.last.sources["a"].failed) == (1, 1)


def test_joins_and_aggregates_still_stop() -> None:
    a = source(["1", "x"])
    for query in (
        a.join(a, on="l.v = r.v and l.s::int = r.s::int", within="1 second"),
        a.aggregate(window="1 minute", i="sum(s::int)"),
        a.aggregate(last=1, i="max(s::int)"),
    ):
        with pytest.raises(DataError):
            run(query, {"a": rows_of(a)})
        with pytest.raises(DataError):
            reference(query, errors="keep")


def test_behind_a_join_the_join_is_named() -> None:
    a = source(["1", "x"])
    live, last = run(a.join(a, on="l.v = r.v", within="1 second").map(i="l_s::int"), {"a": rows_of(a)})
    assert last.sources["a"].failed == 0 and last.totals.failed == {"join-1: map i = l_s::int": 1}
    table = next(t for sink in live.late.values() if (t := sink.table()) is not None)
    assert table["_source"].to_pylist() == ["join-1"] and table["l_s"].to_pylist() == ["x"]
    reason = "failed: map i = l_s::int: Conversion Error: Could not convert string 'x' to INT32"
    assert table["_reason"].to_pylist()[0].startswith(reason)


def test_steps_in_slots_of_their_own_name_the_source_where_there_is_one() -> None:
    a, b = source(["1", "x"]), source(["y", "2"], "b")
    one = a.filter("v >= 0").map(i="s::int").filter("100 // (i - 1) > 0")
    _, last = run(one, {"a": rows_of(a)}, strategy="operator")
    assert last.totals.failed == {"a: map i = s::int": 1, "a: filter 100 // (i - 1) > 0": 1}
    assert last.sources["a"].failed == 2
    both = a.union(b).map(i="s::int")
    rows = nodes.named_sources(node_of(both))
    _, last = run(both, {n: s.origin.table() for n, s in rows.items()}, strategy="operator")
    assert last.totals.failed == {"union-1: map i = s::int": 2}


def test_most_of_many_fail() -> None:
    """The later ones are not asked why: that would be a query for each."""
    a = source(["x"] * 1500 + ["1"] * 10 + [None])
    live, last = run(a.filter("s::int = 1"), {"a": rows_of(a)})
    assert last.sources["a"].failed == 1500 and live.table().num_rows == 10
    table = live.late["failed:a:1"].table()
    assert table is not None and table.num_rows == 1500
    asked = sum("Conversion Error" in reason for reason in table["_reason"].to_pylist())
    assert 200 <= asked < 1000
