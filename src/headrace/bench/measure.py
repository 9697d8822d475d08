"""Processor time and memory of a process with all of its children, taken while it runs."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil

EVERY = 0.5  # seconds between two looks
Point = tuple[float, int]  # wall clock, tuples done


class Meter(threading.Thread):
    """Looks at a process tree until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="headrace-meter", daemon=True)
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.memory: list[int] = []

    def run(self) -> None:
        while not self._done.is_set():
            self.look()
            self._done.wait(EVERY)

    def look(self) -> None:
        found = tree(self._root)
        now, cpu, memory = time.time(), sum(map(_cpu, found)), sum(map(_memory, found))
        if cpu >= max(self.cpu, default=0.0):  # less: a child died before its parent was told
            self.times.append(now)
            self.cpu.append(cpu)
        self.memory.append(memory)

    def stop(self) -> None:
        self._done.set()
        self.join()

    def cpu_between(self, begin: float, end: float) -> float:
        """Processor seconds, straight lines between the looks."""
        if not self.times:
            return 0.0
        first, last = np.interp([begin, end], self.times, self.cpu)
        return float(last - first)

    @property
    def peak(self) -> int:
        return max(self.memory, default=0)


def tree(root: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [root, *root.children(recursive=True)]
    return []


def end(processes: Sequence[psutil.Process]) -> None:
    """Kill, children and all."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=10)


def _cpu(process: psutil.Process) -> float:
    """Its own, and that of children that ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _memory(process: psutil.Process) -> int:
    """Proportional share where there is one (what two processes share counts once), else resident."""
    with contextlib.suppress(psutil.Error):
        full = process.memory_full_info()
        return int(getattr(full, "pss", 0) or full.rss)
    return 0


def span(points: Sequence[Point], begin: int, end: int) -> tuple[Point, Point] | None:
    """The first point with `begin` tuples done and the first with `end` (or the last there is, if it is behind)."""
    late = [point for point in points if point[1] >= begin]
    if not late:
        return None
    ended = next((point for point in late if point[1] >= end), late[-1])
    return (late[0], ended) if ended[1] > late[0][1] and ended[0] > late[0][0] else None


@dataclass(frozen=True)
class Spread:
    """A figure from several rounds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])
