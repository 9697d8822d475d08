"""The ranges of a band join: bounds that give each slot the same number of points and intervals to read.

Tasks report a sample of the numbers of each block. The controller keeps one weighted sample per side of the tuples that
are still in a window, in which older tuples fade. From it follow the bounds (quantiles of both sides together), the slots
that share a range (several quantiles with one value), and what the busiest slot of any layout reads.

Ranges are not always best: if most intervals are as long as the data are wide, every slot would read almost all of them.
Therefore fewer ranges with a grid of slots each are considered too, down to a single range, which is a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.control.group_load import NumbersOfBlock
from headrace.routing import Ranges

MOST_SAMPLED = 2_048  # numbers that a sample keeps
EXTENT_FADE = 0.8  # factor of the remembered extent after each epoch
Numbers = npt.NDArray[np.float64]
_LARGEST = float(np.finfo(np.float64).max)


@dataclass
class NumberSample:
    """A weighted sample of the numbers of the tuples of one side that are still in a window."""

    values: Numbers = field(default_factory=lambda: np.zeros(0))  # ascending
    weights: Numbers = field(default_factory=lambda: np.zeros(0))  # tuples that each value represents
    extent: float = 0.0  # length of the longest interval

    def add(self, blocks: Sequence[NumbersOfBlock], held: float) -> None:
        """Add the blocks of an epoch. Older values fade, so that the sample represents about `held` tuples."""
        new = sum(block.rows for block in blocks)
        older = float(self.weights.sum())
        fade = min(1.0, max(held - new, 0.0) / older) if older else 0.0
        values, weights = [self.values], [self.weights * fade]
        for block in blocks:
            if block.sample:
                values.append(np.asarray(block.sample))
                weights.append(np.full(len(block.sample), block.rows / len(block.sample)))
        self.extent = max([self.extent * EXTENT_FADE, *(block.extent for block in blocks)])
        self.values, self.weights = _thinned(np.concatenate(values), np.concatenate(weights))

    def between(self, low: float | None, high: float | None) -> float:
        """Return about how many tuples have a number in [low, high). None: no bound."""
        start = 0 if low is None else int(np.searchsorted(self.values, low, side="left"))
        stop = len(self.values) if high is None else int(np.searchsorted(self.values, high, side="left"))
        return float(self.weights[start:stop].sum())


def _thinned(values: Numbers, weights: Numbers) -> tuple[Numbers, Numbers]:
    """Return a sorted sample of at most `MOST_SAMPLED` values with the same total weight."""
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    values, weights = values[weights > 0], weights[weights > 0]
    if len(values) <= MOST_SAMPLED:
        return values, weights
    total = float(weights.sum())
    at = np.searchsorted(np.cumsum(weights), (np.arange(MOST_SAMPLED) + 0.5) * total / MOST_SAMPLED)
    return values[np.minimum(at, len(values) - 1)], np.full(MOST_SAMPLED, total / MOST_SAMPLED)


def choose_ranges(samples: Sequence[NumberSample], points: int, width: float, slots: int) -> Ranges:
    """Return the layout whose busiest slot reads least."""
    counts = sorted({max(slots // share, 1) for share in (1, 2, 3, 4, 6, 8, 16, slots)}, reverse=True)
    options = [_with_ranges(samples, points, width, slots, count) for count in counts]
    return min(options, key=lambda layout: read_by_busiest(layout, samples, width))


def read_by_busiest(layout: Ranges, samples: Sequence[NumberSample], width: float) -> float:
    """Return about how many tuples of windows and of an epoch the busiest slot reads."""
    reads = [_read(layout, number, samples, width) for number in range(len(layout.grids))]
    return max(
        left / rows + right / columns for (left, right), (rows, columns) in zip(reads, layout.grids, strict=True)
    )


def _read(layout: Ranges, number: int, samples: Sequence[NumberSample], width: float) -> tuple[float, float]:
    low, high = layout.range_at(number)
    found = []
    for side, sample in enumerate(samples):
        back, ahead = (0.0, 0.0) if side == layout.points else (sample.extent + width, width)
        start, stop = None if low is None else low - back, None if high is None else high + ahead
        found.append(sample.between(start, stop))
    return found[0], found[1]


def _with_ranges(samples: Sequence[NumberSample], points: int, width: float, slots: int, count: int) -> Ranges:
    """Return a layout with at most `count` ranges that have equally many tuples for each of their slots."""
    shares = [slots * (place + 1) // count - slots * place // count for place in range(count)]
    bounds, slots_of = _cuts(*_pooled(samples, points), shares)
    rough = Ranges(bounds, tuple((each, 1) for each in slots_of), points)
    grids = tuple(_best_grid(_read(rough, number, samples, width), each) for number, each in enumerate(slots_of))
    return Ranges(bounds, grids, points)


def _pooled(samples: Sequence[NumberSample], points: int) -> tuple[Numbers, Numbers]:
    """Return the values of both sides with their weights; intervals count at their middle."""
    values = [s.values if side == points else _middles(s) for side, s in enumerate(samples)]
    pooled, weights = np.concatenate(values), np.concatenate([sample.weights for sample in samples])
    order = np.argsort(pooled, kind="stable")
    return pooled[order], weights[order]


def _middles(sample: NumberSample) -> Numbers:
    with np.errstate(over="ignore"):
        return np.clip(sample.values + sample.extent / 2, -_LARGEST, _LARGEST)  # bounds are finite


def _cuts(values: Numbers, weights: Numbers, shares: Sequence[int]) -> tuple[tuple[float, ...], list[int]]:
    """Return bounds between ranges with weights in proportion to `shares`, and the slots of each range.

    Ranges that would have the same start, because one value has the weight of several, become one.
    """
    reached = np.cumsum(weights)
    wanted = np.cumsum(shares)[:-1] * float(reached[-1]) / sum(shares)
    bounds: list[float] = []
    slots = [shares[0]]
    for share, at in zip(shares[1:], wanted, strict=False):
        bound = float(values[min(int(np.searchsorted(reached, at, side="right")), len(values) - 1)])
        if (bounds and bound <= bounds[-1]) or bound <= values[0]:
            slots[-1] += share
        else:
            bounds.append(bound)
            slots.append(share)
    slots[-1] += sum(shares) - sum(slots)
    return tuple(bounds), slots


def _best_grid(read: tuple[float, float], slots: int) -> tuple[int, int]:
    """Return the rows and columns of `slots` slots, or of fewer, that read least of (left, right) tuples."""
    options = [(rows, slots // rows) for rows in range(1, slots + 1)]
    return min(options, key=lambda grid: (read[0] / grid[0] + read[1] / grid[1], -grid[0] * grid[1]))
