"""Two executors in processes of their own: state written by one is read by the other, and the answer is the same."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

pytestmark = pytest.mark.spark

JOB = Path(__file__).with_name("job.py")
HOME = Path(pyspark.__file__).parent
MINUTES = 4


def run_job(master: str, folder: Path, *names: str) -> dict[str, Any]:
    """The job in a process of its own: one SparkContext per process."""
    command = [sys.executable, str(JOB), master, str(folder / "job"), *names]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60 * MINUTES, env=environment(folder), check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert done.returncode == 0 and lines, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def environment(folder: Path) -> dict[str, str]:
    """Everything on this machine, nothing left behind: addresses, work folders, logs."""
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_LOCAL_DIRS": str(folder / "scratch"),
        "SPARK_LOG_DIR": str(folder / "logs"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def check(found: dict[str, Any], queries: int) -> None:
    assert found["executors"] == 2
    assert found["processes"] >= 2
    wrong = {name: text for name, text in found["differences"].items() if text is not None}
    assert len(found["differences"]) == queries
    assert not wrong, "\n\n".join(f"{name}: {text}" for name, text in wrong.items())


def test_a_local_cluster(tmp_path: Path) -> None:
    check(run_job("local-cluster[2,1,1024]", tmp_path), 13)


# --- a standalone master and two workers -----------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's own servers from the installed package; always ended."""
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(folder),
            cwd=folder,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


def alive_workers(web_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError, KeyError):
        return 0


def log_of(folder: Path) -> str:
    return "\n".join(re.sub(r"\x1b\[\d+m", "", p.read_text(errors="replace"))[-1500:] for p in folder.glob("*.log"))


def test_a_standalone_master_and_two_workers(tmp_path: Path) -> None:
    port, web = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    place = ["--host", "127.0.0.1"]
    with contextlib.ExitStack() as stack:
        ports = ["--port", str(port), "--webui-port", str(web)]
        stack.enter_context(daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master", *place, *ports))
        for number in range(2):
            worker = ["org.apache.spark.deploy.worker.Worker", *place, "--webui-port", "0", "--cores", "1"]
            worker += ["--memory", "1g", "--work-dir", str(tmp_path / f"work-{number}"), master]
            stack.enter_context(daemon(tmp_path, f"worker-{number}", *worker))
        deadline = time.monotonic() + 60
        while alive_workers(web) < 2:
            assert time.monotonic() < deadline, f"the workers did not come:\n{log_of(tmp_path)}"
            time.sleep(0.2)
        names = ("equality join", "any predicate", "panes", "count join")
        check(run_job(master, tmp_path, *names), 5)
