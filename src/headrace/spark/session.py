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

from headrace.spark import compat, jvm, privacy
from headrace.support import shutdown
from headrace.support.limits import check_slots
from headrace.support.secrets import Secret, is_secret_name, resolve_secrets

LOG_LEVEL = "spark.log.level"
LOADED_BEFORE_FORK = {  # not on a cluster, whose machines may get headrace later than their daemon
    "spark.python.daemon.module": "headrace.spark.worker_daemon",
    "spark.executorEnv.JE_ARROW_MALLOC_CONF": "background_thread:false",  # a daemon that has threads must not fork
}
REDACTED = (  # settings that Spark shows neither in its log of events nor on its pages
    "(?i)passw|passphrase|secret|token|credential|pwd|authorization|(access|account|api|private)[._-]?key"
)


def session(slots: int = 2, master: str | None = None, **config: str | Secret) -> SparkSession:
    """A SparkSession with the settings headrace needs; `config` adds more (dots written as double underscores)."""
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
    """On a JVM that is there."""
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
    """py4j logs every call with its arguments, at the level DEBUG: settings that may be secret are among them."""
    log = logging.getLogger("py4j")
    level = log.level
    log.setLevel(max(level, logging.INFO))
    try:
        yield
    finally:
        log.setLevel(level)


def _hush(spark: SparkSession) -> None:
    """A task that fails is told to whoever waits for it; Spark's log would say it all again before, in a hundred lines of Java."""
    log4j = spark._jvm.org.apache.logging.log4j
    for who in ("executor.Executor", "scheduler.TaskSetManager"):
        log4j.core.config.Configurator.setLevel(f"org.apache.spark.{who}", log4j.Level.OFF)


def signal_safe_session(slots: int = 2, master: str | None = None, **config: str | Secret) -> SparkSession:
    """Return a session for a program that handles signals: a signal never interrupts a call to the JVM half-way."""
    settings = _settings(slots, master, config)
    with _on_jvm(settings):
        found = jvm.run_beside_jvm(functools.partial(_made, settings, config), grace=shutdown.EXIT_SECONDS)
        found._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(
            found._jsparkSession
        )  # in this thread too
        return found


def _arguments(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that a JVM is started with. Every user of the machine can read its arguments, so secrets are not among
    them: they are set when the session is made. Settings are secret by name alone: what a JVM needs when it starts, such as
    its options, has no such name."""
    return {name: value for name, value in settings.items() if not (isinstance(value, Secret) or is_secret_name(name))}


def _settings(slots: int, master: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    check_slots(slots)
    asked = {key if "." in key else key.replace("__", "."): value for key, value in config.items()}
    python = asked.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    os.environ["PYSPARK_PYTHON"] = python  # which is where pyspark looks; the setting alone is passed over
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
        # a run has no end: what Spark remembers of past jobs must not grow with it
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


def _redacted(asked: Mapping[str, Any]) -> str:
    """The names of settings that Spark shows nowhere: those that look like secrets, those given as one, and the user's own."""
    given = [re.escape(name) for name, value in asked.items() if isinstance(value, Secret)]
    return "|".join([REDACTED, *given, *filter(None, [asked.get("spark.redaction.regex")])])


def check_sockets(sc: SparkContext) -> None:
    """Refuse a session whose sockets other users of this machine can connect to."""
    settings = sc._jsc.sc().conf()  # asked for two values: py4j logs all that it is answered, and some are secret
    enabled = settings.get(compat.SOCKETS, "") or os.environ.get("PYSPARK_UDS_MODE", "false")
    folder = settings.get(compat.SOCKET_FOLDER, "") or sc._jvm.java.lang.System.getProperty("java.io.tmpdir")
    privacy.check_driver(enabled, folder)


def runs_on_this_machine(sc: SparkContext) -> bool:
    """Whether tasks run in the driver itself."""
    return sc.master.startswith("local") and not sc.master.startswith("local-cluster")
