"""Search for the largest number of expressways that holds: double until one fails, then bisect."""

from __future__ import annotations

from collections.abc import Callable

from headrace_linearroad.generating.world import MOST


def search(holds: Callable[[int], bool], first: int, resolution: float) -> int:
    """Return the largest whole number that holds, or 0. resolution: precision of the result, as a share of it.

    >>> tried = []
    >>> search(lambda n: tried.append(n) or n <= 300, 64, 0.1), tried
    (288, [64, 128, 256, 512, 384, 320, 288, 304])
    """
    good, bad = 0, first
    while bad <= MOST and holds(bad):
        good, bad = bad, min(bad * 2, MOST) if bad < MOST else MOST + 1
    while bad - good > max(1, int(good * resolution)):
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
