"""CPU time and memory of a process with all of its children, measured while it runs."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import psutil

EVERY = 0.25  # seconds between two measurements of CPU time
RARELY = 1.0  # seconds between two measurements of memory, which cost more
Point = tuple[float, int]  # (wall-clock time, tuples done)


class Meter(threading.Thread):
    """Measures a process tree until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="headrace-meter", daemon=True)
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.memory: list[tuple[float, int]] = []
        self.seen: dict[int, psutil.Process] = {}  # all processes that ever belonged to the tree

    def run(self) -> None:
        while not self._done.is_set():
            self.look()
            self._done.wait(EVERY)

    def look(self) -> None:
        found = tree(self._root)
        self.seen |= {process.pid: process for process in found}
        now, cpu = time.time(), sum(map(_cpu, found))
        # a smaller value means that a child ended before its parent accounted for it
        if cpu >= max(self.cpu, default=0.0):
            self.times.append(now)
            self.cpu.append(cpu)
        if not self.memory or now - self.memory[-1][0] >= RARELY:
            self.memory.append((now, sum(map(memory_of, found))))

    def stop(self) -> None:
        self._done.set()
        self.join()

    def cpu_between(self, begin: float, end: float) -> float:
        """Return the CPU seconds of a period, by linear interpolation."""
        if not self.times:
            return 0.0
        first, last = np.interp([begin, end], self.times, self.cpu)
        return float(last - first)

    @property
    def peak(self) -> int:
        return max((memory for _, memory in self.memory), default=0)

    def course(self, begin: float, end: float, parts: int) -> list[float]:
        """Return the mean memory in each of `parts` equal periods, or an empty list if one has no measurement."""
        edges = np.linspace(begin, end, parts + 1)
        found = [[m for at, m in self.memory if a <= at < b] for a, b in pairwise(edges)]
        return [statistics.fmean(each) for each in found] if all(found) else []


def tree(root: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [root, *root.children(recursive=True)]
    return []


def end(meter: Meter) -> None:
    """Kill the remaining processes of a tree, even if its root has ended."""
    meter.look()
    left = [process for process in meter.seen.values() if process.is_running()]  # is_running detects reused process ids
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=10)


def _cpu(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of its ended children."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def memory_of(process: psutil.Process) -> int:
    """Return the proportional memory if available (shared memory is divided among its processes), otherwise the
    resident memory.
    """
    with contextlib.suppress(psutil.Error):
        full = process.memory_full_info()
        return int(getattr(full, "pss", 0) or full.rss)
    return 0


def span(points: Sequence[Point], begin: int, end: int) -> tuple[Point, Point] | None:
    """Return the first point with `begin` tuples done and the first with `end`, or the last point if `end` was not
    reached.
    """
    late = [point for point in points if point[1] >= begin]
    if not late:
        return None
    ended = next((point for point in late if point[1] >= end), late[-1])
    return (late[0], ended) if ended[1] > late[0][1] and ended[0] > late[0][0] else None


@dataclass(frozen=True)
class Spread:
    """A figure over several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])
