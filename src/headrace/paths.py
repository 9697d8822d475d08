"""Paths that users give, and folders that others can reach."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headrace.errors import QueryError, QueryTypeError


def given_path(path: str | os.PathLike[str], what: str) -> Path:
    """A path as it was given for `what`, or an error that no system call could say as well."""
    try:
        found = Path(path)
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
