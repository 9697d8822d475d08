"""The end of a run with `until_idle`: all input is processed, and none has arrived for a while."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol

from headrace.telemetry.progress import Progress

IDLE_SECONDS = 2.0  # seconds without a tuple after which the input counts as processed
POLL = 0.05  # seconds between two looks at the run


class WatchedRun(Protocol):
    """The parts of a run that the idle condition uses."""

    @property
    def progress(self) -> Progress: ...

    @property
    def busy(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...

    def stop(self) -> None: ...


class IdleCondition:
    """Whether no tuple has arrived for `seconds` and the run has no pending work."""

    def __init__(self, seconds: float = IDLE_SECONDS) -> None:
        self.seconds = seconds
        self._epoch: int | None = None
        self._since: float | None = None  # set at the first call

    def __call__(self, run: WatchedRun) -> bool:
        self._since = time.monotonic() if self._since is None else self._since
        last = run.progress.last
        if last is not None and last.epoch != self._epoch:
            if self._epoch is None or last.tuples_in:
                self._since = time.monotonic()
            self._epoch = last.epoch
        return time.monotonic() - self._since >= self.seconds and not run.busy


def stop_when_idle(run: WatchedRun) -> None:
    """Stop a run from another thread as soon as it is idle."""

    def watch() -> None:
        is_idle = IdleCondition()
        with suppress(Exception):  # the caller gets the run's error from run.wait or run.exception
            while not run.wait(POLL):
                if is_idle(run):
                    run.stop()

    threading.Thread(target=watch, name="headrace-until-idle", daemon=True).start()
