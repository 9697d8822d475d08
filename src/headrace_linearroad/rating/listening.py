"""The run's listener in a rating, which records when each epoch became visible, and its figures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.telemetry.epoch_record import EpochRecord
from headrace_linearroad.forms import OUTPUTS
from headrace_linearroad.rating.responses import LIMITS, Clock

SECOND = 1_000_000  # microseconds
RESULTS = {f"result-{n}": name for n, name in enumerate(OUTPUTS)}  # the engine's names of the results


class Listening:
    """The records so far. taken: called with the last second whose files are no longer needed.

    `worst`, which is only for display, assumes that all answers of an epoch belong to the oldest second that it can
    have answered. The final response times are computed from the files.
    """

    def __init__(self, begin: int, end: int, published: Path, taken: Callable[[int], None]) -> None:
        self.begin_second, self.end_second = begin, end
        self.epochs: list[dict[str, Any]] = []
        self.second = -1  # the newest second that was processed; all before it are answered
        self.worst: dict[str, float] = {}
        self.start: float | None = None
        self.speed = 1.0
        self.pauses: tuple[tuple[int, float], ...] = ()
        self._published, self._taken, self._lock = published, taken, threading.Lock()

    def begin(self, start: float, second: int, speed: float) -> None:
        """Start the clock at the time `start`, or resume it with a second after a pause."""
        with self._lock:
            if self.start is None:
                self.start, self.speed = start, speed
                self._published.write_text("".join(self._line(epoch) for epoch in self.epochs))
            else:
                self.pauses = (*self.pauses, (second, start - self.start - float(self._clock.due(second))))

    @property
    def _clock(self) -> Clock:
        return Clock(self.begin_second, self.end_second, self.speed, self.pauses)

    def _line(self, epoch: dict[str, Any]) -> str:
        assert self.start is not None
        return f"{epoch['epoch']}\t{epoch['at'] - self.start:.6f}\n"

    def __call__(self, record: EpochRecord) -> None:
        at = time.monotonic()
        with self._lock:
            self._hear(record, at)
        if self.second >= 0:
            self._taken(self.second)

    def _hear(self, record: EpochRecord, at: float) -> None:
        if record.repeated or record.error is not None:
            return
        found = _epoch(record, at)
        self.epochs.append(found)
        before = self.second
        self.second = max(before, found["second"])
        if self.start is None:
            return
        with open(self._published, "a") as file:
            file.write(self._line(found))
        oldest = max(before, self.begin_second)
        if oldest < self.second:
            took = at - self.start - float(self._clock.due(oldest))
            for name, rows in found["rows"].items():
                if rows:
                    self.worst[name] = max(self.worst.get(name, 0.0), took)

    def broken(self) -> str | None:
        """Return an output whose limit was exceeded, or None."""
        return next((name for name, worst in self.worst.items() if worst > LIMITS[name]), None)

    def behind(self, now: float) -> float:
        """Return the seconds since the oldest second without answers was due."""
        if self.start is None:
            return 0.0
        oldest = max(self.second, self.begin_second)
        return max(0.0, now - self.start - float(self._clock.due(oldest)))


def _epoch(record: EpochRecord, at: float) -> dict[str, Any]:
    progress, phases = record.progress, record.phases
    known = [source.watermark for source in record.sources.values() if isinstance(source.watermark, int)]
    slots = sum(slot.cpu for slot in record.slots)
    return {
        "epoch": record.epoch,
        "at": at,
        "second": max(known, default=-SECOND) // SECOND,
        "seconds": record.seconds,
        "tuples": sum(source.delivered for source in record.sources.values()),
        "rows": {RESULTS[name]: result.rows for name, result in record.results.items() if name in RESULTS},
        "phases": {} if phases is None else {name: getattr(phases, name) for name in PHASES},
        "cpu": {"reading": (record.cpu_seconds or 0.0) - slots, "slots": slots}
        | ({} if record.driver is None else asdict(record.driver))
        | {name: operator.cpu for name, operator in record.operators.items()},
        "state_bytes": progress.state_bytes,
        "tables": {
            operator: sum(table.bytes for table in tables.values()) for operator, tables in record.tables.items()
        },
        "backlog": progress.backlog or 0,
    }


PHASES = ("reading", "exchange", "operators", "commit", "delivery")
