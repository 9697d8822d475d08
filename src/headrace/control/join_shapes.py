"""Shapes for joins without an equality: into how many parts each stream is cut, chosen by what a slot must read.

    ssp           the left stream is the master: it is partitioned, and the right one is replicated
    adaptive-ssp  the faster stream is the master
    grid          StreamCloud's square, over the largest square number of slots
    ragged        the shape, for any number of slots, whose busiest slot reads least

The load diffusion paper defines the overhead of its algorithm as (k - 1) times the rate of the replicated stream, but
then makes the stream with the lower rate the master, which is the partitioned one. That would replicate the faster
stream and maximise the overhead. `adaptive-ssp` minimises the formula instead.
"""

from __future__ import annotations

import math

from headrace.routing.by_rectangle import Rectangles, best_rectangles, busiest_reads


def choose_shape(
    policy: str, groups: int, slots: int, new: tuple[float, float], held: tuple[float, float]
) -> Rectangles:
    """Return the shape that a policy chooses for these new tuples per epoch and these tuples in windows."""
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
    """Return the standard deviation of the tuples that another shape saves, given the variances of both streams'
    counts.
    """
    saved = [
        read_by_busiest(before, one, (0.0, 0.0)) - read_by_busiest(after, one, (0.0, 0.0))
        for one in ((1.0, 0.0), (0.0, 1.0))
    ]
    return math.sqrt(sum(each**2 * variance for each, variance in zip(saved, variances, strict=True)))


def read_by_busiest(layout: Rectangles, new: tuple[float, float], held: tuple[float, float]) -> float:
    """Return the number of tuples that the busiest slot reads in an epoch."""
    left, right = new[0] + held[0], new[1] + held[1]
    return busiest_reads(layout.rows, right, left) if layout.transposed else busiest_reads(layout.rows, left, right)
