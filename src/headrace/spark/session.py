"""Spark sessions with the settings that headrace needs."""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from headrace.errors import QueryError
from headrace.spark import compat, jvm, privacy
from headrace.support import shutdown
from headrace.support.limits import check_slots
from headrace.support.secrets import Secret, is_secret_name, resolve_secrets

LOG_LEVEL = "spark.log.level"
LOADED_BEFORE_FORK = {  # not on a cluster, whose machines may receive headrace after their daemon has started
    "spark.python.daemon.module": "headrace.spark.worker_daemon",
    "spark.executorEnv.JE_ARROW_MALLOC_CONF": "background_thread:false",  # a daemon with threads must not fork
}
REDACTED = (  # settings that Spark hides in its event log and on its web pages
    "(?i)passw|passphrase|secret|token|credential|pwd|authorization|(access|account|api|private)[._-]?key"
)


def session(slots: int = 2, master: str | None = None, **config: str | Secret) -> SparkSession:
    """Return a SparkSession with the settings that headrace needs. `config` adds more (dots written as double
    underscores).
    """
    settings = _settings(slots, master, config)
    with _on_jvm(settings):
        return _made(settings, config)


@contextmanager
def _on_jvm(settings: Mapping[str, Any]) -> Iterator[None]:
    """Start the JVM if there is none. A JVM that is started here is ended if the block is interrupted."""
    if jvm.is_started():
        yield
        return
    with jvm.end_jvm_on_interrupt():
        jvm.run_beside_jvm(functools.partial(jvm.launch, _arguments(settings)))
        yield


def _made(settings: Mapping[str, Any], asked: Mapping[str, Any]) -> SparkSession:
    """Create the session on a running JVM."""
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, resolve_secrets(value))
    with _py4j_quiet():
        found = builder.getOrCreate()
    if not any(key.replace("__", ".") == LOG_LEVEL for key in asked):
        _hush(found)
    return found


@contextmanager
def _py4j_quiet() -> Iterator[None]:
    """Raise py4j's log level, because at DEBUG it logs all arguments of calls, including secret settings."""
    log = logging.getLogger("py4j")
    level = log.level
    log.setLevel(max(level, logging.INFO))
    try:
        yield
    finally:
        log.setLevel(level)


def _hush(spark: SparkSession) -> None:
    """Turn off Spark's log of failed tasks: the caller receives the error, and the log would repeat it in a hundred
    lines of Java.
    """
    log4j = spark._jvm.org.apache.logging.log4j
    for who in ("executor.Executor", "scheduler.TaskSetManager"):
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{who}", log4j.Level.OFF)


def signal_safe_session(slots: int = 2, master: str | None = None, **config: str | Secret) -> SparkSession:
    """Return a session for a program that handles signals. A signal never interrupts a call to the JVM halfway."""
    settings = _settings(slots, master, config)
    with _on_jvm(settings):
        found = jvm.run_beside_jvm(functools.partial(_made, settings, config), grace=shutdown.EXIT_SECONDS)
        found._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
            found._jsparkSession
        )  # also in this thread
        return found


def _arguments(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a JVM is started with, without secrets, because every user of the machine can read its
    arguments.

    Secrets are set when the session is created. They are recognised by name; settings that a JVM needs at its start,
    such as its options, have no such name.
    """
    return {name: value for name, value in settings.items() if not (isinstance(value, Secret) or is_secret_name(name))}


def _settings(slots: int, master: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    check_slots(slots)
    asked = {key if "." in key else key.replace("__", "."): value for key, value in config.items()}
    _check_names(asked)
    python = asked.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python  # pyspark uses this variable and ignores the setting
    master = master or f"local[{slots}]"
    return {
        "spark.master": master,
        "spark.app.name": "headrace",
        "spark.pyspark.python": python,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.streaming.metricsEnabled": "false",
        # a run may last forever, so Spark's history of jobs must be bounded
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.cleaner.periodicGC.interval": "5min",
        LOG_LEVEL: "ERROR",
        "spark.driver.memory": "2g",
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **(LOADED_BEFORE_FORK if master.startswith("local[") else {}),
        **asked,
        "spark.redaction.regex": _redacted(asked),
        **privacy.private_settings(asked.get("spark.master", master), asked),
    }


def _check_names(asked: Mapping[str, Any]) -> None:
    """Refuse a setting without a dot, which Spark would ignore."""
    for name in asked:
        if "." not in name:
            raise QueryError(
                f"session has no setting {name!r}; slots=4 is the number of tasks at once and master= the cluster; write a"
                " setting of Spark with two underscores for each dot, such as spark__ui__enabled='true'"
            )


def _redacted(asked: Mapping[str, Any]) -> str:
    """Return the pattern of settings that Spark hides: names that look secret, settings given as `Secret`, and the
    user's pattern.
    """
    given = [re.escape(name) for name, value in asked.items() if isinstance(value, Secret)]
    return "|".join([REDACTED, *given, *filter(None, [asked.get("spark.redaction.regex")])])


def check_sockets(sc: SparkContext) -> None:
    """Raise if other users of this machine can connect to the sockets of a session."""
    settings = sc._jsc.sc().conf()  # reads two values only: py4j logs all answers, and other settings may be secret
    enabled = settings.get(compat.SOCKETS, "") or os.environ.get("PYSPARK_UDS_MODE", "false")
    folder = settings.get(compat.SOCKET_FOLDER, "") or sc._jvm.java.lang.System.getProperty("java.io.tmpdir")
    privacy.check_driver(enabled, folder)


def runs_on_this_machine(sc: SparkContext) -> bool:
    """Return whether tasks run in the driver's own process."""
    return sc.master.startswith("local") and not sc.master.startswith("local-cluster")
