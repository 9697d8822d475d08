"""A query that changes between two lives of its state: what touches no state may, and the answer is that of a query which
had never stopped: until the change the former's results, from then on the new one's."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.compile import CompiledQuery, plan_of
from headrace.difference import difference, unmatched_rows
from headrace.errors import QueryChanged, QueryError, SinkError
from headrace.evolve import compare
from headrace.reference import reference
from headrace.sources import TableOrigin
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.testing import LocalRun, arrow_table, table_stream
from tests.processors import Counter, Sessions

UTC = pa.timestamp("us", "UTC")
SECOND = 1_000_000
EPOCHS = 4
Tail = Callable[[Stream], Stream]


def rows(number: int, size: int = 30) -> pa.Table:
    """The input of one epoch: four seconds, out of order within two."""
    r = random.Random(number)
    return pa.table(
        {
            "ts": pa.array([(4 * number + 1) * SECOND + r.randrange(4 * SECOND) for _ in range(size)], UTC),
            "user": [r.choice("abcd") for _ in range(size)],
            "kind": [r.choice("xy") for _ in range(size)],
            "n": [r.randrange(10) for _ in range(size)],
        }
    )


def stream(**options: Any) -> Stream:
    return table_stream(rows(0), name="s", **{"lateness": "5 seconds", **options})


def counted(s: Stream) -> Stream:
    return s.aggregate(by=["user"], window="3 seconds", every="2 seconds", x="sum(n)")


def several_times(s: Stream) -> Stream:
    return hr.join({"a": s, "b": s.filter("n < 4"), "c": s}, on="a.user = b.user and b.n < c.n", within="1 second")


STATES: dict[str, Callable[[Stream], Stream]] = {
    "none": lambda s: s.map(x="n"),
    "panes": counted,
    "tuples": lambda s: s.aggregate(by=["user"], window="3 seconds", x="list(n)[1]"),
    "sessions": lambda s: s.aggregate(by=["user"], session="1 second", x="count(*)"),
    "count": lambda s: s.aggregate(by=["user"], last=3, x="sum(n)"),
    "join": lambda s: s.join(s, on="l.user = r.user and l.n < r.n", within="1 second").map("l_n", x="l_n"),
    "any join": lambda s: s.join(s, on="l.n + 3 < r.n", within="1 second").map("l_n", x="r_n"),
    "join of several": lambda s: several_times(s).map(x="b_n"),
    "count join": lambda s: s.join(s.filter("n < 4"), on="l.n = r.n", last=(3, 5)).map("l_n", x="l_n"),
    "distinct": lambda s: s.distinct(by=["user"], within="1 second").map(x="n"),
    "asof": lambda s: s.asof(s.filter("kind = 'x'"), by=["user"]).map(x="r_n"),
    "processor": lambda s: s.split(4, by=["user"]).apply(Counter()).map(x="seen"),
    "each": lambda s: s.split(3, by=["user"]).each(lambda t: t.aggregate(window="3 seconds", x="count(*)")),
    "chain": lambda s: counted(s).aggregate(by=["x"], window="10 seconds", x2="count(*)").map(x="x2 + 2"),
}
TAILS: dict[str, Tail] = {
    "as it is": lambda q: q.map("x"),
    "filter": lambda q: q.map("x").filter("x > 2"),
    "map": lambda q: q.map(y="x * 10", z="x"),
    "case": lambda q: q.case("x > 2")[1].map("x"),
    "sample": lambda q: q.map("x").sample(0.6, by=["x"]),
}


def emitted(query: Stream, first: int, last: int | None) -> pa.Table:
    """What a run that never stopped puts out in some epochs, to the end if there is no last."""
    epochs = [{"s": rows(number)} for number in range(EPOCHS)]
    whole = reference(query, epochs=epochs[:last], end=last is None)
    before = reference(query, epochs=epochs[:first], end=False) if first else whole.slice(0, 0)
    missing, extra = unmatched_rows(whole, before)
    assert not extra.num_rows, "results are never taken back"
    return missing


def run_on(run: LocalRun, epochs: Sequence[int], *, end: bool = False) -> pa.Table:
    for number in epochs:
        run.epoch(rows(number), splitters=2)
    if end:
        run.end()
    run.close()
    return run.results()


def since(run: LocalRun, epoch: int, result: str = "result-0") -> pa.Table:
    """Without what was delivered once more, since it may not have reached its sink."""
    epochs = run.sinks[result].epochs
    return pa.concat_tables([run.schemas[result].empty_table(), *(epochs[key] for key in epochs if key[1] >= epoch)])


@pytest.mark.parametrize(
    ("state", "tail"),
    [*((state, "filter") for state in STATES), *(("panes", tail) for tail in ("map", "case", "sample"))],
)
def test_steps_behind_the_last_state_may_change(state: str, tail: str, tmp_path: Path) -> None:
    before, after = (TAILS[name](STATES[state](stream())) for name in ("as it is", tail))
    found = run_on(LocalRun(before, tmp_path, slots=2), [0, 1])
    assert difference(emitted(before, 0, 2), found) is None
    found = run_on(LocalRun(after, tmp_path, slots=3), [2, 3], end=True)
    assert found.num_rows and difference(emitted(after, 2, None), found) is None


def test_a_table_may_come_behind_the_last_state_and_go(tmp_path: Path) -> None:
    (tmp_path / "zones").mkdir()
    pq.write_table(pa.table({"z": [0, 1, 1], "zone": ["a", "b", "c"]}), tmp_path / "zones" / "0.parquet")
    zones = hr.table(tmp_path / "zones", name="zones")
    plain, joined = (counted(stream()).map(x="CAST(x AS BIGINT)") for _ in range(2))
    joined = joined.join(zones, on="l.x % 3 = r.z")
    run_on(LocalRun(plain, tmp_path / "state"), [0])
    found = run_on(LocalRun(joined, tmp_path / "state", slots=2), [1, 2])
    assert found.num_rows and difference(emitted(joined, 1, 3), found) is None
    run = LocalRun(plain, tmp_path / "state")
    assert difference(emitted(plain, 3, None), run_on(run, [3], end=True)) is None


def test_what_changed_is_said_and_stands_in_the_manifest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run_on(LocalRun(counted(stream()), tmp_path), [0])
    caplog.set_level(logging.WARNING)
    changed = counted(stream(lateness="6 seconds", idle="1 minute", ahead="1 hour")).filter("x > 3")
    run = LocalRun(changed, tmp_path)
    said = [
        "source s: lateness was 5000000, is 6000000",
        "source s: idle was None, is 60000000",
        "source s: ahead was None, is 3600000000",
        "result-0: was aggregate-1, is aggregate-1, filter x > 3",
    ]
    assert [line for line in said if line not in caplog.text] == []
    run_on(run, [1])
    with StateStore.open(tmp_path, read_only=True) as store:
        assert store.last is not None and store.last.query["changes"] == [{"epoch": 1, "said": said}]
    caplog.clear()
    LocalRun(changed, tmp_path).close()
    assert not caplog.text, "it is no news any more"


def test_an_aggregate_may_call_what_it_computes_otherwise(tmp_path: Path) -> None:
    run_on(LocalRun(counted(stream()), tmp_path), [0, 1])
    query = stream().aggregate(by=["user"], window="3 seconds", every="2 seconds", total="sum(n)")
    assert difference(emitted(query, 2, None), run_on(LocalRun(query, tmp_path), [2, 3], end=True)) is None


def test_a_longer_lateness_never_moves_the_watermark_back(tmp_path: Path) -> None:
    short, long = (counted(stream(lateness=f"{seconds} seconds")) for seconds in (2, 7))
    run = LocalRun(short, tmp_path)
    run.epoch(rows(0))
    reached = run.store.last.sources["s"].watermark
    run.close()
    run = LocalRun(long, tmp_path)
    late = pa.table({"ts": pa.array([reached - 1, reached], UTC), "user": ["a"] * 2, "kind": ["x"] * 2, "n": [1, 1]})
    run.epoch(late)
    assert run.store.last.sources["s"].watermark == reached and run.store.last.totals.late == 1
    run.epoch(rows(2))  # nine to twelve seconds: the watermark is seven behind
    assert run.store.last.sources["s"].watermark == max(
        reached, max(rows(2)["ts"].cast(pa.int64()).to_pylist()) - 7 * SECOND
    )
    run.close()


# --- results that come, go and change places -------------------------------------------------------------------------------


def several(*states: str) -> list[Stream]:
    s = stream()
    return [STATES[state](s).map("x") for state in states]


def test_results_may_change_places_and_so_the_names_of_operators(tmp_path: Path) -> None:
    """Two aggregates and two processors, each of which is called as the other was."""
    order = ["panes", "sessions", "processor", "tuples"]
    run = LocalRun(several(*order), tmp_path, slots=2)
    run_on(run, [0, 1])
    other = ["tuples", "processor", "sessions", "panes"]
    run = LocalRun(several(*other), tmp_path, slots=2)
    run_on(run, [2, 3], end=True)
    for place, state in enumerate(other):
        wanted = emitted(STATES[state](stream()).map("x"), 2, None)
        assert wanted.num_rows and difference(wanted, since(run, 2, f"result-{place}")) is None, state


def test_twins_that_hold_different_columns_may_change_places(tmp_path: Path) -> None:
    """Two joins of one meaning: what each holds is what its result reads."""

    def both(*columns: str) -> list[Stream]:
        s = stream()
        joins = [s.join(s.filter("n < 4"), on="l.user = r.user", last=(3, 5)) for _ in columns]
        return [join.map(x=column) for join, column in zip(joins, columns, strict=True)]

    run_on(LocalRun(both("l_kind", "r_n", "l_user"), tmp_path), [0, 1])
    order = ("r_n", "l_user", "l_kind")
    run = LocalRun(both(*order), tmp_path, slots=2)
    run_on(run, [2, 3], end=True)
    for place, query in enumerate(both(*order)):
        assert difference(emitted(query, 2, None), since(run, 2, f"result-{place}")) is None


def test_a_result_may_be_added_behind_state_that_is_there_and_another_left_out(tmp_path: Path) -> None:
    def both(*tails: str) -> list[Stream]:
        state = STATES["join"](stream())
        return [TAILS[tail](state) for tail in tails]

    run_on(LocalRun(both("as it is"), tmp_path), [0, 1])
    run = LocalRun(both("filter", "map"), tmp_path)
    run_on(run, [2])
    for place, query in enumerate(both("filter", "map")):
        assert difference(emitted(query, 2, 3), run.results(f"result-{place}")) is None
    assert run.store.last.query["changes"][0]["said"][1:] == ["result-1 is new"]
    run = LocalRun(both("map"), tmp_path)
    run_on(run, [3], end=True)
    assert difference(emitted(both("map")[0], 3, None), since(run, 3)) is None


def test_a_sink_may_want_order_from_now_on_but_not_give_it_up(tmp_path: Path) -> None:
    query = counted(stream())
    run_on(LocalRun(query, tmp_path), [0, 1])
    found = run_on(LocalRun(query, tmp_path, ordered=True), [2])
    assert found["ts"].to_pylist() == sorted(found["ts"].to_pylist())
    with pytest.raises(QueryChanged, match="lost: order-1"):
        LocalRun(query, tmp_path)


def zoned(s: Stream, folder: Path) -> Stream:
    """Joined with a table without a name; its state depends on what is in the folder."""
    zones = hr.table(folder, schema=pa.schema([("z", pa.int64()), ("zone", pa.string())]))
    return s.join(zones, on="l.n % 3 = r.z").aggregate(by=["zone"], window="3 seconds", x="count(*)").map("zone", "x")


@pytest.mark.parametrize("alike", [True, False])
def test_tables_without_a_name_may_change_places(alike: bool, tmp_path: Path) -> None:
    """A table belongs to its folder: the state that it made continues, and one that cannot be read stays what it was."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        rows_of = pa.table({"z": [0, 1, 1], "zone": [f"{name}1", f"{name}2", f"{name}3"]})
        pq.write_table(rows_of, tmp_path / name / "0.parquet")

    def queries(*names: str) -> list[Stream]:
        s = stream()
        return [zoned(s, tmp_path / name).filter("true" if alike else f"zone <> '{name}1'") for name in names]

    wanted = [emitted(query, 2, None) for query in queries("b", "a")]
    run_on(LocalRun(queries("a", "b"), tmp_path / "state", slots=2), [0, 1])
    (tmp_path / "a" / "0.parquet").unlink()
    run = LocalRun(queries("b", "a"), tmp_path / "state", slots=2)
    run_on(run, [2, 3], end=True)
    for place, table in enumerate(wanted):
        assert table.num_rows and difference(table, since(run, 2, f"result-{place}")) is None
    trouble = {name: figures.trouble for name, figures in run.driver.table_versions.figures.items()}
    assert trouble["table-1"] is None and trouble["table-2"] is not None


def test_a_table_without_a_name_may_go_and_another_take_its_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"z": [0, 1], "zone": [f"{name}1", f"{name}2"]}), tmp_path / name / "0.parquet")
    state = counted(stream()).map("x", n="CAST(x AS BIGINT)")
    both, one = ([behind(state, tmp_path / name) for name in names] for names in ("ab", "b"))
    run_on(LocalRun(both, tmp_path / "state"), [0, 1])
    wanted = emitted(one[0], 2, None)
    (tmp_path / "b" / "0.parquet").unlink()
    run = LocalRun(one, tmp_path / "state")
    run_on(run, [2, 3], end=True)
    assert wanted.num_rows and difference(wanted, since(run, 2)) is None


def behind(state: Stream, folder: Path) -> Stream:
    zones = hr.table(folder, schema=pa.schema([("z", pa.int64()), ("zone", pa.string())]))
    return state.join(zones, on="l.n % 3 = r.z").map("zone", "x")


# --- what waits in the outbox ------------------------------------------------------------------------------------------------


class Broken:
    """A sink that takes nothing."""

    ordered = False

    def deliver(self, delivery: Any) -> None:
        raise OSError("no room")


def undelivered(query: Any, folder: Path, sink: Any = None) -> LocalRun:
    """A run whose newest results did not reach their sink."""
    run = LocalRun(query, folder, sink=sink or Broken())
    with pytest.raises(SinkError):
        for number in range(EPOCHS):
            run.epoch(rows(number))
    run.close()
    return run


def test_rows_that_wait_go_to_the_sink_of_a_result_that_is_made_otherwise_now(tmp_path: Path) -> None:
    before, after = (TAILS[tail](counted(stream())) for tail in ("as it is", "filter"))
    last = undelivered(before, tmp_path).store.last.number
    found = run_on(LocalRun(after, tmp_path), [])
    assert difference(emitted(before, last, last + 1), found) is None


def test_rows_that_wait_do_not_fit_a_result_of_other_columns(tmp_path: Path) -> None:
    before, after = (TAILS[tail](counted(stream())) for tail in ("as it is", "map"))
    last = undelivered(before, tmp_path / "one").store.last.number
    with pytest.raises(
        QueryChanged, match=rf"result-0 has other columns now, and its rows of epoch {last} may not have"
    ):
        LocalRun(after, tmp_path / "one")
    whole = stream()
    two = [TAILS[tail](STATES["none"](whole)) for tail in ("filter", "as it is")]
    undelivered(two, tmp_path / "two")
    with pytest.raises(QueryChanged, match="result-1 is no longer a result"):
        LocalRun(two[:1], tmp_path / "two")
    run_on(LocalRun(before, tmp_path / "one"), [])  # as the error says: it delivers them
    run = LocalRun(after, tmp_path / "one")
    assert not run_on(run, []).num_rows, "they are delivered, and not of these columns"


def test_rows_are_not_written_twice_when_results_change_places(tmp_path: Path) -> None:
    """Killed after the delivery: nobody knows that the files are there but the sink, by the name that they had."""

    def started(*states: str) -> LocalRun:
        run = LocalRun(several(*states), tmp_path / "state")
        for place, state in enumerate(states):
            run.driver._deliverer.sinks[f"result-{place}"] = hr.sinks.parquet(tmp_path / state)
        return run

    run = started("none", "panes")
    for number in (0, 1):
        run.epoch(rows(number))
    run.driver.cache_index.remove()
    run.store.delivered = None
    run.store._lease.release("killed")
    run = started("panes", "none")
    run.driver.deliver_again()
    run.epoch(rows(2))
    run.close()
    for state in ("none", "panes"):
        wanted = emitted(STATES[state](stream()).map("x"), 0, 3)
        assert difference(wanted, pq.read_table(tmp_path / state)) is None


def test_what_waited_is_called_as_it_was_and_what_came_since_as_it_is(tmp_path: Path) -> None:
    """A batch that Spark repeats is delivered again: that of the run before under its names, a later one under ours."""
    run_on(LocalRun(several("none", "panes"), tmp_path), [0, 1])
    run = LocalRun(several("panes", "none"), tmp_path)
    for number in (None, 2, None):
        if number is None:
            run.driver.deliver_again()
        else:
            run.epoch(rows(number))
    run.close()
    for place, state in enumerate(("panes", "none")):
        wanted = emitted(STATES[state](stream()).map("x"), 1, 3)
        assert difference(wanted, since(run, 1, f"result-{place}")) is None


@pytest.mark.parametrize("parts", [False, True])
def test_a_folder_of_results_keeps_its_columns(parts: bool, tmp_path: Path) -> None:
    before, after = (TAILS[tail](counted(stream())) for tail in ("as it is", "map"))
    sink = hr.sinks.parquet(tmp_path / "out", parts=parts)
    run = LocalRun(before, tmp_path / "state", sink=sink)
    for number in range(EPOCHS):
        run.epoch(rows(number))
    run.close()
    with StateStore.open(tmp_path / "state", fsync=False) as store:
        begun = compare.start_on_state(store, CompiledQuery([node_of(after)], [False]), "False")
    with pytest.raises(
        QueryError, match=r"contains results with other columns \(.*x decimal.*\) than .*y decimal.*a new folder"
    ):
        begun.check_sinks({"result-0": sink})
    begun.check_sinks({"result-0": hr.sinks.parquet(tmp_path / "other", parts=parts)})


# --- columns that a source has after a restart ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "called"),
    [*((state, "later") for state in ("count", "processor", "any join", "panes", "each")), ("count", "x")],
)
def test_columns_that_came_since_the_state_began_are_ignored(state: str, called: str, tmp_path: Path) -> None:
    """Even where tuples go by their sequence, though the source tells its columns in another order now, and though something
    else in the query is called so."""
    query = STATES[state](stream()).map("x")
    run_on(LocalRun(query, tmp_path), [0, 1])
    later = [
        rows(number).append_column(called, pa.array([-ts.value for ts in rows(number)["ts"]]))
        for number in range(EPOCHS)
    ]
    later = [table.select([called, "n", "kind", "ts", "user"]) for table in later]
    again = STATES[state](table_stream(later[0], name="s", lateness="5 seconds")).map("x")
    run = LocalRun(again, tmp_path, slots=2)
    for table in later[2:]:
        run.epoch(table)
    run.end()
    run.close()
    assert difference(emitted(query, 2, None), since(run, 2)) is None
    (changed,) = run.store.last.query["changes"]
    assert changed["said"][0] == f"source s: columns that came since the state began are ignored: {called}"


def test_a_column_that_came_since_may_be_named_behind_the_last_state(tmp_path: Path) -> None:
    def both(source: Stream) -> list[Stream]:
        return [STATES["count"](source.map("user", "n")).map("x")]

    run_on(LocalRun(both(stream()), tmp_path), [0])
    table = rows(1).append_column("later", pa.array(range(30))).append_column("more", pa.array(range(30)))
    source = table_stream(table, name="s", lateness="5 seconds")
    run = LocalRun([*both(source), source.filter("later % 2 = 0").map("later")], tmp_path)
    run.epoch(table)
    run.close()
    assert sorted(run.results("result-1")["later"].to_pylist()) == list(range(0, 30, 2))
    assert "ignored: more" in str(run.store.last.query["changes"])


def test_a_table_may_get_columns_though_whole_tuples_are_read_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    zones = pa.table({"z": [0, 1, 2], "zone": ["a", "b", "c"]})

    def query(table: pa.Table) -> list[Stream]:
        s, joined = stream(), arrow_table(table, name="zones")
        first = s.join(joined, on="l.n % 3 = r.z").distinct(by=["zone"], within="1 second").map(x="zone")
        inside = s.split(2, by=["user"]).each(
            lambda t: t.join(joined, on="l.n = r.z").distinct(by=["zone"], within="1 second").map(x="zone")
        )
        return [first, inside]

    run_on(LocalRun(query(zones), tmp_path), [0, 1])
    more = zones.append_column("area", pa.array([3, 2, 1])).select(["area", "z", "zone"])
    run = LocalRun(query(more), tmp_path)
    assert "table zones: columns that came since the state began are ignored: area" in caplog.text
    run_on(run, [2, 3], end=True)
    for place, wanted in enumerate(query(zones)):
        assert difference(emitted(wanted, 2, None), since(run, 2, f"result-{place}")) is None
    assert run.store.last.tables["zones"].number == 1, "it holds what it held"


# --- columns that are called as before, and are something else --------------------------------------------------------------------


def test_an_aggregate_whose_names_are_swapped_makes_other_input_for_what_reads_them(tmp_path: Path) -> None:
    def summed(**functions: str) -> Stream:
        made = stream().aggregate(by=["user"], window="1 second", **functions)
        return made.aggregate(window="4 seconds", t="sum(x)").map("t")

    run_on(LocalRun(summed(x="sum(n)", y="sum(10 * n)"), tmp_path), [0])
    with pytest.raises(QueryChanged) as caught:
        LocalRun(summed(y="sum(n)", x="sum(10 * n)"), tmp_path)
    assert str(caught.value).splitlines()[1:-1] == [
        "  lost: aggregate-2: column 'x' of aggregate-1 was (sum(n)), is (sum((10 * n)))",
        "  kept: aggregate-1",
        "  added: aggregate-2: begins empty",
    ]
    LocalRun(summed(x="sum(n)", z="sum(10 * n)"), tmp_path).close()  # nobody reads that one


def test_a_column_that_a_join_holds_and_passes_on_stays_what_it_was(tmp_path: Path) -> None:
    def joined(given: Stream) -> Stream:
        return given.join(given, on="l.user = r.user", within="1 second").map(x="l_v")

    def summed(*names: str) -> Stream:
        functions = dict(zip(names, ("sum(n)", "sum(10 * n)"), strict=True))
        return joined(stream().aggregate(by=["user"], window="1 second", **functions))

    run_on(LocalRun(joined(stream().map("user", v="kind", w="user")), tmp_path / "map"), [0])
    with pytest.raises(QueryChanged, match=r"lost: join-1: in the tuples .* column 'v' was kind, is user"):
        LocalRun(joined(stream().map("user", v="user", w="kind")), tmp_path / "map")
    LocalRun(joined(stream().map("user", v="kind", z="user")), tmp_path / "map").close()  # nobody holds that one
    run_on(LocalRun(summed("v", "w"), tmp_path / "sum"), [0])
    with pytest.raises(QueryChanged, match=r"lost: join-1: in the tuples .* column 'v' was \(sum.*, is \(sum"):
        LocalRun(summed("w", "v"), tmp_path / "sum")


def test_a_column_that_is_held_and_not_read_for_a_while_stays_what_it_was(tmp_path: Path) -> None:
    def joined(v: str, *columns: str) -> Stream:
        s = stream().map("user", "n", v=v, w="user" if v == "kind" else "kind")
        return s.join(s, on="l.user = r.user", within="1 second").map(*columns)

    run_on(LocalRun(joined("kind", "l_n", "l_v"), tmp_path), [0])
    run_on(LocalRun(joined("kind", "l_n"), tmp_path), [1])
    for columns in (["l_n", "l_v"], ["l_n"]):
        with pytest.raises(QueryChanged, match=r"column 'v' was kind, is user"):
            LocalRun(joined("user", *columns), tmp_path)
    query = joined("kind", "l_n", "l_v")
    assert difference(emitted(query, 2, None), run_on(LocalRun(query, tmp_path), [2, 3], end=True)) is None


def test_a_column_that_a_join_holds_and_passes_on_keeps_its_type(tmp_path: Path) -> None:
    def joined(given: pa.Table) -> Stream:
        s = table_stream(given, name="s", lateness="5 seconds")
        return s.join(s, on="l.user = r.user", within="10 seconds").map(x="l_n")

    run_on(LocalRun(joined(rows(0)), tmp_path), [0])
    retyped = rows(1).set_column(3, "n", rows(1)["n"].cast(pa.float64()))
    with pytest.raises(QueryChanged, match=r"lost: join-1: in the tuples .* column 'n' was int64, is double"):
        LocalRun(joined(retyped), tmp_path)


def test_a_column_of_a_table_before_state_keeps_its_type(tmp_path: Path) -> None:
    def query(kind: pa.DataType) -> Stream:
        zones = arrow_table(pa.table({"z": pa.array([0, 1, 2], kind), "zone": pa.array([5, 6, 6], kind)}), name="zones")
        return (
            stream().join(zones, on="l.n % 3 = r.z").aggregate(by=["zone"], window="2 seconds", x="count(*)").map("x")
        )

    run_on(LocalRun(query(pa.int64()), tmp_path), [0])
    with pytest.raises(
        QueryChanged, match=r"'z' of table zones was int64, is double; column 'zone' of table zones was"
    ):
        LocalRun(query(pa.float64()), tmp_path)


def described(*queries: Stream) -> dict[str, Any]:
    return compare.describe_query(CompiledQuery([node_of(query) for query in queries]), "False")


def test_why_an_operator_is_lost_is_never_the_same_words_twice() -> None:
    def query(**more: list[int]) -> Stream:
        zones = arrow_table(pa.table({"z": [0, 1], **more}), name="zones")
        return stream().join(zones, on="l.n = r.z").distinct(by=["z"], within="1 second")

    (why,) = compare.compare_queries(described(query()), described(query(area=[1, 2]))).lost.values()
    assert why == (
        "the columns of its input were ts, user, kind, n, z of table zones,"
        " are ts, user, kind, n, z of table zones, area of table zones"
    )


# --- code, and what it is called ---------------------------------------------------------------------------------------------------


def test_results_change_places_that_only_settings_tell_apart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def sessions(*gaps: int) -> list[Stream]:
        split = stream().split(4, by=["user"])
        applied = [split.apply(Sessions(gap)) for gap in gaps]
        return [*applied, *(each.aggregate(window="20 seconds", x="sum(tuples)") for each in applied)]

    run_on(LocalRun(sessions(1, 3), tmp_path), [0, 1])
    run = LocalRun(sessions(3, 1), tmp_path)
    assert "other code or settings" not in caplog.text
    run_on(run, [2, 3], end=True)
    for place, query in enumerate(sessions(3, 1)):
        wanted = emitted(query, 2, None)
        assert wanted.num_rows and difference(wanted, since(run, 2, f"result-{place}")) is None, place


def test_settings_that_change_go_on_in_their_place_and_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def sessions(*gaps: int) -> list[Stream]:
        split = stream().split(4, by=["user"])
        return [split.apply(Sessions(gap)) for gap in gaps]

    run_on(LocalRun(sessions(1, 3), tmp_path), [0])
    LocalRun(sessions(3, 2), tmp_path).close()
    (said,) = [line for line in caplog.messages if "other code or settings" in line]
    assert said.startswith("apply-2 continues with the state") and '"gap": 1' in said and '"gap": 2' in said


def test_a_processor_is_the_same_whatever_its_file_was_run_as(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def query(module: str) -> Stream:
        counter = type("Counter", (Counter,), {"__module__": module})
        return stream().split(4, by=["user"]).apply(counter()).map(x="seen")

    run_on(LocalRun(query("__main__"), tmp_path), [0, 1])
    run_on(LocalRun(query("headrace_query_one"), tmp_path), [2])
    again = query("headrace_query_two")
    run = LocalRun(again, tmp_path)
    run_on(run, [3], end=True)
    assert difference(emitted(again, 3, None), since(run, 3)) is None
    assert "other code" not in caplog.text
    with pytest.raises(QueryChanged, match=r"processor was 'Counter', is 'elsewhere\.Counter'"):
        LocalRun(query("elsewhere"), tmp_path)


# --- a plan that is given --------------------------------------------------------------------------------------------------------


def test_a_plan_runs_on_the_columns_that_the_state_has(tmp_path: Path) -> None:
    def joined(*columns: str) -> Stream:
        s = stream()
        return s.join(s, on="l.user = r.user", within="1 second").map(*columns)

    run_on(LocalRun(joined("l_n", "l_user"), tmp_path), [0])
    query = joined("l_user")
    plan = plan_of([node_of(query)], [False], "subquery", 2)
    found = run_on(LocalRun(query, tmp_path, slots=2, plan=plan), [1, 2])
    assert difference(emitted(query, 1, 3), found) is None


# --- what is refused -----------------------------------------------------------------------------------------------------------


class BySpark(TableOrigin):
    """As if Spark read it, batch by batch."""

    driven = "stream"


def test_streams_that_spark_reads_keep_their_order(tmp_path: Path) -> None:
    """Spark's log has their offsets by place: under another order each would go on where another stood."""

    def streams(*names: str) -> list[Stream]:
        found = [node_of(table_stream(rows(0), name=name, lateness="5 seconds")) for name in names]
        return [Stream(replace(node, origin=BySpark(rows(0)))).map("n") for node in found]

    a, b = streams("a", "b")
    for folder, before, after in (("two", [a, b], [b, a]), ("one", [a.union(b)], [b.union(a)])):
        run = LocalRun(before, tmp_path / folder)
        run.epoch({"a": rows(0), "b": rows(1)})
        run.close()
        with pytest.raises(
            QueryChanged, match=r"came in the order a, b, now b, a, .* so that they come as before: a, b"
        ):
            LocalRun(after, tmp_path / folder)
    LocalRun([a.filter("n > 1"), b], tmp_path / "two").close()


def test_a_change_of_state_is_refused_operator_by_operator(tmp_path: Path) -> None:
    run_on(LocalRun(several("panes", "sessions", "distinct"), tmp_path), [0])
    s = stream()
    wider = s.aggregate(by=["user"], window="4 seconds", every="2 seconds", x="sum(n)").map("x")
    with pytest.raises(QueryChanged) as caught:
        LocalRun([wider, STATES["sessions"](s).map("x"), STATES["join"](s)], tmp_path)
    assert str(caught.value).splitlines()[1:-1] == [
        "  lost: aggregate-1: window was 3000000, is 4000000",
        "  lost: distinct-1: the query no longer has it",
        "  kept: aggregate-2",
        "  added: aggregate-1: begins empty",
        "  added: join-1: begins empty",
    ]
    last = str(caught.value).splitlines()[-1]
    assert last.startswith(
        "take along what is kept, into a new checkpoint folder: headrace migrate CHECKPOINT FILE --to NEW"
    )
    assert last.endswith("; or use a new checkpoint folder, or the query it was made for")
    with pytest.raises(QueryChanged) as caught:
        LocalRun([wider, STATES["count"](s).map("x"), STATES["join"](s)], tmp_path)
    assert str(caught.value).splitlines()[-1].startswith("use a new checkpoint folder"), "nothing is kept"


def test_a_column_that_the_state_never_kept_cannot_be_read(tmp_path: Path) -> None:
    def joined(*columns: str) -> Stream:
        s = stream()
        return s.join(s, on="l.user = r.user", within="1 second").map(*columns)

    run_on(LocalRun(joined("l_n", "l_user"), tmp_path), [0])
    with pytest.raises(
        QueryChanged, match=r"lost: join-1: its state has .*ts, user, n.*, but not kind, which is read now"
    ):
        LocalRun(joined("l_n", "r_kind"), tmp_path)
    run = LocalRun(joined("l_user"), tmp_path)  # fewer: what is held stays as it is
    run.epoch(rows(1))
    run.close()
    query = joined("l_n", "r_user")
    assert difference(emitted(query, 2, None), run_on(LocalRun(query, tmp_path), [2, 3], end=True)) is None
