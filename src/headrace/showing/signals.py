"""Ctrl-C, SIGTERM and a terminal that is closed: the first asks, the second insists.

If the user insists, a KeyboardInterrupt is raised. The code that cleans up after it is not interrupted for some seconds, and
errors in it, such as those of calls to Spark that were interrupted, are not reported (`Stop.insisted`).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.support.shutdown import END_SIGNALS, handle_signals

if TYPE_CHECKING:
    from headrace.run.run import Run

DEAF = 5.0  # seconds for cleaning up, in which further signals have no effect
STOPPED = 128 + signal.SIGINT  # the exit code of an interrupted command, as shells report it


@dataclass
class StopRequest:
    """Whether the user wants to end."""

    asked: bool = False
    _insisted: float | None = None  # when, if so

    @property
    def insisted(self) -> bool:
        return self._insisted is not None

    def insist(self, *_: Any) -> None:
        now = time.monotonic()
        if (
            self._insisted is None or now > self._insisted + DEAF
        ):  # the first exception may be lost, where Arrow calls Python
            self._insisted = now
            raise KeyboardInterrupt


@contextmanager
def end_by_interrupt() -> Iterator[StopRequest]:
    """Every way to end is Ctrl-C."""
    stop = StopRequest()
    with handle_signals(stop.insist), _without_py4j(stop):
        yield stop


@contextmanager
def stop_on_first_signal() -> Iterator[StopRequest]:
    """While a run goes on, the first signal only asks, so that the epoch in progress is finished."""
    stop, outer = StopRequest(), signal.getsignal(signal.SIGINT)
    insist = outer if callable(outer) else stop.insist

    def ask(*given: Any) -> None:
        if stop.asked:
            insist(*given)
        stop.asked = True

    with handle_signals(ask):
        yield stop


@contextmanager
def stop_at_end(run: Run) -> Iterator[Run]:
    """A run that is stopped in the end; if the user insists, what is under way is not waited for."""
    try:
        yield run
    except KeyboardInterrupt:
        run._ask_to_stop()
        raise
    except BaseException:
        run.stop()
        raise
    run.stop()


def ignore() -> None:
    """For a program that has completed its work. Signals have no effect while it ends, unless it takes long: it may wait for a
    thread of the user's own.
    """
    ended = time.monotonic()

    def leave(*_: Any) -> None:
        if time.monotonic() > ended + DEAF:
            os._exit(STOPPED)

    for number in END_SIGNALS:
        signal.signal(number, leave)
        atexit.register(signal.signal, number, signal.SIG_IGN)  # called when all such threads have ended


@contextmanager
def _without_py4j(stop: StopRequest) -> Iterator[None]:
    """py4j logs every call that was interrupted, with a traceback, to its own loggers or to the root logger."""

    def passes(record: logging.LogRecord) -> bool:
        return not (stop.insisted and "py4j" in record.pathname)

    loggers = [logging.getLogger(name) for name in (None, "py4j", "py4j.java_gateway", "py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(passes)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(passes)
