"""The rig: cases one after the other, each with a time bound; a case is known by target, seed and number."""

from __future__ import annotations

import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError

from .targets import TARGETS

LONGEST = 10.0  # seconds of processor time that one case may take


class Endless(BaseException):
    """A case used up its time. Not an Exception, so that nobody takes it for one of his own."""


@dataclass
class Findings:
    """What came of the cases: how many were refused, by which error, and all that went wrong."""

    target: str
    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        return f"{self.target}, seed {self.seed}: {counts}; {len(self.faults)} faults"


def fuzz(target: str, seed: int, root: Path, *, cases: int = 0, seconds: float = 0.0, first: int = 0) -> Findings:
    """So many cases, or as many as the time allows."""
    found, until, number = Findings(target, seed), time.monotonic() + seconds, first
    while number < first + cases or time.monotonic() < until:
        outcome = one(target, seed, number, root, found)
        found.outcomes[outcome] += 1
        number += 1
    return found


def one(target: str, seed: int, number: int, root: Path, found: Findings) -> str:
    folder = root / f"{target}-{number}"
    folder.mkdir(parents=True)
    try:
        name = TARGETS[target].write(random.Random(f"{target} {seed} {number}"), folder)
        with bounded(LONGEST):
            TARGETS[target].use(folder, name)
        return "fine"
    except HeadraceError as error:
        return type(error).__name__
    except (Exception, Endless) as error:
        trace = "".join(traceback.format_exception(error)[-4:])
        found.faults.append(f"{target}, seed {seed}, case {number}: {type(error).__name__}: {error!s:.300}\n{trace}")
        return "fault"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Processor time, so that a busy machine is no fault."""

    def end(*_: Any) -> None:
        raise Endless(f"more than {seconds} seconds of processor time")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
