"""What a run makes of errors and of Spark, without Spark: what is begun again, what is busy, what ended it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import EngineError, SinkError, SourceAway
from headrace.run import run as run_module
from tests.patience import PATIENCE
from tests.unit.run.by_hand import Clock, HandRun


def raising(error: BaseException) -> Any:
    def within() -> None:
        raise error

    return within


# --- what is begun again ------------------------------------------------------------------------------------------------


def away(tries: list[int], often: int) -> Any:
    def within() -> None:
        tries.append(1)
        if len(tries) <= often:
            raise SourceAway("it is gone")

    return within


def test_an_epoch_is_begun_again_with_what_waits_then(tmp_path):
    hand = HandRun(tmp_path, files=1, streaming=False, once=True, within=away(tries := [], 2))
    assert hand.begin().wait(PATIENCE)
    assert [taken for _, taken, _ in hand.epochs] == [1, 0] and len(tries) == 2 + 2


def test_it_is_not_begun_again_forever(tmp_path):
    hand = HandRun(tmp_path, files=1, streaming=False, once=True, within=away(tries := [], 1000))
    with pytest.raises(SourceAway):
        hand.begin().wait(PATIENCE)
    assert len(tries) == run_module.MOST_RETRIES and hand.epochs == []


def test_it_is_not_begun_again_when_the_run_is_to_end(tmp_path):
    tries = []

    def within() -> None:
        tries.append(1)
        hand.run.stop()
        raise SourceAway("it is gone")

    hand = HandRun(tmp_path, files=1, streaming=False, within=within)
    assert hand.begin().wait(PATIENCE)
    assert len(tries) == 1 and hand.epochs == []


# --- what is busy -----------------------------------------------------------------------------------------------------


def test_a_run_that_looks_for_files_and_finds_none_is_not_busy(tmp_path):
    hand = HandRun(tmp_path, streaming=False)
    assert hand.run.busy, "nobody has looked yet"
    with hand.begin() as run:
        deadline = time.monotonic() + PATIENCE
        while run.busy:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert run.active and hand.epochs == []


def test_a_run_is_busy_while_its_feed_may_have_tuples(tmp_path):
    hand = HandRun(tmp_path)
    with hand.begin() as run:
        hand.batch()
        hand.feed.works()
        assert run.busy
        hand.feed.rests()
        deadline = time.monotonic() + PATIENCE
        while run.busy:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_run_that_has_ended_is_not_busy(tmp_path):
    hand = HandRun(tmp_path, files=3, streaming=False, within=raising(EngineError("no memory")))
    assert hand.run.busy
    with pytest.raises(EngineError):
        hand.begin().wait(PATIENCE)
    assert hand.files and not hand.run.busy


# --- what ended it ----------------------------------------------------------------------------------------------------


def test_a_query_of_spark_that_was_stopped_from_outside_is_an_error_that_says_so(tmp_path):
    hand = HandRun(tmp_path)
    hand.feed.ends()
    with pytest.raises(EngineError, match=r"stopped from outside .* start again with the same checkpoint"):
        hand.begin().wait(PATIENCE)


def test_so_it_is_when_it_was_stopped_in_the_middle_of_an_epoch(tmp_path):
    """The job is interrupted then; a query whose batch fails by itself is still active when it does."""
    error = EngineError("the Spark job of this epoch failed: java.lang.InterruptedException")

    def within() -> None:
        hand.feed.ends()
        raise error

    hand = HandRun(tmp_path, within=within)
    run = hand.begin()
    with pytest.raises(EngineError, match="InterruptedException"):
        hand.batch()
    with pytest.raises(EngineError, match="stopped from outside") as told:
        run.wait(PATIENCE)
    assert told.value.__cause__ is error


def test_a_job_that_fails_by_itself_is_told_as_it_is(tmp_path):
    hand = HandRun(tmp_path, within=raising(error := EngineError("the Spark job of this epoch failed: no memory")))
    run = hand.begin()
    with pytest.raises(EngineError):
        hand.batch()
    hand.feed.ends(failure="the batch failed")
    with pytest.raises(EngineError) as told:
        run.wait(PATIENCE)
    assert told.value is error


def test_what_spark_gave_up_for_is_told(tmp_path):
    hand = HandRun(tmp_path)
    hand.feed.ends(failure="no such topic")
    with pytest.raises(EngineError, match="no such topic"):
        hand.begin().wait(PATIENCE)


def test_a_run_that_is_stopped_ends_without_an_error_and_its_feed_with_it(tmp_path):
    hand = HandRun(tmp_path)
    run = hand.begin()
    hand.batch()
    run.stop()
    assert run.exception is None and hand.closed and not hand.feed.active


@pytest.mark.parametrize(
    "error", [AttributeError("'NoneType' object has no attribute 'setCallSite'"), EngineError("x")]
)
def test_a_session_that_was_stopped_is_told_in_words(tmp_path, error):
    hand = HandRun(tmp_path, files=1, streaming=False, within=raising(error))
    hand.cluster.stopped = True
    with pytest.raises(EngineError, match=r"session was stopped.* create a new session") as told:
        hand.begin().wait(PATIENCE)
    assert told.value.__cause__ is error


def test_other_errors_stay_as_they_are_when_a_session_is_stopped(tmp_path):
    hand = HandRun(tmp_path, files=1, streaming=False, within=raising(SinkError("no room")))
    hand.cluster.stopped = True
    with pytest.raises(SinkError, match="no room"):
        hand.begin().wait(PATIENCE)


def test_errors_of_a_session_that_goes_on_stay_as_they_are(tmp_path):
    hand = HandRun(tmp_path, files=1, streaming=False, within=raising(AttributeError("a mistake")))
    with pytest.raises(AttributeError, match="a mistake"):
        hand.begin().wait(PATIENCE)


class LongJob:
    """A run whose job comes back when it is let go, and a clock that is moved by hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.given, self.goes = Clock(), threading.Event(), threading.Event()
        monkeypatch.setattr(run_module, "time", self.clock)
        self.hand = HandRun(folder, files=1, streaming=False)
        self.hand.cluster.run_tasks = self._run_tasks
        self.run = self.hand.begin()
        assert self.given.wait(PATIENCE)

    def _run_tasks(self, *_: Any) -> list[Any]:
        self.given.set()
        assert self.goes.wait(PATIENCE)
        return []


@pytest.fixture
def long_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LongJob]:
    found = LongJob(tmp_path, monkeypatch)
    yield found
    found.goes.set()
    found.run.stop()


def test_a_job_that_a_stopped_session_never_answers_for_does_not_hold_the_run(long_job):
    """Spark drops what it is given while it stops; who waits for the run, or stops it, would wait for ever."""
    long_job.hand.cluster.stopped = True
    assert long_job.run.active, "it may still come back"
    long_job.clock.now += run_module.LOST_JOB_SECONDS + 1
    with pytest.raises(EngineError, match="session was stopped"):
        long_job.run.wait(5)
    assert long_job.hand.closed and not long_job.run.active
    long_job.run.stop()


def test_a_job_that_takes_long_is_not_lost(long_job):
    long_job.clock.now += 1000
    assert long_job.run.active and not long_job.run.wait(0)
