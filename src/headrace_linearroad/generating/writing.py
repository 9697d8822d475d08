"""Writer of generated traffic: tuples as one Arrow file per second or as one text, histories, and planted cases.

A file gets its name when it is complete. A folder is complete when it has `_complete.json`, which is written last.
"""

from __future__ import annotations

import errno
import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from headrace.errors import WorkloadError
from headrace_demo.workloads.writing import new_folder
from headrace_linearroad.forms import (
    COMPLETE,
    FIELDS,
    HISTORY,
    INPUT,
    SEGMENT_HISTORY,
    SEGMENTS,
    TOLL_HISTORY,
    TOLLS,
)
from headrace_linearroad.generating.demand import Demand
from headrace_linearroad.generating.histories import Segments, Tolls
from headrace_linearroad.generating.rows import numbers
from headrace_linearroad.generating.settings import Settings
from headrace_linearroad.generating.traffic import Traffic
from headrace_linearroad.generating.world import HOURS

FORM = 1  # format number of _complete.json
TRUTH = "truth.json"
HISTORIES = ("needed", "complete", "none")
BYTES = {"columns": 37, "text": 50}  # approximate bytes per tuple
LEVEL = 4  # gzip level: ten times faster than the highest, and output a sixth larger
TEXT = csv.WriteOptions(include_header=False, quoting_style="none")


@dataclass(frozen=True)
class Job:
    """The part of the three hours to write, and how. text: name of one text file, compressed if it ends in .gz."""

    begin: int = 0
    seconds: int = HOURS
    text: str | None = None
    history: str = "needed"

    def __post_init__(self) -> None:
        if not 0 <= self.begin < HOURS:
            raise WorkloadError(f"the first second must be 0 to {HOURS - 1:,} (three hours); found {self.begin}")
        if not 1 <= self.seconds <= HOURS - self.begin:
            msg = f"the length must be 1 to {HOURS - self.begin:,} seconds from second {self.begin}"
            raise WorkloadError(f"{msg}; found {self.seconds}")
        if self.history not in HISTORIES:
            raise WorkloadError(f"there is no history {self.history!r}; expected one of {', '.join(HISTORIES)}")
        if self.text is not None:
            self._check_text(self.text)

    @staticmethod
    def _check_text(name: str) -> None:
        if (
            not name
            or Path(name).name != name
            or name[0] in "._"
            or name in (TRUTH, HISTORY)
            or name.endswith(".arrow")
        ):
            msg = f"{name!r} cannot be the text's name; give a file name such as 'cars.dat' or 'cars.dat.gz'"
            raise WorkloadError(msg)

    @property
    def end(self) -> int:
        return self.begin + self.seconds

    @property
    def is_packed(self) -> bool:
        return self.text is not None and self.text.endswith(".gz")


@dataclass
class Written:
    """Counts of what is written so far."""

    seconds: int = 0
    files: int = 0
    tuples: int = 0
    kinds: Counter[int] = field(default_factory=Counter)

    def add(self, table: pa.Table, files: int) -> None:
        self.seconds, self.files, self.tuples = self.seconds + 1, self.files + files, self.tuples + table.num_rows
        kinds = np.bincount(numbers(table, "type"))
        self.kinds.update({kind: int(count) for kind, count in enumerate(kinds) if count})


def expected(settings: Settings, job: Job) -> int:
    """Return the approximate number of tuples."""
    seconds = np.arange(job.begin, job.end)
    return round(float(Demand(settings.density).tuples(seconds).sum()) * settings.expressways)


def write(
    settings: Settings, folder: Path, job: Job, tell: Callable[[Written, str], None] = lambda *_: None
) -> Written:
    """Write everything to a new or empty folder. `tell` is called with the progress and the current activity."""
    folder = new_folder(folder)
    _has_room(settings, folder, job)
    traffic, written = Traffic(settings), Written()
    tolls = Tolls(settings, traffic.cast.unknown)
    with _sink(folder, job) as put:
        for second, table in traffic.seconds(job.begin, job.end, lambda: tell(written, "preparing cars on the road")):
            written.add(table, put(second, table))
            if job.history == "needed":
                tolls.see(table)
            tell(written, "")
    if job.history != "none":
        write_histories(traffic, tolls, folder, job, lambda: tell(written, "writing histories"))
    write_json(folder / TRUTH, traffic.cast.truth(job.begin, job.end))
    write_json(folder / COMPLETE, _summary(settings, job, written))
    return written


def _summary(settings: Settings, job: Job, written: Written) -> dict[str, Any]:
    counted = {"files": written.files, "tuples": written.tuples, "kinds": dict(sorted(written.kinds.items()))}
    return {"form": FORM, **counted, **asdict(job), **asdict(settings)}


def _has_room(settings: Settings, folder: Path, job: Job) -> None:
    """Raise now if the disk is too small, not after hours of work."""
    if job.is_packed:
        return
    needed = expected(settings, job) * BYTES["columns" if job.text is None else "text"]
    free = shutil.disk_usage(folder).free
    if needed > free:
        msg = f"this needs some {needed / 1e9:,.1f} GB, but only {free / 1e9:,.1f} GB are free in {str(folder)!r}"
        raise WorkloadError(f"{msg}; generate fewer expressways or seconds")


# --- tuples -----------------------------------------------------------------------------------------------------------


@contextmanager
def _sink(folder: Path, job: Job) -> Iterator[Callable[[int, pa.Table], int]]:
    """Yield a function that writes the tuples of a second and returns the number of new files."""
    if job.text is None:
        yield lambda second, table: put_columns(folder, second, table)
        return
    schema = pa.schema([INPUT.field(name) for name in FIELDS])
    with _text(folder / job.text, schema, job.is_packed) as writer:

        def put(second: int, table: pa.Table) -> int:
            writer.write_table(table.select(FIELDS))
            return int(second == job.begin)

        yield put


def put_columns(folder: Path, second: int, table: pa.Table) -> int:
    if not table.num_rows:
        return 0
    with columns(folder / f"{second:06d}.arrow", table.schema) as writer:
        writer.write_table(table)
    return 1


# --- histories --------------------------------------------------------------------------------------------------------


def history_paths(folder: Path, job: Job) -> tuple[Path, Path]:
    """Return the paths of the histories of tolls and of segments."""
    suffix = ".arrow" if job.text is None else ".csv.gz" if job.is_packed else ".csv"
    tolls, segments = (Path(folder, HISTORY, name).with_suffix(suffix) for name in (TOLLS, SEGMENTS))
    return tolls, segments


def write_histories(traffic: Traffic, tolls: Tolls, folder: Path, job: Job, tell: Callable[[], None]) -> None:
    segments = Segments(traffic.settings)
    if job.history == "needed":
        parts = tolls.needed(), segments.needed()
    else:
        cars = tolls.complete(traffic.demand, job.begin, job.end, traffic.cast.vids)
        parts = cars, segments.complete()
    (folder / HISTORY).mkdir()
    for path, schema, tables in zip(history_paths(folder, job), (TOLL_HISTORY, SEGMENT_HISTORY), parts, strict=True):
        with columns(path, schema) if job.text is None else _text(path, schema, job.is_packed) as writer:
            for table in tables:
                writer.write_table(table)
                tell()


# --- files ------------------------------------------------------------------------------------------------------------


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path, and rename it when the file is complete. After an error the file is deleted."""
    hidden = path.with_name(f"_{path.name}")
    try:
        yield hidden
        hidden.rename(path)
    except OSError as error:
        full = "; free some space, or generate less" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise WorkloadError(f"cannot write {str(path)!r}: {error.strerror or error}{full}") from None
    finally:
        hidden.unlink(missing_ok=True)


@contextmanager
def columns(path: Path, schema: pa.Schema) -> Iterator[Any]:
    with whole(path) as hidden, pa.OSFile(str(hidden), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        yield writer


@contextmanager
def _text(path: Path, schema: pa.Schema, packed: bool) -> Iterator[Any]:
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(stack.enter_context(whole(path)), "wb"))
        if packed:
            file = stack.enter_context(gzip.GzipFile("", "wb", LEVEL, file, mtime=0))
        yield stack.enter_context(csv.CSVWriter(file, schema, write_options=TEXT))


def write_json(path: Path, content: dict[str, Any]) -> None:
    with whole(path) as hidden:
        hidden.write_text(json.dumps(content, indent=1) + "\n")
