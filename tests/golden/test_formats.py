"""State that older versions left: this one continues its own format, and refuses every other by name, untouched.

A change of what stands on the disk shows here first. It needs a new format number and a golden folder of its own.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.reference import references
from headrace.state.manifest import FORMAT

from . import making

GOLDEN = Path(__file__).parent
MORE = 3  # epochs after those that a golden folder has


def copied(number: int, folder: Path) -> Path:
    """A checkpoint that can be written to, as the run of that time would have left it: only its owner's."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(GOLDEN / f"format-{number}", checkpoint)
    for path in (checkpoint, *checkpoint.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return checkpoint


def rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


@pytest.mark.spark
def test_a_run_continues_from_this_format(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the source is known as 'calls'
    copied(FORMAT, tmp_path)
    epochs = [{"calls": making.window(number)} for number in range(making.EPOCHS + MORE)]
    for number in range(len(epochs)):
        making.put(tmp_path, number)
    making.run(spark, tmp_path, sum(table.num_rows for epoch in epochs for table in epoch.values()))
    streams = list(making.query(spark, tmp_path).values())
    whole = references(streams, epochs, end=False)
    known = references(streams, epochs[: making.EPOCHS - 1], end=False)  # the last is delivered once more
    for name, wanted, before in zip(making.RESULTS, whole, known, strict=True):
        found = rows(pq.read_table(tmp_path / name))
        assert rows(wanted) - rows(before) == found, name
        assert found.total() > MORE, name
