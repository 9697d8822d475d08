"""Predicates whose compiled loops leave so many pairs in doubt that DuckDB alone is faster.

A pair in doubt is materialised and evaluated separately, which costs about ten times what DuckDB needs for a pair of a
whole join. A loop therefore gives up if such pairs are too many, and its caller passes the rest to DuckDB. The process
notes the predicate here until the task reports it to the driver.
"""

from __future__ import annotations

import threading

TOO_MANY = 1 / 16  # share of the pairs at which doubtful pairs cost as much as the loop saves
TOLERATED_SHARE = (
    1 / 8
)  # of all pairs, counted as compared from the start, so that a few odd tuples do not end the loop

_noted: set[str] = set()
_lock = threading.Lock()


def is_too_many(doubts: int, looked_at: int, pairs: int) -> bool:
    """Return whether a loop over `pairs` pairs should give up, given the doubts among those compared so far."""
    return doubts > TOO_MANY * (looked_at + TOLERATED_SHARE * pairs)


def note_undecided(predicate: str) -> None:
    with _lock:
        _noted.add(predicate)


def take_noted() -> list[str]:
    """Return the predicates noted since the last call, and forget them."""
    with _lock:
        found = sorted(_noted)
        _noted.clear()
    return found
