"""A Spark session that does not print Spark's logs to the terminal."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.deployment import check_master
from headrace.errors import EngineError

SHOWN_LOG_LINES = 5  # last lines of Spark's log in an error
EXECUTOR_SECONDS = 60.0  # seconds within which a cluster must provide an executor


@contextmanager
def quiet_session(
    slots: int, master: str | None = None, config: Mapping[str, str] | None = None, patience: float = EXECUTOR_SECONDS
) -> Iterator[Any]:
    """Yield a session on a master that answers and has provided executors.

    The output of Spark's JVM goes to a file, and its last lines are shown only if Spark cannot start.
    """
    from headrace.spark import jvm
    from headrace.spark.executors import await_executors
    from headrace.spark.session import signal_safe_session

    if master is not None:
        check_master(master)

    with tempfile.NamedTemporaryFile(prefix="headrace-spark-", suffix=".log") as log, jvm.end_jvm_on_interrupt():
        try:
            with _stderr_to(log.fileno()):  # the JVM inherits this standard error and keeps it
                spark = signal_safe_session(slots, master, **(config or {}))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(_reason(error, Path(log.name), master)) from error
        try:
            await_executors(spark.sparkContext, patience)
            yield spark
        except KeyboardInterrupt:  # do not wait for the work in progress
            jvm.end()
            raise
        finally:
            jvm.stop(spark)


def _reason(error: Exception, log: Path, master: str | None) -> str:
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-SHOWN_LOG_LINES:]
    first = str(error).strip().splitlines()
    where = f" on {master}" if master else ""
    hint = "it needs Java 17 or newer: is `java` on the PATH, or JAVA_HOME set?"
    if any("masters are unresponsive" in line for line in said):
        hint = "the address answers, but not as a master of this Spark version; is it the port of the web page, or a master of another version?"
    return "\n  ".join([f"Spark did not start{where}: {first[0] if first else type(error).__name__}; {hint}", *said])


@contextmanager
def _stderr_to(target: int) -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(target, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
