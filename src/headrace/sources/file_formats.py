"""Columnar files of two kinds, opened by their footer and read by group and by column.

A group is what a file can be cut at: a row group (Parquet) or a record batch (Arrow, Feather). A group is read as a whole.

Invariant: no task works on a record batch of more than `MOST_BATCH` decoded bytes; such a batch is a `SourceError`.

Files are read, never mapped: a file that is truncated while it is mapped ends the process (SIGBUS) before any error could
name the file. Columns that are not needed are not read, and what is read is copied once; a map would save that copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import SourceError

# How it shows itself: UnicodeDecodeError in the names of columns, MemoryError in sizes, or in sizes that are true.
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
MOST_BATCH = 1 << 30  # decoded bytes of a record batch: with a copy of it, the 2 GB that DuckDB may use in a task
OLD_FEATHER = b"FEA1"  # how it begins; version 2 is Arrow's own format


class ColumnarFile(Protocol):
    """An open file."""

    schema: pa.Schema

    @property
    def groups(self) -> int: ...

    def sizes(self) -> Sequence[int]:
        """Return about the bytes of each group; only their proportions count."""

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        """Some groups; with `columns` only these, in whatever order."""

    def first_rows(self, rows: int) -> pa.Table:
        """Return the first rows: at least `rows`, or all."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_columnar(path: Path) -> ColumnarFile:
    return ParquetColumns(path) if path.suffix == ".parquet" else ArrowColumns(path)


class ParquetColumns:
    """A Parquet file, read by row groups and columns."""

    def __init__(self, path: Path) -> None:
        """As one file: a data set of one costs several milliseconds more.

        Spark writes times as 96 bits by default: nanoseconds, in which not every time has room, and which are whole
        microseconds in truth.
        """
        self.file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        self.schema = self.file.schema_arrow.remove_metadata()

    @property
    def groups(self) -> int:
        return int(self.file.num_row_groups)

    def sizes(self) -> list[int]:
        """By what they are uncompressed, which is noted in one place."""
        return [self.file.metadata.row_group(group).total_byte_size for group in range(self.groups)]

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        """On one thread: the other cores have windows of their own."""
        names = None if columns is None else list(columns)
        found = self.file.read_row_groups(range(first, stop), columns=names, use_threads=False)
        return found if names is None else found.select(names)  # "a" would bring "a.b" along

    def first_rows(self, rows: int) -> pa.Table:
        return _enough(self.file.iter_batches(batch_size=rows), rows, self.file.schema_arrow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class ArrowColumns:
    """An Arrow IPC or Feather file, read by record batches and columns."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, pa.OSFile(str(path))
        if self.file.read_at(len(OLD_FEATHER), 0) == OLD_FEATHER:
            raise pa.ArrowInvalid("it is Feather of version 1; .feather means version 2, the default of pyarrow")
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
        """Return one reader of the columns; of a file larger than `MOST_BATCH` one for each column.

        So a record batch that is too large is found before all of it is in memory.
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
            size += batch.get_total_buffer_size()  # nbytes would follow offsets that nobody has validated yet
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
