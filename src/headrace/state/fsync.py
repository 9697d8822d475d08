"""Syncing of files and folders to disk; an error is never retried."""

from __future__ import annotations

import os
from pathlib import Path

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SyncFailed(OSError):
    """The disk did not confirm that data is durable. Do not repeat the sync: it could report a false success."""


def sync_path(path: Path) -> None:
    """Sync a file or folder, given by its path."""
    descriptor = os.open(path, _OPEN_FLAGS)
    try:
        sync_open(descriptor, path)
    finally:
        os.close(descriptor)


def sync_open(descriptor: int, path: Path) -> None:
    """Sync an open file. path: named in the error."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", str(path)) from error
