"""Tables in place on real Spark: found by whichever Python worker does the task, rebuilt when they cannot be used."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.state import caches
from tests.helpers import add_file, wait_until

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tests are no installed package

from .test_processors import SCHEMA, counting, rows

pytestmark = pytest.mark.spark


def folder(run: Any) -> Path:
    place = os.environ.get(caches.CACHE_VARIABLE) or os.environ.get("HEADRACE_SCRATCH") or tempfile.gettempdir()
    return Path(place) / f"{caches._prefix()}{run._driver.store.run_id}"


def altered(mine: Path) -> None:
    """One bit of each."""
    for path in mine.glob("*-*"):
        with path.open("r+b") as file:
            file.seek(20)
            byte = file.read(1)[0]
            file.seek(20)
            file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("limit", ["1g", 0])
def test_tables_stay_where_they_are(spark: Any, tmp_path: Path, limit: Any) -> None:
    (tmp_path / "in").mkdir()
    stream = hr.files(spark, tmp_path / "in", time="ts", name="logins", schema=SCHEMA)
    query = stream.split(4, by=["user"]).apply(counting())
    used = []
    out = hr.sinks.parquet(tmp_path / "out")
    with query.start(out, checkpoint=tmp_path / "check", epoch="0 seconds", slots=2, cache=limit) as run:
        for number in range(5):
            add_file(tmp_path / "in", number, rows(10 * number, 10 * number + 10))
            progress = wait_until(run, lambda progress, tuples=10 * number + 10: progress.tuples_in >= tuples)
            used.append(progress.table_use["apply-1"])
            mine = folder(run)
            assert mine.exists() == bool(limit)
            if number == 2:
                altered(mine)
    assert not mine.exists(), "what was kept is removed when the run ends"
    assert sorted(hr.read_state(tmp_path / "check", "apply-1", "seen")["times"].to_pylist()) == [9, 10, 10, 10, 10]
    if limit:
        assert [bool(use.found) for use in used] == [False, True, True, False, True]
        assert set(used[3].built) == {"damaged"}
    else:
        assert [set(use.built) for use in used] == [{"off"}] * 5
