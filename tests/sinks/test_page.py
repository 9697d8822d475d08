"""docs/SINKS.md: its Python is run as it stands, on Spark, twice; only the address of the database is another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import sinks
from tests.sinks import postgres

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SINKS.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "postgresql://ann@localhost:5432/shop"


@pytest.mark.spark
def test_the_page(spark, server: postgres.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 6 and sum(ADDRESS in block for block in BLOCKS) == 1
    for _ in range(2):
        names = {"__name__": "__main__"}
        for block in BLOCKS:
            exec(compile(block.replace(ADDRESS, server.url), "SINKS.md", "exec"), names)


def test_every_sink_is_there():
    named = set(re.findall(r"hr\.sinks\.(\w+)\(", PAGE))
    assert named == {"database", "delta", "iceberg"} and all(hasattr(sinks, name) for name in named)
