"""What Spark says of its query and of its session, in the words of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.driver.cluster_protocol import FeedStatus
from headrace.spark.cluster import SparkCluster, SparkFeed


@pytest.mark.parametrize(
    ("message", "active", "available", "status"),
    [
        ("Waiting for data to arrive", False, False, FeedStatus(may_have=False, at_work=False)),
        ("Waiting for next trigger", True, False, FeedStatus(may_have=False, at_work=True)),
        ("Getting offsets from FileStreamSource", True, False, FeedStatus(may_have=False, at_work=True)),
        ("Writing offsets to log", True, False, FeedStatus(may_have=True, at_work=True)),
        ("Stopped", False, False, FeedStatus(may_have=True, at_work=False)),
        ("Processing new data", True, True, FeedStatus(may_have=True, at_work=True)),
    ],
)
def test_what_spark_says_of_its_query(message: str, active: bool, available: bool, status: FeedStatus) -> None:
    said = {"message": message, "isTriggerActive": active, "isDataAvailable": available}
    assert SparkFeed(SimpleNamespace(status=said)).look() == status


@pytest.mark.parametrize(
    ("error", "nothing_more", "drained"), [(None, True, True), (None, False, False), ("no such topic", True, False)]
)
def test_a_query_that_ended_had_nothing_more_or_was_stopped(error: Any, nothing_more: bool, drained: bool) -> None:
    inner = SimpleNamespace(noNewData=lambda: nothing_more)
    query = SimpleNamespace(exception=lambda: error, _jsq=SimpleNamespace(streamingQuery=lambda: inner))
    assert SparkFeed(query).drained == drained
    assert SparkFeed(query).failure == error


@pytest.mark.parametrize(
    ("context", "stopped"),
    [
        (SimpleNamespace(_jsc=None), True),
        (SimpleNamespace(), True),
        (SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: True))), True),
        (SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))), False),
    ],
    ids=["stopped", "gone", "stopping", "live"],
)
def test_a_session_that_is_gone_is_known(context: Any, stopped: bool) -> None:
    assert SparkCluster(SimpleNamespace(sparkContext=context)).stopped == stopped
