"""Ctrl-C and SIGTERM at random moments of `headrace run`, from its first line to its last.

    whatever the moment, once or twice   =>  no process, socket, lock or scratch folder is left, and no traceback is printed
    the next start                       =>  continues, and the answer is that of a run that was never disturbed

Every run is a process of its own, in a session of its own, with a mark in its environment, by which all its descendants
are found, and with a temporary folder of its own, in which all that it leaves behind is found.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.reference import reference
from headrace.showing.signals import STOPPED
from headrace.testing import table_stream
from tests import jvm
from tests.helpers import count_rows
from tests.patience import PATIENCE

from . import soaking
from .killing import Rows

pytestmark = [pytest.mark.soak, pytest.mark.spark]

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20262"))
SOURCES = str(Path(headrace.__file__).parents[1])
MARK = "HEADRACE_TEST_MARK"
LONGEST = 60.0  # seconds that the descendants of a run have to end after it
FILES = 6  # that wait at each start: an epoch each
ENDS = {0, STOPPED, -signal.SIGINT, -signal.SIGTERM}  # after an epoch; before one, or twice; before headrace is loaded
COMMAND = [sys.executable, "-m", "headrace_command"]
AGGREGATE = {"by": ["k"], "window": "5 seconds", "every": "2 seconds", "n": "count(*)", "total": "sum(v)"}
JAVA = """#!/bin/sh
printf '\\000\\nsleep\\0001000\\000'  # as Spark's launcher says what is to be run
"""
QUERY = f"""
import headrace as hr

def query(spark):
    return hr.files(spark, "in", time="ts", lateness="1 second", files_per_epoch=1, name="events").aggregate(**{AGGREGATE})
"""


@dataclass(frozen=True)
class Strike:
    """Signals to a run. moment: as a share of the length of a run that nobody disturbs. again: seconds until the second."""

    number: signal.Signals
    moment: float
    again: float | None

    @staticmethod
    def drawn(rng: random.Random, count: int) -> Iterator[Strike]:
        """One in each of as many parts of a run, so that every phase has its share."""
        for part in rng.sample(range(count), count):
            number = rng.choice([signal.SIGINT, signal.SIGTERM])
            yield Strike(number, (part + rng.random()) / count, rng.choice([None, rng.uniform(0.1, 1.0)]))

    def hit(self, process: subprocess.Popen[str], began: float, length: float) -> None:
        _rest_until(process, began + self.moment * length)
        self._send(process)
        if self.again is not None:
            _rest_until(process, time.monotonic() + self.again)
            self._send(process)

    def _send(self, process: subprocess.Popen[str]) -> None:
        """Ctrl-C as a terminal sends it, to all of the process group; SIGTERM as `kill` does."""
        if process.poll() is None:
            os.killpg(process.pid, self.number) if self.number == signal.SIGINT else process.send_signal(self.number)


def _rest_until(process: subprocess.Popen[str], moment: float) -> None:
    while process.poll() is None and (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))


class Program:
    """A process in a folder, with a temporary folder of its own, and all its descendants."""

    def __init__(self, folder: Path, command: Sequence[str], **environment: str) -> None:
        self.folder, self.mark = folder, f"{os.getpid()}-{time.monotonic_ns()}"
        self.temporary = Path(tempfile.mkdtemp(prefix="s", dir="/tmp"))  # short, so that sockets are in it too
        java = f"--conf 'spark.driver.defaultJavaOptions={jvm.options()}' pyspark-shell"
        own = {"TMPDIR": str(self.temporary), "PYSPARK_SUBMIT_ARGS": java, "PYTHONPATH": SOURCES, MARK: self.mark}
        with open(folder / "log.txt", "w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **own, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return (self.folder / "log.txt").read_text()

    def end(self) -> tuple[int, list[str]]:
        """Its exit code, once it has ended, and what it has left behind."""
        try:
            code = self.process.wait(PATIENCE)
        finally:
            stayed = self._end_all()
        return code, [*stayed, *self._remains()]

    def _end_all(self) -> list[str]:
        """Wait for all descendants to end; those that do not are named, and killed."""
        deadline = time.monotonic() + LONGEST
        while (alive := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for process in alive:
            process.kill()
        return [f"{name} stayed" for name in alive.values()]

    def alive(self) -> dict[psutil.Process, str]:
        """Processes and their names."""
        found = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found[process] = process.name()
        return found

    def _remains(self) -> list[str]:
        """What is left in the temporary folder, which is removed."""
        found = sorted(self.temporary.rglob("*"))
        shutil.rmtree(self.temporary)
        return [f"{path.relative_to(self.temporary)} was left behind" for path in found]


@dataclass
class Runs:
    """Runs of one query, one after the other, over one folder of files and one checkpoint."""

    folder: Path
    files: int = 0
    said: str = ""  # by the last one

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(parents=True)
        (self.folder / "query.py").write_text(QUERY)

    def feed(self) -> None:
        for _ in range(FILES):
            soaking.put(self.folder / "in", self.files)
            self.files += 1

    def run(self, *more: str, strike: Strike | None = None, length: float = 0.0) -> tuple[int, list[str]]:
        """The exit code of a run, and what was wrong with how it ended."""
        options = ["--checkpoint", "ckpt", "--out", "out", "--epoch", "0 seconds", *more]
        program, began = Program(self.folder, [*COMMAND, "run", "query.py", *options]), time.monotonic()
        if strike is not None:
            strike.hit(program.process, began, length)
        code, wrong = program.end()
        self.said = program.said
        return code, [*wrong, *(["a traceback"] if "Traceback" in self.said else [])]

    @property
    def closed(self) -> bool:
        return "; the checkpoint is closed" in self.said

    def complaints(self) -> list[str]:
        """What is wrong with the answer of runs that ended their input."""
        table = pa.concat_tables([soaking.rows(number) for number in range(self.files)])
        wanted = count_rows(reference(table_stream(table, lateness="1 second", name="events").aggregate(**AGGREGATE)))
        found = sum((count_rows(pq.read_table(path)) for path in (self.folder / "out").glob("[!_]*.parquet")), Rows())
        return [] if found == wanted else [f"lost {(wanted - found).total()}, twice {(found - wanted).total()}"]


class Trial:
    """Strikes, one after the other: every run continues where the one before was stopped."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed, self.rng = folder, seed, random.Random(seed)
        self.wrong: list[str] = []
        began, runs = time.monotonic(), self._begin()
        self._finish(runs)
        self.length = time.monotonic() - began

    def strike(self, count: int) -> None:
        """Every other run takes what is there and ends, so that its end is struck too."""
        endless, ending = self._begin(), self._begin()
        for number, strike in enumerate(Strike.drawn(self.rng, count)):
            if number % 2:
                self._note(ending, strike, *ending.run("--once", strike=strike, length=self.length))
                if ending.closed:
                    self.wrong += ending.complaints()
                    ending = self._begin()
            else:
                self._note(endless, strike, *endless.run(strike=strike, length=self.length))
                endless.feed()
        self._finish(endless)
        self._finish(ending)

    def _begin(self) -> Runs:
        runs = Runs(self.folder / f"{len(list(self.folder.iterdir()))}")
        runs.feed()
        return runs

    def _finish(self, runs: Runs) -> None:
        self._note(runs, None, *runs.run("--once"))
        self.wrong += runs.complaints()

    def _note(self, runs: Runs, strike: Strike | None, code: int, wrong: Sequence[str]) -> None:
        if code not in (ENDS if strike else {0}):
            wrong = [f"exit code {code}", *wrong]
        if wrong:
            what = f"seed {self.seed}, {strike or 'undisturbed'} in {self.length if strike else 0:.1f} s"
            self.wrong.append(f"{what}: {'; '.join(wrong)}; it said:\n{runs.said}")


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.long)])
def test_a_signal_at_any_moment_leaves_nothing_behind(tmp_path: Path, count: int) -> None:
    trial = Trial(tmp_path, SEED)
    trial.strike(count)
    assert not trial.wrong, "\n".join(trial.wrong)


@pytest.mark.long
def test_a_run_that_is_killed_takes_its_jvm_along(tmp_path: Path) -> None:
    """Nobody cleans up after it, but a JVM that has just been started notices too that it is alone."""
    trial = Trial(tmp_path, SEED)
    for moment in (0.15, 0.25, 0.35, 0.5, 0.7):
        runs = Runs(tmp_path / f"killed-{moment}")
        runs.feed()
        _, wrong = runs.run(strike=Strike(signal.SIGKILL, moment, None), length=trial.length)
        assert not [each for each in wrong if "stayed" in each], moment


SCRIPT = [sys.executable, "-c", "import headrace as hr; hr.session(slots=1)"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "number", "end"),
    [
        pytest.param([*COMMAND, "run", "query.py"], signal.SIGINT, STOPPED, id="run"),
        pytest.param([*COMMAND, "run", "query.py"], signal.SIGTERM, STOPPED, id="terminated", marks=pytest.mark.long),
        pytest.param([*COMMAND, "demo"], signal.SIGINT, STOPPED, id="demo", marks=pytest.mark.long),
        pytest.param(SCRIPT, signal.SIGINT, -signal.SIGINT, id="script"),
    ],
)
def test_a_jvm_that_never_comes_up_is_ended(
    tmp_path: Path, command: list[str], number: signal.Signals, end: int
) -> None:
    """With a Java that does nothing: the first signal ends it, and the second changes nothing."""
    (tmp_path / "query.py").write_text(QUERY)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text(JAVA)
    (tmp_path / "bin" / "java").chmod(0o755)
    program = Program(tmp_path, command, JAVA_HOME=str(tmp_path))
    while "sleep" not in program.alive().values():
        assert program.process.poll() is None, program.said
        time.sleep(0.05)
    for _ in range(2):
        if program.process.poll() is None:
            program.process.send_signal(number)
            _rest_until(program.process, time.monotonic() + 0.2)
    assert program.end() == (end, [])
    assert command == SCRIPT or program.said == "stopped\n"  # in a script, Python says what it always does
