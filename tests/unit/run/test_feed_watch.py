"""Who is silent, and whether a stream may have tuples: what a run concludes from when Spark looked for some."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.run import feed_watch, silence
from headrace.run.feed_watch import FeedWatch
from headrace.run.intake import Intake
from headrace.run.silence import Silence
from headrace.sources.file_ledger import TakenFile
from headrace.state.manifest import SourceState
from tests.unit.run.by_hand import Clock, HandFeed

SECOND = 1_000_000


class Watched:
    """The streams `a` (idle after 10 s) and `b`, and a clock that is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, interval: float = 0) -> None:
        self.clock, self.feed = Clock(), HandFeed()
        for module in (silence, feed_watch):
            monkeypatch.setattr(module, "time", self.clock)
        self.last: Any = SimpleNamespace(sources={name: SourceState() for name in "ab"}, number=0)
        sources: Any = {"a": SimpleNamespace(idle=10 * SECOND), "b": SimpleNamespace(idle=None)}
        self.watch = FeedWatch(int(interval * SECOND), exists=True)
        self.watch.feed = self.feed
        self.silence = Silence(sources, {}, static=(), streaming=("a", "b"))

    def silent(self) -> list[str]:
        return self.silence.silent_sources(self.watch.looked, {})

    def batch(self, seconds: float, **given: str) -> list[str]:
        """A batch of Spark that takes so long, with a tuple of each of these sources; who was taken for silent in it."""
        self.feed.works()
        self.watch.note_batch_begins()
        found, before = self.silent(), self.last
        self.clock.now += seconds
        sources = {
            n: replace(s, **{given[n]: getattr(s, given[n]) + 1} if n in given else {})
            for n, s in before.sources.items()
        }
        self.last = SimpleNamespace(sources=sources, number=0)
        self.silence.note_epoch(before, self.last)
        self.watch.note_batch_ended()
        return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_stream_without_tuples_is_silent_though_another_keeps_spark_busy(watched):
    assert watched.batch(1, a="accepted", b="accepted") == []
    found = [watched.batch(1, b="accepted") for _ in range(14)]
    assert [] in found[:11] and found[-1] == ["a"]
    assert found == sorted(found)
    watched.feed.looks()
    assert watched.silent() == ["a"], "what Spark will find now does not change what it did not find before"


def test_silence_during_one_long_batch_is_known_when_spark_has_looked_again(watched):
    """Until then tuples may wait. When they are in the batch that follows, they end the silence in that very epoch."""
    assert watched.batch(1, a="accepted", b="accepted") == []
    assert watched.batch(100, b="accepted") == []
    watched.feed.looks()
    assert watched.silent() == []
    assert watched.batch(1, a="accepted") == ["a"]
    assert watched.batch(1, b="accepted") == []


def test_nothing_is_known_of_streams_before_spark_has_looked(watched):
    watched.watch.feed = None
    watched.clock.now += 100
    assert watched.silent() == []
    watched.watch.feed = watched.feed
    watched.feed.looks()
    assert watched.silent() == [] and watched.watch.may_have_tuples()
    assert watched.batch(1, a="accepted") == []


def test_a_look_that_takes_long_is_not_silence(watched):
    watched.batch(1, a="accepted")
    watched.feed.rests()
    assert watched.silent() == []
    watched.feed.looks()
    watched.clock.now += 100
    assert watched.silent() == []
    watched.feed.rests()
    assert watched.silent() == ["a"]


def test_what_spark_knows_is_as_old_as_its_interval(monkeypatch):
    watched = Watched(monkeypatch, interval=60)
    watched.batch(1, a="accepted")
    watched.feed.rests()
    watched.clock.now += 60
    assert watched.silent() == []
    watched.clock.now += 11
    assert watched.silent() == ["a"]


def test_late_tuples_break_a_silence_and_rejected_ones_do_not(watched):
    watched.batch(1, a="accepted")
    found = [watched.batch(1, a="late", b="accepted") for _ in range(14)]
    assert found[-1] == []
    found = [watched.batch(1, a="rejected", b="accepted") for _ in range(14)]
    assert found[-1] == ["a"]


@pytest.mark.parametrize(("taken", "silent"), [(2, ["a"]), (1, [])])
def test_files_that_wait_for_a_later_epoch_are_not_silence_those_taken_speak_for_themselves(watched, taken, silent):
    files = [TakenFile(name, 1, 1) for name in ("x", "y")]
    ledger = SimpleNamespace(
        waiting=lambda: files,
        choose=lambda waiting, ahead: waiting[:taken],
        remaining=lambda waiting, chosen: {"": len(waiting) - len(chosen)},
        partitions=(),
        must_be_noted=False,
    )
    sources: Any = {"a": SimpleNamespace(idle=10 * SECOND)}
    ledgers: Any = {"a": ledger}
    intake = Intake(sources, ledgers, longest=None)
    known = Silence(sources, ledgers, static=(), streaming=())
    intake.take(None)
    watched.clock.now += 11
    assert known.silent_sources(0.0, intake.waits) == silent


def test_a_drained_stream_has_nothing_more_while_spark_looks_again_and_again(watched):
    watched.batch(1, a="accepted")
    assert watched.watch.may_have_tuples(), "Spark has not looked since"
    watched.feed.looks()
    assert watched.watch.may_have_tuples(), "it may find more"
    for state in (watched.feed.rests, watched.feed.looks, watched.feed.rests, watched.feed.looks):
        state()
        assert not watched.watch.may_have_tuples()
    watched.feed.works()
    assert watched.watch.may_have_tuples(), "it found something"
