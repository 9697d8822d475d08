"""Who listens is told every epoch once, in order, with figures that add up; and can harm nobody."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace import sinks
from headrace.columnar.types import TS_TYPE
from headrace.errors import QueryChanged, QueryTypeError, SinkError
from headrace.state.store import StateStore
from headrace.stream import Stream
from headrace.task.work import WorkTotals
from headrace.telemetry import listeners as listeners_module
from headrace.telemetry.epoch_record import EpochRecord, record_from_manifests
from headrace.telemetry.listeners import Listeners
from headrace.testing import LocalRun, table_stream
from tests.patience import PATIENCE

SECOND = 1_000_000


def rows(epoch: int, count: int = 20) -> pa.Table:
    """Some of them late from the third epoch on."""
    ts = [(epoch * 10 + i % 10 - (40 if epoch > 2 and i == 7 else 0)) * SECOND for i in range(count)]
    return pa.table(
        {"ts": pa.array(ts, TS_TYPE), "k": [i % 3 for i in range(count)], "x": [float(i) for i in range(count)]}
    )


def query() -> Stream:
    a, b = (table_stream(rows(0).slice(0, 0), lateness="5 seconds", name=name) for name in "ab")
    joined = a.filter("x < 15").join(b, on="l.k = r.k", within="5 seconds")
    return joined.aggregate(by=["l_k"], window="20 seconds", every="20 seconds", n="count(*)")


def theta() -> Stream:
    a, b = (table_stream(rows(0).slice(0, 0), lateness="5 seconds", name=name) for name in "ab")
    return a.join(b, on="l.x < r.x + 1", within="3 seconds")


def heard(run: LocalRun) -> tuple[list[EpochRecord], Any]:
    found: list[EpochRecord] = []
    run.driver.listeners.add(found.append)
    return found, run


@pytest.mark.parametrize("make", [query, theta])
@pytest.mark.parametrize("slots", [1, 3])
def test_figures_add_up_to_progress_and_to_the_manifest(make: Any, slots: int, tmp_path: Path) -> None:
    run = LocalRun(make(), tmp_path / "state", slots=slots)
    found, _ = heard(run)
    for epoch in range(8):
        run.epoch({"a": rows(epoch), "b": rows(epoch)}, splitters=2)
        last = run.store.last
        assert last is not None
        live = record_from_manifests(run.store.previous, last)
        run.driver.listeners.add(lambda _: None)
        told = run.driver.listeners._told[-1]
        without_times = {n: replace(each, seconds=None) for n, each in told.results.items()}
        assert live.sources == told.sources and live.results == without_times
        assert {n: replace(o, cpu=0.0) for n, o in live.operators.items()} == {
            n: replace(o, cpu=0.0) for n, o in told.operators.items()
        }
        assert len(told.slots) == slots and told.phases is not None
        assert told.driver is not None and told.driver.planning > 0 and told.driver.commit > 0
        assert sum(s.out for s in told.slots) == sum(o.out for o in told.operators.values())
        assert told.progress.epoch == epoch and told.progress.last is not None
        assert told.progress.last.tuples_in == sum(s.delivered for s in told.sources.values())
    run.end()
    assert run.driver.listeners.close()
    assert [record.epoch for record in found] == list(range(9))
    last, progress = run.store.last, run.driver.progress
    assert last is not None
    for name, source in last.sources.items():
        for what in ("delivered", "accepted", "late", "rejected", "failed"):
            assert sum(getattr(r.sources[name], what) for r in found) == getattr(source, what)
    assert progress.late > 0
    for what in ("tuples_in", "late", "rejected", "failed", "results_out"):
        assert sum(getattr(r.progress.last, what) for r in found) == getattr(progress, what)
    assert all(r.progress.last.cpu_seconds == r.cpu_seconds > 0 for r in found)
    results = Counter[str]()
    for record in found:
        results.update({name: each.rows for name, each in record.results.items() if not name.startswith("late:")})
    assert dict(results) == dict(last.totals.results) and sum(results.values()) == progress.results_out > 0
    work = WorkTotals.of(last)
    assert work is not None
    for name in last.operators:
        assert sum(r.operators[name].out for r in found) == work.counts.out.get(name, 0)
        assert sum(r.operators[name].sent for r in found) == sum(work.counts.sent.get(name, ()))
        assert sum(r.operators[name].compared for r in found) == work.counts.pairs.get(name, 0)
    joined = [r.operators["join-1"] for r in found]
    assert all(each.compared >= each.out for each in joined) and sum(each.compared for each in joined) > 0
    assert sum(slot.compared for r in found for slot in r.slots) == sum(each.compared for each in joined)
    assert sum(r.operators["join-1"].dropped for r in found) == (0 if make is theta else 5 * 8)
    assert [json.loads(json.dumps(record.to_json()))["epoch"] for record in found] == list(range(9))
    run.close()


@pytest.mark.thorough
def test_two_thousand_epochs_over_restarts_each_once_and_in_order(tmp_path: Path) -> None:
    found: list[EpochRecord] = []
    stream = table_stream(rows(0).slice(0, 0), lateness="5 seconds", name="a").filter("x > 1")
    for life in range(4):
        run = LocalRun(stream, tmp_path / "state", store=StateStore.open(tmp_path / "state", fsync=False))
        run.driver.listeners.add(found.append)
        run.driver.tell_listeners_again()
        for number in range(500):
            run.epoch(rows(life * 500 + number, 3))
        all_listeners_told = run.driver.listeners.close()
        run.store.close(all_listeners_told=all_listeners_told)
    assert [record.epoch for record in found] == list(range(2000))
    assert not any(record.repeated for record in found)
    assert sum(record.sources["a"].delivered for record in found) == 6000


@pytest.mark.parametrize("epochs", [1, 5])
def test_after_a_kill_the_newest_epoch_comes_again_and_is_marked(epochs: int, tmp_path: Path) -> None:
    first, second = list[EpochRecord](), list[EpochRecord]()
    run = LocalRun(query(), tmp_path / "state")
    run.driver.listeners.add(first.append)
    for epoch in range(epochs):
        run.epoch({"a": rows(epoch), "b": rows(epoch)})
    run.driver.listeners.close()
    run.close()  # as a kill: nobody said that all was heard
    run = LocalRun(query(), tmp_path / "state")
    run.driver.tell_listeners_again()
    run.driver.listeners.add(second.append)
    run.epoch({"a": rows(9), "b": rows(9)})
    run.driver.listeners.close()
    assert [(record.epoch, record.repeated) for record in second] == [(epochs - 1, True), (epochs, False)]
    again, told = second[0], first[-1]
    assert again.sources == told.sources and set(again.results) == set(told.results)
    assert again.progress.tuples_in == told.progress.tuples_in
    run.close()


def test_who_comes_later_hears_what_was_before() -> None:
    listeners, found = Listeners(), list[int]()
    for epoch in range(5):
        listeners.tell(EpochRecord(epoch))
    listeners.add(lambda record: found.append(record.epoch))
    listeners.tell(EpochRecord(5))
    assert listeners.close() and found == [0, 1, 2, 3, 4, 5]


def test_a_listener_that_fails_is_said_once_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    listeners, found = Listeners(), list[int]()

    def fails(record: EpochRecord) -> None:
        raise ValueError("no dashboard")

    listeners.add(fails)
    listeners.add(lambda record: found.append(record.epoch))
    with caplog.at_level(logging.WARNING, "headrace"):
        for epoch in range(50):
            listeners.tell(EpochRecord(epoch))
        assert listeners.close()
    assert found == list(range(50))
    (said,) = [each.getMessage() for each in caplog.records]
    assert "fails failed in epoch 0: ValueError: no dashboard; the run continues" in said


def test_a_listener_that_is_slow_misses_epochs_and_the_run_does_not_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners_module, "MOST_EPOCHS_BEHIND", 10)
    monkeypatch.setattr(listeners_module, "FAREWELL", 0.01)
    listeners, found = Listeners(), list[int]()
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def slow(record: EpochRecord) -> None:
        entered.set()
        go_on.wait(PATIENCE)
        found.append(record.epoch)
        if record.epoch == 100:
            done.set()

    listeners.add(slow)
    listeners.tell(EpochRecord(0))
    assert entered.wait(PATIENCE)
    with caplog.at_level(logging.WARNING, "headrace"):
        for epoch in range(1, 31):
            listeners.tell(EpochRecord(epoch))
        go_on.set()
        while len(found) < 11:
            threading.Event().wait(0.001)
        listeners.tell(EpochRecord(100))
    assert done.wait(PATIENCE) and found == [*range(11), 100]
    said = [each.getMessage() for each in caplog.records]
    assert "is 10 epochs behind; it misses the epochs from 11 on" in said[0]
    assert "missed 20 epochs; it continues with epoch 100" in said[1]


def test_a_listener_that_hangs_does_not_hold_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listeners_module, "FAREWELL", 0.05)
    listeners, go_on = Listeners(), threading.Event()
    listeners.add(lambda record: go_on.wait(PATIENCE))
    for epoch in range(3):
        listeners.tell(EpochRecord(epoch))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert not listeners.close()
    assert "before the listener" in caplog.text
    go_on.set()


def test_one_that_no_longer_wants_to_hear() -> None:
    listeners, found = Listeners(), list[int]()
    end = listeners.add(lambda record: found.append(record.epoch))
    listeners.tell(EpochRecord(0))
    (ear,) = listeners._all
    end()
    listeners.tell(EpochRecord(1))
    ear._thread.join(PATIENCE)
    assert set(found) <= {0}


def test_what_cannot_listen_is_refused() -> None:
    with pytest.raises(QueryTypeError, match="listen takes a function that accepts an epoch's record; found 7"):
        Listeners().add(7)  # type: ignore[arg-type]


def test_one_that_ends_its_thread_is_said_and_hears_on(caplog: pytest.LogCaptureFixture) -> None:
    listeners, found = Listeners(), list[int]()

    def leaves(record: EpochRecord) -> None:
        found.append(record.epoch)
        raise SystemExit(1)

    listeners.add(leaves)
    for epoch in range(3):
        listeners.tell(EpochRecord(epoch))
    assert listeners.close() and found == [0, 1, 2] and "SystemExit" in caplog.text


def test_who_comes_when_the_run_has_ended_hears_what_was_and_its_thread_ends() -> None:
    listeners, found = Listeners(), list[int]()
    listeners.tell(EpochRecord(0))
    assert listeners.close()
    listeners.add(lambda record: found.append(record.epoch))
    (ear,) = listeners._all
    ear._thread.join(PATIENCE)
    assert found == [0] and not ear._thread.is_alive()


def test_an_epoch_whose_sink_failed_is_told_with_what_was_committed(tmp_path: Path) -> None:
    def fails(table: pa.Table, epoch: int) -> None:
        raise OSError("no room")

    stream = table_stream(rows(0).slice(0, 0), name="a").filter("x > 1")
    run = LocalRun(stream, tmp_path / "state", sink=sinks.foreach(fails))
    found, _ = heard(run)
    with pytest.raises(SinkError) as caught:
        run.epoch(rows(0))
    run.driver.end(caught.value)
    (record,) = found
    assert record.epoch == 0 and "no room" in str(record.error) and record.sources["a"].delivered == 20
    run = LocalRun(stream, tmp_path / "state")  # delivers it
    found, _ = heard(run)
    run.driver.tell_listeners_again()
    run.epoch(rows(1))
    run.driver.end(None)
    assert [(each.epoch, each.error) for each in found] == [(1, None)], "it was told already"


def test_a_start_that_is_refused_does_not_make_an_epoch_come_again(tmp_path: Path) -> None:
    stream = table_stream(rows(0).slice(0, 0), name="a").filter("x > 1")
    run = LocalRun(stream, tmp_path / "state")
    run.epoch(rows(0))
    run.driver.end(None)
    with pytest.raises(QueryChanged):
        LocalRun(table_stream(rows(0).slice(0, 0), name="b").filter("x > 1"), tmp_path / "state")
    run = LocalRun(stream, tmp_path / "state")
    assert run.store.all_listeners_told
    run.close()
    assert StateStore.open(tmp_path / "state").all_listeners_told
