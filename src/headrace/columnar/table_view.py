"""Display of tables and schemas: as text on a terminal and as HTML in a notebook.

Invariant: data cannot inject markup or control characters. Invisible characters are shown as escapes, and HTML is
escaped.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.columnar.types import value_text
from headrace.support.terminal_text import printable

if TYPE_CHECKING:
    from rich.table import Table

HTML_ROWS = 20  # rows shown in a notebook
LONGEST_CELL = 300  # characters of a value shown in a notebook
CELL = 'style="text-align: left; padding: 2px 8px; white-space: pre-wrap"'


def grid(table: pa.Table, rows: int) -> Table:
    """Return the first rows as a `rich` table. Brackets in the data are not markup."""
    from rich.table import Table
    from rich.text import Text

    found = Table()
    for name in table.column_names:
        found.add_column(Text(printable(name)))
    some = table.slice(0, rows)
    for row in range(some.num_rows):
        found.add_row(*(Text(printable(value_text(column[row]))) for column in some.columns))
    return found


def schema_text(schema: pa.Schema) -> str:
    """Return a schema as a table of two columns.

    >>> print(schema_text(pa.schema([("ts", pa.timestamp("us", "UTC")), ("caller", pa.int64())])))
    column  type
    ------  ---------------------
    ts      timestamp[us, tz=UTC]
    caller  int64
    """
    rows = [("column", "type"), *((printable(field.name), printable(str(field.type))) for field in schema)]
    widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
    rows.insert(1, ("-" * widths[0], "-" * widths[1]))
    return "\n".join(f"{name.ljust(widths[0])}  {kind}" for name, kind in rows)


def schema_html(schema: pa.Schema) -> str:
    """Return a schema as an HTML table."""
    return html_table(["column", "type"], [[field.name, str(field.type)] for field in schema])


def table_html(table: pa.Table, rows: int = HTML_ROWS) -> str:
    """Return the first rows of a table as an HTML table, with the number of rows."""
    some = table.slice(0, rows)
    heads = [f"{field.name}\n{field.type}" for field in table.schema]
    cells = [[value_text(column[row]) for column in some.columns] for row in range(some.num_rows)]
    shown = f"the first {rows:,} of " if table.num_rows > rows else ""
    size = f"{shown}{table.num_rows:,} row{'' if table.num_rows == 1 else 's'}"
    return f"{html_table(heads, cells)}<p>{text_html(size)}</p>"


def html_table(heads: list[str], rows: list[list[str]]) -> str:
    """Return texts as an HTML table. Long cells are truncated."""
    head = "".join(f"<th {CELL}>{text_html(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td {CELL}>{text_html(_cut(text))}</td>' for text in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_html(text: str) -> str:
    """Escape text for HTML. Line breaks are kept."""
    return escape(printable(text, lines=True))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
