"""docs/KAFKA.md: its Python is run as it stands, on Spark; only the address of the broker is another."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import headrace as hr
from tests.kafka.broker import Broker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "KAFKA.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESS = "localhost:9092"


@pytest.mark.spark
def test_the_page(spark, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 2 and sum(ADDRESS in block for block in BLOCKS) == 1
    names = {"__name__": "__main__"}
    for block in BLOCKS:
        exec(compile(block.replace(ADDRESS, broker.servers), "KAFKA.md", "exec"), names)


def test_every_option_is_there():
    options = set(inspect.signature(hr.kafka).parameters) - {"spark", "servers"}
    named = {
        name
        for line in PAGE.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert named == options
