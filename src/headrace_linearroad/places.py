"""Checks and locks of a run's folders: no folder overlaps another or an input, and only one process writes to them.

Each run has a folder beside its checkpoint, `<checkpoint>.spool`, which is created with a lock file, `run.lock`. A
process removes files from the folder only while it holds the lock. A folder that is not empty and has no lock file
belongs to another program. One of the folders of answers is locked too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace.errors import QueryError, WriterConflict
from headrace.state.checkpoint_folder import WriterLock

NOTE = "_run.json"
LOCK, OUT_LOCK = "run.lock", "_run.lock"  # readers of Parquet files ignore names that begin with _


def beside(path: Path, ending: str) -> Path:
    """Return the path in the same folder whose name is that of `path` plus `ending`."""
    named = path if path.name not in ("", "..") else path.resolve()
    return named.parent / f"{named.name}{ending}"


def check(out: Path, outputs: Sequence[str], checkpoint: Path, spool: Path, read: Mapping[str, Path]) -> None:
    """Raise if the run cannot write to its folders. read: paths that the run reads, by the names used in messages."""
    for option, path in (("--out", out), ("--checkpoint", checkpoint)):
        _check_folder(option, path)
    written = [("--out", (out / name).resolve()) for name in outputs]
    written += [("--checkpoint", checkpoint.resolve()), ("--checkpoint", spool.resolve())]
    for number, (option, path) in enumerate(written):
        for what, known in ((what, path.resolve()) for what, path in read.items()):
            if known.is_relative_to(path):
                raise QueryError(f"{option} would write to {str(path)!r}, where {what} is; give another {option}")
        for other, known in written[:number]:
            if path.is_relative_to(known) or known.is_relative_to(path):
                msg = f"{other} would write to {str(known)!r} and {option} to {str(path)!r}, one within the other"
                raise QueryError(f"{msg}; give another {option}")
    _check_spool(spool)


def _check_folder(option: str, path: Path) -> None:
    if not path.resolve().name:
        raise QueryError(f"{option} is {str(path)!r}, the root of the file system; give a separate folder")
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise QueryError(
                    f"{str(place)!r} is a file, so there is no folder {str(path)!r}; give another {option}"
                )
            if not os.access(place, os.W_OK | os.X_OK):
                raise QueryError(f"this user may not write to {str(place)!r}; give another {option}")
            return


def _check_spool(spool: Path) -> None:
    if spool.is_symlink() or (spool.exists() and not spool.is_dir()):
        raise QueryError(
            f"{str(spool)!r} is not a folder, but the run needs a folder of that name; give another --checkpoint"
        )
    if spool.is_dir() and not any((spool / name).exists() for name in (LOCK, NOTE)) and any(spool.iterdir()):
        msg = f"the folder {str(spool)!r} was not made by a run, but the run needs a folder of that name"
        raise QueryError(f"{msg}; give another --checkpoint")


@contextmanager
def held(spool: Path, answers: Path) -> Iterator[None]:
    """Lock the run's folders until the context ends. answers: one of the folders of answers."""
    _check_spool(spool)
    with ExitStack() as stack:
        for folder, name, option in ((spool, LOCK, "--checkpoint"), (answers, OUT_LOCK, "--out")):
            folder.mkdir(parents=True, exist_ok=True)
            stack.callback(_lock(folder, name, option).release)
        yield


def _lock(folder: Path, name: str, option: str) -> WriterLock:
    try:
        return WriterLock(folder, name)
    except WriterConflict as error:
        raise WriterConflict(f"{error}: another {option}") from None


def remove(folder: Path, names: Sequence[str]) -> None:
    """Delete what a killed start left, while the lock is held. Other files in the folder are kept."""
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def publish(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically and durably."""
    hidden = path.with_name(f"{path.name}.new")
    with open(hidden, "w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)
