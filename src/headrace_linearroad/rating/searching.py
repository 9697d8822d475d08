"""The largest number of expressways that holds: doubled until one fails, then halved between the two."""

from __future__ import annotations

from collections.abc import Callable

from headrace_linearroad.generating.world import MOST


def search(holds: Callable[[int], bool], first: int, resolution: float) -> int:
    """Of whole numbers; 0 if not even one holds. resolution: the answer is right to so large a share of it.

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
