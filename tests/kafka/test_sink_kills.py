"""kill -9 while results are delivered to a topic: a reader of what is committed finds each once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.sinks import dying
from tests.sinks.dying import ROWS
from tests.sinks.stores import Store
from tests.sinks.test_kills import by_another, by_itself, check

TOPIC = Callable[..., str]
ALL_SENT = 3  # steps before it: a delivery begins, its producer is begun, rows are on their way


def a_store(broker: Broker, topic: str) -> Store:
    return Store("kafka", broker.servers, topic)


def test_killed_now_and_then(broker: Broker, a_topic: TOPIC, tmp_path: Path):
    """Once when all is sent and nothing committed, once by another process."""
    store, folder = a_store(broker, a_topic(2)), tmp_path / "state"
    assert by_itself(store, folder, [ALL_SENT]) == 1
    assert store.values() == [], "nothing was committed"
    assert by_another(store, folder, random.Random("kafka"), 1)
    check(store, folder)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times_by_another_process(seed: int, broker: Broker, a_topic: TOPIC, tmp_path: Path):
    store, folder = a_store(broker, a_topic(2)), tmp_path / "state"
    assert by_another(store, folder, random.Random(f"kafka-{seed}"), 10) > 3
    check(store, folder)


@pytest.mark.long
def test_killed_at_every_step(broker: Broker, a_topic: TOPIC, tmp_path: Path):
    store, folder = a_store(broker, a_topic(2)), tmp_path / "state"
    assert by_itself(store, folder, range(16)) > 10
    check(store, folder)


def test_one_that_keeps_no_record_is_seen(broker: Broker, a_topic: TOPIC, tmp_path: Path):
    """A canary: killed after the commit, it has the epoch twice."""
    store, folder = a_store(broker, a_topic(2)), tmp_path / "state"
    assert dying.run(store, folder, kill=dying.Kill(ALL_SENT + 1), broken=True) is None
    dying.run(store, folder, broken=True)
    assert len(store.values()) > ROWS
    assert sorted(set(store.values())) == list(range(ROWS))
