"""`hr.kafka` on Spark with a real broker: equal to the reference, whatever is sent, added, removed or killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.difference import difference
from tests.kafka import sending
from tests.kafka.broker import Broker

pytestmark = pytest.mark.spark
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
    from headrace.testing import table_stream

    return hr.reference(query(table_stream(sending.table(made), time="at", lateness=LATENESS, name="calls")))


def once(query: hr.Stream, folder: Path, **options: Any) -> Any:
    sink = hr.sinks.memory()
    run = query.start(sink, checkpoint=folder / "checkpoint", once=True, slots=2, show=False, **options)
    assert run.wait(300)
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
