"""Grids of time windows: where windows start and end.

Windows have integers k, in order of their starts and of their ends. `latest(t)` is the number of the last window that
has started at time t, `closed(t)` the number of the last window that has ended by then. A position t is in the windows
k with closed(t) < k <= latest(t), and a watermark that moves from `before` to `after` closes those with closed(before)
< k <= closed(after).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from headrace.columnar.arrow import Numbers
from headrace.support.local_days import DAY, DAYS_OF_400_YEARS, LocalDays

PERIOD = DAYS_OF_400_YEARS * DAY


class WindowGrid(Protocol):
    """A grid of time windows. Times are microseconds, as one number or an array."""

    @property
    def window(self) -> int:
        """Return the length of a window; for local days, as if each had 24 hours."""

    @property
    def every(self) -> int:
        """Return the time between the starts of two windows; for local days, as if each had 24 hours."""

    @property
    def longest(self) -> int:
        """Return an upper bound on the length of any window."""

    @property
    def panes(self) -> WindowGrid:
        """Return the smallest adjacent windows that every window consists of."""

    def latest(self, at: Any) -> Any:
        """Return the number of the last window that has started."""

    def closed(self, at: Any) -> Any:
        """Return the number of the last window that has ended."""

    def starts(self, numbers: Any) -> Any:
        """Return the first moment of each window."""

    def ends(self, numbers: Any) -> Any:
        """Return the first moment after each window."""

    def move_back(self, watermark: int) -> int:
        """Return a time before which no window starts that is open at the watermark."""


@dataclass(frozen=True)
class RegularWindows:
    """Windows [k*every + offset, k*every + offset + window)."""

    window: int
    every: int
    offset: int = 0

    @property
    def longest(self) -> int:
        return self.window

    @property
    def panes(self) -> RegularWindows:
        pane = math.gcd(self.window, self.every)
        return RegularWindows(pane, pane, self.offset % pane)

    def latest(self, at: Any) -> Any:
        return (at - self.offset) // self.every

    def closed(self, at: Any) -> Any:
        return (at - self.offset - self.window) // self.every

    def starts(self, numbers: Any) -> Any:
        return numbers * self.every + self.offset

    def ends(self, numbers: Any) -> Any:
        return self.starts(numbers) + self.window

    def move_back(self, watermark: int) -> int:
        return watermark - self.window


@dataclass(frozen=True)
class LocalDayWindows:
    """Adjacent windows of whole local days; day `first` starts one. The grid carries the rules of its time zone."""

    days: int
    first: int
    local: LocalDays

    @property
    def window(self) -> int:
        return self.days * DAY

    @property
    def every(self) -> int:
        return self.window

    @property
    def longest(self) -> int:
        return self.window + DAY  # a zone that moved across the date line had one day twice

    @property
    def panes(self) -> LocalDayWindows:
        return self

    def latest(self, at: Any) -> Any:
        return (self._day(np.asarray(at, np.int64)) - self.first) // self.days

    def closed(self, at: Any) -> Any:
        return self.latest(at) - 1

    def starts(self, numbers: Any) -> Any:
        return self._begin(np.asarray(numbers, np.int64) * self.days + self.first)

    def ends(self, numbers: Any) -> Any:
        return self.starts(numbers + 1)

    def move_back(self, watermark: int) -> int:
        return int(self.starts(self.latest(watermark)))

    def _day(self, at: Numbers) -> Any:
        """Return the number of the last day that has started."""
        eras = 0
        if self.local.repeats_from is not None:
            eras = np.maximum((at - self._begin(self.local.repeats_from)) // PERIOD, 0)
        at = at - eras * PERIOD
        run = np.maximum(np.searchsorted(self._starts, at, side="right") - 1, 0)
        day = np.minimum(self._firsts[run] + (at - self._starts[run]) // DAY, self._lasts[run])
        return day + eras * DAYS_OF_400_YEARS

    def _begin(self, day: Any) -> Any:
        """Return the first moment of a day."""
        eras = 0
        if self.local.repeats_from is not None:
            eras = np.maximum((day - self.local.repeats_from) // DAYS_OF_400_YEARS, 0)
        day = day - eras * DAYS_OF_400_YEARS
        run = np.maximum(np.searchsorted(self._firsts, day, side="right") - 1, 0)
        return self._starts[run] + (day - self._firsts[run]) * DAY + eras * PERIOD

    @cached_property
    def _firsts(self) -> Numbers:
        return np.array([first for first, _ in self.local.runs], np.int64)

    @cached_property
    def _starts(self) -> Numbers:
        return np.array([start for _, start in self.local.runs], np.int64)

    @cached_property
    def _lasts(self) -> Numbers:
        """Return the last day of each run."""
        return np.append(self._firsts[1:] - 1, np.iinfo(np.int64).max)


def pane_starts(windows: WindowGrid, at: Numbers) -> Numbers:
    """Return the start of the pane that contains each time."""
    found: Numbers = windows.panes.starts(windows.panes.latest(at))
    return found
