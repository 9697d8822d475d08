"""What the kill tests expect: the plain model is the reference's answer."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.reference import reference
from headrace.testing import LocalRun, table_stream
from tests.helpers import count_rows, rows_of

from . import watching


@pytest.mark.parametrize(
    "table", [watching.events(150), pa.concat_tables([watching.rows(n, 60, 12) for n in range(9)])]
)
def test_the_model_is_the_reference(table: pa.Table):
    found, processors = watching.model(rows_of(table))
    for query, rows in zip(
        watching.results(table_stream(table, lateness="1 second", name="events")), found, strict=True
    ):
        assert rows and count_rows(reference(query)) == rows
    assert all(each.keys and each.open and each.marks for each in processors)


def test_so_is_the_fast_face(tmp_path: Path):
    table = watching.events(150)
    found, _ = watching.model(rows_of(table))
    source = table_stream(table, lateness="1 second", name="events")
    run = LocalRun(watching.results(source, watching.FastWatch), tmp_path / "state", slots=2)
    run.epoch(table.slice(0, 70), splitters=2)
    run.epoch(table.slice(70))
    run.end()
    assert [count_rows(run.results(name)) for name in run.schemas] == found
    run.close()
