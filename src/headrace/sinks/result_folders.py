"""Folders of results: file names, durability, and checks of existing files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.columnar.types import describe_schema
from headrace.errors import QueryError, SinkError


def epoch_name(query: str, epoch: int, result: str) -> str:
    """Return the name of the file or folder with the results of one epoch. Names of other files begin with `_`."""
    return f"epoch-{epoch:09d}-{name_label(result)}-{query[:8]}"


def name_label(result: str) -> str:
    """Return a result's name as part of a file name. Different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9-]", "-", result)[:40]
    return plain if plain == result else f"{plain}-{xxhash.xxh32_hexdigest(result.encode())}"


def sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def naming_folder(folder: Path) -> Iterator[None]:
    """Turn an OSError into an error that names the folder."""
    try:
        yield
    except OSError as error:
        msg = f"the folder {str(folder)!r} cannot be written to ({error}); make sure that it is a folder with free space that this user may write to, and start again"
        raise SinkError(msg) from error


def write_file(table: pa.Table, path: Path) -> None:
    """Write a Parquet file and sync it. Only text and bytes use dictionaries: for numbers, which seldom repeat, they
    triple the time.
    """
    texts = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    pq.write_table(table, path, use_dictionary=texts)
    sync_folder(path)


def check_columns(folder: Path, columns: list[list[str]]) -> None:
    """Raise if the folder contains results with other columns, because readers would find two kinds of files."""
    there = sorted(folder.glob("epoch-*.parquet")) + sorted(folder.glob("epoch-*/part-*.parquet"))
    if there and (found := describe_schema(pq.read_schema(there[-1]))) != columns:
        was, now = (", ".join(f"{name} {kind}" for name, kind in each) for each in (found, columns))
        msg = f"the folder {str(folder)!r} contains results with other columns ({was}) than this result has now ({now}); use a new folder for the result"
        raise QueryError(msg)


def rows_in(files: Sequence[Path]) -> pa.Table:
    """Return the rows of files that this sink has written."""
    try:
        return pa.concat_tables([pq.ParquetFile(file).read() for file in files] or [pa.table({})])
    except (pa.ArrowException, OSError) as error:
        where = ", ".join(repr(str(file)) for file in files[:3])
        msg = f"{where} cannot be read, so its content has changed ({error}); remove it and start again"
        raise SinkError(msg) from None


def check_same_rows(path: Path, known: pa.Table, given: pa.Table) -> None:
    """Raise if rows differ from the rows stored at `path`. A repeated delivery has the same rows."""
    if known.schema != given.schema or not all(map(_equal, known.columns, given.columns)):
        raise other_rows_error(path)


def _equal(known: pa.ChunkedArray, given: pa.ChunkedArray) -> bool:
    """Compare columns. Floating-point numbers are compared by their bits at any depth, because NaN does not equal
    itself.
    """
    bits = _as_bits(given.type)
    known, given = (pa.chunked_array([chunk.view(bits) for chunk in each.chunks], bits) for each in (known, given))
    return bool(known.equals(given))


def _as_bits(kind: pa.DataType) -> pa.DataType:
    """Return a plain type of the same layout, with integers in place of floating-point numbers."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([field.with_type(_as_bits(field.type)) for field in kind])
    if t.is_map(kind):
        return pa.map_(_as_bits(kind.key_type), _as_bits(kind.item_type))
    if t.is_list(kind):
        return pa.list_(_as_bits(kind.value_type))
    return {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(kind, kind)


def other_rows_error(path: Path) -> QueryError:
    """Return the error for a repeated delivery with other rows, which come from a state that was restored from a
    backup.
    """
    return QueryError(
        f"{str(path)!r} contains other results of the same epoch, as after a checkpoint was restored from a backup; use"
        " a new folder for the results, or remove what was written since"
    )
