"""The status of Spark's streaming query: whether it may still deliver tuples, and up to when it has delivered all."""

from __future__ import annotations

import math
import time

from headrace.driver.cluster_protocol import Feed, FeedStatus

STARTING = FeedStatus(may_have=True, at_work=False)  # before Spark's first poll for tuples


class FeedWatch:
    """A feed and the times of its batches. `interval`: microseconds between Spark's polls for tuples."""

    def __init__(self, interval: int, *, exists: bool) -> None:
        self.feed: Feed | None = None
        self.drained = not exists  # True: Spark delivers nothing more
        self._interval = interval
        self._batch_ended = time.monotonic()
        self._looked = -math.inf

    def note_batch_begins(self) -> None:
        """Note that a batch begins. Spark polled after the previous batch, and this batch contains everything found."""
        self._looked = max(self._looked, self._batch_ended)

    def note_batch_ended(self) -> None:
        self._batch_ended = time.monotonic()

    @property
    def looked(self) -> float:
        """Return the time up to which Spark has delivered all tuples of the feed."""
        self.may_have_tuples()
        return self._looked

    def may_have_tuples(self) -> bool:
        """Return whether Spark has, or may have, tuples that it has not delivered."""
        if self.drained:
            self._looked = time.monotonic()
            return False
        now, found = time.monotonic(), self.feed.look() if self.feed is not None else STARTING
        if found.may_have:
            return True
        if not found.at_work:  # Spark has polled since the last batch and found nothing; it polls once per interval
            self._looked = max(self._looked, self._batch_ended, now - self._interval / 1e6)
        return self._looked < self._batch_ended

    @property
    def was_stopped(self) -> bool:
        """Return whether something other than this run stopped Spark's query. A failed query stays active until its
        batch has raised.
        """
        return self.feed is not None and not (self.drained or self.feed.active) and self.feed.failure is None
