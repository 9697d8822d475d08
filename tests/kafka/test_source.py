"""`hr.kafka` on Spark with a real broker: equal to the reference, whatever is sent, added, removed or killed."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.difference import difference
from headrace.errors import SourceError
from headrace.sources.kafka import ledger
from headrace.state.store import StateStore
from headrace.testing import table_stream
from tests.helpers import wait_until
from tests.kafka import sending
from tests.kafka.broker import Broker
from tests.kafka.sending import SECOND
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
TOPIC = Callable[..., str]
LATENESS = "2 seconds"


def stream(spark: Any, broker: Broker, topic: str | list[str], **options: Any) -> hr.Stream:
    given = {"time": "at", "schema": sending.SCHEMA, "lateness": LATENESS, "name": "calls", **options}
    return hr.kafka(spark, broker.servers, topic, **given)


def busy(calls: hr.Stream) -> hr.Stream:
    return calls.aggregate(by=["caller"], window="4 seconds", every="2 seconds", n="count(*)", s="sum(seconds)")


def pairs(calls: hr.Stream) -> hr.Stream:
    return calls.join(calls, on="l.caller = r.caller and l.seconds < r.seconds", within="1 second")


def plain(made: list[sending.Call], query: Callable[[hr.Stream], hr.Stream]) -> Any:
    """What the reference says of the calls themselves, which never saw a broker."""
    return hr.reference(query(table_stream(sending.table(made), time="at", lateness=LATENESS, name="calls")))


def once(query: hr.Stream, folder: Path, **options: Any) -> Any:
    sink = hr.sinks.memory()
    run = query.start(sink, checkpoint=folder / "checkpoint", once=True, slots=2, show=False, **options)
    assert run.wait(PATIENCE)
    return sink.table()


@pytest.mark.parametrize("query", [busy, pairs])
def test_messages_in_transactions_over_partitions_are_equal_to_the_reference(
    query: Callable[[hr.Stream], hr.Stream], spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    made, topic = sending.calls(7, 1500, 6), a_topic(partitions=6)
    sending.send_mixed(broker.servers, topic, made, 7)
    calls = stream(spark, broker, topic, messages_per_epoch=400)
    wanted = plain(made, query)
    assert wanted.num_rows > 100
    assert difference(wanted, hr.reference(query(calls))) is None
    assert difference(wanted, query(calls).collect(slots=2)) is None
    assert difference(wanted, once(query(calls), tmp_path)) is None


def test_a_range_that_ends_in_aborted_messages_before_an_open_transaction_has_an_end(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    """Their end is marked behind the open transaction, where nobody may read yet."""
    made, topic = sending.calls(5, 40, 1), a_topic(partitions=1)
    sending.send(broker.servers, topic, [(0, call.text()) for call in made[:30]])
    first, second = (sending.Transactions(broker.servers, f"{topic}-{name}") for name in ("first", "second"))
    first.begin(topic, [(0, call.text()) for call in made[:20]])
    second.begin(topic, [(0, call.text()) for call in made[30:]])
    first.end(commit=False)
    assert difference(plain(made[:30], busy), once(busy(stream(spark, broker, topic)), tmp_path / "open")) is None
    second.end(commit=True)
    assert difference(plain(made, busy), once(busy(stream(spark, broker, topic)), tmp_path / "ended")) is None


def test_messages_that_grow_suddenly_do_not_make_a_large_epoch(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
):
    """From some hundred bytes to 30 KB: an epoch that reads far more than it was to is begun again with fewer messages."""
    made, topic, most, sizes = sending.calls(11, 1000, 3), a_topic(partitions=3), 200_000, []
    padded = [
        (c.partition, c.text()[:-1] + b', "pad": "' + b"x" * (30_000 * (n > 940)) + b'"}') for n, c in enumerate(made)
    ]
    sending.send(broker.servers, topic, padded)
    monkeypatch.setattr(ledger, "MOST_EPOCH_BYTES", most)
    monkeypatch.setattr(ledger, "FIRST_EPOCH_MESSAGES", 100)
    note_commit = ledger.KafkaLedger.note_commit

    def noted(self: ledger.KafkaLedger, state: Any, chosen: Any, read: Any) -> None:
        sizes.append(read.bytes)
        note_commit(self, state, chosen, read)

    monkeypatch.setattr(ledger.KafkaLedger, "note_commit", noted)
    with caplog.at_level(logging.WARNING):
        assert difference(plain(made, busy), once(busy(stream(spark, broker, topic)), tmp_path)) is None
    assert "are far larger than before" in caplog.text
    assert max(sizes) <= 2 * ledger.BYTES_LIMIT_FACTOR * most and sum(sizes) == sum(len(value) for _, value in padded)


# --- kill -9 -----------------------------------------------------------------------------------------------------------


def killed(job: dict[str, Any], moment: str, at: int) -> int:
    """The exit code of a run that dies at that moment, if it comes to it."""
    given = json.dumps({**job, "moment": moment, "at": at})
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.run([sys.executable, "-m", "tests.kafka.dying", given], env=env, cwd=ROOT, check=False).returncode


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_a_driver_that_is_killed_takes_every_message_once(kills: int, broker: Broker, a_topic: TOPIC, tmp_path: Path):
    made, topic = sending.calls(kills, 900, 4), a_topic(partitions=4)
    sending.send_mixed(broker.servers, topic, made, kills)
    job = {"servers": broker.servers, "topic": topic, "folder": str(tmp_path), "messages": 1100 // (kills + 2)}
    rng, moments = random.Random(kills), ["commit", "reading", "deliver", "read"]
    for number in range(kills):
        moment = moments[number % 4]
        assert killed(job, moment, rng.randrange(2) if number == 0 else 0) == -signal.SIGKILL
        sending.send(broker.servers, topic, [(0, b'{"at": "2030-01-01T00:00:00Z"}')])  # not of the list it began with
    assert killed(job, "never", 0) == 0
    assert difference(plain(made, pairs), pq.read_table(tmp_path / "out")) is None
    with StateStore.open(tmp_path / "state", read_only=True) as store:
        assert store.last.totals.accepted == len(made) and store.last.totals.late == 0


# --- a run that goes on ------------------------------------------------------------------------------------------------


class Running:
    """A run that follows a topic, and what it has put out."""

    def __init__(self, query: hr.Stream, folder: Path, **options: Any) -> None:
        given = {"epoch": "0 seconds", "slots": 2, "show": False, **options}
        self.run = query.start(hr.sinks.parquet(folder / "out"), checkpoint=folder / "checkpoint", **given)

    def until(self, tuples: int) -> None:
        wait_until(self.run, lambda p: p.tuples_in >= tuples)

    def fails(self) -> str:
        """The words of what ends it."""
        with pytest.raises(SourceError) as caught:
            self.run.wait(PATIENCE)
        return str(caught.value)


def text(made: list[sending.Call]) -> list[tuple[int, bytes]]:
    return [(call.partition, call.text()) for call in made]


def test_a_broker_that_is_killed_is_waited_for_and_partitions_may_be_added(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """All goes on where it was; what is sent to a partition that is added counts from its first message."""
    topic, made = a_topic(partitions=3), sending.calls(3, 600, 3)
    later = [replace(call, at=call.at + 600 * SECOND) for call in sending.calls(4, 300, 5)]
    query = pairs(stream(spark, broker, topic, messages_per_epoch=150))
    running = Running(query, tmp_path)
    sending.send(broker.servers, topic, text(made[:300]))
    running.until(100)
    broker.kill()
    end = time.monotonic() + PATIENCE
    while not any("the run waits for Kafka" in record.getMessage() for record in caplog.records):
        assert running.run.active and time.monotonic() < end
        time.sleep(0.1)
    broker.start()
    sending.send(broker.servers, topic, text(made[300:]))
    running.until(600)
    broker.widen(topic, 5)
    sending.send(broker.servers, topic, text(later))
    running.until(900)
    running.run.stop()
    assert running.run.progress.late == 0 and running.run.progress.tuples_in == 900
    assert Running(query, tmp_path, once=True).run.wait(PATIENCE)
    assert difference(plain([*made, *later], pairs), pq.read_table(tmp_path / "out")) is None
    assert any("Kafka is reachable again after" in record.getMessage() for record in caplog.records)


def test_what_comes_out_is_whole_when_a_run_is_stopped_and_ended_later(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    """A run that follows, is stopped, and is then taken to its end."""
    topic, made = a_topic(partitions=2), sending.calls(5, 400, 2)
    query = busy(stream(spark, broker, topic, messages_per_epoch=120))
    sending.send(broker.servers, topic, text(made[:250]))
    first = Running(query, tmp_path)
    first.until(250)
    first.run.stop()
    sending.send(broker.servers, topic, text(made[250:]))
    assert Running(query, tmp_path, once=True).run.wait(PATIENCE)
    assert difference(plain(made, busy), pq.read_table(tmp_path / "out")) is None


# --- what cannot be read -----------------------------------------------------------------------------------------------


def test_a_message_that_cannot_be_read_stops_the_run_or_is_put_aside(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    topic, made = a_topic(partitions=2), sending.calls(6, 60, 2)
    poison = [(1, b'{"seconds": "secret-4711"}'), (0, b"null"), (1, b"")]
    sending.send(broker.servers, topic, [*text(made[:30]), *poison, *text(made[30:])])
    calls = stream(spark, broker, topic)
    stopped = Running(busy(calls), tmp_path / "stops")
    words = stopped.fails()
    assert f"of partition {topic}/" in words and "the message at offset" in words and 'errors="keep"' in words
    assert "4711" not in words
    late = hr.sinks.memory()
    found = once(busy(calls), tmp_path / "goes on", errors="keep", late=late)
    assert difference(plain(made, busy), found) is None
    aside = late.table().to_pylist()
    assert sorted(row["value"] for row in aside) == sorted(value for _, value in poison)
    assert all(row["_source"] == "calls" and row["_reason"].startswith("failed: read a message: ") for row in aside)
    with StateStore.open(tmp_path / "goes on" / "checkpoint" / "state", read_only=True) as store:
        assert store.last.sources["calls"].failed == 3 and store.last.totals.accepted == len(made)


def test_a_topic_that_is_deleted_or_made_again_is_named(spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path):
    topic, made = a_topic(partitions=1), sending.calls(8, 40, 1)
    sending.send(broker.servers, topic, text(made))
    running = Running(busy(stream(spark, broker, topic)), tmp_path)
    running.until(40)
    broker.delete(topic)
    assert f"topic {topic!r} does not exist: it was deleted" in running.fails()
    end = time.monotonic() + PATIENCE
    while True:  # a broker takes its time to forget a topic
        try:
            broker.create(topic)
            break
        except Exception:
            assert time.monotonic() < end
            time.sleep(0.2)
    assert f"topic {topic!r} was deleted and recreated" in Running(busy(stream(spark, broker, topic)), tmp_path).fails()


def test_retention_that_overtakes_a_stopped_run_is_named_or_counted(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    topic, made = a_topic(partitions=1), sending.calls(9, 100, 1)
    sending.send(broker.servers, topic, text(made[:40]))
    first = Running(busy(stream(spark, broker, topic)), tmp_path)
    first.until(40)
    first.run.stop()
    sending.send(broker.servers, topic, text(made[40:]))
    broker.cut(topic, 0, 70)
    words = Running(busy(stream(spark, broker, topic)), tmp_path).fails()
    assert f"offsets 40 to 69 of partition {topic}/0 were removed before they were read" in words
    counted = Running(busy(stream(spark, broker, topic, gaps="count")), tmp_path)
    counted.until(70)
    counted.run.stop()
    assert counted.run.progress.lost == 30
    with StateStore.open(tmp_path / "checkpoint" / "state", read_only=True) as store:
        assert store.last.ledgers["calls"].partitions[f"{topic}/0"].lost == 30
        assert store.last.totals.delivered == 70


# --- how it is spoken to -----------------------------------------------------------------------------------------------


def test_a_broker_whose_certificate_nobody_vouches_for_is_refused_at_once(spark: Any, broker: Broker, a_topic: TOPIC):
    given: dict[str, Any] = {"time": "at", "schema": sending.SCHEMA}
    unknown = {name: value for name, value in broker.login.items() if name != "ssl.ca.location"}
    with pytest.raises(SourceError, match="certificate"):
        hr.kafka(spark, broker.secured, a_topic(), settings=unknown, **given).collect(slots=1)


def test_a_password_is_in_no_log_no_manifest_and_no_error(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    topic, made = a_topic(partitions=2), sending.calls(10, 50, 2)
    sending.send(broker.servers, topic, text(made))
    given: dict[str, Any] = {"time": "at", "schema": sending.SCHEMA, "lateness": LATENESS, "name": "calls"}
    with caplog.at_level(0):
        calls = hr.kafka(spark, broker.secured, topic, settings=broker.login, **given)
        assert difference(plain(made, busy), once(busy(calls), tmp_path)) is None
        wrong = hr.kafka(
            spark, broker.secured, topic, settings={**broker.login, "sasl.password": "wr0ng-4826"}, **given
        )
        with pytest.raises(SourceError) as caught:
            busy(wrong).collect(slots=1)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (broker.login["sasl.password"], "wr0ng-4826"):
        assert secret not in caplog.text and secret not in str(caught.value) and secret.encode() not in stored


def test_formats_and_several_topics_and_a_start(spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path):
    """The same calls as JSON, Avro, Arrow streams and as they are; from two topics; and from a time on."""
    topics, made = [a_topic(partitions=2) for _ in range(4)], sending.calls(11, 200, 2)
    sending.send(broker.servers, topics[0], text(made[:100]))
    sending.send(broker.servers, topics[1], text(made[100:]))
    wanted = plain(made, busy)
    assert difference(wanted, busy(stream(spark, broker, topics[:2])).collect(slots=2)) is None
    sending.send(broker.servers, topics[2], [(call.partition, sending.avro(call)) for call in made])
    avro = stream(spark, broker, topics[2], format="avro", avro=sending.AVRO)
    assert difference(wanted, once(busy(avro), tmp_path)) is None
    halves = [(p, sending.ipc([call for call in made if call.partition == p])) for p in (0, 1)]
    sending.send(broker.servers, topics[3], halves)
    assert difference(wanted, busy(stream(spark, broker, topics[3], format="arrow")).collect(slots=2)) is None
    raw = hr.kafka(spark, broker.servers, topics[0], format="raw", name="calls").collect(slots=1)
    assert sorted(raw["value"].to_pylist()) == sorted(value for _, value in text(made[:100]))
    assert set(raw["topic"].to_pylist()) == {topics[0]} and set(raw["partition"].to_pylist()) == {0, 1}
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    for start in ("latest", later):
        assert stream(spark, broker, topics[0], start=start).collect(slots=1).num_rows == 0
    assert (
        stream(spark, broker, topics[0], start=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).collect(slots=1).num_rows == 100
    )


def test_a_partition_that_is_empty_holds_windows_open_until_it_is_idle(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
):
    topic, made = a_topic(partitions=2), sending.calls(12, 100, 1)
    sending.send(broker.servers, topic, text(made))
    strict = Running(busy(stream(spark, broker, topic)), tmp_path / "strict")
    strict.until(100)
    assert strict.run.progress.results_out == 0
    strict.run.stop()
    idle = Running(busy(stream(spark, broker, topic, idle="1 second")), tmp_path / "idle")
    end = time.monotonic() + PATIENCE
    while not idle.run.progress.results_out:
        assert time.monotonic() < end
        idle.run.wait(0.1)
    idle.run.stop()


def test_peek_shows_the_first_messages_and_commits_nothing(
    spark: Any, broker: Broker, a_topic: TOPIC, tmp_path: Path
) -> None:
    made, topic = sending.calls(11, 40, 1), a_topic(partitions=1)
    sending.send_mixed(broker.servers, topic, made, 11)
    calls = stream(spark, broker, topic)
    wanted = calls.filter("seconds > 3").peek(5, timeout=f"{PATIENCE} seconds")
    assert wanted.num_rows == 5
    arrived = calls.peek(40, timeout=f"{PATIENCE} seconds")
    assert difference(sending.table(made).rename_columns(arrived.column_names), arrived) is None
    assert difference(wanted, calls.filter("seconds > 3").peek(5, timeout=f"{PATIENCE} seconds")) is None, (
        "the next look begins where the first did"
    )
    assert stream(spark, broker, topic, start="latest").peek(5, timeout="1 second").num_rows == 0
    assert once(calls, tmp_path).num_rows == 40
