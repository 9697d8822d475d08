"""Preparation of histories for lookups: one Arrow file of sorted columns per kind, which processors map into memory.

A history is given as text (4 columns: tolls, 8: segments; plain or gzip) or as an Arrow file as `generate` writes it.
Arrow files that are sorted are used in place. All others are sorted and rewritten once, before a run begins, in bounded
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SourceError
from headrace.support.terminal_text import printable
from headrace_linearroad.forms import HISTORY, SEGMENT_HISTORY, SEGMENTS, TOLL_HISTORY, TOLLS
from headrace_linearroad.lines import Lines, first_lines, parsed, read_lines
from headrace_linearroad.ordering import PIECE, Ordering
from headrace_linearroad.telling import Say

ARROW = b"ARROW1"
ENDINGS = (".arrow", ".csv", ".csv.gz")  # of the files that generate writes

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Kind:
    file: str
    schema: pa.Schema
    order: tuple[tuple[str, int, int], ...]  # sort columns, each with its smallest and largest valid value
    unique: bool
    words: str

    @property
    def columns(self) -> int:
        return len(self.schema)


TOLL_KIND = Kind(
    TOLLS, TOLL_HISTORY, (("vid", 0, 2**31 - 1), ("day", 1, 69), ("xway", 0, 2**15 - 1)), True, "history of tolls"
)
SEGMENT_KIND = Kind(
    SEGMENTS,
    SEGMENT_HISTORY,
    (("xway", 0, 2**15 - 1), ("dir", 0, 1), ("seg", 0, 99), ("min", 1, 1440), ("day", 1, 69)),
    False,
    "history of segments",
)
KINDS = (TOLL_KIND, SEGMENT_KIND)
KINDS_BY_FILE = {kind.file: kind for kind in KINDS}


@dataclass(frozen=True)
class Histories:
    tolls: Path | None
    segments: Path | None


def files_of(given: Sequence[Path]) -> dict[str, list[Path]]:
    """Return the given files, without duplicates, by the file name of their kind."""
    found: dict[str, list[Path]] = {kind.file: [] for kind in KINDS}
    known = set()
    for path in given:
        for file in _in_folder(path) if path.is_dir() else [path]:
            kind = _kind_of(file)
            if file.resolve() not in known:
                known.add(file.resolve())
                found[kind.file].append(file)
    return found


def _in_folder(folder: Path) -> list[Path]:
    names = [Path(kind.file).with_suffix(ending) for kind in KINDS for ending in ENDINGS]
    found = [path for place in (folder, folder / HISTORY) for name in names if (path := place / name).is_file()]
    if not found:
        raise SourceError(
            f"there is no {TOLLS} or {SEGMENTS} in {str(folder)!r}; give a folder that contains histories, or the paths of two CSV files"
        )
    return found


def prepared(files: dict[str, list[Path]], folder: Path, tell: Say = lambda _: None) -> Histories:
    """Return both histories in sorted form. Those that had to be rewritten are in `folder`."""
    tolls, segments = (_one(kind, files[kind.file], folder, tell) for kind in KINDS)
    return Histories(tolls, segments)


def _one(kind: Kind, files: Sequence[Path], folder: Path, tell: Say) -> Path | None:
    if not files:
        return None
    if len(files) == 1 and _is_ready(kind, files[0]):
        return files[0].resolve()
    folder.mkdir(parents=True, exist_ok=True)
    alike = partial(_unlike, kind, files) if kind.unique else None
    ordering = Ordering(
        folder,
        kind.schema,
        partial(_keys, kind),
        alike,
        lambda text: tell(f"{kind.words}: {text}"),
    )
    for file in files:
        for table in _read(kind, file, tell):
            ordering.add(table)
    ordering.write(folder / kind.file)
    return (folder / kind.file).resolve()


def _is_ready(kind: Kind, path: Path) -> bool:
    """Return whether the file can be used in place."""
    if not _is_arrow(path):
        return False
    with _arrow(path) as reader:
        if reader.num_record_batches != 1 or not reader.schema.equals(kind.schema):
            return False
        batch = pa.Table.from_batches([reader.get_batch(0)])
        return not batch.nbytes or _is_sorted(kind, batch)


def _is_sorted(kind: Kind, table: pa.Table) -> bool:
    last: int | None = None
    for start in range(0, table.num_rows, PIECE):
        piece = table.slice(start, PIECE)
        if any(column.null_count for column in piece.columns) or not _counts(kind, piece).all():
            return False
        keys = _keys(kind, dict(zip(piece.column_names, map(pa.ChunkedArray.to_numpy, piece.columns), strict=True)))
        steps = np.diff(keys, prepend=keys[:1] - 1 if last is None else last)
        if (steps < (1 if kind.unique else 0)).any():
            return False
        last = int(keys[-1])
    return True


def _counts(kind: Kind, table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have valid sort columns."""
    counts = np.ones(table.num_rows, bool)
    for name, least, largest in kind.order:
        values = table[name].to_numpy()
        counts &= (values >= least) & (values <= largest)
    return counts


def _keys(kind: Kind, columns: Any) -> npt.NDArray[np.int64]:
    """Return the sort columns of each row combined into one number. columns: arrays by column name."""
    keys = np.zeros(1, np.int64)
    for name, least, largest in kind.order:
        keys = keys * (largest - least + 1) + (columns[name] - least)
    return keys


def _unlike(kind: Kind, files: Sequence[Path], rows: Rows, keys: npt.NDArray[np.int64]) -> Rows:
    """Return sorted rows without duplicates. Raise if two rows with the same key have different tolls."""
    same = keys[1:] == keys[:-1]
    toll = rows[kind.schema.names[-1]]
    if (clash := np.flatnonzero(same & (toll[1:] != toll[:-1]))).size:
        row = ", ".join(f"{name} {rows[name][clash[0]]}" for name, _, _ in kind.order)
        tolls = f"{toll[clash[0]]} and {toll[clash[0] + 1]}"
        msg = f"the {kind.words} {_names(files)} has two tolls for {row}: {tolls}"
        raise SourceError(f"{msg}; remove the wrong one")
    first: Rows = rows[np.append(True, ~same)]
    return first


def _names(files: Sequence[Path]) -> str:
    return ", ".join(printable(repr(str(file))) for file in files)


# --- files -----------------------------------------------------------------------------------------------------------


def _is_arrow(path: Path) -> bool:
    return first_lines(path, len(ARROW))[: len(ARROW)] == ARROW


def _kind_of(path: Path) -> Kind:
    """Return the kind of a file by its number of columns. Wrong first lines raise now, not after hours of reading."""
    if _is_arrow(path):
        with _arrow(path) as file:
            return _kind_with(path, len(file.schema))
    beginning = first_lines(path)
    if not beginning:
        raise SourceError(f"the history {str(path)!r} is empty; leave it out, or give a file with rows")
    kind = _kind_with(path, beginning.partition(b"\n")[0].count(b",") + 1)
    _check(kind, path, parsed(beginning, kind.columns))
    return kind


def _kind_with(path: Path, columns: int) -> Kind:
    for kind in KINDS:
        if kind.columns == columns:
            return kind
    raise SourceError(
        f"the history {str(path)!r} has {columns} column{'s' * (columns != 1)}; expected 4 (tolls) or 8 (segments)"
    )


@contextmanager
def _arrow(path: Path) -> Iterator[Any]:
    try:
        with pa.memory_map(str(path)) as file:
            yield pa.ipc.open_file(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise SourceError(
            f"the history {str(path)!r} is damaged, or not an Arrow file: {error}; generate it again"
        ) from None


def _read(kind: Kind, path: Path, tell: Say) -> Iterator[pa.Table]:
    """Yield the valid rows of a file, with the columns of the kind."""
    return _columnar(kind, path, tell) if _is_arrow(path) else _text(kind, path, tell)


def _columnar(kind: Kind, path: Path, tell: Say) -> Iterator[pa.Table]:
    with _arrow(path) as file:
        if set(file.schema.names) != set(kind.schema.names):
            found = ", ".join(map(printable, file.schema.names))
            msg = f"the history {str(path)!r} has the columns {found}; expected {', '.join(kind.schema.names)}"
            raise SourceError(msg)
        for number in range(file.num_record_batches):
            whole = pa.Table.from_batches([file.get_batch(number)])
            for start in range(0, whole.num_rows, PIECE):
                table = whole.slice(start, PIECE)
                if any(column.null_count for column in table.columns):
                    raise SourceError(f"the history {str(path)!r} has nulls; remove the rows with nulls")
                yield _fitted(kind, table.select(kind.schema.names), path)
                tell(f"reading {path}: {start + len(table):,} rows")


def _text(kind: Kind, path: Path, tell: Say) -> Iterator[pa.Table]:
    for lines in read_lines(path, kind.columns):
        _check(kind, path, lines)
        yield _fitted(kind, pa.table(dict(zip(kind.schema.names, lines.values, strict=True))), path)
        tell(f"reading {path}: {lines.first + len(lines.whole) - 1:,} lines, {lines.share:.0%}")


def _check(kind: Kind, path: Path, lines: Lines) -> None:
    if not lines.whole.all():
        place = int(np.argmin(lines.whole))
        expected = f"expected {kind.columns} whole numbers, as it is a {kind.words}"
        msg = f"the history {str(path)!r} has {lines.shown(place)} in line {lines.first + place:,}; {expected}"
        raise SourceError(f"{msg}; correct or remove it")


def _fitted(kind: Kind, table: pa.Table, path: Path) -> pa.Table:
    counts = _counts(kind, table)
    try:
        return (table if counts.all() else table.filter(pa.array(counts))).cast(kind.schema)
    except pa.ArrowInvalid as error:
        raise SourceError(f"the history {str(path)!r} has a value that does not fit its column: {error}") from None
