"""The sources and destinations of the demo: folders of files, or topics of a Kafka broker on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.sources.files import FilesOrigin
from headrace_demo import broker as brokers
from headrace_demo.fraud import report
from headrace_demo.fraud.generator import LATENESS, SCHEMA, Calls, Feed
from headrace_demo.topic import Sender

CALLS, ALARMS, DISTRICTS = "calls", "alarms", "alarms-per-district"
WHO = "headrace demo --kafka"


@dataclass(frozen=True)
class Places:
    """Folders: calls as they arrive, and results as files."""

    root: Path

    def __post_init__(self) -> None:
        self.calls.mkdir()

    @property
    def calls(self) -> Path:
        return self.root / CALLS

    @property
    def alarms(self) -> Path:
        return self.root / ALARMS

    @property
    def districts(self) -> Path:
        return self.root / DISTRICTS

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def stream(self, spark: Any) -> hr.Stream:
        return hr.files(spark, self.calls, time="start", lateness=LATENESS, name="calls", schema=SCHEMA)

    def sinks(self) -> list[hr.sinks.Sink]:
        return [hr.sinks.parquet(folder) for folder in (self.alarms, self.districts)]

    def results(self, streams: tuple[hr.Stream, hr.Stream]) -> list[report.Results]:
        pairs = zip((self.alarms, self.districts), streams, strict=True)
        return [report.Results(folder, stream.schema) for folder, stream in pairs]

    def feed(self, calls: Calls) -> Feed:
        return Feed(calls, self.calls)

    def everything(self) -> pa.Table:
        """Return all calls that the run received."""
        return FilesOrigin(None, self.calls, None).table()

    def close(self) -> None:
        """Do nothing: folders need no cleanup."""


@dataclass(frozen=True)
class Topics(Places):
    """Topics of a broker: calls are JSON messages, results are transactions of Arrow messages. The state is in a
    folder.
    """

    broker: brokers.Broker = field(default_factory=lambda: brokers.Broker(brokers.needed(WHO)))
    fed: list[Calls] = field(default_factory=list)

    def __post_init__(self) -> None:
        for topic in (CALLS, ALARMS, DISTRICTS):
            self.broker.create(topic)  # one partition, because the reference supports no more

    def stream(self, spark: Any) -> hr.Stream:
        return hr.kafka(spark, self.broker.servers, CALLS, time="start", schema=SCHEMA, lateness=LATENESS, name="calls")

    def sinks(self) -> list[hr.sinks.Sink]:
        return [hr.sinks.kafka(self.broker.servers, topic, format="arrow") for topic in (ALARMS, DISTRICTS)]

    def results(self, streams: tuple[hr.Stream, hr.Stream]) -> list[report.Results]:
        pairs = zip((ALARMS, DISTRICTS), streams, strict=True)
        return [report.Committed(self.broker.servers, topic, stream.schema) for topic, stream in pairs]

    def feed(self, calls: Calls) -> Feed:
        self.fed.append(calls)
        return _ToTopic(calls, self.broker.servers)

    def everything(self) -> pa.Table:
        return pa.concat_tables(calls.table for calls in self.fed)

    def close(self) -> None:
        self.broker.remove()


class _ToTopic(Feed):
    """Sends calls to a topic as they arrive."""

    def __init__(self, calls: Calls, servers: str) -> None:
        super().__init__(calls, Path())
        self._sender = Sender(servers, CALLS, key="caller", who=WHO)

    def put(self, table: pa.Table, number: int) -> None:
        self._sender.put(table)
