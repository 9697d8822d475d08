"""Progress messages for long tasks, at most one every few seconds. Short tasks report nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]

EVERY = 5.0  # seconds


class Slowly:
    """A filter that passes a message on only if `every` seconds have passed since the last one."""

    def __init__(self, say: Say, every: float = EVERY) -> None:
        self._say, self._every, self._last = say, every, time.monotonic()

    def __call__(self, text: str) -> None:
        if (now := time.monotonic()) - self._last >= self._every:
            self._last = now
            self._say(text)
