"""Paths that users give, and the file systems and permissions of folders.

Invariant: a path with an unsupported scheme, such as s3a://bucket/folder, never becomes a local folder of that name.
`MOUNTED_SCHEMES` lists the supported schemes.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote

from headrace.errors import QueryError, QueryTypeError

MOUNTED_SCHEMES = ("file",)  # schemes of mounted file systems; plain paths are supported as well
LOCAL = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "tmpfs", "overlay"])
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(//?)(.*)", re.DOTALL)


def mounted_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path in the mounted file systems. `what` names the argument in errors. Raise for any other scheme."""
    text = os.fspath(path)
    found = _URI.match(text) if isinstance(text, str) else None
    if found is None or (found[2] == "/" and Path(f"{found[1]}:").is_dir()):  # a folder may really be named "a:"
        return Path(path)
    scheme, slashes, rest = found.groups()
    if scheme.lower() not in MOUNTED_SCHEMES:
        msg = (
            f"{what} cannot be at {text!r:.200}: headrace does not support the scheme {scheme!r}, only paths of mounted"
            " file systems, plain or as file:///folder; mount it and give its mounted path; to read from"
            " elsewhere, use headrace.stream(spark.readStream...)"
        )
        raise QueryError(msg)
    host, slash, below = rest.partition("/") if slashes == "//" else ("", "/", rest)
    if host not in ("", "localhost") or not slash:
        raise QueryError(f"{what} cannot be at {text!r:.200}: the URL names another machine; write file:///folder")
    return Path("/", unquote(below).lstrip("/"))


def given_path(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path given for `what`. Raise with a clear message if it cannot be a path."""
    try:
        found = mounted_path(path, what)
    except TypeError:
        raise QueryTypeError(f"{what} takes a path, as text or as a Path; found {path!r}") from None
    try:
        found.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # code that needs an existing file raises its own error
    # a zero byte, an incomplete character, a name that is too long, or a folder without access
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise QueryError(f"{what} cannot be at {str(found)!r:.200}: {reason}") from None
    return found


def lets_anyone_rename(folder: Path) -> bool:
    """Return whether every user may rename or replace entries of a folder."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system of `path` as Linux names it, or None if it is unknown."""
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
    """Return whether `path` is certainly on a local file system, so that all locks of its files are visible."""
    return filesystem_of(path) in LOCAL
