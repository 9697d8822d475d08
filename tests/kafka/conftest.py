from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.kafka import broker as brokers

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker() -> Iterator[brokers.Broker]:
    """One for all tests of a process; whoever stops it starts it again."""
    libs = brokers.found()
    if libs is None:
        if os.environ.get("HEADRACE_LEAVE_NOTHING_OUT"):
            pytest.fail(brokers.HOW)
        pytest.skip(brokers.HOW)
    broker = brokers.Broker(libs, tls=True)
    yield broker
    broker.remove()


@pytest.fixture
def a_topic(broker: brokers.Broker) -> Callable[..., str]:
    """A new one: a_topic(partitions=6, retention_ms="1000"); its name."""

    def make(partitions: int = 1, **settings: str) -> str:
        return broker.create(f"topic-{next(_numbers)}", partitions, **settings)

    return make
