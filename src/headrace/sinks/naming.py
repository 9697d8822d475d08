"""Folders of results: names in them, what makes them last, and what must not be there already."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.errors import QueryError
from headrace.types import describe


def epoch_name(query: str, epoch: int, result: str) -> str:
    """Of a file, or a folder, with the results of one epoch. Names that begin with `_` are nobody's results."""
    return f"epoch-{epoch:09d}-{label(result)}-{query[:8]}"


def label(result: str) -> str:
    """A result's name as part of a file name; names that differ stay different."""
    plain = re.sub(r"[^A-Za-z0-9-]", "-", result)[:40]
    return plain if plain == result else f"{plain}-{xxhash.xxh32_hexdigest(result.encode())}"


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(table: pa.Table, path: Path) -> None:
    """Synced. A dictionary is for texts: of numbers, which seldom repeat, it takes three times as long as all the rest."""
    texts = [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    pq.write_table(table, path, use_dictionary=texts)
    sync(path)


def demand_columns(folder: Path, columns: list[list[str]]) -> None:
    """Refuse a folder that holds results of other columns: who reads it would find two kinds of files in it."""
    there = sorted(folder.glob("epoch-*.parquet")) + sorted(folder.glob("epoch-*/part-*.parquet"))
    if there and (found := describe(pq.read_schema(there[-1]))) != columns:
        was, now = (", ".join(f"{name} {kind}" for name, kind in each) for each in (found, columns))
        msg = f"the folder {str(folder)!r} holds results with other columns ({was}) than this result has now ({now}); give the result a new folder"
        raise QueryError(msg)


def other_results(path: Path) -> QueryError:
    """A delivery comes again with the same rows; others are of a state that was put back to an earlier time."""
    return QueryError(
        f"{str(path)!r} holds other results of the same epoch, as after a checkpoint was restored from a backup; give the"
        " results a new folder, or remove what was written since"
    )
