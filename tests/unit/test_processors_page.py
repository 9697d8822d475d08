"""docs/PROCESSORS.md: its Python is run as it stands, in order; what needs Spark, on Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "PROCESSORS.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(blocks: list[str]) -> None:
    names = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, "PROCESSORS.md", "exec"), names)


def test_the_page_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in BLOCKS if "hr.session(" not in block]
    assert len(blocks) >= 11
    run(blocks)


@pytest.mark.spark
def test_the_whole_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run(BLOCKS)
    run(BLOCKS)  # whoever tries it tries it again


def test_every_example_is_listed():
    linked = set(re.findall(r"\(\.\./examples/(\w+\.py)\)", PAGE))
    there = {path.name for path in (ROOT / "examples").glob("*.py") if "def build(" in path.read_text()}
    assert linked == there


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
