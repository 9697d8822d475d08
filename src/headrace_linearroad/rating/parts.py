"""Processor time and memory of the processes of a rating, by part.

    feeder     the process that offers the input
    driver     this process, which plans epochs, commits and delivers
    JVM        Spark
    workers    Spark's Python processes, in which tasks run

Memory is PSS: memory that two processes share counts half for each.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import psutil

from headrace_bench.measure import memory_of, tree

FEEDER, DRIVER, JVM, WORKERS = "feeder", "driver", "JVM", "workers"
PARTS = (FEEDER, DRIVER, JVM, WORKERS)
EVERY = 2.0  # seconds between two samples

Sample = dict[str, Any]


class Parts(threading.Thread):
    """A thread that samples until it is stopped. named: the parts of some processes; None: a process is not counted."""

    def __init__(self) -> None:
        super().__init__(name="headrace-linearroad-parts", daemon=True)
        self.named: dict[int, str | None] = {os.getpid(): DRIVER}
        self.samples: list[Sample] = []
        self._root, self._done = psutil.Process(), threading.Event()
        self._kinds: dict[int, str | None] = {}
        self._cpu: dict[int, tuple[str, float]] = {}  # by process, including ended ones

    def run(self) -> None:
        while not self._done.is_set():
            self.look()
            self._done.wait(EVERY)

    def stop(self) -> None:
        self._done.set()
        self.join()

    def look(self) -> Sample:
        """Take a sample: processor seconds so far and bytes now, by part."""
        memory = dict.fromkeys(PARTS, 0)
        for process in tree(self._root):
            part = self._part(process)
            if part is None:
                continue
            with contextlib.suppress(psutil.Error):
                self._cpu[process.pid] = (part, _seconds(process, with_ended=part == WORKERS))
            memory[part] += memory_of(process)
        sample = {"at": time.monotonic(), "cpu": self.cpu(), "memory": memory}
        self.samples.append(sample)
        return sample

    def cpu(self) -> dict[str, float]:
        found = dict.fromkeys(PARTS, 0.0)
        for part, seconds in self._cpu.values():
            found[part] += seconds
        return found

    def _part(self, process: psutil.Process) -> str | None:
        if process.pid in self.named:
            return self.named[process.pid]
        if process.pid not in self._kinds:
            with contextlib.suppress(psutil.Error):
                self._kinds[process.pid] = JVM if process.name() == "java" else WORKERS
        return self._kinds.get(process.pid)


def _seconds(process: psutil.Process, *, with_ended: bool) -> float:
    """Return the processor seconds of a process. with_ended: include its ended children."""
    times = process.cpu_times()
    ended = times.children_user + times.children_system if with_ended else 0.0
    return float(times.user + times.system + ended)


def between(first: Mapping[str, float], last: Mapping[str, float]) -> dict[str, float]:
    return {part: round(last[part] - first[part], 3) for part in last}
