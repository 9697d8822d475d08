"""`head` without Spark: its order does not depend on the order in which results are delivered."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import run_locally, table_stream
from tests.helpers import numbered, rows_of


def test_head_is_in_sequence_however_results_are_delivered(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def backwards(query: hr.Stream, slots: int | None = None) -> pa.Table:
        found = run_locally(query, tmp_path / "state")
        return found.take(list(reversed(range(found.num_rows))))

    monkeypatch.setattr(hr.Stream, "collect", backwards)
    s = table_stream(numbered(5, 3, 9, 1), name="a")
    assert rows_of(s.head(3), "v") == [(1,), (3,), (5,)]


def test_a_folder_has_a_head_as_it_is_now(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(hr.Stream, "collect", lambda query, slots=None: numbered(3, 1))
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("v", pa.int64())])
    folder = hr.files(None, tmp_path, time="ts", schema=schema, name="a")  # type: ignore[arg-type]
    assert rows_of(folder.head(2), "v") == [(1,), (3,)]
