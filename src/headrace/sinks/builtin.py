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
    """A sink that keeps the results of every epoch in this process. `headrace.sinks.memory` makes it.

    Args:
        ordered: True: results come in the order of `ts`, as soon as no earlier one can follow.

    Examples:
        >>> sink = hr.sinks.memory(ordered=True)
        >>> sink.table() is None
        True
    """

    def __init__(self, ordered: bool) -> None:
        self.ordered = ordered
        self.epochs: dict[tuple[str, int, str], pa.Table] = {}

    def deliver(self, delivery: Delivery) -> None:
        # copied, because a later clean-up deletes the block
        """Keep a copy of the results of an epoch. A repeated delivery replaces the first one.

        Args:
            delivery: the results.

        Examples:
            >>> sink = hr.sinks.memory()
            >>> delivery = hr.sinks.Delivery("shop", 3, "result-0", pa.table({"x": [1, 2]}))
            >>> sink.deliver(delivery)
            >>> sink.deliver(delivery)
            >>> sink.table().num_rows
            2
        """
        copy = pa.ipc.open_stream(_bytes(delivery.table)).read_all()
        self.epochs[(delivery.query, delivery.epoch, delivery.result)] = copy

    def table(self) -> pa.Table | None:
        """Return all results so far, epoch after epoch.

        Returns:
            A `pyarrow.Table`; None before the first results.

        Raises:
            QueryTypeError: tuples that failed in different steps have columns of one name and different types; look at
                `epochs`.

        Examples:
            >>> sink = hr.sinks.memory()
            >>> sink.deliver(hr.sinks.Delivery("shop", 3, "result-0", pa.table({"x": [1, 2]})))
            >>> sink.table()["x"].to_pylist()
            [1, 2]
        """
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
