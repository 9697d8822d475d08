"""Shapes for joins on any predicate: which stream is cut into how many parts, by what a slot must read.

    ssp           the left stream is the master: partitioned, the right one replicated
    adaptive-ssp  the faster stream is the master
    grid          StreamCloud's square, of the largest square number of slots
    ragged        the shape of any number of slots whose busiest slot reads least

The load diffusion paper counts the overhead of its algorithm as (k - 1) times the rate of the replicated stream, and then
says that the stream with the lower rate becomes the master, which is the partitioned one: that would replicate the faster
stream and make the overhead largest. `adaptive-ssp` does what the formula minimises.
"""

from __future__ import annotations

import math

from headrace.routing.by_rectangle import Rectangles, best_rectangles, busiest_reads


def choose_shape(
    policy: str, groups: int, slots: int, new: tuple[float, float], held: tuple[float, float]
) -> Rectangles:
    """The shape that a policy wants for these tuples per epoch, and these in the windows."""
    slots = min(slots, groups)
    if policy == "ssp" or (policy == "adaptive-ssp" and new[0] >= new[1]):
        return Rectangles(groups, (1,) * slots)
    if policy == "adaptive-ssp":
        return Rectangles(groups, (slots,))
    if policy == "grid":
        side = math.isqrt(slots)
        return Rectangles(groups, (side,) * side)
    return best_rectangles(groups, slots, new[0] + held[0] + 1, new[1] + held[1] + 1)


def savings_deviation(before: Rectangles, after: Rectangles, variances: tuple[float, float]) -> float:
    """The standard deviation of the tuples that another shape saves, for counts of both streams with these variances."""
    saved = [
        read_by_busiest(before, one, (0.0, 0.0)) - read_by_busiest(after, one, (0.0, 0.0))
        for one in ((1.0, 0.0), (0.0, 1.0))
    ]
    return math.sqrt(sum(each**2 * variance for each, variance in zip(saved, variances, strict=True)))


def read_by_busiest(layout: Rectangles, new: tuple[float, float], held: tuple[float, float]) -> float:
    """Tuples that the busiest slot reads in an epoch."""
    left, right = new[0] + held[0], new[1] + held[1]
    return busiest_reads(layout.rows, right, left) if layout.transposed else busiest_reads(layout.rows, left, right)
