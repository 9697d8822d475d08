"""Writing of a stream in parts: as Parquet files that `hr.files` reads in order, or through any `Put` function.

A part contains the tuples of one period of time, so cutting the parts elsewhere does not change the stream; a period
without tuples is an empty part. A file is complete when its name appears. Neither its modification time nor its name
precedes that of the previous file, whatever the machine's clock does.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import WorkloadError
from headrace.support.paths import given_path
from headrace_demo.workloads.checks import SECOND, number, whole

MOST_FILES = 1000  # most files per second

Put = Callable[[int, pa.Table], None]  # receives the parts of a stream, numbered from 0


@dataclass(frozen=True)
class Written:
    """The totals written so far."""

    files: int = 0  # files, or parts passed elsewhere
    tuples: int = 0
    seconds: float = 0.0  # seconds of the stream
    behind: float = 0.0  # seconds by which the last part was late, when written live


class RealTime:
    """Waits until a moment, in seconds after its creation. Returns by how many seconds the moment has passed."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, moment: float) -> float:
        left = self.began + moment - time.monotonic()
        if left > 0:
            time.sleep(left)
        return max(0.0, -left)


def at_once(moment: float) -> float:
    return 0.0


def ends(seconds: int, per_second: float) -> Iterator[int]:
    """Return the ends of files in microseconds after the beginning. The last file may be shorter than the others.

    >>> list(ends(2, 0.75))
    [1333333, 2000000]
    """
    if not 0 < number(per_second, "files per second") <= MOST_FILES:
        msg = f"files per second must be more than 0 and at most {MOST_FILES:,}; found {per_second!r}"
        raise WorkloadError(msg)
    total = whole(seconds, "seconds", 1) * SECOND
    found = (round(n * SECOND / per_second) for n in itertools.count(1))
    return itertools.chain(itertools.takewhile(lambda end: end < total, found), [total])


def cut(tables: Iterable[pa.Table], begin: int, ends: Iterator[int]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the tuples of successive seconds as (end, tuples since the previous end)."""
    end, kept = next(ends), list[pa.Table]()
    for second, table in enumerate(tables):
        at, start = table["ts"].cast(pa.int64()).to_numpy() - begin, 0
        while end <= (second + 1) * SECOND:
            stop = int(np.searchsorted(at, end))
            yield end, pa.concat_tables([*kept, table.slice(start, stop - start)])
            kept, start = [], stop
            if (following := next(ends, None)) is None:
                return
            end = following
        kept.append(table.slice(start))


def check_name(name: Any) -> None:
    """Raise unless the name can begin the names of visible files."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W_][\w.-]{0,99}", name):
        msg = f"the name of a stream must begin with a letter or digit, followed by letters, digits, '-', '_' and '.'; found {name!r}"
        raise WorkloadError(msg)


def new_folder(folder: str | os.PathLike[str]) -> Path:
    """Return an empty folder, created if necessary."""
    path = given_path(folder, "a made-up stream")
    if path.exists() and not path.is_dir():
        raise WorkloadError(f"{str(path)!r} is a file; give a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise WorkloadError(f"the folder {str(path)!r} is not empty; choose another, or empty it")
    except OSError as error:
        raise WorkloadError(f"cannot use the folder {str(path)!r}: {error.strerror}") from None
    return path


def write(
    parts: Iterable[tuple[int, pa.Table]],
    put: Put,
    wait: Callable[[float], float],
    tell: Callable[[Written], None],
) -> Written:
    """Pass each part to `put` after `wait` has returned for its end."""
    written = Written()
    for place, (end, table) in enumerate(parts):
        behind = wait(end / SECOND)
        put(place, table)
        written = Written(place + 1, written.tuples + table.num_rows, end / SECOND, behind)
        tell(written)
    return written


def into_files(folder: Path, name: str) -> Put:
    """Return a function that writes parts to name-000000.parquet and so on."""
    modified = 0

    def put(number: int, table: pa.Table) -> None:
        nonlocal modified
        modified = max(time.time_ns(), modified + 1)
        write_file(table, folder / f"{name}-{number:06d}.parquet", modified)

    return put


def write_file(table: pa.Table, path: Path, modified: int) -> None:
    """Write a file atomically. If writing fails, nothing of it remains."""
    hidden = path.with_name(f"_{path.name}")
    try:
        pq.write_table(table, hidden)
        os.utime(hidden, ns=(modified, modified))
        hidden.rename(path)
    except OSError as error:
        raise WorkloadError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    finally:
        hidden.unlink(missing_ok=True)
