"""Histories as they are looked up: sorted columns in one piece, mapped by whoever asks.

What is given may be text (4 columns: tolls, 8: segments; plain or gzip), or files of these columns as `generate` writes them.
The latter are used where they lie if they are in order; all else is written anew, once, before a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SourceError
from headrace.screen import printable
from headrace_linearroad.forms import HISTORY, SEGMENT_HISTORY, SEGMENTS, TOLL_HISTORY, TOLLS
from headrace_linearroad.lines import LONGEST, opened, read_lines

ARROW = b"ARROW1"
ENDINGS = (".arrow", ".csv", ".csv.gz")  # of what generate writes
SHOWN = 100  # characters of a line
PIECE = 1 << 22  # rows that are looked at together


@dataclass(frozen=True)
class Kind:
    file: str
    schema: pa.Schema
    order: tuple[
        tuple[str, int, int], ...
    ]  # columns that rows are sorted by, with the least and the largest that count
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


@dataclass(frozen=True)
class Histories:
    tolls: Path | None
    segments: Path | None


def files_of(given: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each kind, by the name of the kind's own."""
    found: dict[str, list[Path]] = {kind.file: [] for kind in KINDS}
    for path in given:
        for file in _in_folder(path) if path.is_dir() else [path]:
            found[_kind_of(file).file].append(file)
    return found


def _in_folder(folder: Path) -> list[Path]:
    names = [Path(kind.file).with_suffix(ending) for kind in KINDS for ending in ENDINGS]
    found = [path for place in (folder, folder / HISTORY) for name in names if (path := place / name).is_file()]
    if not found:
        raise SourceError(
            f"there is no {TOLLS} or {SEGMENTS} in {str(folder)!r}; give a folder of histories, or CSV files"
        )
    return found


def prepared(files: dict[str, list[Path]], folder: Path) -> Histories:
    """Both kinds as they are looked up; those that had to be written are in `folder`."""
    tolls, segments = (_one(kind, files[kind.file], folder) for kind in KINDS)
    return Histories(tolls, segments)


def _one(kind: Kind, files: Sequence[Path], folder: Path) -> Path | None:
    if not files:
        return None
    if len(files) == 1 and _is_ready(kind, files[0]):
        return files[0].resolve()
    rows = pa.concat_tables([_read(kind, file) for file in files])
    return _write(folder / kind.file, _in_order(kind, rows, files))


def _is_ready(kind: Kind, path: Path) -> bool:
    """Whether it can be looked up as it is."""
    if not _is_arrow(path):
        return False
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
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
        keys = _keys(kind, piece)
        steps = np.diff(keys, prepend=keys[:1] - 1 if last is None else last)
        if (steps < (1 if kind.unique else 0)).any():
            return False
        last = int(keys[-1])
    return True


def _counts(kind: Kind, table: pa.Table) -> npt.NDArray[np.bool_]:
    """Rows whose columns are what they can be."""
    counts = np.ones(table.num_rows, bool)
    for name, least, largest in kind.order:
        values = table[name].to_numpy()
        counts &= (values >= least) & (values <= largest)
    return counts


def _keys(kind: Kind, table: pa.Table) -> npt.NDArray[np.int64]:
    """One number for the columns that rows are sorted by."""
    keys = np.zeros(table.num_rows, np.int64)
    for name, least, largest in kind.order:
        keys = keys * (largest - least + 1) + (table[name].to_numpy() - least)
    return keys


def _in_order(kind: Kind, rows: pa.Table, files: Sequence[Path]) -> pa.Table:
    keys = _keys(kind, rows)
    order = np.argsort(keys, kind="stable")
    rows, keys = rows.take(pa.array(order)), keys[order]
    if kind.unique:
        same = keys[1:] == keys[:-1]
        toll = rows[kind.schema.names[-1]].to_numpy()
        if (clash := np.flatnonzero(same & (toll[1:] != toll[:-1]))).size:
            row = {name: rows[name][int(clash[0])].as_py() for name, _, _ in kind.order}
            raise SourceError(f"the {kind.words} {_names(files)} has two tolls of {row}; one of them must be wrong")
        rows = rows.filter(pa.array(np.append(~same, True)[: len(keys)]))
    return rows.combine_chunks()


def _names(files: Sequence[Path]) -> str:
    return ", ".join(printable(repr(str(file))) for file in files)


# --- files -----------------------------------------------------------------------------------------------------------


def _is_arrow(path: Path) -> bool:
    with opened(path) as file:
        return file.read(len(ARROW)) == ARROW


def _kind_of(path: Path) -> Kind:
    if _is_arrow(path):
        try:
            columns = len(pa.ipc.open_file(pa.OSFile(str(path))).schema)
        except pa.ArrowInvalid as error:
            raise SourceError(f"the history {str(path)!r} is no Arrow file: {error}") from None
    else:
        with opened(path) as file:
            columns = len(file.readline(LONGEST).split(b","))
    for kind in KINDS:
        if kind.columns == columns:
            return kind
    raise SourceError(f"the history {str(path)!r} has {columns} columns; expected 4 (tolls) or 8 (segments)")


def _read(kind: Kind, path: Path) -> pa.Table:
    """The rows that count, in the columns of the kind."""
    if not _is_arrow(path):
        return pa.concat_tables([kind.schema.empty_table(), *_parsed(kind, path)])
    with pa.memory_map(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    if set(table.column_names) != set(kind.schema.names):
        found = ", ".join(map(printable, table.column_names))
        raise SourceError(f"the history {str(path)!r} has the columns {found}; expected {', '.join(kind.schema.names)}")
    if any(column.null_count for column in table.columns):
        raise SourceError(f"the history {str(path)!r} has nulls; every row needs all of its columns")
    return _fitted(kind, table.select(kind.schema.names), path)


def _parsed(kind: Kind, path: Path) -> Iterator[pa.Table]:
    for lines in read_lines(path, kind.columns):
        if not lines.whole.all():
            place = int(np.argmin(lines.whole))
            text = printable(lines.line(place).decode(errors="replace")[:SHOWN])
            expected = f"expected {kind.columns} whole numbers, as it is a {kind.words}"
            raise SourceError(f"the history {str(path)!r} has {text!r} in line {lines.first + place:,}; {expected}")
        columns = dict(zip(kind.schema.names, lines.values, strict=True))
        yield _fitted(kind, pa.table(columns), path)


def _fitted(kind: Kind, table: pa.Table, path: Path) -> pa.Table:
    counts = _counts(kind, table)
    try:
        return (table if counts.all() else table.filter(pa.array(counts))).cast(kind.schema)
    except pa.ArrowInvalid as error:
        raise SourceError(f"the history {str(path)!r} has a value that no history has: {error}") from None


def _write(path: Path, table: pa.Table) -> Path:
    """In one record batch; it has its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f"_{path.name}")
    with pa.OSFile(str(hidden), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(batch)
    hidden.rename(path)
    return path.resolve()
