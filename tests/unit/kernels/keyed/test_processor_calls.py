"""Processors called on one substream: ticks held against a walk in plain Python, calls, checks and copies."""

from __future__ import annotations

import datetime as dt
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DataError
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.kernels.keyed.processor_calls import COPIES, ProcessorCopies, copy_of, run_processor, ticks_due
from headrace.processor import Processor, StateTable, declared
from headrace.support.event_time import FOREVER, NEVER, to_datetime

TS = pa.timestamp("us", "UTC")
OUT = pa.schema([("ts", TS), ("n", pa.int64())])
MORE = int(os.environ.get("HEADRACE_EXAMPLES", "1"))


# --- when it ticks ---------------------------------------------------------------------------------------------------


def walked(every: int, first: int | None, last: int) -> list[int]:
    """Time goes on by one from the first tuple, and every multiple is a tick; it ends with the first beyond the last tuple."""
    found: list[int] = []
    if first is None:
        return found
    time = first
    while not found or found[-1] <= last:
        time += 1
        if time % every == 0:
            found.append(time)
    return found


def stream(r: random.Random) -> list[int]:
    start = r.choice([-200, -7, 0, 3, 1000])
    return sorted(start + r.randint(0, 60) for _ in range(r.randint(1, 8)))


@pytest.mark.parametrize("seed", range(300 * MORE))
def test_ticks_are_those_of_a_walk_however_the_watermark_moves(seed: int) -> None:
    r = random.Random(seed)
    everything = stream(r)  # of the whole split stream
    own = [ts for ts in everything if r.random() < 0.7]  # of the substream
    every, last = r.randint(1, 25), everything[-1]
    expected = walked(every, own[0] if own else None, last)
    reached = sorted(r.randint(everything[0] - 10, last) for _ in range(r.randint(0, 6)))
    found: list[int] = []
    for before, after in pairwise([NEVER, *reached, FOREVER]):
        handed = [ts for ts in own if ts < after]
        found += ticks_due(every, handed[0] if handed else None, before, after, last if after == FOREVER else None)
    assert found == expected
    assert list(ticks_due(every, own[0] if own else None, NEVER, FOREVER, last)) == expected


def test_no_tick_without_every_or_tuples() -> None:
    assert not ticks_due(None, 0, NEVER, FOREVER, 100)
    assert not ticks_due(10, None, NEVER, 100, None)
    assert not ticks_due(10, 5, FOREVER, FOREVER, 100)
    assert not ticks_due(10, 5, NEVER, NEVER, None)
    assert len(ticks_due(1, 0, NEVER, 2**61, None)) == 2**61, "counted, not listed"


# --- calls -----------------------------------------------------------------------------------------------------------


def tuples(*ts: int) -> pa.Table:
    return pa.table({"ts": pa.array(ts, TS), "n": pa.array(range(len(ts)), pa.int64())})


def micros(time: dt.datetime) -> int:
    return round((time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)).total_seconds() * 1_000_000)


class Recorder(Processor):
    schema = OUT
    every = "10 seconds"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def process(self, tuples, state):
        self.calls += [("tuple", ts) for ts in tuples.column("ts").cast(pa.int64()).to_pylist()]
        assert tuples.num_rows
        return tuples

    def tick(self, time, state):
        assert time.tzinfo is dt.UTC
        self.calls.append(("tick", micros(time)))

    def end(self, time, state):
        self.calls.append(("end", micros(time)))
        return pa.table({"ts": pa.array([time], TS), "n": [-1]})


def expected_calls(own: list[int], ticks: list[int], end: int) -> list[Any]:
    marks = [(ts, 1, ("tuple", ts)) for ts in own] + [(tick, 0, ("tick", tick)) for tick in ticks]
    return [call for _, _, call in sorted(marks)] + [("end", end)]


@pytest.mark.parametrize("seed", range(60 * MORE))
def test_calls_come_in_the_order_of_time_however_it_is_cut(seed: int) -> None:
    r = random.Random(seed)
    own, every = stream(r), r.randint(1, 25)
    recorder = Recorder()
    reached = sorted(r.randint(own[0] - 10, own[-1]) for _ in range(r.randint(0, 6)))
    rows = []
    for before, after in pairwise([NEVER, *reached, FOREVER]):
        handed = [ts for ts in own if before <= ts < after]
        ended = after == FOREVER
        ticks = ticks_due(every, own[0] if own[0] < after else None, before, after, own[-1])
        put = run_processor(recorder, declared(Recorder()), 3, tuples(*handed), {}, ticks, own[-1] if ended else None)
        rows += [row["ts"] for number, table in put for row in table.to_pylist() if number == 0]
    assert recorder.calls == expected_calls(own, walked(every, own[0], own[-1]), own[-1])
    assert [micros(ts) for ts in rows] == [*own, own[-1]]


def test_nothing_to_do_is_no_call() -> None:
    recorder = Recorder()
    assert not list(run_processor(recorder, declared(Recorder()), 0, tuples(), {}, [], None))
    assert not recorder.calls


class Counter(Processor):
    schema = OUT
    tables = {"seen": StateTable(key=["k"], columns=pa.schema([("k", pa.int64()), ("n", pa.int64())]))}

    def process(self, tuples, state):
        seen = state["seen"]
        for row in tuples.to_pylist():
            key = pa.table({"k": [row["n"] % 2]})
            n = (seen.get(key).column("n")[0].as_py() or 0) + 1
            seen.put(key.append_column("n", [[n]]))


def test_state_is_kept_in_the_tables_that_are_given() -> None:
    seen = KeyedTable(Counter.tables["seen"], "seen")
    assert not list(run_processor(Counter(), declared(Counter()), 0, tuples(1, 2, 3), {"seen": seen}, [], None))
    assert seen.rows().to_pylist() == [{"k": 0, "n": 2}, {"k": 1, "n": 1}]


# --- what is put out -------------------------------------------------------------------------------------------------


class Says(Processor):
    """Puts out what it is told to."""

    schema = OUT
    every = "1 second"

    def __init__(self, **put: Any) -> None:
        self.put = put

    def process(self, tuples, state):
        return self.put.get("process")

    def tick(self, time, state):
        return self.put.get("tick")

    def end(self, time, state):
        return self.put.get("end")


class SaysMore(Says):
    schema = None
    outputs = {"a": OUT, "b": pa.schema([("ts", TS), ("text", pa.string())])}


DECLARED = {kind: declared(kind()) for kind in (Says, SaysMore)}


def said(processor: Says, ticks: Any = (), end: int | None = None) -> list[tuple[int, pa.Table]]:
    return list(run_processor(processor, DECLARED[type(processor)], 7, tuples(5, 5, 9), {}, ticks, end))


def out(*ts: int | None) -> pa.Table:
    return pa.table({"ts": pa.array(ts, TS), "n": pa.array([0] * len(ts), pa.int64())})


def test_outputs_come_by_number_in_their_schema() -> None:
    texts = pa.table({"text": pa.array(["x"]).dictionary_encode(), "ts": pa.array([9_000], pa.timestamp("ns", "UTC"))})
    found = said(
        SaysMore(process={"b": texts, "a": out(5)}, tick={"a": out(), "b": None}, end={"a": out(20)}), [10], 20
    )
    assert [(number, table.schema) for number, table in found] == [
        (0, OUT),
        (1, SaysMore.outputs["b"]),
        (0, OUT),
    ]
    assert found[1][1].to_pylist() == [{"ts": to_datetime(9), "text": "x"}]
    assert said(Says(process=out(5, 6).to_batches()[0]))[0][1] == out(5, 6)


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (Says(process=out(5).drop_columns(["n"])), "its output lacks 'n'; its columns are ts .*, n int64"),
        (Says(process=out(5).append_column("x", [[1]])), "its output also has 'x'"),
        (Says(process=out(5).set_column(1, "n", [["a"]])), "column 'n' of type string; expected int64"),
        (Says(process=out(5, None)), r"its output has no ts \(null\) in row 1"),
        (
            Says(process=out(6, 4)),
            r"has ts 1970-01-01 00:00:00.000004\+00:00 in row 1, which is before the first tuple",
        ),
        (Says(process=[1]), "its output must be a pyarrow Table; found a list"),
        (Says(process={"a": out(5)}), "it has one output, so it must return a pyarrow Table or None; found a dict"),
        (
            SaysMore(process=out(5)),
            "it has several outputs, so it must return .* found a Table of pyarrow; the names are a, b",
        ),
        (SaysMore(process={"c": out(5)}), "it has no output 'c'; it has a, b"),
        (SaysMore(process={"b": out(5)}), "its output 'b' lacks 'text' and also has 'n'"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(processor: Says, message: str) -> None:
    name = type(processor).__name__
    where = (
        rf"{name}.process on substream 7, of tuples from 1970-01-01 00:00:00.000005\S* to 1970\S* 00:00:00.000009\S*: "
    )
    with pytest.raises(DataError, match=where + ".*" + message):
        said(processor)


def test_ticks_and_end_put_out_nothing_before_themselves() -> None:
    assert said(Says(tick=out(10), end=out(20)), [10], 20)
    with pytest.raises(
        DataError, match=r"Says.tick on substream 7, at 1970-01-01 00:00:00.000010\S*: .* before its own time"
    ):
        said(Says(tick=out(9)), [10])
    with pytest.raises(DataError, match=r"Says.end on substream 7, at \S+ 00:00:00.000020\S*: .* before its own time"):
        said(Says(end=out(19)), (), 20)


def test_too_many_ticks_name_ahead_before_anything_is_called() -> None:
    recorder = Recorder()
    with pytest.raises(
        DataError, match=r"Recorder on substream 4 would tick 100,001 times .* at most 100,000; .* ahead="
    ):
        list(run_processor(recorder, declared(Recorder()), 4, tuples(1), {}, range(1, 100_002), None))
    assert not recorder.calls


def test_a_time_that_python_has_not_is_said() -> None:
    with pytest.raises(
        DataError, match=r"Says.tick on substream 7, at 2305843009213693952 cannot be called: .* ahead="
    ):
        said(Says(), [2**61])


# --- what goes wrong -------------------------------------------------------------------------------------------------


class Breaks(Processor):
    schema = OUT
    every = "1 second"
    tables = {"seen": StateTable(key=["k"], columns=pa.schema([("k", pa.int64())]))}

    def __init__(self, how: str) -> None:
        self.how = how

    def process(self, tuples, state):
        if self.how == "process":
            return 1 / 0  # the user's line
        if self.how == "table":
            state["seen"].put(tuples.select(["n"]))  # the user's put
        if self.how == "name":
            state["sen"].rows()
        if self.how == "deep":
            self._deeper(20)
        if self.how == "exit":
            raise SystemExit(3)
        return None

    def _deeper(self, depth: int) -> None:
        if not depth:
            raise KeyError("deep")  # the bottom
        self._deeper(depth - 1)

    def tick(self, time, state):
        raise LookupError("in a tick")

    def end(self, time, state):
        raise LookupError("at the end")


@pytest.mark.parametrize(
    ("how", "ticks", "end", "parts", "cause"),
    [
        ("process", (), None, ["Breaks.process on substream 2, of tuples from 1970-01-01 00:00:00.000001+00:00 to 1970-01-01 00:00:00.000003+00:00, failed: ZeroDivisionError: division by zero", "test_processor_calls.py", "return 1 / 0  # the user's line"], ZeroDivisionError),
        ("table", (), None, ["failed: table 'seen': what was put lacks 'k'", "# the user's put"], DataError),
        ("name", (), None, ["failed: there is no table 'sen'; the processor's tables are seen", 'state["sen"].rows()'], DataError),
        ("deep", (), None, ["KeyError: 'deep'", "self._deeper(20)", "calls between", "# the bottom"], KeyError),
        ("exit", (), None, ["SystemExit: 3"], SystemExit),
        ("", [2], None, ["Breaks.tick on substream 2, at 1970-01-01 00:00:00.000002+00:00, failed: LookupError: in a tick"], LookupError),
        ("", (), 9, ["Breaks.end on substream 2, at 1970-01-01 00:00:00.000009+00:00, failed: LookupError: at the end"], LookupError),
    ],
)  # fmt: skip
def test_errors_of_the_processor_show_its_line(how: str, ticks: Any, end: Any, parts: list[str], cause: type) -> None:
    state = {"seen": KeyedTable(Breaks.tables["seen"], "seen")}
    with pytest.raises(DataError) as caught:
        list(run_processor(Breaks(how), declared(Breaks(how)), 2, tuples(1, 3), state, ticks, end))
    for part in parts:
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, cause)
    assert "keyed.py" not in str(caught.value), "of no use to its author"
    assert len(str(caught.value).splitlines()) < 20


# --- copies ----------------------------------------------------------------------------------------------------------


class Opens(Processor):
    schema = OUT

    def __init__(self, factor: int = 1, fail: bool = False) -> None:
        self.factor, self.fail, self.known = factor, fail, [1]

    def open(self, substream, substreams):
        if self.fail:
            raise OSError("no such file")  # in open
        self.opened = [*getattr(self, "opened", []), (substream, substreams)]

    def process(self, tuples, state):
        return None


@pytest.fixture
def forgetful() -> Iterator[None]:
    COPIES.forget()
    yield
    COPIES.forget()


def test_every_substream_has_its_own_copy_opened_once(forgetful: None) -> None:
    given = Opens()
    copies = [copy_of(given, "run/1", substream, 4) for substream in (0, 1, 0, 3, 1)]
    assert [made.opened for made in copies] == [[(0, 4)], [(1, 4)], [(0, 4)], [(3, 4)], [(1, 4)]]
    assert copies[0] is copies[2] is not given
    assert copies[0].known is not copies[1].known, "deep"
    assert not hasattr(given, "opened")
    assert copy_of(Opens(), "run/1", 0, 4) is copies[0], "of another epoch's message"
    assert copy_of(Opens(2), "run/2", 0, 4).factor == 2


def test_copies_are_bounded_and_those_used_last_stay() -> None:
    copies = ProcessorCopies(most=3)
    kept = copies.copy_of(Opens(), "run", 0, 9)
    for substream in range(1, 9):
        copies.copy_of(Opens(), "run", substream, 9)
        assert copies.copy_of(Opens(), "run", 0, 9) is kept
    assert len(copies) == 3


def test_a_copy_that_could_not_be_opened_is_not_kept() -> None:
    copies = ProcessorCopies()
    with pytest.raises(
        DataError, match=r"Opens.open on substream 3 of 8, failed: OSError: no such file\n[^$]*# in open"
    ) as caught:
        copies.copy_of(Opens(fail=True), "run", 3, 8)
    assert isinstance(caught.value.__cause__, OSError)
    assert len(copies) == 0
    assert copies.copy_of(Opens(), "run", 3, 8).opened == [(3, 8)]


def test_a_processor_that_cannot_be_copied_says_what_to_do() -> None:
    given = Opens()
    given.lock = threading.Lock()
    with pytest.raises(
        DataError,
        match=r"Opens cannot be copied for substream 0: .*; set plain values on it, and make the rest in open",
    ):
        ProcessorCopies().copy_of(given, "run", 0, 1)


def test_local_classes_are_copied() -> None:
    class Local(Opens):
        pass

    assert isinstance(ProcessorCopies().copy_of(Local(), "run", 0, 1), Local)


FORKED = """
import os
import pyarrow as pa
from headrace.kernels.keyed.processor_calls import copy_of
from headrace.processor import Processor

class Opens(Processor):
    def open(self, substream, substreams):
        print(self.name, flush=True)

def opened(name):
    processor = Opens()
    processor.name = name
    copy_of(processor, "run", 0, 1)

opened("parent")
child = os.fork()
opened("child")
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_process_opens_its_own() -> None:
    """In a process of its own: this one has threads, which a fork would leave behind."""
    found = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=300)
    assert found.stdout.split() == ["parent", "child"], found.stderr


def test_threads_share_copies_that_were_opened_once() -> None:
    copies, found = ProcessorCopies(), []
    threads = [threading.Thread(target=lambda: found.append(copies.copy_of(Opens(), "run", 0, 1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(made) for made in found}) == 1
    assert found[0].opened == [(0, 1)]


def test_copies_of_runs_that_ended_are_let_go() -> None:
    """A worker outlives runs, and is not told that one has ended."""
    copies, given = ProcessorCopies(owners=2), Opens()
    for owner in ("one", "one", "two", "three", "two", "one"):
        copies.copy_of(given, owner, 0, 1)
    assert len(copies) == 2
