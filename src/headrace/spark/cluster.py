"""Spark as the cluster of a run: jobs for epochs, and a query for streaming DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.control.splitter_count import Splitters
from headrace.driver.cluster_protocol import FeedStatus, OnBatch
from headrace.query.nodes import Source
from headrace.sources.protocol import TakenInput
from headrace.spark import dataframes, job
from headrace.task.epoch import Epoch
from headrace.task.messages import Message

LOOKING = ("Waiting", "Getting offsets")  # beginnings of Spark's status message before it has found tuples


@dataclass(frozen=True)
class SparkFeed:
    """Spark's streaming query over all streams of a run."""

    query: Any

    @property
    def active(self) -> bool:
        return bool(self.query.isActive)

    @property
    def drained(self) -> bool:
        return job.has_drained(self.query)

    @property
    def failure(self) -> str | None:
        error = self.query.exception()
        return None if error is None else str(error)

    def look(self) -> FeedStatus:
        status = self.query.status
        may_have = status["isDataAvailable"] or not status["message"].startswith(LOOKING)
        return FeedStatus(may_have, status["isTriggerActive"])

    def stop(self) -> None:
        self.query.stop()


@dataclass(frozen=True)
class SparkCluster:
    """Executes the epochs of a run as jobs of a Spark session."""

    spark: Any
    columns: dataframes.Columns = field(default_factory=dict)  # of DataFrames

    @property
    def stopped(self) -> bool:
        return job.is_stopped(self.spark.sparkContext)

    def static(self, sources: Mapping[str, Source]) -> Any:
        return dataframes.static_rows(sources, self.columns)

    def piece_rows(self, inputs: Sequence[TakenInput], splitters: Splitters) -> Any:
        return dataframes.piece_rows(self.spark.sparkContext, inputs, splitters)

    def batch(self, batch: Any) -> Any:
        return dataframes.to_rows(batch)

    def run_tasks(self, rows: Sequence[Any], epoch: Epoch) -> list[Message]:
        sc = self.spark.sparkContext
        united = sc.union(list(rows)) if len(rows) > 1 else rows[0] if rows else None
        return job.run_spark_job(sc, united, epoch)

    def follow(
        self, sources: Mapping[str, Source], on_batch: OnBatch, checkpoint: Path, interval: int, *, once: bool
    ) -> SparkFeed:
        job.keep_refusals_quiet()
        checkpoint.mkdir(mode=0o700, exist_ok=True)  # Spark would create it with access for others
        writer = dataframes.stream_rows(sources, self.columns).writeStream.foreachBatch(on_batch)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if once:
            return SparkFeed(writer.trigger(availableNow=True).start())
        return SparkFeed(writer.trigger(processingTime=f"{interval // 1000} milliseconds").start())

    def refuse_batch(self) -> str:
        return job.await_interrupt(self.spark)
