"""Where a run reads and writes: that nothing it writes lies where something else is, and that nobody else writes there now.

Beside the checkpoint is a folder of the run's own, `<checkpoint>.spool`. It is made with a lock in it, `run.lock`, and
whoever removes anything from it holds that lock: a folder without one that is not empty is somebody else's. What answers go
into is locked too.
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
LOCK, OUT_LOCK = "run.lock", "_run.lock"  # no reader of Parquet files looks at names that begin with _


def beside(path: Path, ending: str) -> Path:
    """What has the same name and something behind it."""
    named = path if path.name not in ("", "..") else path.resolve()
    return named.parent / f"{named.name}{ending}"


def check(out: Path, outputs: Sequence[str], checkpoint: Path, spool: Path, read: Mapping[str, Path]) -> None:
    """Whether a run can write where it was told to. read: what it reads, by what people call it."""
    for option, path in (("--out", out), ("--checkpoint", checkpoint)):
        _check_folder(option, path)
    written = [("--out", (out / name).resolve()) for name in outputs]
    written += [("--checkpoint", checkpoint.resolve()), ("--checkpoint", spool.resolve())]
    for number, (option, path) in enumerate(written):
        for what, known in ((what, path.resolve()) for what, path in read.items()):
            if known.is_relative_to(path):
                raise QueryError(f"{option} would be written to {str(path)!r}, where {what} is; give another {option}")
        for other, known in written[:number]:
            if path.is_relative_to(known) or known.is_relative_to(path):
                msg = f"{other} would be written to {str(known)!r} and {option} to {str(path)!r}, one within the other"
                raise QueryError(f"{msg}; give another {option}")
    _check_spool(spool)


def _check_folder(option: str, path: Path) -> None:
    if not path.resolve().name:
        raise QueryError(f"{option} is {str(path)!r}, the root of the file system; give a folder of its own")
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise QueryError(
                    f"{str(place)!r} is a file, so there is no folder {str(path)!r}; give another {option}"
                )
            if not os.access(place, os.W_OK | os.X_OK):
                raise QueryError(f"{str(place)!r} may not be written to by this user; give another {option}")
            return


def _check_spool(spool: Path) -> None:
    if spool.is_symlink() or (spool.exists() and not spool.is_dir()):
        raise QueryError(f"{str(spool)!r} is no folder, and a run needs one of that name; give another --checkpoint")
    if spool.is_dir() and not any((spool / name).exists() for name in (LOCK, NOTE)) and any(spool.iterdir()):
        msg = f"the folder {str(spool)!r} was not made by a run, and a run needs one of that name"
        raise QueryError(f"{msg}; give another --checkpoint")


@contextmanager
def held(spool: Path, answers: Path) -> Iterator[None]:
    """Nobody else writes there meanwhile. answers: one of the folders."""
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
    """What a start that was killed left, by who holds the folder; whatever else is in it is not ours."""
    for path in (folder / name for name in names):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def publish(path: Path, content: dict[str, Any]) -> None:
    """It is there when it is whole, and stays."""
    hidden = path.with_name(f"{path.name}.new")
    with open(hidden, "w") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)
