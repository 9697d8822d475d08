"""A folder of files of one second, looked through before a run begins: nothing is answered from one that contradicts itself.

A file has the tuples of one second, and files are in the order of their seconds when they are in that of their names;
else what counts as late would depend on how the files are cut into epochs. Tuples that cannot be meant are another matter:
they are kept apart one by one when they are read.
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
    """What a car does that the usual plan takes for granted that no car does."""
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
                f"{str(path)!r} has tuples of {_second(instant)} s, and {before!r} before it of {_second(clock)} s; files of"
                " seconds must be named in the order of their seconds"
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
        raise SourceError(f"{str(path)!r} is no Arrow file: {error}; make it anew") from None
    kinds = {field.name: field.type for field in table.schema}
    fits = all(pa.types.is_integer(kinds.get(name, pa.null())) for name in FIELDS)
    if not fits or not pa.types.is_timestamp(kinds.get("ts", pa.null())):
        found = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        raise SourceError(
            f"{str(path)!r} has columns {found}; expected a time ts, and whole numbers {', '.join(FIELDS)}"
        )
    return table


def _instant(path: Path, table: pa.Table) -> int | None:
    """Microseconds of all its tuples; None: there are none."""
    ts = table["ts"].cast(INPUT.field("ts").type).cast(pa.int64())
    bounds = pc.min_max(ts).as_py()
    first, last = bounds["min"], bounds["max"]
    if first != last:
        other = int(pc.index(ts, last if first == pc.mode(ts)[0]["mode"].as_py() else first).as_py())
        row = {name: table[name][other].as_py() for name in ("type", "time", "vid")}
        raise SourceError(
            f"{str(path)!r} has tuples of more than one second: {_second(first)} s and {_second(last)} s; such as {row}, in row"
            f" {other + 1:,}; each second has a file of its own"
        )
    return None if first is None else int(first)


def _second(instant: int) -> str:
    return f"{instant / SECOND:.6g}"


def _reports(table: pa.Table, instant: int) -> Columns:
    """Those that count."""
    used = table.select(["type", *OF_ALL, *OF_REPORTS])
    if any(column.null_count for column in used.columns):
        used = used.drop_null()
    columns = {name: used[name].to_numpy() for name in used.column_names}
    counts = (columns["type"] == REPORT) & (columns["time"].astype(np.int64) * SECOND == instant)
    for name, (least, largest) in {**OF_ALL, **OF_REPORTS}.items():
        counts &= (columns[name] >= least) & (columns[name] <= largest)
    return {name: columns[name][counts] for name in WATCHED}
