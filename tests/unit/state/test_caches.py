"""Caches: what is used is exactly what was left; anything else is told, and nothing fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import QueryError
from headrace.state import caches
from headrace.state.caches import COLD, DAMAGED, LOCKED, MARKED, NO_SPACE, STAMP, CacheUse, TableCache

RUN, OTHER = "a" * 32, "b" * 32
FIRST, SECOND = "1" * 32, "2" * 32
SIZES = {"index": 1000, "rows": 5000}
LARGE = 1 << 30

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="caches need Linux")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(caches.CACHE_VARIABLE, str(tmp_path))
    caches._KEPT.forget()
    yield tmp_path
    caches._KEPT.forget()


def take(use: CacheUse, stamp: str | None, **other: Any) -> TableCache:
    name = {"operator": "apply-1", "table": "cars", "shape": "x", "substream": 3, **other}
    return use.take(stamp=stamp, **name)


def left(stamp: str = FIRST, value: int = 7, **other: Any) -> Path:
    """A cache as a task leaves it; the file."""
    use = CacheUse(RUN, LARGE)
    cache = take(use, None, **other)
    for area in cache.areas(SIZES).values():
        area[:] = value
    cache.finish(stamp, None)
    use.close()
    caches._KEPT.forget()
    return use.path / cache.name


def found(stamp: str | None = FIRST, run: str = RUN, **other: Any) -> str | None:
    """Why a task that comes now cannot use the cache; None: it can, and finds what was left."""
    use = CacheUse(run, LARGE)
    try:
        cache = take(use, stamp, **other)
        if cache.why is None:
            assert cache.found is not None and {name: len(area) for name, area in cache.found.items()} == SIZES
            assert all((area == 7).all() for area in cache.found.values())
        return cache.why
    finally:
        use.close()
        caches._KEPT.forget()


# --- what is used ----------------------------------------------------------------------------------------------------


def test_what_was_left_is_found() -> None:
    assert found() == COLD
    path = left()
    assert found() is None
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_who_looks_at_it_and_dies_leaves_a_mark() -> None:
    left()
    assert found() is None
    assert found() == MARKED, "the task before had it, and never said that it was done"


def test_of_another_attempt_or_of_nobody() -> None:
    left()
    assert found(SECOND) == STAMP
    assert found(None) == STAMP
    assert found() is None, "who does not use it leaves no mark"


@pytest.mark.parametrize("other", [{"operator": "apply-2"}, {"table": "tolls"}, {"shape": "y"}, {"substream": 4}])
def test_of_something_else(other: dict[str, Any]) -> None:
    path, elsewhere = left(), left(**other)
    if path != elsewhere:
        shutil.copy(elsewhere, path)
    assert found() == DAMAGED


def test_of_another_run(place: Path) -> None:
    path = left()
    use = CacheUse(OTHER, LARGE)
    use.close()
    shutil.copy(path, use.path / path.name)
    assert found(run=OTHER) == DAMAGED


def test_a_bit_of_the_header() -> None:
    path = left()
    whole = path.read_bytes()
    front = caches._FRONT + len('{"index": 1000, "rows": 5000}')
    for bit in range(0, 8 * front, 7):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        assert found() == DAMAGED, bit


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8191, 8193, 12288])
def test_another_size(size: int) -> None:
    path = left()
    assert path.stat().st_size == 8192
    os.truncate(path, size)
    assert found() == DAMAGED


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = left()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert found() == DAMAGED


# --- tables that stay open in a process --------------------------------------------------------------------------------


def used(stamp: str | None, then: str, table: Any = None) -> TableCache:
    use = CacheUse(RUN, LARGE)
    cache = take(use, stamp)
    if cache.why is not None:
        cache.areas(SIZES)
    cache.finish(then, cache.table or table)
    use.close()
    return cache


def test_a_table_that_a_process_had_open_is_given_back() -> None:
    table = object()
    first = used(None, FIRST, table)
    assert used(FIRST, SECOND) is first and first.table is table and first.found is None


def test_not_if_another_process_changed_it_since() -> None:
    table = object()
    used(None, FIRST, table)
    child = os.fork()
    if not child:
        used(FIRST, SECOND, "another")
        os._exit(0)
    os.waitpid(child, 0)
    use = CacheUse(RUN, LARGE)
    cache = take(use, SECOND)
    assert cache.why is None and cache.table is None and cache.found is not None
    use.close()


def test_not_if_the_file_is_another(place: Path) -> None:
    table = object()
    cache = used(None, FIRST, table)
    path = next(place.iterdir()) / cache.name
    shutil.copy(path, f"{path}.copy")
    os.rename(f"{path}.copy", path)
    use = CacheUse(RUN, LARGE)
    assert take(use, FIRST).table is None
    use.close()
    used(None, FIRST, table)
    os.truncate(path, 4096)
    use = CacheUse(RUN, LARGE)
    assert take(use, FIRST).why == DAMAGED, "and nobody touches what is no longer there"
    use.close()


def test_what_is_mapped_takes_no_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    use = CacheUse(RUN, LARGE)
    for substream in range(300):
        cache = take(use, None, substream=substream)
        cache.areas(SIZES)
        cache.finish(FIRST, None)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    use.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_not_used_any_more_is_unmapped() -> None:
    use = CacheUse(RUN, LARGE)
    area = take(use, None).areas(SIZES)["rows"]
    use.close()

    def mapped() -> bool:
        return str(use.path) in Path("/proc/self/maps").read_text()

    view = area[10:20]
    del area
    assert mapped() and not view.any()
    del view
    assert not mapped()


# --- room ----------------------------------------------------------------------------------------------------------------


def test_a_table_that_grows_has_a_new_file() -> None:
    use = CacheUse(RUN, LARGE)
    cache = take(use, None)
    old = cache.areas(SIZES)
    old["rows"][:] = 7
    path = use.path / cache.name
    inode = path.stat().st_ino
    new = cache.areas({"rows": 100_000, "more": 3})
    assert path.stat().st_ino != inode and (old["rows"] == 7).all() and not any(area.any() for area in new.values())
    assert all(area.ctypes.data % 64 == 0 for area in (*old.values(), *new.values()))
    new["rows"][-1] = 1
    cache.finish(FIRST, None)
    use.close()
    caches._KEPT.forget()
    use = CacheUse(RUN, LARGE)
    again = take(use, FIRST)
    assert again.found is not None and again.found["rows"][-1] == 1 and len(again.found["more"]) == 3
    use.close()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_what_it_had_is_let_go_when_it_has_a_new_file_or_none(is_replaced: bool) -> None:
    left()
    use = CacheUse(RUN, LARGE)
    cache = take(use, FIRST)
    assert cache.found is not None
    if is_replaced:
        cache.areas({"rows": 100_000})
    else:
        cache.remove()
    assert cache.found is None
    assert "(deleted)" not in "".join(
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(use.path) in line
    )
    use.close()


def test_the_limit(place: Path) -> None:
    left()
    use = CacheUse(RUN, 20_000)
    cache = take(use, FIRST)
    areas = cache.areas({"rows": 30_000})
    assert len(areas["rows"]) == 30_000 and not areas["rows"].any() and areas["rows"].ctypes.data % 64 == 0
    assert cache.full == "the limit of 20,000 bytes is reached"
    cache.finish(SECOND, None)
    assert not (use.path / cache.name).exists(), "what was there is of no use"
    assert not take(use, None, substream=4).areas({"rows": 10_000})["rows"].any()
    assert sum(file.stat().st_size for file in use.path.iterdir()) <= 20_000
    use.close()
    assert found(SECOND) == COLD


def test_what_is_replaced_does_not_count_twice() -> None:
    left()
    for stamp in (SECOND, None):
        use = CacheUse(RUN, 20_000)
        cache = take(use, stamp)
        assert cache.why == STAMP
        cache.areas({"rows": 12_000})
        assert cache.full == ""
        cache.areas({"rows": 16_000})
        assert cache.full == ""
        cache.finish(FIRST, None)
        use.close()
        caches._KEPT.forget()


def test_many_tasks_keep_the_limit() -> None:
    """All have counted before any of them makes a file."""
    uses = [CacheUse(RUN, 1 << 20) for _ in range(8)]
    for number, use in enumerate(uses):
        take(use, None, substream=number).areas({"rows": 10})
    for number, use in enumerate(uses):
        take(use, None, substream=100 + number).areas({"rows": 300_000})
    assert 900_000 < sum(file.stat().st_size for file in uses[0].path.iterdir()) <= 1 << 20
    for use in uses:
        use.close()


@pytest.fixture
def ago(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock of caches back by so many seconds."""
    return lambda seconds: monkeypatch.setattr(
        caches, "time", SimpleNamespace(time=lambda: time.time() - seconds, monotonic=time.monotonic)
    )


def test_where_there_is_no_room_those_go_that_were_not_used_for_long(ago: Callable[[float], None]) -> None:
    ago(caches.LATELY + 200)
    oldest, second, third = (left(substream=number) for number in range(3))
    ago(caches.LATELY + 100)
    left(substream=1)  # used again
    (oldest.parent / f"{oldest.name}.new").write_bytes(bytes(3000))  # of somebody who was killed
    ago(0)
    recent = left(substream=9)
    there = sum(file.stat().st_size for file in oldest.parent.iterdir())
    use = CacheUse(RUN, there + 1000)
    cache = take(use, None, substream=10)
    cache.areas({"rows": 14_000})  # as much as two of them
    assert cache.full == ""
    assert not oldest.exists() and not third.exists() and second.exists() and recent.exists()
    assert [path.name for path in use.path.glob("*.new")] == []
    assert take(use, FIRST, substream=1).why is None
    use.close()


def test_what_was_used_lately_stays_and_what_is_new_has_no_room(ago: Callable[[float], None]) -> None:
    """Else every table would be gone when its turn comes, where there is not room for all."""
    ago(caches.LATELY - 50)
    paths = [left(substream=number) for number in range(3)]
    ago(0)
    use = CacheUse(RUN, sum(file.stat().st_size for file in paths[0].parent.iterdir()) + 1000)
    cache = take(use, None, substream=10)
    cache.areas({"rows": 14_000})
    assert "the limit of" in cache.full and all(path.exists() for path in paths)
    use.close()


def test_what_a_task_has_locked_does_not_go_for_lack_of_room(ago: Callable[[float], None]) -> None:
    ago(caches.LATELY + 200)
    mine, others, free = (left(substream=number) for number in range(3))
    there = sum(file.stat().st_size for file in mine.parent.iterdir())
    other = CacheUse(RUN, LARGE)
    assert take(other, FIRST, substream=1).why is None
    ago(0)
    use = CacheUse(RUN, there + 1000)
    assert use.lock(mine.name) is None  # taken, and not yet written
    cache = take(use, None, substream=10)
    cache.areas({"rows": 20_000})
    assert "the limit of" in cache.full
    assert mine.exists() and others.exists() and not free.exists()
    other.close()
    assert CacheUse(RUN, LARGE).lock(free.name) is None, "who removed it has let go of its name"
    use.close()


def test_what_is_used_while_somebody_looks_for_room_stays(
    ago: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ago(caches.LATELY + 200)
    path = left()
    ago(0)
    use, lock = CacheUse(RUN, 9000), CacheUse.lock
    cache = take(use, None, substream=10)

    def used_before(self: CacheUse, name: str) -> str | None:
        monkeypatch.setattr(CacheUse, "lock", lock)
        other = CacheUse(RUN, LARGE)
        again = take(other, FIRST)
        assert again.why is None
        again.finish(SECOND, None)
        other.close()
        return lock(self, name)

    monkeypatch.setattr(CacheUse, "lock", used_before)
    cache.areas(SIZES)
    assert CacheUse.lock is lock and path.exists() and "the limit of" in cache.full
    use.close()


def test_who_looks_for_room_in_vain_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    path = left()
    use, looks = CacheUse(RUN, 5000), []
    last_use = CacheUse._last_use
    monkeypatch.setattr(CacheUse, "_last_use", lambda self, file: looks.append(file) or last_use(self, file))
    for number in range(5, 10):
        assert take(use, None, substream=number).areas({"rows": 14_000})
    assert looks.count(path.name) == 1
    use.close()


def test_who_counts_is_alone() -> None:
    one, two, made = CacheUse(RUN, LARGE), CacheUse(RUN, LARGE), []
    with one.reserved(10):
        thread = threading.Thread(target=lambda: made.append(take(two, None).areas(SIZES)))
        thread.start()
        thread.join(0.2)
        assert not made
    thread.join()
    assert made
    one.close()
    two.close()


def test_files_that_go_while_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    use = CacheUse(RUN, LARGE)
    (use.path / "x.new").touch()
    scandir = os.scandir

    @contextlib.contextmanager
    def listed(folder: Any) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            found = list(entries)
        (use.path / "x.new").unlink(missing_ok=True)
        yield found

    monkeypatch.setattr(os, "scandir", listed)
    cache = take(use, None)
    cache.areas(SIZES)
    monkeypatch.undo()
    assert cache.full == ""
    use.close()


def test_a_disk_that_is_full() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
        use = CacheUse(RUN, LARGE)
        cache = take(use, None)
        cache.areas(SIZES)["rows"][:] = 1
        os._exit(0 if cache.full == "File too large" and os.listdir(use.path) == ["locks"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_folder_that_is_removed_while_it_is_used() -> None:
    use = CacheUse(RUN, LARGE)
    cache = take(use, None)
    areas = cache.areas(SIZES)
    shutil.rmtree(use.path)
    areas["rows"][:] = 7
    assert not cache.areas({"rows": 9000})["rows"].any() and cache.full == "No such file or directory"
    cache.finish(FIRST, None)
    use.close()
    assert found() == COLD


def test_a_place_that_is_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.CACHE_VARIABLE, str(place / "nowhere"))
    use = CacheUse(RUN, LARGE)
    cache = take(use, FIRST)
    assert cache.why == NO_SPACE and "No such file" in cache.full
    cache.areas(SIZES)["rows"][:] = 1
    cache.finish(FIRST, None)
    cache.remove()
    use.close()


def test_descriptors_that_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last that is needed is there to list the folder."""

    def fails(folder: int) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "scandir", fails)
    use = CacheUse(RUN, LARGE)
    monkeypatch.undo()
    assert "Too many open files" in use.reason and len(os.listdir("/proc/self/fd")) == before
    assert use.lock("x") == NO_SPACE
    use.close()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_opened_is_not_called_damaged(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left()
    use = CacheUse(RUN, LARGE)

    def fails(descriptor: int, size: int) -> Any:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(caches, "_map", fails)
        cache = take(use, FIRST)
    assert cache.why == NO_SPACE and cache.full == os.strerror(number)
    assert not cache.areas(SIZES)["rows"].any()
    cache.finish(SECOND, None)
    use.close()
    assert found() is None, "it was not touched"


def test_a_folder_that_others_can_enter_is_not_used() -> None:
    path = left()
    path.parent.chmod(0o755)
    assert found() == NO_SPACE


# --- who has it ------------------------------------------------------------------------------------------------------------

HOLDS = """
import sys
from headrace.state.caches import CacheUse
use = CacheUse(sys.argv[1], 1 << 30)
cache = use.take("apply-1", "cars", "x", 3, sys.argv[2])
print(cache.why, flush=True)
sys.stdin.read()
"""


def test_what_another_has_is_left_alone_until_it_dies() -> None:
    left()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, RUN, FIRST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout and other.stdout.readline() == "None\n", "it uses it"
        assert found() == LOCKED
        use = CacheUse(RUN, LARGE)
        cache = take(use, FIRST)
        cache.areas(SIZES)["rows"][:] = 1
        cache.finish(SECOND, None)
        use.close()
        assert found(SECOND) == LOCKED
        other.send_signal(signal.SIGKILL)
    assert found() == MARKED


def test_a_child_that_lives_on_holds_nothing() -> None:
    left()
    use, held = CacheUse(RUN, LARGE), caches.CacheFolder(OTHER, LARGE)
    assert take(use, FIRST).why is None
    one, other = socket.socketpair()
    child = os.fork()
    if not child:
        one.close()
        other.send(b"x")
        other.recv(1)  # until the parent is done
        os._exit(0)
    other.close()
    one.recv(1)
    try:
        use.close()
        held.close()
        assert found() == MARKED, "nobody has it"
        CacheUse("c" * 32, LARGE).close()
        assert not held.path.exists(), "its driver is gone"
    finally:
        one.close()
        os.waitpid(child, 0)


def test_two_attempts_in_one_process() -> None:
    left()
    one, two = CacheUse(RUN, LARGE), CacheUse(RUN, LARGE)
    first, second = take(one, FIRST), take(two, FIRST)
    assert (first.why, second.why) == (None, LOCKED)
    second.areas(SIZES)["rows"][:] = 9
    second.finish(SECOND, None)
    two.close()
    first.finish(FIRST, None)
    one.close()
    caches._KEPT.forget()
    assert found() is None


def test_a_file_of_locks_that_was_removed_locks_nothing() -> None:
    left()
    one = CacheUse(RUN, LARGE)
    (one.path / caches._LOCKS).unlink()
    other = CacheUse(RUN, LARGE)
    assert take(other, FIRST).why is None
    cache = take(one, FIRST)
    assert cache.why == NO_SPACE and cache.full == "the lock file was removed"
    cache.areas(SIZES)["rows"][:] = 1
    cache.finish(FIRST, None)
    one.close()
    other.close()
    assert found() == MARKED


def test_the_file_of_locks_is_never_old() -> None:
    path = left().parent / caches._LOCKS
    os.utime(path, (1000, 1000))
    CacheUse(RUN, LARGE).close()
    assert path.stat().st_mtime > 1000


# --- folders ---------------------------------------------------------------------------------------------------------------


def test_folders_of_dead_runs_go_with_the_next_that_begins(place: Path) -> None:
    living, dead, lately, long_ago = ("0" * 31 + str(n) for n in range(4))
    alive = caches.CacheFolder(living, LARGE)
    gone = caches.CacheFolder(dead, LARGE)
    os.close(gone._descriptor)  # type: ignore[arg-type]
    for run in (lately, long_ago):
        CacheUse(run, LARGE).close()
    old = time.time() - caches.UNUSED_SECONDS - 10
    os.utime(place / f"{caches._prefix()}{long_ago}", (old, old))
    elsewhere = place / f"headrace-cache-{'0' * 16}-{dead}"
    elsewhere.mkdir()
    (elsewhere / caches._HERE).touch()
    earlier = place / f"headrace-cache-{'1' * 16}-{dead}"
    earlier.mkdir()
    day = time.time() - caches.FOREIGN
    os.utime(earlier, (day - 10, day - 10))
    os.utime(elsewhere, (day + 1000, day + 1000))
    CacheUse(RUN, LARGE).close()
    names = {path.name for path in place.iterdir()}
    assert names == {elsewhere.name, *(f"{caches._prefix()}{run}" for run in (living, lately, RUN))}
    alive.remove()
    assert f"{caches._prefix()}{living}" not in os.listdir(place)


def folders(place: Path, runs: int, size: int, age: float) -> list[Path]:
    """Of runs whose drivers are elsewhere, the first of them the oldest."""
    found = []
    for number in range(runs):
        use = CacheUse(f"{number:032x}", LARGE)
        (use.path / "0-0").write_bytes(bytes(size))
        use.close()
        old = time.time() - age - 10 * (runs - number)
        os.utime(use.path, (old, old))
        found.append(use.path)
    return found


def test_folders_that_nobody_has_open_take_no_more_than_the_limit(place: Path) -> None:
    paths = folders(place, 5, 10_000, caches.LATELY)
    alive = CacheUse(f"{1:032x}", LARGE)
    os.utime(alive.path, (1000, 1000))  # the oldest of all, and in use
    CacheUse(RUN, 25_000).close()
    assert [path.exists() for path in paths] == [False, True, False, True, True]
    alive.close()


def test_folders_that_were_used_lately_stay_whatever_they_take(place: Path) -> None:
    paths = folders(place, 5, 10_000, caches.LATELY - 100)
    CacheUse(RUN, 25_000).close()
    assert all(path.exists() for path in paths)


@pytest.mark.parametrize("works_on", [True, False])
def test_a_folder_that_is_used_while_others_are_counted_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch, works_on: bool
) -> None:
    (path,) = folders(place, 1, 10_000, caches.LATELY)
    uses, counted = list[CacheUse](), caches._bytes

    def used(folder: Path) -> int:
        uses.append(CacheUse("0" * 32, LARGE))
        if not works_on:
            uses.pop().close()
        return counted(folder)

    monkeypatch.setattr(caches, "_bytes", used)
    CacheUse(RUN, 100).close()
    assert path.exists()
    for use in uses:
        use.close()


def test_a_process_that_works_on_sweeps_now_and_then(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CacheUse(RUN, LARGE).close()
    (path,) = folders(place, 1, 10, caches.UNUSED_SECONDS)
    monkeypatch.setitem(caches._swept, place, time.monotonic())
    CacheUse(RUN, LARGE).close()
    assert path.exists()
    monkeypatch.setitem(caches._swept, place, time.monotonic() - caches.SWEPT)
    CacheUse(RUN, LARGE).close()
    assert not path.exists()


def test_a_task_that_comes_late_does_not_make_the_folder_again(place: Path) -> None:
    held = caches.CacheFolder(RUN, LARGE)
    use = CacheUse(RUN, LARGE, driver_makes_folder=True)
    assert use.reason == "" and held.is_there
    use.close()
    held.remove()
    assert not held.is_there
    late = CacheUse(RUN, LARGE, driver_makes_folder=True)
    assert "No such file" in late.reason and take(late, FIRST).why == NO_SPACE
    late.close()
    assert not list(place.iterdir())


def test_who_works_keeps_the_folder(place: Path) -> None:
    use = CacheUse(OTHER, LARGE)
    old = time.time() - caches.UNUSED_SECONDS - 10
    os.utime(use.path, (old, old))
    CacheUse(RUN, LARGE).close()
    assert use.path.exists()
    use.close()


def test_what_a_run_left_open_is_let_go_when_its_folder_is_gone(place: Path) -> None:
    used(None, FIRST)
    assert len(caches._KEPT._kept) == 1
    shutil.rmtree(next(place.iterdir()))
    CacheUse(OTHER, LARGE).close()
    assert not caches._KEPT._kept


def test_what_another_process_replaced_is_let_go(place: Path) -> None:
    used(None, FIRST)
    child = os.fork()
    if not child:
        use = CacheUse(RUN, LARGE)
        cache = take(use, FIRST)
        cache.areas({"rows": 100_000})
        cache.finish(SECOND, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert len(caches._KEPT._kept) == 1
    CacheUse(RUN, LARGE).close()
    assert not caches._KEPT._kept, "its disk space is free"


def test_locks_are_of_names_and_not_of_the_file(place: Path) -> None:
    """One descriptor serves all caches of a task."""
    use = CacheUse(RUN, LARGE)
    for substream in range(20):
        assert take(use, None, substream=substream).why == COLD
    other = CacheUse(RUN, LARGE)
    assert {take(other, None, substream=n).why for n in range(20)} == {LOCKED}
    assert take(other, None, substream=20).why == COLD
    fcntl.flock(other.folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    use.close()
    assert {take(other, None, substream=n).why for n in range(20)} == {COLD}
    other.close()


# --- the limit as it is given ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "bytes_"),
    [(None, caches.LIMIT), (0, 0), ("0", 0), (12345, 12345), ("4g", 4 << 30), ("512 MiB", 512 << 20), ("1TB", 1 << 40)],
)
def test_limits(given: Any, bytes_: int) -> None:
    assert caches.cache_limit(given) == bytes_


@pytest.mark.parametrize("given", ["", "a lot", -1, 1.5, True, "4 gigs", "1" * 30])
def test_limits_that_are_none(given: Any) -> None:
    with pytest.raises(QueryError, match=r"cache must be bytes, as a whole number or with a unit, such as '4g'"):
        caches.cache_limit(given)


def test_the_limit_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(caches.CACHE_BYTES_VARIABLE, "2g")
    assert caches.cache_limit(None) == 2 << 30 and caches.cache_limit("1g") == 1 << 30
    monkeypatch.setenv(caches.CACHE_BYTES_VARIABLE, "much")
    with pytest.raises(QueryError, match="HEADRACE_CACHE_BYTES must be bytes"):
        caches.cache_limit(None)
