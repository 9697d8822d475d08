"""A stream in parts, as Parquet files that `hr.files` reads in their order, or wherever a `Put` takes them.

A part holds the tuples of one stretch of time, so where the parts are cut says nothing about what is in them together;
a stretch without tuples is an empty one. A file is complete when its name appears, and neither its modification time
nor its name is before those of the file before it, whatever the clock of the machine does.
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

MOST_FILES = 1000  # per second

Put = Callable[[int, pa.Table], None]  # takes the parts of a stream, which are numbered from 0


@dataclass(frozen=True)
class Written:
    """What there is so far."""

    files: int = 0  # or parts that went elsewhere
    tuples: int = 0
    seconds: float = 0.0  # of the stream
    behind: float = 0.0  # seconds by which the last file came too late, when written live


class RealTime:
    """Waits until a moment, in seconds after this was made; says by how many seconds it is past."""

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
    """Where files end, in microseconds after the beginning; the last may be shorter than the others.

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
    """The tuples of successive seconds, as (end, tuples since the end before)."""
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
    """A name that files can begin with, and that is not hidden."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\W_][\w.-]{0,99}", name):
        msg = f"the name of a stream begins with a letter or digit, then letters, digits, '-', '_', '.'; found {name!r}"
        raise WorkloadError(msg)


def new_folder(folder: str | os.PathLike[str]) -> Path:
    """A folder with nothing in it, made if need be."""
    path = given_path(folder, "a made-up stream")
    if path.exists() and not path.is_dir():
        raise WorkloadError(f"{str(path)!r} is a file; a folder is needed")
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
    """Each part when `wait` has returned for its end."""
    written = Written()
    for place, (end, table) in enumerate(parts):
        behind = wait(end / SECOND)
        put(place, table)
        written = Written(place + 1, written.tuples + table.num_rows, end / SECOND, behind)
        tell(written)
    return written


def into_files(folder: Path, name: str) -> Put:
    """name-000000.parquet and so on."""
    modified = 0

    def put(number: int, table: pa.Table) -> None:
        nonlocal modified
        modified = max(time.time_ns(), modified + 1)
        write_file(table, folder / f"{name}-{number:06d}.parquet", modified)

    return put


def write_file(table: pa.Table, path: Path, modified: int) -> None:
    """Complete when its name appears; if it cannot be completed, there is nothing of it."""
    hidden = path.with_name(f"_{path.name}")
    try:
        pq.write_table(table, hidden)
        os.utime(hidden, ns=(modified, modified))
        hidden.rename(path)
    except OSError as error:
        raise WorkloadError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    finally:
        hidden.unlink(missing_ok=True)
