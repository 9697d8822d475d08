"""The interface between a run and the cluster that executes its epochs. `headrace.spark.cluster` implements it.

A run uses only this interface and never Spark itself, so tests can replace the cluster and control time and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.control.splitter_count import Splitters
from headrace.query.nodes import Source
from headrace.sources.protocol import TakenInput
from headrace.task.epoch import Epoch
from headrace.task.messages import Message

OnBatch = Callable[[Any, int], None]  # (batch, its number)


class FeedStatus(NamedTuple):
    """The activity of a feed."""

    may_have: bool  # it has undelivered tuples, or does not know yet
    at_work: bool  # it looks for tuples, or the run processes its batch


class Feed(Protocol):
    """Streams that the cluster reads. It calls the run with one batch after the other."""

    @property
    def active(self) -> bool:
        """Return whether more batches may come."""

    @property
    def drained(self) -> bool:
        """Return whether the feed ended because all available input is processed."""

    @property
    def failure(self) -> str | None:
        """Return the error that ended the feed; None if it is active or `stop` ended it."""

    def look(self) -> FeedStatus:
        """Return what the feed is doing now."""

    def stop(self) -> None:
        """End the feed."""


class Cluster(Protocol):
    """The cluster that executes epochs."""

    @property
    def stopped(self) -> bool:
        """Return whether the cluster has ended."""

    def static(self, sources: Mapping[str, Source]) -> Any:
        """Return the rows of sources that are read whole."""

    def piece_rows(self, inputs: Sequence[TakenInput], splitters: Splitters) -> Any:
        """Return the pieces of the inputs of an epoch as rows, assigned to splitters."""

    def batch(self, batch: Any) -> Any:
        """Return the rows of a batch of a feed."""

    def run_tasks(self, rows: Sequence[Any], epoch: Epoch) -> list[Message]:
        """Run the tasks of an epoch on rows, and return their reports."""

    def follow(
        self, sources: Mapping[str, Source], on_batch: OnBatch, checkpoint: Path, interval: int, *, once: bool
    ) -> Feed:
        """Start to read streams. The feed looks for tuples every `interval` microseconds, or only once with `once`."""

    def refuse_batch(self) -> str:
        """Wait, in the callback of a batch, until the feed is stopped; return the text of the error to raise then."""
