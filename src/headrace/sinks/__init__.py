"""Where results go. A sink is handed whole epochs, after their commit, in order; the newest may come twice.

`(query, epoch, result)` names a delivery: the same name always comes with the same rows, so a sink that drops what it
has already seen has every result exactly once. `parquet` and `memory` do.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.errors import QueryError, QueryTypeError
from headrace.paths import given_path
from headrace.screen import printable
from headrace.types import shown


@dataclass(frozen=True)
class Delivery:
    """The results of one epoch."""

    query: str
    epoch: int
    result: str
    table: pa.Table


class Sink(Protocol):
    """Takes the results of whole epochs. `ordered`: held back until complete and delivered by `ts`."""

    ordered: bool

    def deliver(self, delivery: Delivery) -> None: ...


def parquet(path: str | os.PathLike[str], *, ordered: bool = False) -> Sink:
    """One Parquet file per epoch in a folder. A file appears whole, and once, however often it is delivered."""
    return _Parquet(given_path(path, "the sink"), ordered)


def memory(*, ordered: bool = False) -> Memory:
    """Results in this process, as one Arrow table: `sink.table()`."""
    return Memory(ordered)


def console(rows: int = 10, *, ordered: bool = False, file: TextIO | None = None) -> Sink:
    """The first rows of every epoch on the terminal."""
    return _Console(rows, ordered, file)


def foreach(function: Callable[[pa.Table, int], object], *, ordered: bool = False) -> Sink:
    """Call `function(table, epoch)` for every epoch with results. When a run starts again the newest epoch may come again."""
    if not callable(function):
        raise QueryTypeError(f"foreach takes a function(table, epoch); found {function!r}")
    return _Foreach(function, ordered)


class _Parquet:
    def __init__(self, path: Path, ordered: bool) -> None:
        if path.exists() and not path.is_dir():
            raise QueryError(f"the sink path {str(path)!r} is a file; give a folder")
        self.path, self.ordered = path, ordered

    def deliver(self, delivery: Delivery) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        final = self.path / f"epoch-{delivery.epoch:09d}-{_label(delivery.result)}-{delivery.query[:8]}.parquet"
        if final.exists():
            _demand_the_same(final, delivery.table)
            return
        temporary = self.path / f"_{final.name}-{uuid.uuid4().hex}"
        try:
            pq.write_table(delivery.table, temporary)
            _sync(temporary)
            os.replace(temporary, final)  # one writer: the run that owns the checkpoint
            _sync(self.path)
        finally:
            temporary.unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"parquet({str(self.path)!r})"


def _demand_the_same(path: Path, table: pa.Table) -> None:
    """A delivery comes again with the same rows; other ones are of a state that was put back to an earlier time."""
    known = pq.ParquetFile(path).read()
    same = known.num_rows == table.num_rows and known.column_names == table.column_names
    if not same or not all(map(_same, known.columns, table.columns)):
        msg = f"{str(path)!r} holds other results of the same epoch, as after a checkpoint was restored from a backup; give the results a new folder, or remove what was written since"
        raise QueryError(msg)


def _same(known: pa.ChunkedArray, given: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(given.type):  # a NaN inside is not equal to itself
        return len(known) == len(given)
    if pa.types.is_floating(given.type):
        bits = {32: pa.int32(), 64: pa.int64()}[given.type.bit_width]
        return bool(known.combine_chunks().view(bits).equals(given.combine_chunks().view(bits)))
    return bool(known.equals(given))


def _label(result: str) -> str:
    """A result's name as part of a file name; names that differ stay different."""
    plain = re.sub(r"[^A-Za-z0-9-]", "-", result)[:40]
    return plain if plain == result else f"{plain}-{xxhash.xxh32_hexdigest(result.encode())}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Memory:
    """Keeps the table of every epoch."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.epochs: dict[tuple[str, int, str], pa.Table] = {}

    def deliver(self, delivery: Delivery) -> None:
        # copied, because the block behind it is cleaned up some epochs later
        copy = pa.ipc.open_stream(_bytes(delivery.table)).read_all()
        self.epochs[(delivery.query, delivery.epoch, delivery.result)] = copy

    def table(self) -> pa.Table | None:
        """All results so far, epoch after epoch; None before the first."""
        ordered = [self.epochs[key] for key in sorted(self.epochs)]
        try:  # tuples that were put aside differ in schema
            return pa.concat_tables(ordered, promote_options="permissive") if ordered else None
        except pa.ArrowTypeError as error:
            msg = f"tuples that failed in different steps have other types in columns of one name ({error}); look at sink.epochs, a table for each, or use parquet(...)"
            raise QueryTypeError(msg) from None

    def __repr__(self) -> str:
        return "memory()"


def _bytes(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class _Console:
    def __init__(self, rows: int, ordered: bool, file: TextIO | None) -> None:
        self.rows, self.ordered, self.file = rows, ordered, file

    def deliver(self, delivery: Delivery) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text  # data is text, whatever brackets it has

        grid = Table()
        for name in delivery.table.column_names:
            grid.add_column(Text(printable(name)))
        some = delivery.table.slice(0, self.rows)
        for row in range(some.num_rows):
            grid.add_row(*(Text(printable(shown(column[row]))) for column in some.columns))
        console = Console(file=self.file or sys.stdout)
        console.print(f"epoch {delivery.epoch}: {delivery.table.num_rows} results", highlight=False)
        console.print(grid)

    def __repr__(self) -> str:
        return "console()"


class _Foreach:
    def __init__(self, function: Callable[[pa.Table, int], object], ordered: bool) -> None:
        self.function, self.ordered = function, ordered

    def deliver(self, delivery: Delivery) -> None:
        self.function(delivery.table, delivery.epoch)

    def __repr__(self) -> str:
        return f"foreach({getattr(self.function, '__name__', 'function')})"


__all__ = ["Delivery", "Memory", "Sink", "console", "foreach", "memory", "parquet"]
