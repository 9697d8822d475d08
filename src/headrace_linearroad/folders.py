"""Validation of a folder of input files before a run begins.

Each file must contain the tuples of one second, and the order of the file names must be the order of the seconds.
Otherwise the number of late tuples would depend on how the files are divided into epochs. This module does not check
fields: the query sets invalid tuples aside one by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SourceError
from headrace_linearroad.forms import FIELDS, INPUT, REPORT
from headrace_linearroad.reading import OF_ALL, OF_REPORTS, SECOND
from headrace_linearroad.telling import Say
from headrace_linearroad.wandering import FIELDS as WATCHED
from headrace_linearroad.wandering import Watch

Columns = dict[str, npt.NDArray[Any]]


def look_through(folder: Path, profile: str, tell: Say = lambda _: None) -> str:
    """Check all files of the folder, and return the first car behaviour that the usual plan does not support, or ""."""
    watch, clock, before = Watch(profile), -1, ""
    files = sorted(folder.glob("[!_.]*.arrow"))
    for number, path in enumerate(files):
        tell(f"looking through {folder}: {number:,} of {len(files):,} seconds")
        table = _read(path)
        instant = _instant(path, table)
        if instant is None:
            continue
        if instant <= clock:
            raise SourceError(
                f"{str(path)!r} has tuples of {_second(instant)} s, but the file before it, {before!r}, has tuples of"
                f" {_second(clock)} s; name the files in the order of their seconds"
            )
        clock, before = instant, path.name
        if not watch.found:
            watch.see(_reports(table, instant))
    return watch.found


def _read(path: Path) -> pa.Table:
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{str(path)!r} is not an Arrow file: {error}; generate it again") from None
    kinds = {field.name: field.type for field in table.schema}
    fits = all(pa.types.is_integer(kinds.get(name, pa.null())) for name in FIELDS)
    if not fits or not pa.types.is_timestamp(kinds.get("ts", pa.null())):
        found = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise SourceError(
            f"{str(path)!r} has columns {found}; expected a timestamp ts, and integers {', '.join(FIELDS)}"
        )
    return table


def _instant(path: Path, table: pa.Table) -> int | None:
    """Return the time of all tuples of the file, in microseconds, or None if it has no tuples."""
    ts = table["ts"].cast(INPUT.field("ts").type).cast(pa.int64())
    bounds = pc.min_max(ts).as_py()
    first, last = bounds["min"], bounds["max"]
    if first != last:
        other = int(pc.index(ts, last if first == pc.mode(ts)[0]["mode"].as_py() else first).as_py())
        row = {name: table[name][other].as_py() for name in ("type", "time", "vid")}
        raise SourceError(
            f"{str(path)!r} has tuples of more than one second: {_second(first)} s and {_second(last)} s, for example"
            f" {row} in row {other + 1:,}; write one file per second"
        )
    return None if first is None else int(first)


def _second(instant: int) -> str:
    return f"{instant / SECOND:.6g}"


def _reports(table: pa.Table, instant: int) -> Columns:
    """Return the valid reports, with the columns that `Watch` needs."""
    used = table.select(["type", *OF_ALL, *OF_REPORTS])
    if any(column.null_count for column in used.columns):
        used = used.drop_null()
    columns = {name: used[name].to_numpy() for name in used.column_names}
    counts = (columns["type"] == REPORT) & (columns["time"].astype(np.int64) * SECOND == instant)
    for name, (least, largest) in {**OF_ALL, **OF_REPORTS}.items():
        counts &= (columns[name] >= least) & (columns[name] <= largest)
    return {name: columns[name][counts] for name in WATCHED}
