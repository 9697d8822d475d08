"""The time limit of a sink for waiting until its server is reachable again.

Delivery follows the commit, so waiting loses nothing: the run pauses with its newest epoch in the outbox.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import SinkError
from headrace.support.terminal_text import printable
from headrace.support.waiting import ServerWait

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Unreachable(Exception):
    """The server is unreachable, or cannot accept results now. The problem may pass."""


class WaitLimit:
    """The total time that a sink waits until its server is reachable again."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds
        self._hurry = threading.Event()
        self._wait = ServerWait(Unreachable, self._hurry, self._give_up, self._warn, self._resumed)

    def begin(self) -> None:
        """Allow waiting again, because a run starts."""
        self._hurry.clear()

    def hurry(self) -> None:
        """Stop waiting, because the run must end."""
        self._hurry.set()

    def wait_for(self, attempt: Callable[[], _T]) -> _T:
        """Return the result of `attempt`. Repeat it after `Unreachable` until the time limit is reached."""
        return self._wait.call(attempt)

    def _give_up(self, error: Unreachable, waited: float, pause: float) -> SinkError | None:
        if not self._hurry.is_set() and waited + pause <= self.seconds:
            return None
        why = "the run must end" if self._hurry.is_set() else f"after {waited:.0f} seconds"
        return SinkError(f"{self.name} is unreachable ({why}): {error}")

    def _warn(self, error: Unreachable) -> None:
        _log.warning("%s is unreachable, the run waits: %s", printable(self.name), printable(str(error)))

    def _resumed(self, waited: float) -> None:
        _log.warning("%s is reachable again after %.1f seconds", printable(self.name), waited)
