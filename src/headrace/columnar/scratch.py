"""Scratch folders: the temporary files of a process, such as spilled tuples and the state of a `collect`.

    every process has its own folder in a place    =>  the process created it, no other user can open it or predict its name
    a folder is removed                            =>  by its owner when it ends, or by the next process once its owner is dead

A running owner holds a lock on its folder, which the system releases when the process ends. Process numbers are not
used, because systems reuse them. On a local file system every lock is visible, so a folder without one is garbage, even
from an earlier boot. On any other or unknown file system, only folders that this machine created since its start are
removed, because the locks of other machines that share the file system may be invisible.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import EngineError
from headrace.support.paths import is_local, lets_anyone_rename

SCRATCH_VARIABLE = "HEADRACE_SCRATCH"
_log = logging.getLogger(__name__)
MOST_FOLDER_ATTEMPTS = 10  # another process may remove a new folder before it is locked

_lock = threading.Lock()
_own: dict[Path | None, tuple[Path, int]] = {}  # place -> (folder, descriptor that holds its lock)


def own_folder(place: Path | None = None) -> Path:
    """Return this process's scratch folder, in `place` or in the default location."""
    with _lock:
        # another program removed it, such as a cleaner of temporary folders
        if place in _own and not _own[place][0].is_dir():
            os.close(_own.pop(place)[1])
        if place not in _own:
            found = place or scratch_place()
            _sweep(found)
            _own[place] = _make(found)
        return _own[place][0]


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Yield a temporary folder within the process's scratch folder. It is deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=own_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scratch_place() -> Path:
    """Return the folder in which every process creates its scratch folder."""
    place = Path(os.environ.get(SCRATCH_VARIABLE) or tempfile.gettempdir()).absolute()
    way_out = f"set {SCRATCH_VARIABLE} to a folder that only you can write"
    if not place.is_dir():
        raise EngineError(f"there is no folder {str(place)!r} for scratch files; {way_out}")
    if lets_anyone_rename(place):  # common in containers, which have no other users
        _log.warning("every user may rename other users' folders in %r; run chmod +t on it, or %s", str(place), way_out)
    return place


@functools.cache
def machine_id() -> str:
    """Return an id of this machine's current boot, within which locks are visible. Containers have the id of their
    host.
    """
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        booted = socket.gethostname()
    return hashlib.sha256(booted.encode()).hexdigest()[:16]


def _prefix(owner: str) -> str:
    return f"headrace-scratch-{owner}-"


def _make(place: Path) -> tuple[Path, int]:
    for _ in range(MOST_FOLDER_ATTEMPTS):
        try:
            path = Path(tempfile.mkdtemp(prefix=_prefix(machine_id()), dir=place))
        except OSError as error:
            msg = f"cannot create a folder in {str(place)!r}: {error.strerror}; set {SCRATCH_VARIABLE} to a folder that only you can write"
            raise EngineError(msg) from None
        if (descriptor := _hold(path)) is not None:
            return path, descriptor
    raise EngineError(f"folders in {str(place)!r} cannot be locked; set {SCRATCH_VARIABLE} to a folder on a local disk")


def _hold(path: Path) -> int | None:
    """Lock a folder and return the descriptor. None: its owner is running, it is gone, or it is another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if ours and os.path.samestat(found, path.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _sweep(place: Path) -> None:
    """Remove the folders of this user's dead processes."""
    try:
        owner = "[0-9a-f]{16}" if is_local(place) else machine_id()
        pattern = re.compile(_prefix(owner) + "[a-z0-9_]{8}")  # the pattern of mkdtemp
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:  # a folder that may be written but not listed
        return
    for path in found:
        if (descriptor := _hold(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


@atexit.register
def _leave() -> None:
    """Remove this process's folders and those of Spark's Python workers, which Spark kills without cleanup."""
    while _own:
        _, (path, descriptor) = _own.popitem()
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
        _sweep(path.parent)


def _after_fork() -> None:
    """Let a forked child create its own folders. Its copy of the descriptor would keep the parent's lock after the
    parent ends.
    """
    global _lock
    _lock = threading.Lock()
    while _own:
        os.close(_own.popitem()[1][1])


os.register_at_fork(after_in_child=_after_fork)
