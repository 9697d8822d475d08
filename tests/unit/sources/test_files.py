"""Folders of columnar files as a source: order, names, formats, damage, and what has been taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import QueryError, SourceError
from headrace.query.nodes import Source
from headrace.run.intake import Intake
from headrace.sources import file_ledger as ledger_module
from headrace.sources.file_ledger import FileLedger, TakenFile
from headrace.sources.files import FilesOrigin, checked_folder, read_file, read_schema
from headrace.state import BlockReader, LocalStorage
from headrace.state.manifest import FolderState, SourceState
from headrace.state.merge_planning import FAN_IN
from headrace.stream import node_of
from tests.helpers import numbered

SECOND = 1_000_000


def write(path: Path, rows: pa.Table, age: int | None = None) -> Path:
    """Write a file under a hidden name and rename it; with `age`, as if modified so many nanoseconds after 1970."""
    hidden = path.with_name("_" + path.name)
    if path.suffix == ".parquet":
        pq.write_table(rows, hidden)
    else:
        feather.write_feather(rows, str(hidden), compression="uncompressed")
    if age is not None:
        os.utime(hidden, ns=(age, age))
    return hidden.rename(path)


def origin(folder: Path, files_per_epoch: int | None = None) -> FilesOrigin:
    return FilesOrigin(None, folder, files_per_epoch)


def names(folder: Path) -> list[str]:
    return [path.name for path in origin(folder).listing()]


# --- which files, in which order -------------------------------------------------------------------------------------


def test_order_is_modification_time_then_name(tmp_path: Path):
    for name, age in [("c", 10**18), ("a", 10**18 + 1), ("b", 10**18), ("z", 10**18 - 5)]:
        write(tmp_path / f"{name}.parquet", numbered(1), age)
    assert names(tmp_path) == ["z.parquet", "b.parquet", "c.parquet", "a.parquet"]
    left = origin(tmp_path).names(besides={"b.parquet", "z.parquet"})
    assert [name for name, _ in left] == ["c.parquet", "a.parquet"]


def test_a_folder_that_was_copied_is_taken_by_name(tmp_path: Path):
    for name, age in [("2", 10**18), ("10", 10**18 - 1), ("1", 10**18 + 1)]:
        write(tmp_path / f"{name}.parquet", numbered(1), age)
    node = node_of(hr.files(None, tmp_path, time="ts", order="name"))
    assert isinstance(node, Source)
    assert [path.stem for path in node.origin.listing()] == ["1", "10", "2"]
    with pytest.raises(QueryError, match=r"one of modified, name; found 'size'"):
        hr.files(None, tmp_path, time="ts", order="size")


def test_order_sees_single_nanoseconds(tmp_path: Path):
    for index in (3, 1, 2):
        write(tmp_path / f"{9 - index}.parquet", numbered(1), 1_700_000_000_000_000_000 + index)
    assert names(tmp_path) == ["8.parquet", "7.parquet", "6.parquet"]


def test_hidden_and_foreign_names_are_ignored(tmp_path: Path):
    write(tmp_path / "good.parquet", numbered(1))
    for name in ("_part.parquet", ".part.parquet", "notes.txt", "parquet", "x.parquet.tmp", "x.PARQUET", "_SUCCESS"):
        (tmp_path / name).write_bytes(b"not for us")
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "dangling.parquet").symlink_to(tmp_path / "nowhere")
    assert names(tmp_path) == ["good.parquet"]


@pytest.mark.parametrize(
    "name", ["a b.parquet", "a%20b.parquet", "ä'\"#?.arrow", "a=1.feather", "-rf.parquet", "x\ny.parquet"]
)
def test_names_are_taken_as_they_are(tmp_path: Path, name: str):
    write(tmp_path / name, numbered(1, 2))
    found = origin(tmp_path)
    assert found.listing() == [tmp_path / name]
    assert found.table().equals(numbered(1, 2))


def test_space_and_percent_twenty_are_two_files(tmp_path: Path):
    write(tmp_path / "a b.parquet", numbered(1), 1)
    write(tmp_path / "a%20b.parquet", numbered(2), 2)
    assert origin(tmp_path).table()["v"].to_pylist() == [1, 2]


def test_a_folder_named_like_a_partition_adds_no_column(tmp_path: Path):
    folder = tmp_path / "k=7"
    folder.mkdir()
    write(folder / "a.parquet", numbered(1))
    assert read_file(folder / "a.parquet").column_names == ["ts", "v"]


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
def test_every_format_gives_the_same_rows_and_schema(tmp_path: Path, ending: str):
    path = write(tmp_path / f"a{ending}", numbered(1, 2, 3).replace_schema_metadata({"written": "by somebody"}))
    assert read_file(path).equals(numbered(1, 2, 3))
    assert read_file(path).schema.metadata is None
    assert read_schema(path).equals(numbered().schema, check_metadata=True)


def test_compressed_feather(tmp_path: Path):
    feather.write_feather(numbered(1, 2), str(tmp_path / "a.feather"), compression="zstd")
    assert read_file(tmp_path / "a.feather").equals(numbered(1, 2))


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
def test_a_file_without_rows(tmp_path: Path, ending: str):
    assert read_file(write(tmp_path / f"a{ending}", numbered())).equals(numbered())


# --- damage ----------------------------------------------------------------------------------------------------------


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _text(path: Path) -> None:
    path.write_text("ts,v\n1,2\n" * 50)


@pytest.mark.parametrize("ending", [".parquet", ".arrow", ".feather"])
@pytest.mark.parametrize("damage", [_empty, _truncate, _text])
def test_a_damaged_file_is_named(tmp_path: Path, ending: str, damage: Callable[[Path], None]):
    path = write(tmp_path / f"bad file{ending}", numbered(*range(100)))
    damage(path)
    for read in (read_file, read_schema):
        with pytest.raises(SourceError) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "replace the file" in str(caught.value)


def _text_array(offsets: list[int], data: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, ending: str):
    path = write(tmp_path / f"a{ending}", pa.table({"k": _text_array([0, 2], b"\xff\xfe")}))
    with pytest.raises(SourceError, match=f"a{ending}'.*UTF8"):
        read_file(path)


def test_offsets_that_lead_out_of_the_file_are_refused(tmp_path: Path):
    path = write(tmp_path / "a.arrow", pa.table({"k": _text_array([0, 1, 2, 3], b"abc")}))
    data = path.read_bytes()
    good = np.array([0, 1, 2, 3], np.int32).tobytes()
    assert data.count(good) == 1
    path.write_bytes(data.replace(good, np.array([0, 1, 1_000_000, 3], np.int32).tobytes()))
    with pytest.raises(SourceError, match=r"a\.arrow'"):
        read_file(path)


def test_a_file_that_is_gone_is_named(tmp_path: Path):
    with pytest.raises(SourceError, match=r"a\.parquet' was deleted before .*restore it"):
        read_file(tmp_path / "a.parquet")


def test_a_folder_that_is_gone_is_named(tmp_path: Path):
    folder = tmp_path / "in"
    folder.mkdir()
    found = origin(folder)
    folder.rmdir()
    with pytest.raises(SourceError, match=r"the folder '.*in'"):
        found.entries()


def test_a_file_that_goes_while_the_folder_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "stays.parquet", numbered(1))
    gone = write(tmp_path / "goes.parquet", numbered(2))
    scandir = os.scandir

    def hasty(path: Any) -> Any:
        entries = scandir(path)
        listed = list(entries)
        gone.unlink(missing_ok=True)
        entries.close()
        return _Entries(listed)

    monkeypatch.setattr(os, "scandir", hasty)
    assert names(tmp_path) == ["stays.parquet"]


class _Entries(list):
    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass


# --- folders -----------------------------------------------------------------------------------------------------------


def test_an_empty_folder_needs_a_schema(tmp_path: Path):
    with pytest.raises(QueryError, match="give schema="):
        hr.files(None, tmp_path, time="ts")  # type: ignore[arg-type]
    assert hr.files(None, tmp_path, time="ts", schema=numbered().schema).columns == ["ts", "v"]  # type: ignore[arg-type]
    assert origin(tmp_path).listing() == []


def test_a_folder_must_be_one(tmp_path: Path):
    with pytest.raises(QueryError, match="does not exist"):
        checked_folder(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(QueryError, match="is a file"):
        checked_folder(tmp_path / "file")


@pytest.mark.parametrize("count", [0, -1, 1.5, "3"])
def test_files_per_epoch_is_a_positive_number(tmp_path: Path, count: Any):
    with pytest.raises(QueryError, match="files_per_epoch"):
        hr.files(None, tmp_path, time="ts", files_per_epoch=count, schema=numbered().schema)  # type: ignore[arg-type]


def test_a_growing_folder(tmp_path: Path):
    found = origin(tmp_path)
    ledger = FileLedger(found, FolderState(), BlockReader(_storage(tmp_path / "state")))
    assert ledger.waiting() == []
    for round in range(3):
        write(tmp_path / f"{round}.parquet", numbered(round), round + 1)
        waiting = ledger.waiting()
        assert [file.name for file in waiting] == [f"{round}.parquet"]
        ledger.note_commit(ledger.state_after(_storage(tmp_path / "state"), round, waiting), waiting)
    assert ledger.waiting() == []


# --- the ledger --------------------------------------------------------------------------------------------------------


def _storage(root: Path) -> LocalStorage:
    root.mkdir(exist_ok=True)
    storage = LocalStorage(root, fsync=False)
    storage.create()
    return storage


def _files(count: int, size: int = 10) -> list[TakenFile]:
    return [TakenFile(f"{index:03d}.parquet", size, index) for index in range(count)]


def test_files_per_epoch(tmp_path: Path):
    ledger = FileLedger(origin(tmp_path, 3), FolderState(), BlockReader(_storage(tmp_path / "state")))
    assert [file.name for file in ledger.choose(_files(10))] == ["000.parquet", "001.parquet", "002.parquet"]
    assert ledger.choose(_files(2)) == _files(2)
    assert ledger.choose([]) == []


def test_an_epoch_is_bounded_by_bytes_but_takes_at_least_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ledger_module, "MOST_EPOCH_BYTES", 35)
    ledger = FileLedger(origin(tmp_path), FolderState(), BlockReader(_storage(tmp_path / "state")))
    assert len(ledger.choose(_files(10))) == 3
    assert len(ledger.choose(_files(10, size=100))) == 1


def test_the_ledger_merges_its_runs_and_forgets_nothing(tmp_path: Path):
    storage = _storage(tmp_path / "state")
    reader = BlockReader(storage)
    folder = tmp_path / "in"
    folder.mkdir()
    ledger, longest = FileLedger(origin(folder), FolderState(), reader), 0
    for epoch in range(4 * FAN_IN):
        path = write(folder / f"{epoch}.parquet", numbered(epoch), epoch + 1)
        waiting = ledger.waiting()
        assert [file.name for file in waiting] == [path.name]
        ledger.note_commit(ledger.state_after(storage, epoch, waiting), waiting)
        longest = max(longest, len(ledger.state.taken))
    assert longest <= FAN_IN
    again = FileLedger(origin(folder), ledger.state, BlockReader(storage))
    assert again.waiting() == []
    taken = [name for b in ledger.state.taken for name in reader.open(b).table["name"].to_pylist()]
    assert sorted(taken) == sorted(f"{epoch}.parquet" for epoch in range(4 * FAN_IN))
    write(folder / "new.parquet", numbered(1))
    assert [file.name for file in again.waiting()] == ["new.parquet"]


def test_an_epoch_without_files_keeps_the_ledger_as_it_is(tmp_path: Path):
    storage = _storage(tmp_path / "state")
    ledger = FileLedger(origin(tmp_path), FolderState(), BlockReader(storage))
    ledger.note_commit(ledger.state_after(storage, 0, _files(2)), _files(2))
    before = ledger.state
    assert ledger.state_after(storage, 1, []) == before
    assert storage.list("blocks") == [before.taken[0].name]


def test_a_taken_file_that_changes_later_is_not_read_again(tmp_path: Path):
    """A file is complete when its name appears: what happens to it afterwards is not looked at."""
    storage = _storage(tmp_path / "state")
    ledger = FileLedger(origin(tmp_path), FolderState(), BlockReader(storage))
    write(tmp_path / "a.parquet", numbered(1), 1)
    ledger.note_commit(ledger.state_after(storage, 0, ledger.waiting()), ledger.waiting())
    write(tmp_path / "a.parquet", numbered(1, 2), 2)
    assert ledger.waiting() == []


# --- a source far ahead waits ------------------------------------------------------------------------------------------


class Waiting:
    """A ledger of a folder in which so many files wait."""

    partitions, must_be_noted = (), False

    def __init__(self, files: int) -> None:
        self.files = files

    def waiting(self) -> list[int]:
        return [*range(self.files)]

    def choose(self, waiting: Sequence[int], held: Sequence[str]) -> Sequence[int]:
        return [] if "" in held else waiting

    def remaining(self, waiting: Sequence[int], chosen: Sequence[int]) -> dict[str, int]:
        return {"": len(waiting) - len(chosen)}


def read_now(
    watermarks: dict[str, int],
    longest: int | None,
    *,
    slow: int = 1,
    lateness: int = 0,
    first: bool = False,
    idle: str = "",
) -> set[str]:
    """The sources that the next epoch reads; `slow`: files that wait of the slow one, `lateness`: how late its tuples may be."""
    ledgers: Any = {name: Waiting(slow if name == "slow" else 1) for name in ("slow", "fast")}
    sources: Any = {name: SimpleNamespace(lateness=lateness if name == "slow" else 0) for name in ledgers}
    last: Any = SimpleNamespace(
        sources={name: SourceState(watermark=mark, idle=name == idle) for name, mark in watermarks.items()}
    )
    taken = Intake(sources, ledgers, longest).take(None if first else last)
    return {name for name, items in taken.items() if items}


def test_a_source_far_ahead_waits_for_the_one_behind():
    assert read_now({"slow": 0, "fast": 61 * SECOND}, 60 * SECOND) == {"slow"}


def test_a_source_ahead_by_no_more_than_the_longest_window_goes_on():
    assert read_now({"slow": 0, "fast": 60 * SECOND}, 60 * SECOND) == {"slow", "fast"}


def test_a_source_that_may_be_late_is_not_behind():
    watermarks = {"slow": 0, "fast": 3600 * SECOND}
    assert read_now(watermarks, 60 * SECOND, lateness=3600 * SECOND) == {"slow", "fast"}


def test_a_source_does_not_wait_for_one_that_has_nothing():
    assert read_now({"slow": 0, "fast": 3600 * SECOND}, 60 * SECOND, slow=0) == {"fast"}


def test_a_folder_that_is_idle_is_not_held_back():
    assert read_now({"slow": 0, "fast": 3600 * SECOND}, 60 * SECOND, idle="fast") == {"slow", "fast"}


def test_without_windows_no_source_waits():
    assert read_now({"slow": 0, "fast": 3600 * SECOND}, None) == {"slow", "fast"}


def test_no_source_waits_before_the_first_epoch():
    assert read_now({}, 60 * SECOND, first=True) == {"slow", "fast"}


# --- what the reference sees -------------------------------------------------------------------------------------------


def test_the_reference_reads_what_the_engine_reads(tmp_path: Path):
    """Files with other encodings and orders of the same columns; none at all where the schema is given."""
    first = pa.table({"ts": numbered(1)["ts"], "s": pa.array(["a"], pa.string())})
    write(tmp_path / "1.parquet", first, 1)
    write(tmp_path / "2.arrow", first.select(["s", "ts"]), 2)
    write(tmp_path / "3.arrow", first.set_column(1, "s", first["s"].cast(pa.large_string())), 3)
    write(tmp_path / "4.arrow", first.set_column(1, "s", first["s"].dictionary_encode()), 4)
    stream = hr.files(None, tmp_path, time="ts", name="s")  # type: ignore[arg-type]
    assert hr.reference(stream).num_rows == 4
    (tmp_path / "empty").mkdir()
    empty = hr.files(None, tmp_path / "empty", time="ts", schema=first.schema)  # type: ignore[arg-type]
    assert hr.reference(empty).num_rows == 0
    write(tmp_path / "5.parquet", numbered(5), 5)
    with pytest.raises(SourceError, match=r"the schema of s changed: it has ts, v, the query was built for ts, s"):
        hr.reference(stream)


@pytest.mark.parametrize("kind", [pa.list_view(pa.int64()), pa.large_list_view(pa.int64())])
def test_views_of_lists_are_refused(kind: pa.DataType, tmp_path: Path):
    feather.write_feather(numbered(1).append_column("l", pa.array([[1, 2]], kind)), str(tmp_path / "1.arrow"))
    with pytest.raises(hr.QueryTypeError, match=r"column 'l' has type .*list_view.*, which streams do not carry"):
        hr.files(None, tmp_path, time="ts")  # type: ignore[arg-type]


def test_very_many_files_are_chosen_from_quickly(tmp_path: Path):
    files = [TakenFile(f"{n}.parquet", 1000, n) for n in range(400_000)]
    chosen = FileLedger(origin(tmp_path), FolderState(), BlockReader(_storage(tmp_path / "state"))).choose(files)
    assert sum(f.bytes for f in chosen) <= ledger_module.MOST_EPOCH_BYTES < sum(f.bytes for f in chosen) + 1000


def test_a_name_that_is_not_utf8_is_named(tmp_path: Path):
    (tmp_path / os.fsdecode(b"\xff.parquet")).write_bytes(b"")
    with pytest.raises(SourceError, match=r"a name that is not UTF-8.*rename it"):
        FilesOrigin(None, tmp_path, None).listing()
