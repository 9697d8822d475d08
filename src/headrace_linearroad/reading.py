"""Conversion of a text input, fifteen numbers per line, to one Arrow file per second. It is done once, before a run
begins.

Invalid lines (malformed, of unknown type, with a field outside its domain, or earlier than a line before) are written
to a separate file with their line numbers and reasons, and affect no other line. Fields that a tuple's type does not
use become `NOTHING`, because they may contain anything, even text.

Invariant: the files depend only on the text. A file gets its final name when it is complete. A conversion that was
killed starts over with an empty folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SourceError
from headrace_linearroad.forms import BALANCE, EXPENDITURE, FIELDS, INPUT, NOTHING, REPORT, TRAVEL
from headrace_linearroad.lines import BLOCK, COUNT, Lines, first_lines, parsed, read_lines
from headrace_linearroad.profiles import Profile
from headrace_linearroad.telling import Say
from headrace_linearroad.wandering import FIELDS as WATCHED
from headrace_linearroad.wandering import Watch

Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]

LARGEST = 2**31 - 1
OF_ALL = {"time": (0, 10_799), "vid": (0, LARGEST)}
OF_REPORTS = {
    "spd": (0, 100),
    "xway": (0, 2**15 - 1),
    "lane": (0, 4),
    "dir": (0, 1),
    "seg": (0, 99),
    "pos": (0, 527_999),
}
OF_QUESTIONS = {"qid": (0, LARGEST)}
USED = {
    REPORT: (*OF_ALL, *OF_REPORTS),
    BALANCE: (*OF_ALL, *OF_QUESTIONS),
    EXPENDITURE: (*OF_ALL, *OF_QUESTIONS, "xway", "day"),
    TRAVEL: (*OF_ALL, *OF_QUESTIONS, "xway", "sinit", "send", "dow", "tod"),
}
SECOND = 1_000_000  # microseconds
MALFORMED, NO_TYPE, BACKWARDS = "malformed", "no such type", "time goes backwards"


@dataclass
class Spooled:
    """Counts of the lines and tuples of a converted text."""

    lines: int = 0
    tuples: int = 0
    seconds: int = 0
    apart: Counter[str] = field(default_factory=Counter)  # by reason
    wandering: str = ""  # the car behaviour that needs the longer plan (`wandering.py`), or ""


def look(text: Path) -> None:
    """Raise if none of the text's first lines is a tuple. An empty text is accepted."""
    beginning = first_lines(text)
    if beginning and _malformed(*_parts(lines := parsed(beginning, len(FIELDS)))).all():
        what = f"no tuple of {len(FIELDS)} whole numbers in its first {_many(lines)}"
        how = "give a text file, plain or gzip, or a folder that generate wrote"
        raise SourceError(f"{str(text)!r} is not a text of tuples: {what}; the first is {lines.shown(0)}; {how}")


def _parts(lines: Lines) -> tuple[dict[str, Longs], npt.NDArray[np.int32]]:
    return dict(zip(FIELDS, lines.values, strict=True)), lines.wrong


def _many(lines: Lines) -> str:
    return f"{len(lines.wrong):,} lines" if len(lines.wrong) > 1 else "line"


def spool(
    text: Path,
    folder: Path,
    apart: Path,
    tell: Say = lambda _: None,
    block: int = BLOCK,
    profile: str = Profile.official,
) -> Spooled:
    """Write the tuples of `text` to one file per second in the empty `folder`, and its invalid lines to `apart`."""
    found, waiting, watch = Spooled(), INPUT.empty_table(), Watch(profile)
    with open(apart, "wb") as file:
        clock = -1
        for lines in read_lines(text, len(FIELDS), block):
            values, wrong = _parts(lines)
            reasons = _reasons(values, wrong, clock)
            good = reasons.good
            _keep_apart(file, lines, reasons, found)
            rows = np.flatnonzero(good)
            if len(rows):
                clock = int(values["time"][rows[-1]])
                reports = rows[values["type"][rows] == REPORT]
                watch.see({name: values[name][reports] for name in WATCHED})
                waiting = pa.concat_tables([waiting, _table(values, rows)])
                waiting = _write_seconds(waiting, folder, found, before=clock)
            found.lines += len(lines.wrong)
            tell(f"reading {text}: {found.lines:,} lines, {lines.share:.0%}")
    _write_seconds(waiting, folder, found, before=clock + 1)
    found.wandering = watch.found
    return found


# --- which lines -----------------------------------------------------------------------------------------------------


class _Reasons:
    """The first reason why each line is invalid."""

    def __init__(self, lines: int) -> None:
        self.good: Mask = np.ones(lines, bool)
        self.words: list[str] = []
        self.of = np.zeros(lines, np.int64)

    def refuse(self, which: Mask, words: str) -> None:
        which = which & self.good
        self.words.append(words)
        self.of[which] = len(self.words) - 1
        self.good &= ~which


def _reasons(values: dict[str, Longs], wrong: npt.NDArray[np.int32], clock: int) -> _Reasons:
    found, kind = _Reasons(len(wrong)), values["type"]
    found.refuse(_malformed(values, wrong), MALFORMED)
    found.refuse(~np.isin(kind, list(USED)), NO_TYPE)
    for domain, of in ((OF_ALL, None), (OF_REPORTS, kind == REPORT), (OF_QUESTIONS, kind != REPORT)):
        for name, (least, largest) in domain.items():
            outside = (values[name] < least) | (values[name] > largest)
            found.refuse(outside if of is None else outside & of, f"{name} outside {least}..{largest}")
    time = np.where(found.good, values["time"], clock)
    latest = np.maximum.accumulate(np.append(clock, time))[:-1]
    found.refuse(time < latest, BACKWARDS)
    return found


def _malformed(values: dict[str, Longs], wrong: npt.NDArray[np.int32]) -> Mask:
    """Return whether a line has the wrong number of fields, or a field that its type uses is not a number."""
    found: Mask = wrong & (COUNT | _bits(("type",))) != 0
    if wrong.any():
        for kind, names in USED.items():
            found |= (values["type"] == kind) & (wrong & _bits(names) != 0)
    return found


def _bits(names: Iterable[str]) -> int:
    return sum(1 << FIELDS.index(name) for name in names)


def _keep_apart(file: BinaryIO, lines: Lines, reasons: _Reasons, found: Spooled) -> None:
    for place in np.flatnonzero(~reasons.good).tolist():
        words = reasons.words[reasons.of[place]]
        found.apart[words] += 1
        file.write(f"{lines.first + place}\t{words}\t".encode() + lines.line(place) + b"\n")


# --- files -----------------------------------------------------------------------------------------------------------


def _table(values: dict[str, Longs], rows: Longs) -> pa.Table:
    """Return the rows as the files store them.

    Fields that a type does not use become `NOTHING`. Values that do not fit their column become its smallest value.
    """
    kind = values["type"][rows]
    columns = {"ts": values["time"][rows] * SECOND}
    for name in FIELDS:
        bounds = np.iinfo(INPUT.field(name).type.to_pandas_dtype())
        column = values[name][rows]
        column = np.where((column < bounds.min) | (column > bounds.max), bounds.min, column)
        if name != "type":  # in a valid line, only unused fields may be other than numbers
            uses = [each for each, names in USED.items() if name in names]
            column = column if len(uses) == len(USED) else np.where(np.isin(kind, uses), column, NOTHING)
        columns[name] = column
    return pa.table([pa.array(columns[f.name], pa.int64()).cast(f.type) for f in INPUT], schema=INPUT)


def _write_seconds(table: pa.Table, folder: Path, found: Spooled, before: int) -> pa.Table:
    """Write the seconds below `before`, which are complete, and return the rows of the last second."""
    time = table["time"].to_numpy()
    done = int(np.searchsorted(time, before))
    for second, start, stop in _seconds(time[:done]):
        path = folder / f"{second:06d}.arrow"
        hidden = path.with_name(f"_{path.name}")
        rows = table.slice(start, stop - start).combine_chunks()
        with pa.OSFile(str(hidden), "wb") as sink, pa.ipc.new_file(sink, INPUT) as writer:
            writer.write_table(rows)
        hidden.rename(path)
        found.seconds += 1
        found.tuples += stop - start
    return table.slice(done)


def _seconds(time: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """Yield (second, first row, row after the last)."""
    starts = np.flatnonzero(np.diff(time, prepend=-1))
    stops = np.append(starts, len(time))[1:]
    yield from zip(time[starts].tolist(), starts.tolist(), stops.tolist(), strict=True)
