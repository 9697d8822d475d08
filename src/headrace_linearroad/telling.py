"""How far something is that takes long: said now and then, and not at all of what is done at once."""

from __future__ import annotations

import time
from collections.abc import Callable

Say = Callable[[str], None]

EVERY = 5.0  # seconds


class Slowly:
    """Passes on what it is told when nothing was passed on for some seconds."""

    def __init__(self, say: Say, every: float = EVERY) -> None:
        self._say, self._every, self._last = say, every, time.monotonic()

    def __call__(self, text: str) -> None:
        if (now := time.monotonic()) - self._last >= self._every:
            self._last = now
            self._say(text)
