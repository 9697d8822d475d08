"""The rows of DataFrames in the order in which Spark delivers them, for `peek`. Nothing is stored or committed.

A static DataFrame is read one partition at a time, as far as the caller requests. A streaming one is read by a Spark
query with a temporary checkpoint, which the caller deletes.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

from headrace.errors import EngineError
from headrace.query.nodes import Source
from headrace.spark import dataframes, job
from headrace.task.messages import unpack

Arrived = tuple[str, pa.Table]  # (source, rows as the source delivers them)
MOST_WAITING = 4  # tables queued for the caller
START_SECONDS = 60.0  # seconds within which Spark must start a query
STOP_SECONDS = 60.0  # seconds to wait at the end for a batch that Spark has begun
PAUSE = 0.02  # seconds between two polls


def static_arrivals(sources: Mapping[str, Source], columns: dataframes.Columns) -> Iterator[Arrived]:
    """Yield the rows of static DataFrames."""
    for name, _, body in dataframes.static_rows(sources, columns).toLocalIterator():
        yield name, unpack(body)


class StreamArrivals:
    """The rows of streaming DataFrames, while a Spark query runs."""

    def __init__(self, sources: Mapping[str, Source], columns: dataframes.Columns, checkpoint: Path) -> None:
        job.keep_refusals_quiet()
        self._arrived: queue.Queue[Arrived] = queue.Queue(MOST_WAITING)
        self._done = threading.Event()
        self._refused = threading.Event()  # no batch is in progress any more
        self._spark = next(iter(sources.values())).origin.spark
        writer = dataframes.stream_rows(sources, columns).writeStream.foreachBatch(self._on_batch)
        self._query: Any = writer.option("checkpointLocation", str(checkpoint)).start()

    def _on_batch(self, batch: Any, number: int) -> None:
        for name, _, body in dataframes.to_rows(batch).toLocalIterator():
            self._put((name, unpack(body)))
            if self._done.is_set():
                break
        if self._done.is_set():  # prevents Spark from starting another batch
            self._refused.set()
            raise EngineError(job.await_interrupt(self._spark))

    def _put(self, arrived: Arrived) -> None:
        while not self._done.is_set():
            with suppress(queue.Full):
                self._arrived.put(arrived, timeout=0.1)
                return

    def await_first_look(self) -> None:
        """Wait until Spark has read something, or has polled the sources and found nothing."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._query.isActive and self._arrived.empty():
            if self._query.status["message"].startswith("Waiting"):
                return
            time.sleep(PAUSE)

    def next(self, timeout: float) -> Arrived | None:
        """Return the next rows that arrive, or None after the timeout. Raise the error that ended the query."""
        try:
            return self._arrived.get(timeout=timeout)
        except queue.Empty:
            if not self._query.isActive and (error := self._query.exception()) is not None:
                raise EngineError(f"Spark ended the query: {str(error)[:2000]}") from None
            return None

    def __enter__(self) -> StreamArrivals:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the query between two batches, because Spark logs interrupted jobs at length."""
        self._done.set()
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and self._query.isActive and self._query.status["isTriggerActive"]:
            if self._refused.wait(PAUSE):
                break
        try:
            self._query.stop()
        except PySparkException as error:
            raise EngineError(f"Spark did not stop the query of peek: {str(error)[:500]}") from None
