"""Sinks of two halves: what tasks write counts when the driver publishes it, once, whatever ends in between."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import sinks
from headrace.errors import QueryError, QueryTypeError, SinkError, StateMismatch
from headrace.sinks import Delivery, Part, PartSink, Publication
from headrace.sinks.parquet_parts import ParquetParts
from headrace.sources import files
from headrace.sources.files import FilesOrigin
from headrace.spark import shipping
from headrace.state import BlockReader, StateStore
from headrace.state.head import head_name
from headrace.state.storage import LocalStorage
from headrace.task import in_process
from headrace.task.outbox_writer import LONGEST_RECEIPT, write_part
from headrace.task.reports import Report
from headrace.task.stages import run_splitter
from headrace.task.task import Task
from headrace.testing import LocalRun, table_stream
from tests.helpers import numbered

QUERY, OTHER = "a" * 32, "b" * 32
EPOCH = "epoch-000000003-result-0-aaaaaaaa"
NOTE = f"_published-result-0-{QUERY}"
SECOND = 1_000_000


def parts_sink(folder: Path) -> PartSink:
    sink = sinks.parquet(folder, parts=True)
    assert sinks.takes_parts(sink)
    return sink


def write(sink: PartSink, name: str, *values: int, epoch: int = 3, query: str = QUERY, result: str = "result-0") -> Any:
    return sink.write(Part(query, epoch, result, name, numbered(*values)))


def publication(*receipts: Any, epoch: int = 3, query: str = QUERY, result: str = "result-0") -> Publication:
    return Publication(query, epoch, result, receipts)


def seen(folder: Path) -> list[int]:
    """What a reader finds who knows nothing of headrace."""
    found = pq.read_table(folder)["v"].to_pylist() if any(folder.glob("[!_]*")) else []
    assert sorted(FilesOrigin(None, folder, None).table()["v"].to_pylist() if found else []) == sorted(found)
    return found


def left(folder: Path) -> list[str]:
    """All that is not published."""
    return sorted(str(path.relative_to(folder)) for path in folder.glob("_*/**/*"))


# --- a folder of parts per epoch ---------------------------------------------------------------------------------------


def test_parts_appear_when_they_are_published_in_the_order_of_tasks(tmp_path: Path):
    sink = parts_sink(tmp_path)
    second, first = write(sink, "s0-p1-a9-00", 3, 4), write(sink, "s0-p0-a8-ff", 1, 2)
    assert seen(tmp_path) == [] and not list(tmp_path.glob("[!_]*"))
    sink.publish(publication(first, second))
    assert seen(tmp_path) == [1, 2, 3, 4]
    assert sorted(p.name for p in (tmp_path / EPOCH).iterdir()) == [
        "part-00000-s0-p0-a8-ff.parquet",
        "part-00001-s0-p1-a9-00.parquet",
    ]
    assert pq.read_schema(tmp_path / EPOCH / "part-00000-s0-p0-a8-ff.parquet").names == ["ts", "v"]
    assert {path.name for path in tmp_path.iterdir()} == {EPOCH, NOTE}, "nothing is left of the staging"


def test_published_again_it_is_the_same(tmp_path: Path):
    sink = parts_sink(tmp_path)
    receipt = write(sink, "s0-p0-a8-ff", 1, 2)
    for _ in range(3):
        sink.publish(publication(receipt))
        assert seen(tmp_path) == [1, 2]


def test_an_epoch_without_results_makes_no_folder(tmp_path: Path):
    sink = parts_sink(tmp_path / "out")
    sink.publish(publication())
    assert not (tmp_path / "out").exists()


def test_readers_pass_over_what_is_staged(tmp_path: Path):
    sink = parts_sink(tmp_path)
    sink.publish(publication(write(sink, "one", 1)))
    write(sink, "two", 2, epoch=4)
    assert seen(tmp_path) == [1]
    assert ds.dataset(tmp_path).to_table()["v"].to_pylist() == [1]


@pytest.mark.parametrize("late", [False, True])
def test_an_attempt_that_nobody_waits_for_adds_nothing(tmp_path: Path, late: bool):
    sink = parts_sink(tmp_path)
    receipts = [write(sink, "s0-p0-a2-bb", 1, 2)]
    if late:
        sink.publish(publication(*receipts))
    write(sink, "s0-p0-a1-aa", 1, 2)
    sink.publish(publication(*receipts))
    assert seen(tmp_path) == [1, 2]
    assert left(tmp_path) == []


def test_an_attempt_that_writes_while_its_epoch_is_published_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sink, rename = parts_sink(tmp_path), os.rename
    receipts = [write(sink, "one", 1), write(sink, "two", 2)]

    def renamed(*paths: Any) -> None:
        monkeypatch.setattr(os, "rename", rename)
        write(sink, "zombie", 1)
        rename(*paths)
        write(sink, "zombie-2", 2)

    monkeypatch.setattr(os, "rename", renamed)
    sink.publish(publication(*receipts))
    assert seen(tmp_path) == [1, 2]


def test_what_an_epoch_left_is_swept_and_nothing_of_others(tmp_path: Path):
    sink = parts_sink(tmp_path)
    write(sink, "lost", 7, epoch=2)
    write(sink, "ahead", 8, epoch=4)
    write(sink, "of-another-query", 9, query=OTHER)
    write(sink, "of-another-result", 9, result="result-1")
    (tmp_path / f"_staging-result-0-{QUERY}" / "notes.txt").write_text("somebody's own")
    sink.publish(publication())
    assert [name.rpartition("/")[2] for name in left(tmp_path)] == [
        "000000004.ahead.part",
        "notes.txt",
        "000000003.of-another-query.part",
        "000000003.of-another-result.part",
    ]


# --- ended anywhere ----------------------------------------------------------------------------------------------------


class Ended(BaseException):
    """Stands for SIGKILL: no `except Exception` sees it."""


@contextmanager
def ending_at(step: int, when: str) -> Iterator[Callable[[], int]]:
    """The process "dies" before or after its n-th change of a folder, or sync; says how many there were."""
    taken = 0
    patch = pytest.MonkeyPatch()

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            nonlocal taken
            taken += 1
            if taken - 1 == step and when == "before":
                raise Ended
            found = real(*given, **options)
            if taken - 1 == step and when == "after":
                raise Ended
            return found

        return call

    for name in ("rename", "replace", "mkdir", "fsync", "unlink", "rmdir"):
        patch.setattr(os, name, counted(getattr(os, name)))
    try:
        yield lambda: taken
    finally:
        patch.undo()


def steps_of_a_publication(folder: Path) -> int:
    sink = parts_sink(folder)
    receipts = [write(sink, name, v) for name, v in (("one", 1), ("two", 2))]
    write(sink, "lost", 3)
    with ending_at(-1, "before") as taken:
        sink.publish(publication(*receipts))
        return taken()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kills", [1, 2])
def test_a_publication_that_ends_anywhere_is_finished_by_the_next(tmp_path: Path, when: str, kills: int):
    steps = steps_of_a_publication(tmp_path / "whole")
    assert steps == 11, "a folder, two parts, their sync, the rename, its sync, the note, one part swept, the staging"
    for step in range(steps):
        sink = parts_sink(tmp_path / str(step))
        receipts = [write(sink, name, v) for name, v in (("one", 1), ("two", 2))]
        write(sink, "lost", 3)
        for again in range(kills):
            with ending_at(step - again, when), pytest.raises(Ended):
                sink.publish(publication(*receipts))
                raise Ended  # the second publication has fewer steps
            assert seen(sink.path) in ([], [1, 2]), step  # type: ignore[attr-defined]
        sink.publish(publication(*receipts))
        assert seen(sink.path) == [1, 2], step  # type: ignore[attr-defined]
        assert left(sink.path) == [], step  # type: ignore[attr-defined]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_part_that_is_not_written_to_its_end_has_no_receipt_and_is_swept(tmp_path: Path, when: str):
    for step in range(5):
        sink = parts_sink(tmp_path / f"{step}")
        with ending_at(step, when), pytest.raises(Ended):
            write(sink, "torn", 1)
            raise Ended
        sink.publish(publication(write(sink, "again", 1)))
        assert seen(sink.path) == [1]  # type: ignore[attr-defined]
        assert left(sink.path) == []  # type: ignore[attr-defined]


def test_a_part_that_cannot_be_synced_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def failing(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SinkError, match=r"the folder .* cannot be written to .*Input/output error"):
        write(parts_sink(tmp_path), "one", 1)
    assert left(tmp_path) == []


# --- refused -----------------------------------------------------------------------------------------------------------


def test_other_parts_of_the_same_epoch_are_refused(tmp_path: Path):
    sink = parts_sink(tmp_path)
    sink.publish(publication(write(sink, "one", 1)))
    with pytest.raises(QueryError, match=r"contains other results of the same epoch.*restored from a backup; use"):
        sink.publish(publication(write(sink, "another", 1)))
    assert seen(tmp_path) == [1]


def test_half_of_a_publication_of_a_state_that_was_put_back_does_not_count(tmp_path: Path):
    sink = parts_sink(tmp_path)
    receipts = [write(sink, "one", 1), write(sink, "two", 2)]
    with ending_at(1, "after"), pytest.raises(Ended):
        sink.publish(publication(*receipts))
    assert list(tmp_path.glob("_staging*/epoch*/*one*")), "one part was moved"
    sink.publish(publication(write(sink, "other", 5)))
    assert seen(tmp_path) == [5]


def test_parts_that_are_gone_or_damaged_are_named(tmp_path: Path):
    sink = parts_sink(tmp_path)
    receipts = [write(sink, "one", 1), write(sink, "two", 2)]
    staged = tmp_path / f"_staging-result-0-{QUERY}" / "000000003.two.part"
    whole = staged.read_bytes()
    staged.write_bytes(whole[:-1])
    with pytest.raises(
        SinkError, match=rf"the part two has {len(whole) - 1} bytes, but it was written with {len(whole)}"
    ):
        sink.publish(publication(*receipts))
    (tmp_path / f"_staging-result-0-{QUERY}" / EPOCH / "part-00001-two.parquet").unlink()
    with pytest.raises(SinkError, match="the part two is missing"):
        sink.publish(publication(*receipts))
    assert seen(tmp_path) == []
    with pytest.raises(
        SinkError, match=r"neither in .* nor in the folder where they were written.*driver and tasks share it"
    ):
        parts_sink(tmp_path / "elsewhere").publish(publication({**receipts[0], "folder": str(tmp_path / "x")}))


def test_a_sink_that_was_given_another_folder_publishes_where_the_parts_are(tmp_path: Path):
    receipts = [write(parts_sink(tmp_path / "old"), "one", 1)]
    for _ in range(2):
        parts_sink(tmp_path / "new").publish(publication(*receipts))
        assert seen(tmp_path / "old") == [1] and not (tmp_path / "new").exists()
    (tmp_path / "old").rename(tmp_path / "new")
    parts_sink(tmp_path / "new").publish(publication(*receipts))
    assert seen(tmp_path / "new") == [1] and not (tmp_path / "old").exists()


@pytest.mark.parametrize("receipt", [None, {}, {"folder": "/", "name": "../../x", "rows": 1, "bytes": 1}, 7])
def test_receipts_that_nobody_gave_are_refused(tmp_path: Path, receipt: Any):
    with pytest.raises(hr.HeadraceError, match="the receipt"):
        parts_sink(tmp_path).publish(publication(receipt))


def test_arguments_that_cannot_be_meant(tmp_path: Path):
    assert sinks.wants_order(sinks.parquet(tmp_path, parts=True, ordered=True))
    assert not sinks.wants_order(sinks.parquet(tmp_path, parts=True))
    (tmp_path / "file").write_text("")
    with pytest.raises(QueryError, match="is a file; give a folder"):
        sinks.parquet(tmp_path / "file", parts=True)


class Holding:
    """A part sink that holds something."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def write(self, part: Part) -> Any:
        return self.held

    def publish(self, publication: Publication) -> None: ...


def test_a_sink_that_cannot_be_sent_to_tasks_is_refused(tmp_path: Path):
    shipping.check_shipped(sinks.parquet(tmp_path, parts=True))
    with pytest.raises(
        QueryTypeError, match=r"is sent to tasks to write parts, but it cannot be pickled: .*lock.*open connections"
    ):
        shipping.check_shipped(Holding(threading.Lock()))


# --- in a run ----------------------------------------------------------------------------------------------------------

STREAM = table_stream(numbered(1, 2, 3, 4, 5), name="s")
EVENS = STREAM.filter("v % 2 = 0")


@contextmanager
def running(folder: Path, sink: Any, query: Any = STREAM, **options: Any) -> Iterator[LocalRun]:
    run = LocalRun(query, folder, sink=sink, store=StateStore.open(folder, fsync=False), **options)
    try:
        yield run
    finally:
        run.close()


def test_the_outbox_holds_receipts_and_no_blocks(tmp_path: Path):
    sink = parts_sink(tmp_path / "out")
    with running(tmp_path / "state", sink) as run:
        run.epoch(numbered(1, 2, 3), splitters=2)
        assert run.store.last is not None
        assert [(output.part, output.content.rows) for output in run.store.last.outbox] == [(0, 1), (1, 2)]
        assert run.store.last.live_blocks() == ()
        assert run.driver.progress.results_out == 3
    assert seen(tmp_path / "out") == [1, 2, 3]


def test_late_tuples_go_to_a_sink_of_either_kind(tmp_path: Path):
    with running(tmp_path / "state", sinks.memory(), late=parts_sink(tmp_path / "late")) as run:
        run.epoch(numbered(5, 6))
        run.epoch(numbered(7, 1))
    assert [row["v"] for row in pq.read_table(tmp_path / "late").to_pylist()] == [1]
    assert pq.read_table(tmp_path / "late")["_reason"].to_pylist() == ["late"]


def test_two_attempts_of_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The first attempt did all its work, and nobody heard of it."""

    def twice(epoch: Any, windows: Any, storage: Any) -> Any:
        for partition, given in enumerate(windows):
            lost = list(run_splitter(epoch, Task(0, partition, 7, storage, BlockReader(storage)), given))
            assert any(message.kind == Report.kind for message in lost)
        return execute(epoch, windows, storage)

    execute = in_process.execute_locally
    monkeypatch.setattr("headrace.testing.local_run.execute_locally", twice)
    with running(tmp_path / "state", parts_sink(tmp_path / "out")) as run:
        run.epoch(numbered(1, 2, 3), splitters=2)
        run.epoch(numbered(4))
    assert seen(tmp_path / "out") == [1, 2, 3, 4]
    assert left(tmp_path / "out") == []


def test_a_disk_that_is_full_names_the_sink_and_commits_nothing(tmp_path: Path):
    sink = parts_sink(tmp_path / "out")
    many = numbered(*range(1, 100_001))
    with running(tmp_path / "state", sink) as run:
        run.epoch(numbered(1))
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
            with pytest.raises(
                SinkError, match=r"the sink parquet\(.*out', parts=True\) of result-0 failed to write a part"
            ):
                run.epoch(many)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert run.store.last is not None and run.store.last.number == 0
        assert left(tmp_path / "out") == []
        run.epoch(many)
    assert len(seen(tmp_path / "out")) == 100_001


def test_what_a_kill_in_the_first_epoch_leaves_is_known_to_be_ours(tmp_path: Path):
    """Before the first commit a state has no manifest to be named by."""
    sink = parts_sink(tmp_path / "out")
    for _ in range(2):
        with running(tmp_path / "state", sink) as run:
            sink.write(Part(run.store.state_id, 0, "result-0", "killed", numbered(1)))
    with running(tmp_path / "state", sink) as run:
        run.epoch(numbered(1))
        assert run.store.storage.list("blocks") == [head_name(0)], "the note of the name is gone"
    assert seen(tmp_path / "out") == [1] and left(tmp_path / "out") == []


def test_a_task_that_outlives_its_collect_leaves_no_part(tmp_path: Path):
    """The state of a collect that failed is removed, then its parts are discarded; a part may come after that."""
    sink, storage = parts_sink(tmp_path / "out"), LocalStorage(tmp_path / "gone")
    task = Task(0, 0, 0, storage, BlockReader(storage))
    other = write(sink, "other", 1, query=OTHER)
    epoch: Any = SimpleNamespace(state_id=QUERY, number=0, bounded=True)
    with pytest.raises(SinkError, match="holds no state"):
        write_part(epoch, task, sink, "result-0", numbered(1))
    assert left(tmp_path / "out") == [f"_staging-result-0-{OTHER}/000000003.{other['name']}.part"]


def test_a_task_of_a_run_never_discards_the_parts_of_other_tasks(tmp_path: Path):
    """A run can be started again, and other tasks may have reported their receipts."""
    sink, storage = parts_sink(tmp_path / "out"), LocalStorage(tmp_path / "gone")
    task = Task(0, 0, 0, storage, BlockReader(storage))
    epoch: Any = SimpleNamespace(state_id=QUERY, number=0, bounded=False)
    for _ in range(2):
        write_part(epoch, task, sink, "result-0", numbered(1))
    assert len(left(tmp_path / "out")) == 2


def test_a_run_goes_on_with_a_sink_that_takes_parts_from_now_on(tmp_path: Path):
    """What was delivered as a file, or was about to be, comes once."""
    out = tmp_path / "out"
    with running(tmp_path / "state", sinks.parquet(out)) as run:
        run.epoch(numbered(1, 2))
    for _ in range(2):
        with running(tmp_path / "state", parts_sink(out)):
            assert seen(out) == [1, 2]
    (out / next(out.glob("*.parquet"))).unlink()  # as if it had never been delivered
    for sink in (parts_sink(out), parts_sink(out), sinks.parquet(out), parts_sink(out)):
        with running(tmp_path / "state", sink):
            assert seen(out) == [1, 2]
    with running(tmp_path / "state", parts_sink(out)) as run:
        run.epoch(numbered(3))
    assert seen(out) == [1, 2, 3]


def test_a_sink_that_takes_parts_can_be_left_when_its_run_ended_in_order(tmp_path: Path):
    """It has published all that it has; of a run that was killed nobody knows."""
    out = tmp_path / "out"
    with running(tmp_path / "state", parts_sink(out)) as run:
        run.epoch(numbered(1))
        run.store.delivered = None  # as if it were killed before it knew
    with pytest.raises(StateMismatch, match=r"newest result-0 was written in parts.*start with it again and stop"):
        LocalRun(STREAM, tmp_path / "state", sink=sinks.parquet(out))
    with running(tmp_path / "state", parts_sink(out)):
        pass
    for number in (2, 3):
        with running(tmp_path / "state", sinks.parquet(out)) as run:
            run.epoch(numbered(number))
    with running(tmp_path / "state", parts_sink(out)) as run:
        run.epoch(numbered(4))
    assert seen(out) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("receipt", "words"),
    [
        (object(), "not JSON serializable"),
        (float("nan"), "not JSON compliant"),
        ("x" * LONGEST_RECEIPT, "a receipt has"),
    ],
)
def test_receipts_are_small_plain_json(tmp_path: Path, receipt: Any, words: str):
    with running(tmp_path / "state", Holding(receipt)) as run, pytest.raises(SinkError, match=words):
        run.epoch(numbered(1))


class Recorded:
    """Any part sink of a user's own: told of every commit, again after a start."""

    def __init__(self) -> None:
        self.parts: dict[str, pa.Table] = {}
        self.published: list[tuple[int, list[Any]]] = []

    def write(self, part: Part) -> Any:
        self.parts[part.name] = part.table
        return {"name": part.name}

    def publish(self, publication: Publication) -> None:
        self.published.append(
            (publication.epoch, [self.parts[r["name"]]["v"].to_pylist() for r in publication.receipts])
        )


def test_a_sink_of_ones_own_is_told_of_every_commit(tmp_path: Path):
    sink = Recorded()
    for values in ((1, 2), (3,), (4, 6)):
        with running(tmp_path / "state", sink, EVENS) as run:
            run.epoch(numbered(*values))
    assert sink.published == [(0, [[2]]), (0, [[2]]), (1, []), (1, []), (2, [[4, 6]])]


def test_a_sink_that_fails_to_publish_stops_the_run_and_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sink = Recorded()
    with running(tmp_path / "state", sink) as run:
        monkeypatch.setattr(sink, "parts", {})
        monkeypatch.setattr(Recorded, "write", lambda self, part: {"name": part.name})
        with pytest.raises(SinkError, match=r"the sink of result-0 failed in epoch 0: KeyError.*delivered again"):
            run.epoch(numbered(1))
        with pytest.raises(hr.HeadraceError, match="lost its folder"):
            run.epoch(numbered(2))


def test_the_examples_in_the_manual(tmp_path: Path):
    manual = (Path(__file__).parents[3] / "docs" / "USING.md").read_text()
    section = manual.partition("## Where results go")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "USING.md", "exec"), names)
    query, counting, out = STREAM.map(n="v * 10"), names["Counting"](), tmp_path / "out"
    out.mkdir()
    for sink in (counting, names["Lists"](out)):
        assert sinks.is_sink(sink)
        for values in ((1, 2), (3,)):  # the second start delivers the first epoch again
            with running(tmp_path / type(sink).__name__, sink, query) as run:
                run.epoch(numbered(*values), splitters=2)
    assert list(counting.rows.values()) == [2, 1]
    shipping.check_shipped(sink)
    listed = [json.loads(path.read_text()) for path in sorted(out.glob("*-result-0-*.json"))]
    found = [[int(n) for name in names for n in (out / name).read_text().split()] for names in listed]
    assert found == [[10, 20], [30]]


def test_an_epoch_that_was_taken_and_removed_is_not_missed(tmp_path: Path):
    """Its readers may remove it; a run that starts again publishes its newest epoch once more."""
    sink = parts_sink(tmp_path)
    first = publication(write(sink, "one", 1), write(sink, "two", 2))
    sink.publish(first)
    (tmp_path / EPOCH / "_SUCCESS").touch()
    (tmp_path / EPOCH / "part-00000-one.parquet").unlink()
    sink.publish(first)
    shutil.rmtree(tmp_path / EPOCH)
    sink.publish(first)
    parts_sink(tmp_path / "another").publish(first)
    assert seen(tmp_path) == [] and left(tmp_path) == []
    other = publication(write(sink, "three", 3))
    sink.publish(other)  # of a state that was put back to an earlier time
    assert seen(tmp_path) == [3]


def test_what_a_sink_opens_to_publish_is_not_sent_to_tasks(tmp_path: Path):
    class Connecting(ParquetParts):
        def publish(self, publication: Publication) -> None:
            self.connection = threading.Lock()  # nothing that could be pickled
            super().publish(publication)

    with running(tmp_path / "state", Connecting(tmp_path / "out")) as run:
        run.epoch(numbered(1))
        run.epoch(numbered(2))
        assert hasattr(run.driver.sinks["result-0"], "connection")
        for sink in run.driver._deliverer.in_tasks.values():
            shipping.check_shipped(sink)


# --- as a source -------------------------------------------------------------------------------------------------------


def test_files_takes_parts_once_folders_are_there(tmp_path: Path):
    sink, origin, spent = parts_sink(tmp_path), FilesOrigin(None, tmp_path, None), dict[str, int]()
    (tmp_path / "epoch-empty").mkdir()
    os.utime(tmp_path / "epoch-empty", (1, 1))
    (tmp_path / "other").mkdir()
    pq.write_table(numbered(9), tmp_path / "other" / "part-0.parquet")
    sink.publish(publication(write(sink, "one", 1), write(sink, "two", 2)))
    pq.write_table(numbered(9), tmp_path / EPOCH / "_hidden.parquet")
    pq.write_table(numbered(9), tmp_path / EPOCH / "other.parquet")
    pq.write_table(numbered(3), tmp_path / "plain.parquet")
    names = [name for name, _ in origin.names(frozenset(), spent)]
    assert names == [f"{EPOCH}/part-00000-one.parquet", f"{EPOCH}/part-00001-two.parquet", "plain.parquet"]
    assert set(spent) == {"epoch-empty"}
    assert [name for name, _ in origin.names({names[0]}, spent)] == names[1:]
    assert set(spent) == {"epoch-empty"}
    assert [name for name, _ in origin.names(set(names), spent)] == []
    assert set(spent) == {"epoch-empty"}, "it may change again at once"
    os.utime(tmp_path / EPOCH, (1, 1))
    assert [name for name, _ in origin.names(set(names), spent)] == []
    assert set(spent) == {"epoch-empty", EPOCH}, "it is not looked into again"
    assert origin.table()["v"].to_pylist() == [1, 2, 3]


def test_files_looks_again_into_a_folder_that_changed_and_past_one_that_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    origin, spent = FilesOrigin(None, tmp_path, None), dict[str, int]()
    (tmp_path / "epoch-1").mkdir()
    os.utime(tmp_path / "epoch-1", (1, 1))
    assert origin.names(frozenset(), spent) == [] and spent == {"epoch-1": 1_000_000_000}
    pq.write_table(numbered(7), tmp_path / "epoch-1" / "part-0.parquet")
    assert [name for name, _ in origin.names(frozenset(), spent)] == ["epoch-1/part-0.parquet"]
    listed = files._listed

    def and_removed(folder: Path) -> list[os.DirEntry[str]]:
        found = listed(folder)
        shutil.rmtree(tmp_path / "epoch-1")
        return found

    monkeypatch.setattr(files, "_listed", and_removed)
    assert origin.names(frozenset(), {}) == []


def test_a_file_sink_knows_results_that_came_as_parts(tmp_path: Path):
    sink, plain = parts_sink(tmp_path), sinks.parquet(tmp_path)
    sink.publish(publication(write(sink, "one", 1)))
    plain.deliver(Delivery(QUERY, 3, "result-0", numbered(1)))
    assert seen(tmp_path) == [1]
    with pytest.raises(QueryError, match="contains other results"):
        plain.deliver(Delivery(QUERY, 3, "result-0", numbered(1, 2)))
    with pytest.raises(QueryError, match="contains other results"):
        plain.deliver(Delivery(QUERY, 3, "result-0", numbered(2)))


def test_a_part_sink_knows_results_that_came_as_a_file(tmp_path: Path):
    sink, plain = parts_sink(tmp_path), sinks.parquet(tmp_path)
    plain.deliver(Delivery(QUERY, 3, "result-0", numbered(1, 2)))
    sink.publish(publication(write(sink, "one", 1), write(sink, "two", 2)))
    assert seen(tmp_path) == [1, 2] and left(tmp_path) == []
    with pytest.raises(QueryError, match="contains other results"):
        sink.publish(publication(write(sink, "one", 1), write(sink, "three", 3)))


# --- what comes again --------------------------------------------------------------------------------------------------

NAN = float("nan")
NESTED: dict[str, tuple[pa.DataType, Any, list[Any]]] = {  # type, value, other values
    "float": (pa.float64(), NAN, [1.0, None]),
    "list": (pa.list_(pa.int64()), [1, 2, 3], [[7, 8, 9], [1, 2], [1, 2, 3, 4], [1, None, 3], [], None]),
    "floats": (pa.list_(pa.float64()), [NAN, 0.0], [[NAN, -0.0], [0.0, NAN], [NAN, None]]),
    "struct": (
        pa.struct([("a", pa.float32()), ("b", pa.string())]),
        {"a": NAN, "b": "x"},
        [{"a": NAN, "b": "y"}, None],
    ),
    "map": (pa.map_(pa.string(), pa.float64()), [("k", NAN)], [[("l", NAN)], [("k", 1.0)], [], None]),
    "deep": (
        pa.list_(pa.struct([("a", pa.list_(pa.map_(pa.int64(), pa.list_(pa.float64()))))])),
        [{"a": [[(1, [NAN, None])]]}, None],
        [[{"a": [[(1, [None, NAN])]]}, None], [{"a": [[(2, [NAN, None])]]}, None], [None, {"a": [[(1, [NAN, None])]]}]],
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_delivery_that_is_repeated_is_compared_with_what_is_there_at_every_depth(name: str, tmp_path: Path):
    kind, value, others = NESTED[name]
    sink = sinks.parquet(tmp_path)

    def deliver(*values: Any) -> None:
        times = pa.array([0] * len(values), pa.timestamp("us", "UTC"))
        sink.deliver(Delivery(QUERY, 3, "result-0", pa.table({"ts": times, "x": pa.array(values, kind)})))

    for _ in range(2):
        deliver(value, None, value)
    for other in others:
        with pytest.raises(QueryError, match="contains other results"):
            deliver(value, None, other)


def test_a_file_that_is_not_what_was_delivered_is_named(tmp_path: Path):
    sink = sinks.parquet(tmp_path)
    sink.deliver(Delivery(QUERY, 3, "result-0", numbered(1)))
    (tmp_path / f"{EPOCH}.parquet").write_text("something else")
    with pytest.raises(SinkError, match=rf"{EPOCH}.parquet' cannot be read, .*; remove it and start again"):
        sink.deliver(Delivery(QUERY, 3, "result-0", numbered(1)))
