"""Tables for joins with streams: rows without event time, read as a whole for each version.

Invariant: `table_rows` returns the whole content of the table at one moment, as far as that can be checked (a folder
whose files changed during the read raises), in the columns and types that the query was built for. Columns unknown to
the query are dropped. A column that is missing or has another type raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.columnar.types import plain_type
from headrace.errors import QueryError, SourceError
from headrace.sources import check_text, is_same_kind, to_stream_type
from headrace.sources.files import ENDINGS, FilesOrigin, read_file, read_schema
from headrace.support.paths import given_path

Part = tuple[str, pa.Table]  # (location for messages, rows)


class TableSource(Protocol):
    """The origin of a table."""

    @property
    def place(self) -> str:
        """Return a description of what the table reads, for messages."""

    @property
    def renewable(self) -> bool:
        """Return whether reading the table again may return other rows."""

    def schema(self) -> pa.Schema:
        """Return the current schema in the origin's own types."""

    def parts(self) -> list[Part]:
        """Return the whole current content, in the columns and types of each part."""


class FolderTable:
    """The columnar files of a folder as one table."""

    renewable = True

    def __init__(self, folder: Path) -> None:
        self._files = FilesOrigin(None, folder, None)

    @property
    def place(self) -> str:
        return f"folder {self._files.place}"

    def schema(self) -> pa.Schema:
        return self._files.schema()

    def parts(self) -> list[Part]:
        before = self._listed()
        if not before:
            raise SourceError(
                f"there is no *.parquet, *.arrow or *.feather file in {self._files.place!r};"
                " for a table without rows write a file without rows"
            )
        found = [(f"file {path!r}", read_file(Path(path), (size, changed))) for path, size, changed in before]
        if self._listed() != before:
            raise SourceError(f"the files of {self._files.place!r} were changed while they were being read")
        return found

    def _listed(self) -> list[tuple[str, int, int]]:
        return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in self._files.entries()]


class FileTable:
    """One columnar file. A writer replaces it by renaming a new file."""

    renewable = True

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        return f"file {self._path}"

    def schema(self) -> pa.Schema:
        return read_schema(self._path)

    def parts(self) -> list[Part]:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise SourceError(f"the file {str(self._path)!r} cannot be read: {error.strerror}; restore it") from None
        return [(self.place, read_file(self._path, (stat.st_size, stat.st_mtime_ns)))]


class ArrowTable:
    """An Arrow table, or a function that returns one, for tests and small experiments."""

    def __init__(self, given: pa.Table | Callable[[], pa.Table]) -> None:
        self._given = given
        self.renewable = callable(given)
        self.place = "a function" if callable(given) else "an Arrow table"

    def schema(self) -> pa.Schema:
        ((_, table),) = self.parts()
        return table.schema

    def parts(self) -> list[Part]:
        return [(self.place, self._given() if callable(self._given) else self._given)]


def mounted_table(place: str | os.PathLike[str], *, may_be_away: bool = False) -> FolderTable | FileTable:
    """Return the origin of a path on this machine. If the path does not exist, its name decides between folder and
    file.
    """
    path = given_path(place, "the folder of hr.table")
    columnar = path.name.endswith(ENDINGS)
    if path.is_dir() or (may_be_away and not path.exists() and not columnar):
        return FolderTable(path.resolve())
    if not path.exists() and not may_be_away:
        raise QueryError(f"{str(path)!r} does not exist; hr.table takes a folder of columnar files, or one such file")
    if not columnar:
        endings = ", ".join(f"*{ending}" for ending in ENDINGS)
        raise QueryError(f"{str(path)!r} is not a columnar file; hr.table takes {endings}, or a folder of them")
    return FileTable(path.absolute())


def table_schema(raw: pa.Schema) -> pa.Schema:
    """Return the schema of a table in the types of streams."""
    if not len(raw):
        raise QueryError("a table needs at least one column; found none")
    return pa.schema([pa.field(field.name, plain_type(field.type, field.name)) for field in raw])


def table_rows(source: TableSource, schema: pa.Schema, name: str) -> pa.Table:
    """Return all current rows of a table, with these columns."""
    return pa.concat_tables(_in_schema(part, where, schema, name) for where, part in source.parts())


def _in_schema(found: pa.Table, where: str, schema: pa.Schema, name: str) -> pa.Table:
    """Return a part of the table in the schema. Values are never converted to another type."""
    for field in schema:
        if found.schema.names.count(field.name) != 1:
            names = ", ".join(found.column_names)
            raise SourceError(f"table {name} no longer has exactly one column {field.name!r}; {where} has {names}")
        now = found.schema.field(field.name)
        if not is_same_kind(now.type, field):
            raise SourceError(
                f"column {field.name!r} of table {name} changed its type from {field.type} to {now.type}, in {where}"
            )
    found = found.select(schema.names)
    check_text(found, f"table {name}")
    try:
        return pa.table([to_stream_type(found.column(f.name), f.type) for f in schema], schema=schema)
    except pa.ArrowInvalid as error:
        raise SourceError(f"table {name} contains a value that does not fit its column, in {where}: {error}") from None
