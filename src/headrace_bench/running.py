"""A run of a benchmark: one system and one case, in a separate process on the same cores, measured from outside.

Figures cover the time between the epoch that filled the windows and the last epoch. Start, warm-up, filling of windows
and shutdown are excluded, for all systems alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import HeadraceError
from headrace_bench import workload
from headrace_bench.answers import Answer, agreed, answer_in, expected
from headrace_bench.measure import Meter, Point, end, span
from headrace_bench.systems import System
from headrace_bench.task import Case, write_task

CORES = 2
OK = "ok"
TIME_LIMIT = "time limit"
ENDING = 60  # seconds
FAR_BEHIND = 1.5  # factor by which a variant must be slower than another of its product to get only one round
Say = Callable[[str], object]
Each = TypeVar("Each")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run of one system."""

    system: str
    family: str
    status: str  # ok, wrong answer, out of memory, time limit, refused or failed with a reason
    tuples_per_second: float | None = None
    cpu_per_million: float | None = None
    peak_mb: float | None = None
    seconds: float | None = None  # measured time, without warm-up
    memory_course: tuple[float, ...] = ()  # mean MB in ten equal parts of the measured time
    answer: Answer | None = None
    per_epoch: dict[str, float] = field(default_factory=dict)  # figures that the process counted, without warm-up
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """A process that has ended, with its measurements and output."""

    code: int | None  # exit code; None: it was killed at the time limit
    meter: Meter
    said: str


def cores() -> list[int]:
    """Return the cores that every system must use."""
    return sorted(os.sched_getaffinity(0))[:CORES]


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"headrace-bench-{name}-", dir=os.environ.get("HEADRACE_SCRATCH")))
    try:
        yield folder
    finally:
        workload.remove(folder)


@contextmanager
def process(system: System, case: Case, source: Path, work: Path, **options: Any) -> Iterator[tuple[Any, Meter]]:
    """Run a system on a case. It is killed with all of its children at the end of the block."""
    task = write_task(case, source, work, {**system.options, **options})
    with at_work(system, task, case.heap) as found:
        yield found


@contextmanager
def at_work(system: System, task: Path, heap: str) -> Iterator[tuple[Any, Meter]]:
    """Run a system on an existing task, in the task's folder."""
    command, environment = system.command(task, heap)
    work = task.parent
    log = work / "log"
    with log.open("wb") as file:
        started = subprocess.Popen(  # noqa: S603
            command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env=environment | {"FLINK_LOG_DIR": str(work)},
            cwd=work,
            preexec_fn=_settle,
        )
        meter = Meter(started.pid)
        try:
            meter.start()
            yield started, meter
        finally:
            meter.stop()
            end(meter)
            started.wait()


def _settle() -> None:
    """In the child process: use the same cores as all systems, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.sched_setaffinity(0, cores())


def run_once(
    system: System, case: Case, source: Path, collect: Callable[[Path], None] | None = None, **options: Any
) -> Outcome:
    """Run one round of one system. `collect` writes its answer as files into a folder."""
    with scratch("run") as work:
        with process(system, case, source, work, **options) as (started, meter):
            code = _wait(started, case, work)
        ended = Ended(code, meter, _said(work))
        if collect is not None and code == 0:
            collect(work / "out")
        return _outcome(system, case, work, ended)


def _wait(started: subprocess.Popen[bytes], case: Case, work: Path) -> int | None:
    """Wait until the process ends or its time is up. A system that has read all input gets some more time to end."""
    deadline = time.monotonic() + case.limit
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return started.wait(1)
        if (points := points_in(work)) and points[-1][1] >= case.streams.tuples:
            deadline = min(deadline, time.monotonic() + ENDING)
    return None


def _outcome(system: System, case: Case, work: Path, ended: Ended) -> Outcome:
    points, streams = points_in(work), case.streams
    outcome = Outcome(system.name, system.family, _status(case, points, ended), about=_about(work))
    measured = span(points, case.warm * streams.per_epoch, streams.tuples)
    if measured is None and case.full is not None:
        measured = span(points, case.full * streams.per_epoch, streams.tuples)
    if outcome.status == OK:
        outcome = replace(outcome, answer=answer_in(work / "out", case.query))
    elif ended.code is not None:  # a killed system has a rate but no answer
        return outcome
    if measured is None:
        return replace(outcome, status="too short to be measured") if outcome.status == OK else outcome
    (begin, first), (finish, last) = measured
    return replace(
        outcome,
        tuples_per_second=(last - first) / (finish - begin),
        cpu_per_million=ended.meter.cpu_between(begin, finish) / (last - first) * 1e6,
        peak_mb=ended.meter.peak / 2**20,
        seconds=finish - begin,
        memory_course=tuple(mb / 2**20 for mb in ended.meter.course(begin, finish, 10)),
        per_epoch=_per_epoch(work, first, last),
    )


def _status(case: Case, points: Sequence[Point], ended: Ended) -> str:
    done = points[-1][1] if points else 0
    if ended.code is None:
        if done >= case.streams.tuples:
            return f"{TIME_LIMIT}: took in all tuples, but did not end in {ENDING} s more"
        return f"{TIME_LIMIT}: {done:,} of {case.streams.tuples:,} tuples in {case.limit:g} s"
    if ended.code == 0:
        return OK
    if "OutOfMemoryError" in ended.said or ended.code == -signal.SIGKILL:
        return f"out of memory: {done:,} of {case.streams.tuples:,} tuples with a heap of {case.heap}"
    reason = (ended.said.strip().splitlines() or [f"exit code {ended.code}"])[-1]
    return f"{'refused' if 'not supported' in reason else 'failed'}: {reason.split('terminated with exception: ')[-1].rstrip(' ;')}"


def _said(work: Path) -> str:
    """Return the error that a process wrote, or the end of its output."""
    error, log = work / "error", (work / "log").read_text(errors="replace")
    if "OutOfMemoryError" in log:
        return "OutOfMemoryError"
    return error.read_text() if error.exists() else log


def _about(work: Path) -> dict[str, Any]:
    path = work / "about.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _per_epoch(work: Path, first: int, last: int) -> dict[str, float]:
    """Return the means (for times, the medians) over the epochs with tuples from `first` to `last`, or {} without
    counts.
    """
    path = work / "epochs.json"
    found: list[dict[str, float]] = json.loads(path.read_text()) if path.exists() else []
    measured = [epoch for epoch in found if first < epoch["tuples"] <= last]
    names = [name for name in measured[0] if name != "tuples"] if measured else []
    middle = {name: statistics.median if name == "milliseconds" else statistics.fmean for name in names}
    return {name: middle[name](epoch[name] for epoch in measured) for name in names}


def points_in(work: Path) -> list[Point]:
    """Return the points (wall-clock time, tuples done) that the process wrote. The last line may be incomplete."""
    path = work / "points"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(float(at), int(count)) for at, count in (line.split() for line in lines)]


# --- rounds --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedCase:
    """A case with the outcomes of all rounds and the expected answer."""

    case: Case
    outcomes: tuple[Outcome, ...]
    expected: Answer | None
    by: str  # source of the expected answer

    def of(self, system: str) -> list[Outcome]:
        return [o for o in self.outcomes if o.system == system]

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(o.system for o in self.outcomes))


def run_case(
    case: Case, systems: Sequence[System], rounds: int, say: Say, once: Sequence[str] = (), **options: Any
) -> JudgedCase:
    """Run all systems in alternating order, round by round, over the same files. `once`: families with a single round."""
    with scratch("data") as folder:
        say(f"{case.name}: writing {case.streams.tuples:,} tuples")
        workload.write(case.streams, folder)
        joined = workload.join_files(folder, case.streams.sides) if any(s.reads_one_file for s in systems) else folder
        right = expected(case, folder)
        outcomes: list[Outcome] = []
        for number in range(rounds):
            for system in alternating(systems, number):
                if number and (system.family in once or _gave_up(system, outcomes) or _beaten(system, outcomes)):
                    continue
                say(f"{case.name}: round {number + 1} of {rounds}, {system.name} ...")
                began = time.monotonic()
                outcomes.append(run_once(system, case, joined if system.reads_one_file else folder, **options))
                say(f"{case.name}: {told(outcomes[-1])} ({time.monotonic() - began:.0f} s in all)")
        return judged(case, outcomes, right)


def alternating(each: Sequence[Each], number: int) -> list[Each]:
    """Return the systems in order for even rounds, and in reverse order for odd ones."""
    return list(each) if number % 2 == 0 else list(reversed(each))


def _gave_up(system: System, outcomes: Sequence[Outcome]) -> bool:
    """Return whether an earlier round of the system could not be measured."""
    return any(o.system == system.name and o.tuples_per_second is None for o in outcomes)


def _beaten(system: System, outcomes: Sequence[Outcome]) -> bool:
    """Return whether another variant of the family is far faster, because a family is ranked by its best variant."""
    rates = [(o.system, o.tuples_per_second) for o in outcomes if o.family == system.family and o.tuples_per_second]
    own = [rate for name, rate in rates if name == system.name]
    return bool(own) and max(own) * FAR_BEHIND < max(rate for _, rate in rates)


def told(outcome: Outcome) -> str:
    rate = "" if outcome.tuples_per_second is None else f", {outcome.tuples_per_second:,.0f} tuples/s"
    return f"{outcome.system}: {outcome.status}{rate}"


def judged(case: Case, outcomes: Sequence[Outcome], right: Answer | None) -> JudgedCase:
    """Mark the outcomes whose answer is not the expected one."""
    by, answers = "DuckDB", {(o.system, o.answer): o.answer for o in outcomes if o.answer}
    if right is None and len({system for system, _ in answers}) < 2:
        return JudgedCase(case, tuple(outcomes), None, "nobody: only one system answered")
    if right is None:
        right, by = agreed(answers.values()), "agreement of the systems"
    marked = [
        replace(o, status="wrong answer" if right else "answers differ") if o.answer and o.answer != right else o
        for o in outcomes
    ]
    return JudgedCase(case, tuple(marked), right, by)


def demand_linux() -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise HeadraceError("headrace bench runs every system on the same cores, which needs Linux; run it on Linux")
