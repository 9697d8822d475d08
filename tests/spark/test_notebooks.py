"""The notebooks in `examples/` run, and show what is stored in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.patience import PATIENCE

pytestmark = pytest.mark.spark
NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
ACTIVE = re.compile(r"<script|<iframe|\son\w+\s*=|javascript:", re.IGNORECASE)


def outputs(cell: Any) -> list[Any]:
    """Return what a cell shows, without what Spark writes to standard error."""
    return [output for output in cell.outputs if output.get("name") != "stderr"]


def pages(cell: Any) -> list[str]:
    return [output.data["text/html"] for output in outputs(cell) if "text/html" in output.get("data", {})]


def stable(page: str) -> list[str]:
    """Return the rows of a page in an order of their own; a run shows times and paths, which differ from run to run."""
    return ["a run"] if ">Run(" in page else sorted(re.split(r"(?=<tr>)|\n", page))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_shows_what_is_stored_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    stored, fresh = (nbformat.read(path, as_version=4) for _ in range(2))
    NotebookClient(fresh, timeout=PATIENCE, kernel_name="python3").execute()
    shown = 0
    for before, now in zip(stored.cells, fresh.cells, strict=True):
        if before.cell_type == "code":
            assert [kind.output_type for kind in outputs(before)] == [kind.output_type for kind in outputs(now)]
            assert list(map(stable, pages(before))) == list(map(stable, pages(now))), before.source
            shown += len(pages(before))
    assert shown >= 5
    runs = [page for cell in fresh.cells if cell.cell_type == "code" for page in pages(cell) if ">Run(" in page]
    assert runs and all("Run(ended" in page for page in runs), "the display of a run was updated to its end"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_stored_notebook_is_small_and_harmless(path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    assert path.stat().st_size < 100_000
    for cell in stored.cells:
        if cell.cell_type == "code":
            assert not [page for page in pages(cell) if ACTIVE.search(page)]
            assert not [output for output in cell.outputs if output.output_type == "error"]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
