from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headrace.errors import StateError
from headrace.state import LocalStorage, Storage, SyncFailed
from headrace.state import storage as module
from tests.memory import MemoryStorage

from .checks import check_one_winner

HOSTILE = [
    "",
    "x",
    "/etc/passwd",
    "../x",
    "blocks/../x",
    "blocks/",
    "blocks/.",
    "blocks/..",
    "blocks/.hidden",
    "blocks/a/b",
    "blocks//a",
    "./blocks/a",
    "blocks/a\n",
    "blocks/a\0",
    "blocks/é",
    "Blocks/a",
    "writer.lock",
    "manifests/" + "a" * 300,
]


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path)
    storage.create()
    return storage


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage()
    made = LocalStorage(tmp_path)
    made.create()
    return made


@pytest.mark.parametrize("data", [b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), module.pa.py_buffer(b"abc")])
def test_what_is_written_is_read(storage: Storage, data: module.Data) -> None:
    storage.write("blocks/a", data)
    assert storage.publish("manifests/a", data)
    expected = bytes(memoryview(data))
    for name in ("blocks/a", "manifests/a"):
        assert storage.read(name) == expected
        assert storage.map(name).to_pybytes() == expected
        assert storage.size(name) == len(expected)
    storage.sync(["blocks/a", "manifests/a"])


def test_names_are_written_once(storage: Storage) -> None:
    storage.write("blocks/a", b"1")
    with pytest.raises(FileExistsError):
        storage.write("blocks/a", b"2")
    assert not storage.publish("blocks/a", b"3")
    assert storage.read("blocks/a") == b"1"


def test_missing_files(storage: Storage) -> None:
    storage.delete("blocks/a")
    assert storage.size("blocks/a") is None
    assert storage.list("blocks") == []
    for action in (storage.read, storage.map, lambda n: storage.sync([n])):
        with pytest.raises(FileNotFoundError):
            action("blocks/a")


def test_list_is_sorted_and_hides_nothing(storage: Storage) -> None:
    for name in ("blocks/b", "blocks/_t", "blocks/a", "manifests/c"):
        storage.write(name, b"")
    assert storage.list("blocks") == ["blocks/_t", "blocks/a", "blocks/b"]
    storage.delete("blocks/a")
    assert storage.list("blocks") == ["blocks/_t", "blocks/b"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_refused(storage: Storage, name: str) -> None:
    actions = [storage.read, storage.map, storage.size, storage.delete, lambda n: storage.sync([n])]
    for action in (*actions, lambda n: storage.write(n, b""), lambda n: storage.publish(n, b"")):
        with pytest.raises(StateError, match="refused"):
            action(name)
    with pytest.raises(StateError):
        storage.list(name)


def test_links_planted_in_the_folder_are_refused(local: LocalStorage, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"s")
    os.symlink(secret, local.root / "blocks" / "a")
    for action in (
        local.read,
        local.map,
        local.size,
        lambda n: local.write(n, b""),
        lambda n: local.publish(n, b""),
    ):
        with pytest.raises(StateError, match="symbolic link"):
            action("blocks/a")
    local.delete("blocks/a")
    assert secret.read_bytes() == b"s"


def test_a_linked_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "blocks")
    storage = LocalStorage(tmp_path)
    for action in (storage.create, lambda: storage.list("blocks"), lambda: storage.delete("blocks/a")):
        with pytest.raises(StateError, match="symbolic link"):
            action()


def test_files_are_private(local: LocalStorage) -> None:
    local.write("blocks/a", b"")
    local.publish("manifests/a", b"")
    modes = [stat.S_IMODE((local.root / p).stat().st_mode) for p in ("blocks", "blocks/a", "manifests/a")]
    assert modes == [0o700, 0o600, 0o600]


def test_publish_leaves_no_temporary_file(local: LocalStorage) -> None:
    assert [local.publish("manifests/a", b"1"), local.publish("manifests/a", b"2")] == [True, False]
    assert local.list("manifests") == ["manifests/a"]


def test_mapping_holds_no_handle_and_outlives_deletion(local: LocalStorage) -> None:
    local.write("blocks/a", b"x" * 100_000)
    before = len(os.listdir("/proc/self/fd"))
    mapped = [local.map("blocks/a") for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    local.delete("blocks/a")
    assert mapped[0].to_pybytes() == b"x" * 100_000


def test_four_threads_one_winner(local: LocalStorage) -> None:
    local.fsync = False
    check_one_winner(local)


def test_four_threads_one_winner_in_memory() -> None:
    check_one_winner(MemoryStorage())


def test_link_happened_but_reported_failure(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def lying(*args: object, **options: object) -> None:
        real(*args, **options)
        raise FileExistsError("reported by a network file system that repeated the request")

    monkeypatch.setattr(module.os, "link", lying)
    assert local.publish("manifests/a", b"1")
    assert not local.publish("manifests/a", b"2")
    assert local.read("manifests/a") == b"1"


def test_link_failed_and_did_not_happen(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **options: object) -> None:
        raise OSError(5, "EIO")

    monkeypatch.setattr(module.os, "link", failing)
    with pytest.raises(OSError, match="EIO"):
        local.publish("manifests/a", b"1")
    assert local.list("manifests") == []


def test_full_disk_leaves_nothing_behind(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "write", full)
    for action in (local.write, local.publish):
        with pytest.raises(OSError, match="No space"):
            action("blocks/a", b"abc")
    assert local.list("blocks") == []


def test_short_writes_of_the_system_are_continued(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: real(fd, data[:3]))
    local.write("blocks/a", b"abcdefgh")
    assert local.read("blocks/a") == b"abcdefgh"


def test_failed_sync_is_named(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    local.write("blocks/a", b"1")

    def failing(descriptor: int) -> None:
        raise OSError(5, "EIO")

    monkeypatch.setattr(module.os, "fsync", failing)
    with pytest.raises(SyncFailed, match="blocks/a"):
        local.sync(["blocks/a"])
    with pytest.raises(SyncFailed):
        local.publish("manifests/a", b"1")
    assert local.list("manifests") == []


def test_what_is_synced_and_in_which_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(module.os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    storage = LocalStorage(tmp_path)
    storage.create()
    assert synced == [str(tmp_path), str(tmp_path.parent)]
    synced.clear()
    storage.write("blocks/a", b"")
    storage.write("blocks/b", b"")
    assert synced == []
    storage.sync(["blocks/a", "blocks/b"])
    assert synced == [str(tmp_path / name) for name in ("blocks/a", "blocks/b", "blocks")]
    synced.clear()
    storage.publish("manifests/a", b"1")
    assert [Path(name).name[:3] for name in synced] == ["_a.", "man"]


def test_fsync_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "fsync", lambda fd: pytest.fail("synced"))
    storage = LocalStorage(tmp_path, fsync=False)
    storage.create()
    assert storage.publish("manifests/a", b"1")
    storage.sync(["manifests/a"])


def test_probe_accepts_this_disk_and_leaves_nothing(local: LocalStorage) -> None:
    local.probe()
    assert local.list("manifests") == []


def test_probe_refuses_a_disk_without_links(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module.os, "link", missing)
    with pytest.raises(StateError, match="local disk"):
        local.probe()
    assert local.list("manifests") == []


def test_probe_tells_a_full_disk_from_one_without_links(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_create", full)
    with pytest.raises(StateError, match=r"no space is left in .*No space left on device.*\. Free disk space"):
        local.probe()


def test_probe_refuses_links_that_overwrite(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_can_link", lambda source, target: True)
    with pytest.raises(StateError, match="overwrite"):
        local.probe()


def test_probe_refuses_known_bad_file_systems(local: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "filesystem_of", lambda path: "exfat")
    with pytest.raises(StateError, match="exfat"):
        local.probe()


def test_file_system_of_an_unknown_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.filesystem_of(tmp_path) not in module.UNSUPPORTED

    def unreadable(path: Path) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", unreadable)
    assert module.filesystem_of(tmp_path) is None
