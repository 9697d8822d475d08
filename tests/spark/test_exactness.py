"""The same promise on real Spark: whatever the source, the cut, the slots and the restarts, the sequential answer."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.compile import STRATEGIES
from headrace.compile.subqueries import Plan
from headrace.difference import difference, unmatched_rows
from headrace.query import nodes
from headrace.reference import reference
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.testing import table_stream
from tests.helpers import wait_until, write_whole

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests are no installed package
from tests.choosing import smoky
from tests.oracle.mixing import NEW, mixed, occurrences
from tests.oracle.nway import counted, random_join
from tests.oracle.strategies import SECOND, Case, Table, cut, make_case, make_table, transplanted

pytestmark = pytest.mark.spark

SLOTS = (1, 2, 3, 5)
COLLECTED = 24
STARTED = 8
MIXES = 20
SEVERAL, FEW_JOINS = 20, 8  # joins of several streams, and how many of them `make test` takes


def same(expected: pa.Table, found: pa.Table, what: Any) -> None:
    assert found.schema.equals(expected.schema), f"{found.schema}\n{expected.schema}"
    text = difference(expected, found)
    assert text is None, f"{text}\n{what!r}"


def write_files(folder: Path, parts: list[pa.Table], seed: int = 0) -> Path:
    """One file per part, in this order of arrival, of any kind that headrace reads."""
    folder.mkdir(parents=True)
    for number, part in enumerate(parts):
        path = folder / f"{number:04d}.{random.Random(seed + number).choice(['parquet', 'arrow', 'feather'])}"
        if path.suffix == ".parquet":
            pq.write_table(part, path)
        else:
            feather.write_feather(part, path, compression="uncompressed")
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def read_results(folder: Path, schema: pa.Schema) -> pa.Table:
    files = sorted([*folder.glob("*.parquet"), *folder.glob("epoch-*/*.parquet")])
    tables = [pq.read_table(path, partitioning=None) for path in files]
    return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


# --- collect ---------------------------------------------------------------------------------------------------------


def static(spark: Any, case: Case, name: str, folder: Path, seed: int) -> Stream:
    table = case.tables[name]
    df = spark.createDataFrame(table.rows).repartition(1 + seed % 3)
    return hr.stream(df, time="ts", lateness=table.lateness, name=name)


def files(spark: Any, case: Case, name: str, folder: Path, seed: int) -> Stream:
    table = case.tables[name]
    parts = [part[name] for part in cut({name: table}, 1 + seed % 4, seed) if name in part]
    path = write_files(folder / name, parts or [table.rows], seed)
    return hr.files(spark, path, time="ts", lateness=table.lateness, name=name, files_per_epoch=1)


@pytest.mark.parametrize("seed", smoky(range(COLLECTED), 6))
def test_collect_gives_the_sequential_answer(spark: Any, tmp_path: Path, seed: int) -> None:
    collect(spark, make_case(f"spark-{seed}"), tmp_path, seed)


def collect(spark: Any, case: Case, tmp_path: Path, seed: int) -> None:
    kinds = [static, files] if seed % 2 else [files, static]
    sources = {n: kinds[i](spark, case, n, tmp_path, seed) for i, n in enumerate(case.tables)}
    found = transplanted(case.query, sources).collect(slots=SLOTS[seed % 4], strategy=STRATEGIES[seed % 3])
    same(reference(case.query), found, case)


def test_a_plan_that_was_saved_is_run_as_it_says(spark: Any, tmp_path: Path) -> None:
    case = make_case("planned", depth=(2, 2))
    query = transplanted(case.query, {n: files(spark, case, n, tmp_path, 1) for n in case.tables})
    plan = Plan.from_json(json.loads(json.dumps(query.plan(slots=3).to_json())))
    same(reference(case.query), query.collect(plan=plan), case)


@pytest.mark.parametrize(
    "seed", [*smoky(range(FEW_JOINS), 2), *(pytest.param(n, marks=pytest.mark.long) for n in range(FEW_JOINS, SEVERAL))]
)
def test_joins_of_several_streams(spark: Any, tmp_path: Path, seed: int) -> None:
    """Against the reference and, for those that are collected, a nested loop in plain Python."""
    join = random_join(1_000 + seed)
    if seed % 3 == 2 and can_be_started(join.case):
        stop_and_start(spark, join.case, tmp_path, seed)
        return
    kinds = [static, files] if seed % 2 else [files, static]
    sources = {n: kinds[i % 2](spark, join.case, n, tmp_path, seed) for i, n in enumerate(join.tables)}
    found = join.over(sources).collect(slots=SLOTS[seed % 4], strategy=STRATEGIES[seed % 3])
    assert counted(found) == join.answer(), join.query


def test_the_key_that_a_sample_chose_for_a_join_is_kept(spark: Any, tmp_path: Path) -> None:
    """The stream `a` is small, so every slot reads it; without a sample `c` would be read by every slot."""
    tables = {
        n: Table(n, make_table(i, rows), "0 milliseconds")
        for i, (n, rows) in enumerate(zip("abc", (8, 90, 90), strict=True))
    }
    tables = {n: replace(table, rows=table.rows.sort_by("ts")) for n, table in tables.items()}
    streams = {n: table_stream(table.rows, name=n) for n, table in tables.items()}
    query = hr.join(streams, on="a.k = b.k and b.s = c.s", within="5 seconds")
    stop_and_start(spark, Case(query, tables, frozenset()), tmp_path, 1)
    with StateStore.open(tmp_path / "checkpoint" / "state", read_only=True) as store:
        assert store.last is not None
        assert store.last.query["grouped"]["nway-join-1"] == [["__everywhere", "k"], ["s"], ["s"]]


# --- start, stop, start again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", smoky(range(STARTED), 3))
def test_a_run_over_files_stopped_and_started_with_other_slots(spark: Any, tmp_path: Path, seed: int) -> None:
    case = make_case(f"start-{seed}", suitable=can_be_started)
    stop_and_start(spark, case, tmp_path, seed)


def can_be_started(case: Case) -> bool:
    """Whether each source has rows for several files, and the query makes sense without an end, unlike a limit."""
    limited = any(isinstance(node, nodes.Limit) for node in nodes.walk_nodes(node_of(case.query)))
    return not limited and all(table.rows.num_rows > 5 for table in case.tables.values())


def stop_and_start(spark: Any, case: Case, tmp_path: Path, seed: int) -> None:
    sources = {n: files(spark, case, n, tmp_path, 3 + 4 * seed) for n in case.tables}
    query = transplanted(case.query, sources)
    total = sum(t.rows.num_rows for t in case.tables.values())
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    ordered = seed % 3 == 0
    for life, (slots, enough) in enumerate(((SLOTS[seed % 4], total // 3), (SLOTS[(seed + 1) % 4], total))):
        sink = hr.sinks.parquet(out, ordered=ordered, parts=seed % 3 == 1)
        strategy = STRATEGIES[(seed + life) % 3]
        with query.start(sink, checkpoint=checkpoint, epoch="0 seconds", slots=slots, strategy=strategy) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
        assert run.exception is None
    assert run.progress.tuples_in == total
    assert run.progress.late == 0
    whole = [{n: t.rows for n, t in case.tables.items()}]
    expected, found = reference(case.query, epochs=whole, end=False), read_results(out, query.schema)
    if not ordered:
        same(expected, found, case)
        return
    # an ordered sink gets a result when none can come before it: what is missing is the end of the sequence
    missing, extra = unmatched_rows(expected, found)
    times = found["ts"].to_pylist()
    assert times == sorted(times)
    assert extra.num_rows == 0, f"{extra.to_pylist()[:5]}\n{case!r}"
    assert all(not times or ts >= times[-1] for ts in missing["ts"].to_pylist())


@pytest.mark.long
def test_twenty_mixes_of_tables_asof_outer_joins_and_sessions_with_the_others(spark: Any, tmp_path: Path) -> None:
    cases = [mixed(seed, late=False) for seed in range(MIXES)]
    for seed, case in enumerate(cases):
        (stop_and_start if seed % 2 and can_be_started(case) else collect)(spark, case, tmp_path / str(seed), seed)
    counted = occurrences([case.query for case in cases])
    assert all(any(counted[kind] for kind in kinds) for kinds in NEW.values()), counted


@pytest.mark.smoke
def test_sessions_and_asof_stopped_and_started_with_other_slots(spark: Any, tmp_path: Path) -> None:
    tables = {name: make_table(number, 240, lateness=2 * SECOND) for number, name in enumerate("ab")}
    a, b = (
        hr.files(spark, parquet_files(tmp_path / n, t, 4), time="ts", lateness="2 seconds", name=n, files_per_epoch=1)
        for n, t in tables.items()
    )
    results = {
        "sessions": a.aggregate(by=["k"], session="0.4 seconds", n="count(*)", t="sum(x)"),
        "told": a.aggregate(by=["k"], session="0.4 seconds", l="list(x)"),
        "found": a.asof(b, by=["k"], how="left"),
        "recent": b.asof(a, by=["s", "b"], within="3 seconds"),
        "each": a.split(3, by=["x"]).each(
            lambda t: t.aggregate(by=["k"], session="1 second", m="max(x)").asof(t, by=["k"])
        ),
    }
    found = run_twice(results, tmp_path, 480)
    for name, query in results.items():
        expected = reference(query, epochs=[{n: tables[n] for n in named(query)}], end=False)
        assert expected.num_rows > 10
        same(expected, found[name], query)


@pytest.mark.smoke
def test_outer_joins_stopped_and_started_with_other_slots(spark: Any, tmp_path: Path) -> None:
    """A hot key and none, a predicate without an equality; tuples without a partner once none can come."""
    tables = {name: make_table(number, 240, lateness=2 * SECOND) for number, name in enumerate("ab", start=40)}
    a, b = (
        hr.files(spark, parquet_files(tmp_path / n, t, 4), time="ts", lateness="2 seconds", name=n, files_per_epoch=1)
        for n, t in tables.items()
    )
    within = ("0.5 seconds", "1 second")
    results = {
        "left": a.join(b, on="l.k = r.k and l.x < r.x", within=within, how="left"),
        "right": a.join(b, on="l.s = r.s", within=within, how="right"),
        "full": a.join(b, on="l.x <= r.x and r.x < l.x + 3", within=within, how="full"),
        "each": a.split(3, by=["k"]).each(lambda t: t.join(t, on="l.x + 3 = r.x", within="2 seconds", how="full")),
        "counted": a.join(b, on="l.k = r.k and l.s = r.s", within=within, how="left").aggregate(
            by=["l_k"], window="3 seconds", n="count(*)", alone="count(*) FILTER (WHERE r_ts IS NULL)"
        ),
    }
    with pytest.raises(hr.HeadraceError, match="best effort may miss a partner, and left join on"):
        results["left"].start(hr.sinks.memory(), checkpoint=tmp_path / "no", order="best-effort")
    assert not (tmp_path / "no").exists()
    found = run_twice(results, tmp_path, 480)
    for name, query in results.items():
        expected = reference(query, epochs=[{n: tables[n] for n in named(query)}], end=False)
        assert expected.num_rows > 10
        same(expected, found[name], query)


@pytest.mark.smoke
def test_tops_offsets_local_days_and_windows_of_zero_stopped_and_started(spark: Any, tmp_path: Path) -> None:
    """Times lie around the night in which Berlin goes back an hour. Tasks have no rules of time zones."""
    start = 1_729_900_800 * SECOND  # 2024-10-26T00:00Z
    tables = {
        name: make_table(number, 240, start=start, span=96 * 3600 * SECOND, grain=1800 * SECOND, lateness=2 * SECOND)
        for number, name in enumerate("ab", start=70)
    }
    a, b = (
        hr.files(spark, parquet_files(tmp_path / n, t, 4), time="ts", lateness="2 seconds", name=n, files_per_epoch=1)
        for n, t in tables.items()
    )
    results = {
        "top": a.top(2, by=["k"], order="x desc, s", window="6 hours", every="2 hours"),
        "session top": b.top(1, by=["k"], order="f", session="3 hours"),
        "offset": a.aggregate(by=["k"], window="1 day", offset="2 hours", n="count(*)", l="list(x)"),
        "days": a.aggregate(by=["k"], window="1 day", zone="Europe/Berlin", n="count(*)", t="sum(x)"),
        "days of days": b.aggregate(window="1 day", zone="Pacific/Apia", m="max(x)").aggregate(
            window="2 days", zone="Europe/Berlin", l="list(m)"
        ),
        "one side": a.join(b, on="l.k = r.k", within=("0 seconds", "1 hour"), how="left"),
    }
    found = {n: query.collect(slots=1 + number % 3) for number, (n, query) in enumerate(results.items())}
    for name, query in results.items():
        same(reference(query), found[name], query)
        assert found[name].num_rows > 1
    found = run_twice(results, tmp_path, 480)
    for name, query in results.items():
        same(reference(query, epochs=[{n: tables[n] for n in named(query)}], end=False), found[name], query)


def named(query: Stream) -> list[str]:
    return list(nodes.named_sources(node_of(query)))


# --- streaming DataFrames, through foreachBatch ----------------------------------------------------------------------


def streaming(spark: Any, folder: Path, example: pa.Table, **how: Any) -> Stream:
    schema = spark.createDataFrame(example.slice(0, 1)).schema
    df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return hr.stream(df, time="ts", **how)


def parquet_files(folder: Path, table: pa.Table, parts: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(parts):
        start, stop = (table.num_rows * i // parts for i in (number, number + 1))
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table.slice(start, stop - start), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def run_twice(
    results: Mapping[str, Stream], tmp_path: Path, total: int, slots: tuple[int, int] = (2, 3)
) -> dict[str, pa.Table]:
    """Start, stop in the middle, start again with other slots; what the sinks hold in the end."""
    for count, enough in zip(slots, (total // 3, total), strict=True):
        pairs = [(query, hr.sinks.parquet(tmp_path / "out" / name)) for name, query in results.items()]
        with hr.start(pairs, checkpoint=tmp_path / "checkpoint", epoch="0 seconds", slots=count) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
        assert run.exception is None
    assert run.progress.tuples_in == total
    return {name: read_results(tmp_path / "out" / name, query.schema) for name, query in results.items()}


@pytest.mark.smoke
def test_a_streaming_dataframe_used_twice(spark: Any, tmp_path: Path) -> None:
    table = make_table(11, 120, lateness=SECOND)
    folder = parquet_files(tmp_path / "d", table, 5)
    d = streaming(spark, folder, table, lateness="1 second", name="d")
    results = {
        "self-join": d.join(d.filter("x > 0"), on="l.k = r.k and l.x < r.x", within="3 seconds"),
        "united": d.union(d).aggregate(by=["k"], window="5 seconds", every="2 seconds", n="count(*)", l="list(x)"),
        "counted": d.aggregate(by=["s"], last=4, every=3, l="list(x)"),
    }
    found = run_twice(results, tmp_path, table.num_rows)
    for name, query in results.items():
        same(reference(query, epochs=[{"d": table}], end=False), found[name], name)


@pytest.mark.smoke
def test_a_streaming_dataframe_files_and_a_static_dataframe_in_one_run(spark: Any, tmp_path: Path) -> None:
    tables = {
        "d": make_table(21, 90, lateness=SECOND),
        "f": make_table(22, 70, small=True),
        "s": make_table(23, 30, odd=True),
    }
    d = streaming(spark, parquet_files(tmp_path / "d", tables["d"], 4), tables["d"], lateness="1 second", name="d")
    parts = [tables["f"].slice(start, 18) for start in range(0, 70, 18)]
    f = hr.files(spark, write_files(tmp_path / "f", parts), time="ts", name="f", files_per_epoch=1)
    s = hr.stream(spark.createDataFrame(tables["s"]), time="ts", name="s")
    results = {
        "equal": d.join(f, on="l.k = r.k", within=("2 seconds", "5 seconds")),
        "unequal": f.join(d, on="l.x <= r.x and r.x < l.x + 9", within="3 seconds"),
        "static": d.join(s, on="l.k = r.k or l.x = r.x", within="4 seconds"),
        "all three": d.join(f, on="l.k = r.k", within="2 seconds")
        .map("l_x")
        .join(s, on="(l.l_x + r.x) % 5 = 0", within="2 seconds"),
        "united": d.map("k").union(f.map(k="CAST(k AS BIGINT)")).filter("k IS NOT NULL"),
    }
    found = run_twice(results, tmp_path, sum(t.num_rows for t in tables.values()), slots=(3, 2))
    for name, query in results.items():
        used = {n: t for n, t in tables.items() if f"source {n} " in repr(query)}
        same(reference(query, epochs=[used], end=False), found[name], name)


@pytest.mark.smoke
def test_a_growing_folder(spark: Any, tmp_path: Path) -> None:
    """Files that come while the run goes on; a second run finds what came while nobody was looking."""
    table = make_table(31, 100, lateness=0)
    parts = [table.slice(start, 20) for start in range(0, 100, 20)]
    folder = write_files(tmp_path / "a", parts[:1])
    a = hr.files(spark, folder, time="ts", name="a")
    query = a.join(a, on="l.k = r.k and l.x <> r.x", within="2 seconds").aggregate(
        by=["l_k"], window="4 seconds", n="count(*)", t="sum(r_x)"
    )

    def add(number: int) -> None:
        write_whole(folder / f"{number:04d}.parquet", parts[number])

    options = {"checkpoint": tmp_path / "checkpoint", "epoch": "0 seconds"}
    with query.start(hr.sinks.parquet(tmp_path / "out"), slots=2, **options) as run:
        wait_until(run, lambda p: p.tuples_in == 20)
        add(1)
        wait_until(run, lambda p: p.tuples_in == 40)
    add(2)
    add(3)
    with query.start(hr.sinks.parquet(tmp_path / "out"), slots=5, **options) as run:
        wait_until(run, lambda p: p.tuples_in == 80)
        add(4)
        wait_until(run, lambda p: p.tuples_in == 100)
    same(
        reference(query, epochs=[{"a": p} for p in parts], end=False), read_results(tmp_path / "out", query.schema), ""
    )
