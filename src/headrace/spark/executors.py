"""Executors: whether there are any, and whether they can access the folders of a run."""

from __future__ import annotations

import functools
import re
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from headrace.errors import EngineError
from headrace.spark.session import runs_on_this_machine
from headrace.spark.task_errors import MISSING_MODULE, other_python_error
from headrace.support import shutdown

EXECUTOR_GRACE_SECONDS = 5.0  # seconds that the other executors get after the first has registered


def executor_count(sc: SparkContext) -> int:
    """Return the number of executors. It is 0 in local mode, where the driver does the work."""
    return len(sc._jsc.sc().statusTracker().getExecutorInfos()) - 1  # without the driver


def await_executors(sc: SparkContext, patience: float) -> None:
    """Wait for executors, because Spark itself would wait forever. One is enough to start; the others join later."""
    if runs_on_this_machine(sc):
        return
    if not _come(sc, 1, patience):
        raise EngineError(_nobody(sc, patience))
    _come(sc, int(sc.getConf().get("spark.executor.instances") or 1), EXECUTOR_GRACE_SECONDS)


def _come(sc: SparkContext, count: int, seconds: float) -> bool:
    """Return whether this many executors have registered within this many seconds."""
    deadline = time.monotonic() + seconds
    while executor_count(sc) < count:
        if sc._jsc.sc().isStopped():
            raise EngineError(
                f"{sc.master} ended the application before it began; see the master's web page for the reason"
            )
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _nobody(sc: SparkContext, patience: float) -> str:
    sizes = {what: sc.getConf().get(f"spark.executor.{what}") for what in ("instances", "cores", "memory")}
    asked = ", ".join(f"{what} {size}" for what, size in sizes.items() if size) or "Spark's defaults"
    return (
        f"{sc.master} provided no executor within {patience:g} seconds; requested: {asked}."
        " Either no worker has enough free cores and memory (see the master's web page): request less,"
        f" or stop other applications. Or executors cannot reach the driver at {sc.getConf().get('spark.driver.host')}:"
        " set spark.driver.host to an address that they can reach"
    )


def check_reach(sc: SparkContext, folder: Path) -> None:
    """Raise if an executor cannot access the state folder."""
    if not _reaches(sc, folder / "blocks"):  # a probe that is left over after a kill is cleaned up there
        msg = (
            f"a task on {sc.master} cannot read the state folder {str(folder)!r};"
            " the checkpoint (for collect: the folder in HEADRACE_SCRATCH) must be on a path that the driver and every"
            " executor can access, such as a folder with hard links on a shared file system"
        )
        raise EngineError(msg)


def check_parts_reach(sc: SparkContext, sink: Any) -> None:
    """Raise if an executor cannot access the folder of a part sink. Tasks write the only copy of results there."""
    if sc.master.startswith("local[") or not isinstance(folder := getattr(sink, "path", None), Path):
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not _reaches(sc, folder):
        msg = (
            f"a task on {sc.master} cannot read the folder of the sink, {str(folder)!r}; tasks write parts there and the"
            " driver publishes them: use a folder that both can access, such as one on a shared file system"
        )
        raise EngineError(msg)


def _reaches(sc: SparkContext, folder: Path) -> bool:
    """Write a token and let tasks read it."""
    token = uuid.uuid4().hex
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="_probe-", suffix=".txt") as probe:
        probe.write(token)
        probe.flush()
        tasks = max(2, sc.defaultParallelism)
        try:
            found = sc.parallelize(range(tasks), tasks).map(functools.partial(_read_token, probe.name)).collect()
        except Exception as error:
            why = other_python_error(sc, str(error)) or f"a task could not run on {sc.master}: {_why(str(error))}"
            raise EngineError(why) from None
    return all(text == token for text in found)


def _why(text: str) -> str:
    if missing := MISSING_MODULE.search(text):
        return (
            f"an executor's Python has no module {missing[1]!r}; install headrace's dependencies there, or deploy with"
            " another `python`; `ship = true` sends headrace itself, and `packages` sends your own modules"
        )
    if absent := re.search(r'Cannot run program "([^"]+)"', text):
        return f"an executor cannot start the Python {absent[1]!r}; give its path on the executors"
    return text[:1000]


def _read_token(path: str, _: int) -> str | None:
    shutdown.quiet_worker_exit()
    try:
        return Path(path).read_text()
    except OSError:
        return None
