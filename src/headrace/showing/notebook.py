"""HTML of queries, plans, results and runs in a notebook, and a run display that is updated in place.

Invariant: showing a query, a plan or a run starts no Spark job. Every text goes through `text_html`, so that data
cannot inject markup.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.columnar.table_view import html_table, schema_html, table_html, text_html
from headrace.showing.picture import svg
from headrace.telemetry.progress import Progress

if TYPE_CHECKING:
    from headrace.compile.subqueries import Plan
    from headrace.run.run import Run

WRAP = 'style="white-space: pre-wrap"'
UPDATE_SECONDS = 0.5  # seconds between two updates of the displayed run
# types that have no HTML representation
SHOWN_AS = (("pyarrow.lib", "Table", table_html), ("pyarrow.lib", "Schema", schema_html))


class Picture(str):
    """A picture as SVG text, which a notebook draws."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


def picture(plan: Plan) -> Picture:
    """Return the picture of a plan. See `Plan.picture`."""
    return Picture(svg(plan))


def stream_html(title: str, schema: pa.Schema, outline: str) -> str:
    """Return a query as HTML: its columns and its operators."""
    return f"<b>{text_html(title)}</b>{schema_html(schema)}<pre {WRAP}>{text_html(outline)}</pre>"


def run_html(run: Run) -> str:
    """Return the current state of a run as HTML: the query and its progress."""
    return f"<pre {WRAP}>{text_html(repr(run))}</pre>{html_table(['', 'since the start', 'last epoch'], _rows(run.progress))}"


def _rows(progress: Progress) -> list[list[str]]:
    last = progress.last
    counts = [
        ("tuples in", progress.tuples_in, last and last.tuples_in),
        ("results", progress.results_out, last and last.results_out),
        ("late", progress.late, last and last.late),
        ("rejected", progress.rejected, last and last.rejected),
    ]
    rows = [[name, f"{total:,}", "" if newest is None else f"{newest:,}"] for name, total, newest in counts]
    rows.append(["seconds", "", "" if last is None else f"{last.seconds:.2f}"])
    rows.append(["bytes of state", f"{progress.state_bytes:,}", ""])
    return rows


def display_run(run: Run) -> None:
    """Show a run in a notebook and update it in place until it ends."""
    from IPython.display import HTML, display

    handle = display(HTML(run_html(run)), display_id=True)
    if handle is None:  # no notebook front end
        return

    def update() -> None:
        shown = None
        while True:
            active = run.active
            if (found := run_html(run)) != shown:
                handle.update(HTML(found))
                shown = found
            if not active:
                return
            run._ended.wait(UPDATE_SECONDS)

    threading.Thread(target=update, name="headrace-notebook", daemon=True).start()


def register(shell: Any) -> None:
    """Register HTML formatters for Arrow tables and schemas, unless the IPython shell already has some."""
    formatter = shell.display_formatter.formatters["text/html"]
    for module, name, show in SHOWN_AS:
        known = getattr(pa, name) in formatter.type_printers or (module, name) in formatter.deferred_printers
        if not known:
            formatter.for_type_by_name(module, name, show)
