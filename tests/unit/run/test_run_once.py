"""Runs that end: the list of files that they keep to, and when they end their input; without Spark."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.difference import difference
from headrace.driver.position import Position
from headrace.errors import CorruptState, EngineError, SourceError, StateMismatch
from headrace.reference import reference
from headrace.sinks import MemorySink, memory
from headrace.sources.file_ledger import FileLedger, TakenFile
from headrace.sources.files import FilesOrigin, read_file
from headrace.sources.protocol import PhysicalWindow
from headrace.state import BlockReader, StateStore, block_name
from headrace.state.blocks import write_block
from headrace.state.manifest import FolderState
from headrace.stream import Stream
from headrace.task.in_process import execute_locally
from headrace.testing import LocalRun, table_stream
from tests.helpers import add_file
from tests.mapping import deleted_blocks
from tests.patience import PATIENCE
from tests.unit.run.by_hand import HandRun

SECOND = 1_000_000


def rows(number: int) -> pa.Table:
    """The rows of a file: one second of event time, up to half a second of disorder."""
    rng = random.Random(number)
    times = [number * SECOND + rng.randrange(-SECOND // 2, SECOND // 2) for _ in range(8)]
    keys = [rng.randrange(3) for _ in times]
    return pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "k": pa.array(keys, pa.int64())})


def put(folder: Path, number: int, table: pa.Table | None = None) -> Path:
    return add_file(folder, number, rows(number) if table is None else table)


def names(ledger: FileLedger) -> list[str]:
    return [file.name.removesuffix(".parquet") for file in ledger.waiting()]


# --- the list ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    return StateStore.open(tmp_path / "state", fsync=False)


def ledger_of(store: StateStore, folder: Path, files_per_epoch: int | None = None) -> FileLedger:
    """As a start finds it."""
    known = store.last.ledgers if store.last else {}
    origin = FilesOrigin(None, folder, files_per_epoch)
    return FileLedger(origin, known.get("s", FolderState()), BlockReader(store.storage))


def take(store: StateStore, ledger: FileLedger, count: int) -> None:
    """An epoch that takes so many of the files that wait."""
    files = ledger.waiting()[:count]
    number = store.last.number + 1 if store.last else 0
    state = ledger.state_after(store.storage, number, files)
    store.commit(store.draft(ledgers={"s": state}))
    ledger.note_commit(state, files)
    store.clean(keep=1)


def test_files_that_come_later_are_not_taken(store, tmp_path):
    for number in (3, 1, 2):
        put(tmp_path / "in", number)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    put(tmp_path / "in", 0)
    put(tmp_path / "in", 4)
    assert names(ledger) == ["001", "002", "003"]
    take(store, ledger, 2)
    assert names(ledger) == ["003"]


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_restart_goes_on_with_the_same_list(store, tmp_path, taken):
    for number in (1, 2, 3):
        put(tmp_path / "in", number)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    take(store, ledger, taken)
    put(tmp_path / "in", 0)
    for _ in range(3):
        ledger = ledger_of(store, tmp_path / "in")
        ledger.keep_to_list()
        assert names(ledger) == ["001", "002", "003"][taken:]
        take(store, ledger, 0)  # the manifest that named the list first is cleaned away


def test_an_ordinary_start_forgets_the_list_with_its_first_epoch(store, tmp_path):
    put(tmp_path / "in", 1)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    take(store, ledger, 0)
    listed = store.last.ledgers["s"].listed
    put(tmp_path / "in", 2)
    ordinary = ledger_of(store, tmp_path / "in")
    assert names(ordinary) == ["001", "002"]
    take(store, ordinary, 1)
    assert store.last.ledgers["s"].listed is None and store.storage.size(listed.name) is None
    again = ledger_of(store, tmp_path / "in")
    again.keep_to_list()
    assert names(again) == ["002"], "a list of its own, of what waits now"


def test_a_list_is_written_once_however_many_epochs_follow(store, tmp_path):
    for number in range(5):
        put(tmp_path / "in", number)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    found = set()
    for _ in range(5):
        take(store, ledger, 1)
        found.add(store.last.ledgers["s"].listed)
    assert len(found) == 1 and found.pop().rows == 5


def test_the_order_is_that_of_the_list_and_a_file_is_taken_as_it_is_now(store, tmp_path):
    for number in (1, 2, 3):
        put(tmp_path / "in", number)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    replaced = put(tmp_path / "in", 1, rows(9).slice(0, 1))
    os.utime(replaced, ns=(77, 77))
    assert names(ledger) == ["001", "002", "003"]
    file = ledger.waiting()[0]
    assert (file.bytes, file.modified) == (replaced.stat().st_size, 77)
    assert read_file(ledger.path(file), (file.bytes, file.modified)).num_rows == 1


def test_a_file_of_the_list_that_is_gone_is_told_as_in_any_run(store, tmp_path):
    for number in (1, 2):
        put(tmp_path / "in", number)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    (tmp_path / "in" / "001.parquet").unlink()
    gone = ledger.waiting()[0]
    with pytest.raises(SourceError, match=r"001.parquet' was deleted before it was processed; restore it"):
        read_file(ledger.path(gone), (gone.bytes, gone.modified))


def test_a_block_of_something_else_is_no_list(store, tmp_path):
    (tmp_path / "in").mkdir()
    block = write_block(store.storage, block_name(0, 0, 0, 0), rows(0), None, None, None)
    ledger = FileLedger(FilesOrigin(None, tmp_path / "in", None), FolderState((), block), BlockReader(store.storage))
    with pytest.raises(CorruptState, match=rf"{block.name} is not a list of files; its columns are \['ts', 'k'\]"):
        ledger.keep_to_list()


def test_a_list_that_was_damaged_is_named(store, tmp_path):
    put(tmp_path / "in", 1)
    ledger = ledger_of(store, tmp_path / "in")
    ledger.keep_to_list()
    take(store, ledger, 1)
    damaged = tmp_path / "state" / store.last.ledgers["s"].listed.name
    damaged.write_bytes(bytes(reversed(damaged.read_bytes())))
    with pytest.raises(CorruptState, match="is damaged: checksum"):
        ledger_of(store, tmp_path / "in").keep_to_list()


# --- the driver: epochs of a list, and the last one ---------------------------------------------------------------------


class Listed:
    """A run over a folder that takes what is there when it begins, driven by hand; `query` reads one source, `s`."""

    def __init__(
        self, query: Stream, folder: Path, sink: MemorySink | None = None, slots: int = 1, files_per_epoch: int = 2
    ) -> None:
        self.local = LocalRun(query, folder / "state", slots=slots, sink=sink)
        self.ledger = ledger_of(self.local.store, folder / "in", files_per_epoch)
        self.local.driver.ledgers = {"s": self.ledger}
        self.ledger.keep_to_list()

    def epoch(self) -> bool:
        """False: it was the last."""
        files = self.ledger.choose(self.ledger.waiting())
        windows = [[PhysicalWindow("s", read_file(self.ledger.path(f), (f.bytes, f.modified)))] for f in files] or [[]]
        execute = partial(execute_locally, windows=windows, storage=self.local.store.storage)
        self.local.driver.run_epoch(Position("files"), execute, taken={"s": files}, final=not files)
        return bool(files)


def stream_of(table: pa.Table) -> Stream:
    return table_stream(table, lateness="1 second", name="s")


QUERIES: dict[str, Callable[[Stream], Stream]] = {
    "join": lambda s: s.join(s, on="l.k = r.k and l.ts < r.ts", within="2 seconds"),
    "windows": lambda s: s.aggregate(by=["k"], window="4 seconds", every="1 second", n="count(*)"),
    "counts": lambda s: s.aggregate(by=["k"], last=4, every=3, n="min(ts)"),
    "sessions": lambda s: s.aggregate(by=["k"], session="0.5 seconds", n="count(*)", t="max(ts)"),
    "distinct": lambda s: s.distinct(by=["k"], within="2 seconds"),
    "top": lambda s: s.top(2, by=["k"], order="epoch_ms(ts) % 7 desc", window="4 seconds", every="2 seconds"),
    "asof": lambda s: s.asof(s.filter("epoch_ms(ts) % 3 = 0"), by=["k"], within="3 seconds", how="left"),
}


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("seed", range(3))
def test_however_often_it_dies_the_answer_is_that_for_the_list(tmp_path, name, seed):
    """Files come all the time, the process ends between epochs, slots and cuts change: the list stays, and then it ends."""
    rng = random.Random(seed)
    wanted = pa.concat_tables([rows(number) for number in range(12)])
    for number in range(12):
        put(tmp_path / "in", number)
    query, sink, later, goes_on = QUERIES[name](stream_of(wanted)), memory(), 12, True
    while goes_on:
        run = Listed(query, tmp_path, sink, slots=rng.randrange(1, 4), files_per_epoch=rng.randrange(1, 4))
        for _ in range(rng.randrange(1, 4)):
            goes_on = goes_on and run.epoch()
            put(tmp_path / "in", later)
            later += 1
        run.local.close()
    last = run.local.store.last
    assert last.closed and last.totals.accepted == last.totals.delivered == wanted.num_rows
    assert difference(reference(query), sink.table()) is None


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
def test_the_driver_maps_no_deleted_block(tmp_path):
    """Names of files are merged from block to block as epochs pass; a mapping would keep the disk space of each."""
    for number in range(16):
        put(tmp_path / "in", number)
    run = Listed(QUERIES["windows"](stream_of(rows(0))), tmp_path, files_per_epoch=1)
    run.local.driver.driven = {"s": FilesOrigin(None, tmp_path / "in", 1)}
    run.local.driver.open()
    run.ledger, before = run.local.driver.ledgers["s"], taken_blocks(tmp_path)
    for _ in range(16):
        assert run.epoch()
        before |= taken_blocks(tmp_path)
    assert len(before - taken_blocks(tmp_path)) > 16, "blocks were deleted"
    assert deleted_blocks(os.getpid(), tmp_path) == []
    run.local.close()
    assert deleted_blocks(os.getpid(), tmp_path) == []


def taken_blocks(folder: Path) -> set[str]:
    return set(os.listdir(folder / "state" / "blocks"))


def test_tuples_are_late_as_in_a_run_that_goes_on(tmp_path):
    """The second file is more than the lateness behind the first: the last epoch does not undo that."""
    late = rows(0)
    put(tmp_path / "in", 0, rows(9))
    put(tmp_path / "in", 1, late)
    query = QUERIES["windows"](stream_of(rows(9)))
    run = Listed(query, tmp_path, files_per_epoch=1)
    while run.epoch():
        pass
    assert run.local.store.last.totals.late == late.num_rows
    assert difference(reference(query, epochs=[rows(9), late]), run.local.results()) is None


def test_an_empty_folder_ends_at_once(tmp_path):
    (tmp_path / "in").mkdir()
    run = Listed(QUERIES["windows"](stream_of(rows(0))), tmp_path)
    assert not run.epoch()
    assert run.local.driver.closed and run.local.results().num_rows == 0
    with pytest.raises(StateMismatch, match="closed"):
        run.epoch()


# --- the run: when the input has ended ----------------------------------------------------------------------------------


def test_files_are_taken_one_epoch_after_the_other_and_then_the_input_ends(tmp_path):
    hand = HandRun(tmp_path, files=3, streaming=False, once=True)
    assert hand.run.busy
    assert hand.begin().wait(PATIENCE)
    assert hand.epochs == [(False, 1, [])] * 3 + [(True, 0, [])]
    assert not hand.run.busy


def test_it_does_not_end_before_spark_has(tmp_path):
    """Nor at once when Spark has: files may wait."""
    hand = HandRun(tmp_path, files=2, once=True)

    def seen(looks: int) -> None:
        if looks == 5:
            assert len(hand.epochs) == 2, "nobody ended it while Spark went on"
            hand.files = [TakenFile("late", 1, 1)]
            hand.feed.ends(drained=True)

    hand.seen = seen
    assert hand.begin().wait(PATIENCE)
    assert hand.epochs == [(False, 1, [])] * 3 + [(True, 0, [])]


@pytest.mark.parametrize("failure", [None, "no such topic"])
def test_a_query_that_was_stopped_from_outside_or_failed_does_not_end_the_input(tmp_path, failure):
    hand = HandRun(tmp_path, once=True)
    hand.feed.ends(failure=failure)
    with pytest.raises(EngineError, match=failure or "stopped from outside"):
        hand.begin().wait(PATIENCE)
    assert hand.epochs == []


@pytest.mark.parametrize("streaming", [False, True])
def test_a_run_that_is_stopped_does_not_end_its_input(tmp_path, streaming):
    hand = HandRun(tmp_path, files=5, streaming=streaming, once=True)
    hand.feed.ends(drained=True)
    hand.seen = lambda looks: hand.run.stop() if looks == 3 else None
    assert hand.begin().wait(PATIENCE)
    assert hand.epochs == [(False, 1, [])] * 3


def test_what_spark_had_is_known_to_be_all_once_it_has_ended(tmp_path):
    """A stream that has ended is as silent as one that has nothing: with `idle` it does not hold the files back."""
    hand = HandRun(tmp_path, files=2, once=True, idle=1)
    hand.feed.works()
    hand.within = lambda: hand.feed.ends(drained=True)
    assert hand.begin().wait(PATIENCE)
    assert [(taken, "stream" in silent) for _, taken, silent in hand.epochs] == [(1, False), (1, True), (0, True)]


# --- a closed checkpoint ------------------------------------------------------------------------------------------------


def closed_run(folder: Path, **options: Any) -> HandRun:
    hand = HandRun(folder, once=True, **options)
    hand.driver.closed = True
    return hand


def test_a_closed_checkpoint_says_what_it_leaves_unread(tmp_path, caplog):
    hand = closed_run(tmp_path, files=2)
    assert hand.begin().wait(PATIENCE) and hand.epochs == []
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "nothing was read, because the checkpoint is closed" in said and "headrace run --until-idle" in said
    assert said.endswith("stream may have new input; files of files that wait: 2")


def test_a_closed_checkpoint_without_new_input_says_nothing(tmp_path, caplog):
    assert closed_run(tmp_path, streaming=False).begin().wait(PATIENCE)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_a_closed_checkpoint_ends_well_though_a_source_cannot_be_looked_at(tmp_path, caplog):
    hand = closed_run(tmp_path, streaming=False)

    def away(looks: int) -> None:
        raise SourceError("the topic is gone")

    hand.seen = away
    assert hand.begin().wait(PATIENCE) and hand.run.exception is None
    assert "files could not be looked at (the topic is gone)" in caplog.text
