"""Generated tuples in files: one of columns for every second, or one text.

A file is whole when its name appears, and a folder is when it holds `_complete.json`, which is written last.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import WorkloadError
from headrace_linearroad.forms import COMPLETE
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic


@dataclass(frozen=True)
class Written:
    """What there is so far."""

    seconds: int = 0
    tuples: int = 0


def new_folder(folder: Path) -> Path:
    """A folder with nothing in it, made if need be."""
    if folder.exists() and not folder.is_dir():
        raise WorkloadError(f"{str(folder)!r} is a file; a folder is needed")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise WorkloadError(f"the folder {str(folder)!r} is not empty; choose another, or empty it")
    except OSError as error:
        raise WorkloadError(f"cannot use the folder {str(folder)!r}: {error.strerror}") from None
    return folder


def name(second: int) -> str:
    return f"{second:06d}.arrow"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to; the file has its name when it is whole, and there is nothing of one that cannot be."""
    hidden = path.with_name(f"_{path.name}")
    try:
        yield hidden
        hidden.rename(path)
    except OSError as error:
        full = "; the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise WorkloadError(f"cannot write {str(path)!r}: {error.strerror or error}{full}") from None
    finally:
        hidden.unlink(missing_ok=True)


def write_table(path: Path, table: pa.Table) -> None:
    with whole(path) as hidden, pa.OSFile(str(hidden), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def write(
    settings: Settings,
    folder: Path,
    begin: int,
    seconds: int,
    tell: Callable[[Written], None] = lambda _: None,
) -> Written:
    """The tuples of so many seconds, in a new or empty folder."""
    folder, written = new_folder(folder), Written()
    for second, table in Traffic(settings).seconds(begin, begin + seconds):
        if table.num_rows:
            write_table(folder / name(second), table)
        written = Written(second + 1 - begin, written.tuples + table.num_rows)
        tell(written)
    write_json(folder / COMPLETE, {"begin": begin, "seconds": seconds, "tuples": written.tuples})
    return written


def write_json(path: Path, content: dict[str, Any]) -> None:
    with whole(path) as hidden, open(hidden, "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
