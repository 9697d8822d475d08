"""The demo as anybody would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

DEMO = [sys.executable, "-m", "headrace.cli", "demo", "--rate", "100"]


def test_the_demo_finds_every_fraud_and_verifies_its_answer(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "140"}
    found = subprocess.run([*DEMO, "--seconds", "6"], capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "verified: 16 results equal the sequential reference" in found.stdout.splitlines()[-1]
    assert "FAILED" not in found.stdout
    assert "600 (epochs: " in found.stdout
    assert found.stderr == ""
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("headrace-")] == []


def test_ctrl_c_ends_the_demo_with_a_summary(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    arguments = [*DEMO, "--seconds", "300", "--keep"]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("epoch"):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said + errors
    assert "planted" in said
    assert "of 30,000 calls; not verified" in said
    assert "FAILED" not in said
    (kept,) = tmp_path.glob("headrace-demo-*")
    assert {p.name for p in kept.iterdir()} >= {"calls", "checkpoint"}
