"""Checks of whether other users of the machine can change the content of a path.

A folder is guarded if no other user can replace it or add files to it. That depends on the folder, on every folder
above it and on every symbolic link on the path. The superuser counts as the owner, because no folder is safe from the
superuser.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

STEPS = 1000  # most steps along a path, because symbolic links can form a cycle

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def exposed_path(folder: Path, *, shared: bool = False) -> Path | None:
    """Return the folder or link on the path, including `folder`, that other users can change, or None if the folder is
    guarded.

    shared: allow folders in which others may create their own files.
    """
    place, ahead = Path("/"), _names(folder.absolute())
    for _ in range(STEPS):
        found = place.lstat()
        if stat.S_ISLNK(found.st_mode):
            if not _is_trusted(found):
                return place
            target = place.readlink()
            place, ahead = Path("/") if target.is_absolute() else place.parent, [*ahead, *_names(target)]
        elif not (_keeps_its_entries(found) if ahead or shared else is_ours(found)):
            return place
        elif not ahead:
            return None
        else:
            name = ahead.pop()
            place = place.parent if name == ".." else place / name
    return folder


def make_private_folder(folder: Path) -> None:
    """Create a folder that is closed to other users. Missing parents are created readable but not writable for others,
    whatever the umask.
    """
    for parent in reversed([p for p in folder.parents if not p.exists()]):
        parent.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def is_ours(found: os.stat_result) -> bool:
    """Return whether only this user can write a folder or file."""
    return found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE


def is_private(folder: Path) -> bool:
    """Return whether other users cannot enter a folder, which protects its content whatever its mode."""
    return not folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) and exposed_path(folder) is None


def _keeps_its_entries(found: os.stat_result) -> bool:
    """Return whether others cannot rename entries in a folder: they cannot write it, or may rename only their own
    entries.
    """
    return _is_trusted(found) and not (found.st_mode & _OTHERS_WRITE and not found.st_mode & stat.S_ISVTX)


def _is_trusted(found: os.stat_result) -> bool:
    return found.st_uid in (0, os.geteuid())


def _names(path: Path) -> list[str]:
    """Return the parts of a path, last first."""
    return [name for name in reversed(path.parts) if name != path.anchor]
