"""The demo's traffic: made before it begins, with an accident soon after its beginning, and offered as time goes by.

A part of the three hours is chosen in which an accident happens, so nothing is staged that other traffic has not. When all of
it is offered, the folder is what `headrace linearroad generate` would have written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace_linearroad.forms import COMPLETE, HISTORY, REPORT
from headrace_linearroad.generating.accidents import Accident
from headrace_linearroad.generating.cast import Cast
from headrace_linearroad.generating.demand import Demand
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.world import EVERY, HOURS, MILE, position
from headrace_linearroad.generating.writing import TRUTH, Job, Written, write

ROADS = 2
LEAD = 120  # seconds of traffic before the accident, if there is time for it


@dataclass(frozen=True)
class Crash:
    """Two cars that stand where they should not: from second `begins` on, until the first moves in `cleared`."""

    xway: int
    dir: int
    seg: int
    begins: int
    cleared: int


@dataclass(frozen=True)
class Traffic:
    """A part of the three hours, in a folder of its own until it is offered."""

    folder: Path
    begin: int
    end: int
    crashes: tuple[Crash, ...]
    tuples: tuple[int, ...]  # that are there when so many seconds are
    reports: tuple[int, ...]  # the same, of cars

    def cars(self, second: int) -> int:
        """On the road when this second is over: each has reported once in the last 30 of them."""
        done = second + 1 - self.begin
        return self.reports[done] - self.reports[max(done - EVERY, 0)]


def make(seed: int, density: float, seconds: int, folder: Path, tell: Callable[[int], None]) -> Traffic:
    """So many seconds of it, in a new folder; `tell` hears how many there are."""
    settings = Settings(ROADS, seed, density, plain=True)
    accidents = Cast(settings, range(ROADS), Demand(density).first).accidents
    begin = _begin(accidents, seconds)
    tuples, reports = [0], [0]

    def count(written: Written, doing: str) -> None:
        if not doing:
            tuples.append(written.tuples)
            reports.append(written.kinds[REPORT])
            tell(written.seconds)

    write(settings, folder, Job(begin, seconds), count)
    end = begin + seconds
    inside = [one for one in accidents if begin < one.cleared and one.begins < end]
    return Traffic(folder, begin, end, tuple(map(_crash, inside)), tuple(tuples), tuple(reports))


def _begin(accidents: list[Accident], seconds: int) -> int:
    """A while before the accident that is over first, or as near to that as the three hours allow."""
    lead = min(LEAD, seconds // 4)
    fit = [one for one in accidents if lead <= one.begins and one.begins - lead + seconds <= HOURS]
    if not fit:
        return 0
    shortest = min(fit, key=lambda one: (one.cleared - one.begins, one.begins))
    return shortest.begins - lead


def _crash(one: Accident) -> Crash:
    return Crash(one.xway, one.direction, position(one.way, one.direction) // MILE, one.begins, one.cleared)


class Feed(threading.Thread):
    """Moves files of seconds into a folder, `speed` of them per second. Nobody ever sees half of one."""

    def __init__(self, traffic: Traffic, folder: Path, speed: float) -> None:
        super().__init__(name="headrace-linearroad-feed", daemon=True)
        self.traffic, self.folder, self.speed = traffic, folder, speed
        self.next = traffic.begin  # second that is not offered yet
        self.error: Exception | None = None
        self._stopping = threading.Event()
        folder.mkdir()
        (traffic.folder / HISTORY).rename(folder / HISTORY)

    @property
    def done(self) -> bool:
        return self.next == self.traffic.end

    @property
    def offered(self) -> int:
        """Tuples."""
        return self.traffic.tuples[self.next - self.traffic.begin]

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def offer(self, seconds: int) -> None:
        """At once, before it starts."""
        for _ in range(min(seconds, self.traffic.end - self.next)):
            self._offer(path_of(self.traffic.folder, self.next))
            self.next += 1

    def run(self) -> None:
        try:
            self._offer_all(time.monotonic(), self.next)
        except Exception as error:
            self.error = error

    def _offer_all(self, began: float, first: int) -> None:
        while not self.done:
            due = began + (self.next + 1 - first) / self.speed
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            self.offer(1)
        for name in (TRUTH, COMPLETE):
            (self.traffic.folder / name).rename(self.folder / name)

    def _offer(self, path: Path) -> None:
        if path.exists():  # a second without a tuple has no file
            os.utime(path)  # latency counts from now
            path.rename(self.folder / path.name)


def path_of(folder: Path, second: int) -> Path:
    return folder / f"{second:06d}.arrow"
