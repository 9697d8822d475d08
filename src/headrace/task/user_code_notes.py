"""Notes of tasks about the user code that they call, so that the driver can name the code in which a process died.

A task rewrites one small file in the state folder before each call, and removes the file when the task ends. The file
of a process that died remains, with the call in progress. It is a temporary file, which the next start removes.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.support.user_code import note_calls

NOTE_BYTES = 400  # bytes of a note


def _path(folder: str, run: str, attempt: int) -> Path:
    return Path(folder) / "blocks" / f"_call-{run}-{attempt}"


class _File:
    """The note of one task. Its file is created with the first call, because most tasks call no user code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content: mmap.mmap | None = None

    def __call__(self, words: str) -> None:
        with contextlib.suppress(OSError):  # a note is optional and must not fail the task
            if self._content is None:
                self._content = self._mapped()
            self._content[:] = words.encode()[:NOTE_BYTES].ljust(NOTE_BYTES)

    def _mapped(self) -> mmap.mmap:
        """Return the mapped file. Writing to it needs no system call, and its content outlives the process."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(handle, b" " * NOTE_BYTES, 0)  # reserves disk space: a mapped hole could kill the process
            return mmap.mmap(handle, NOTE_BYTES)
        finally:
            os.close(handle)

    def remove(self) -> None:
        if self._content is not None:
            self._content.close()
            self._path.unlink(missing_ok=True)


@contextmanager
def note_user_code(folder: str, run: str, attempt: int) -> Iterator[None]:
    """Note the user code that this task calls, as long as the block lasts."""
    note = _File(_path(folder, run, attempt))
    try:
        with note_calls(note):
            yield
    finally:
        note.remove()


def last_user_call(folder: str, run: str, attempt: int) -> str:
    """Return the call that a task was making when its process died; empty: none."""
    try:
        return _path(folder, run, attempt).read_bytes()[:NOTE_BYTES].decode(errors="replace").strip()
    except OSError:
        return ""
