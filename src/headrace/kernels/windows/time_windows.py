"""Where time windows begin and end.

Windows have whole numbers k, in order of their starts and of their ends. `latest(t)` is the number of the last window that
has begun at time t, `closed(t)` the number of the last window that has ended then. So a position t lies in the windows k with
closed(t) < k <= latest(t), and a watermark that goes from `before` to `after` closes those with
closed(before) < k <= closed(after).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.columnar.arrow import Numbers


class WindowGrid(Protocol):
    """Times are microseconds, one number or an array of them."""

    @property
    def window(self) -> int:
        """The length of a window; of local days, as if each had 24 hours."""

    @property
    def every(self) -> int:
        """The time between the starts of two windows, in the same sense."""

    @property
    def longest(self) -> int:
        """No window is longer."""

    @property
    def panes(self) -> WindowGrid:
        """The smallest windows, side by side, of which every window consists."""

    def latest(self, at: Any) -> Any:
        """The number of the last window that has begun."""

    def closed(self, at: Any) -> Any:
        """The number of the last window that has ended."""

    def starts(self, numbers: Any) -> Any:
        """The first moment of each window."""

    def ends(self, numbers: Any) -> Any:
        """The first moment behind each window."""


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


def pane_starts(windows: WindowGrid, at: Numbers) -> Numbers:
    """The start of the pane in which each time lies."""
    found: Numbers = windows.panes.starts(windows.panes.latest(at))
    return found
