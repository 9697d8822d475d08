"""The sinks that need no library: memory, the terminal, and a function of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

import pyarrow as pa

from headrace.columnar.types import value_text
from headrace.errors import QueryTypeError
from headrace.sinks.base import Delivery
from headrace.support.terminal_text import printable


class MemorySink:
    """A sink that keeps the results of every epoch in this process, as `headrace.sinks.memory` makes it."""

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.epochs: dict[tuple[str, int, str], pa.Table] = {}

    def deliver(self, delivery: Delivery) -> None:
        # copied, because a later clean-up deletes the block
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


class ConsoleSink:
    """A sink that prints the first rows of every epoch, as `headrace.sinks.console` makes it."""

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
            grid.add_row(*(Text(printable(value_text(column[row]))) for column in some.columns))
        console = Console(file=self.file or sys.stdout)
        console.print(f"epoch {delivery.epoch}: {delivery.table.num_rows} results", highlight=False)
        console.print(grid)

    def __repr__(self) -> str:
        return "console()"


class ForeachSink:
    """A sink that calls a function for every epoch, as `headrace.sinks.foreach` makes it."""

    def __init__(self, function: Callable[[pa.Table, int], object], ordered: bool) -> None:
        self.function, self.ordered = function, ordered

    def deliver(self, delivery: Delivery) -> None:
        self.function(delivery.table, delivery.epoch)

    def __repr__(self) -> str:
        return f"foreach({getattr(self.function, '__name__', 'function')})"
