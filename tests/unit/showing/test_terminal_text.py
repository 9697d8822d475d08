"""Hostile names, data and errors: on a screen and in a picture they are text, and nothing else."""

from __future__ import annotations

import io
import unicodedata
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import headrace as hr
from headrace.cli import decision_history
from headrace.reference import reference
from headrace.showing import live
from headrace.showing.explain import explain
from headrace.showing.picture import svg
from headrace.sinks import Delivery
from headrace.stream import node_of
from headrace.support.terminal_text import printable
from headrace.telemetry.epoch_record import EpochRecord
from headrace.telemetry.listeners import Listeners
from headrace.telemetry.progress import EpochSummary, Progress
from headrace.testing import LocalRun, arrow_table, table_stream
from headrace.tools import plan_file

HOSTILE = "speed [km/h] [/s] \x1b[2J\x1b]0;owned\x07 \u202eevil\u2066 \x9b31m \x00 \x7f \r\n \x1bc <&\"'> \ufffe"
TABLE = pa.table({"ts": pa.array([1, 2]).cast(pa.timestamp("us", "UTC")), "x": ["[/]", HOSTILE]})


def harmless(text: str) -> bool:
    """Nothing in it acts on a terminal: only lines and what can be seen."""
    return all(c == "\n" or unicodedata.category(c)[0] not in "C" for c in text)


def hostile_stream() -> hr.Stream:
    return table_stream(TABLE, name=HOSTILE)


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_whatever_the_text_it_can_be_shown_and_drawn(text: str) -> None:
    shown = printable(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cs", "Cn", "Co", "Zl", "Zp") for c in shown)
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")
    shown.encode()


def test_what_can_be_seen_stays_as_it_is() -> None:
    for text in ("", "a b", "Müller", "東京\u3000駅", "a\u00a0b", "می\u200cخواهم", "👩\u200d🚀"):
        assert printable(text) == text
    assert printable("a\nb\tc") == r"a\nb\tc" and printable("a\nb", lines=True) == "a\nb"


def progress() -> Progress:
    last = EpochSummary(0, 0.1, 2, 2, 0, 0, {HOSTILE: 2}, {"result-0": 2}, 0.1)
    return Progress(
        0, 2, 2, 0, 0, 2, {HOSTILE: 2}, {"result-0": 2}, {HOSTILE: 1}, last=last, latency={"p50": 0.1, "p99": 0.1}
    )


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=300, height=50, highlight=False)


def written(console: Console) -> str:
    """Without what rich itself says to the terminal: to hide the cursor, to go up, to clear a line."""
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    for own in ("\x1b[?25l", "\x1b[?25h", "\x1b[2K", "\x1b[1A", "\r"):
        text = text.replace(own, "")
    return text


def test_a_live_table() -> None:
    console = terminal()
    display = live.for_console(console, HOSTILE, {"result-0": f"result-0 to {HOSTILE}"})
    display.show(progress())
    display.close()
    assert "speed [km/h] [/s]" in written(console) and r"\x1b[2J" in written(console)
    assert harmless(written(console))


def test_what_sinks_print_above_the_table_may_have_colours_and_nothing_else() -> None:
    console = terminal()
    above = live.AboveTable(console)
    above.write(
        "\x1b[31mred\x1b[0m " + HOSTILE.replace("\r", "") + "\tend\n"
    )  # what stands before a return is overwritten
    assert "red" in written(console) and "end" in written(console)
    assert harmless(written(console).replace("\t", " "))


@pytest.mark.parametrize("tty", [True, False])
def test_the_console_sink(tty: bool) -> None:
    file = io.StringIO()
    file.isatty = lambda: tty  # type: ignore[method-assign]
    hr.sinks.console(file=file).deliver(Delivery("q", 0, "result-0", TABLE.rename_columns(["ts", HOSTILE])))
    text = file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert "[/]" in text and harmless(text)


def test_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = {"epoch": 1, "operator": HOSTILE, "kind": "move", "change": HOSTILE, "reason": f"key {HOSTILE}"}
    found = [{**decision, "before": 1.0, "predicted": 0.5, "measured": None}]
    monkeypatch.setattr(decision_history, "decision_history", lambda _: found)
    console = terminal()
    decision_history.print_decisions(Path("anywhere"), console)
    assert "[km/h]" in written(console) and harmless(written(console))


def test_explain_and_the_plan_as_text() -> None:
    query = hostile_stream().filter("x = '\x1b[1m'").aggregate(by=["x"], window="1 second", n="count(*)")
    assert r"\x1b[2J" in query.explain() and harmless(query.explain())
    assert harmless(str(query.plan()))
    assert harmless(explain([HOSTILE], query.plan()))


def test_a_picture_is_xml() -> None:
    query = hostile_stream().filter("x = '\x01'").aggregate(by=["x"], window="1 second", n="count(*)")
    texts = [element.text for element in ET.fromstring(svg(query.plan())).iter() if element.text]
    assert any("speed [km/h] [/s]" in text and r"\x00" in text for text in texts)
    assert all(harmless(text) for text in texts)


# --- a name of several lines is on one ---------------------------------------------------------------------------------

FORGED = "calls\n  source forged (x int64)\x1b[2J"
ROWS = pa.table({"ts": pa.array([1, 2]).cast(pa.timestamp("us", "UTC")), "x": [1, 2]})


def on_one_line(text: str) -> bool:
    return (
        harmless(text) and r"\n  source forged" in text and not any("forged" in line[:15] for line in text.splitlines())
    )


def forged_stream(**options: Any) -> hr.Stream:
    return table_stream(ROWS, name=FORGED, **options)


def forged_queries() -> dict[str, hr.Stream]:
    table = arrow_table(pa.table({"y": [1]}), name=FORGED + " table")
    s = forged_stream()
    return {
        "a source": s,
        "a table": s.join(table, on="l.x = r.y"),
        "a split": s.split(2, by=["x"]).each(lambda t: t.filter("x > 1")),
        "an aggregate": s.aggregate(by=["x"], window="1 second", n="count(*)"),
    }


@pytest.mark.parametrize("what", forged_queries())
def test_a_name_of_several_lines_in_explain(what: str, tmp_path: Path) -> None:
    query = forged_queries()[what]
    assert on_one_line(query.explain()) and on_one_line(repr(query))
    plan_file.write_plan(tmp_path, [node_of(query)], query.plan())
    queries, plan, _ = plan_file.read_plan(tmp_path)
    assert on_one_line(explain(queries, plan)) and "\n  source forged" not in str(plan)


def test_substreams_and_tables_of_such_a_name() -> None:
    assert on_one_line(repr(forged_stream().split(2, by=["x"])))
    folder_table = arrow_table(lambda: pa.table({"y": [1]}), name=FORGED)
    assert harmless(repr(folder_table)) and "\n" not in repr(folder_table)


@pytest.mark.parametrize("where", ["engine", "reference"])
def test_such_a_name_in_an_error_about_its_data(where: str, tmp_path: Path) -> None:
    less = {FORGED: ROWS.select(["ts"])}
    with pytest.raises(hr.SourceError) as caught:
        reference(forged_stream(), [less]) if where == "reference" else LocalRun(forged_stream(), tmp_path).epoch(less)
    assert on_one_line(str(caught.value))


def test_such_a_name_in_an_error_about_a_changed_query(tmp_path: Path) -> None:
    def opened(lateness: str) -> LocalRun:
        query = forged_stream(lateness=lateness).aggregate(by=["x"], window="1 second", n="count(*)")
        return LocalRun(query, tmp_path / "state")

    run = opened("2 seconds")
    run.epoch({FORGED: ROWS})
    run.close()
    with pytest.raises(hr.QueryChanged) as caught:
        opened("1 second")
    assert on_one_line(str(caught.value))


def test_whatever_an_error_quotes_can_be_shown() -> None:
    for kind in (hr.HeadraceError, hr.QueryTypeError, hr.MissingLibrary):
        assert str(kind("a\x1b[2J\u202eb\nc")) == "a\\x1b[2J\\u202eb\nc"


def test_what_a_listener_raises_is_on_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Any) -> None:
        raise ValueError(FORGED)

    listeners = Listeners()
    listeners.add(fails)
    listeners.tell(EpochRecord(0))
    listeners.close()
    (record,) = caplog.records
    assert on_one_line(record.getMessage())
