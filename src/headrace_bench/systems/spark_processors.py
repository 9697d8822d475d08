"""The same count and sessions with Spark's transformWithState: a processor that is called key by key.

Times are whole milliseconds, the unit of Spark's timers, which costs its processors least. One version receives a
pandas DataFrame per call (transformWithStateInPandas), the other rows (transformWithState). Which of the two is faster
depends on the number of tuples per key and epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

Session = tuple[int, int, int]  # began, last, number of tuples


def longs(*names: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in names])


COUNTS = longs("at", "key", "n")
SESSIONS = longs("key", "began", "last", "n")


class Counting(StatefulProcessor):  # type: ignore[misc]
    """Numbers the tuples of each key."""

    def init(self, handle: Any) -> None:
        self._n = handle.getValueState("n", longs("n"))

    def add(self, tuples: int) -> int:
        """Add tuples to the count. Return the count before."""
        (before,) = self._n.get() or (0,)
        self._n.update((before + tuples,))
        return int(before)


class CountInPandas(Counting):
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        at = _times(rows)
        before = self.add(len(at))
        yield pd.DataFrame({"at": at, "key": key[0], "n": np.arange(before + 1, before + 1 + len(at))})


class CountInRows(Counting):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        at = sorted(row.at for row in rows)
        before = self.add(len(at))
        for number, time in enumerate(at, start=before + 1):
            yield Row(at=time, key=key[0], n=number)


class Sessions(StatefulProcessor):  # type: ignore[misc]
    """Sessions: tuples of a key, each less than a gap after the previous one. A session is emitted by the tuple that
    begins the next, or by a timer.
    """

    def __init__(self, gap: int) -> None:
        self.gap = gap  # milliseconds

    def init(self, handle: Any) -> None:
        self._handle, self._open = handle, handle.getValueState("open", longs("began", "last", "n"))

    def over(self, at: list[int]) -> list[Session]:
        """Return the sessions that end with these times. The open session is stored, with a timer."""
        before: Session | None = self._open.get()
        sessions = [] if before is None else [before]
        for time in at:
            if sessions and time - sessions[-1][1] < self.gap:
                began, _, n = sessions[-1]
                sessions[-1] = (began, time, n + 1)
            else:
                sessions.append((time, time, 1))
        *over, still = sessions
        self._open.update(still)
        if before is not None:
            self._handle.deleteTimer(before[1] + self.gap)
        self._handle.registerTimer(still[1] + self.gap)
        return over

    def expired(self) -> Session:
        found: Session = self._open.get()
        self._open.clear()
        return found


class SessionsInPandas(Sessions):
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        over = self.over(_times(rows).tolist())
        if over:
            yield pd.DataFrame([(key[0], *session) for session in over], columns=SESSIONS.names)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame([(key[0], *self.expired())], columns=SESSIONS.names)


class SessionsInRows(Sessions):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for session in self.over(sorted(row.at for row in rows)):
            yield _row(key[0], session)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield _row(key[0], self.expired())


def _times(frames: Iterator[pd.DataFrame]) -> Any:
    """Return the times of one key in order, because Spark does not guarantee any order."""
    return np.sort(np.concatenate([frame["at"].to_numpy() for frame in frames]))


def _row(key: int, session: Session) -> Row:
    began, last, n = session
    return Row(key=key, began=began, last=last, n=n)


def build(task: dict[str, Any], stream: DataFrame) -> DataFrame:
    """Return the query of a task over a stream with a watermark."""
    pandas = task["rows_as"] == "pandas"
    grouped = stream.select("key", F.unix_millis("ts").alias("at")).groupBy("key")
    apply = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    if task["kind"] == "count":
        counts = apply(CountInPandas() if pandas else CountInRows(), COUNTS, "Append", "None")
        return counts.select(F.timestamp_millis("at").alias("ts"), "key", "n")
    gap = 1000 * task["gap"]
    found = apply(SessionsInPandas(gap) if pandas else SessionsInRows(gap), SESSIONS, "Append", "EventTime")
    return found.select(
        "key", F.timestamp_millis("began").alias("began"), F.timestamp_millis("last").alias("last"), "n"
    )
