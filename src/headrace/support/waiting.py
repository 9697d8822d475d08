"""Repetition of a call to a server until the server answers, with pauses and warnings.

Invariant: a call is repeated only after the error that means that the server is unreachable. Any other error ends the
wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two calls: first and longest pause
WARN_AGAIN = 30.0  # seconds between two warnings
_T = TypeVar("_T")
_E = TypeVar("_E", bound=Exception)


@dataclass(frozen=True)
class ServerWait(Generic[_E]):
    """The rules of waiting for one server.

    unreachable: the error that a call raises while the server is unreachable.
    hurry: set when the run must end; it ends the current pause.
    give_up: (error, seconds waited, next pause) -> the error to raise now, or None to continue.
    warn: receives the error, at once and again every `WARN_AGAIN` seconds.
    resumed: receives the seconds waited, when the server answers after a warning.
    """

    unreachable: type[_E]
    hurry: threading.Event
    give_up: Callable[[_E, float, float], Exception | None]
    warn: Callable[[_E], None]
    resumed: Callable[[float], None]

    def call(self, attempt: Callable[[], _T]) -> _T:
        """Return the result of `attempt`, and repeat it while the server is unreachable."""
        began, warned, pause = time.monotonic(), -WARN_AGAIN, FIRST_PAUSE
        while True:
            try:
                found = attempt()
            except self.unreachable as error:
                waited = time.monotonic() - began
                if (reason := self.give_up(error, waited, pause)) is not None:
                    raise reason from None
                if waited - warned >= WARN_AGAIN:
                    warned = waited
                    self.warn(error)
                self.hurry.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if warned >= 0:
                    self.resumed(time.monotonic() - began)
                return found
