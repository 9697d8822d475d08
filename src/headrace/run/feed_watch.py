"""What a run knows of Spark's streaming query: whether tuples may still come of it, and until when it has delivered all."""

from __future__ import annotations

import math
import time

from headrace.driver.cluster_protocol import Feed, FeedStatus

STARTING = FeedStatus(may_have=True, at_work=False)  # before Spark's first look for tuples


class FeedWatch:
    """A feed and the times of its batches. `interval`: microseconds between two looks of Spark for tuples."""

    def __init__(self, interval: int, *, exists: bool) -> None:
        self.feed: Feed | None = None
        self.drained = not exists  # nothing more comes of Spark
        self._interval = interval
        self._batch_ended = time.monotonic()
        self._looked = -math.inf

    def note_batch_begins(self) -> None:
        """Spark looked for tuples since the last batch, and the new batch holds all it found."""
        self._looked = max(self._looked, self._batch_ended)

    def note_batch_ended(self) -> None:
        self._batch_ended = time.monotonic()

    @property
    def looked(self) -> float:
        """Until when all tuples that the feed had are known."""
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
        if not found.at_work:  # Spark has looked since the last batch and found nothing; it looks once per interval
            self._looked = max(self._looked, self._batch_ended, now - self._interval / 1e6)
        return self._looked < self._batch_ended

    @property
    def was_stopped(self) -> bool:
        """Whether Spark's query was stopped by a third party. A query that fails is active until its batch has told why."""
        return self.feed is not None and not (self.drained or self.feed.active) and self.feed.failure is None
