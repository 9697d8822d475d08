"""Hostile or clumsy hands on the folders of a run: refused by name, and nothing of others is touched."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace import sinks
from headrace.compile import plan_of
from headrace.control.policy import parse_policy
from headrace.driver.position import Batch, Position, check_alignment
from headrace.errors import QueryError, QueryTypeError, StateError, StateMismatch
from headrace.run.checkpoint_path import make_checkpoint
from headrace.state import StateStore
from headrace.state import checkpoint_folder as folder_module
from headrace.state import storage as storage_module
from headrace.state.manifest import manifest_name
from headrace.stream import node_of
from headrace.testing import table_stream
from headrace.tools import plan_file
from tests.memory import MemoryStorage

from .checks import commit_values, table


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A checkpoint that a run has left."""
    folder = make_checkpoint(tmp_path / "ckpt")
    with StateStore.open(folder / "state") as store:
        commit_values(store, 1)
    (folder / "spark" / "offsets").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_again(folder: Path) -> None:
    StateStore.open(make_checkpoint(folder) / "state").close()


# --- folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "spark", "state", "state/blocks", "state/manifests"])
@pytest.mark.parametrize("others", [0o777, 0o770, 0o702])
def test_a_used_folder_that_others_may_write_is_refused(used: Path, name: str, others: int) -> None:
    (used / name).chmod(others)
    with pytest.raises(StateError, match=f"{(used / name).resolve()} can be written by others.*chmod 700"):
        open_again(used)
    (used / name).chmod(0o700)
    open_again(used)


@pytest.mark.parametrize("name", [".", "spark", "state", "state/blocks", "state/manifests"])
def test_a_folder_that_others_may_only_read_is_closed(used: Path, name: str) -> None:
    (used / name).chmod(0o755)
    open_again(used)
    assert mode(used / name) == 0o700


def test_an_empty_folder_is_closed_and_used(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt").chmod(0o777)
    assert mode(make_checkpoint(tmp_path / "ckpt")) == 0o700


def test_a_checkpoint_of_another_user_is_refused(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StateError, match="ckpt belongs to user"):
        make_checkpoint(used)


def test_a_checkpoint_is_closed_wherever_it_lies(used: Path, tmp_path: Path) -> None:
    """As in a volume that is open to everybody: whoever puts another folder in its place is not its owner."""
    tmp_path.chmod(0o777)
    open_again(used)
    assert mode(make_checkpoint(tmp_path / "new")) == 0o700


def test_folders_made_on_the_way_are_not_for_everybody_to_write(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = make_checkpoint(tmp_path / "a" / "b" / "ckpt")
    finally:
        os.umask(before)
    assert [mode(path) for path in (folder, folder.parent, folder.parent.parent)] == [0o700, 0o755, 0o755]


@pytest.mark.parametrize("name", ["spark", "state/blocks", "state/manifests"])
@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_a_link_in_the_place_of_a_folder_is_refused(used: Path, tmp_path: Path, name: str, target: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (used / name).rename(tmp_path / "moved")
    (used / name).symlink_to(tmp_path / target)
    with pytest.raises(StateError, match=f"{name} is a symbolic link"):
        open_again(used)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_refused(used: Path) -> None:
    (used / "spark" / "offsets").rmdir()
    (used / "spark").rmdir()
    (used / "spark").write_text("")
    with pytest.raises(StateError, match="spark is a file"):
        open_again(used)


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_lock_that_is_another_file_too_is_not_written(used: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (used / "state" / "writer.lock").unlink()
    (used / "state" / "writer.lock").hardlink_to(tmp_path / "victim")
    with pytest.raises(StateError, match=r"writer\.lock is not a plain file"):
        open_again(used)
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_lock_that_is_a_pipe_is_refused(used: Path) -> None:
    (used / "state" / "writer.lock").unlink()
    os.mkfifo(used / "state" / "writer.lock")
    with pytest.raises(StateError, match=r"writer\.lock is not a plain file"):
        open_again(used)


def _plan() -> Any:
    root = node_of(table_stream(table(1).append_column("ts", table(1)["v"].cast("timestamp[us]"))))
    return [root], plan_of([root], [False], "subquery", 1, None)


@pytest.mark.parametrize("name", ["plan.json", "_plan.json"])
@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_a_plan_is_private_and_never_written_through_a_link(used: Path, tmp_path: Path, name: str, link: Any) -> None:
    (tmp_path / "victim").write_text("mine")
    (used / name).unlink(missing_ok=True)
    link(used / name, tmp_path / "victim")
    plan_file.write_plan(used, *_plan())
    assert (tmp_path / "victim").read_text() == "mine"
    assert plan_file.read_plan(used)[1] == _plan()[1]
    assert mode(used / "plan.json") == 0o600 and not (used / "plan.json").is_symlink()


def test_a_plan_that_is_a_pipe_is_not_waited_for(used: Path) -> None:
    (used / "plan.json").unlink()
    os.mkfifo(used / "plan.json")
    with pytest.raises(StateError, match=r"there is no plan\.json"):
        plan_file.read_plan(used)


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _vast(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("plant", "words"), [(_device, "not a plain file"), (_pipe, "not a plain file"), (_vast, "256 MB")]
)
def test_a_manifest_without_an_end_is_not_read(used: Path, plant: Any, words: str) -> None:
    path = used / "state" / manifest_name(0)
    path.unlink()
    plant(path)
    for read_only in (False, True):
        with pytest.raises(StateError, match=words):
            StateStore.open(used / "state", read_only=read_only)


@pytest.mark.parametrize("plant", [_device, _pipe, Path.mkdir])
def test_a_block_that_is_no_plain_file_is_not_read(used: Path, plant: Any) -> None:
    store = StateStore.open(used / "state", read_only=True)
    assert store.last
    name = store.last.live_blocks()[0].name
    (used / "state" / name).unlink()
    plant(used / "state" / name)
    with pytest.raises(StateError, match="not a plain file"):
        StateStore.open(used / "state")
    for action in (store.storage.read, store.storage.map, store.storage.size):
        with pytest.raises(StateError, match="not a plain file"):
            action(name)


def test_what_is_read_has_a_limit_that_manifests_keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "state") as store:
        commit_values(store, 1)
        monkeypatch.setattr(storage_module, "MOST_READ_BYTES", 100)
        with pytest.raises(StateError, match="is larger than"):
            commit_values(store, 2)


# --- what Spark wrote down -----------------------------------------------------------------------------------------


def test_spark_metadata_that_cannot_be_read_is_named(used: Path) -> None:
    last = StateStore(MemoryStorage()).draft(position=Position("spark", Batch("x", 0, "y")).to_json())
    (used / "spark" / "metadata").write_text("{")
    with pytest.raises(StateMismatch, match=r"Spark's note of its query .* is not JSON.*restore the 'spark' folder"):
        check_alignment(last, used / "spark")
    (used / "spark" / "metadata").write_text('{"id": "x"}')
    (used / "spark" / "offsets" / "1").write_text("")
    with pytest.raises(StateMismatch, match="'spark/offsets/0', cannot be read"):
        check_alignment(last, used / "spark")


# --- paths ---------------------------------------------------------------------------------------------------------


TAKE_A_PATH = [make_checkpoint, sinks.parquet, parse_policy, lambda path: hr.files(None, path, time="ts")]


@pytest.mark.parametrize("path", ["a\0b", "a\ud800b", "x" * 300])
@pytest.mark.parametrize("give", TAKE_A_PATH)
def test_impossible_paths_are_refused_by_name(path: str, give: Any) -> None:
    with pytest.raises(QueryError, match="cannot be at"):
        give(path)


@pytest.mark.parametrize("give", TAKE_A_PATH)
def test_a_folder_that_we_may_not_enter_is_named(give: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "lstat", forbidden)
    with pytest.raises(QueryError, match="cannot be at 'there/it': Permission denied"):
        give("there/it")


@pytest.mark.parametrize("give", TAKE_A_PATH)
def test_what_is_no_path_is_refused_by_name(give: Any) -> None:
    with pytest.raises(QueryTypeError, match="takes a path"):
        give(5)
