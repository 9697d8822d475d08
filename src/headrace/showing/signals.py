"""Handling of Ctrl-C, SIGTERM and a closed terminal: the first signal requests a stop, the second interrupts.

The second signal raises KeyboardInterrupt. For some seconds after it, further signals do not interrupt the cleanup, and
errors of interrupted calls to Spark are not logged (`StopRequest.insisted`).

Invariant: an interrupt of a command is never lost. Python discards an exception that is raised in the callback of a weak
reference or in a finalizer, where a signal may arrive too; such an interrupt is raised again. Where compiled code
discards it without a word, the next step of the command notices.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.support.shutdown import END_SIGNALS, handle_signals

if TYPE_CHECKING:
    from headrace.run.run import Run

DEAF = 5.0  # seconds for cleanup, in which further signals have no effect
SOON = 0.05  # seconds until a discarded interrupt is raised again
STOPPED = 128 + signal.SIGINT  # exit code of an interrupted command, as shells report it


@dataclass
class StopRequest:
    """Whether the user has requested a stop, and whether a second signal has interrupted the program."""

    asked: bool = False
    _insisted: float | None = None  # time of the last interrupt, or None

    @property
    def insisted(self) -> bool:
        return self._insisted is not None

    def insist(self, *_: Any) -> None:
        now = time.monotonic()
        if (
            self._insisted is None or now > self._insisted + DEAF
        ):  # an exception may be lost when Arrow calls Python, so a later signal raises again
            self._insisted = now
            raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise in the main thread once more, soon: not here, because the exception would be discarded here too."""
        self._insisted = -DEAF
        number = threading.main_thread().ident
        assert number is not None
        again = threading.Timer(SOON, signal.pthread_kill, (number, signal.SIGINT))
        again.daemon = True
        again.start()


@contextmanager
def end_by_interrupt() -> Iterator[StopRequest]:
    """Let each ending signal raise KeyboardInterrupt, as Ctrl-C does."""
    stop = StopRequest()
    with handle_signals(stop.insist), _without_py4j(stop), _nothing_lost(stop):
        yield stop


@contextmanager
def stop_on_first_signal() -> Iterator[StopRequest]:
    """Let the first signal only set `asked`, so that the epoch in progress can finish. The second signal interrupts."""
    stop, outer = StopRequest(), signal.getsignal(signal.SIGINT)
    if isinstance(interrupted := getattr(outer, "__self__", None), StopRequest) and interrupted.insisted:
        raise KeyboardInterrupt  # compiled code discarded it
    insist = outer if callable(outer) else stop.insist

    def ask(*given: Any) -> None:
        if stop.asked:
            insist(*given)
        stop.asked = True

    with handle_signals(ask):
        yield stop


@contextmanager
def stop_at_end(run: Run) -> Iterator[Run]:
    """Stop the run at the end of the block. If the user interrupts, do not wait for the epoch in progress."""
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
    """Ignore signals while a finished program exits. After `DEAF` seconds a signal ends it, in case it waits for a
    user's thread.
    """
    ended = time.monotonic()

    def leave(*_: Any) -> None:
        if time.monotonic() > ended + DEAF:
            os._exit(STOPPED)

    for number in END_SIGNALS:
        signal.signal(number, leave)
        # atexit calls this after all non-daemon threads have ended
        atexit.register(signal.signal, number, signal.SIG_IGN)


@contextmanager
def _nothing_lost(stop: StopRequest) -> Iterator[None]:
    """Raise an interrupt again that Python has discarded, instead of printing it."""
    usual = sys.unraisablehook

    def hook(discarded: sys.UnraisableHookArgs) -> None:
        if stop.insisted and issubclass(discarded.exc_type, KeyboardInterrupt):
            stop.raise_again()
        else:
            usual(discarded)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


@contextmanager
def _without_py4j(stop: StopRequest) -> Iterator[None]:
    """Drop py4j's log records of interrupted calls, which it logs with a traceback to its own loggers or the root
    logger.
    """

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
