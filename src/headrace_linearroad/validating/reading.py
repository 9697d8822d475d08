"""The valid reports and questions of an input as columns of numbers, and counts of its invalid tuples.

Invariant: each tuple is either valid or counted once in `left`. The counts do not depend on the part of the cars that
is read.

An input that does not fit in memory is read in parts, by cars. Until statistics and accidents are known, cars affect
each other only through sums over cars, so the results of the parts can be added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SourceError
from headrace_linearroad.validating import text
from headrace_linearroad.validating.shapes import ALWAYS, COMPLETE, FIELDS, OF_QUERIES, OF_REPORTS, REPORT, TRAVEL, USED

Column = npt.NDArray[np.int64]  # of any width
Flags = npt.NDArray[np.bool_]
Columns = dict[str, Column]

WIDTHS = {"type": np.int8, "spd": np.int8, "lane": np.int8, "dir": np.int8, "seg": np.int8, "time": np.int16}
WIDTHS |= {"xway": np.int16}
REPORTED = ("vid", "time", "spd", "xway", "lane", "dir", "seg", "pos")
ASKED = ("type", "time", "vid", "xway", "qid", "sinit", "send", "dow", "tod", "day")
FILES = 64  # files of seconds that are processed together
AT_ONCE, AT_ONCE_OF_TEXT = 8_000_000, 16_000_000  # tuples in memory; more for text, because reading it again is slow
TUPLE, PACKED = 45, 6  # approximate bytes of a tuple, as text and in Arrow; compression ratio of gzip

MALFORMED = "malformed"
NO_TYPE = "of no known type"
OUTSIDE = "with a field outside its domain"
BACKWARDS = "going back in time"


@dataclass(frozen=True)
class Tuples:
    """The valid tuples of one part of the cars, and the counts of the whole input."""

    reports: Columns
    queries: Columns
    left: Counter[str] = field(default_factory=Counter)
    seen: int = 0

    @property
    def kept(self) -> int:
        return self.seen - self.left.total()


def parts_of(path: Path) -> int:
    """Return the number of parts in which to read an input."""
    if path.is_dir():
        return 1 + sum(file.stat().st_size for file in _seconds(path)) // (AT_ONCE * TUPLE)
    size = path.stat().st_size if path.exists() else 0
    return 1 + size * (PACKED if size and text.is_packed(path) else 1) // (AT_ONCE_OF_TEXT * TUPLE)


def read(path: Path, part: int = 0, parts: int = 1) -> Tuples:
    """Return the tuples of the cars whose number modulo `parts` is `part`."""
    if not path.exists():
        raise SourceError(
            f"there is no input at {str(path)!r}; give a text file, or a folder with one Arrow file per second"
        )
    reports: list[Columns] = []
    queries: list[Columns] = []
    left: Counter[str] = Counter()
    seen = 0
    for batch in _of_folder(path) if path.is_dir() else _of_text(path):
        left += batch.left
        seen += batch.seen
        mine = batch.columns["vid"] % parts == part
        is_report = batch.columns["type"] == REPORT
        reports.append({name: _narrow(name, batch.columns[name][mine & is_report]) for name in REPORTED})
        queries.append({name: batch.columns[name][mine & ~is_report] for name in ASKED})
    return Tuples(_joined(reports, REPORTED), _joined(queries, ASKED), left, seen)


def _narrow(name: str, column: Column) -> Column:
    return column.astype(WIDTHS.get(name, np.int32))


def _joined(batches: Sequence[Columns], names: Sequence[str]) -> Columns:
    none = np.empty(0, np.int64)
    return {name: np.concatenate([batch[name] for batch in batches]) if batches else none for name in names}


# --- batches ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Batch:
    columns: Columns  # of valid tuples
    left: Counter[str]
    seen: int


def _of_text(path: Path) -> Iterator[_Batch]:
    latest = 0
    for table, malformed in text.tables(path):
        columns, left = _valid({name: table[name].to_numpy() for name in FIELDS})
        times = columns["time"]
        clock = np.maximum.accumulate(np.append(latest, times))  # the largest time before each tuple, and in all
        kept = times >= clock[:-1]
        latest = int(clock[-1])
        left += Counter({MALFORMED: malformed, BACKWARDS: int(np.count_nonzero(~kept))})
        yield _Batch({name: column[kept] for name, column in columns.items()}, left, table.num_rows + malformed)


def _of_folder(path: Path) -> Iterator[_Batch]:
    if not (path / COMPLETE).exists():
        raise SourceError(
            f"{str(path)!r} has no {COMPLETE}: it is half written, or generate did not write it; generate it again"
        )
    files, clock = _seconds(path), -1
    for first in range(0, len(files), FILES):
        tables = []
        for file in files[first : first + FILES]:
            tables.append(_second(file))
            clock = _instant(file, tables[-1], clock)
        table = pa.concat_tables(tables)
        whole = _whole(table)
        columns, left = _valid({name: whole[name].to_numpy() for name in FIELDS})
        left += Counter({MALFORMED: table.num_rows - whole.num_rows})
        yield _Batch(columns, left, table.num_rows)


def _seconds(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("*.arrow") if not file.name.startswith(("_", ".")))


def _second(file: Path) -> pa.Table:
    try:
        table = pa.ipc.open_file(pa.memory_map(str(file))).read_all()
    except pa.ArrowInvalid as error:
        raise SourceError(f"{str(file)!r} is not an Arrow file: {error}; generate it again") from None
    wanted = ["ts", *FIELDS]
    fits = all(name in table.column_names for name in wanted) and all(
        pa.types.is_integer(table.schema.field(name).type) for name in FIELDS
    )
    if not fits or not pa.types.is_timestamp(table.schema.field("ts").type):
        found = ", ".join(f"{column.name} {column.type}" for column in table.schema)
        raise SourceError(
            f"{str(file)!r} has columns {found}; expected a timestamp ts, and integers {', '.join(FIELDS)}"
        )
    kinds = [pa.timestamp("us", "UTC"), *[pa.int64()] * len(FIELDS)]
    return table.select(wanted).cast(pa.schema(list(zip(wanted, kinds, strict=True))))


def _instant(file: Path, table: pa.Table, before: int) -> int:
    """Return the time of a file's tuples in microseconds. Raise if it varies, or if a file before has later tuples."""
    found = pc.unique(table["ts"].drop_null().cast(pa.int64())).to_pylist()
    if len(found) > 1:
        raise SourceError(f"{str(file)!r} has tuples of more than one second: {sorted(found)[:5]} microseconds")
    if found and found[0] <= before:
        raise SourceError(f"{str(file)!r} has tuples of {found[0]} microseconds, but a file before it has {before}")
    return int(found[0]) if found else before


def _whole(table: pa.Table) -> pa.Table:
    """Remove tuples that lack a field they need, or whose `ts` differs from their `time`."""
    lacks = pc.or_(pc.is_null(table["ts"]), pc.is_null(table["type"]))
    for name in FIELDS[1:]:
        if table[name].null_count:
            kinds = pa.array([kind for kind, names in USED.items() if name in names], pa.int64())
            lacks = pc.or_(lacks, pc.and_(pc.is_null(table[name]), pc.is_in(table["type"], kinds)))
            place = table.column_names.index(name)
            table = table.set_column(place, name, table[name].fill_null(-1))
    whole = table.filter(pc.invert(lacks))
    agree = whole["ts"].cast(pa.int64()).to_numpy() == whole["time"].to_numpy() * 1_000_000
    return whole if agree.all() else whole.filter(pa.array(agree))


def _valid(columns: Columns) -> tuple[Columns, Counter[str]]:
    """Return the tuples of a known type with all fields in their domains, and the counts of the others."""
    kind = columns["type"]
    report = kind == REPORT
    known = report | ((kind >= 2) & (kind <= TRAVEL))
    inside = known.copy()
    for name, (low, high) in ALWAYS.items():
        inside &= (columns[name] >= low) & (columns[name] <= high)
    for which, domains in ((report, OF_REPORTS), (~report, OF_QUERIES)):
        for name, (low, high) in domains.items():
            inside &= ~which | ((columns[name] >= low) & (columns[name] <= high))
    unknown = int(np.count_nonzero(~known))
    left = Counter({NO_TYPE: unknown, OUTSIDE: int(np.count_nonzero(~inside)) - unknown})
    if inside.all():
        return columns, left
    return {name: column[inside] for name, column in columns.items()}, left
