"""Paths that users give, and folders that others can reach.

Invariant: what names a place of another kind, such as s3a://bucket/folder, never becomes a folder of that name here. The
places that can be used are those of `SCHEMES`.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote

from headrace.errors import QueryError, QueryTypeError

MOUNTED_SCHEMES = ("file",)  # a mounted file system; beside it, paths as they are
LOCAL = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "tmpfs", "overlay"])
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)


def mounted_path(path: str | os.PathLike[str], what: str) -> Path:
    """The path in the mounted file systems that was given for `what`; refuses places of any other scheme."""
    text = os.fspath(path)
    found = _URI.match(text) if isinstance(text, str) else None
    if found is None or (found[2] == "/" and Path(f"{found[1]}:").is_dir()):  # a folder may really be called "a:"
        return Path(path)
    scheme, slashes, rest = found.groups()
    if scheme.lower() not in MOUNTED_SCHEMES:
        msg = (
            f"{what} cannot be at {text!r:.200}: headrace does not use places of the scheme {scheme!r}, but paths of mounted"
            " file systems, plain or as file:///folder; mount it and give the path that it has then; to read from"
            " elsewhere, use headrace.stream(spark.readStream...)"
        )
        raise QueryError(msg)
    host, slash, below = rest.partition("/") if slashes == "//" else ("", "/", rest)
    if host not in ("", "localhost") or not slash:
        raise QueryError(f"{what} cannot be at {text!r:.200}: a file of another machine; write file:///folder")
    return Path("/", unquote(below).lstrip("/"))


def given_path(path: str | os.PathLike[str], what: str) -> Path:
    """A path as it was given for `what`, or an error that no system call could say as well."""
    try:
        found = mounted_path(path, what)
    except TypeError:
        raise QueryTypeError(f"{what} takes a path, as text or as a Path; found {path!r}") from None
    try:
        found.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what needs a file says so itself
    except (OSError, ValueError) as error:  # NUL, half of a character, a name too long, a folder that we may not enter
        reason = getattr(error, "strerror", None) or error
        raise QueryError(f"{what} cannot be at {str(found)!r:.200}: {reason}") from None
    return found


def lets_anyone_rename(folder: Path) -> bool:
    """Whether everybody may put something else in the place of what stands in a folder."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system below `path` as Linux names it, None where that is not known."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    return next((_mount_type(line) for line in mounts if line.split()[2] == wanted), None)


def _mount_type(line: str) -> str:
    return line.partition(" - ")[2].split()[0]


def is_local(path: Path) -> bool:
    """Return whether `path` is surely on a file system of this machine alone, so that all locks of its files are seen here."""
    return filesystem_of(path) in LOCAL
