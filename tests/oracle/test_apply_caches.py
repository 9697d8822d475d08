"""Processors whose tables stay in place: whatever happens to what was kept, the answer is that of the reference, and it is
said what could not be used. Broken on purpose, the same tests fail."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.difference import difference
from headrace.driver import cache_index, driver
from headrace.errors import DamagedCache, HeadraceError, StateError
from headrace.kernels.keyed.buffer_allocator import DamagedTable
from headrace.kernels.keyed.keyed_table import KeyedTable
from headrace.reference import reference
from headrace.state import caches
from headrace.state.blocks import BlockReader
from headrace.state.caches import COLD, DAMAGED, LOCKED, MARKED, NO_SPACE, OFF, STAMP, CacheUse, TableCache
from headrace.state.store import StateStore
from headrace.task import slot_state_tables
from headrace.task.reports import TableUse
from headrace.task.slot_state_tables import SlotStateTables
from headrace.task.stages import run_splitter, run_stage
from headrace.task.task import Task
from headrace.testing import table_stream

from .driving import Driven, driven
from .processing import Counter, Sessions
from .strategies import SECOND, make_table
from .test_apply_faults import Died, let_die, sent
from .test_local import same, seeds

EPOCHS = 6
ROWS = make_table(5, 240, span=120 * SECOND)
ARRIVED = [ROWS.slice(40 * n, 40) for n in range(EPOCHS)]
QUERIES = {
    "counter": lambda s: s.split(4, by=["k"]).apply(Counter("k", pa.int64(), "x")),
    "sessions": lambda s: s.split(3, by=["s"]).apply(Sessions("k", pa.int64(), "x")),
}
NAMES = list(QUERIES)
EXPECTED: dict[str, pa.Table] = {}


def query_of(name: str) -> Any:
    return QUERIES[name](table_stream(ROWS, name="a", lateness="0 seconds"))


def expected(name: str) -> pa.Table:
    if name not in EXPECTED:
        EXPECTED[name] = reference(query_of(name), epochs=[{"a": rows} for rows in ARRIVED])
    return EXPECTED[name]


@contextmanager
def begun(name: str, **options: Any) -> Iterator[Driven]:
    with driven(query_of(name), 2, **options) as run:
        yield run


def folder(run: Driven) -> Path:
    assert run.run is not None and run.run.driver.cache_index._folder is not None
    return run.run.driver.cache_index._folder.path


def files(run: Driven) -> list[Path]:
    return sorted(path for path in folder(run).iterdir() if "-" in path.name)


def use_of(run: Driven) -> TableUse:
    """How the last epoch came by its tables."""
    assert run.run is not None
    return run.run.driver.progress.table_use["apply-1"]


def epoch(run: Driven, number: int) -> TableUse:
    caches._KEPT.forget()  # as another process would have them
    run.epoch({"a": ARRIVED[number]})
    return use_of(run)


def rest(run: Driven, name: str, since: int) -> None:
    """To the end, and all of it is right."""
    same(expected(name), ended(run, since), name)


def ended(run: Driven, since: int) -> pa.Table:
    for number in range(since, EPOCHS):
        run.epoch({"a": ARRIVED[number]})
    run.epoch(final=True)
    return run.table()


# --- as it should be -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["counter", pytest.param("sessions", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kept", [True, False])
def test_tables_are_found_where_they_were_left(name: str, kept: bool) -> None:
    with begun(name) as run:
        assert set(epoch(run, 0).built) == {COLD}
        for number in range(1, EPOCHS):
            if not kept:
                caches._KEPT.forget()
            run.epoch({"a": ARRIVED[number]})
            assert use_of(run).found and set(use_of(run).built) <= {COLD} and not use_of(run).rows
        rest(run, name, EPOCHS)
        where = folder(run)
        assert where.exists()
    assert not where.exists(), "the run has ended"


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_without_any(name: str) -> None:
    with begun(name, cache=0) as run:
        rest(run, name, 0)
        assert set(use_of(run).built) == {OFF} and run.run.driver.cache_index._folder is None  # type: ignore[union-attr]


def test_a_restart_begins_cold(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.driver.cache_index")
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        run.close()
        run.open(3)
        found = epoch(run, 3)
        assert set(found.built) == {COLD} and found.rows and not found.found
        assert "tables of apply-1 were built from blocks because there was no cache" in caplog.text
        rest(run, "counter", 4)


# --- what happens to them ------------------------------------------------------------------------------------------------


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def altered(run: Driven, r: random.Random) -> None:
    for path in files(run):
        flip(path, r.randrange(500))  # of the header


def truncated(run: Driven, r: random.Random) -> None:
    for path in files(run):
        os.truncate(path, r.randrange(path.stat().st_size))


def of_another_run(run: Driven, r: random.Random) -> None:
    """With everything else as it should be."""
    with begun("counter") as other:
        for number in range(3):
            other.epoch({"a": ARRIVED[number]})
        for path in files(other):
            shutil.copy(path, folder(run) / path.name)


def marked(run: Driven, r: random.Random) -> None:
    """As a process leaves them that was killed while it had them."""
    assert run.run is not None
    noted = run.run.driver.cache_index._stamps["apply-1", "counts"]
    child = os.fork()
    if not child:
        use = CacheUse(run.run.store.run_id, 1 << 30)
        shape = repr(run.run.plan.by_name["apply-1"].state_tables["counts"].describe())
        taken = [use.take("apply-1", "counts", shape, number, stamp) for number, stamp in noted.items()]
        os._exit(any(cache.why for cache in taken))
    assert os.waitpid(child, 0)[1] == 0


def removed(run: Driven, r: random.Random) -> None:
    shutil.rmtree(folder(run))


HAPPENS: dict[Callable[[Driven, random.Random], None], str] = {
    altered: DAMAGED,
    truncated: DAMAGED,
    of_another_run: DAMAGED,
    marked: MARKED,
    removed: COLD,
}


@pytest.mark.thorough
@pytest.mark.parametrize("happens", HAPPENS, ids=[happens.__name__ for happens in HAPPENS])
def test_what_cannot_be_used_is_built_again(
    happens: Callable[[Driven, random.Random], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace.driver.cache_index")
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        happens(run, random.Random(0))
        found = epoch(run, 3)
        assert not found.found and set(found.built) <= {HAPPENS[happens], COLD} and found.rows
        assert cache_index.WORDS[HAPPENS[happens]] in caplog.text
        assert epoch(run, 4).found
        rest(run, "counter", 5)


@seeds(30)
def test_a_bit_anywhere(seed: int) -> None:
    """In rows, in what leads to them, or where nothing is: it is met, or it is in nobody's way."""
    r, name = random.Random(seed), NAMES[seed % 2]
    with begun(name) as run:
        for number in range(EPOCHS):
            assert LOCKED not in epoch(run, number).built
            for path in files(run):
                if r.random() < 0.5:
                    flip(path, r.randrange(8 * path.stat().st_size))
        rest(run, name, EPOCHS)


def test_of_another_epoch(tmp_path: Path) -> None:
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        for path in files(run):
            shutil.copy(path, tmp_path / path.name)
        epoch(run, 3)
        for path in tmp_path.iterdir():
            if "-" in path.name:
                shutil.copy(path, folder(run) / path.name)
        assert STAMP in epoch(run, 4).built
        rest(run, "counter", 5)


HOLDS = """
import sys
from headrace.state.caches import CacheUse
use = CacheUse(sys.argv[1], 1 << 30)
print([use.lock(name) for name in sys.argv[2:]], flush=True)
sys.stdin.read()
"""


@pytest.mark.thorough
def test_locked_by_another_process_that_lives() -> None:
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        assert run.run is not None
        names = [path.name for path in files(run)]
        with subprocess.Popen(
            [sys.executable, "-c", HOLDS, run.run.store.run_id, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdout and other.stdout.readline() == f"{[None] * len(names)}\n"
            found = epoch(run, 3)
            assert set(found.built) == {LOCKED} and not found.found and found.rows
            other.kill()
        assert set(epoch(run, 4).built) == {STAMP}, "they were left alone, and are old"
        rest(run, "counter", 5)


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [1, 10_000])
def test_no_room(limit: int, caplog: pytest.LogCaptureFixture) -> None:
    with begun("counter", cache=limit) as run:
        rest(run, "counter", 0)
        assert NO_SPACE in use_of(run).built and f"the limit of {limit:,} bytes is reached" in caplog.text
        assert caplog.text.count("there was no space for a cache") < 4, "it is not said in every epoch"
        assert sum(path.stat().st_size for path in files(run)) <= limit


def test_removed_while_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    put, seen = KeyedTable.put, []
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)

        def puts(table: KeyedTable, rows: pa.Table) -> None:
            if not seen:
                seen.append(True)
                shutil.rmtree(folder(run))
            put(table, rows)

        monkeypatch.setattr(KeyedTable, "put", puts)
        epoch(run, 3)
        assert seen and epoch(run, 4).rows
        rest(run, "counter", 5)


# --- damage that is met while they are used ----------------------------------------------------------------------------


@pytest.mark.parametrize("swallowed", [False, True])
def test_damage_runs_the_epoch_again_from_blocks(
    swallowed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    met: list[KeyedTable] = []
    process_ = Counter.process

    def damaging(self: Any, tuples: pa.Table, state: Any) -> Any:
        table = state["counts"]
        if not met:
            met.append(table)
            table.damaged = DamagedTable("row 3 is not what was written")
            if not swallowed:
                raise table.damaged
            return None
        return process_(self, tuples, state)

    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        before = {path.name for path in files(run)}
        monkeypatch.setattr(Counter, "process", damaging)
        found = epoch(run, 3)
        assert set(found.built) == {OFF} and "row 3 is not what was written" in caplog.text
        assert "epoch 3 is run again from blocks alone" in caplog.text
        assert len(before - {path.name for path in files(run)}) == 1, "the one that was damaged is gone"
        assert not epoch(run, 4).found, "the others are old"
        assert epoch(run, 5).found
        rest(run, "counter", 6)


def test_a_row_that_was_written_though_it_was_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are those of an earlier epoch, as far as anybody knows."""
    process_ = Counter.process

    def writing(self: Any, tuples: pa.Table, state: Any) -> Any:
        table = state["counts"]
        for name in table.columns:
            column = table.columns[name].view()
            if column.flags.writeable:
                column[:] = 77
        return process_(self, tuples, state)

    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        monkeypatch.setattr(Counter, "process", writing)
        with pytest.raises(
            DamagedCache, match=r"that numbers did not hand out in this epoch: .*is not what was written"
        ):
            epoch(run, 3)
        monkeypatch.undo()


# --- attempts ------------------------------------------------------------------------------------------------------------


class Attempts:
    """Executes an epoch. The first attempt of a slot comes to the middle of `process`, or to where its block is written;
    there it may die, and there or after that another does the whole task, and is heard."""

    def __init__(self, patch: pytest.MonkeyPatch, *, dies: bool, at_once: bool, block: bool) -> None:
        self.dies, self.at_once, self.armed, self.middle = dies, at_once, False, None
        put, write = KeyedTable.put, slot_state_tables.write_table_rows

        def interrupted(*given: Any) -> Any:
            if self.middle is not None:
                now, self.middle = self.middle, None
                now()
            return write(*given) if block else None

        def puts(table: KeyedTable, rows: pa.Table) -> None:
            put(table, rows)
            interrupted()

        let_die(patch)
        if block:
            patch.setattr(slot_state_tables, "write_table_rows", interrupted)
        else:
            patch.setattr(KeyedTable, "put", puts)
        patch.setattr("headrace.testing.local_run.execute_locally", self.execute)

    def execute(self, epoch: Any, windows: Any, storage: Any) -> Any:
        def task(stage: int, partition: int, attempt: int) -> Task:
            return Task(stage, partition, attempt, storage, BlockReader(storage))

        messages = [m for n, given in enumerate(windows) for m in sent(run_splitter(epoch, task(0, n, 0), given))]
        inboxes = [[m for m in messages if m.slot == slot] for slot in range(epoch.slots)]
        found = []
        for slot, inbox in enumerate(inboxes):
            found += self.both(lambda a, s=slot, i=inbox: sent(run_stage(epoch, 1, task(1, s, a), i)))
        return found

    def both(self, attempt: Callable[[int], Any]) -> Any:
        if not self.armed:
            return attempt(0)
        others: list[Any] = []

        def meanwhile() -> None:
            if self.at_once:
                others.append(attempt(1))
            if self.dies:
                raise Died

        self.middle = meanwhile  # type: ignore[assignment]
        with suppress(Died):
            attempt(0)
        self.middle = None
        return others[0] if others else attempt(1)


Told = tuple[list[TableUse], pa.Table]  # how epochs came by their tables, and all results


def attempts_of(patch: pytest.MonkeyPatch, *, dies: bool, at_once: bool, block: bool) -> Told:
    """Two in one epoch, of which the second is heard; the first has the caches."""
    attempts = Attempts(patch, dies=dies, at_once=at_once, block=block)
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        attempts.armed = True
        uses = [epoch(run, 3)]
        attempts.armed = False
        return [*uses, epoch(run, 4)], ended(run, 5)


@pytest.mark.parametrize("block", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("dies", [False, True])
def test_two_attempts_at_once(dies: bool, block: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (during, after), results = attempts_of(monkeypatch, dies=dies, at_once=True, block=block)
    assert set(during.built) == {LOCKED}
    assert not after.found and set(after.built) == {MARKED if dies else STAMP}
    same(expected("counter"), results)


@pytest.mark.parametrize("block", [pytest.param(False, marks=pytest.mark.thorough), True])
@pytest.mark.parametrize("dies", [False, True])
def test_an_attempt_after_another(dies: bool, block: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (during, after), results = attempts_of(monkeypatch, dies=dies, at_once=False, block=block)
    assert not during.found and set(during.built) == {MARKED if dies else STAMP}
    assert after.found and not after.built
    same(expected("counter"), results)


def not_committed(patch: pytest.MonkeyPatch) -> Told:
    """Tables stand where no manifest is; the next epoch has the same number, and other tuples too."""
    with begun("counter") as run:
        for number in range(3):
            epoch(run, number)
        with patch.context() as patched:
            patched.setattr(StateStore, "commit", lambda *given: (_ for _ in ()).throw(StateError("the disk is full")))
            with pytest.raises(StateError, match="the disk is full"):
                run.run.epoch({"a": ARRIVED[3]})  # type: ignore[union-attr]
        caches._KEPT.forget()
        run.epoch({"a": pa.concat_tables([ARRIVED[3], ARRIVED[4]])})
        return [use_of(run)], ended(run, 5)


def test_an_epoch_that_was_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    [use], results = not_committed(monkeypatch)
    assert set(use.built) == {STAMP} and not use.found
    same(expected("counter"), results)


def one_without(patch: pytest.MonkeyPatch) -> Told:
    with begun("counter") as run:
        uses = []
        for number in range(EPOCHS):
            run.run.driver.cache_index._limit = 0 if number == 3 else 1 << 20  # type: ignore[union-attr]
            uses.append(epoch(run, number))
        return uses, ended(run, EPOCHS)


def test_an_epoch_without_caches_between_others(monkeypatch: pytest.MonkeyPatch) -> None:
    uses, results = one_without(monkeypatch)
    assert [bool(use.found) for use in uses] == [False, True, True, False, False, True]
    assert set(uses[3].built) == {OFF} and set(uses[4].built) == {STAMP}
    same(expected("counter"), results)


# --- broken on purpose -----------------------------------------------------------------------------------------------------


def stamps_are_ignored(patch: pytest.MonkeyPatch) -> None:
    real = TableCache._read_head
    patch.setattr(TableCache, "_read_head", lambda self, stamp: None if (w := real(self, stamp)) == STAMP else w)


def marks_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = TableCache._write
    patch.setattr(TableCache, "_write", lambda self, stamp, changing: real(self, stamp, changing=False))


def stamps_are_of_epochs_and_early(patch: pytest.MonkeyPatch) -> None:
    """Not of attempts; and written before the changes are."""
    real = SlotStateTables.open

    def opened(self: SlotStateTables, table: str, substreams: Any) -> Any:
        self.task.stamp = f"{self.epoch.number:032x}"
        self.report.stamp = self.task.stamp
        found = real(self, table, substreams)
        for each in self._open[table].values():
            if each.cache is not None:
                each.cache.finish(self.task.stamp, each.table)
        return found

    patch.setattr(SlotStateTables, "open", opened)


def notes_move_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    real, drivers = driver.execute_until_agreed, list[Any]()
    begin = cache_index.CacheIndex.__init__

    def made(self: Any, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        drivers.append(self)

    def early(epoch: Any, execute: Any) -> Any:
        reports = real(epoch, execute)
        drivers[-1].accept(reports)
        return reports

    patch.setattr(cache_index.CacheIndex, "__init__", made)
    patch.setattr(driver, "execute_until_agreed", early)


def only_what_has_a_cache_is_noted(patch: pytest.MonkeyPatch) -> None:
    real = SlotStateTables._write

    def written(self: SlotStateTables, table: str, due: Any) -> None:
        known = self._open.get(table, {})
        self._open[table] = {n: each for n, each in known.items() if each.cache is not None}
        real(self, table, due)
        self._open[table] = known

    patch.setattr(SlotStateTables, "_write", written)


BROKEN: dict[Callable[[pytest.MonkeyPatch], None], Callable[[pytest.MonkeyPatch], Told]] = {
    stamps_are_ignored: not_committed,
    marks_are_forgotten: lambda patch: attempts_of(patch, dies=True, at_once=False, block=True),
    stamps_are_of_epochs_and_early: lambda patch: attempts_of(patch, dies=True, at_once=True, block=False),
    notes_move_before_the_commit: not_committed,
    only_what_has_a_cache_is_noted: one_without,
}


@pytest.mark.thorough
@pytest.mark.parametrize("broken", BROKEN, ids=[broken.__name__ for broken in BROKEN])
def test_broken_ones_are_seen(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the answer, not only by what is told."""
    wanted = expected("counter")
    broken(monkeypatch)
    try:
        _, results = BROKEN[broken](monkeypatch)
    except HeadraceError:
        return  # it does not fit what is stored
    assert difference(wanted, results) is not None, "nobody noticed"
