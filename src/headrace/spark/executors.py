"""Executors: whether there are any, and whether they reach the folders of a run."""

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

EXECUTOR_GRACE_SECONDS = 5.0  # seconds that the other executors get once the first has come


def executor_count(sc: SparkContext) -> int:
    """Executors that work for us now; none in local mode, where the driver does."""
    return len(sc._jsc.sc().statusTracker().getExecutorInfos()) - 1  # without the driver


def await_executors(sc: SparkContext, patience: float) -> None:
    """Wait for executors: without one, Spark would wait forever. Some will do, the others join when they can."""
    if runs_on_this_machine(sc):
        return
    if not _come(sc, 1, patience):
        raise EngineError(_nobody(sc, patience))
    _come(sc, int(sc.getConf().get("spark.executor.instances") or 1), EXECUTOR_GRACE_SECONDS)


def _come(sc: SparkContext, count: int, seconds: float) -> bool:
    """Return whether this many executors have come within this many seconds."""
    deadline = time.monotonic() + seconds
    while executor_count(sc) < count:
        if sc._jsc.sc().isStopped():
            raise EngineError(f"{sc.master} ended the application before it began; the master's web page says why")
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _nobody(sc: SparkContext, patience: float) -> str:
    sizes = {what: sc.getConf().get(f"spark.executor.{what}") for what in ("instances", "cores", "memory")}
    asked = ", ".join(f"{what} {size}" for what, size in sizes.items() if size) or "what Spark asks for by default"
    return (
        f"{sc.master} gave no executor within {patience:g} seconds; asked for: {asked}."
        " Either no worker has so many cores and so much memory to spare (the master's web page shows it): ask for less,"
        f" or stop what else runs there. Or executors cannot reach the driver at {sc.getConf().get('spark.driver.host')}:"
        " set spark.driver.host to an address that they reach"
    )


def check_reach(sc: SparkContext, folder: Path) -> None:
    """Refuse a state folder that some executor does not see."""
    if not _reaches(sc, folder / "blocks"):  # where a probe that a kill leaves behind is cleaned up
        msg = (
            f"a task on {sc.master} cannot read the state folder {str(folder)!r};"
            " the checkpoint (for collect: the folder in HEADRACE_SCRATCH) must be on a path that the driver and every"
            " executor reach, such as a shared file system"
        )
        raise EngineError(msg)


def check_parts_reach(sc: SparkContext, sink: Any) -> None:
    """The same for the folder of a sink that tasks write to, if it has one: what they write there is all there is of it."""
    if sc.master.startswith("local[") or not isinstance(folder := getattr(sink, "path", None), Path):
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not _reaches(sc, folder):
        msg = (
            f"a task on {sc.master} cannot read the folder of the sink, {str(folder)!r}; tasks write parts there and the"
            " driver publishes them: give a folder that both reach, such as one on a shared file system"
        )
        raise EngineError(msg)


def _reaches(sc: SparkContext, folder: Path) -> bool:
    """Write a token, have tasks read it back."""
    token = uuid.uuid4().hex
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix="_probe-", suffix=".txt") as probe:
        probe.write(token)
        probe.flush()
        tasks = max(2, sc.defaultParallelism)
        try:
            found = sc.parallelize(range(tasks), tasks).map(functools.partial(_read_token, probe.name)).collect()
        except Exception as error:
            why = other_python_error(sc, str(error)) or f"a task could not be run on {sc.master}: {_why(str(error))}"
            raise EngineError(why) from None
    return all(text == token for text in found)


def _why(text: str) -> str:
    if missing := MISSING_MODULE.search(text):
        return (
            f"an executor's Python has no module {missing[1]!r}; install there what headrace depends on, or deploy with"
            " another `python`; headrace itself is sent along with `ship = true`, your own modules with `packages`"
        )
    if absent := re.search(r'Cannot run program "([^"]+)"', text):
        return f"an executor cannot start the Python {absent[1]!r}; give the path that it has there"
    return text[:1000]


def _read_token(path: str, _: int) -> str | None:
    shutdown.quiet_worker_exit()
    try:
        return Path(path).read_text()
    except OSError:
        return None
