"""Which rows of a keyed table are due, without looking at those that are not.

Invariant: every row that has a time stands among the `recent`, or in the sorted part that is left at no later a place than
its time. Places may be out of date (the row went, or was put with a later time): whoever asks holds candidates against
the column itself. What was taken from the sorted part and is still due moves to the recent ones.
"""

from __future__ import annotations

import numpy as np

from headrace.arrow import Numbers
from headrace.kernels.columns import Fixed, Mask

FEW = 256  # rows that may be looked at in vain before it is worth sorting
MANY = 1_000  # writes whose rows are put together


class Due:
    """An index on a column of times."""

    def __init__(self, column: Fixed) -> None:
        self._column = column
        self._times: Numbers = np.zeros(0, np.int64)  # sorted
        self._rows: Numbers = np.zeros(0, np.int64)
        self._recent: list[Numbers] = []
        self._waiting = 0  # rows in `recent`
        self._looked = 0

    def add(self, rows: Numbers) -> None:
        """These rows were written."""
        self._recent.append(rows)
        self._waiting += len(rows)
        if len(self._recent) > MANY:  # nobody asks
            self._hold(np.unique(np.concatenate(self._recent)))

    def until(self, time: int, live: Mask) -> Numbers:
        """The rows, of those that live, whose time is not after this one; in no order."""
        self._settle(live)
        cut = int(np.searchsorted(self._times, time, side="right"))
        recent = np.unique(np.concatenate([self._rows[:cut], *self._recent]))
        recent = recent[live[recent] & self._column.valid[recent]]
        self._times, self._rows = self._times[cut:], self._rows[cut:]
        self._hold(recent)
        due: Numbers = recent[self._column.values[recent] <= time]
        return due

    def _hold(self, recent: Numbers) -> None:
        self._recent, self._waiting = [recent], len(recent)

    def _settle(self, live: Mask) -> None:
        """Sort again once the recent rows have been looked at about as often as there are rows to sort."""
        self._looked += self._waiting
        if self._looked <= max(FEW, len(self._rows)):
            return
        self._looked = 0
        rows = np.flatnonzero(live & self._column.valid)
        order = np.argsort(self._column.values[rows], kind="stable")
        self._rows = rows[order]
        self._times = self._column.values[self._rows]
        self._hold(rows[:0])
