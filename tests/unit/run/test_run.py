"""What a run knows of its sources and of Spark, without Spark: who is silent, what is busy, what ended it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.driver.position import Position
from headrace.errors import EngineError, SinkError, SourceAway
from headrace.run import feed_watch, silence
from headrace.run import run as run_module
from headrace.run.intake import Intake
from headrace.run.run import Run
from headrace.sources.file_ledger import TakenFile
from headrace.spark import cluster
from headrace.spark.cluster import SparkCluster, SparkFeed
from headrace.state.manifest import SourceState
from headrace.task.reports import SourceCounts
from headrace.telemetry.listeners import Listeners
from headrace.telemetry.progress import Progress, busy_shares
from headrace.testing import LocalRun, table_stream

SECOND = 1_000_000


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class SparkQuery:
    """Spark's own query, as far as a run looks at it."""

    def __init__(self) -> None:
        self.isActive, self.failure = True, None
        self.rests()

    def rests(self) -> None:
        self._says("Waiting for data to arrive", active=False, available=False)

    def looks(self) -> None:
        self._says("Getting offsets from FileStreamSource", active=True, available=False)

    def works(self) -> None:
        self._says("Processing new data", active=True, available=True)

    def _says(self, message: str, *, active: bool, available: bool) -> None:
        self.status = {"message": message, "isTriggerActive": active, "isDataAvailable": available}

    def exception(self) -> Any:
        return self.failure


class Bench:
    """A run of the streams `a` (idle after 10 s) and `b`, with a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, interval: float = 0, context: Any = None) -> None:
        self.clock, self.query, self.idle, self.closed = Clock(), SparkQuery(), list[str](), False
        for module in (run_module, silence, feed_watch):
            monkeypatch.setattr(module, "time", self.clock)
        monkeypatch.setattr(run_module, "make_durable", lambda *_: None)
        monkeypatch.setattr(run_module, "spark_batch", lambda *_: None)
        monkeypatch.setattr(run_module, "admit_batch", lambda *_: "process")
        monkeypatch.setattr(cluster.dataframes, "to_rows", lambda batch: batch)
        self.sources = {n: SourceState() for n in "ab"}
        origin = SimpleNamespace(bounded=False)
        sources: dict[str, Any] = {
            "a": SimpleNamespace(idle=10 * SECOND, origin=origin),
            "b": SimpleNamespace(idle=None, origin=origin),
        }
        driver: Any = SimpleNamespace(
            settings=SimpleNamespace(static=()),
            adapting=SimpleNamespace(slots=1, backlog=0),
            progress=Progress(epoch=0),
            ledgers={},
            last=SimpleNamespace(sources=dict(self.sources), number=0),
            plan=SimpleNamespace(operators=[]),
            end=lambda error: self.close(),
            hurry=lambda: None,
            run=self.epoch,
            listeners=Listeners(),
            running=None,
            busy=[],
        )
        context = context or SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)))
        spark = SimpleNamespace(sparkContext=context)
        self.run = Run(SparkCluster(spark), sources, driver, Path("unused"), int(interval * SECOND))
        self.driver = driver
        self.run._watch.feed = SparkFeed(self.query)

    def epoch(self, *_: Any, idle: list[str], **__: Any) -> None:
        self.idle, self.clock.now = idle, self.clock.now + self.lasts
        for name, fate in self.given.items():
            before = self.sources[name]
            self.sources[name] = replace(before, **{fate: getattr(before, fate) + 1})
        self.driver.last = SimpleNamespace(sources=dict(self.sources), number=0)

    def silent(self) -> list[str]:
        return self.run._silence.silent_sources(self.run._watch.looked, self.run._intake.waits)

    def close(self) -> None:
        self.closed = True

    def batch(self, seconds: float, **given: str) -> list[str]:
        """A batch of Spark that takes so long, with a tuple of each of these sources; who was taken for silent in it."""
        self.lasts, self.given = seconds, given
        self.query.works()
        self.run._on_batch([], 0)
        return self.idle


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


# --- who is silent ----------------------------------------------------------------------------------------------------


def test_a_stream_without_tuples_is_silent_though_another_keeps_spark_busy(bench):
    assert bench.batch(1, a="accepted", b="accepted") == []
    found = [bench.batch(1, b="accepted") for _ in range(14)]
    assert [] in found[:11] and found[-1] == ["a"]
    assert found == sorted(found)
    bench.query.looks()
    assert bench.silent() == ["a"], "what Spark will find now does not change what it did not find before"


def test_silence_during_one_long_batch_is_known_when_spark_has_looked_again(bench):
    """Until then tuples may wait. When they are in the batch that follows, they end the silence in that very epoch."""
    assert bench.batch(1, a="accepted", b="accepted") == []
    assert bench.batch(100, b="accepted") == []
    bench.query.looks()
    assert bench.silent() == []
    assert bench.batch(1, a="accepted") == ["a"]
    assert bench.batch(1, b="accepted") == []


def test_nothing_is_known_of_streams_before_spark_has_looked(bench):
    bench.run._watch.feed = None
    bench.clock.now += 100
    assert bench.silent() == []
    bench.run._watch.feed = SparkFeed(bench.query)
    bench.query.looks()
    assert bench.silent() == [] and bench.run._watch.may_have_tuples()
    assert bench.batch(1, a="accepted") == []


def test_a_look_that_takes_long_is_not_silence(bench):
    bench.batch(1, a="accepted")
    bench.query.rests()
    assert bench.silent() == []
    bench.query.looks()
    bench.clock.now += 100
    assert bench.silent() == []
    bench.query.rests()
    assert bench.silent() == ["a"]


def test_what_spark_knows_is_as_old_as_its_interval(monkeypatch):
    bench = Bench(monkeypatch, interval=60)
    bench.batch(1, a="accepted")
    bench.query.rests()
    bench.clock.now += 60
    assert bench.silent() == []
    bench.clock.now += 11
    assert bench.silent() == ["a"]


def test_late_tuples_break_a_silence_and_rejected_ones_do_not(bench):
    bench.batch(1, a="accepted")
    for _ in range(14):
        bench.batch(1, a="late", b="accepted")
    assert bench.idle == []
    for _ in range(14):
        bench.batch(1, a="rejected", b="accepted")
    assert bench.idle == ["a"]


@pytest.mark.parametrize(("taken", "silent"), [(2, ["a"]), (1, [])])
def test_files_that_wait_for_a_later_epoch_are_not_silence_those_taken_speak_for_themselves(bench, taken, silent):
    files = [TakenFile(name, 1, 1) for name in ("x", "y")]
    ledger = SimpleNamespace(
        waiting=lambda: files,
        choose=lambda waiting, ahead: waiting[:taken],
        left=lambda waiting, chosen: {"": len(waiting) - len(chosen)},
        partitions=(),
        must_be_noted=False,
    )
    sources: Any = {"a": SimpleNamespace(idle=10 * SECOND)}
    ledgers: Any = {"a": ledger}
    intake = Intake(sources, ledgers, longest=None)
    known = silence.Silence(sources, ledgers, static=(), streaming=())
    intake.take(None)
    bench.clock.now += 11
    assert known.silent_sources(0.0, intake.waits) == silent


def test_an_epoch_is_begun_again_with_what_waits_then_but_not_forever(bench, monkeypatch):
    tries = []

    def attempt() -> bool:
        tries.append(1)
        if len(tries) < 3:
            raise SourceAway("it is gone")
        return True

    assert bench.run._patiently(attempt) and len(tries) == 3

    def never() -> bool:
        tries.append(1)
        raise SourceAway("it is gone")

    tries.clear()
    with pytest.raises(SourceAway):
        bench.run._patiently(never)
    assert len(tries) == run_module.MOST_RETRIES
    bench.run._stopping.set()
    with pytest.raises(run_module._RunStopped):
        bench.run._patiently(never)


# --- what is busy -----------------------------------------------------------------------------------------------------


def test_a_drained_stream_is_not_busy_while_spark_looks_again_and_again(bench):
    bench.batch(1, a="accepted")
    assert bench.run.busy, "Spark has not looked since"
    bench.query._says("Waiting for next trigger", active=True, available=False)
    assert bench.run.busy, "it is about to look"
    bench.query.looks()
    assert bench.run.busy, "it may find more"
    for state in (bench.query.rests, bench.query.looks, bench.query.rests, bench.query.looks):
        state()
        assert not bench.run.busy
    bench.query.status["message"] = "Writing offsets to log"
    assert bench.run.busy, "it found something"


def test_a_run_that_looks_for_files_and_finds_none_is_not_busy(bench):
    assert bench.run.busy, "nobody has looked yet"
    with bench.run._epoch():
        assert not bench.run._own_epoch()
        assert not bench.run.busy


def test_a_run_that_has_ended_is_not_busy(bench):
    bench.query.works()
    bench.run._intake.waits = {"a": {"": 3}}
    assert bench.run.busy
    bench.run._ended.set()
    assert not bench.run.busy


# --- what ended it ----------------------------------------------------------------------------------------------------


def ended(run: Run) -> BaseException | None:
    assert not run._feed_continues()
    return run.exception


def test_a_query_of_spark_that_was_stopped_from_outside_is_an_error_that_says_so(bench):
    bench.query.isActive = False
    error = ended(bench.run)
    assert isinstance(error, EngineError)
    assert "stopped from outside" in str(error) and "start again with the same checkpoint" in str(error)


def test_so_it_is_when_it_was_stopped_in_the_middle_of_an_epoch(bench):
    """The job is interrupted then; a query whose batch fails by itself is still active when it does."""
    bench.query.isActive = False
    bench.run._fail(error := EngineError("the Spark job of this epoch failed: java.lang.InterruptedException"))
    assert "stopped from outside" in str(bench.run.exception) and bench.run.exception.__cause__ is error
    assert "stopped from outside" in str(ended(bench.run))


def test_a_job_that_fails_by_itself_is_told_as_it_is(bench):
    bench.run._fail(error := EngineError("the Spark job of this epoch failed: no memory"))
    bench.query.isActive, bench.query.failure = False, "the batch failed"
    assert ended(bench.run) is error


def test_what_spark_gave_up_for_is_told(bench):
    bench.query.isActive, bench.query.failure = False, "no such topic"
    error = ended(bench.run)
    assert isinstance(error, EngineError) and "no such topic" in str(error)


def test_a_run_that_is_stopped_ends_without_an_error(bench):
    bench.run._stopping.set()
    bench.query.isActive = False
    assert ended(bench.run) is None


@pytest.mark.parametrize("context", [SimpleNamespace(_jsc=None), SimpleNamespace()], ids=["stopped", "gone"])
@pytest.mark.parametrize(
    "error", [AttributeError("'NoneType' object has no attribute 'setCallSite'"), EngineError("x")]
)
def test_a_session_that_was_stopped_is_told_in_words(monkeypatch, context, error):
    run = Bench(monkeypatch, context=context).run
    run._fail(error)
    assert isinstance(run.exception, EngineError) and run.exception.__cause__ is error
    assert "session was stopped" in str(run.exception) and "make a new session" in str(run.exception)


def test_a_job_that_a_stopped_session_never_answers_for_does_not_hold_the_run(monkeypatch):
    """Spark drops what it is given while it stops; who waits for the run, or stops it, would wait for ever."""
    bench = Bench(monkeypatch, context=SimpleNamespace(_jsc=None))
    monkeypatch.setattr(cluster.engine, "execute_epoch", lambda *_: [bench.run.active])
    assert bench.run._execute([], None) == [True], "it may still come back"
    bench.run._job_since = bench.clock.now
    bench.clock.now += 11
    with pytest.raises(EngineError, match="session was stopped"):
        bench.run.wait(5)
    assert bench.closed and not bench.run.active
    bench.run.stop()


def test_a_job_that_takes_long_is_not_lost(bench):
    bench.run._job_since = bench.clock.now
    bench.clock.now += 1000
    assert bench.run.active and not bench.run.wait(0)


def test_other_errors_stay_as_they_are_when_a_session_is_stopped(monkeypatch):
    run = Bench(monkeypatch, context=SimpleNamespace(_jsc=None)).run
    run._fail(SinkError("no room"))
    assert isinstance(run.exception, SinkError)


def test_errors_of_a_session_that_goes_on_stay_as_they_are(bench):
    bench.run._fail(error := AttributeError("a mistake"))
    assert bench.run.exception is error


# --- figures ----------------------------------------------------------------------------------------------------------


def test_latency_is_never_below_zero():
    """Files of a machine whose clock is ahead are modified in the future."""
    progress = Progress(_since=0.0)
    progress._sample([SourceCounts(arrivals=[(5000.0, 3), (None, 1)])], begun=1000.0, ended=1001.0)
    assert progress.latency == {"p50": 0.0, "p99": 1.0}


def test_files_that_were_there_before_the_run_count_from_its_beginning():
    progress = Progress(_since=1000.0)
    progress._sample([SourceCounts(arrivals=[(3.0, 1)])], begun=1000.5, ended=1002.0)
    assert progress.latency == {"p50": 2.0, "p99": 2.0}
    progress._sample([SourceCounts(arrivals=[(1001.5, 99)])], begun=1001.6, ended=1002.0)
    assert progress.latency["p50"] == 0.5


def test_every_epoch_has_the_same_keys(tmp_path):
    """Also one without results, of a result or of all."""
    s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [1]}), name="s")
    run = LocalRun([s.filter("x > 5"), s.filter("x > 0")], tmp_path)
    told = []
    for x in (1, 9, 0):
        run.epoch({"s": pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [x]})})
        told.append(asdict(run.driver.progress.last))
    assert [last["results"] for last in told] == [
        {"result-0": 0, "result-1": 1},
        {"result-0": 1, "result-1": 1},
        {"result-0": 0, "result-1": 0},
    ]
    assert all(last["sources"] == {"s": 1} for last in told)
    assert all(last.keys() == told[0].keys() for last in told)


def test_slots_are_busy_while_a_long_epoch_runs():
    assert busy_shares([0.25, 0.5], 2, 4.0, None) == [0.25, 0.5]
    assert busy_shares([0.25, 0.5], 2, 4.0, 3.0) == [0.25, 0.5], (
        "no longer than what was measured: nothing is known yet"
    )
    assert busy_shares([0.25, 0.5], 2, 4.0, 4.0) == [0.25, 0.5]
    assert busy_shares([0.25, 0.5], 2, 4.0, 8.0) == [0.625, 0.75], "half of the time as measured, half at work"
    assert busy_shares([0.25], 2, 0.0, 8.0) == [1.0, 1.0], "the first epoch, or another number of slots"


def test_progress_knows_the_epoch_that_is_under_way(tmp_path):
    s = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [1]}), name="s")
    run = LocalRun(s, tmp_path, slots=2)
    seen = []

    def look(epoch):
        seen.append((run.driver.running, run.driver.busy))
        raise EngineError("enough")

    with pytest.raises(EngineError):
        run.driver.run(Position("local"), look)
    assert seen[0][0] >= 0 and seen[0][1] == [1.0, 1.0]
    assert run.driver.running is None and run.driver.busy == []
