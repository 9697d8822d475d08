"""Scratch folders: private, under names that nobody can foresee, and gone once their process is."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.columnar import scratch
from headrace.errors import EngineError
from headrace.support import paths
from tests.patience import PATIENCE

SPILLS = """
from headrace.columnar import duck
duck.connection().execute("CREATE TABLE t AS SELECT range AS i, repeat('x', 60) || range AS s FROM range(400_000)")
print("ready", flush=True)
input()
"""
STARTS = "from headrace.columnar import duck; duck.connection()"
FORKS = """
import os
from headrace.columnar import scratch
mine = scratch.own_folder()
if os.fork() == 0:
    assert scratch.own_folder() != mine and mine.exists()
else:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0  # which ended as Python does, not by _exit
    assert os.listdir(mine.parent) == [mine.name]
"""


def run(code: str, place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], env=_env(place, **more), capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done


def _env(place: Path, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    return {**clean, "TMPDIR": str(place), "HEADRACE_TASK_MEMORY": "16MB", **more}


@contextmanager
def spilling(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has spilled, and waits."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", SPILLS], env=_env(place), text=True, **pipes)
    try:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def open_to_others(place: Path) -> list[Path]:
    """What others can reach below a folder, which they can enter themselves."""
    found: list[Path] = []
    for path in place.iterdir():
        mode = path.lstat().st_mode
        if mode & 0o077:
            found.append(path)
            if path.is_dir() and mode & stat.S_IXOTH:
                found += open_to_others(path)
    return found


def sizes(place: Path) -> int:
    return sum(path.lstat().st_size for path in place.rglob("*") if path.is_file())


def test_spilled_tuples_are_unreadable_and_gone_after_the_next_start(tmp_path: Path) -> None:
    with spilling(tmp_path) as process:
        assert sizes(tmp_path) > 5_000_000, "this was meant to spill"
        assert open_to_others(tmp_path) == []
        run(STARTS, tmp_path)
        assert sizes(tmp_path) > 5_000_000, "its owner lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert sizes(tmp_path) > 5_000_000, "this was meant to be left behind"
    run(f"{STARTS}; import os; assert len(os.listdir({str(tmp_path)!r})) == 1", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_ends_leaves_nothing(tmp_path: Path) -> None:
    with spilling(tmp_path) as process:
        process.communicate("\n")
        assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_link_planted_where_a_folder_might_be_expected_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    plant = (
        f"import os; os.symlink({str(victim)!r}, os.path.join({str(tmp_path)!r}, NAME % (os.getuid(), os.getpid())))"
    )
    code = plant.replace("NAME", "'headrace-spill-%d-%d'") + "\n" + SPILLS.replace("input()", "")
    code += f"assert os.listdir({str(victim)!r}) == []"
    run(code, tmp_path)


def test_a_forked_process_has_a_folder_of_its_own_and_leaves_that_of_its_parent(tmp_path: Path) -> None:
    run(FORKS, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_many_processes_at_once(tmp_path: Path) -> None:
    """Every one sweeps while others begin and end: none takes a living folder for a dead one."""
    code = """
import os
from headrace.columnar import scratch
for _ in range(60):
    if os.fork() == 0:
        for _ in range(5):
            folder = scratch.own_folder()
            (folder / "file").touch()
            scratch._leave() if os.getpid() % 3 else scratch._after_fork()  # as if killed
        os._exit(0)
while True:
    try:
        assert os.wait()[1] == 0
    except ChildProcessError:
        break
scratch.own_folder()
"""
    run(code, tmp_path, HEADRACE_SCRATCH=str(tmp_path), TMPDIR="/nowhere")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A scratch place of this test, which begins without a folder."""
    monkeypatch.setenv("HEADRACE_SCRATCH", str(tmp_path))
    monkeypatch.setattr(scratch, "_own", {})
    yield tmp_path
    scratch._leave()


def test_one_folder_per_process_and_one_in_it_for_a_piece_of_work(place: Path) -> None:
    mine = scratch.own_folder()
    assert mine.parent == place and mine == scratch.own_folder()
    with scratch.temporary_folder("work") as folder:
        assert folder.parent == mine and folder.name.startswith("work-")
        assert [stat.S_IMODE(p.stat().st_mode) for p in (mine, folder)] == [0o700, 0o700]
    assert not folder.exists()


def test_only_folders_of_ours_are_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = scratch._prefix(scratch.machine_id())
    victim = place / "victim"
    victim.mkdir()
    (place / f"{prefix}abcdefg1").symlink_to(victim)
    (place / f"{prefix}abcdefg2").mkdir(mode=0o755)  # not made by us: ours are closed
    (place / f"{prefix}abcdefg3").write_text("")
    (place / f"{prefix}more-abcdefg4").mkdir(mode=0o700)
    (place / "headrace-scratch-other-abcdefg5").mkdir(mode=0o700)
    before = set(place.iterdir())
    mine = scratch.own_folder()
    assert set(place.iterdir()) == before | {mine}
    scratch._leave()
    (place / f"{prefix}abcdefg6").mkdir(mode=0o700)
    with monkeypatch.context() as patch:
        patch.setattr(scratch.os, "geteuid", lambda: os.getuid() + 1)
        scratch._sweep(place)
    assert (place / f"{prefix}abcdefg6").exists()
    scratch._sweep(place)
    assert set(place.iterdir()) == before


EARLIER = "headrace-scratch-0123456789abcdef-abcdefg1"  # of another boot, or of another machine


def test_folders_of_an_earlier_boot_are_swept(place: Path) -> None:
    """The place is on a local disk, so nobody can live there whose lock is not seen."""
    assert paths.is_local(place), "the tests' folder is on a file system that is not in the list"
    (place / EARLIER).mkdir(mode=0o700)
    (place / EARLIER / "spilled").write_bytes(b"tuples")
    assert list(place.iterdir()) == [place / EARLIER]
    mine = scratch.own_folder()
    assert list(place.iterdir()) == [mine]


def test_a_locked_folder_is_never_swept_whatever_its_name(place: Path) -> None:
    """A container may have a boot id of its own."""
    (place / EARLIER).mkdir(mode=0o700)
    descriptor = scratch._hold(place / EARLIER)
    assert descriptor is not None
    mine = scratch.own_folder()
    assert set(place.iterdir()) == {mine, place / EARLIER}
    os.close(descriptor)
    scratch._sweep(place)
    assert list(place.iterdir()) == [mine]


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "9p", None])
def test_folders_of_others_are_left_where_their_locks_may_not_be_seen(
    place: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None
) -> None:
    """None: a system without /proc says nothing of its file systems."""
    monkeypatch.setattr(paths, "filesystem_of", lambda path: kind)
    (place / EARLIER).mkdir(mode=0o700)
    (place / f"{scratch._prefix(scratch.machine_id())}abcdefg2").mkdir(mode=0o700)
    mine = scratch.own_folder()
    assert set(place.iterdir()) == {mine, place / EARLIER}, "that of this boot is gone"


def test_a_folder_swept_before_it_was_locked_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if not seen:
            os.rmdir(path)
        seen.append(path)
        real(descriptor, how)

    monkeypatch.setattr(scratch.fcntl, "flock", late)
    assert str(scratch.own_folder()) == seen[1] and seen[0] != seen[1]
    assert scratch.own_folder().is_dir()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "there is no folder"),
        (lambda path: path.write_text(""), "there is no folder"),
    ],
)
def test_places_that_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch, make, words: str) -> None:
    make(place / "bad")
    monkeypatch.setenv("HEADRACE_SCRATCH", str(place / "bad"))
    with pytest.raises(EngineError, match=words):
        scratch.own_folder()


def test_a_place_where_everybody_may_rename_is_warned_of(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Containers have such a temporary folder, and nobody else in them."""
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o777)
    monkeypatch.setenv("HEADRACE_SCRATCH", str(place / "tmp"))
    assert scratch.own_folder().stat().st_mode & 0o777 == 0o700
    assert "every user may rename" in caplog.text


def test_a_folder_that_was_swept_away_is_made_anew(place: Path) -> None:
    first = scratch.own_folder()
    shutil.rmtree(first)
    assert scratch.own_folder() != first and scratch.own_folder().is_dir()
    with scratch.temporary_folder("work") as folder:
        assert folder.is_dir()


def test_a_sticky_place_for_everybody_is_as_good_as_the_temporary_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "tmp").mkdir()
    (place / "tmp").chmod(0o1777)
    monkeypatch.setenv("HEADRACE_SCRATCH", str(place / "tmp"))
    assert scratch.own_folder().parent == place / "tmp"
