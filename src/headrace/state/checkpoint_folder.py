"""Checks and the writer lock of the folders of a checkpoint.

- nothing is written before the checks of a folder: it is private, and empty or holds only files of a state
- one folder has one writer: the lock is held while the store is open
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
from pathlib import Path

from headrace.errors import StateError, WriterConflict
from headrace.state.fsync import sync_path

_log = logging.getLogger(__name__)

FOLDERS = ("blocks", "manifests")
LOCK = "writer.lock"
ENDED = "ended: "  # start of the note that a run leaves when it ends normally

_OWN = {*FOLDERS, LOCK}


def prepare_folder(folder: Path) -> None:
    """Create the folder or take it over; raise before the first write if it does not fit."""
    _refuse_other_kinds(folder)
    if not folder.exists():
        _make(folder)
    _refuse_foreign(folder)
    for path in (folder, *(folder / name for name in FOLDERS)):
        close_to_others(path)


def require_folder(folder: Path) -> None:
    """Raise unless the folder contains a state, which a reader needs."""
    _refuse_other_kinds(folder)
    if not folder.parent.is_dir():
        raise StateError(f"the folder {folder.parent} does not exist. Give the checkpoint of a query that has run")
    if not (folder / "manifests").is_dir():
        raise StateError(f"{folder} holds no state. Give the folder of a query that has run")


def _refuse_other_kinds(folder: Path) -> None:
    if folder.is_symlink():
        raise StateError(f"{folder} is a symbolic link. Give what it points to: {os.path.realpath(folder)}")
    if folder.exists() and not folder.is_dir():
        raise StateError(f"{folder} is a file. Give a folder for the state")


def _make(folder: Path) -> None:
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        for path in made:
            sync_path(Path(os.path.realpath(path.parent)))
    except OSError as error:
        raise StateError(f"cannot create {folder}: {error}. Give a folder that can be created") from error


def _refuse_foreign(folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StateError(f"{folder} cannot be written by this user. Change that, or give another folder")
    foreign = sorted(set(os.listdir(folder)) - _OWN)
    if foreign:
        raise StateError(f"{folder} holds files that are not state: {foreign[:5]}. Give an empty folder")


def close_to_others(folder: Path) -> None:
    """Remove access for others. Raise if the folder belongs to another user or others could have written to it."""
    _refuse_other_kinds(folder)
    if not folder.exists():
        return
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise StateError(f"{folder} belongs to user {found.st_uid}, not to you. Give a folder of your own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.listdir(folder):
        raise StateError(f"{folder} can be written by others. Check what is in it, then: chmod 700 {folder}")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        try:
            folder.chmod(0o700)
        except OSError as error:
            raise StateError(f"{folder} cannot be closed to others: {error}. Give a folder of your own") from error


class WriterLock:
    """An advisory lock that ends with the process. Its file has a note that names the holder."""

    def __init__(self, folder: Path, name: str = LOCK) -> None:
        self.path = folder / name
        self.left = ""
        self._descriptor: int | None = self._take()

    def _take(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise StateError(f"cannot open {self.path}: {error}. Check the folder's permissions") from error
        try:
            self._refuse_other_files(descriptor)
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _refuse_other_files(self, descriptor: int) -> None:
        """Raise unless the file to overwrite is a regular file without further hard links."""
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            msg = f"{self.path} is not a plain file or has further hard links. A lock file holds no state: remove it"
            raise StateError(msg)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            holder = said.splitlines()[0] if said else "another run"
            raise WriterConflict(
                f"{self.path.parent} is in use by {holder}. Stop that run, or give this one its own folder"
            ) from None
        except OSError as error:
            raise StateError(f"cannot lock {self.path}: {error}. Use a file system with locks (flock)") from error
        try:
            said = os.pread(descriptor, 400, 0).decode("utf-8", "replace").strip()
            self.left = said.splitlines()[-1] if said else ""
            ended = (
                f"{self.left}\n" if self.left.startswith(ENDED) else ""
            )  # keep the note of an earlier normal end, which is still true
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n{ended}".encode(), 0)
        except OSError as error:
            raise StateError(f"cannot write {self.path}: {error}. Free disk space, or repair the disk") from error

    def release(self, left: str = "") -> None:
        descriptor, self._descriptor = self._descriptor, None  # another thread may release it too
        if descriptor is None:
            return
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{left}\n".encode() if left else b"", 0)
        except OSError as error:  # the next run then assumes that this one was killed
            _log.warning("cannot update %s: %s. The next run will assume that this one was killed", self.path, error)
        finally:
            os.close(descriptor)
