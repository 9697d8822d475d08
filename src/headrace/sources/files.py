"""Columnar files in a folder as a source: `*.parquet`, `*.arrow`, `*.feather`, and `epoch-*/part-*` in its subfolders.

A task receives pieces of files by name (`headrace.sources.file_pieces`) and reads the columns itself. Each file is
taken once, in the order of (modification time, name), or of names alone. A file must be complete when its name appears:
write it under a name that begins with `_` or `.`, then rename it. The same holds for an `epoch-*` folder with all its
parts, which `sinks.parquet(parts=True)` writes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.columnar.types import refuse_nanoseconds
from headrace.errors import QueryError, QueryTypeError, SourceError
from headrace.sources.file_formats import DAMAGE, open_columnar
from headrace.state.blocks import BlockReader
from headrace.state.manifest import FolderState
from headrace.support.paths import given_path

LOOKED_AT = 1_000  # rows of the first file that are checked when a query is built
FILE_ORDERS = ("modified", "name")
ENDINGS = (".parquet", ".arrow", ".feather")
QUIET = 2_000_000_000  # nanoseconds; closer changes may have the same modification time
Spent = dict[str, int]  # folder of parts -> its modification time in nanoseconds


@dataclass(frozen=True)
class FilesOrigin:
    """A folder of files that may grow."""

    spark: Any
    folder: Path
    files_per_epoch: int | None
    given: pa.Schema | None = None  # schema given by the user
    by_name: bool = False  # True: files are taken in order of name; False: of modification time

    driven = "files"
    state_type = FolderState
    bounded = False  # a run follows the folder as it grows
    readable_whole = True  # `collect` and `reference` read its current files
    unread_schema = None

    def ledger(self, state: FolderState, reader: BlockReader) -> Any:
        from headrace.sources.file_ledger import FileLedger

        return FileLedger(self, state, reader)

    if_moved = "if it was moved: put a symbolic link there"

    def is_at(self, place: str) -> bool:
        """Return whether this folder is the one at `place`, for example through a symbolic link at its old path."""
        try:
            return self.folder.samefile(place)
        except (OSError, ValueError):
            return False

    @property
    def place(self) -> str:
        return str(self.folder)

    def entries(self) -> list[tuple[Path, os.stat_result]]:
        """Return the current files in the order in which they are taken."""
        return [(self.folder / name, stat) for name, stat in self.names()]

    def names(self, besides: Set[str] = frozenset(), spent: Spent | None = None) -> list[tuple[str, os.stat_result]]:
        """Return the current files by name, except `besides`, which for a long run are most of them.

        spent: folders without remaining files and their modification times. A folder is not listed again until it
        changes; newly spent folders are added.
        """
        spent = {} if spent is None else spent
        found: list[tuple[str, os.stat_result]] = []
        for entry in _listed(self.folder):
            if entry.name in besides:
                continue
            if _is_window(entry):
                found += _with_stat(entry, entry.name, self.folder)
            elif _is_epoch(entry):
                found += self._parts(entry, besides, spent)
        return sorted(found, key=lambda e: (0 if self.by_name else e[1].st_mtime_ns, e[0]))

    def _parts(self, folder: os.DirEntry[str], besides: Set[str], spent: Spent) -> list[tuple[str, os.stat_result]]:
        try:
            path = self.folder / folder.name
            changed = path.stat().st_mtime_ns  # read before listing the parts: a later change sets a newer time
            entries = [] if spent.get(folder.name) == changed else _scanned(path)
        except FileNotFoundError:  # the folder was removed meanwhile, after its files were taken
            return []
        found: list[tuple[str, os.stat_result]] = []
        for entry in entries:
            name = f"{folder.name}/{entry.name}"
            if name not in besides and entry.name.startswith("part-") and _is_window(entry):
                found += _with_stat(entry, name, self.folder)
        if not found and time.time_ns() - changed > QUIET:
            spent[folder.name] = changed
        return found

    def listing(self) -> list[Path]:
        return [path for path, _ in self.entries()]

    def schema(self) -> pa.Schema:
        if self.given is not None:
            return self.given
        files = self.listing()
        if not files:
            msg = (
                f"no *.parquet, *.arrow or *.feather file in {str(self.folder)!r} to read the schema from; give schema="
            )
            raise QueryError(msg)
        schema = read_schema(files[0])
        if any(getattr(field.type, "unit", None) == "ns" for field in schema):
            refuse_nanoseconds(read_head(files[0], LOOKED_AT))
        return schema

    def table(self) -> pa.Table:
        """Return the current rows of all files. Files must have the same columns; their order and encoding may differ."""
        schema = self.schema()
        tables = [self._plain(path, table, schema) for path, table in zip(self.listing(), self.tables(), strict=True)]
        return pa.concat_tables(tables) if tables else schema.empty_table()

    def tables(self) -> list[pa.Table]:
        """Return the current files as separate tables, unconverted."""
        return [read_file(path) for path in self.listing()]

    def _plain(self, path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
        if sorted(table.column_names) != sorted(schema.names):
            names = ", ".join(table.column_names)
            raise SourceError(
                f"the schema changed: {str(path)!r} has {names}, but other files have {', '.join(schema.names)}"
            )
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(f"the schema changed: {str(path)!r}: {error}") from None


def _scanned(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return _scanned(folder)
    except OSError as error:
        msg = f"the folder {str(folder)!r} cannot be listed: {error.strerror}; restore it and start again"
        raise SourceError(msg) from None


def _with_stat(entry: os.DirEntry[str], name: str, folder: Path) -> list[tuple[str, os.stat_result]]:
    _check_name(name, folder)
    with contextlib.suppress(FileNotFoundError):  # the file was removed meanwhile
        return [(name, entry.stat())]
    return []


def _is_epoch(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith("epoch-") and entry.is_dir()


def _is_window(entry: os.DirEntry[str]) -> bool:
    return entry.name.endswith(ENDINGS) and not entry.name.startswith(("_", ".")) and entry.is_file()


def _check_name(name: str, folder: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        msg = f"a file in {str(folder)!r} has a name that is not UTF-8: {os.fsencode(name)!r}; rename it"
        raise SourceError(msg) from None


def checked_folder(folder: str | os.PathLike[str]) -> Path:
    path = given_path(folder, "the folder of hr.files")
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise QueryError(f"the folder {str(path)!r} {what}; hr.files needs a folder of columnar files")
    return path.resolve()


def checked_order(order: str) -> bool:
    """Return whether files are taken in order of name."""
    if order not in FILE_ORDERS:
        raise QueryError(f"order must be one of {', '.join(FILE_ORDERS)}; found {order!r}")
    return order == "name"


def checked_schema(given: pa.Schema | None) -> pa.Schema | None:
    if given is not None and not isinstance(given, pa.Schema):
        raise QueryTypeError(f"schema must be a pyarrow.Schema; found {given!r}; such as pyarrow.schema([...])")
    return given


def read_schema(path: Path) -> pa.Schema:
    try:
        with open_columnar(path) as file:
            return file.schema
    except DAMAGE as error:
        raise unreadable(path, error) from None


def read_file(path: Path, expected: tuple[int, int] | None = None) -> pa.Table:
    """Return all rows of a file. With `expected` (bytes, modification time in nanoseconds), raise if the file has
    changed.
    """
    try:
        with open_columnar(path) as file:
            table = checked_rows(file.read(0, file.groups, None))
    except DAMAGE as error:
        raise unreadable(path, error) from None
    if expected is not None:
        check_unchanged(path, expected)
    return table


def read_head(path: Path, rows: int) -> pa.Table:
    """Return the first rows of a file without reading all of it."""
    try:
        with open_columnar(path) as file:
            return checked_rows(file.first_rows(rows).slice(0, rows))
    except DAMAGE as error:
        raise unreadable(path, error) from None


def checked_rows(table: pa.Table) -> pa.Table:
    """Return the rows read from a file after validation, because Arrow itself does not check offsets and UTF-8."""
    table.validate(full=True)
    return table.replace_schema_metadata(None)


def check_unchanged(path: Path, expected: tuple[int, int]) -> None:
    """Raise if the size or modification time of a file has changed."""
    try:
        stat = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    if (stat.st_size, stat.st_mtime_ns) != expected:
        msg = f"the file {str(path)!r} was changed while it was being read; write each file once, under a name that begins with '_', then rename it, and start again"
        raise SourceError(msg)


def unreadable(path: Path, error: Exception) -> SourceError:
    if not path.exists():
        return SourceError(f"the file {str(path)!r} was deleted before it was processed; restore it")
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, MemoryError):
        msg = f"cannot read {str(path)!r}, because it needs too much memory: {reason}; write it with smaller row groups or record batches, or give tasks more memory, and start again"
        return SourceError(msg)
    return SourceError(f"cannot read {str(path)!r}: {reason}; replace the file by an intact one and start again")
