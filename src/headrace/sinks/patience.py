"""Waiting for a server that is away: a while, said aloud, and not when the run is to end.

Delivery comes after the commit, so nothing is lost meanwhile: the run stands still with its newest epoch in the outbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import SinkError
from headrace.support.terminal_text import printable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST, LONGEST = 0.1, 5.0  # seconds between two attempts, at first and at most
SAY_AGAIN = 30.0  # seconds


class Unreachable(Exception):
    """The other side cannot be reached, or cannot take anything now; later it may."""


class WaitLimit:
    """How long a sink waits, in all, for the other side to come back."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self._hurry = threading.Event()

    def begin(self) -> None:
        self._hurry.clear()

    def hurry(self) -> None:
        self._hurry.set()

    def wait_for(self, attempt: Callable[[], _T]) -> _T:
        """Return what `attempt` returns; repeat it after `Unreachable`, until the time limit is reached."""
        began, said, pause = time.monotonic(), -SAY_AGAIN, FIRST
        while True:
            try:
                found = attempt()
            except Unreachable as error:
                waited = time.monotonic() - began
                if self._hurry.is_set() or waited + pause > self.seconds:
                    raise self._given_up(waited, error) from None
                if waited - said >= SAY_AGAIN:
                    said = waited
                    _log.warning("%s is away, the run waits: %s", printable(self.name), printable(str(error)))
                self._hurry.wait(pause)
                pause = min(2 * pause, LONGEST)
            else:
                if said >= 0:
                    _log.warning("%s is back after %.1f seconds", printable(self.name), time.monotonic() - began)
                return found

    def _given_up(self, waited: float, error: Unreachable) -> SinkError:
        why = "the run is to end" if self._hurry.is_set() else f"it was waited for, {waited:.0f} seconds"
        return SinkError(f"{self.name} is away ({why}): {error}")
