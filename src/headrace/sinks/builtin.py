"""The sinks that need no library: memory, the terminal, and a function of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

import pyarrow as pa

from headrace.columnar.table_view import grid, table_html
from headrace.errors import QueryTypeError
from headrace.sinks.base import Delivery


class MemorySink:
    """A sink that keeps the results of every epoch in this process; see `headrace.sinks.memory`."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.epochs: dict[tuple[str, int, str], pa.Table] = {}

    def deliver(self, delivery: Delivery) -> None:
        # copied, because a later cleanup deletes the block
        copy = pa.ipc.open_stream(_bytes(delivery.table)).read_all()
        self.epochs[(delivery.query, delivery.epoch, delivery.result)] = copy

    def table(self) -> pa.Table | None:
        """Return all results so far in the order of their epochs, or None if there are none."""
        ordered = [self.epochs[key] for key in sorted(self.epochs)]
        try:  # late, rejected and failed tuples can have different schemas
            return pa.concat_tables(ordered, promote_options="permissive") if ordered else None
        except pa.ArrowTypeError as error:
            msg = f"failed tuples of different steps have different types in columns of the same name ({error}); use sink.epochs, which has one table for each, or use parquet(...)"
            raise QueryTypeError(msg) from None

    def __repr__(self) -> str:
        return "memory()"

    def _repr_html_(self) -> str:
        """Return the first results as an HTML table for notebooks."""
        found = self.table()
        return "<p>memory(): no results yet</p>" if found is None else table_html(found)


def _bytes(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class ConsoleSink:
    """A sink that prints the first rows of every epoch; see `headrace.sinks.console`."""

    def __init__(self, rows: int, ordered: bool, file: TextIO | None) -> None:
        self.rows, self.ordered, self.file = rows, ordered, file

    def deliver(self, delivery: Delivery) -> None:
        from rich.console import Console

        console = Console(file=self.file or sys.stdout)
        console.print(f"epoch {delivery.epoch}: {delivery.table.num_rows} results", highlight=False)
        console.print(grid(delivery.table, self.rows))

    def __repr__(self) -> str:
        return "console()"


class ForeachSink:
    """A sink that calls a function for every epoch; see `headrace.sinks.foreach`."""

    def __init__(self, function: Callable[[pa.Table, int], object], ordered: bool) -> None:
        self.function, self.ordered = function, ordered

    def deliver(self, delivery: Delivery) -> None:
        self.function(delivery.table, delivery.epoch)

    def __repr__(self) -> str:
        return f"foreach({getattr(self.function, '__name__', 'function')})"
