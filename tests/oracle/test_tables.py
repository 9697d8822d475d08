"""Tables beside streams: against plain SQL that shares nothing with engine or reference, in random queries, and from one
version to the next."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.columnar import duck
from headrace.compile import STRATEGIES
from headrace.difference import difference
from headrace.driver import table_versions
from headrace.errors import CorruptState, DataError, QueryError, QueryTypeError, SourceError
from headrace.kernels.joins import band, pair_loop, table_join
from headrace.query import nodes
from headrace.reference import reference
from headrace.sources.tables import mounted_table
from headrace.sources.tables import table_rows as read_rows
from headrace.state.blocks import block_name, write_block
from headrace.state.head import head_name
from headrace.stream import Stream, Table, node_of
from headrace.task.in_process import execute_locally
from headrace.testing import LocalRun, arrow_table, run_locally, table_stream

from .driving import SLOTS, drive, driven
from .strategies import SECOND, STATELESS, Case, Changing, cut, make_case, make_table
from .strategies import Table as Arrived
from .test_local import check, same, seeds

# --- against plain SQL -------------------------------------------------------------------------------------------------

PREDICATES = [
    "l.k = r.k",
    "r.k = l.k and l.x < r.x",
    "l.k = r.k and l.s = r.s",
    "l.f = r.f",
    "l.b = r.b and l.f + r.f > 0",
    "l.x between r.lo and r.hi",
    "l.x between r.lo and r.hi and l.f between r.f and r.g",
    "l.f between r.f and r.g",
    "l.g between r.f and r.g and l.h between r.f and r.g",
    "r.g between l.g and l.h",
    "r.x between l.x and l.k",
    "l.x >= r.lo and l.x < r.hi",
    "r.lo < l.x and r.hi >= l.x and l.g >= r.f and l.g < r.g",
    "l.f > r.f and l.f <= r.g",
    "abs(l.g - r.g) <= 0.75",
    "abs(l.f - r.f) < 1 and l.k <> r.k",
    "l.g < r.g and l.h >= r.f",
    "l.g * l.g + r.g < l.h",
    "l.x % 3 = r.x % 3",
    "l.s <> r.s",
    "l.s is not distinct from r.s",
    "l.ts > '1970-01-01 00:00:15+00' and l.k = r.k",
    "true",
    "false",
    "l.x > 10",
    "r.x > 10",
]


def sides(seed: int) -> tuple[pa.Table, pa.Table]:
    """Tuples and rows, with nulls and odd numbers in some columns and none in others."""
    r = np.random.default_rng(seed)
    found = []
    for rows in (90, 25):
        table = make_table(int(r.integers(1 << 30)), rows, odd=seed % 2 == 0)
        g = np.round(r.random(rows) * 8, 1)
        found.append(table.append_column("g", pa.array(g)).append_column("h", pa.array(g + r.random(rows))))
    x = r.integers(-20, 50, 25)
    right = found[1].drop_columns(["ts"])
    return found[0], right.append_column("lo", pa.array(x)).append_column("hi", pa.array(x + r.integers(0, 20, 25)))


def in_small_pieces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("headrace.kernels.joins.pairs.MOST_PAIRS", 7)
    patch.setattr("headrace.task.step_runner.MOST_TUPLES_TOGETHER", 5)
    patch.setattr(table_join, "MOST_PAIRS_TOGETHER", 60)


def compiled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pair_loop, "WORTH_COMPILING", 0)


WAYS = {"inner": (None,), "left": (None, in_small_pieces, compiled)}


@pytest.mark.parametrize("on", PREDICATES)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_it_is_the_join_of_sql(on: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tables with and without odd numbers, by every way that the predicate can go."""
    for seed in range(2):
        left, right = sides(seed)
        query = table_stream(left, name="a").join(arrow_table(right, name="t"), on=on, how=how)
        node: Any = node_of(query)
        columns = ", ".join(f'{side}."{column}" AS "{name}"' for name, side, column in node.columns)
        expected = duck.run_select(f"SELECT l.ts, {columns} FROM l {how} JOIN r ON {on}", {"l": left, "r": right})
        same(expected.cast(query.schema), reference(query), on)
        for way in WAYS[how]:
            if way is compiled and node.on.native is None:
                continue
            with monkeypatch.context() as patch:
                if way is not None:
                    way(patch)
                found = run_locally(query, tmp_path / f"{seed}-{way}", slots=2)
            same(expected.cast(query.schema), found, (on, way))


def test_its_columns_are_those_of_a_join_without_the_time_of_a_table() -> None:
    left, right = sides(0)
    a, t = table_stream(left.select(["ts", "k", "x"]), name="a"), arrow_table(right.select(["k", "s"]), name="t")
    assert a.join(t, on="true").columns == ["ts", "l_ts", "l_k", "x", "r_k", "s"]
    assert a.join(t, on="true").map("ts", "l_k").join(t, on="true").columns == ["ts", "l_ts", "l_k", "k", "s"]


# --- in queries --------------------------------------------------------------------------------------------------------


@seeds(12)
def test_tables_among_other_operators(seed: int) -> None:
    operators = (
        *STATELESS,
        "table_join",
        "table_join",
        "time_join",
        "distinct",
        "time_aggregate",
        "count_join",
        "asof",
    )
    case = make_case(f"table-{seed}", operators)
    same(reference(case.query), check(case, seed, change_slots=0.3, strategies=STRATEGIES), case)


@seeds(4)
def test_tables_of_tuples_that_come_too_late_and_without_an_end(seed: int) -> None:
    case = make_case(
        f"late-table-{seed}", ("table_join", "filter", "count_aggregate"), depth=(1, 2), disorder=9 * SECOND
    )
    check(case, seed, epochs=2 + seed % 5, reopen=0.5, end=seed % 2 == 0)


@seeds(3)
def test_on_every_substream_alone(seed: int) -> None:
    rows, held = make_table(seed, 150, lateness=3 * SECOND), Changing(seed, 20)
    zones = arrow_table(held, name="t")
    query = (
        table_stream(rows, lateness="3 seconds", name="a")
        .split(4, route="abs(x) % 4", broadcast="k = 3")
        .each(lambda t: t.join(zones, on="l.k = r.k", how="left").aggregate(by=["r_x"], last=3, m="max(l_x)"))
    )
    same(reference(query), drive(query, cut({"a": Arrived("a", rows, "")}, 4, seed), seed, change_slots=0.5))


# --- versions ----------------------------------------------------------------------------------------------------------


def held_by(query: Stream) -> dict[str, Changing]:
    return {name: table.origin._given for name, table in nodes.named_tables(node_of(query)).items()}


def drive_versions(case: Case, arrived: list[Any], seed: int, **options: Any) -> tuple[pa.Table, list[dict[str, Any]]]:
    """Results of a run in which tables change between epochs, read again or found at a restart; and what they held."""
    r, tables = np.random.default_rng(seed), held_by(case.query)
    for held in tables.values():
        held.now = int(r.integers(0, 4))
    told: list[dict[str, int]] = []
    with driven(case.query, int(r.choice(SLOTS)), **options) as run:
        for epoch in [*arrived, None]:
            again = bool(told) and r.random() < 0.4
            for name, held in tables.items() if told else ():
                if again:
                    held.now = int(r.integers(0, 4))
                elif r.random() < 0.4:  # else nobody looks
                    held.now = int(r.integers(0, 4))
                    assert run.run is not None
                    run.run.refresh(name)
            if again:
                run.close()
                run.open(int(r.choice(SLOTS)))
            told.append({name: held.now for name, held in tables.items()})
            run.epoch(epoch, splitters=int(r.integers(1, 4)), final=epoch is None)
        for held in tables.values():
            held.now = 0
        return run.table(), [{n: tables[n].version(now) for n, now in each.items()} for each in told]


def check_versions(seed: int, operators: tuple[str, ...]) -> str | None:
    case = make_case(f"versions-{seed}", operators, most=60, suitable=lambda case: bool(held_by(case.query)))
    arrived = cut(case.tables, 2 + seed % 4, seed)
    found, held = drive_versions(case, arrived, seed)
    return difference(reference(case.query, epochs=arrived, versions=held), found)


MIXED = (*STATELESS, "table_join", "table_join", "time_join", "time_aggregate", "count_aggregate", "distinct", "each")


@seeds(14)
def test_every_epoch_has_its_version(seed: int) -> None:
    text = check_versions(seed, MIXED)
    assert text is None, text


def zones(*names: str) -> pa.Table:
    return pa.table({"k": pa.array(range(len(names)), pa.int64()), "zone": list(names)})


def points(*keys: int, at: int = 0) -> pa.Table:
    times = pa.array([(at + n) * SECOND for n in range(len(keys))], pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "k": pa.array(keys, pa.int64())})


class Run:
    """A run over points and a table that a test changes by hand."""

    def __init__(self, folder: Path, given: pa.Table, **options: Any) -> None:
        self.given: Any = given
        self.folder, self.options = folder, options
        table = arrow_table(self.read, name="zones")
        self.query = table_stream(points(0), name="a").join(table, on="l.k = r.k").map("zone")
        self.open()

    def read(self) -> pa.Table:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def open(self) -> None:
        self.run = LocalRun(self.query, self.folder, **self.options)

    def again(self) -> None:
        self.run.close()
        self.open()

    def zones(self, *keys: int) -> list[str]:
        """What the points of one more epoch find."""
        number, sink = self.run.driver.progress.epoch + 1, self.run.sinks["result-0"]
        before = sink.table()
        self.run.epoch(points(*keys, at=10 * number))
        found = sink.table()
        new = found.slice(before.num_rows if before is not None else 0) if found is not None else None
        return sorted(new["zone"].to_pylist()) if new is not None else []

    @property
    def version(self) -> int:
        assert self.run.store.last is not None
        return self.run.store.last.tables["zones"].number


@pytest.fixture
def run(tmp_path: Path) -> Any:
    made = Run(tmp_path / "state", zones("a", "b"))
    yield made
    made.run.close()


def test_a_table_is_read_when_somebody_asks(run: Run) -> None:
    assert run.zones(0, 1) == ["a", "b"] and run.version == 1
    run.given = zones("c", "b")
    assert run.zones(0) == ["a"] and run.version == 1
    assert run.run.refresh("zones") == 2
    assert run.zones(0, 1) == ["b", "c"] and run.version == 2


def test_the_same_rows_in_another_order_are_the_same_version(run: Run) -> None:
    run.zones(0)
    first = run.run.store.last.tables["zones"]
    run.given = zones("a", "b").take([1, 0])
    assert run.run.refresh("zones") == 1
    run.zones(0)
    assert run.run.store.last.tables["zones"] == first


def test_what_was_read_and_never_used_is_no_version(run: Run) -> None:
    run.zones(0)
    for name in "cd":
        run.given = zones(name)
        assert run.run.refresh("zones") == 2
    assert run.zones(0) == ["d"] and run.version == 2
    run.given = zones("e")
    assert run.run.refresh("zones") == 3
    run.given = zones("d")
    assert run.run.refresh("zones") == 2
    assert run.zones(0) == ["d"] and run.version == 2


def while_one_runs(run: Run, patch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    """An epoch in the middle of which something happens."""

    def execute(epoch: Any, **given: Any) -> Any:
        what()
        return execute_locally(epoch, **given)

    with patch.context() as during:
        during.setattr("headrace.testing.local_run.execute_locally", execute)
        run.zones(0)


def test_what_is_read_while_an_epoch_runs_counts_from_the_next_one_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was there before that epoch: it uses another."""
    run.zones(0)
    for given, numbers in ((zones("c"), [3, 2, 3]), (zones("d"), [5, 4, 5])):
        run.given = given
        run.run.refresh("zones")
        told: list[int] = []

        def change(given: pa.Table = given, told: list[int] = told) -> None:
            for now in (zones("a", "b"), given, zones("a", "b")):
                run.given = now
                told.append(run.run.refresh("zones"))

        while_one_runs(run, monkeypatch, change)
        assert told == numbers and run.version == numbers[1]
        assert run.run.driver.table_versions.figures["zones"].version == numbers[-1]
        assert run.zones(1) == ["b"] and run.version == numbers[-1]


def test_an_epoch_that_fails_has_used_no_version(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that it had nor the one that came meanwhile is lost, or counted twice."""

    def fail(*meanwhile: pa.Table) -> None:
        for each in meanwhile:
            run.given = each
            run.run.refresh("zones")
        raise OSError("no task is left")

    run.zones(0)
    for meanwhile, found, version in (
        ([zones("a", "b")], ["a"], 1),
        ([zones("a", "b"), zones("c")], ["c"], 2),
        ([zones("d")], ["d"], 3),
    ):
        run.given = zones("c")
        run.run.refresh("zones")
        with pytest.raises(OSError, match="no task is left"):
            while_one_runs(run, monkeypatch, partial(fail, *meanwhile))
        assert run.zones(0) == found and run.version == version


@seeds(8)
def test_an_epoch_uses_what_was_read_last_before_it(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was read, again or in between, before the epoch, while another one ran, or while one ran that failed."""
    r = random.Random(seed)
    made = Run(tmp_path / "state", zones("a"))
    latest, committed, number = "a", "a", 1

    def read() -> None:
        nonlocal latest
        for _ in range(r.choice([0, 1, 2, 3])):
            latest = r.choice("aabc")
            made.given = zones(latest)
            made.run.refresh("zones")

    def fail() -> None:
        read()
        raise OSError("no task is left")

    made.zones(0)
    for _ in range(12):
        read()
        used, happens = latest, r.choice([read, read, fail])
        if r.random() < 0.2:
            made.again()
        if happens is fail:
            with pytest.raises(OSError, match="no task is left"):
                while_one_runs(made, monkeypatch, fail)
            continue
        number += used != committed
        committed = used
        while_one_runs(made, monkeypatch, read)
        assert (made.run.results()["zone"].to_pylist()[-1], made.version) == (used, number)
        assert made.run.driver.table_versions.figures["zones"].version == number + (latest != used)
    made.run.close()


def test_a_restart_with_other_content_is_a_new_version_and_is_said(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.zones(0)
    run.again()
    assert run.zones(1) == ["b"] and run.version == 1 and not caplog.records
    run.given = zones("c")
    run.again()
    assert run.zones(0) == ["c"] and run.version == 2
    assert "table zones is version 2 now, with 1 rows, from epoch 2 on" in caplog.text
    assert run.run.driver.progress.versions["zones"].version == 2


def test_a_table_that_cannot_be_read_stays_what_it_was_and_says_so(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.zones(0)
    run.given = OSError("the disk is gone")
    assert run.run.refresh("zones") == 1
    assert "table zones cannot be read, and stays at version 1: OSError: the disk is gone" in caplog.text
    assert run.run.driver.table_versions.figures["zones"].trouble == "OSError: the disk is gone"
    assert run.zones(0) == ["a"]
    run.again()
    assert run.zones(1) == ["b"] and run.version == 1
    run.given = zones("c")
    assert run.run.refresh("zones") == 2
    assert run.run.driver.table_versions.figures["zones"].trouble is None
    assert run.zones(0) == ["c"]


def test_at_the_very_first_time_that_is_an_error(tmp_path: Path) -> None:
    made = zones("a")
    table = arrow_table(lambda: made if made is not None else 1 / 0, name="zones")
    query = table_stream(points(0), name="a").join(table, on="l.k = r.k")
    made = None  # type: ignore[assignment]
    with pytest.raises(SourceError, match="table 'zones' cannot be read: ZeroDivisionError"):
        LocalRun(query, tmp_path / "state")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (zones("a").drop_columns(["zone"]), "no longer has exactly one column 'zone'; a function has k"),
        (
            zones("a").set_column(0, "k", pa.array(["text"])),
            "column 'k' of table zones changed its type from int64 to string",
        ),
    ],
)
def test_other_columns_are_no_version(run: Run, given: pa.Table, words: str) -> None:
    run.zones(0)
    run.given = given
    assert run.run.refresh("zones") == 1
    assert words in str(run.run.driver.table_versions.figures["zones"].trouble)
    with pytest.raises(SourceError, match="table zones does not hold what the query was built for"):
        reference(run.query, epochs=[points(0)], versions=[given])


def test_further_columns_are_not_looked_at(run: Run) -> None:
    run.zones(0)
    run.given = zones("a", "b").append_column("more", pa.array([1, 2])).select(["more", "zone", "k"])
    assert run.run.refresh("zones") == 1 and run.run.driver.table_versions.figures["zones"].trouble is None


def test_files_of_versions_go_when_no_manifest_needs_them(run: Run) -> None:
    for number in range(8):
        run.given = zones(f"zone {number}")
        run.run.refresh("zones")
        assert run.zones(0) == [f"zone {number}"]
    assert run.version == 8
    named = frozenset[str]().union(*run.run.store._named.values())
    assert set(run.run.store.storage.list("blocks")) - named == {head_name(7)}
    assert len(list((run.folder / "blocks").iterdir())) <= 2 * 3 + 1  # of three manifests: a table and a result


def test_one_that_is_due_is_read_beside_the_run(tmp_path: Path) -> None:
    made, read = zones("a"), threading.Event()

    def function() -> pa.Table:
        read.set()
        return made

    table = arrow_table(function, refresh="0.01 milliseconds", name="zones")
    run = LocalRun(table_stream(points(0), name="a").join(table, on="l.k = r.k"), tmp_path / "state")
    run.epoch(points(0))
    made = zones("b")
    read.clear()
    time.sleep(0.001)
    run.driver.table_versions.look()
    assert read.wait(5)
    while run.driver.table_versions.figures["zones"].version == 1:
        time.sleep(0.001)
    run.epoch(points(0, at=10))
    assert run.results()["zone"].to_pylist() == ["a", "b"]
    run.close()


def test_one_table_is_one_version_wherever_it_is_joined(tmp_path: Path) -> None:
    held = Changing(3, 9)
    table = arrow_table(held, name="t")
    s = table_stream(make_table(1, 40), name="a")
    query = s.join(table, on="l.k = r.k").map("l_k", "r_x").join(table, on="l.r_x = r.x and l.l_k is distinct from r.k")
    run = LocalRun(query, tmp_path / "state")
    run.epoch(make_table(1, 40), final=True)
    assert len(run.store.last.tables) == 1  # type: ignore[union-attr]
    same(reference(query), run.results())
    run.close()


def test_the_version_is_told_with_every_epoch(run: Run) -> None:
    told: list[Any] = []
    run.run.driver.listeners.add(told.append)
    run.zones(0)
    run.given = zones("c", "d", "e")
    run.run.refresh("zones")
    run.zones(0)
    run.run.driver.listeners.close()
    assert [(r.versions["zones"].version, r.versions["zones"].rows) for r in told] == [(1, 2), (2, 3)]
    assert told[-1].to_json()["versions"]["zones"]["version"] == 2


def test_a_block_that_is_no_version_of_the_table_is_refused(run: Run) -> None:
    """As a manifest would say that somebody edited."""
    run.zones(0)
    known = run.run.driver.table_versions._tables["zones"]
    assert known.known is not None
    other = write_block(run.run.store.storage, block_name(1, 0, 0, 0), points(0), None, None, None)
    known.known = replace(known.known, block=other)
    with pytest.raises(CorruptState, match=r"does not belong to table zones; missing columns: zone"):
        run.zones(0)


def test_one_table_beside_two_streams_of_which_different_columns_are_read(tmp_path: Path) -> None:
    """The two joins are equal as steps; what one of them puts out, nobody asked the other's source for."""
    table, seen = arrow_table(zones("a", "b"), name="zones"), points(0, 1, 0, 1)
    seen = seen.append_column("x", pa.array(range(4)))
    a, b = (table_stream(seen, name=name) for name in "ab")
    mine = a.join(table, on="l.k = r.k").map("zone", "x")
    query = mine.join(b.join(table, on="l.k = r.k").map("zone"), on="l.zone = r.zone", within="1 minute")
    for late in (True, False):
        same(reference(query), run_locally(query, tmp_path / str(late), keep_late=late), late)


# --- folders -----------------------------------------------------------------------------------------------------------


def held(table: Any) -> list[str]:
    found = [rows for _, rows in table.parts()]
    return pa.concat_tables(rows.select(["zone"]) for rows in found)["zone"].to_pylist()


def test_a_folder_is_all_its_files(tmp_path: Path) -> None:
    table = mounted_table(tmp_path)
    with pytest.raises(QueryError, match="to read the schema from"):
        hr.table(tmp_path)
    pq.write_table(zones("a"), tmp_path / "1.parquet")
    with pa.OSFile(str(tmp_path / "2.arrow"), "wb") as out, pa.ipc.new_file(out, zones("b").schema) as writer:
        writer.write_table(zones("b", "c").select(["k", "zone"]))
    pq.write_table(zones("never"), tmp_path / "_3.parquet")
    assert sorted(held(table)) == ["a", "b", "c"]
    assert hr.table(tmp_path, refresh="1 minute", name="zones").columns == ["k", "zone"]
    (tmp_path / "2.arrow").unlink()
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(SourceError, match="for a table without rows write a file without rows"):
        held(table)
    pq.write_table(zones("a").slice(0, 0), tmp_path / "1.parquet")
    assert held(table) == []


def test_a_folder_that_changes_while_it_is_read_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(zones("a"), tmp_path / "1.parquet")
    table = mounted_table(tmp_path)
    real = table._files.entries
    monkeypatch.setattr(
        type(table._files), "entries", lambda self: (real(), pq.write_table(zones("b"), tmp_path / "2.parquet"))[0]
    )
    with pytest.raises(SourceError, match="were changed while they were being read"):
        held(table)


def test_a_table_may_be_one_file(tmp_path: Path) -> None:
    path = tmp_path / "zones.parquet"
    with pytest.raises(QueryError, match=r"zones\.parquet' does not exist; hr\.table takes a folder"):
        hr.table(path)
    pq.write_table(zones("a"), path)
    pq.write_table(zones("never"), tmp_path / "2.parquet")
    table = mounted_table(path)
    assert hr.table(path, refresh="1 minute", name="zones").columns == ["k", "zone"]
    assert held(table) == ["a"]
    pq.write_table(zones("b", "c"), path)
    assert held(table) == ["b", "c"]
    path.unlink()
    with pytest.raises(SourceError, match=r"zones\.parquet' cannot be read: No such file"):
        held(table)
    (tmp_path / "zones.csv").write_text("k,zone\n1,a\n")
    with pytest.raises(QueryError, match=r"zones\.csv' is not a columnar file; hr\.table takes \*\.parquet"):
        hr.table(tmp_path / "zones.csv")


def test_a_table_whose_columns_are_given_need_not_be_there_when_the_query_is_built(tmp_path: Path) -> None:
    """So a run that has a version of it starts again while it is away."""
    given = zones("a").schema
    for place in (tmp_path / "zones", tmp_path / "zones.parquet"):
        table = hr.table(place, name="zones", schema=given)
        assert table.columns == ["k", "zone"]
        with pytest.raises(SourceError, match="cannot be"):
            table._table.origin.parts()
    pq.write_table(zones("b"), tmp_path / "zones.parquet")
    assert held(table._table.origin) == ["b"]
    with pytest.raises(QueryTypeError, match=r"schema must be a pyarrow\.Schema"):
        hr.table(tmp_path, schema=["k"])  # type: ignore[arg-type]


def test_files_of_a_folder_are_read_by_the_columns_that_the_query_knows(tmp_path: Path) -> None:
    """Whichever of them is the oldest: others may have columns more, and no value is brought to another type in silence."""
    known = zones("a").schema
    pq.write_table(zones("a").append_column("note", pa.array(["x"])), tmp_path / "1.parquet")
    pq.write_table(zones("b").select(["zone", "k"]), tmp_path / "2.parquet")
    assert sorted(read_rows(mounted_table(tmp_path), known, "zones")["zone"].to_pylist()) == ["a", "b"]
    floats = pa.table({"k": [1], "zone": pa.array([0.1], pa.float64())})
    pq.write_table(floats.set_column(1, "zone", floats["zone"].cast(pa.float32())), tmp_path / "0.parquet")
    with pytest.raises(
        SourceError, match=r"column 'zone' of table zones changed its type from string to float, in file"
    ):
        read_rows(mounted_table(tmp_path), known, "zones")


# --- how it is asked for and shown -------------------------------------------------------------------------------------


def small(**named: Any) -> tuple[Stream, Table]:
    return table_stream(points(0), name="a"), arrow_table(zones("a"), **{"name": "zones", **named})


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"on": "true", "within": "1 second"}, QueryError, "a table has no time, so a join with it has no window"),
        ({"on": "true", "last": 5}, QueryError, "found last=5"),
        ({"on": "true", "how": "right"}, QueryError, "takes how='inner' or how='left'; found 'right'"),
        ({"on": "l.k = r.ts"}, QueryError, "unknown column 'ts' of r; there are k, zone"),
        ({"on": "l.k + r.k"}, QueryError, "on"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    s, table = small()
    with pytest.raises(error, match=words):
        s.join(table, **given)


def test_what_is_no_table() -> None:
    s, table = small()
    with pytest.raises(QueryError, match="cannot have a column 'ts'"):
        arrow_table(points(0))
    with pytest.raises(QueryError, match="two tables are called 'zones'"):
        s.join(table, on="true").map("zone").join(small()[1], on="true")
    with pytest.raises(QueryTypeError, match="a table is joined"):
        s.union(table)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="filter is for streams, and a table is none"):
        table.filter("k > 1")
    for wrong in (3, zones("a"), [zones("a")]):
        with pytest.raises(QueryTypeError, match="static DataFrame, a folder or a function"):
            hr.table(wrong)  # type: ignore[arg-type]
    with pytest.raises(QueryTypeError, match="must return a static DataFrame; found 3"):
        hr.table(lambda: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(QueryError, match="does not exist"):
        hr.table("no such folder")


def test_versions_that_are_given() -> None:
    s, table = small()
    query, epoch = s.join(table, on="l.k = r.k").map("zone"), points(0)
    assert reference(query, versions=[zones("b")])["zone"].to_pylist() == ["b"]
    found = reference(query, epochs=[epoch, epoch], versions=[zones("b"), {"zones": zones("c")}])
    assert found["zone"].to_pylist() == ["b", "c"]
    assert reference(query, epochs=[epoch, epoch], versions=[zones("b"), {}])["zone"].to_pylist() == ["b", "b"]
    for wrong, words in (([], "found 0"), (zones("b"), "found one"), ([zones("b")] * 4, "found 4")):
        with pytest.raises(QueryError, match=words):
            reference(query, epochs=[epoch, epoch], versions=wrong)
    with pytest.raises(QueryError, match="unknown table 'x'"):
        reference(query, versions=[{"x": zones("b")}])
    with pytest.raises(QueryError, match="the query has none"):
        reference(s, versions=[zones("b")])


def test_it_says_what_it_is_and_makes_no_exchange(run: Run) -> None:
    s, table = small()
    query = s.join(table, on="l.k = r.k", how="left")
    assert "left join table zones on l.k = r.k" in repr(query)
    assert query.plan(slots=4).shuffles == 0
    assert "left join table zones on l.k = r.k" in query.explain()
    counted = s.aggregate(by=["k"], window="1 minute", n="count(*)").join(table, on="l.k = r.k")
    assert counted.aggregate(by=["l_k"], window="1 hour", n="count(*)").plan(slots=4).shuffles == 1
    assert counted.aggregate(by=["r_k"], window="1 hour", n="count(*)").plan(slots=4).shuffles == 2


def test_columns_that_nobody_reads_are_not_put_out(tmp_path: Path) -> None:
    from headrace.compile import compile_query

    left, right = sides(1)
    query = table_stream(left, name="a").join(arrow_table(right, name="t"), on="l.k = r.k and l.x < r.x")
    plan = compile_query([node_of(query.aggregate(by=["r_s"], window="1 minute", m="max(l_g)"))])
    (edge,) = [edge for edge in plan.edges if edge.producer == "a"]
    assert edge.steps[0].schema.names == ["ts", "l_g", "r_s"]  # type: ignore[union-attr]
    assert plan.sources[0].read.names == ["ts", "k", "x", "g"]


def test_a_predicate_that_fails_stops_the_run_and_is_named(tmp_path: Path) -> None:
    s, table = small()
    query = s.join(table, on="CAST(r.zone AS INT) = l.k")
    with pytest.raises(DataError, match=r"CAST\(r.zone AS INT\) = l.k"):
        run_locally(query, tmp_path / "state", errors="keep")
    with pytest.raises(DataError, match="CAST"):
        reference(query, errors="keep")


# --- broken on purpose -------------------------------------------------------------------------------------------------


def forgets_the_last_of_a_range(patch: pytest.MonkeyPatch) -> None:
    real = band.point_ranges
    patch.setattr(
        band, "point_ranges", lambda *given: (real(*given)[0], np.maximum(real(*given)[1] - 1, real(*given)[0]))
    )


def looks_up_other_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        table_join.IndexedTable,
        "by_hash",
        property(lambda self: (np.arange(self.rows.num_rows), np.zeros(self.rows.num_rows, np.uint64))),
    )


def forgets_tuples_without_a_row(patch: pytest.MonkeyPatch) -> None:
    real = table_join.side_by_side
    patch.setattr(
        table_join,
        "side_by_side",
        lambda step, left, right: real(step, left if right is not None else left.slice(0, 0), right),
    )


def keeps_tuples_that_have_a_row(patch: pytest.MonkeyPatch) -> None:
    real = table_join.join_table

    def twice(tuples: pa.Table, table: Any) -> Any:
        yield from real(tuples, table)
        if table.step.keep:
            yield table_join.side_by_side(table.step, tuples, None)

    patch.setattr("headrace.task.step_runner.join_table", twice)


def null_is_near_to_something(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_join, "_true", lambda tuples, table, l, r: np.arange(len(l)))


IN_ONE_VERSION = [
    forgets_the_last_of_a_range,
    looks_up_other_rows,
    forgets_tuples_without_a_row,
    keeps_tuples_that_have_a_row,
    null_is_near_to_something,
]


@pytest.mark.thorough
@pytest.mark.parametrize("canary", IN_ONE_VERSION)
def test_a_broken_one_is_seen(canary: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary(monkeypatch)

    def wrong(number: int, on: str) -> bool:
        left, right = sides(1)
        query = table_stream(left, name="a").join(arrow_table(right, name="t"), on=on, how="left")
        return difference(reference(query), run_locally(query, tmp_path / str(number))) is not None

    assert any(wrong(number, on) for number, on in enumerate(PREDICATES))


def goes_on_with_the_first(patch: pytest.MonkeyPatch) -> None:
    real = table_join.indexed_table
    patch.setattr("headrace.task.step_runner.indexed_table", lambda step, rows, checksum: real(step, rows, "the same"))


def reads_no_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        table_versions.TableVersions,
        "_take",
        lambda self, table, found: None if table.known else setattr(table, "read", found),
    )


OF_VERSIONS = [goes_on_with_the_first, reads_no_more]


@pytest.mark.thorough
@pytest.mark.parametrize("canary", OF_VERSIONS)
def test_a_version_that_is_not_the_right_one_is_seen(
    canary: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    canary(monkeypatch)
    assert any(check_versions(seed, ("table_join", "filter")) is not None for seed in range(40))
