"""headrace demo --kafka: calls from a topic, results into topics, and what is said where there is no broker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.patience import PATIENCE

DEMO = [sys.executable, "-m", "headrace.cli", "demo", "--kafka", "--rate", "100", "--seconds", "6"]


def demo(tmp_path: Path, jars: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "140", "HEADRACE_KAFKA_JARS": str(jars)}
    return subprocess.run(DEMO, capture_output=True, text=True, timeout=PATIENCE, env=environment)


@pytest.mark.spark
def test_the_demo_through_topics(broker: Broker, tmp_path: Path):
    found = demo(tmp_path, broker.jars)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "verified: 16 results equal the sequential reference" in found.stdout.splitlines()[-1]
    assert "600 (epochs: " in found.stdout
    assert found.stderr == ""
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("headrace-")] == []


def test_a_demo_without_a_broker(tmp_path: Path):
    found = demo(tmp_path, tmp_path)
    assert found.returncode == 1
    assert "its jars are missing; run `make broker`" in " ".join(found.stderr.split())
