"""Two executors in processes of their own: state written by one is read by the other, and the answer is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.standalone import cluster, environment
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("job.py")


def run_job(master: str, folder: Path, *names: str) -> dict[str, Any]:
    """The job in a process of its own: one SparkContext per process."""
    command = [sys.executable, str(JOB), master, str(folder / "job"), *names]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=environment(folder), check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def check(found: dict[str, Any], queries: int) -> None:
    assert found["executors"] == 2
    assert found["processes"] >= 2
    wrong = {name: text for name, text in found["differences"].items() if text is not None}
    assert len(found["differences"]) == queries
    assert not wrong, "\n\n".join(f"{name}: {text}" for name, text in wrong.items())


@pytest.mark.long
def test_a_local_cluster(tmp_path: Path) -> None:
    check(run_job("local-cluster[2,1,1024]", tmp_path), 13)


@pytest.mark.smoke
def test_a_standalone_master_and_two_workers(tmp_path: Path) -> None:
    with cluster(tmp_path, environment(tmp_path)) as found:
        names = ("equality join", "any predicate", "panes", "count join")
        check(run_job(found.master, tmp_path, *names), 5)
