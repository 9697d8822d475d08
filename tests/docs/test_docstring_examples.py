"""Every example in a docstring that needs Spark is run, in one session and with one run in progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import docstring_examples


@pytest.mark.spark
def test_every_example_with_spark_is_true(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [each for module in docstring_examples.modules() for each in docstring_examples.examples(module)]
    chosen = [each for each in found if docstring_examples.needs_spark(each)]
    assert len(chosen) > 25
    docstring_examples.prepare(tmp_path)
    with docstring_examples.run_in_progress(spark, tmp_path) as run:
        failed = "".join(_failure(each, tmp_path / str(n), spark, run, monkeypatch) for n, each in enumerate(chosen))
    assert not failed, failed


def _failure(example: Any, folder: Path, spark: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    folder.mkdir()
    docstring_examples.prepare(folder)
    monkeypatch.chdir(folder)
    return docstring_examples.run(example, {"spark": spark, "run": run})
