"""Names of results: shown in progress, records, logs, errors and tables, and no part of the query."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from headrace import sinks
from headrace.cli import explain_output
from headrace.errors import QueryError, QueryTypeError, SinkError
from headrace.query.labels import result_labels
from headrace.run.start import start
from headrace.showing import live
from headrace.stream import Stream, label_of, node_of
from headrace.telemetry import incomplete
from headrace.testing import LocalRun, table_stream
from headrace.tools import plan_file
from tests.helpers import SECOND, tuples

ROWS = tuples((0, "a", 1), (SECOND, "b", 2))


def queries(*names: str | None) -> list[Stream]:
    s = table_stream(ROWS, name="s")
    found = [s.filter("v > 1"), s.aggregate(by="k", window="1 second", n="count(*)")]
    return [q if name is None else q.named(name) for q, name in zip(found, names, strict=True)]


def test_progress_records_and_tables_have_the_name(tmp_path: Path) -> None:
    run = LocalRun(queries("alarms", None), tmp_path / "state")
    told: list[Any] = []
    run.driver.listeners.add(told.append)
    assert run.driver.progress.results == {"alarms": 0, "result-1": 0}
    run.epoch(ROWS, final=True)
    progress = run.driver.progress
    assert progress.results == {"alarms": 1, "result-1": 2}
    assert progress.last is not None and progress.last.results == {"alarms": 1, "result-1": 2}
    assert progress.to_json()["results"] == {"alarms": 1, "result-1": 2}
    shown = io.StringIO()
    display = live.for_console(Console(file=shown, width=120, force_terminal=True), "a run")
    display.show(progress)
    display.close()
    assert "alarms" in shown.getvalue() and "result-0" not in shown.getvalue()
    run.driver.end(None)
    assert [{n: each.rows for n, each in record.results.items()} for record in told] == [{"alarms": 1, "result-1": 2}]


def test_what_is_stored_has_the_place(tmp_path: Path) -> None:
    run = LocalRun(queries("alarms", "counts"), tmp_path / "state")
    run.epoch(ROWS, final=True)
    manifest = run.store.last
    assert manifest is not None
    assert {output.result for output in manifest.outbox} == {"result-0", "result-1"} == set(manifest.totals.results)
    assert "alarms" not in str(manifest.query)
    run.close()


def test_what_explain_shows_of_a_checkpoint_has_the_name(tmp_path: Path) -> None:
    run = LocalRun(queries("alarms", None), tmp_path / "state")
    run.epoch(ROWS, final=True)
    run.close()
    query = queries("alarms", None)[0]
    for labels, name in (({"result-0": "alarms"}, "alarms"), (None, "result-0")):
        plan_file.write_plan(tmp_path, [node_of(query)], query.plan(), labels)
        assert f"tuples; {name} 1, result-1 2" in explain_output.explain_run(tmp_path, "text")
        assert name in json.loads(explain_output.explain_run(tmp_path, "json"))["epoch"]["results"]


def test_the_log_of_a_changed_query_has_the_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = LocalRun(queries("alarms", "counts"), tmp_path / "state")
    run.epoch(ROWS)
    run.close()
    s = table_stream(ROWS, name="s")
    counts = s.aggregate(by="k", window="1 second", n="count(*)")
    LocalRun([s.filter("v > 3").named("alarms"), counts], tmp_path / "state").close()
    assert "alarms (result-0): was s, filter v > 1, is s, filter v > 3" in caplog.text


@pytest.mark.parametrize("again", [(None, None), ("warnings", None), ("counts", "alarms")])
def test_with_another_name_nothing_is_delivered_twice(again: tuple[str | None, str | None], tmp_path: Path) -> None:
    sink = sinks.memory()
    first = LocalRun(queries("alarms", "counts"), tmp_path / "state", sink=sink)
    first.epoch(ROWS)
    first.close()
    delivered = set(sink.epochs)
    second = LocalRun(queries(*again), tmp_path / "state", sink=sink)
    assert set(sink.epochs) == delivered
    second.epoch(tuples((2 * SECOND, "a", 3)), final=True)
    assert {result for _, _, result in sink.epochs} == {"result-0", "result-1"}
    assert second.driver.progress.results == dict(zip(result_labels(again).values(), (2, 3), strict=True))
    second.close()


def test_errors_and_warnings_have_the_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fails(table: pa.Table, epoch: int) -> None:
        raise OSError("no disk")

    run = LocalRun(queries("alarms", None), tmp_path / "state", sink=sinks.foreach(fails))
    with pytest.raises(SinkError, match="the sink of alarms failed in epoch 0: OSError: no disk"):
        run.epoch(ROWS)
    run.close()
    with caplog.at_level(logging.WARNING):
        assert incomplete.warning_text("alarms", 0).startswith("alarms is complete from 1970-01-01")


def test_names_of_one_run_differ(tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="two results are called 'x'; give each result of a run its own name"):
        LocalRun(queries("x", "x"), tmp_path / "state")
    with pytest.raises(QueryError, match="two results are called 'result-1'"):
        result_labels(["result-1", None])
    with pytest.raises(QueryError, match="two results are called 'x'"):
        start([(query, sinks.memory()) for query in queries("x", "x")], checkpoint=tmp_path / "checkpoint")
    with pytest.raises(QueryTypeError, match=r"start takes a list of pairs of a stream and a sink; found a stream"):
        start(queries("x", "y")[0], checkpoint=tmp_path / "checkpoint")  # type: ignore[arg-type]
    assert not (tmp_path / "checkpoint").exists()
    assert result_labels([None, "b", None]) == {"result-0": "result-0", "result-1": "b", "result-2": "result-2"}


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("", QueryError, "printable characters and no spaces at its ends; found ''"),
        (" a", QueryError, "no spaces at its ends"),
        ("a\nb", QueryError, "printable characters"),
        ("x" * 256, QueryError, "must have 1 to 255 printable characters"),
        ("late:s", QueryError, "names that begin with late: or failed: are reserved"),
        (3, QueryTypeError, "named takes a name as text; found 3; such as s.named('alarms')"),
    ],
)
def test_names_that_are_refused(name: Any, error: type[QueryError], words: str) -> None:
    with pytest.raises(error) as found:
        table_stream(ROWS, name="s").named(name)
    assert words in str(found.value)


def test_what_is_made_of_it_has_no_name() -> None:
    s = table_stream(ROWS, name="s").named("alarms")
    assert label_of(s) == "alarms" and label_of(s.filter("v > 1")) is None
    assert repr(s).startswith("Stream(ts, k, v) named alarms\n")
    assert label_of(s.named("others")) == "others"
