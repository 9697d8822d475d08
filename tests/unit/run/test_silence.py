"""Sources that fall silent: others no longer wait for them; when they return, others wait again and they catch up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.state.manifest import SourceState
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream
from tests.helpers import keyed

SECOND = 1_000_000


def source(name: str, **options: Any) -> Stream:
    return table_stream(keyed(), name=name, idle="1 second", lateness="5 seconds", **options)


def joined(**options: Any) -> Stream:
    return source("a", **options).join(source("b"), on="l.k = r.k", within="60 seconds")


def of(run: LocalRun, name: str = "a") -> SourceState:
    assert run.store.last is not None
    return run.store.last.sources[name]


def counts(run: LocalRun, name: str = "a") -> tuple[int, int, int]:
    source = of(run, name)
    return source.accepted, source.late, source.rejected


@pytest.fixture
def taken_along(tmp_path: Path) -> Any:
    """Runs in which `a` was silent while `b` went on to 100 s."""
    opened: list[LocalRun] = []

    def start(query: Stream, **options: Any) -> LocalRun:
        run = LocalRun(query, tmp_path / "state", **options)
        opened.append(run)
        run.epoch({"a": keyed(0), "b": keyed(0)})
        run.epoch({"b": keyed(100)}, idle=["a"])
        assert of(run).idle and of(run).watermark == 95 * SECOND
        return run

    yield start
    for run in opened:
        run.close()


def test_a_source_that_returns_behind_the_others_is_waited_for_and_catches_up(taken_along):
    """25 files, a constant 40 s behind: only those below 95 s can be late, where the others had been."""
    run = taken_along(joined(), slots=2)
    for i in range(25):
        run.epoch({"b": keyed(100 + 10 * i), "a": keyed(60 + 10 * i)}, splitters=2)
        assert not of(run).idle
    assert counts(run) == (1 + 21, 4, 0)
    assert of(run).watermark == (300 - 5) * SECOND


def test_late_tuples_alone_end_idleness(taken_along):
    run = taken_along(joined())
    run.epoch({"a": keyed(1), "b": keyed(500)})
    assert (of(run).idle, of(run).watermark) == (False, 95 * SECOND)


def test_a_source_that_speaks_in_the_epoch_in_which_it_is_taken_for_silent_is_not_idle(taken_along):
    run = taken_along(joined())
    run.epoch({"a": keyed(96), "b": keyed(500)}, idle=["a"])
    assert (of(run).idle, of(run).watermark) == (False, 95 * SECOND)


def test_tuples_that_are_rejected_do_not_end_idleness(taken_along):
    """They say nothing about how far the source has come; whoever waited for it would wait for good."""
    run = taken_along(joined())
    run.epoch({"a": keyed(None), "b": keyed(500)})
    assert (of(run).idle, of(run).watermark) == (True, 495 * SECOND)


def test_a_source_is_idle_until_it_speaks_also_across_a_restart(taken_along, tmp_path):
    taken_along(joined()).close()
    run = LocalRun(joined(), tmp_path / "state", slots=3)
    run.epoch({"b": keyed(200)})
    run.close()
    assert (of(run).idle, of(run).watermark) == (True, 195 * SECOND)


def test_ahead_counts_from_where_the_others_took_a_silent_source(taken_along):
    """From its own newest tuple, nothing that comes in time would be near enough, ever again."""
    run = taken_along(joined(ahead="30 seconds"))
    run.epoch({"a": keyed(101, 130, 130.1), "b": keyed(110)})
    assert counts(run) == (3, 0, 1)
    run.epoch({"a": keyed(160, 160.1)})
    assert counts(run) == (4, 0, 2)


def test_a_source_that_returns_too_far_ahead_is_taken_along_until_it_fits(tmp_path):
    """It was not yet idle when it came back, so its first tuples are rejected, but not all for good."""
    run = LocalRun(joined(ahead="30 seconds"), tmp_path / "state")
    run.epoch({"a": keyed(0), "b": keyed(0)})
    run.epoch({"b": keyed(100)})
    run.epoch({"a": keyed(100), "b": keyed(101)})
    assert counts(run) == (1, 0, 1)
    run.epoch({"a": keyed(102), "b": keyed(103)}, idle=["a"])  # heard of for the last time in the first epoch
    run.epoch({"a": keyed(104), "b": keyed(104)})
    assert counts(run) == (2, 0, 2)
    run.close()


def test_the_first_tuple_of_a_source_may_have_any_time(tmp_path):
    run = LocalRun(joined(ahead="30 seconds"), tmp_path / "state")
    run.epoch({"b": keyed(100)}, idle=["a"])
    run.epoch({"a": keyed(1000)})
    assert counts(run) == (1, 0, 0)
    run.close()


def test_a_silent_source_is_taken_no_further_than_its_operators_have_come(tmp_path):
    """The slowest of those that still speak holds the union back; what is not past that is not late."""
    query = source("a").union(source("b"), source("c")).aggregate(by=["k"], window="10 seconds", n="count(*)")
    run = LocalRun(query, tmp_path / "state")
    run.epoch({"a": keyed(0), "b": keyed(100), "c": keyed(40)}, idle=["a"])
    run.epoch({}, idle=["a"])
    assert of(run).watermark == 35 * SECOND
    run.epoch({"a": keyed(36)})
    assert counts(run) == (2, 0, 0)
    run.epoch({}, idle=["a", "c"])  # nobody but b speaks
    assert of(run).watermark == of(run, "c").watermark == 95 * SECOND
    run.close()


def test_a_silent_source_does_not_hold_back_the_side_of_a_join_that_it_is_on(tmp_path):
    query = source("a").union(source("c")).join(source("b"), on="l.k = r.k", within=("1 second", "50 seconds"))
    run = LocalRun(query, tmp_path / "state")
    run.epoch({"a": keyed(0), "b": keyed(40), "c": keyed(100)})
    run.epoch({}, idle=["a"])
    assert of(run).watermark == 95 * SECOND  # as far as c, though b is behind
    run.close()
