"""Storage of the files of a state: blocks, manifests and heads are read and written only through `Storage`.

Three modules of this package also touch a disk: `checkpoint_folder` (the folder itself and its lock), `fsync`, and
`caches` (files outside the checkpoint).

Invariants, the same for every implementation:

    a name is written at most once           (write and publish never overwrite)
    publish(name) has at most one winner     (create-if-absent, whole file or nothing)
    a name cannot leave the root             (fixed pattern, plain files only: no links, pipes or devices)

A failing disk raises `OSError`; a refused name raises `StateError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

from headrace.errors import StateError
from headrace.state.checkpoint_folder import FOLDERS, WriterLock, prepare_folder, require_folder
from headrace.state.fsync import sync_open, sync_path
from headrace.support.paths import filesystem_of, given_path

UNSUPPORTED = frozenset(
    ["vfat", "msdos", "exfat"]
    + [f"fuse.{kind}" for kind in ("s3fs", "gcsfuse", "goofys", "mount-s3", "rclone", "blobfuse2", "sshfs")]
)

MOST_READ_BYTES = 256 << 20  # largest file that is read at once; a manifest has about 250 bytes for each block

_FILE_NAME = re.compile(r"(?:blocks|manifests)/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


class Lease(Protocol):
    """The right of a run to be the only writer of a storage."""

    @property
    def left(self) -> str:
        """Return the text that the previous writer left at its release; any other text if it was killed."""

    def release(self, left: str = "") -> None:
        """Allow others to write, and leave a text for the next writer."""


class Storage(Protocol):
    """Files with write-once names below two folders, `blocks` and `manifests`."""

    @property
    def uri(self) -> str:
        """Return the text from which `open_storage` opens the same storage on any machine."""

    def lease(self) -> Lease:
        """Prepare the place and keep other writers out; raise `WriterConflict` if there is one."""

    def require(self) -> None:
        """Raise if the place holds no state."""

    def write(self, name: str, *data: Data) -> None:
        """Create a file from these bytes, one after the other; raise `FileExistsError` if the name is taken."""

    def sync(self, names: Iterable[str]) -> None:
        """Make these files, then their folders, durable; raise `SyncFailed` if the disk does not confirm it."""

    def publish(self, name: str, data: Data) -> bool:
        """Create the file whole and durable and return True, or keep the existing one and return False."""

    def read(self, name: str) -> bytes:
        """Return the bytes of a file; raise `FileNotFoundError` if there is none."""

    def map(self, name: str) -> pa.Buffer:
        """Return the bytes of a file without a copy."""

    def size(self, name: str) -> int | None:
        """Return the length in bytes; None if there is no such file."""

    def list(self, folder: str) -> list[str]:
        """Return every name in a folder (`blocks` or `manifests`), sorted, temporary names included."""

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""


def open_storage(place: str | os.PathLike[str], *, fsync: bool = True) -> Storage:
    """Return the storage at a place that a user gave, or at the `uri` of a storage. Driver and tasks both use this
    function."""
    return LocalStorage(given_path(place, "the state").absolute(), fsync=fsync)


def check_name(name: str) -> str:
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise StateError(f"refused file name {name!r}: state files are 'blocks/…' or 'manifests/…'")
    return name


def check_folder(folder: str) -> str:
    if folder not in FOLDERS:
        raise StateError(f"refused folder {folder!r}: state has only {' and '.join(FOLDERS)}")
    return folder


def is_temporary(name: str) -> bool:
    return name.rpartition("/")[2].startswith("_")


class LocalStorage:
    """A folder of a mounted POSIX file system, local or shared. It has no open handle, so every task can create one cheaply."""

    def __init__(self, root: str | Path, *, fsync: bool = True) -> None:
        self.root = Path(root)
        self.fsync = fsync

    @property
    def uri(self) -> str:
        return str(self.root)

    def lease(self) -> Lease:
        prepare_folder(self.root)
        lock = WriterLock(self.root)
        try:
            self._make_ready()
        except BaseException:
            lock.release()
            raise
        return lock

    def require(self) -> None:
        require_folder(self.root)

    def _make_ready(self) -> None:
        try:
            self.create()
        except OSError as error:
            raise StateError(f"cannot prepare {self.root}: {error}. Check permissions and the disk") from error
        self.probe()

    def create(self) -> None:
        """Create the two folders durably, in an existing root."""
        for folder in FOLDERS:
            _refuse_link(self.root / folder)
            (self.root / folder).mkdir(mode=0o700, exist_ok=True)
        self._fsync(self.root)
        self._fsync(Path(os.path.realpath(self.root.parent)))

    def write(self, name: str, *data: Data) -> None:
        _create(self._path(name), *data, sync=False)

    def sync(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        folders = dict.fromkeys(path.parent for path in paths)
        for path in [*paths, *folders]:
            self._fsync(path)

    def publish(self, name: str, data: Data) -> bool:
        final = self._path(name)
        temporary = final.with_name(f"_{final.name}.{uuid.uuid4().hex}")
        try:
            _create(temporary, data, sync=self.fsync)
            won = _link(temporary, final)
        finally:
            _forget(temporary)
        if won:
            self._fsync(final.parent)
        return won

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with open(os.open(path, _OPEN_FLAGS), "rb") as file:
            if os.fstat(file.fileno()).st_size > MOST_READ_BYTES:
                raise StateError(f"{path} is larger than {MOST_READ_BYTES >> 20} MB, which no manifest is. {_WHO}")
            return file.read()

    def map(self, name: str) -> pa.Buffer:
        path = self._path(name)
        if not path.stat().st_size:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as file:  # the mapping outlives the handle
            return file.read_buffer()

    def size(self, name: str) -> int | None:
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            return None

    def list(self, folder: str) -> list[str]:
        path = self.root / check_folder(folder)
        _refuse_link(path)
        return sorted(f"{folder}/{entry}" for entry in os.listdir(path))

    def delete(self, name: str) -> None:
        _refuse_link(self.root / check_name(name).partition("/")[0])
        (self.root / name).unlink(missing_ok=True)

    def probe(self) -> None:
        """Raise for a file system on which `publish` cannot be a commit."""
        kind = filesystem_of(self.root)
        if kind in UNSUPPORTED:
            raise StateError(f"{self.root} is on a {kind} file system, {_ELSEWHERE}")
        try:
            works = self._links_work()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StateError(
                    f"no space is left in {self.root}: {error}. Free disk space, then start again"
                ) from error
            raise StateError(f"hard links do not work in {self.root} ({error}), {_ELSEWHERE}") from error
        if not works:
            raise StateError(f"hard links overwrite existing files in {self.root}, {_ELSEWHERE}")

    def _links_work(self) -> bool:
        """Return whether one link succeeds and a second one with the same name is refused."""
        source, target = (self.root / "manifests" / f"_probe-{uuid.uuid4().hex}" for _ in range(2))
        try:
            _create(source, b"probe", sync=False)
            os.link(source, target)
            return _same_file(source, target) and not _can_link(source, target)
        finally:
            _forget(source)
            _forget(target)

    def _path(self, name: str) -> Path:
        path = self.root / check_name(name)
        _refuse_link(path.parent)
        _refuse_other_kinds(path)
        return path

    def _fsync(self, path: Path) -> None:
        if self.fsync:
            sync_path(path)


_ELSEWHERE = (
    "which cannot commit exactly once (no create-if-absent). Put the checkpoint on one machine on a local disk, such as"
    " ext4, xfs or btrfs; on a cluster in a shared POSIX folder with hard links, which every machine mounts"
)
_WHO = "Find out what created it"


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StateError(f"{path} is a symbolic link; state files never are. {_WHO}")


def _refuse_other_kinds(path: Path) -> None:
    """Raise for anything but a plain file: a link leads elsewhere, and a pipe or device may have no end."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a plain file"
        raise StateError(f"{path} is {kind}; state files are plain files. {_WHO}")


def _create(path: Path, *data: Data, sync: bool) -> None:
    """Create a whole file or none: after an error, which a full disk can cause, the partial file is removed."""
    descriptor = os.open(path, _CREATE_FLAGS, 0o600)
    try:
        for part in data:
            _write_all(descriptor, part)
        if sync:
            sync_open(descriptor, path)
    except OSError:
        _forget(path)
        raise
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: Data) -> None:
    view = memoryview(data)
    rest = view.cast("B") if view.nbytes else view
    while rest.nbytes:
        rest = rest[os.write(descriptor, rest) :]


def _link(temporary: Path, final: Path) -> bool:
    """Return whether this call created `final`. The files decide, because a failed call may still have created the
    link."""
    try:
        os.link(temporary, final, follow_symlinks=False)
    except OSError as error:
        if _same_file(temporary, final):
            return True
        if isinstance(error, FileExistsError):
            return False
        raise
    return True


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except FileNotFoundError:
        return False


def _can_link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    return True


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
