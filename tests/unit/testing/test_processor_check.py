"""`check_processor`: sound processors pass, each kind of broken one is found, and named by its smallest case."""

from __future__ import annotations

import datetime as dt
import logging
import random
import subprocess
import sys
import time
import uuid
from random import random as drawn
from time import time as clock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import DataError, HeadraceError, ProcessorError, QueryError, QueryTypeError
from headrace.testing import check_processor
from tests.processors import (
    COLUMNS,
    SOUND,
    TS,
    Break,
    Counter,
    Extremes,
    Processor,
    Sessions,
    Silence,
    StateTable,
    table,
)

SECOND = 1_000_000


def tuples(seed: int = 0, number: int = 25, span: int = 50) -> pa.Table:
    r = random.Random(seed)
    rows = [
        (
            dt.datetime.fromtimestamp(r.randrange(-20, span - 20), dt.UTC),
            r.choice(["a", "b", "c", None]),
            r.choice(["fail", "fail", "fail", "success", "other", None]),
            r.choice([None, *range(5)]),
        )
        for _ in range(number)
    ]
    return table(COLUMNS, *rows)


def found(processor: Processor, given: pa.Table | None = None, **how: Any) -> str:
    with pytest.raises(ProcessorError) as told:
        check_processor(processor, tuples() if given is None else given, **how)
    return str(told.value)


# --- sound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SOUND)
def test_sound_processors_pass(kind: str) -> None:
    check_processor(SOUND[kind](), tuples(1), cases=5)


@pytest.mark.parametrize("kind", SOUND)
def test_sound_processors_pass_with_a_rule(kind: str) -> None:
    check_processor(SOUND[kind](), tuples(2), 3, by=["user"], cases=3)
    check_processor(SOUND[kind](), tuples(3, 15), substreams=3, route="n % 3", broadcast="kind = 'success'", cases=3)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))])
@pytest.mark.parametrize("kind", SOUND)
def test_sound_processors_pass_with_other_seeds(kind: str, seed: int) -> None:
    check_processor(SOUND[kind](), tuples(seed + 10, 50), seed=seed, cases=10)


def test_it_can_be_had_as_an_attribute_of_headrace() -> None:
    code = "import headrace as hr, sys; assert 'headrace.testing' not in sys.modules; hr.testing.check_processor"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert hr.testing.check_processor is check_processor
    with pytest.raises(AttributeError, match="no attribute 'tasting'"):
        hr.tasting


def test_what_open_derives_may_be_kept() -> None:
    class Derived(Counter):
        def open(self, substream: int, substreams: int) -> None:
            self.known = {"a": 1}
            self.function = lambda value: value

    check_processor(Derived(), tuples(), cases=3)


def test_seeded_numbers_and_times_of_others_are_no_matter() -> None:
    class Careful(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            logging.getLogger("careful").warning("a line in a log has a time")
            r, n = random.Random(7), np.random.default_rng(7)
            assert r.random() < 1 and r.randint(1, 2) and n.random() < 1
            assert dt.datetime(2020, 1, 1, tzinfo=dt.UTC) and uuid.uuid5(uuid.NAMESPACE_DNS, "a")
            return super().process(tuples, state)

    check_processor(Careful(), tuples(number=10), cases=2)


HANDED_OVER: list[int] = []  # tuples, call by call


class CountedCalls(Counter):
    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        HANDED_OVER.append(tuples.num_rows)
        return super().process(tuples, state)


def test_the_check_is_quick_enough_for_a_processor_with_a_loop_over_rows() -> None:
    """The answer that cases are compared with is computed once for each substream; 65 times as many tuples are handed over
    as are given; when it was computed for each case, 183 times as many were."""
    HANDED_OVER.clear()
    check_processor(CountedCalls(), tuples(number=100), cases=20)
    assert sum(HANDED_OVER) < 90 * 100


# --- cut-dependent ----------------------------------------------------------------------------------------------------


class PerChunk(Counter):
    """How many tuples there are in a chunk."""

    schema = pa.schema([("ts", TS), ("tuples", pa.int64())])

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return table(self.schema, (tuples["ts"][-1].as_py(), tuples.num_rows))


def test_an_answer_by_chunk_is_found_with_two_tuples_in_one_chunk() -> None:
    told = found(PerChunk())
    assert told.startswith("PerChunk: the answer depends on where the stream is cut; process(a + b)")
    assert "smallest case found, 2 tuples in substream 0 of 4:" in told
    assert told.count("\n  process (ts=") == 1 and "restart" not in told
    assert "expected 2 rows, found 1" in told
    assert "missing 2:" in told and "extra 1:" in told and "tuples=2)" in told


def test_a_chunk_of_which_only_the_last_counts_is_found() -> None:
    class Last(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            last = pc.max(tuples["ts"])
            return super().process(tuples.filter(pc.equal(tuples["ts"], last)), state)

    assert "smallest case found, 2 tuples" in found(Last())


def test_a_cut_that_matters_only_by_state_is_found() -> None:
    class Stale(Counter):
        """Looks its state up once per chunk: of two tuples of a user, the second does not see the first."""

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            before = {row["user"]: row["times"] for row in state["seen"].rows().to_pylist()}
            times = sorted(set(tuples["ts"].to_pylist()))
            rows, now = [], {}
            for ts in times:
                for row in tuples.filter(pc.equal(tuples["ts"], ts)).to_pylist():
                    user = row["user"]
                    now[user] = now.get(user, before.get(user, 0)) + (1 if ts == times[0] or user not in now else 0)
                    rows.append((ts, user, now[user]))
            users = pa.array(list(now), pa.string())
            state["seen"].put(pa.table({"user": users, "times": pa.array(list(now.values()), pa.int64())}))
            return table(self.schema, *rows)

    told = found(Stale())
    assert "depends on where the stream is cut" in told and "smallest case found, 2 tuples" in told


def test_a_processor_that_fails_on_long_chunks_is_found() -> None:
    class Short(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            if len(set(tuples["ts"].to_pylist())) > 2:
                raise MemoryError("too much")
            return super().process(tuples, state)

    told = found(Short())
    assert "smallest case found, 3 tuples" in told and "MemoryError: too much" in told


def test_one_output_of_two_is_named() -> None:
    class Second(Extremes):
        def process(self, tuples: pa.Table, state: Any) -> dict[str, pa.Table]:
            late = table(self.outputs["without"], (tuples["ts"][-1].as_py(), "x", 0))
            return {**super().process(tuples, state), "without": late}

    told = found(Second())
    assert "\nwithout: expected" in told and "missing 1:\n  (ts=" in told


# --- state outside of tables ------------------------------------------------------------------------------------------


class OnSelf(Processor):
    schema = pa.schema([("ts", TS), ("total", pa.int64())])

    def __init__(self) -> None:
        self.total = 0

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        rows = []
        for ts in tuples["ts"].to_pylist():
            self.total += 1
            rows.append((ts, self.total))
        return table(self.schema, *rows)


def test_state_on_self_is_found_and_the_attribute_named() -> None:
    told = found(OnSelf())
    assert told.startswith("OnSelf: process writes to self.total; what is kept there between calls is lost")
    assert "smallest case found, 1 tuple in substream 0" in told


def test_an_attribute_that_is_new_is_named() -> None:
    class Caches(Silence):
        def tick(self, time: dt.datetime, state: Any) -> pa.Table:
            self.last_tick = time
            return super().tick(time, state)

    assert "Caches: tick writes to self.last_tick" in found(Caches())


def test_a_list_that_grows_is_seen_though_the_attribute_is_the_same() -> None:
    class Grows(Counter):
        def __init__(self) -> None:
            self.users: list[Any] = []

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            self.users += tuples["user"].to_pylist()
            return super().process(tuples, state)

    assert "Grows: process writes to self.users" in found(Grows())


def test_state_on_the_class_is_found() -> None:
    class Shared(Counter):
        memory: dict[Any, int] = {}

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            self.memory["last"] = tuples.num_rows
            self.memory[tuples["user"][0].as_py()] = 1
            return super().process(tuples, state)

    assert "Shared: process writes to Shared.memory" in found(Shared())


def test_what_open_set_and_calls_change_is_found_by_restarts() -> None:
    class Opened(OnSelf):
        def open(self, substream: int, substreams: int) -> None:
            self.total = 10

    told = found(Opened(), cases=0)
    assert "the answer is another after a restart: self.total changed since open" in told
    assert "smallest case found, 2 tuples" in told and told.count("\n  restart\n") == 1
    assert "total=12" in told and "total=11" in told


# --- clock and random numbers -----------------------------------------------------------------------------------------


def using(call: Any) -> Processor:
    class Uses(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            call()
            return super().process(tuples, state)

    return Uses()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: time.time(), "the clock: time.time is called"),
        (lambda: clock(), "the clock: time.time is called"),
        (lambda: time.monotonic_ns(), "the clock: time.monotonic_ns"),
        (lambda: time.perf_counter(), "the clock: time.perf_counter"),
        (lambda: dt.datetime.now(dt.UTC), "the clock: datetime.now"),
        (lambda: dt.datetime.today(), "the clock: datetime.today"),
        (lambda: dt.date.today(), "the clock: date.today"),
        (lambda: random.random(), "random numbers: random.random"),
        (lambda: drawn(), "random numbers: random.random"),
        (lambda: random.randint(1, 6), "random numbers: random.randint"),
        (lambda: random.shuffle([1, 2]), "random numbers: random.shuffle"),
        (lambda: random.Random().random(), r"random numbers: random.Random\(\) without a seed"),
        (lambda: random.SystemRandom().random(), "random numbers: random.SystemRandom"),
        (lambda: np.random.rand(), "random numbers: numpy.random"),
        (lambda: np.random.default_rng().random(), r"random numbers: numpy.random.default_rng\(\) without a seed"),
        (lambda: uuid.uuid4(), "random numbers: uuid.uuid4"),
    ],
)
def test_the_clock_and_random_numbers_are_seen(call: Any, words: str) -> None:
    with pytest.raises(ProcessorError, match=rf"Uses: it uses {words}.*\n.*1 tuple in"):
        check_processor(using(call), tuples(number=12), cases=1)


def test_watching_leaves_nothing_behind() -> None:
    before = np.random.default_rng, sys.getprofile(), time.time
    found(using(lambda: np.random.default_rng()))
    assert (np.random.default_rng, sys.getprofile(), time.time) == before


def test_a_clock_that_cannot_be_seen_is_found_by_trying_twice() -> None:
    hidden = iter(range(10**9))

    class Hidden(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            found = super().process(tuples, state)
            number = pa.array([next(hidden)] * found.num_rows, pa.int64())
            return found.set_column(2, "seen", number)

    told = found(Hidden())
    assert "tried again with the same tuples and the same state" in told and "smallest case found, 1 tuple" in told


def test_tables_that_differ_when_tried_again_are_found() -> None:
    hidden = iter(range(10**9))

    class Hidden(Counter):
        tables = {"seen": StateTable(key=["user"], columns=pa.schema([("user", pa.string()), ("n", pa.int64())]))}

        def process(self, tuples: pa.Table, state: Any) -> None:
            state["seen"].put(pa.table({"user": ["a"], "n": [next(hidden)]}))

    assert "its tables: seen: expected 1 rows, found 1" in found(Hidden())


# --- what fails -------------------------------------------------------------------------------------------------------


def test_rows_put_out_too_early_are_found() -> None:
    class Early(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            found = super().process(tuples, state)
            if tuples["user"][0].as_py() == "b":
                ts = pc.subtract(found["ts"], pa.scalar(1, pa.duration("us")))
                return found.set_column(0, "ts", ts)
            return found

    told = found(Early())
    assert "Early: a row is emitted too early" in told and "smallest case found, 1 tuple" in told and "user=b" in told


def test_a_row_that_is_early_only_within_a_chunk_is_found() -> None:
    """The engine need not see it: a row with the first time of its chunk may be due to a later tuple of it."""

    class Backdates(Sessions):
        """A session has the time of its first tuple, but it is emitted by a later one."""

        def closed(self, until: dt.datetime, now: dt.datetime, state: Any) -> list[tuple[Any, ...]]:
            return [(began, user, began, n) for _, user, began, n in super().closed(until, now, state)]

    told = found(Backdates())
    assert "emitted too early" in told and "smallest case found, 1 tuple" in told and "in tick at" in told


def test_an_exception_is_shown_with_the_fewest_tuples_that_raise_it() -> None:
    class Fails(Counter):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            assert None not in tuples["kind"].to_pylist(), "no kind"
            return super().process(tuples, state)

    told = found(Fails())
    assert "failed in process of 1 tuples" in told and "AssertionError: no kind" in told
    assert "smallest case found, 1 tuple" in told and "kind=None" in told


def test_wrong_columns_are_named() -> None:
    class Wrong(Break):
        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            return tuples

    assert "must have the columns ts, user, failures; found ts, user, kind, n" in found(Wrong())


def test_the_error_is_one_of_headrace_and_an_assertion() -> None:
    assert issubclass(ProcessorError, HeadraceError) and issubclass(ProcessorError, AssertionError)
    assert hr.ProcessorError is ProcessorError


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        (tuples().slice(0, 0), QueryError, "needs tuples.*found none"),
        (pa.table({"ts": pa.array([None], TS)}), QueryError, "ts is null"),
        (pa.table({"x": [1]}), QueryError, "no time column 'ts'"),
        ([1, 2], QueryTypeError, r"pyarrow\.Table; found a list"),
    ],
)
def test_tuples_that_cannot_be_checked(given: Any, kind: Any, words: str) -> None:
    with pytest.raises(kind, match=words):
        check_processor(Counter(), given)


def test_tuples_with_only_a_time_are_all_in_one_substream() -> None:
    given = pa.table({"ts": pa.array([3, 1, 2], TS)})
    check_processor(Silence(), given, cases=2)
    assert "2 tuples in substream 0 of 4" in found(PerChunk(), given)


def test_more_ticks_than_a_run_may_have_are_told_as_they_are_there() -> None:
    given = pa.table({"ts": pa.array([0, 10**15], TS)})
    with pytest.raises(DataError, match="would get 250,000,001 ticks"):
        check_processor(Silence(), given)


def test_the_substream_is_named() -> None:
    told = found(PerChunk(), tuples().filter(pc.equal(tuples()["n"], 3)), route="n")
    assert "in substream 3 of 4" in told


def test_sessions_that_forget_the_gap_at_a_tick_are_found() -> None:
    class Forgets(Sessions):
        """Closes by the last tuple of a chunk, not by each."""

        def process(self, tuples: pa.Table, state: Any) -> pa.Table:
            closed = self.closed(tuples["ts"][-1].as_py(), tuples["ts"][-1].as_py(), state)
            for row in tuples.to_pylist():
                closes = row["ts"] + dt.timedelta(seconds=self.gap)
                state["open"].put(table(self.held, (row["user"], row["ts"], closes, 1)))
            return table(self.schema, *closed)

    told = found(Forgets())
    assert "depends on where the stream is cut" in told
