"""What a run asks of whatever executes its epochs. Spark is the one answer (`headrace.spark.cluster`).

A run knows these questions and nothing of Spark; so its decisions about time, silence and the end can be tested by hand.
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
    """What a feed is doing."""

    may_have: bool  # tuples for us: there are some, or it does not know yet
    at_work: bool  # it looks for tuples, or we have its batch


class Feed(Protocol):
    """Streams that others read: they call back with batches, one after the other."""

    @property
    def active(self) -> bool:
        """Whether batches may still come."""

    @property
    def drained(self) -> bool:
        """Whether it ended because all that was there is done."""

    @property
    def failure(self) -> str | None:
        """What ended it, if it was not asked to."""

    def look(self) -> FeedStatus: ...

    def stop(self) -> None: ...


class Cluster(Protocol):
    """Where epochs are executed."""

    @property
    def stopped(self) -> bool:
        """Whether it is gone, for good."""

    def static(self, sources: Mapping[str, Source]) -> Any:
        """The rows of sources that are read whole."""

    def piece_rows(self, inputs: Sequence[TakenInput], splitters: Splitters) -> Any:
        """The rows of what was taken of sources that headrace drives, dealt to splitters."""

    def batch(self, batch: Any) -> Any:
        """The rows of a feed's batch."""

    def execute(self, rows: Sequence[Any], epoch: Epoch) -> list[Message]:
        """Run the tasks of an epoch on rows; their reports."""

    def follow(
        self, sources: Mapping[str, Source], on_batch: OnBatch, checkpoint: Path, interval: int, *, once: bool
    ) -> Feed:
        """Begin to read streams; a look every so many microseconds, or once for what is there now."""

    def refuse_batch(self) -> str:
        """In a callback, for a run that is to end: wait until the feed is stopped; the words to end it with."""
