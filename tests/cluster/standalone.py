"""A standalone Spark master and two workers with one core each: real processes on this machine, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests import jvm
from tests.patience import PATIENCE

HOME = Path(pyspark.__file__).parent


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
        "JAVA_TOOL_OPTIONS": jvm.options(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextlib.contextmanager
def daemon(folder: Path, name: str, *arguments: str, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """One of Spark's own servers from the installed package; always ended."""
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)


def alive_workers(web_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError, KeyError):
        return 0


def log_of(folder: Path) -> str:
    return "\n".join(plain(path)[-1500:] for path in folder.glob("*.log"))


def plain(log: Path) -> str:
    return re.sub(r"\x1b\[\d+m", "", log.read_text(errors="replace"))


@dataclass(frozen=True)
class Cluster:
    master: str
    web: int  # port of the master's page
    workers: tuple[subprocess.Popen[bytes], ...]


MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
STARTED = re.compile(r"Starting Spark master at (\S+).*started at http://127\.0\.0\.1:(\d+)", re.DOTALL)


def within_patience(folder: Path, seconds: float = 60) -> Iterator[None]:
    """Looks once more every 0.2 s, until nobody asks; what the servers wrote is the error of who waits too long."""
    deadline = time.monotonic() + seconds
    while True:
        yield
        assert time.monotonic() < deadline, f"the cluster did not come:\n{log_of(folder)}"
        time.sleep(0.2)


def started(folder: Path) -> tuple[str, int]:
    """The master's address and the port of its page. It takes what ports it finds free: a port chosen here, before it
    binds, can be taken by another process meanwhile."""
    for _ in within_patience(folder):
        if found := STARTED.search(plain(folder / "master.log")):
            return found[1], int(found[2])
    raise AssertionError("not reached")


@contextlib.contextmanager
def cluster(folder: Path, env: Mapping[str, str]) -> Iterator[Cluster]:
    """A master and two workers, once both are registered."""
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    sizes = ["--cores", "1", "--memory", "1g"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemon(folder, "master", MASTER, *place, env=env))
        url, web = started(folder)
        workers = []
        for number in range(2):
            arguments = [WORKER, *place, *sizes, "--work-dir", str(folder / f"work-{number}"), url]
            workers.append(stack.enter_context(daemon(folder, f"worker-{number}", *arguments, env=env)))
        for _ in within_patience(folder):
            if alive_workers(web) == 2:
                break
        yield Cluster(url, web, tuple(workers))
