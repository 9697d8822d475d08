"""Kill -9, again and again, of a streaming run on real Spark: nothing lost, nothing twice, the disk bounded."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.reference import reference
from headrace.state import BlockReader, StateStore, caches
from tests.helpers import count_rows, rows_of
from tests.patience import PATIENCE

from . import soaking, watching
from .killing import Rows

pytestmark = [pytest.mark.soak, pytest.mark.spark]

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20261"))
KILLS = int(os.environ.get("HEADRACE_SOAK_KILLS", "2"))  # of a run over files; a third of it with Spark's own source
KEYS = int(os.environ.get("HEADRACE_SOAK_KEYS", "300000"))  # of a processor's table, in the long form
ROOT = Path(__file__).parents[2]  # the tests are no installed package


class Program:
    """One run of soaking.py with everything it starts."""

    def __init__(self, folder: Path, slots: int, mode: str, total: int) -> None:
        command = [sys.executable, soaking.__file__, str(folder), str(slots), mode, str(total)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with open(folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.put(line.strip())
        self.lines.put("")

    def progress(self, folder: Path) -> str:
        """The next line; an error when there is none."""
        line = self.lines.get(timeout=PATIENCE)
        if not line:
            code = self.process.wait(PATIENCE)
            pytest.fail(f"the run ended by itself with {code}:\n{(folder / 'log.txt').read_text()[-3000:]}")
        return line

    def kill(self) -> None:
        """The driver and the JVM; Python workers of Spark are in their own group and may write a little longer."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@dataclass
class Soak:
    folder: Path
    mode: str
    files: int = 0

    def feed(self, count: int) -> None:
        for _ in range(count):
            soaking.put(self.folder / "in", self.files)
            self.files += 1

    def cycle(self, rng: random.Random, slots: int, longest: float) -> None:
        """Start, see progress, feed on for a moment, kill."""
        program = Program(self.folder, slots, self.mode, 10**9)
        try:
            program.progress(self.folder)
            end = time.monotonic() + rng.uniform(0.2, longest)
            while time.monotonic() < end:
                self.feed(1)
                time.sleep(rng.uniform(0.05, 0.3))
        finally:
            program.kill()

    def finish(self, slots: int) -> None:
        program = Program(self.folder, slots, self.mode, self.total)
        try:
            while not program.progress(self.folder).startswith("done"):
                pass
            assert program.process.wait(PATIENCE) == 0
        finally:
            if program.process.poll() is None:
                program.kill()

    @property
    def total(self) -> int:
        """Rows after which the last run may end."""
        return self.files * soaking.PER_FILE

    def taken(self) -> pa.Table:
        """What a run must have taken in the end."""
        return pa.concat_tables([soaking.rows(number) for number in range(self.files)])

    def compare(self, *, end: bool = False) -> tuple[int, int]:
        """(lost, duplicated) over both results, and over the tuples that failed and were kept."""
        table = self.taken()
        failed = Rows(v for v in table["v"].to_pylist() if v % 50 == soaking.FAILING)
        kept = Rows(row[0] for row in self._delivered("late", ["v"]).elements())
        lost, duplicated = (failed - kept).total(), (kept - failed).total()
        for index, query in enumerate(soaking.local(table)):
            wanted, found = (
                count_rows(reference(query, epochs=[table], end=end, errors="keep")),
                self._delivered(str(index)),
            )
            assert wanted, "there was something to lose"
            lost += (wanted - found).total()
            duplicated += (found - wanted).total()
        return lost, duplicated

    def _delivered(self, name: str, columns: list[str] | None = None) -> Rows:
        folder, found = self.folder / "out" / name, Rows()
        for path in [*folder.glob("[!_]*.parquet"), *folder.glob("[!_]*/[!_]*.parquet")]:
            found += count_rows(pq.ParquetFile(path).read(columns))
        return found

    def epochs(self) -> int:
        """Checks the state that is left, and how much of it there is; the number of epochs."""
        store = StateStore.open(self.folder / "ckpt" / "state", read_only=True)
        assert store.last is not None
        reader = BlockReader(store.storage)
        for block in store.last.live_blocks():
            reader.open(block)
        totals = store.last.totals
        assert totals.delivered == totals.accepted == self.taken().num_rows
        assert len(store.storage.list("manifests")) <= 3
        assert len(store.storage.list("blocks")) < 150
        return store.last.number + 1

    def heard(self, epochs: int) -> None:
        """Who listened heard of every epoch, in order, and twice only of one that was marked; a kill may be faster."""
        lines = [line.split() for line in (self.folder / "heard.txt").read_text().splitlines()]
        told = [(int(epoch), repeated == "1", int(delivered)) for epoch, repeated, delivered in lines]
        first = [epoch for epoch, repeated, _ in told if not repeated]
        assert first == sorted(set(first))
        counts = {epoch: delivered for epoch, _, delivered in told}
        assert all(counts[epoch] == delivered for epoch, _, delivered in told), "a repeated epoch says the same"
        every = self.taken().num_rows
        assert set(counts) <= set(range(epochs)) and sum(counts.values()) <= every
        if set(counts) == set(range(epochs)):
            assert sum(counts.values()) == every


@dataclass
class Ending(Soak):
    """Files beside a stream of Spark, taken by runs that end: of files those of the list, of the stream what is there."""

    listed: int = 0
    beside: int = 0

    def feed_beside(self, count: int) -> None:
        for _ in range(count):
            soaking.put(self.folder / "beside", self.beside, beside=True)
            self.beside += 1

    def cycle_until(self, epochs: int, slots: int) -> int:
        """Start, kill when so many epochs are done; how many were by then."""
        program = Program(self.folder, slots, self.mode, 10**9)
        try:
            while True:
                said, done, _ = program.progress(self.folder).split()
                assert said == "epoch", "it was to be killed before its end"
                if int(done) >= epochs:
                    return int(done)
        finally:
            program.kill()

    @property
    def total(self) -> int:
        return 10**9  # it ends by itself

    def taken(self) -> pa.Table:
        files = [soaking.rows(number) for number in range(self.listed)]
        return pa.concat_tables(files + [soaking.rows(number, beside=True) for number in range(self.beside)])

    def closed(self) -> bool:
        store = StateStore.open(self.folder / "ckpt" / "state", read_only=True)
        return store.last is not None and store.last.closed


@dataclass
class Watched(Soak):
    """Files of many keys through processors; the last run takes what is there and ends."""

    keys: int = 3000
    per_file: int = 60
    workers: int = 0  # that were killed
    rows: Callable[[int, int, int], pa.Table] = watching.rows  # of a file

    def feed(self, count: int) -> None:
        for _ in range(count):
            table = self.rows(self.files, self.keys, self.per_file)
            soaking.put(self.folder / "in", self.files, table=table)
            self.files += 1

    def cycle(self, rng: random.Random, slots: int, longest: float) -> None:
        """Killed when it has begun, or when it has done some epochs, however long that takes; then a moment later. In
        between workers are killed: Spark tries again."""
        self.feed(rng.randrange(4, 8))
        program = Program(self.folder, slots, self.mode, 10**9)
        try:
            for _ in range(rng.choice([1, 3, 4, 5])):
                program.progress(self.folder)
                self.feed(3)
                if rng.random() < 0.5:
                    time.sleep(rng.uniform(0.0, longest / 3))
                    self.workers += kill_a_worker(program, rng)
            time.sleep(rng.uniform(0.0, longest))
        finally:
            program.kill()

    def finish(self, slots: int) -> None:
        self.mode = "processors-end"  # it ends by itself
        super().finish(slots)

    @property
    def total(self) -> int:
        return 10**9

    def taken(self) -> pa.Table:
        return pa.concat_tables([self.rows(number, self.keys, self.per_file) for number in range(self.files)])

    def verdict(self) -> tuple[int, int, int]:
        """(lost, duplicated, wrong): rows that are missing, there too often, or were never to be; of tables too."""
        results, processors = watching.model(rows_of(self.taken()))
        wanted: list[Rows] = list(results)
        found = [self._delivered(str(index)) for index in range(len(results))]
        for number, each in enumerate(processors, 1):
            wanted += [Rows(each.keys), Rows(each.open)]
            found += [count_rows(hr.read_state(self.folder / "ckpt", f"apply-{number}", t)) for t in ("keys", "open")]
        assert all(wanted), "there was something to lose"
        lost = sum((one - two).total() for one, two in zip(wanted, found, strict=True))
        more = [(one, two - one) for one, two in zip(wanted, found, strict=True)]
        duplicated = sum(n for one, rest in more for row, n in rest.items() if row in one)
        return lost, duplicated, sum(rest.total() for _, rest in more) - duplicated


def kill_a_worker(program: Program, rng: random.Random) -> bool:
    """One of Spark's Python workers, at work or not; whether there was one."""
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(program.process.pid).children(recursive=True)
        forked = [child for child in children if (parent := child.parent()) in children and parent.name() != "java"]
        if forked:
            rng.choice(forked).kill()
            return True
    return False


@dataclass(frozen=True)
class Use:
    """How a processor came by its tables in an epoch."""

    epoch: int
    process: int
    operator: str
    found: int
    built: frozenset[str]


def uses(folder: Path) -> list[Use]:
    lines = [line.split() for line in (folder / "used.txt").read_text().splitlines()]
    return [
        Use(int(epoch), int(process), operator, int(found), frozenset(built.split(",")) - {"-"})
        for epoch, process, operator, found, built in lines
    ]


def soak(folder: Path, mode: str, kills: int, longest: float) -> str:
    rng = random.Random(SEED)
    (folder / "in").mkdir()
    running = Soak(folder, mode)
    running.feed(6)
    begun = time.monotonic()
    for number in range(kills):
        running.cycle(rng, 1 + number % 3, longest)
    running.finish(2)
    lost, duplicated = running.compare()
    epochs = running.epochs()
    running.heard(epochs)
    report = f"{mode}: {kills} kills over {epochs} epochs; lost {lost}, duplicated {duplicated}; seed {SEED}"
    print(f"{report}; {running.files} files, {time.monotonic() - begun:.0f} s")
    assert (lost, duplicated) == (0, 0), report
    return report


def test_files_survive_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = soak(tmp_path, "files", kills=KILLS, longest=1.2)
    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.long
def test_streaming_dataframe_survives_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = soak(tmp_path, "stream", kills=max(1, KILLS // 3), longest=3.0)
    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.long
def test_a_run_that_ends_survives_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Each time it is started with once=True; files that come after the first manifest are left."""
    rng, kills = random.Random(SEED), max(2, KILLS // 3)
    (tmp_path / "in").mkdir()
    (tmp_path / "beside").mkdir()
    running = Ending(tmp_path, "once")
    running.feed(15 * kills)
    running.feed_beside(4 * kills)
    running.listed, done = running.files, -1
    for number in range(kills):
        done = running.cycle_until(done + rng.randrange(1, 3), 1 + number % 3)
        assert not running.closed()
        running.feed(2)
        running.feed_beside(2)
    for _ in range(2):  # the second finds it closed
        running.finish(2)
        assert running.closed()
    lost, duplicated = running.compare(end=True)
    epochs = running.epochs()
    report = f"once: {kills} kills over {epochs} epochs; lost {lost}, duplicated {duplicated}; seed {SEED}"
    assert (lost, duplicated) == (0, 0), report
    with capsys.disabled():
        print(f"\n{report}")


def soak_processors(folder: Path, kills: int, keys: int, longest: float) -> tuple[str, frozenset[str]]:
    """What came of it, in words; and why tables were built from blocks."""
    rng = random.Random(SEED)
    (folder / "in").mkdir()
    running = Watched(folder, "processors", keys=keys, per_file=max(60, keys // 150))
    running.feed(watching.LOADING)
    begun = time.monotonic()
    for number in range(kills):
        running.cycle(rng, 1 + number % 3, longest)
    running.finish(2)
    took = time.monotonic() - begun
    told = uses(folder)
    lives = {use.process for use in told}
    in_place = {use.process for use in told if use.found}
    whys = frozenset().union(*(use.built for use in told))
    lost, duplicated, wrong = running.verdict()
    epochs = running.epochs()
    running.heard(epochs)
    rows = hr.read_state(folder / "ckpt", "apply-1", "keys")  # of a broadcast tuple one in every substream
    held = pc.count_distinct(rows["k"]).as_py()
    report = (
        f"processors: {kills} kills, and {running.workers} of workers, over {epochs} epochs, {running.taken().num_rows:,} tuples, {held:,} keys in {rows.num_rows:,} rows;"
        f" tables found in place in {len(in_place)} of {len(lives)} lives, {sum(use.found for use in told):,} in all, built: {', '.join(sorted(whys))};"
        f" lost {lost}, duplicated {duplicated}, wrong {wrong}; seed {SEED}"
    )
    print(f"{report}; {took:.0f} s")
    assert (lost, duplicated, wrong) == (0, 0, 0), report
    assert held >= keys * 0.97, "but for those that were omitted"
    assert len(in_place) >= len(lives) / 2 >= 1, "what was kept between epochs was used between the kills"
    return report, whys


@pytest.mark.long
def test_processors_survive_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report, _ = soak_processors(tmp_path, kills=2, keys=3000, longest=1.0)
    with capsys.disabled():
        print(f"\n{report}")


@pytest.mark.long
def test_processors_with_many_keys_survive_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report, whys = soak_processors(tmp_path, kills=15, keys=KEYS, longest=6.0)
    with capsys.disabled():
        print(f"\n{report}")
    assert whys & {caches.MARKED, caches.STAMP}, "a worker was killed while it changed a table, or when it had"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_script_ends_at_a_signal_and_the_next_goes_on(tmp_path: Path, number: signal.Signals):
    """The script knows nothing of signals: the epoch in progress is abandoned, or was committed; both are fine."""
    (tmp_path / "in").mkdir()
    running = Soak(tmp_path, "files")
    running.feed(9)
    program = Program(tmp_path, 2, "files", 10**9)
    try:
        program.progress(tmp_path)
        running.feed(3)
        program.process.send_signal(number)
        assert program.process.wait(PATIENCE) != 0
    finally:
        if program.process.poll() is None:
            program.kill()
    running.finish(1)
    assert running.compare() == (0, 0)
    running.epochs()
