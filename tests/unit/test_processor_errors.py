"""What goes wrong in splits and processors, as a user meets it: in the engine and in the reference, with words that name
what was asked, where, what was found and what to do; nothing of it is committed, and put right it goes on."""

from __future__ import annotations

import datetime as dt
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace import Processor, StateTable
from headrace.difference import difference
from headrace.errors import DataError, QueryChanged, QueryError, QueryTypeError
from headrace.reference import reference
from headrace.stream import Stream
from headrace.testing import LocalRun, run_locally, table_stream

TS = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("ts", TS), ("user", pa.string()), ("n", pa.int64())])
HELD = StateTable(
    key=["user"], columns=pa.schema([("user", pa.string()), ("n", pa.int64()), ("closes", TS)]), due="closes"
)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
Do = Callable[[pa.Table, Any], Any]


def rows(*given: tuple[float, str, int | None]) -> pa.Table:
    """(seconds after noon, user, n)."""
    return pa.Table.from_pylist(
        [{"ts": NOON + dt.timedelta(seconds=s), "user": user, "n": n} for s, user, n in given], SCHEMA
    )


THREE = rows((0, "a", 0), (1, "b", 1), (2, "c", 2))


def logins(table: pa.Table = THREE) -> Stream:
    return table_stream(table, name="logins")


def good(tuples: pa.Table, state: Any) -> pa.Table:
    """How often each user was seen."""
    for user in tuples["user"].to_pylist():
        seen = state["seen"].get(pa.table({"user": [user]}))["n"][0].as_py() or 0
        state["seen"].put(pa.table({"user": [user], "n": [seen + 1], "closes": pa.nulls(1, TS)}))
    return tuples


def mine(do: Do = good, **attributes: Any) -> Any:
    """A processor that does it: always of the same name, so that state goes on with another."""

    class Mine(Processor):
        schema = SCHEMA
        tables = {"seen": HELD}

        def process(self, tuples: pa.Table, state: Any) -> Any:
            return do(tuples, state)

    for name, value in attributes.items():
        setattr(Mine, name, value)
    return Mine()


def applied(do: Do = good, table: pa.Table = THREE, **attributes: Any) -> Stream:
    found = logins(table).split(4, route="n % 4").apply(mine(do, **attributes))
    return next(iter(found.values())) if isinstance(found, dict) else found


def message(run: Callable[[], Any], kind: type[Exception] = DataError) -> str:
    with pytest.raises(kind) as caught:
        run()
    assert isinstance(caught.value, hr.HeadraceError)
    return str(caught.value)


def both(query: Stream, tmp_path: Path) -> dict[str, str]:
    return {
        "engine": message(lambda: run_locally(query, tmp_path / "state", slots=2)),
        "reference": message(lambda: reference(query)),
    }


# --- rules of a split ------------------------------------------------------------------------------------------------


class Fickle:
    """Another answer with every call."""

    __qualname__ = "Fickle"

    def __init__(self, answers: Callable[[int], Any]) -> None:
        self.calls, self.answers = 0, answers

    def __call__(self, tuples: pa.Table) -> Any:
        self.calls += 1
        return [self.answers(self.calls)] * tuples.num_rows


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"route": "n"}, ["route of", "into 2 substreams by n", "2", "user=c, n=2", "0 .. 1", "null"]),
        ({"route": lambda t: t["n"]}, ["route of", "by <lambda>", "2", "user=c, n=2", "0 .. 1", "null"]),
        ({"route": "n - 1"}, ["-1", "user=a, n=0", "0 .. 1"]),
        ({"route": lambda t: [0.5] * t.num_rows}, ["route of", "<lambda>", "double", "whole numbers"]),
        ({"route": lambda t: ["0"] * t.num_rows}, ["string", "whole numbers"]),
        ({"route": lambda t: [0]}, ["route of", "1 values for", "tuples"]),
        ({"route": lambda t: t["x"]}, ["route of", "failed", 'KeyError: \'Field "x" does not exist']),
        ({"route": lambda t: None}, ["None", "array", "list"]),
        ({"route": Fickle(lambda call: call % 2)}, ["route of", "Fickle", "and then", "user=a, n=0", "alone"]),
        ({"route": "0", "broadcast": Fickle(lambda call: call % 2 == 0)}, ["broadcast of", "False and then True"]),
        ({"route": "0", "broadcast": lambda t: [0] * t.num_rows}, ["broadcast of", "int64", "booleans"]),
        ({"route": "user::int"}, ["'user::int' failed", "Could not convert string 'a'", "user=a, n=0", "TRY_CAST"]),
    ],
)
def test_a_rule_that_cannot_be_followed(given: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    query = logins().split(2, **given).each(lambda t: t)
    for way, found in both(query, tmp_path).items():
        assert [word for word in words if word not in found] == [], f"{way}: {found}"


def test_sql_that_fails_names_the_split_and_nothing_of_ours(tmp_path: Path) -> None:
    query = logins().split(2, route="user::int").each(lambda t: t)
    found = both(query, tmp_path)["engine"]
    assert found.startswith("the route of split-1 (into 2 substreams by user::int): the expression 'user::int' failed")
    assert "__" not in found


# --- processors ------------------------------------------------------------------------------------------------------


def helper(tuples: pa.Table) -> None:
    raise KeyError("nobody has it")


def column(name: str, values: Callable[[pa.Table], Any]) -> Do:
    return lambda t, s: t.set_column(SCHEMA.names.index(name), name, values(t))


def put(**columns: Any) -> Do:
    return lambda t, s: s["seen"].put(pa.table(columns))


FAR = rows((0, "a", 0), (100_001, "b", 0))
WRONG: dict[str, tuple[Do, dict[str, Any], list[str]]] = {
    "raises": (lambda t, s: helper(t), {}, ["failed", "KeyError: 'nobody has it'"]),
    "exits": (lambda t, s: sys.exit(3), {}, ["failed", "SystemExit: 3"]),
    "columns missing": (lambda t, s: t.select(["ts", "user"]), {}, ["its output", "n"]),
    "columns more": (lambda t, s: t.append_column("x", t["n"]), {}, ["its output", "x"]),
    "another type": (column("n", lambda t: pa.array(["x"] * t.num_rows)), {}, ["'n'", "string", "int64", "cast it"]),
    "too large": (
        column("n", lambda t: pa.array([300] * t.num_rows)),
        {"schema": pa.schema([("ts", TS), ("user", pa.string()), ("n", pa.int8())])},
        ["300"],
    ),
    "no table": (lambda t, s: t.to_pylist(), {}, ["pyarrow", "found a list"]),
    "pandas": (lambda t, s: t.to_pandas(), {}, ["pyarrow", "found a DataFrame of pandas"]),
    "null ts": (column("ts", lambda t: pa.nulls(t.num_rows, TS)), {}, ["ts", "null"]),
    "early ts": (
        column("ts", lambda t: pa.array([NOON - dt.timedelta(days=1)] * t.num_rows, TS)),
        {},
        ["2025-12-31 12:00:00", "before", "its cause", "another column"],
    ),
    "unknown output": (
        lambda t, s: {"c": t},
        {"schema": None, "outputs": {"a": SCHEMA, "b": SCHEMA}},
        ["no output 'c'", "a, b"],
    ),
    "no dict": (
        lambda t, s: t,
        {"schema": None, "outputs": {"a": SCHEMA, "b": SCHEMA}},
        ["found a Table of pyarrow", "a, b"],
    ),
    "a dict": (lambda t, s: {"a": t}, {}, ["found a dict of 1, such as a Table of pyarrow"]),
    "a key twice": (put(user=["x", "x"], n=[1, 2], closes=pa.nulls(2, TS)), {}, ["'seen'", "key", "x"]),
    "put lacks": (put(user=["x"], n=[1]), {}, ["'seen'", "closes"]),
    "put of another type": (put(user=[3], n=[1], closes=pa.nulls(1, TS)), {}, ["'seen'", "'user'", "int64", "string"]),
    "put no table": (lambda t, s: s["seen"].put([1]), {}, ["'seen'", "pyarrow", "found a list [1]"]),
    "due put as a number": (put(user=["x"], n=[1], closes=[17]), {}, ["'closes'", "int64", "timestamp[us, tz=UTC]"]),
    "due put without a zone": (
        put(user=["x"], n=[1], closes=pa.array([dt.datetime(2026, 1, 1)], pa.timestamp("us"))),
        {},
        ["'closes'", "timestamp[us]", "timestamp[us, tz=UTC]"],
    ),
    "due asked without a zone": (
        lambda t, s: s["seen"].due(dt.datetime(2026, 1, 1)),
        {},
        ["'seen'", "due", "a datetime with a zone", "found datetime.datetime(2026, 1, 1, 0, 0)"],
    ),
    "due asked by a number": (lambda t, s: s["seen"].due(17), {}, ["a datetime with a zone", "found 17"]),
    "no due column": (
        lambda t, s: s["seen"].due(NOON),
        {"tables": {"seen": StateTable(["user"], pa.schema([("user", pa.string())]))}},
        ["'seen' has no due column", "due='closes'"],
    ),
    "get without the key": (lambda t, s: s["seen"].get(t.select(["n"])), {}, ["'seen'", "user"]),
    "no such table": (lambda t, s: s["sen"], {}, ["no table 'sen'", "seen"]),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_processor_that_does_wrong_is_named_with_substream_and_times(wrong: str, tmp_path: Path) -> None:
    do, attributes, words = WRONG[wrong]
    for way, found in both(applied(do, **attributes), tmp_path).items():
        words = ["Mine", "process", "substream 0", "2026-01-01 12:00:00", *words]
        assert [word for word in words if word not in found] == [], f"{way}: {found}"
        assert "__" not in found.replace("__file__", ""), found


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"open": lambda self, i, n: helper(THREE)}, ["Mine", "open", "substream 0", "nobody has it"]),
        ({"every": "1 second", "tick": lambda self, t, s: 1 / 0}, ["tick", "12:00:01", "ZeroDivisionError"]),
        ({"end": lambda self, t, s: 1 / 0}, ["end", "substream 0", "12:00:02", "ZeroDivisionError"]),
        ({"end": lambda self, t, s: THREE}, ["end", "12:00:02", "12:00:00", "before", "its cause"]),
    ],
)
def test_other_methods_that_do_wrong(attributes: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    for way, found in both(applied(lambda t, s: None, **attributes), tmp_path).items():
        assert [word for word in words if word not in found] == [], f"{way}: {found}"


def test_too_many_ticks_name_ahead(tmp_path: Path) -> None:
    query = applied(lambda t, s: None, FAR, every="1 second", tick=lambda self, t, s: None)
    for way, found in both(query, tmp_path).items():
        words = ["Mine", "substream 0", "100,00", "at most 100,000", "in one epoch", "ahead=", "every"]
        assert [word for word in words if word not in found] == [], f"{way}: {found}"
    known = table_stream(FAR, name="logins", ahead="1 hour").split(4, route="n").apply(mine())
    run = LocalRun(known, tmp_path / "ahead")
    run.epoch(FAR.slice(0, 1))
    run.epoch(FAR.slice(1))
    assert run.driver.progress.rejected == 1, "as the message says"
    run.close()


def test_what_raised_is_told_with_its_own_lines(tmp_path: Path) -> None:
    found = both(applied(lambda t, s: helper(t)), tmp_path)["engine"]
    assert "in process" in found and "return do(tuples, state)" in found
    assert 'raise KeyError("nobody has it")' in found and "in helper" in found
    assert "kernels/keyed/processor_calls.py" not in found, "what is ours is left out"


def test_one_time_is_named_once_and_several_as_a_span(tmp_path: Path) -> None:
    def late(t: pa.Table, s: Any) -> Any:
        raise ValueError("no")

    one = both(applied(late), tmp_path)["engine"]
    assert "Mine.process on substream 0, of tuples at 2026-01-01 12:00:00+00:00, failed" in one
    several = both(applied(late, rows((0, "a", 0), (1, "b", 0))), tmp_path / "2")["engine"]
    assert "of tuples from 2026-01-01 12:00:00+00:00 to 2026-01-01 12:00:01+00:00, failed" in several


def test_what_is_no_mistake(tmp_path: Path) -> None:
    """A time without a zone is one in UTC, and tuples can be asked with as they are: in engine and reference alike."""

    def lenient(t: pa.Table, s: Any) -> pa.Table:
        assert s["seen"].has(t).to_pylist() == [False] * t.num_rows
        s["seen"].put(t.select(["user", "n"]).append_column("closes", t["ts"]))
        due = s["seen"].due(NOON)
        s["seen"].delete(due)
        return t.set_column(0, "ts", t["ts"].cast(pa.timestamp("us")))

    query = applied(lenient, schema=SCHEMA.set(0, pa.field("ts", pa.timestamp("us"))))
    assert difference(reference(query), run_locally(query, tmp_path / "state")) is None
    assert reference(query).equals(THREE)


# --- nothing is committed, and put right it goes on ------------------------------------------------------------------

STEPS = [rows((0, "a", 1), (1, "b", 2)), rows((2, "a", 13), (4, "b", 2)), rows((5, "a", 1), (9, "c", 3))]


def on_thirteen(do: Do) -> Do:
    """Well, but for that tuple."""
    return lambda t, s: do(t, s) if 13 in t["n"].to_pylist() else good(t, s)


@pytest.mark.parametrize(
    "wrong", ["raises", "exits", "another type", "early ts", "a key twice", "due asked by a number"]
)
def test_nothing_is_committed_and_the_run_goes_on_when_the_code_is_right(wrong: str, tmp_path: Path) -> None:
    whole = pa.concat_tables(STEPS)
    do, _, _ = WRONG[wrong]
    sink = hr.sinks.memory()
    run = LocalRun(applied(on_thirteen(do), whole), tmp_path / "state", slots=2, sink=sink)
    run.epoch(STEPS[0])
    before = run.store.last
    assert before is not None and before.number == 0
    for _ in range(2):  # tried again it is the same
        with pytest.raises(DataError, match=r"substream 1\b"):
            run.epoch(STEPS[1])
        assert run.store.last is before
    run.close()
    run = LocalRun(applied(good, whole), tmp_path / "state", slots=3, sink=sink)
    for step in STEPS[1:]:
        run.epoch(step)
    run.end()
    assert run.store.last is not None and run.store.last.number == 3
    assert difference(reference(applied(good, whole)), run.results()) is None
    run.close()


@pytest.mark.parametrize("route", ["n", lambda t: t["n"]], ids=["sql", "function"])
def test_a_route_that_was_wrong_commits_nothing_and_other_tuples_go_on(route: Any, tmp_path: Path) -> None:
    query = logins(pa.concat_tables(STEPS)).split(4, route=route).apply(mine())
    run = LocalRun(query, tmp_path / "state")
    run.epoch(STEPS[0])
    with pytest.raises(DataError, match=r"gave 13 for the tuple .*n=13"):
        run.epoch(STEPS[1])
    assert run.store.last is not None and run.store.last.number == 0
    run.epoch(STEPS[2])
    run.end()
    assert run.store.last.number == 2
    run.close()


# --- code that changed -----------------------------------------------------------------------------------------------


class Noting(Processor):
    schema = SCHEMA
    tables = {"seen": HELD}

    def __init__(self, gap: int = 5) -> None:
        self.gap = gap

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return good(tuples, state)


def changed(attributes: dict[str, Any]) -> Any:
    """The same class, but for some attributes."""
    made = Noting()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("attributes", "was", "now"),
    [
        ({"gap": 6}, 'version 1, settings {"gap": 5}', 'version 1, settings {"gap": 6}'),
        ({"version": 2}, 'version 1, settings {"gap": 5}', 'version 2, settings {"gap": 5}'),
    ],
)
def test_a_changed_setting_or_version_goes_on_and_is_said(
    attributes: dict[str, Any], was: str, now: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start(processor: Any) -> LocalRun:
        return LocalRun(logins(pa.concat_tables(STEPS)).split(4, route="n % 4").apply(processor), tmp_path / "state")

    run = start(Noting())
    run.epoch(STEPS[0])
    run.close()
    assert run.store.last is not None and run.store.last.versions["apply-1"].endswith(f"Noting {was}")
    with caplog.at_level(logging.WARNING, logger="headrace"):
        run = start(Noting())
        assert not caplog.records, "nothing changed"
        run.close()
        run = start(changed(attributes))
        run.epoch(STEPS[1])
        run.close()
    (record,) = caplog.records
    text = record.getMessage()
    assert (
        "apply-1 continues with the state" in text and f"Noting {was}, it is" in text and text.endswith(f"Noting {now}")
    )
    assert run.store.last is not None and run.store.last.versions["apply-1"].endswith(f"Noting {now}")


OTHER = StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("n", pa.int32()), ("closes", TS)]))


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (lambda s: s.split(4, route="n % 3").apply(Noting()), ["route was", "n % 4", "n % 3"]),
        (lambda s: s.split(8, route="n % 4").apply(Noting()), ["substreams was 4, is 8"]),
        (lambda s: s.split(4, by=["user"]).apply(Noting()), ["split_by was None, is ['user']", "route was"]),
        (lambda s: s.split(4, route="n % 4", broadcast="n = 5").apply(Noting()), ["broadcast was None, is"]),
        (lambda s: s.split(4, route="n % 4").filter("n > 1").apply(Noting()), ["filter n > 1"]),
        (lambda s: s.split(4, route="n % 4").apply(changed({"tables": {"seen": OTHER}})), ["tables was", "int32"]),
        (lambda s: s.split(4, route="n % 4").apply(changed({"tables": {}})), ["tables was", "is {}"]),
        (
            lambda s: s.split(4, route="n % 4").apply(changed({"schema": SCHEMA.append(pa.field("x", pa.int64()))})),
            ["outputs was", "['x', 'int64']"],
        ),
        (lambda s: s.split(4, route="n % 4").apply(mine()), ["processor was", "Noting", "Mine"]),
    ],
)
def test_what_state_belongs_to_is_another_query_and_is_named(query: Any, words: list[str], tmp_path: Path) -> None:
    whole = logins(pa.concat_tables(STEPS))
    run = LocalRun(whole.split(4, route="n % 4").apply(Noting()), tmp_path / "state")
    run.epoch(STEPS[0])
    run.close()
    found = message(lambda: LocalRun(query(whole), tmp_path / "state"), QueryChanged)
    words = ["the state belongs to another query", "lost: apply-1", "use a new checkpoint folder", *words]
    assert [word for word in words if word not in found] == [], found


def test_the_version_of_a_function_is_part_of_the_route(tmp_path: Path) -> None:
    def route(t: pa.Table) -> Any:
        return np.zeros(t.num_rows, int)

    run = LocalRun(logins().split(4, route=route).apply(Noting()), tmp_path / "state")
    run.epoch(THREE)
    run.close()
    again = logins().split(4, route=route, version=2).apply(Noting())
    found = message(lambda: LocalRun(again, tmp_path / "state"), QueryChanged)
    assert "route was" in found and "route', 1]" in found and "route', 2]" in found


# --- what is found when a query is built -----------------------------------------------------------------------------


def processor(**attributes: Any) -> Any:
    given = {"schema": SCHEMA, "process": lambda self, tuples, state: None, **attributes}
    return type("Mine", (Processor,), {name: value for name, value in given.items() if value is not ...})()


def with_setting(value: Any) -> Any:
    made = processor()
    made.model = value
    return made


def split(**given: Any) -> Any:
    return logins().split(given.pop("into", 2), **(given or {"by": ["user"]}))


ANOTHER = table_stream(THREE, name="another")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: split().each(lambda t: t.split(2, by=["user"]).each(lambda u: u)), "each cannot have a split inside.*split into 2"),
        (lambda: split().each(lambda t: t.split(2, by=["user"]).apply(processor())), "each cannot have a split inside"),
        (lambda: split().each(lambda t: t.union(ANOTHER)), "uses another stream.*only its argument.*before the split"),
        (lambda: split().each(lambda t: t.join(logins(), on="l.n = r.n", within="1 second")), "uses another stream"),
        (lambda: split().each(lambda t: split().each(lambda u: t)), "uses another stream"),
        (lambda: split().each(lambda t: t.map("user", substream="n")), "adds a column 'substream', and there is one already; rename it"),
        (lambda: split().each(lambda t: t.map("user", SubStream="n")), "adds a column 'substream', and there is one already; rename it, such as t.rename"),
        (lambda: split().each(lambda t: None), "must return one stream; found None"),
        (lambda: split().each(lambda t: t.case("n > 1")), "must return one stream; found a tuple of 2, such as a stream"),
        (lambda: split().each(lambda t: t.split(2, by=["user"])), "must return one stream; found a stream that was split"),
        (lambda: split().each("n > 1"), "each takes a function of one stream; found 'n > 1'"),
        (lambda: logins().split(2), "exactly one of by=.* and route="),
        (lambda: split(by=["user"], route="n"), "exactly one of by=.* and route="),
        (lambda: split(by=3), "by must be a column or a list of columns; found 3; such as by="),
        (lambda: split(by=["who"]), "unknown column 'who'; there are ts, user, n"),
        (lambda: split(into=0), "a number of substreams, 1 .. 1048576; found 0"),
        (lambda: split(into="user"), "a number of substreams.*found 'user'"),
        (lambda: split(route="user"), "route must be a whole number, the substream; 'user' is string; cast it"),
        (lambda: split(route="n / 2"), "'n / 2' is double"),
        (lambda: split(route="n > 1"), "'n > 1' is bool"),
        (lambda: split(route="xway"), "unknown column 'xway'; there are ts, user, n"),
        (lambda: split(route=1), "route must be an expression as text; found 1"),
        (lambda: split(route="n", broadcast="n"), "broadcast = 'n' must be true or false; its type is int64"),
        (lambda: split(route="n", version="1"), "version must be a whole number; found '1'"),
        (lambda: split().filter("x > 1"), "unknown column 'x'"),
        (lambda: split().aggregate(window="1 second", n="count(*)"), r"aggregate is for streams, and this one was split.*\.each\(lambda t: t\.aggregate"),
        (lambda: split().collect(), "collect is for streams, and this one was split"),
        (lambda: logins().union(split()), "union takes streams; found a stream that was split; define what runs on each substream"),
        (lambda: reference(split()), "a query is a stream; found a stream that was split; define what runs on each substream"),
        (lambda: reference(split().apply(processor(schema=None, outputs={"a": SCHEMA}))), r"found a dict of 1, such as a stream; choose one of its streams, such as \['a'\]"),
        (lambda: hr.start([(split(), hr.sinks.memory())], checkpoint="never"), "a stream that was split"),
        (lambda: split().apply(type(processor())), r"apply takes an instance; found the class Mine; write Mine\(\)"),
        (lambda: split().apply(lambda t: t), "apply takes a headrace.Processor; found a lambda; derive a class"),
        (lambda: split().apply(processor(process=...)), r"Mine has no process\(self, tuples, state\)"),
        (lambda: split().apply(processor(process=lambda self, t: t)), r"Mine.process must take \(self, tuples, state\); found \(self, t\)"),
        (lambda: split().apply(processor(every="1 second", tick=lambda self: None)), r"Mine.tick must take \(self, time, state\)"),
        (lambda: split().apply(processor(tick=lambda self, t, s: None)), "Mine has a tick, but does not say how often; such as every"),
        (lambda: split().apply(processor(every="soon")), "Mine.every is not a duration; found 'soon'"),
        (lambda: split().apply(processor(every="0 seconds")), "Mine.every must be more than zero"),
        (lambda: split().apply(processor(outputs={"a": SCHEMA})), r"Mine needs schema = .* or outputs = .*; it has both"),
        (lambda: split().apply(processor(schema=None)), "it has neither"),
        (lambda: split().apply(processor(schema=pa.schema([("a", TS)]))), "the schema of Mine has no 'ts', the event time; it has a; add"),
        (lambda: split().apply(processor(schema=pa.schema([("ts", pa.int64())]))), "'ts' in the schema of Mine must be a timestamp; found int64"),
        (lambda: split().apply(processor(schema=[("ts", TS)])), "the schema of Mine must be a pyarrow schema"),
        (lambda: split().apply(processor(schema=SCHEMA.append(pa.field("__x", TS)))), "the schema of Mine: .*begin with '__'.*'__x'"),
        (lambda: split().apply(processor(schema=SCHEMA.append(pa.field("USER", TS)))), "the schema of Mine: columns 'user' and 'USER' differ only in case"),
        (lambda: split().apply(processor(schema=None, outputs=[SCHEMA])), "Mine.outputs must be .name: schema.; found a list of 1"),
        (lambda: split().apply(processor(schema=None, outputs={"a b": SCHEMA})), "an output of Mine must be called by a plain name.*found 'a b'"),
        (lambda: split().apply(processor(schema=None, outputs={"__a": SCHEMA})), "an output of Mine .*found '__a'"),
        (lambda: split().apply(processor(tables=["seen"])), "Mine.tables must be"),
        (lambda: split().apply(processor(tables={"seen": SCHEMA})), r"Mine.tables\['seen'\] must be a headrace.StateTable; found a Schema"),
        (lambda: split().apply(processor(tables={"a-b": HELD})), "a table of Mine must be called by a plain name.*found 'a-b'"),
        (lambda: split().apply(processor(tables={"__first": HELD})), "a table of Mine .*found '__first'"),
        (lambda: split().apply(processor(version="2")), "Mine.version must be a whole number; found '2'"),
        (lambda: split().apply(with_setting(threading.Lock())), r"attributes of Mine are its settings.*; model: found .*lock.*; .*open\(self"),
        (lambda: split().apply(with_setting(lambda t: t)), "; model: found a lambda"),
        (lambda: split().apply(with_setting({(1, 2): 3})), "; model: keys must be str"),
        (lambda: StateTable("user", SCHEMA), "key of a StateTable must be a list of columns; found 'user'"),
        (lambda: StateTable(None, SCHEMA), "key of a StateTable must be a list of columns; found None"),  # type: ignore[arg-type]
        (lambda: StateTable([], SCHEMA), "needs key columns, each once"),
        (lambda: StateTable(["who"], SCHEMA), "has no column 'who'; its columns are ts, user, n"),
        (lambda: StateTable(["k"], pa.schema([("k", pa.list_(TS))])), "the key column 'k' .* plain columns"),
        (lambda: StateTable(["n"], SCHEMA, due="n"), r"the due column 'n' of a StateTable must be a time with a zone; found int64; such as"),
        (lambda: StateTable(["n"], SCHEMA, due="closes"), "has no column 'closes'"),
        (lambda: StateTable(["n"], {"n": TS}), "the columns of a StateTable must be a pyarrow schema"),
        (lambda: StateTable(["n"], SCHEMA.append(pa.field("__at", TS))), "begin with '__'"),
    ],
)  # fmt: skip
def test_what_can_be_known_wrong_is_an_error_when_it_is_built(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(QueryError, match=words) as caught:
        build()
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, TypeError):
        assert isinstance(caught.value, QueryTypeError)


def test_settings_may_be_what_people_set() -> None:
    for value in (Path("model.bin"), dt.timedelta(seconds=3), {1, 2}, np.int64(3), None, [1.5, "a"], float("nan")):
        assert split().apply(with_setting(value)).columns == SCHEMA.names


def test_what_substreams_have_not_is_an_ordinary_attribute_error() -> None:
    assert not hasattr(split(), "nonsense") and not hasattr(split(), "aggregate")
    with pytest.raises(AttributeError, match="`Substreams` has no `nonsense`; it has apply, columns, drop, each"):
        split().nonsense


# --- what people see -------------------------------------------------------------------------------------------------


def lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines())


def test_an_outline_shows_what_runs_on_each_substream() -> None:
    parts = logins().split(4, route="n", broadcast="user = 'x'").filter("n > 1").map("user")
    assert repr(parts).splitlines() == [
        "Substreams(ts, user)",
        "map user",
        "  filter n > 1",
        "    split into 4 substreams by n, to all where user = 'x'",
        "      source logins (ts timestamp[us, tz=UTC], user string, n int64)",
    ]
    made = parts.apply(processor(every="1 minute", tables={"seen": HELD}))
    assert repr(made).splitlines() == [
        "Stream(ts, user, n)",
        "apply Mine to each of 4 substreams, tick every 1 minute, state: seen by user",
        *(f"  {line}" for line in repr(parts).splitlines()[1:]),
    ]
    several = parts.apply(processor(schema=None, outputs={"tolls": SCHEMA, "alerts": SCHEMA}))
    assert [repr(stream).splitlines()[1] for stream in several.values()] == ["output tolls", "output alerts"]


def test_an_outline_of_each() -> None:
    query = logins().split(8, by=["user"]).each(lambda t: t.filter("n > 0").aggregate(window="1 minute", k="count(*)"))
    assert repr(query).splitlines()[1:] == [
        "on each of 8 substreams",
        "  aggregate by nothing window 1 minute every 1 minute: k = count(*)",
        "    filter n > 0",
        "      split into 8 substreams by hash of user",
        "        source logins (ts timestamp[us, tz=UTC], user string, n int64)",
    ]
    found = query.explain(slots=2)
    assert "chosen: hash of substream" in found and "__" not in found


def test_explain_says_how_tuples_find_a_processor() -> None:
    found = list(lines(logins().split(4, route="n").filter("n > 1").apply(processor()).explain(slots=2)))
    assert found[0] == "apply Mine to each of 4 substreams", "one output needs no line"
    before = found.index("subquery-1 <- logins")
    assert found[before + 1 : before + 3] == ["split into 4 substreams by n", "filter n > 1"]
    assert any(line.startswith("chosen: substream, one of 4 by n") for line in found)


def test_times_that_no_stream_has_are_refused(tmp_path: Path) -> None:
    far = pa.array([2**62], pa.int64()).cast(SCHEMA.field("ts").type)
    query = applied(lambda tuples, state: tuples.slice(0, 1).set_column(0, "ts", far))
    for way in (lambda: reference(query), lambda: run_locally(query, tmp_path / "state")):
        with pytest.raises(hr.DataError, match="beyond 73,000 years"):
            way()
