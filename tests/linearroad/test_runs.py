"""Runs on Spark: the answers are one whatever the slots, the epochs and the order of lines within seconds, and however often
a run is killed, in whatever it just does.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.showing.signals import STOPPED
from headrace_linearroad import reading, running
from headrace_linearroad.forms import COMPLETE, OUTPUTS
from headrace_linearroad.generating import Settings
from headrace_linearroad.generating.writing import Job, write
from headrace_linearroad.profiles import Profile
from headrace_linearroad.running import Given
from headrace_linearroad.validating import PROFILES, judge
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20261"))
SECONDS = 130  # of traffic; there is an accident in them
SLOTS = (1, 2, 3, 5)

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Traffic:
    root: Path

    @property
    def text(self) -> Path:
        return self.root / "road" / "cars.dat"

    @property
    def histories(self) -> tuple[Path, Path]:
        return self.root / "road" / "history" / "tolls.csv", self.root / "road" / "history" / "segments.csv"

    def shuffled(self, seed: int) -> Path:
        """The same with the lines of every second in another order, compressed."""
        rng, path = random.Random(seed), self.root / f"shuffled-{seed}.gz"
        lines = self.text.read_text().splitlines()
        seconds = [list(of) for _, of in itertools.groupby(lines, key=lambda line: line.split(",")[1])]
        mixed = [line for of in seconds for line in rng.sample(of, len(of))]
        path.write_bytes(gzip.compress("\n".join(mixed).encode(), 1))
        return path

    def folder(self) -> Path:
        """The same as files of seconds."""
        folder = self.root / "seconds"
        folder.mkdir(exist_ok=True)
        made = reading.spool(self.text, folder, self.root / "apart")
        (folder / COMPLETE).write_text(json.dumps({"files": made.seconds, "tuples": made.tuples}))
        return folder


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    root = tmp_path_factory.mktemp("traffic")
    write(Settings(2, density=60), root / "road", Job(600, SECONDS, "cars.dat"))
    return Traffic(root)


def answers(out: Path) -> dict[str, Rows]:
    """Every row of the five outputs, and how often it is there."""
    found = {}
    for name in OUTPUTS:
        tables = [pq.read_table(path) for path in (out / name).glob("[!_]*.parquet")]
        assert tables and all(table.schema.equals(OUTPUTS[name]) for table in tables)
        found[name] = Rows(row for table in tables for row in zip(*table.to_pydict().values(), strict=True))
    return found


def answered(spark: Any, given: Given, slots: int, epoch: int | None) -> dict[str, Rows]:
    """What `headrace linearroad run` does, in a session that is there."""
    with running.prepare(given, running.look(given), print) as prepared:
        results = running.results(spark, given, prepared, epoch)
        with hr.start(results, show=False, **running.options(given, slots)) as run:
            assert run.wait(PATIENCE)
    assert run.progress.closed
    return answers(given.out)


@pytest.fixture(scope="module")
def undisturbed(
    spark: Any, traffic: Traffic, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, Rows]]:
    """The answers of a run that nobody disturbs, judged; by profile."""
    found: dict[str, dict[str, Rows]] = {}

    def right(profile: str) -> dict[str, Rows]:
        if profile not in found:
            root = tmp_path_factory.mktemp(profile)
            given = Given(traffic.text, traffic.histories, profile, root / "out", root / "checkpoint")
            found[profile] = answered(spark, given, 2, None)
            assert_right(given)
            assert all(found[profile].values()), "there is something of everything"
            assert any(row[4] for row in found[profile]["tolls"]), "and tolls that cost something"
        return found[profile]

    return right


def assert_right(given: Given) -> None:
    verdict = judge(given.input, given.out, list(given.histories), PROFILES[given.profile])
    assert verdict.ok, verdict.to_json()


@pytest.mark.parametrize("profile", [*Profile])
def test_answers_do_not_depend_on_slots_epochs_or_the_order_within_seconds(
    spark: Any,
    traffic: Traffic,
    undisturbed: Callable[[str], dict[str, Rows]],
    profile: str,
    tmp_path: Path,
) -> None:
    right = undisturbed(profile)
    official = [(traffic.shuffled(1), 1, 30), (traffic.folder(), 3, 11)]
    for path, slots, epoch in official if profile == Profile.official else [(traffic.shuffled(2), 5, 7)]:
        root = tmp_path / f"{slots}-{epoch}"
        given = Given(path, traffic.histories, profile, root / "out", root / "checkpoint")
        assert answered(spark, given, slots, epoch) == right, (path.name, slots, epoch)


# --- kill -9 ----------------------------------------------------------------------------------------------------------


class Program:
    """`headrace linearroad run` with everything it starts."""

    def __init__(self, given: Given, slots: int, epoch: int, log: Path) -> None:
        histories = [word for path in given.histories for word in ("--history", str(path))]
        options = ["--profile", given.profile, "--slots", str(slots), "--epoch", str(epoch), "--json", *histories]
        places = ["--input", str(given.input), "--out", str(given.out), "--checkpoint", str(given.checkpoint)]
        command = [sys.executable, "-m", "headrace", "linearroad", "run", *places, *options]
        self.log, self.tuples = log, 0
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout:
            for line in self.process.stdout:
                self._lines.put(line)
        self._lines.put(b"")

    def until(self, moment: Callable[[], bool]) -> None:
        """Returns as soon as it has come to something, or to an epoch after it."""
        end = time.monotonic() + PATIENCE
        while not moment():
            self._hear()
            assert self.process.poll() is None, f"it ended by itself:\n{self.log.read_text()[-3000:]}"
            assert time.monotonic() < end
            time.sleep(0.0005)

    def _hear(self) -> None:
        with contextlib.suppress(queue.Empty):
            if line := self._lines.get_nowait():
                self.tuples = json.loads(line)["tuples_in"]

    def kill(self, everything: bool) -> None:
        """The driver alone, while Spark's JVM and its Python workers live a little longer, or all of them."""
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self.process.pid).children(recursive=True) if everything else []
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.kill()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self, number: signal.Signals) -> None:
        """As a terminal does, or `timeout`: all of its process group hears it."""
        os.killpg(self.process.pid, number)
        self.end(0, STOPPED)

    def end(self, *codes: int) -> None:
        code = self.process.wait(PATIENCE)
        assert code in (codes or (0,)), self.log.read_text()[-3000:]
        log = self.log.read_text()
        assert "Traceback" not in log and "error" not in log, log[-3000:]


MOMENTS = ("histories", "text", "prepared", "state", "epoch", "last")


def moment(what: str, program: Program, given: Given, total: int, share: float) -> Callable[[], bool]:
    """Of a run: its histories are put in order, text becomes files, both are there, and so on up to its last epoch."""
    done = program.tuples + (total - program.tuples) * share
    return {
        "histories": lambda: (given.spool / "history").exists(),
        "text": lambda: next((given.spool / "seconds").glob("*.arrow"), None) is not None,
        "prepared": lambda: (given.spool / running.NOTE).exists(),
        "state": lambda: (given.checkpoint / "state" / "manifests").exists(),
        "epoch": lambda: program.tuples > done,
        "last": lambda: program.tuples == total,
    }[what]


def killed(given: Given, total: int, moments: list[str], rng: random.Random, log: Path) -> Iterator[str]:
    """Kill a run at these moments, each time with other slots, and let it end; yields what was done."""
    far = 0
    for number, what in enumerate(moments):
        program = Program(given, rng.choice(SLOTS), rng.randrange(3, 9), log)
        try:
            program.tuples = far
            program.until(moment(what, program, given, total, rng.uniform(0, 0.8 / (len(moments) - number))))
            time.sleep(rng.choice((0.0, rng.uniform(0, 0.05), rng.uniform(0, 0.5))))
        finally:
            program.kill(everything=rng.random() < 0.5)
        far = program.tuples
        yield f"{what} at {far:,}"
    for _ in range(2 if len(moments) > 2 else 1):  # the second finds it closed
        program = Program(given, rng.choice(SLOTS), 10, log)
        try:
            program.end()
        finally:
            if program.process.poll() is None:
                program.kill(everything=True)


def survive(given: Given, right: dict[str, Rows], moments: list[str], log: Path) -> str:
    total = given.input.read_bytes().count(b"\n")
    done = list(killed(given, total, moments, random.Random(SEED), log))
    found = answers(given.out)
    for name, rows in right.items():
        lost, more = rows - found[name], found[name] - rows
        assert not lost and not more, f"{name}: lost {lost.total()}, more {more.total()}; {done}; seed {SEED}"
    assert_right(given)
    rows = sum(each.total() for each in right.values())
    return f"linearroad: {len(moments)} kills ({', '.join(done)}), {rows:,} rows as without; seed {SEED}"


@pytest.mark.soak
@pytest.mark.long
def test_a_run_survives_kills(
    traffic: Traffic,
    undisturbed: Callable[[str], dict[str, Rows]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first is killed while it prepares."""
    given = Given(traffic.text, traffic.histories, "official", tmp_path / "out", tmp_path / "checkpoint")
    report = survive(given, undisturbed("official"), ["text", "epoch"], tmp_path / "log.txt")
    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.long
@pytest.mark.parametrize("profile", [*Profile])
def test_a_run_survives_ten_kills(
    traffic: Traffic,
    undisturbed: Callable[[str], dict[str, Rows]],
    profile: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = Given(traffic.text, traffic.histories, profile, tmp_path / "out", tmp_path / "checkpoint")
    moments = [*MOMENTS[:4], *["epoch"] * 5, "last"]
    report = survive(given, undisturbed(profile), moments, tmp_path / "log.txt")
    with capsys.disabled():
        print(f"\n{report}")


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def stopped(given: Given, what: str, number: signal.Signals, wait: float, log: Path) -> str:
    """What it said when it was stopped at a moment."""
    log.write_text("")
    program = Program(given, 2, 5, log)
    try:
        program.until(moment(what, program, given, given.input.read_bytes().count(b"\n"), 0.0))
        time.sleep(wait)
        program.stop(number)
    finally:
        if program.process.poll() is None:
            program.kill(everything=True)
    return log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_prepares_ends_at_a_signal_and_the_next_begins_anew(
    traffic: Traffic, tmp_path: Path, number: signal.Signals
) -> None:
    given = Given(traffic.text, traffic.histories, "official", tmp_path / "out", tmp_path / "checkpoint")
    assert stopped(given, "text", number, 0.0, tmp_path / "log.txt").endswith("stopped\n")
    with running.prepare(given, running.look(given), print) as prepared:
        assert len(list(prepared.seconds.glob("*.arrow"))) == SECONDS


@pytest.mark.long
def test_a_run_ends_at_a_signal_whatever_it_does_and_goes_on(
    traffic: Traffic, undisturbed: Callable[[str], dict[str, Rows]], tmp_path: Path
) -> None:
    """While Spark starts and ends too."""
    given = Given(traffic.text, traffic.histories, "official", tmp_path / "out", tmp_path / "checkpoint")
    moments = [("histories", 0.0), ("prepared", 0.0), ("prepared", 1.5), ("state", 0.0), ("epoch", 0.3), ("last", 0.3)]
    for number, (what, wait) in zip(itertools.cycle((signal.SIGINT, signal.SIGTERM)), moments, strict=False):
        said = stopped(given, what, number, wait, tmp_path / "log.txt")
        assert "stopped" in said or "the checkpoint is closed" in said, (what, said)
    program = Program(given, 3, 10, tmp_path / "log.txt")
    program.end()
    assert answers(given.out) == undisturbed("official")
