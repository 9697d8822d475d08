"""The demo's traffic: generated before the demo begins, with an early accident, and offered in real time.

The traffic is a part of the three hours with an accident, so it is ordinary generated traffic. When all of it is
offered, the folder equals the output of `headrace linearroad generate`.
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
LEAD = 120  # seconds of traffic before the accident, if the demo is long enough


@dataclass(frozen=True)
class Crash:
    """An accident: two cars stand at one place from second `begins` until the first moves in second `cleared`."""

    xway: int
    dir: int
    seg: int
    begins: int
    cleared: int


@dataclass(frozen=True)
class Traffic:
    """The generated part of the three hours, in a separate folder until it is offered."""

    folder: Path
    begin: int
    end: int
    crashes: tuple[Crash, ...]
    tuples: tuple[int, ...]  # number of tuples in the first n seconds
    reports: tuple[int, ...]  # number of reports in the first n seconds

    def cars(self, second: int) -> int:
        """Return the number of cars on the road after this second: each reported once in the last 30 seconds."""
        done = second + 1 - self.begin
        return self.reports[done] - self.reports[max(done - EVERY, 0)]


def make(seed: int, density: float, seconds: int, folder: Path, tell: Callable[[int], None]) -> Traffic:
    """Generate some seconds of traffic in a new folder. `tell` is called with the number of finished seconds."""
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
    """Return the first second: some time before the shortest accident that fits, or 0 if none does."""
    lead = min(LEAD, seconds // 4)
    fit = [one for one in accidents if lead <= one.begins and one.begins - lead + seconds <= HOURS]
    if not fit:
        return 0
    shortest = min(fit, key=lambda one: (one.cleared - one.begins, one.begins))
    return shortest.begins - lead


def _crash(one: Accident) -> Crash:
    return Crash(one.xway, one.direction, position(one.way, one.direction) // MILE, one.begins, one.cleared)


class Feed(threading.Thread):
    """A thread that moves the files of seconds into a folder by rename, `speed` files per second."""

    def __init__(self, traffic: Traffic, folder: Path, speed: float) -> None:
        super().__init__(name="headrace-linearroad-feed", daemon=True)
        self.traffic, self.folder, self.speed = traffic, folder, speed
        self.next = traffic.begin  # the next second to offer
        self.error: Exception | None = None
        self._stopping = threading.Event()
        folder.mkdir()
        (traffic.folder / HISTORY).rename(folder / HISTORY)

    @property
    def done(self) -> bool:
        return self.next == self.traffic.end

    @property
    def offered(self) -> int:
        """The number of offered tuples."""
        return self.traffic.tuples[self.next - self.traffic.begin]

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def offer(self, seconds: int) -> None:
        """Offer some seconds at once."""
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
            os.utime(path)  # latency is measured from now
            path.rename(self.folder / path.name)


def path_of(folder: Path, second: int) -> Path:
    return folder / f"{second:06d}.arrow"
