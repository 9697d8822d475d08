"""The broker that the other tests use: what it keeps over a kill, and what a port that is taken does to it."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace_demo import broker as brokers
from tests.kafka.broker import Broker

TOPIC = Callable[..., str]


def send(servers: str, topic: str, *values: bytes, **settings: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **settings})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def read(servers: str, topic: str, count: int, **settings: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "nobody", **settings})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(count, 0.1):
            assert message.error() is None
            found.append(message.value())
    consumer.close()
    return found


def test_there_and_back_over_a_stop_and_a_kill(broker: Broker, a_topic: TOPIC):
    topic, values = a_topic(), [b"%d" % number for number in range(300)]
    send(broker.servers, topic, *values[:100])
    broker.kill()
    broker.start()
    send(broker.servers, topic, *values[100:200])
    broker.restart()
    send(broker.servers, topic, *values[200:])
    assert read(broker.servers, topic, 300) == values


def test_a_login(broker: Broker, a_topic: TOPIC):
    topic = a_topic()
    send(broker.secured, topic, b"x", **broker.login)
    assert read(broker.secured, topic, 1, **broker.login) == [b"x"]


def test_ports_that_another_has(broker: Broker, monkeypatch: pytest.MonkeyPatch):
    """Others are chosen when it cannot bind them."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        choices = iter([[number, *brokers._ports()[1:]], brokers._ports(), brokers._ports()])
        monkeypatch.setattr(brokers, "_ports", lambda: next(choices))
        other = Broker(broker.jars)
        assert number not in other.ports
        other.create("here")
        other.remove()
        assert not other.folder.exists()
