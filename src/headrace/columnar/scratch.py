"""Scratch folders: temporary files of a process, such as spilled tuples and the state of a `collect`.

    every process has its own folder in a place    =>  the process created it, no other user can open it or predict its name
    a folder is removed                            =>  by its owner when it ends, or by the next process once its owner is dead

A living owner holds a lock on its folder, which ends with the process however that ends; process numbers, which are
used again, are never asked. On a local file system every lock is seen, so a folder without one is garbage, also one of an
earlier boot of the machine. On any other file system, and where its type is not known, only the folders of this machine since
its start are removed: the locks of other machines, which may share the place, may not be seen from here.
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
MOST_FOLDER_ATTEMPTS = 10  # a folder just made may be taken for a dead one before it is locked

_lock = threading.Lock()
_own: dict[Path | None, tuple[Path, int]] = {}  # by place the folder, and the descriptor that holds its lock


def own_folder(place: Path | None = None) -> Path:
    """This process's folder: in the place that is chosen for all, or in another."""
    with _lock:
        if place in _own and not _own[place][0].is_dir():  # removed by a program that cleans temporary folders
            os.close(_own.pop(place)[1])
        if place not in _own:
            found = place or scratch_place()
            _sweep(found)
            _own[place] = _make(found)
        return _own[place][0]


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """A folder for one piece of work, in that of the process."""
    folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=own_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scratch_place() -> Path:
    """The folder in which every process makes its own."""
    place = Path(os.environ.get(SCRATCH_VARIABLE) or tempfile.gettempdir()).absolute()
    way_out = f"set {SCRATCH_VARIABLE} to a folder of your own"
    if not place.is_dir():
        raise EngineError(f"there is no folder {str(place)!r} for scratch files; {way_out}")
    if lets_anyone_rename(place):  # usual in containers, where there is nobody else
        _log.warning("in %r everybody may rename the folders of others; chmod +t it, or %s", str(place), way_out)
    return place


@functools.cache
def machine_id() -> str:
    """This machine since it was started: whose locks can be seen. A container has its machine's."""
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
            msg = f"cannot make a folder in {str(place)!r}: {error.strerror}; set {SCRATCH_VARIABLE} to a folder of your own"
            raise EngineError(msg) from None
        if (descriptor := _hold(path)) is not None:
            return path, descriptor
    raise EngineError(f"folders in {str(place)!r} cannot be locked; set {SCRATCH_VARIABLE} to a folder on a local disk")


def _hold(path: Path) -> int | None:
    """The lock of a folder of ours; None when it lives, is gone or was never ours."""
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
    """Remove what dead processes of this user left here."""
    try:
        owner = "[0-9a-f]{16}" if is_local(place) else machine_id()
        pattern = re.compile(_prefix(owner) + "[a-z0-9_]{8}")  # as mkdtemp makes them
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name)]
    except OSError:  # a place that may be written and not listed
        return
    for path in found:
        if (descriptor := _hold(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


@atexit.register
def _leave() -> None:
    """And take along what Spark's Python workers left: they are never asked to leave, only killed."""
    while _own:
        _, (path, descriptor) = _own.popitem()
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)
        _sweep(path.parent)


def _after_fork() -> None:
    """A child makes its own; its copy of the descriptor would keep the parent's folder alive beyond the parent."""
    global _lock
    _lock = threading.Lock()
    while _own:
        os.close(_own.popitem()[1][1])


os.register_at_fork(after_in_child=_after_fork)
