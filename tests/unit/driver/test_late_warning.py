"""The warning about the first late tuples: once for each source, with how late they were and what would accept them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.driver.late_warning import LateWarning
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream
from tests.helpers import keyed


def watched(query: Stream, folder: Path) -> LocalRun:
    run = LocalRun(query, folder / "state")
    run.driver._late_warning = LateWarning(run.plan.sources)  # a start does this unless it has `late`
    return run


def test_the_first_late_tuples_of_a_source_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = watched(table_stream(keyed(), name="a", lateness="5 seconds"), tmp_path)
    run.epoch(keyed(100, 20), splitters=2)
    assert caplog.messages == [], "the watermark of the epoch before counts"
    run.epoch(keyed(60, 94.5, 95, None, 70), splitters=3)
    [text] = caplog.messages
    assert text.startswith("source a: 3 tuples were late in epoch 1, up to 35 seconds before the watermark; ")
    assert "with a lateness of 40 seconds or more; give late=<sink> (--late) to keep them" in text
    run.epoch(keyed(0))
    assert len(caplog.messages) == 1
    run.close()


def test_each_source_has_its_own_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = (table_stream(keyed(), name=name) for name in "ab")
    run = watched(a.union(b), tmp_path)
    run.epoch({"a": keyed(10), "b": keyed(20)})
    run.epoch({"a": keyed(9)})
    run.epoch({"a": keyed(8), "b": keyed(18.5)})
    assert [text.partition(";")[0] for text in caplog.messages] == [
        "source a: 1 tuple was late in epoch 1, up to 1 second before the watermark",
        "source b: 1 tuple was late in epoch 2, up to 2 seconds before the watermark",
    ]
    run.close()


def test_a_source_that_was_idle_needs_a_longer_idle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    a, b = (table_stream(keyed(), name=name, idle="30 seconds") for name in "ab")
    run = watched(a.union(b).aggregate(by="k", window="1 second", n="count(*)"), tmp_path)
    run.epoch({"a": keyed(0), "b": keyed(0)})
    run.epoch({"b": keyed(100)}, idle=["a"])
    run.epoch({"a": keyed(40), "b": keyed(101)})
    [text] = caplog.messages
    assert "source a: 1 tuple was late in epoch 2, up to 1 minute before the watermark" in text
    assert (
        "an idle longer than the pauses of the source (now 30 seconds), or with a larger lateness of all sources"
        in text
    )
    run.close()


def test_a_run_that_is_not_asked_to_logs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = LocalRun(table_stream(keyed(), name="a"), tmp_path / "state")
    run.epoch(keyed(10))
    run.epoch(keyed(0))
    assert caplog.messages == []
    run.close()
