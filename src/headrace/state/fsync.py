"""That data is on the disk: asked once, and believed only when the disk confirms it."""

from __future__ import annotations

import os
from pathlib import Path

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SyncFailed(OSError):
    """The disk did not confirm that data is safe. Repeating the sync could report a false success: do not."""


def sync_path(path: Path) -> None:
    """fsync of a file or a folder by its path."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        sync_open(descriptor, path)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int, path: Path) -> None:
    """fsync of a file that is open; the path is for the error."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", str(path)) from error
