"""Predicates whose compiled loops leave so many pairs open that DuckDB is faster alone.

A pair in doubt is written down and asked for by itself, which costs some ten times of what DuckDB needs for a pair of a whole
join. So a loop gives up where they are too many, and who ran it hands the rest over; it is noted here, in the process, until
the task tells the driver.
"""

from __future__ import annotations

import threading

TOO_MANY = 1 / 16  # of the pairs; there a pair in doubt costs what the loop has saved
TOLERATED_SHARE = (
    1 / 8
)  # of all pairs: as if so many had been looked at before the first, so that one odd tuple is borne

_noted: set[str] = set()
_lock = threading.Lock()


def is_too_many(doubts: int, looked_at: int, pairs: int) -> bool:
    """Whether a loop is to give up that is to look at so many pairs in all."""
    return doubts > TOO_MANY * (looked_at + TOLERATED_SHARE * pairs)


def note_undecided(predicate: str) -> None:
    with _lock:
        _noted.add(predicate)


def take_noted() -> list[str]:
    """The texts of predicates that were noted since it was last asked."""
    with _lock:
        found = sorted(_noted)
        _noted.clear()
    return found
