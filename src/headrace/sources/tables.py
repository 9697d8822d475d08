"""Tables beside streams: rows without time, read as a whole whenever a version of them is wanted.

Invariant: what `rows` gives is all that the table held at one moment, as far as that can be told (a folder whose files changed
while they were read is not one), in the columns and types that the query was built for. Columns that the query does not know
are left out; one that is missing, or of another type, is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from headrace.errors import QueryError, SourceError
from headrace.paths import given_path
from headrace.sources import check_text, plain, same_kind
from headrace.sources.files import ENDINGS, FilesOrigin, read_file, read_schema
from headrace.types import plain_type


class TableSource(Protocol):
    """What stands behind a table."""

    @property
    def place(self) -> str:
        """What it reads, for people."""

    @property
    def renewable(self) -> bool:
        """Whether reading it again may find something else."""

    def schema(self) -> pa.Schema:
        """As it is now, in its own types."""

    def table(self) -> pa.Table:
        """All of it as it is now, in its own types."""


class FolderTable:
    """The columnar files of a folder, together."""

    renewable = True

    def __init__(self, folder: Path) -> None:
        self._files = FilesOrigin(None, folder, None)

    @property
    def place(self) -> str:
        return f"folder {self._files.place}"

    def schema(self) -> pa.Schema:
        return self._files.schema()

    def table(self) -> pa.Table:
        before = self._listed()
        if not before:
            raise SourceError(
                f"there is no *.parquet, *.arrow or *.feather file in {self._files.place!r};"
                " a table without rows is a file without rows"
            )
        tables = [read_file(Path(path), (size, changed)) for path, size, changed in before]
        if self._listed() != before:
            raise SourceError(f"the files of {self._files.place!r} were changed while they were being read")
        return pa.concat_tables(_alike(tables, before))

    def _listed(self) -> list[tuple[str, int, int]]:
        return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in self._files.entries()]


class FileTable:
    """One columnar file; whoever writes it anew does so beside it, and renames."""

    renewable = True

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        return f"file {self._path}"

    def schema(self) -> pa.Schema:
        return read_schema(self._path)

    def table(self) -> pa.Table:
        try:
            stat = self._path.stat()
        except OSError as error:
            raise SourceError(f"the file {str(self._path)!r} cannot be read: {error.strerror}; put it back") from None
        return read_file(self._path, (stat.st_size, stat.st_mtime_ns))


def _alike(tables: list[pa.Table], listed: list[tuple[str, int, int]]) -> list[pa.Table]:
    """The tables with the columns and types of the first, where they can have them."""
    first = tables[0].schema
    found = []
    for table, (path, *_) in zip(tables, listed, strict=True):
        try:
            found.append(table.select(first.names).cast(first))
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(f"{path!r} does not have the columns of the other files: {error}") from None
    return found


class ArrowTable:
    """An Arrow table, or a function that returns one: for tests and small experiments."""

    def __init__(self, given: pa.Table | Callable[[], pa.Table]) -> None:
        self._given = given
        self.renewable = callable(given)
        self.place = "a function" if callable(given) else "an Arrow table"

    def schema(self) -> pa.Schema:
        return self.table().schema

    def table(self) -> pa.Table:
        return self._given() if callable(self._given) else self._given


def mounted_table(place: str | os.PathLike[str]) -> FolderTable | FileTable:
    """What a path of this machine holds."""
    path = given_path(place, "the folder of hr.table")
    if path.is_dir():
        return FolderTable(path.resolve())
    if not path.exists():
        raise QueryError(f"{str(path)!r} does not exist; hr.table takes a folder of columnar files, or one such file")
    if not path.name.endswith(ENDINGS):
        endings = ", ".join(f"*{ending}" for ending in ENDINGS)
        raise QueryError(f"{str(path)!r} is no columnar file; hr.table takes {endings}, or a folder of them")
    return FileTable(path.absolute())


def table_schema(raw: pa.Schema) -> pa.Schema:
    """The columns of a table in the types that streams carry."""
    if not len(raw):
        raise QueryError("a table needs at least one column; found none")
    return pa.schema([pa.field(field.name, plain_type(field.type, field.name)) for field in raw])


def rows(source: TableSource, schema: pa.Schema, name: str) -> pa.Table:
    """All rows of a table as it is now, with these columns."""
    found = source.table()
    for field in schema:
        if found.schema.names.count(field.name) != 1:
            names = ", ".join(found.column_names)
            raise SourceError(f"table {name} has no one column {field.name!r} any more; it has {names}")
        now = found.schema.field(field.name)
        if not same_kind(now.type, field):
            raise SourceError(f"column {field.name!r} of table {name} changed its type from {field.type} to {now.type}")
    found = found.select(schema.names)
    check_text(found, f"table {name}")
    try:
        return pa.table([plain(found.column(f.name), f.type) for f in schema], schema=schema)
    except pa.ArrowInvalid as error:
        raise SourceError(f"table {name} holds a value that its columns do not: {error}") from None
