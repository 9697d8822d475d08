"""Columnar files of two kinds, opened by their footer and read by group and by column.

A group is what a file can be cut at: a row group (Parquet), a record batch (Arrow, Feather). Of a record batch that is
neither compressed nor has dictionaries, some rows can be read by themselves; of a row group they cannot, cheaply.

Files are read, never mapped: one that somebody truncates while it is mapped ends the process (SIGBUS) before anyone could
say which file it was. What is not asked for is not read, and what is read is copied once; a map would save that copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.sources import batches

# How it shows itself: UnicodeDecodeError in the names of columns, MemoryError in sizes, or in sizes that are true.
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError)
OLD_FEATHER = b"FEA1"  # how it begins; version 2 is Arrow's own format


class Columnar(Protocol):
    """An open file."""

    schema: pa.Schema

    @property
    def groups(self) -> int: ...

    def sizes(self) -> Sequence[int]:
        """Bytes of each group, about."""

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        """Some groups; with `columns` only these, in whatever order."""

    def shares(self, group: int, most: int) -> int:
        """In how many shares of its rows a group can be read, each by itself, if they are to have so many bytes."""

    def read_share(self, group: int, share: int, of: int, columns: Sequence[str]) -> pa.Table:
        """One of several equal shares of the rows of a group that has them: of one that was cut so."""

    def head(self, rows: int) -> pa.Table:
        """At least so many rows from the first on, if there are so many."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def opened(path: Path) -> Columnar:
    return ParquetColumns(path) if path.suffix == ".parquet" else ArrowColumns(path)


class ParquetColumns:
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

    def shares(self, group: int, most: int) -> int:
        """A share would cost as much to read as the group: its pages are compressed, and begin anywhere."""
        return 1

    def read_share(self, group: int, share: int, of: int, columns: Sequence[str]) -> pa.Table:
        raise _whole(group)

    def head(self, rows: int) -> pa.Table:
        return _enough(self.file.iter_batches(batch_size=rows), rows, self.file.schema_arrow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class ArrowColumns:
    def __init__(self, path: Path) -> None:
        self.file = pa.OSFile(str(path))
        if self.file.read_at(len(OLD_FEATHER), 0) == OLD_FEATHER:
            raise pa.ArrowInvalid("it is Feather of version 1; .feather means version 2, the default of pyarrow")
        self.reader = pa.ipc.open_file(self.file)
        self.schema = self.reader.schema.remove_metadata()

    @property
    def groups(self) -> int:
        return int(self.reader.num_record_batches)

    @cached_property
    def _blocks(self) -> list[batches.Block]:
        return batches.record_batches(self.file)

    def _rows(self, group: int) -> int | None:
        """How many rows a batch has, if some of them can be read by themselves."""
        if any(map(batches.has_dictionary, self.schema.types)):
            return None
        return batches.length_if_plain(self.file, self._blocks[group])

    def sizes(self) -> list[int]:
        return [block.bytes for block in self._blocks]

    def shares(self, group: int, most: int) -> int:
        return max(1, min(-(-self._blocks[group].bytes // most), self._rows(group) or 1))

    def read_share(self, group: int, share: int, of: int, columns: Sequence[str]) -> pa.Table:
        rows = self._rows(group)
        if rows is None:
            raise _whole(group)
        start, stop = (rows * end // of for end in (share, share + 1))
        return pa.Table.from_batches([self._some(group, self._places(columns), start, stop)])

    def read(self, first: int, stop: int, columns: Sequence[str] | None) -> pa.Table:
        fields = self._places(columns or ())  # none: all
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        reader = pa.ipc.open_file(self.file, options=options)
        return pa.Table.from_batches([reader.get_batch(group) for group in range(first, stop)], schema=reader.schema)

    def head(self, rows: int) -> pa.Table:
        return _enough((self._begins(group, rows) for group in range(self.groups)), rows, self.reader.schema)

    def _begins(self, group: int, rows: int) -> pa.RecordBatch:
        """At least so many of the first rows of a batch, or all."""
        if (there := self._rows(group)) is None or there <= rows:
            return self.reader.get_batch(group)
        return self._some(group, range(len(self.schema)), 0, rows)

    def _places(self, columns: Iterable[str]) -> list[int]:
        return [self.schema.get_field_index(name) for name in columns]

    def _some(self, group: int, places: Sequence[int], start: int, stop: int) -> pa.RecordBatch:
        return batches.read_rows(self.file, self._blocks[group], self.reader.schema, places, start, stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _whole(group: int) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"its group {group} cannot be read in shares, as it could when it was cut")


def _enough(given: Iterable[pa.RecordBatch], rows: int, schema: pa.Schema) -> pa.Table:
    """Batches up to the one with which there are so many rows."""
    found: list[pa.RecordBatch] = []
    for batch in given:
        found.append(batch)
        if sum(each.num_rows for each in found) >= rows:
            break
    return pa.Table.from_batches(found, schema=schema)
