"""The first rows of a result on the terminal."""

from __future__ import annotations

import sys

import pyarrow as pa
from rich.console import Console

from headrace.columnar.table_view import grid


def print_rows(table: pa.Table) -> None:
    """Print all rows of a small table."""
    Console(file=sys.stdout).print(grid(table, table.num_rows))
