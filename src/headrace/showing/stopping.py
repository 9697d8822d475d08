"""Ctrl-C, SIGTERM and a terminal that is closed: the first asks, the second insists."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

ENDINGS = (signal.SIGTERM, signal.SIGHUP)


@dataclass
class Stop:
    """Whether the user wants to end."""

    asked: bool = False


@contextmanager
def terminable() -> Iterator[None]:
    """Every way to end is Ctrl-C."""
    with _handling(lambda *_: _interrupt(), *ENDINGS):
        yield


@contextmanager
def stoppable() -> Iterator[Stop]:
    """While a run goes on, the first signal only asks, so that the epoch in progress is finished.

    Spark's own handler, which would cancel the epoch, is put aside until the end.
    """
    stop = Stop()

    def ask(*_: Any) -> None:
        if stop.asked:
            _interrupt()
        stop.asked = True

    with _handling(ask, signal.SIGINT, *ENDINGS):
        yield stop


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def _handling(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    wanted = [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
