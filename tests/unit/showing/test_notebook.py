"""What a notebook shows: tables, schemas, streams, plans and runs as HTML that no data can change."""

from __future__ import annotations

import threading
import time
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace import sinks
from headrace.columnar import table_view
from headrace.columnar.types import TS_TYPE
from headrace.showing import notebook, preview
from headrace.showing.picture import svg
from headrace.sinks import Delivery
from headrace.telemetry.progress import Progress
from headrace.testing import arrow_table, table_stream
from tests.patience import PATIENCE

EVIL = "</td></pre><script>alert('x')</script><img src=x onerror=alert(1)>&\x1b[2J\u202e"
TAGS = {"table", "thead", "tbody", "tr", "th", "td", "p", "pre", "b"}


class Seen(HTMLParser):
    """The elements and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def evil_table() -> pa.Table:
    times = pa.array([1, 2], TS_TYPE)
    return pa.table({"ts": times, "<i>": [EVIL, None], "list": [[EVIL], []]})


def evil_stream() -> hr.Stream:
    s = table_stream(evil_table(), name=EVIL.replace("\x1b", "").replace("\u202e", ""))
    return s.filter("\"<i>\" <> '</pre><script>'")


def harmless(page: str) -> Seen:
    seen = Seen(page)
    assert set(seen.tags) <= TAGS and seen.attributes <= {"style"}
    assert "\x1b" not in page and "\u202e" not in page
    return seen


class FakeRun:
    """A run that never fails and whose progress a test sets."""

    def __init__(self) -> None:
        self.progress = Progress(epoch=3, tuples_in=1234, results_out=56)
        self.active = True
        self._ended = threading.Event()

    def __repr__(self) -> str:
        return f"Run(running; {EVIL!r})"


SHOWN = {
    "table": lambda: table_view.table_html(evil_table()),
    "schema": lambda: table_view.schema_html(evil_table().schema),
    "stream": lambda: evil_stream()._repr_html_(),
    "substreams": lambda: evil_stream().split(2, by=["<i>"])._repr_html_(),
    "beside": lambda: arrow_table(evil_table().drop_columns(["ts"]), name="t")._repr_html_(),
    "run": lambda: notebook.run_html(FakeRun()),
    "memory": lambda: memory()._repr_html_(),
}


def memory() -> sinks.MemorySink:
    sink = sinks.memory()
    sink.deliver(Delivery("q", 1, "result-0", evil_table()))
    return sink


@pytest.mark.parametrize("what", SHOWN)
def test_data_cannot_become_markup(what: str) -> None:
    seen = harmless(SHOWN[what]())
    assert "script>" in seen.text or "<i>" in seen.text, "it is shown, as text"


def test_a_table_shows_its_first_rows_and_says_how_many_there_are() -> None:
    table = pa.table({"ts": pa.array(range(50), TS_TYPE), "long": ["x" * 5000] * 50})
    seen = Seen(table_view.table_html(table, rows=7))
    assert seen.tags.count("tr") == 8 and "the first 7 of 50 rows" in seen.text
    assert len(seen.text) < 7 * 500
    assert "1 row" in table_view.table_html(table.slice(0, 1)) and "0 rows" in table_view.table_html(table.slice(0, 0))


def test_a_stream_shows_its_columns_and_how_it_is_made() -> None:
    s = table_stream(pa.table({"ts": pa.array([1], TS_TYPE), "k": ["a"]}), name="calls").limit(3)
    text = Seen(s._repr_html_()).text
    assert "timestamp[us, tz=UTC]" in text and "limit 3" in text and "source calls" in text
    assert str(s).splitlines()[:4] == [
        "column  type",
        "------  ---------------------",
        "ts      timestamp[us, tz=UTC]",
        "k       string",
    ]
    assert str(s).endswith(repr(s).partition("\n")[2])


def test_a_plan_is_its_picture() -> None:
    plan = evil_stream().limit(3).plan(slots=2)
    picture = plan.picture()
    assert picture == svg(plan) == picture._repr_html_() == plan._repr_html_()
    assert ET.fromstring(picture).tag.endswith("svg") and "<script>" not in picture


def test_the_rules_of_a_picture_apply_to_nothing_else_in_the_page() -> None:
    style = ET.fromstring(evil_stream().plan().picture()).find("{http://www.w3.org/2000/svg}style")
    assert style is not None and style.text
    selectors = [rule.partition("{")[0].strip() for rule in style.text.split("}") if rule.strip()]
    assert len(selectors) >= 7 and all(selector.startswith(".headrace-plan ") for selector in selectors)


def test_memory_without_results() -> None:
    assert "no results yet" in sinks.memory()._repr_html_()


def test_show_prints_brackets_and_markup_as_they_are(capsys: Any) -> None:
    preview.print_rows(pa.table({"[b]": ["[red]x[/red]", "<b>"]}))
    shown = capsys.readouterr().out
    assert "[b]" in shown and "[red]x[/red]" in shown and "<b>" in shown


# --- what IPython is told ---------------------------------------------------------------------------------------------


def test_a_run_is_updated_in_place_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "UPDATE_SECONDS", 0.01)
    run, pages, ended = FakeRun(), [], threading.Event()

    def update(shown: Any) -> None:
        pages.append(shown.data)
        if not run.active:
            ended.set()

    def display(shown: Any, *, display_id: bool) -> Any:
        pages.append(shown.data)
        return SimpleNamespace(update=update)

    monkeypatch.setattr("IPython.display.display", display)
    notebook.display_run(run)
    run.progress = Progress(epoch=4, tuples_in=9999)
    deadline = time.monotonic() + PATIENCE
    while not any("9,999" in page for page in pages):
        assert time.monotonic() < deadline, "the page was never updated"
        ended.wait(0.01)
    run.progress, run.active = Progress(epoch=5, tuples_in=10_000), False
    assert ended.wait(PATIENCE)
    assert "1,234" in pages[0] and "10,000" in pages[-1]
    for page in pages:
        harmless(page)


def test_arrow_tables_and_schemas_are_shown_as_html_unless_they_already_have_a_display() -> None:
    from IPython.core.formatters import HTMLFormatter

    def registered(formatter: HTMLFormatter) -> HTMLFormatter:
        hr.load_ipython_extension(
            SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
        )
        return formatter

    fresh, by_type, by_name = HTMLFormatter(), HTMLFormatter(), HTMLFormatter()
    by_type.for_type(pa.Schema, lambda schema: "mine")
    by_name.for_type_by_name("pyarrow.lib", "Schema", lambda schema: "mine")
    assert "<td" in registered(fresh)(evil_table()) and "<td" in fresh(evil_table().schema)
    for formatter in (by_type, by_name):
        assert "<td" in registered(formatter)(evil_table())
        assert formatter(evil_table().schema) == "mine"
