"""The displayed state of the expressways: speeds, from the reports; tolls and alerts, from the answers.

The state is computed from tables in order of time. The same rows give the same picture and the same events, however
they are divided into tables.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace_linearroad.demo.traffic import ROADS, Crash
from headrace_linearroad.forms import REPORT
from headrace_linearroad.generating.world import EVERY, SEGMENTS

SHAPE = (ROADS, 2, SEGMENTS)
MINUTE = 60
OVER = 75  # seconds without an alert after which an accident is over
HIGHER = 1.5  # a toll this many times the last one reported is a new event
GREEN, AMBER, ORANGE, RED, BLUE, GREY = "#3a9d55", "#b8860b", "#d9731a", "#d63b3b", "#3f7fd0", "#808080"
WAYS = ("eastbound", "westbound")

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]
Place = tuple[int, int, int]  # expressway, direction, segment


@dataclass(frozen=True)
class Event:
    """A displayed event."""

    time: int
    words: str
    style: str = ""

    def __str__(self) -> str:
        return f"{clock(self.time)}  {self.words}"


def clock(second: int) -> str:
    """Return a second as h:mm:ss.

    >>> clock(7342)
    '2:02:22'
    """
    return f"{second // 3600}:{second // 60 % 60:02d}:{second % 60:02d}"


def place(where: Place) -> str:
    """Return a place in words.

    >>> place((1, 0, 47))
    'segment 47 eastbound on expressway 1'
    """
    xway, direction, seg = where
    return f"segment {seg} {WAYS[direction]} on expressway {xway}"


@dataclass
class Seen:
    crashes: Sequence[Crash] = ()
    events: list[Event] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # rows of answers, by output
    charged: int = 0  # number of tolls above 0
    time: int = -1  # the last second with displayed reports
    answered: int = -1  # the last second with complete answers
    alerts: dict[Place, int] = field(default_factory=dict)  # time of the last alert, by place of the accident
    toll: Longs = field(default_factory=lambda: np.zeros(SHAPE, np.int64))
    highest: int = 0
    _told: int = 0  # the highest toll with an event
    _toll_minute: int = -1
    _rounds: deque[tuple[Floats, Floats]] = field(default_factory=lambda: deque(maxlen=EVERY))
    _happened: set[Crash] = field(default_factory=set)

    # --- reports -----------------------------------------------------------------------------------------------------

    def report(self, second: int, table: pa.Table) -> None:
        """Add the tuples of a second."""
        columns = {name: table[name].to_numpy() for name in ("type", "xway", "dir", "seg", "spd")}
        rows = columns["type"] == REPORT
        cells = np.ravel_multi_index(
            tuple(columns[name][rows].astype(np.int64) for name in ("xway", "dir", "seg")), SHAPE
        )
        size = int(np.prod(SHAPE))
        speeds: Floats = np.bincount(cells, columns["spd"][rows].astype(np.float64), size).astype(np.float64)
        self._rounds.append((speeds, np.bincount(cells, minlength=size).astype(np.float64)))
        self.time = second
        for crash in self.crashes:
            if crash.begins <= second and crash not in self._happened:
                self._happened.add(crash)
                where = place((crash.xway, crash.dir, crash.seg))
                self.events.append(Event(crash.begins, f"collision in {where}, not known yet", AMBER))

    @property
    def speed(self) -> Floats:
        """Mean miles per hour in the last half minute; nan where no car reported."""
        if not self._rounds:
            return np.full(SHAPE, np.nan)
        speeds, cars = (np.sum(parts, axis=0) for parts in zip(*self._rounds, strict=True))
        return np.where(cars > 0, speeds / np.maximum(cars, 1), np.nan).reshape(SHAPE)

    def standing(self) -> list[Place]:
        """Return the places of current accidents, detected or not."""
        return [(one.xway, one.dir, one.seg) for one in self.crashes if one.begins <= self.time < one.cleared]

    # --- answers -----------------------------------------------------------------------------------------------------

    def answer(self, output: str, table: pa.Table) -> None:
        """Add rows of an output."""
        if not table.num_rows:
            return
        self.counts[output] += table.num_rows
        columns = {name: table[name].to_numpy() for name in table.column_names if name != "ts"}
        order = np.argsort(columns["time"], kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        if output == "tolls":
            self._tolls(columns)
        elif output == "accidents":
            self._accidents(columns)

    def _tolls(self, columns: dict[str, Longs]) -> None:
        self.charged += int(np.count_nonzero(columns["toll"]))
        self.toll[columns["xway"], columns["dir"], columns["seg"]] = columns["toll"]  # the last row of a place wins
        best = int(np.argmax(columns["toll"]))
        toll, time = int(columns["toll"][best]), int(columns["time"][best])
        self.highest = max(self.highest, toll)
        if toll > self._told * HIGHER and time // MINUTE > self._toll_minute:
            self._told, self._toll_minute = toll, time // MINUTE
            where = place((int(columns["xway"][best]), int(columns["dir"][best]), int(columns["seg"][best])))
            self.events.append(Event(time, f"tolls up to {toll:,} in {where}", BLUE))

    def _accidents(self, columns: dict[str, Longs]) -> None:
        places = list(zip(*(columns[name].tolist() for name in ("xway", "dir", "seg")), strict=True))
        for where, time in zip(places, columns["time"].tolist(), strict=True):
            if where not in self.alerts:
                self.events.append(Event(time, f"accident in {place(where)}: cars are alerted", f"bold {RED}"))
            self.alerts[where] = time

    def settle(self, second: int) -> None:
        """Record that all answers up to a second are complete, and end the accidents without recent alerts."""
        self.answered = second
        for where, last in list(self.alerts.items()):
            if second - last > OVER:
                del self.alerts[where]
                minute = (last // MINUTE + 1) * MINUTE  # alerts cover whole minutes
                self.events.append(Event(minute, f"the accident in {place(where)} is cleared", GREEN))

    def alerted(self) -> npt.NDArray[np.bool_]:
        """Return the segments in which cars are alerted: that of an accident, and the four before it."""
        found = np.zeros(SHAPE, bool)
        for xway, direction, seg in self.alerts:
            behind = slice(max(seg - 4, 0), seg + 1) if direction == 0 else slice(seg, seg + 5)
            found[xway, direction, behind] = True
        return found
