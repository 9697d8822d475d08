"""State that is carried over to another query: what means the same goes on as if nothing had happened, what is new is
complete from when the report says, and a kill at any step leaves the old checkpoint whole."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.cli import explain_output
from headrace.columnar.types import TS_TYPE
from headrace.control.policy import Policy
from headrace.difference import difference, unmatched_rows
from headrace.errors import QueryChanged, QueryError, StateError, StateMismatch, WriterConflict
from headrace.evolve import migrate
from headrace.reference import reference
from headrace.sources import TableOrigin
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.support.event_time import to_datetime, to_micros
from headrace.telemetry.epoch_record import record_from_manifests
from headrace.testing import LocalRun, table_stream
from tests.processors import Counter

from .test_changes import (
    EPOCHS,
    SECOND,
    STATES,
    UTC,
    counted,
    emitted,
    rows,
    run_on,
    several,
    since,
    stream,
    undelivered,
)


def migrate_queries(old: Path, new: Path, queries: list[Stream]) -> migrate.Migration:
    return migrate.migrate(old, new, [node_of(query) for query in queries], [False] * len(queries), "False")


def contents(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def wider(s: Stream) -> Stream:
    return s.aggregate(by=["user"], window="4 seconds", x="sum(n)").map("x")


FEW = ["count", "join", "processor", "chain"]
KEPT = [*FEW, "panes", "tuples", "any join", "count join", "distinct", "asof", "each"]


def test_what_reads_an_added_function_begins_after_its_last_null(tmp_path: Path) -> None:
    """A window of ten seconds that is null for the added function gives tuples to later windows of two seconds."""
    old, new = tmp_path / "old", tmp_path / "new"
    table = pa.table({"ts": pa.array([at * SECOND for at in range(20)], pa.timestamp("us", "UTC")), "x": range(20)})
    s = table_stream(table, name="a")

    def first(**functions: str) -> Stream:
        return s.aggregate(by="x", window="10 seconds", n="count(*)", **functions)

    for query, start, stop in ((first(), 0, 5), (first(m="max(x)"), 5, 7)):
        run = LocalRun(query, old / "state")
        run.epoch(table.slice(start, stop - start))
        run.close()
    second = first(m="max(x)").aggregate(window="2 seconds", all="count(*)", known="count(m)")
    found = migrate_queries(old, new, [second])
    assert "windows that began before 1970-01-01T00:00:14.000001+00:00 are not emitted" in "".join(found.lines)
    run = LocalRun(second, new / "state")
    run.epoch(table.slice(7), final=True)
    assert run.results().select(["all", "known"]).to_pylist() == [{"all": 2, "known": 2}] * 2
    run.close()


def test_decisions_follow_their_operator(tmp_path: Path) -> None:
    """The name of a band join then belongs to another join, which has no ranges that a decision could be judged by."""
    old, new = tmp_path / "old", tmp_path / "new"
    rng = np.random.default_rng(1)
    table = pa.table({"ts": pa.array(np.arange(2_400) * 10_000, TS_TYPE), "x": rng.random(2_400) * 100})
    left, right = (table_stream(table, lateness="5 seconds", name=name) for name in ("left", "right"))
    band = left.join(right, on="abs(l.x - r.x) <= 0.1", within="10 seconds")
    other = left.join(right, on="l.x * 1000 < r.x", within="10 seconds")

    def run(queries: list[Stream], folder: Path, epochs: range) -> list[dict[str, Any]]:
        run = LocalRun(queries, folder / "state", slots=8, policy=Policy(every=1))
        found = run.driver.layouts.decisions
        for epoch in epochs:
            run.epoch({name: table.slice(epoch * 600, 600) for name in ("left", "right")})
        run.close()
        return found

    run([band], old, range(2))
    migrate_queries(old, new, [other, band])
    decisions = run([other, band], new, range(2, 4))
    assert {(each["operator"], each["kind"]) for each in decisions} == {("join-2", "ranges")}


@pytest.mark.parametrize("kept", [FEW, pytest.param(KEPT, marks=pytest.mark.long)], ids=["few", "all"])
def test_what_means_the_same_goes_on_under_whatever_name(kept: list[str], tmp_path: Path) -> None:
    """Every kind of state; something else comes before each of them, so all are called otherwise."""
    old, new = tmp_path / "old", tmp_path / "new"
    run_on(LocalRun(several("sessions", *kept), old / "state", slots=2), [0, 1])
    before = contents(old)
    s = stream()
    first = [wider(s), s.join(s, on="l.user = r.user and l.n = r.n", within="2 seconds").map(x="l_n")]
    queries = [*first, *(STATES[state](s).map("x") for state in kept)]
    done = migrate_queries(old, new, queries)
    assert contents(old) == before
    assert done.lines[0].startswith("lost: aggregate-1: functions was") and "session was 1000000" in done.lines[0]
    assert sum(line.startswith("kept: ") for line in done.lines) == len(kept) + ("chain" in kept) + (
        "count join" in kept
    )
    run = LocalRun(queries, new / "state", slots=3)
    run_on(run, [2, 3], end=True)
    for place, state in enumerate(kept, start=2):
        wanted = emitted(STATES[state](stream()).map("x"), 2, None)
        assert wanted.num_rows and difference(wanted, since(run, 2, f"result-{place}")) is None, state
    for place, wanted in enumerate([wider(stream()), first[1]]):
        begins = done.complete[f"result-{place}"]
        assert begins is not None
        whole, found = emitted(wanted, 2, None), run.results(f"result-{place}")
        later = [table.filter(pa.compute.greater_equal(table["ts"], to_datetime(begins))) for table in (whole, found)]
        assert later[0].num_rows and difference(*later) is None, place
        assert unmatched_rows(whole, found)[0].num_rows, "before that something is missing, or the oracle sees nothing"
        assert place == 1 or not unmatched_rows(whole, found)[1].num_rows, "no window was emitted half filled"
    old_again = LocalRun(several("sessions", *kept), old / "state")  # which can still be gone on with
    run_on(old_again, [2])
    assert difference(emitted(STATES[kept[0]](stream()).map("x"), 2, 3), since(old_again, 2, "result-1")) is None


def test_the_report_says_what_stands_in_the_manifest(tmp_path: Path) -> None:
    run_on(LocalRun(counted(stream()), tmp_path / "old" / "state"), [0, 1])
    s = stream(lateness="1 second")
    done = migrate_queries(
        tmp_path / "old", tmp_path / "new", [counted(s), STATES["sessions"](s), counted(s).filter("x > 1")]
    )
    largest = max(rows(0)["ts"].to_pylist() + rows(1)["ts"].to_pylist())
    began = (largest + dt.timedelta(microseconds=1)).astimezone(dt.UTC).isoformat()
    first = to_datetime((to_micros(largest) // (2 * SECOND) + 1) * 2 * SECOND).isoformat()
    assert list(done.lines) == [
        "kept: aggregate-1",
        f"added: aggregate-2: begins empty; windows that began before {_later(began, 1)} are not emitted",
        f"added: aggregate-3: begins empty; windows that began before {began} are not emitted; the first window that is"
        f" emitted begins at {first}",
        "source s: lateness was 5000000, is 1000000: while the state continues it can only become longer",
        "result-1 is new",
        "result-2 is new",
        "result-1 needs input from before the query was changed, which is missing, so it is never complete",
        f"result-2 is complete from {_later(began, 3)} on; before, input from before the query was changed is missing",
    ]
    with StateStore.open(tmp_path / "new" / "state", read_only=True) as store:
        assert store.last is not None
        assert store.last.query["changes"] == [{"epoch": 2, "said": ["migrated", *done.lines]}]


def test_the_report_has_the_names_of_results_and_the_manifest_has_not(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    s = stream()
    run_on(LocalRun([counted(s), s.map("n")], old / "state"), [0])
    queries = [s.filter("n > 3").map("n"), counted(s.filter("n > 0"))]
    labels = {"result-0": "large", "result-1": "counts"}
    done = migrate.migrate(old, new, [node_of(query) for query in queries], [False, False], "False", labels)
    begun = [line.partition(": ")[0] for line in done.lines]
    assert begun == ["lost", "added", "large (result-0)", "counts (result-1)", done.lines[-1]]
    assert done.lines[-1].startswith("counts (result-1) is complete from ")
    with StateStore.open(new / "state", read_only=True) as store:
        assert store.last is not None
        _, *stored = store.last.query["changes"][0]["said"]
    assert "large" not in str(stored) and [line.partition(":")[0] for line in stored][2:4] == ["result-0", "result-1"]


def stored(folder: Path) -> int:
    """Return how many rows were delivered into the folder or the database."""
    if (folder / "out.db").exists():
        with closing(sqlite3.connect(folder / "out.db")) as connection:
            return int(connection.execute("SELECT count(*) FROM results").fetchone()[0])
    return sum(pq.read_metadata(path).num_rows for path in (folder / "out").rglob("*.parquet"))


SINKS: dict[str, Callable[[Path], Any]] = {
    "files": lambda folder: hr.sinks.parquet(folder / "out"),
    "parts": lambda folder: hr.sinks.parquet(folder / "out", parts=True),
    "database": lambda folder: hr.sinks.database(f"sqlite:///{folder}/out.db", "results"),
}


@pytest.mark.parametrize("kind", SINKS)
def test_the_new_checkpoint_continues_the_results_and_the_old_one_no_longer_can(kind: str, tmp_path: Path) -> None:
    def run(place: str, *epochs: int, end: bool = False) -> None:
        with closing(LocalRun(counted(stream()), tmp_path / place / "state", sink=SINKS[kind](tmp_path))) as run:
            for number in epochs:
                run.epoch(rows(number))
            if end:
                run.end()

    run("old", 0, 1)
    migrate_queries(tmp_path / "old", tmp_path / "new", [counted(stream())])
    run("new", *range(2, EPOCHS), end=True)
    assert stored(tmp_path) == emitted(counted(stream()), 0, None).num_rows
    with pytest.raises(hr.HeadraceError, match=r"as after (a checkpoint|it) was restored from a backup"):
        run("old", 3, 2)  # other rows: a folder cannot tell the same ones from a repeated delivery


@pytest.mark.parametrize("function", ["sum(n)", "list(n)[1]"])
def test_windows_that_would_be_half_filled_are_not_put_out_and_results_say_from_when_on_they_are_complete(
    function: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def query() -> list[Stream]:
        s = stream()
        return [counted(s), s.aggregate(by=["user"], window="4 seconds", every="2 seconds", x=function)]

    old, new = tmp_path / "old", tmp_path / "new"
    run_on(LocalRun(query()[0], old / "state"), [0, 1])
    done = migrate_queries(old, new, query())
    begins = 1 + max(value.value for number in (0, 1) for value in rows(number)["ts"])
    iso = to_datetime(begins + 4_000_000).isoformat()
    found = []
    for epochs, incomplete in (([2], {"result-1": iso}), ([3, 6], {}), ([], {})):
        caplog.clear()
        run = LocalRun(query(), new / "state", slots=2)
        said = f"result-1 is complete from {iso} on; before, input from before the query was changed is missing"
        assert (said in caplog.text) == (epochs != []), "at every start while it holds"
        assert said in done.lines
        for number in epochs:
            run.epoch(rows(number))
        assert run.driver.progress.incomplete == incomplete
        record = record_from_manifests(run.store.previous, run.store.last)
        assert (f"result-1: complete from {iso} on" in explain_output._newest(record)) == bool(incomplete)
        if not epochs:
            run.end()
        found.append(since(run, 2 + len(found) + (len(found) > 1), "result-1"))  # without what is delivered again
        run.close()
    whole = reference(query()[1], epochs=[{"s": rows(number)} for number in (0, 1, 2, 3, 6)])
    wanted = whole.filter(pa.compute.greater_equal(whole["window_start"], to_datetime(begins)))
    assert wanted.num_rows and difference(wanted, pa.concat_tables(found)) is None


def _later(text: str, seconds: int) -> str:
    return (dt.datetime.fromisoformat(text) + dt.timedelta(seconds=seconds)).isoformat()


def test_an_operator_whose_tuples_lack_a_column_begins_anew_and_so_does_what_it_feeds(tmp_path: Path) -> None:
    def joined(column: str) -> Stream:
        s = stream()
        found = s.join(s, on="l.user = r.user", within="1 second")
        return found.map("l_user", x=column).aggregate(by=["l_user"], window="2 seconds", m="count(*)", x="max(x)")

    run_on(LocalRun(joined("l_n"), tmp_path / "old" / "state"), [0])
    done = migrate_queries(tmp_path / "old", tmp_path / "new", [joined("ascii(l_kind)")])
    assert [line.partition(":")[0] for line in done.lines].count("kept") == 0
    run_on(LocalRun(joined("ascii(l_kind)"), tmp_path / "new" / "state"), [1], end=True)


def test_sources_come_and_go(tmp_path: Path) -> None:
    one, two = stream(), table_stream(rows(0), name="t", lateness="5 seconds")
    pair = counted(one).map("x"), counted(two).map("x")
    run = LocalRun(list(pair), tmp_path / "old" / "state")
    run.epoch({"s": rows(0), "t": rows(1)})
    run.close()
    three = table_stream(rows(0), name="u", lateness="5 seconds")
    done = migrate_queries(tmp_path / "old", tmp_path / "new", [pair[0], counted(three).map("x")])
    assert done.lines[:2] == ("lost: t: its name was 't', is 'u'", "lost: aggregate-2: its input was t, is u")
    assert done.complete == {}, "all of its source comes from now on"
    run = LocalRun([pair[0], counted(three).map("x")], tmp_path / "new" / "state")
    run.epoch({"s": rows(1), "u": rows(0)})
    run.end()
    totals = run.store.last.totals
    assert (totals.delivered, totals.accepted) == (90, 90)
    assert sorted(run.store.last.sources) == ["s", "u"]
    run.close()


def test_results_that_wait_in_an_order_that_is_lost_are_counted(tmp_path: Path) -> None:
    run = LocalRun(counted(stream()), tmp_path / "old" / "state", ordered=True)
    run_on(run, [0, 1])
    waiting = sum(block.rows for block in run.store.last.operators["order-1"].blocks)
    done = migrate_queries(tmp_path / "old", tmp_path / "new", [counted(stream())])
    assert waiting and done.lines[0] == (
        f"lost: order-1: the query no longer has it; {waiting} results wait in it for earlier ones and would never be"
        " delivered"
    )


def test_an_outer_join_that_is_added_is_complete_from_some_time_on_and_an_order_lacks_nothing(tmp_path: Path) -> None:
    run_on(LocalRun(counted(stream()), tmp_path / "old" / "state"), [0, 1])
    s = stream()
    outer = s.join(s.filter("n > 5"), on="l.user = r.user and l.n = r.n", within="2 seconds", how="left").map(x="r_n")
    roots = [node_of(counted(s)), node_of(outer)]
    done = migrate.migrate(tmp_path / "old", tmp_path / "new", roots, [True, False], "False")
    largest = max(value.value for number in (0, 1) for value in rows(number)["ts"])
    assert done.complete == {"result-1": largest + 1 + 2_000_000}


# --- windows that would be half filled behind other operators --------------------------------------------------------------------


SIZE = 4 * SECOND


def windows(s: Stream) -> Stream:
    return s.aggregate(window="4 seconds", n="count(*)")


ADDED: dict[
    str, tuple[Callable[[Stream], Stream], int | None]
] = {  # what is added before it, and how far that looks back
    "nothing": (lambda s: s, 0),
    "distinct": (lambda s: s.distinct(by=["n"], within="1 second"), None),
    "asof": (lambda s: s.asof(s.filter("kind = 'x'"), by=["user"], how="left"), None),
    "asof within": (lambda s: s.asof(s.filter("kind = 'x'"), by=["user"], within="2 seconds", how="left"), 2 * SECOND),
    "count windows": (lambda s: s.aggregate(by=["user"], last=1, m="max(n)"), None),
    "count join": (lambda s: s.join(s, on="l.n = r.n", last=2), None),
    "sessions": (lambda s: s.aggregate(by=["n"], session="0.1 seconds", m="max(n)"), None),
    "time windows": (counted, 3 * SECOND),
    "join": (lambda s: s.join(s, on="l.n = r.n", within="1 second"), 0),
    "left join": (lambda s: s.join(s.filter("n > 5"), on="l.n = r.n", within="1 second", how="left"), SECOND),
    "processor": (lambda s: s.split(2, by=["user"]).apply(Counter()), None),
    "each": (lambda s: s.split(2, by=["user"]).each(lambda t: t.distinct(by=["n"], within="1 second")), None),
}


@pytest.mark.parametrize(
    "before",
    [name if name in ("distinct", "left join") else pytest.param(name, marks=pytest.mark.thorough) for name in ADDED],
)
def test_no_window_is_half_filled_behind_another_added_operator(before: str, tmp_path: Path) -> None:
    """Windows are emitted from the time on from which all of their input is complete; without such a time, never."""
    made, back = ADDED[before]

    def query() -> list[Stream]:
        s = stream()
        return [STATES["panes"](s), windows(made(s))]

    run_on(LocalRun(query()[0], tmp_path / "old" / "state"), [0, 1])
    done = migrate_queries(tmp_path / "old", tmp_path / "new", query())
    largest = max(value.value for number in (0, 1) for value in rows(number)["ts"])
    begins = None if back is None else largest + 1 + back
    assert done.complete == {"result-1": None if begins is None else begins + SIZE}
    withheld = (
        "no window is emitted" if begins is None else f"windows that began before {to_datetime(begins).isoformat()}"
    )
    assert any(line.startswith("added: aggregate") and withheld in line for line in done.lines)
    run = LocalRun(query(), tmp_path / "new" / "state", slots=2)
    run_on(run, [2, 3], end=True)
    whole = emitted(query()[1], 0, None)
    wanted = (
        whole.slice(0, 0)
        if begins is None
        else whole.filter(pc.greater_equal(whole["window_start"], to_datetime(begins)))
    )
    assert wanted.num_rows or begins is None
    assert difference(wanted, run.results("result-1")) is None
    assert sum(run.driver.progress.withheld.values()), "windows began before that time, and are counted"


def test_no_session_is_half_filled_and_those_that_are_withheld_are_counted(tmp_path: Path) -> None:
    def query() -> list[Stream]:
        s = stream()
        return [counted(s), s.aggregate(by=["n"], session="0.5 seconds", x="sum(n)")]

    run_on(LocalRun(query()[0], tmp_path / "old" / "state"), [0, 1])
    done = migrate_queries(tmp_path / "old", tmp_path / "new", query())
    assert done.complete == {"result-1": None}, "a session may go on for any time"
    run = LocalRun(query(), tmp_path / "new" / "state", slots=2)
    run_on(run, [2, 3], end=True)
    begins = 1 + max(value.value for number in (0, 1) for value in rows(number)["ts"]) + SECOND // 2
    whole, found = emitted(query()[1], 0, None), run.results("result-1")
    wanted = whole.filter(pc.greater_equal(whole["window_start"], to_datetime(begins)))
    assert wanted.num_rows and difference(wanted, found) is None
    assert run.driver.progress.withheld["aggregate-2"] > 0


class Later(hr.Processor):
    """Every tuple again, six seconds after it."""

    schema = pa.schema([("ts", UTC), ("user", pa.string())])

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        at = pa.array([value.value + 6 * SECOND for value in tuples["ts"]], pa.int64()).cast(UTC)
        return pa.table({"ts": at, "user": tuples["user"]}, schema=self.schema)


def announced() -> list[Stream]:
    later = stream().split(3, by=["user"]).apply(Later())
    return [later, windows(later)]


def test_no_window_is_half_filled_behind_a_processor_whose_results_are_later_than_their_cause(tmp_path: Path) -> None:
    run = LocalRun(announced()[0], tmp_path / "old" / "state", slots=3)
    run_on(run, [0, 1])
    emitted_last = max(value.value for value in run.results()["ts"])
    done = migrate_queries(tmp_path / "old", tmp_path / "new", announced())
    assert done.complete == {"result-1": emitted_last + 1 + SIZE}
    run = LocalRun(announced(), tmp_path / "new" / "state")
    run_on(run, [2, 3], end=True)
    whole = emitted(announced()[1], 0, None)
    wanted = whole.filter(pc.greater(whole["window_start"], to_datetime(emitted_last)))
    assert wanted.num_rows and difference(wanted, run.results("result-1")) is None


def test_what_was_added_once_is_incomplete_for_what_is_added_behind_it_later(tmp_path: Path) -> None:
    """A second migration knows what the first one began; and so does a result that a restart adds."""

    def query() -> list[Stream]:
        s = stream()
        once = s.distinct(by=["user"], within="1 hour")
        return [counted(s), once.map("user"), windows(once), once.map(y="n")]

    run_on(LocalRun(query()[0], tmp_path / "one" / "state"), [0, 1])
    assert migrate_queries(tmp_path / "one", tmp_path / "two", query()[:2]).complete == {"result-1": None}
    run_on(LocalRun(query()[:2], tmp_path / "two" / "state"), [2])
    assert migrate_queries(tmp_path / "two", tmp_path / "three", query()[:3]).complete == {"result-2": None}
    run = LocalRun(query()[:3], tmp_path / "three" / "state")
    run_on(run, [3], end=True)
    assert not run.results("result-2").num_rows and run.driver.progress.withheld == {"aggregate-2": 1}
    first, second, _, added = query()
    run = LocalRun([first, second, added], tmp_path / "two" / "state")
    assert run.driver.progress.incomplete == {"result-1": None, "result-2": None}
    run.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_result_that_is_kept_keeps_its_state_whatever_twin_is_added(first: bool, tmp_path: Path) -> None:
    def query() -> list[Stream]:
        s = stream()
        seen, odd = (s.distinct(by=["n"], within="5 seconds") for _ in range(2))
        both = [seen.map("user"), odd.filter("n % 2 = 1").map("kind")]
        return both[::-1] if first else both

    place = int(first)
    run_on(LocalRun(query()[place], tmp_path / "old" / "state"), [0, 1])
    done = migrate_queries(tmp_path / "old", tmp_path / "new", query())
    assert done.complete == {f"result-{1 - place}": None}
    run = LocalRun(query(), tmp_path / "new" / "state", slots=2)
    run_on(run, [2, 3], end=True)
    wanted = emitted(query()[place], 2, None)
    assert wanted.num_rows and difference(wanted, since(run, 2, f"result-{place}")) is None


# --- what is refused ---------------------------------------------------------------------------------------------------------


def test_a_new_folder_lies_beside_the_old_one(tmp_path: Path) -> None:
    run_on(LocalRun(counted(stream()), tmp_path / "old" / "state"), [0])
    before = contents(tmp_path)
    for to in (tmp_path / "old" / "new", tmp_path / "other" / ".." / "old" / "new", tmp_path):
        with pytest.raises(QueryError, match=r"already exists|are nested"):
            migrate_queries(tmp_path / "old", to, [counted(stream())])
    assert contents(tmp_path) == before


class Placed(TableOrigin):
    """A source that can tell what it reads."""

    bounded = False

    def __init__(self, place: str) -> None:
        super().__init__(rows(0))
        self.place = place


def test_a_source_that_reads_something_else_is_refused_as_a_run_would(tmp_path: Path) -> None:
    def placed(place: str) -> Stream:
        return counted(Stream(replace(node_of(stream()), origin=Placed(place))))

    run = LocalRun(placed("here"), tmp_path / "old" / "state")
    run.driver.places = {"s": "here"}
    run_on(run, [0])
    with pytest.raises(QueryChanged, match="source 's' read 'here', now it is 'there'"):
        migrate_queries(tmp_path / "old", tmp_path / "new", [placed("there")])
    migrate_queries(tmp_path / "old", tmp_path / "new", [placed("here")])


def test_a_source_may_be_called_as_an_order_is(tmp_path: Path) -> None:
    run_on(LocalRun(counted(stream()), tmp_path), [0])
    other = table_stream(rows(0), name="order-eu", lateness="5 seconds")
    with pytest.raises(QueryChanged, match="added: order-eu: a source that was not read before"):
        LocalRun([counted(stream()), other.map("n")], tmp_path)


def test_what_cannot_be_migrated(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    query = counted(stream())
    with pytest.raises(StateError, match=r"old does not exist\. Give the checkpoint of a query"):
        migrate_queries(old, new, [query])
    assert not old.exists()
    old.mkdir()
    with pytest.raises(StateError, match="holds no state"):
        migrate_queries(old, new, [query])
    old.rmdir()
    run = LocalRun(query, old / "state")
    with pytest.raises(WriterConflict):
        migrate_queries(old, new, [query])
    run.close()
    with pytest.raises(StateError, match="has no committed epoch"):
        migrate_queries(old, new, [query])
    run_on(LocalRun(query, old / "state"), [0, 1])
    new.mkdir()
    with pytest.raises(QueryError, match="already exists"):
        migrate_queries(old, new, [query])
    with pytest.raises(QueryChanged, match="impossible: order was 'False', is 'transparent'"):
        migrate.migrate(old, tmp_path / "other", [node_of(query)], [False])
    undelivered(query, tmp_path / "waits" / "state")
    with pytest.raises(StateMismatch, match="may not have reached their sinks"):
        migrate_queries(tmp_path / "waits", tmp_path / "other", [query])
    run_on(LocalRun(query, old / "state"), [2], end=True)
    with pytest.raises(StateMismatch, match="closed"):
        migrate_queries(old, tmp_path / "other", [query])
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "waits"}


# --- kills -------------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a kill would: nothing is tidied up behind it."""


@contextmanager
def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """In the step-th call of whatever makes, links, writes, syncs or renames; the calls so far."""
    calls: list[str] = []

    def watched(what: str, function: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            calls.append(what)
            if len(calls) == step + 1:
                raise Killed
            return function(*given, **options)

        return call

    with monkeypatch.context() as patched:
        for owner, names in {
            os: ("link", "mkdir", "fsync", "rename", "unlink"),
            shutil: ("copytree", "rmtree"),
            os.path: ("lexists",),
        }.items():
            for name in names:
                patched.setattr(owner, name, watched(name, getattr(owner, name)))
        yield calls


@pytest.mark.thorough
def test_killed_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own and of the attempt after it: the old one is whole, and nobody finds half a new one."""
    old, new = tmp_path / "old", tmp_path / "new"
    run_on(LocalRun(several("panes", "join", "processor"), old / "state"), [0, 1])
    (old / "spark" / "offsets").mkdir(parents=True)
    (old / "spark" / "offsets" / "0").write_text("v1")
    before = contents(old)
    s = stream()
    queries = [wider(s), STATES["join"](s).map("x"), STATES["processor"](s).map("x")]
    with StateStore.open(old / "state", read_only=True) as store:
        (tmp_path / f"_new-{store.state_id[:8]}").mkdir()  # of an attempt before these
    done, steps = False, []
    for step in range(200):
        try:
            with killed_at(step, monkeypatch) as calls:
                migrate_queries(old, new, queries)
            done = True
        except Killed:
            steps.append(calls[-1])
        assert contents(old) == before
        assert new.exists() == done or (calls[-1] == "fsync" and steps.count("rename") == 1), "it comes by the rename"
        if new.exists():
            break
    assert set(steps) >= {"link", "mkdir", "fsync", "copytree", "rename", "rmtree"}, "each of them was the last once"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    assert (new / "spark" / "offsets" / "0").read_text() == "v1"
    shutil.rmtree(old)  # the new one stands by itself
    run = LocalRun(queries, new / "state")
    run_on(run, [2, 3], end=True)
    for place, state in ((1, "join"), (2, "processor")):
        assert difference(emitted(STATES[state](stream()).map("x"), 2, None), since(run, 2, f"result-{place}")) is None


KILLED = """
import os, signal, sys
from pathlib import Path
from headrace.evolve import migrate as migrating
from tests.oracle.test_migrate import migrate_queries, wider
from tests.oracle.test_changes import STATES, stream
whole = migrating.StateStore
def last_look(*given, **options):
    if "lease" not in options:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*given, **options)
last_look.open = whole.open
migrating.StateStore = last_look
s = stream()
migrate_queries(Path(sys.argv[1]), Path(sys.argv[2]), [wider(s), STATES["join"](s).map("x")])
"""


@pytest.mark.thorough
def test_a_real_kill(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run_on(LocalRun(several("panes", "join"), old / "state"), [0, 1])
    before = contents(old)
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", KILLED, str(old), str(new)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == -signal.SIGKILL, found.stderr.decode()[-2000:]
    assert contents(old) == before and not new.exists()
    assert len(list(tmp_path.iterdir())) == 2, "what it began"
    s = stream()
    queries = [wider(s), STATES["join"](s).map("x")]
    migrate_queries(old, new, queries)
    assert len(list(tmp_path.iterdir())) == 2
    run = LocalRun(queries, new / "state")
    run_on(run, [2, 3], end=True)
    assert difference(emitted(STATES["join"](stream()).map("x"), 2, None), since(run, 2, "result-1")) is None
