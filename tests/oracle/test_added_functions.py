"""Functions that are added to an aggregate at a restart: the others keep their open windows, and the answer is that of a query
which always had them, but for windows in which the new ones saw a part of the tuples."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.difference import difference, unmatched_rows
from headrace.errors import HeadraceError, QueryChanged
from headrace.evolve import added_functions
from headrace.operators.pane_aggregate import PaneAggregateOperator
from headrace.query import nodes
from headrace.reference import reference
from headrace.state import merge_planning
from headrace.state.store import StateStore
from headrace.stream import Stream, node_of
from headrace.testing import LocalRun, arrow_table, table_stream

from .driving import SLOTS
from .strategies import SECOND, cut, make_table
from .strategies import Table as SourceTable
from .test_changes import since as since_epoch
from .test_local import seeds

ADDED = {"most": "max(x)", "all": "count(f)", "mean": "avg(x) * 2", "texts": "min(s)"}
WINDOWS = [
    {"window": "10 seconds"},
    {"window": "10 seconds", "every": "4 seconds", "offset": "1 second"},
    {"window": "7 seconds", "every": "3 seconds"},
    {"window": "1 day", "zone": "Europe/Berlin"},
]


def query_over(s: Stream, functions: dict[str, str], over: dict[str, Any], by: list[str]) -> Stream:
    return s.filter("x % 5 <> 0").aggregate(by=by, **over, **functions)


def masked(table: pa.Table, names: list[str], time: int) -> pa.Table:
    """The same with null for these functions in windows that began before a time."""
    early = pc.less(table["window_start"].cast(pa.int64()), time)
    for name in names:
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pc.if_else(early, None, table[name]))
    return table


def run_epochs(run: LocalRun, epochs: list[dict[str, pa.Table]], *, end: bool = False) -> pa.Table:
    """What comes of these epochs, without what is delivered once more at the start."""
    first = 0 if run.store.last is None else run.store.last.number + 1
    for epoch in epochs:
        run.epoch(epoch, splitters=2)
    if end:
        run.end()
    run.close()
    return since_epoch(run, first)


def largest(epochs: list[dict[str, pa.Table]]) -> int | None:
    times = [ts for epoch in epochs for table in epoch.values() for ts in table["ts"].cast(pa.int64()).to_pylist()]
    return max(times, default=None)


def shuffled(r: random.Random, functions: dict[str, str]) -> dict[str, str]:
    """The same in any order."""
    names = r.sample(list(functions), len(functions))
    return {name: functions[name] for name in names}


def check(seed: int, folder: Path) -> None:
    """A query, the same with one function more, with two more, and once more as it is."""
    r = random.Random(f"added-{seed}")
    rows = make_table(seed, r.choice([30, 120]), span=60 * SECOND, lateness=4 * SECOND)
    over, by = r.choice(WINDOWS), r.choice([["k"], [], ["b", "k"]])
    s = table_stream(rows, lateness="4 seconds", name="a")
    names = r.sample(list(ADDED), 3)
    steps: list[dict[str, str]] = [{"n": "count(*)", "t": "sum(x)"}]
    steps.append(shuffled(r, {**steps[0], names[0]: ADDED[names[0]]}))
    steps.append(shuffled(r, {**steps[1], **{name: ADDED[name] for name in names[1:]}}))
    epochs = cut({"a": SourceTable("a", rows, "4 seconds")}, 8, seed)
    cuts = sorted(r.sample(range(1, 8), 3))
    since: dict[str, int] = {}
    for step, begin, end in zip([*steps, steps[-1]], [0, *cuts], [*cuts, 8], strict=True):
        added = [name for name in step if name not in steps[0] and name not in since]
        time = largest(epochs[:begin])
        since |= dict.fromkeys(added, -(2**62) if time is None else time + 1)
        query = query_over(s, step, over, by)
        run = LocalRun(query, folder, slots=r.choice(SLOTS))
        found = run_epochs(run, epochs[begin:end], end=end == 8)
        whole = reference(query, epochs=epochs[:end], end=end == 8)
        before = reference(query, epochs=epochs[:begin], end=False) if begin else whole.slice(0, 0)
        expected, extra = unmatched_rows(whole, before)
        assert not extra.num_rows
        for name, time in since.items():
            expected = masked(expected, [name], time)
        text = difference(expected, found)
        assert text is None, f"{text}\n{query!r}\nepochs {begin} to {end}, since {since}"


@seeds(30)
def test_open_windows_go_on_and_the_new_functions_begin_with_later_ones(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        monkeypatch.setattr(merge_planning, "FAN_IN", 2)  # rows with and without the new partials are merged
    check(seed, tmp_path)


# --- reports and logs --------------------------------------------------------------------------------------------------


def source(count: int = 20) -> tuple[Stream, list[pa.Table]]:
    rows = pa.table(
        {
            "ts": pa.array([at * SECOND for at in range(count)], pa.timestamp("us", "UTC")),
            "k": ["a", "b"] * (count // 2),
        }
    )
    rows = rows.append_column("x", pa.array(range(count), pa.int64()))
    return table_stream(rows, name="a"), [rows.slice(start, 5) for start in range(0, count, 5)]


def test_it_is_reported_as_incomplete_until_it_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    s, parts = source()
    run = LocalRun(s.aggregate(window="10 seconds", n="count(*)"), tmp_path)
    run.epoch(parts[0])
    run.close()
    run = LocalRun(s.aggregate(window="10 seconds", n="count(*)", m="max(x)"), tmp_path)
    assert (
        "aggregate-1 also computes (max(x)), which is null in windows that began before 1970-01-01T00:00:04.000001"
        in caplog.text
    )
    assert run.driver.progress.incomplete == {"result-0": "1970-01-01T00:00:14.000001+00:00"}
    run.epoch(parts[1])
    assert run.driver.progress.incomplete == {"result-0": "1970-01-01T00:00:14.000001+00:00"}
    for part in parts[2:]:
        run.epoch(part)
    run.end()
    assert run.driver.progress.incomplete == {}
    assert run.results().select(["n", "m"]).to_pylist() == [{"n": 10, "m": None}, {"n": 10, "m": 19}]
    run.close()


def test_without_a_tuple_nothing_is_null(tmp_path: Path) -> None:
    s, parts = source()
    run = LocalRun(s.aggregate(window="10 seconds", n="count(*)"), tmp_path)
    run.epoch(parts[0].slice(0, 0))
    run.close()
    run = LocalRun(s.aggregate(window="10 seconds", n="count(*)", m="count(x)"), tmp_path)
    assert run.driver.progress.incomplete == {}
    found = run_epochs(run, [{"a": part} for part in parts], end=True)
    assert found["m"].to_pylist() == [10, 10]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_reads_an_added_function_begins_after_its_last_null(at_once: bool, tmp_path: Path) -> None:
    """A window of ten seconds that is null for the first aggregate gives tuples to later windows of the second."""
    s, parts = source()

    def query(first: dict[str, str], second: dict[str, str]) -> Stream:
        values = s.aggregate(by="x", window="10 seconds", n="count(*)", **first)
        return values.aggregate(window="2 seconds", all="sum(n)", **second)

    added, reading = {"m": "max(x)"}, {"known": "count(m)"}
    run_epochs(LocalRun(query({}, {}), tmp_path), [{"a": parts[0]}])
    if not at_once:
        LocalRun(query(added, {}), tmp_path).close()
    run = LocalRun(query(added, reading), tmp_path)
    found = run_epochs(run, [{"a": part} for part in parts[1:]], end=True).sort_by("ts")
    assert found["all"].to_pylist() == [2] * 10
    assert (
        found["known"].to_pylist() == [None] * 8 + [2] * 2
    )  # no window that began before 4.000001 gives any after 14.000001


def test_a_function_that_reads_no_added_one_does_not_wait_for_it(tmp_path: Path) -> None:
    s, parts = source()

    def query(first: dict[str, str], second: dict[str, str]) -> Stream:
        values = s.aggregate(by="x", window="10 seconds", n="count(*)", **first)
        return values.aggregate(window="2 seconds", all="sum(n)", **second)

    run_epochs(LocalRun(query({}, {}), tmp_path), [{"a": parts[0]}])
    run = LocalRun(query({"m": "max(x)"}, {"results": "count(*)"}), tmp_path)
    found = run_epochs(run, [{"a": part} for part in parts[1:]], end=True).sort_by("ts")
    assert found["results"].to_pylist() == [None] * 3 + [2] * 7


def test_behind_a_join_and_before_steps(tmp_path: Path) -> None:
    """The join passes on what it reads itself; a column that its state does not have cannot be read later."""
    s, parts = source()

    def query(**functions: str) -> Stream:
        joined = s.join(s, on="l.k = r.k and l.x <= r.x", within="1 second")
        return joined.aggregate(by=["l_k"], window="5 seconds", **functions).map(*functions)

    run_epochs(LocalRun(query(n="count(*)"), tmp_path), [{"a": parts[0]}])
    found = run_epochs(
        LocalRun(query(n="count(*)", m="max(l_x)"), tmp_path), [{"a": part} for part in parts[1:]], end=True
    )
    whole = reference(query(n="count(*)", m="max(l_x)"))
    assert sum(found["n"].to_pylist()) == sum(whole["n"].to_pylist())
    assert None in found["m"].to_pylist()
    with pytest.raises(QueryChanged, match="lost: join-1"):
        LocalRun(s.join(s, on="l.k = r.k", within="1 second").aggregate(window="5 seconds", n="count(*)"), tmp_path)


ZONES = arrow_table(pa.table({"z": [1, 2, 3], "w": [1.5, 2.5, 3.5]}), name="zones")
SHAPES: dict[str, Callable[[Stream, Stream, dict[str, str]], Stream]] = {
    "on substreams": lambda a, b, f: a.map("k", v="x").split(3, by=["k"]).each(lambda t: t.aggregate(window="9 seconds", **f)),
    "behind a union": lambda a, b, f: a.union(b).map("k", v="x").aggregate(by=["k"], window="9 seconds", every="6 seconds", **f),
    "of a column that is made now": lambda a, b, f: a.map("k", **({"v": "x + 1"} if "v" in str(f) else {})).aggregate(
        by=["k"], window="9 seconds", **f
    ),
    "of a table's column": lambda a, b, f: a.join(ZONES, on="l.k = r.z").map(v="w").aggregate(window="9 seconds", **f),
    "of an outer join": lambda a, b, f: a.join(b, on="l.k = r.k", within="2 seconds", how="left").map(v="l_x").aggregate(
        window="9 seconds", **f
    ),
    "behind another aggregate": lambda a, b, f: a.aggregate(by=["k"], window="2 seconds", v="sum(x)").aggregate(
        window="9 seconds", **f
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_an_aggregate_in_any_place_of_a_query(shape: str, tmp_path: Path) -> None:
    rows = {name: make_table(number, 120, span=60 * SECOND).sort_by("ts") for number, name in enumerate("ab")}
    streams = {name: table_stream(table, name=name) for name, table in rows.items()}
    former, latter = (
        SHAPES[shape](*streams.values(), functions)
        for functions in ({"n": "count(*)"}, {"m": "max(v)", "n": "count(*)"})
    )
    used = nodes.named_sources(node_of(latter))
    epochs = [{name: rows[name].slice(start, 30) for name in used} for start in range(0, 120, 30)]
    found = [run_epochs(LocalRun(former, tmp_path, slots=2), epochs[:2])]
    run = LocalRun(latter, tmp_path, slots=3)
    (operator,) = [o for o in run.driver.plan.operators if getattr(o, "since", ())]
    assert isinstance(operator, PaneAggregateOperator)
    (time,) = [time for _, time in operator.since if time is not None]
    assert time >= (largest(epochs[:2]) or 0) - 10 * SECOND
    found += [run_epochs(run, epochs[2:], end=True)]
    whole, before = reference(latter, epochs=epochs), reference(former, epochs=epochs[:2], end=False)
    assert difference(before, found[0]) is None
    early = before.num_rows
    assert found[1].num_rows == whole.num_rows - early
    expected = masked(whole, ["m"], time)
    assert not unmatched_rows(expected, found[1])[1].num_rows
    assert 0 < found[1]["m"].null_count < found[1].num_rows


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"n": "count(*)"}, {"n": "count(*)", "l": "list(x)"}),  # needs the tuples
        ({"l": "list(x)"}, {"l": "list(x)", "n": "count(*)"}),
        ({"n": "count(*)", "m": "max(x)"}, {"m": "max(x)", "n": "count(*)"}),  # none is added
        ({"n": "count(*)", "m": "max(x)"}, {"n": "count(*)"}),
        ({"n": "count(*)"}, {"n": "count(x)", "m": "max(x)"}),
    ],
)
def test_anything_else_is_another_query(was: dict[str, str], now: dict[str, str], tmp_path: Path) -> None:
    s, parts = source()
    run_epochs(LocalRun(s.aggregate(window="10 seconds", **was), tmp_path), [{"a": parts[0]}])
    with pytest.raises(QueryChanged, match="lost: aggregate-1"):
        LocalRun(s.aggregate(window="10 seconds", **now), tmp_path)


def test_other_windows_sessions_and_counts_are_other_queries(tmp_path: Path) -> None:
    s, parts = source()
    changes = [({"window": "10 seconds"}, {"window": "5 seconds"}), ({"session": "3 seconds"},) * 2, ({"last": 3},) * 2]
    for number, (was, now) in enumerate(changes):
        run_epochs(LocalRun(s.aggregate(**was, n="count(*)"), tmp_path / str(number)), [{"a": parts[0]}])
        with pytest.raises(QueryChanged, match="lost: aggregate-1"):
            LocalRun(s.aggregate(**now, n="count(*)", m="max(x)"), tmp_path / str(number))


def test_what_reads_the_new_function_begins_empty(tmp_path: Path) -> None:
    s, parts = source()

    def query(read: str, **functions: str) -> Stream:
        return s.aggregate(by=["k"], window="5 seconds", **functions).aggregate(window="10 seconds", t=f"sum({read})")

    run_epochs(LocalRun(query("n", n="count(*)"), tmp_path), [{"a": parts[0]}])
    with pytest.raises(QueryChanged, match="lost: aggregate-2"):
        LocalRun(query("m", n="count(*)", m="max(x)"), tmp_path)
    run = LocalRun(query("n", n="count(*)", m="max(x)"), tmp_path)
    run_epochs(run, [{"a": part} for part in parts[1:]], end=True)


def test_the_section_of_the_manifest_is_checked(tmp_path: Path) -> None:
    s, parts = source()
    run_epochs(LocalRun(s.aggregate(window="10 seconds", n="count(*)"), tmp_path), [{"a": parts[0]}])
    run_epochs(LocalRun(s.aggregate(window="10 seconds", m="max(x)", n="count(*)"), tmp_path), [{"a": parts[1]}])
    store = StateStore.open(tmp_path, fsync=False)
    assert store.last is not None
    assert store.last.query["functions_since"] == {"aggregate-1": [[1, 4 * SECOND + 1], [0, None]]}
    store.close()


# --- broken on purpose -------------------------------------------------------------------------------------------------


def shows_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PaneAggregateOperator, "functions_complete_from", lambda self, times: self)


def begins_too_early(patch: pytest.MonkeyPatch) -> None:
    real = added_functions._all_comes_from
    patch.setattr(added_functions, "_all_comes_from", lambda *given: (real(*given) or 0) - 3 * SECOND)


def widens_with_zeros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(added_functions, "functions_since", lambda query: {})


@pytest.mark.thorough
@pytest.mark.parametrize("canary", [shows_parts, begins_too_early, widens_with_zeros])
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        try:
            check(seed, tmp_path / str(seed))
        except (AssertionError, HeadraceError, pa.ArrowException):
            return True
        return False

    assert any(wrong(seed) for seed in range(20))
