"""Columnar files: Parquet and Arrow (Feather), opened by their footer and read by group and column.

A group is the unit that can be read on its own: a row group (Parquet) or a record batch (Arrow, Feather).

Invariant: no task processes a record batch of more than `MOST_BATCH` decoded bytes; such a batch raises `SourceError`.
Files are read and never memory-mapped: if a mapped file is truncated, the process ends with SIGBUS before an error
could name the file. Unneeded columns are not read, and the columns that are read are copied once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import SourceError

# Damage raises UnicodeDecodeError in column names, and MemoryError for wrong or very large sizes.
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
MOST_BATCH = 1 << 30  # decoded bytes of a record batch; two copies fit into the 2 GB that DuckDB may use in a task
OLD_FEATHER = b"FEA1"  # the first bytes of Feather version 1; version 2 is Arrow's own format


class ColumnarFile(Protocol):
    """An open file."""

    schema: pa.Schema

    @property
    def groups(self) -> int: ...

    def sizes(self) -> Sequence[int]:
        """Return the approximate bytes of each group. Only their proportions matter."""

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        """Return the rows of some groups. With `columns`, only these columns, in any order."""

    def first_rows(self, rows: int) -> pa.Table:
        """Return the first rows: at least `rows`, or all rows of the file."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_columnar(path: Path) -> ColumnarFile:
    return ParquetColumns(path) if path.suffix == ".parquet" else ArrowColumns(path)


class ParquetColumns:
    """A Parquet file, read by row groups and columns."""

    def __init__(self, path: Path) -> None:
        """Open the file directly, because a data set of one file costs several milliseconds more.

        Spark writes times as 96-bit nanoseconds by default, which cover a smaller range than microseconds; the values
        are always whole microseconds.
        """
        self.file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        self.schema = self.file.schema_arrow.remove_metadata()

    @property
    def groups(self) -> int:
        return int(self.file.num_row_groups)

    def sizes(self) -> list[int]:
        """Return the uncompressed sizes, which the footer contains."""
        return [self.file.metadata.row_group(group).total_byte_size for group in range(self.groups)]

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        """Read on one thread, because other cores read other windows."""
        names = None if columns is None else list(columns)
        found = self.file.read_row_groups(range(first, stop), columns=names, use_threads=False)
        # selects again, because reading column "a" also returns "a.b"
        return found if names is None else found.select(names)

    def first_rows(self, rows: int) -> pa.Table:
        return _enough(self.file.iter_batches(batch_size=rows), rows, self.file.schema_arrow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


TIMES_OF_GROUP = 8  # times by which a row group is represented


def parquet_times(path: Path, column: str) -> list[tuple[int, int]]:
    """Return a sample of the times in a column, from the statistics in the footer: (microseconds, rows).

    The times of a row group are assumed to be equally far apart. A file of another format has no statistics.
    """
    try:
        footer = pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return []  # the tasks report what is wrong with the file
    found = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        parts = [group.column(place) for place in range(group.num_columns)]
        known = next((part.statistics for part in parts if part.path_in_schema == column), None)
        if known is not None and (ends := _time_range(known)):
            low, high = ends
            steps = [low + (high - low) * (2 * place + 1) // (2 * TIMES_OF_GROUP) for place in range(TIMES_OF_GROUP)]
            found += [(step, max(group.num_rows // TIMES_OF_GROUP, 1)) for step in steps]
    return found


def _time_range(known: pq.Statistics) -> tuple[int, int] | None:
    """Return the smallest and largest time of a column; None if they are unknown or beyond the years of Python."""
    try:
        ends = (known.min, known.max) if known.has_min_max else ()
    except (OverflowError, ValueError):
        return None
    found = [_microseconds(each) for each in ends if isinstance(each, dt.datetime)]
    return (found[0], found[1]) if len(found) == 2 else None


def _microseconds(time: dt.datetime) -> int:
    aware = time if time.tzinfo else time.replace(tzinfo=dt.UTC)
    return (aware - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


class ArrowColumns:
    """An Arrow IPC or Feather file, read by record batches and columns."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, pa.OSFile(str(path))
        if self.file.read_at(len(OLD_FEATHER), 0) == OLD_FEATHER:
            raise pa.ArrowInvalid("the file is Feather version 1; only version 2, the default of pyarrow, is supported")
        self.reader = pa.ipc.open_file(self.file)
        self.schema = self.reader.schema.remove_metadata()

    @property
    def groups(self) -> int:
        return int(self.reader.num_record_batches)

    def sizes(self) -> list[int]:
        """Return equal sizes: pyarrow does not give those of record batches without reading them."""
        return [1] * self.groups

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        readers = self._readers(columns)
        batches = [self._batch(group, readers) for group in range(first, stop)]
        return pa.Table.from_batches(batches, schema=_schema_of(readers))

    def first_rows(self, rows: int) -> pa.Table:
        readers = self._readers(None)
        return _enough((self._batch(group, readers) for group in range(self.groups)), rows, _schema_of(readers))

    def _readers(self, columns: Sequence[str] | None) -> list[pa.ipc.RecordBatchFileReader]:
        """Return one reader for all columns or, for a file larger than `MOST_BATCH`, one for each column.

        So a record batch that is too large is detected before all of it is in memory.
        """
        places = [*range(len(self.schema))] if columns is None else [self.schema.get_field_index(c) for c in columns]
        together = [[place] for place in places] if self.file.size() > MOST_BATCH else [places]
        options = [pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False) for fields in together]
        return [pa.ipc.open_file(self.file, options=each) for each in options]

    def _batch(self, group: int, readers: Sequence[pa.ipc.RecordBatchFileReader]) -> pa.RecordBatch:
        columns: list[pa.Array] = []
        size = 0
        for reader in readers:
            batch = reader.get_batch(group)
            size += batch.get_total_buffer_size()  # nbytes would use offsets that have not been validated yet
            if size > MOST_BATCH:
                raise self._too_large(group, size)
            columns += batch.columns
        return pa.RecordBatch.from_arrays(columns, schema=_schema_of(readers))

    def _too_large(self, group: int, size: int) -> SourceError:
        found = f"record batch {group} takes at least {size:,} bytes of memory in the columns that are read"
        advice = "pyarrow.feather.write_feather(table, path, chunksize=100_000)"
        return SourceError(
            f"cannot read {str(self.path)!r}: its {found}, and a task reads at most {MOST_BATCH:,} at once;"
            f" write the file with smaller record batches, such as {advice}, and start again"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _schema_of(readers: Iterable[pa.ipc.RecordBatchFileReader]) -> pa.Schema:
    return pa.schema([field for reader in readers for field in reader.schema])


def _enough(given: Iterable[pa.RecordBatch], rows: int, schema: pa.Schema) -> pa.Table:
    """Return the first batches that together have at least this many rows."""
    found: list[pa.RecordBatch] = []
    for batch in given:
        found.append(batch)
        if sum(each.num_rows for each in found) >= rows:
            break
    return pa.Table.from_batches(found, schema=schema)
