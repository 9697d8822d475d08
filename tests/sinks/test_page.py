"""docs/SINKS.md: its Python is run as it stands, on Spark, twice; only the addresses of servers are others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace import sinks
from tests.kafka.broker import Broker
from tests.sinks import postgres

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SINKS.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ADDRESSES = ("postgresql://ann@localhost:5432/shop", "localhost:9092")


@pytest.mark.spark
def test_the_page(spark, server: postgres.Server, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DB_URL", "")  # which the page sets
    assert len(BLOCKS) == 8 and all(PAGE.count(address) == 1 for address in ADDRESSES)
    for _ in range(2):
        names = {"__name__": "__main__"}
        for block in BLOCKS:
            for address, here in zip(ADDRESSES, (server.url, broker.servers), strict=True):
                block = block.replace(address, here)
            exec(compile(block, "SINKS.md", "exec"), names)


def test_every_sink_is_there():
    named = set(re.findall(r"hr\.sinks\.(\w+)\(", PAGE))
    assert named == {"database", "delta", "iceberg", "kafka"} and all(hasattr(sinks, name) for name in named)
