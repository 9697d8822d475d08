"""Ctrl-C and SIGTERM at random moments of `headrace run`, from its first line to its last.

    whatever the moment, once or twice   =>  no process, socket, lock or scratch folder is left, and no traceback is printed
    the next start                       =>  continues, and the answer is that of a run that was never disturbed

Every run is a process of its own, in a session of its own, with a mark in its environment, by which all its descendants
are found, and with a temporary folder of its own, in which all that it leaves behind is found.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.reference import reference
from headrace.testing import table_stream
from tests import jvm
from tests.patience import PATIENCE

from . import soaking
from .killing import Rows, rows_of

pytestmark = [pytest.mark.soak, pytest.mark.spark]

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20262"))
ROOT = Path(__file__).parents[2]
MARK = "HEADRACE_TEST_MARK"
LONGEST = 60.0  # seconds that the descendants of a run have to end after it
FILES = 6  # that wait at each start: an epoch each
ENDS = {0, 130, -signal.SIGINT, -signal.SIGTERM}  # stopped: after an epoch, before the run began, before headrace did
COMMAND = [sys.executable, "-m", "headrace_command"]
AGGREGATE = {"by": ["k"], "window": "5 seconds", "every": "2 seconds", "n": "count(*)", "total": "sum(v)"}
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


@dataclass
class Runs:
    """Runs of one query, one after the other, over one folder of files and one checkpoint."""

    folder: Path
    files: int = 0
    said: str = ""  # by the last one

    def __post_init__(self) -> None:
        for name in ("in", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "query.py").write_text(QUERY)

    def feed(self) -> None:
        for _ in range(FILES):
            soaking.put(self.folder / "in", self.files)
            self.files += 1

    def run(self, *more: str, strike: Strike | None = None, length: float = 0.0) -> tuple[int, list[str]]:
        """The exit code of a run, and what was wrong with how it ended."""
        mark, began = f"{os.getpid()}-{time.monotonic_ns()}", time.monotonic()
        with open(self.folder / "log.txt", "w") as log:
            process = subprocess.Popen(
                [*COMMAND, "run", "query.py", "--checkpoint", "ckpt", "--out", "out", "--epoch", "0 seconds", *more],
                cwd=self.folder,
                env=self._environment(mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        try:
            if strike is not None:
                strike.hit(process, began, length)
            code = process.wait(PATIENCE)
        finally:
            left = _end_all(mark)
        self.said = (self.folder / "log.txt").read_text()
        return code, [*left, *self._remains(), *([] if "Traceback" not in self.said else ["a traceback"])]

    def _environment(self, mark: str) -> dict[str, str]:
        folder = self.folder / "tmp"
        java = f"--conf 'spark.driver.defaultJavaOptions={jvm.options()} -Djava.io.tmpdir={folder}' pyspark-shell"
        sources = str(Path(headrace.__file__).parents[1])
        return {**os.environ, MARK: mark, "TMPDIR": str(folder), "PYSPARK_SUBMIT_ARGS": java, "PYTHONPATH": sources}

    def _remains(self) -> list[str]:
        """What is left in the temporary folder; it is removed, so that it is reported once."""
        found = sorted((self.folder / "tmp").rglob("*"))
        for path in reversed(found):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        return [f"left behind: {path.relative_to(self.folder)}" for path in found]

    @property
    def closed(self) -> bool:
        return "the checkpoint is closed" in self.said

    def complaints(self) -> list[str]:
        """What is wrong with the answer of runs that ended their input."""
        table = pa.concat_tables([soaking.rows(number) for number in range(self.files)])
        wanted = rows_of(reference(table_stream(table, lateness="1 second", name="events").aggregate(**AGGREGATE)))
        found = sum((rows_of(pq.read_table(path)) for path in (self.folder / "out").glob("[!_]*.parquet")), Rows())
        return [] if found == wanted else [f"lost {(wanted - found).total()}, twice {(found - wanted).total()}"]


def _end_all(mark: str) -> list[str]:
    """Wait for all processes with a mark to end; those that do not are named, and killed."""
    deadline = time.monotonic() + LONGEST
    while (alive := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in alive:
        process.kill()
    return [f"process {process.pid} stayed: {process.name()}" for process in alive]


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


class Trial:
    """Many strikes, one after the other; every run goes on where the one before was stopped."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.began = folder, random.Random(seed), 0
        self.wrong: list[str] = []
        self.seed = seed
        first = self._begin("undisturbed")
        began = time.monotonic()
        self._note(first.run("--once"), first, "undisturbed")
        self.length = time.monotonic() - began
        self.wrong += first.complaints()

    def strike(self, count: int) -> None:
        open_ = {("--once",): self._begin("once"), (): self._begin("on")}
        for number, strike in enumerate(Strike.drawn(self.rng, count)):
            options = list(open_)[number % 2]
            runs = open_[options]
            print(f"{strike} of {self.length:.1f} s, {options}", flush=True)
            self._note(runs.run(*options, strike=strike, length=self.length), runs, f"{strike} of {self.length:.1f} s")
            if runs.closed:
                self.wrong += runs.complaints()
                open_[options] = self._begin("once")
            else:
                runs.feed()
        for runs in open_.values():
            self._note(runs.run("--once"), runs, "the last")
            self.wrong += runs.complaints()

    def _begin(self, name: str) -> Runs:
        self.began += 1
        runs = Runs(self.folder / f"{name}-{self.began}")
        runs.feed()
        return runs

    def _note(self, found: tuple[int, list[str]], runs: Runs, what: str) -> None:
        code, wrong = found
        expected = {0} if "Strike" not in what else ENDS
        if code not in expected:
            wrong = [f"exit code {code}", *wrong]
        print("   ", code, wrong, runs.said.strip().splitlines()[-1:], flush=True)
        if wrong:
            self.wrong.append(f"seed {self.seed}, {what}: {'; '.join(wrong)}\n{runs.said}")


@pytest.mark.parametrize("count", [6, pytest.param(60, marks=pytest.mark.long)])
def test_signals_at_any_moment_leave_nothing_behind(tmp_path: Path, count: int) -> None:
    trial = Trial(tmp_path, SEED)
    trial.strike(count)
    assert not trial.wrong, "\n".join(trial.wrong)
