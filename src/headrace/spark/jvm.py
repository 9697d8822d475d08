"""Spark's JVM: its start, interrupts during its start, and its end.

    a JVM whose start was interrupted  =>  is ended at once, and has removed its files
    any other JVM                      =>  ends when its standard input does, together with this process

pyspark gives a new JVM a folder, into which the JVM writes its port. If pyspark is interrupted, it removes the folder;
the JVM then fails before it reads its standard input, and never ends. So the code that starts a JVM must not be
interrupted: `run_beside_jvm` runs it in a thread, which no signal reaches.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.sql import SparkSession

from headrace.spark import privacy
from headrace.support.shutdown import EXIT_SECONDS, uninterrupted

Done = TypeVar("Done")
MOST_LOOKS = 100  # polls of a thread that has yet to start its JVM, or to notice that the JVM has ended

_launching = threading.Lock()
_process: subprocess.Popen[bytes] | None = None  # the JVM that this process started


def is_started() -> bool:
    return SparkContext._gateway is not None


def launch(settings: Mapping[str, str]) -> None:
    """Start the JVM, if there is none."""
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    with _launching, _apart(), privacy.private_temporary_folder():
        if not is_started():
            SparkContext._ensure_initialized(gateway=java_gateway.launch_gateway(conf))


@contextmanager
def _apart() -> Iterator[None]:
    """Start the JVM in a separate process group, and record its process, which pyspark returns only after the JVM has
    written its port.

    Signals to this process group, such as Ctrl-C, then do not reach the JVM. pyspark's own way is Python code that runs
    in the new process before the JVM does; in a process with several threads that code may crash.
    """

    class Remembered(subprocess.Popen[bytes]):
        """A process in a separate process group that this module records."""

        def __init__(self, *args: Any, preexec_fn: object = None, **more: Any) -> None:
            global _process
            super().__init__(*args, process_group=0, **more)
            _process = self

    before, java_gateway.Popen = java_gateway.Popen, Remembered
    try:
        yield
    finally:
        java_gateway.Popen = before


@contextmanager
def end_jvm_on_interrupt() -> Iterator[None]:
    """End the JVM if the block is interrupted."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        with uninterrupted():
            end()
        raise


def run_beside_jvm(work: Callable[[], Done], grace: float = 0.0) -> Done:
    """Do work with the JVM in a separate thread. If the caller is interrupted meanwhile, end the JVM and so the work.

    grace: seconds in which the work may still complete, because ending the JVM during the work would leave files
    behind.
    """
    done = Future[Done]()
    thread = threading.Thread(target=_do, args=(work, done), name="headrace-jvm", daemon=True)
    try:
        thread.start()
        return done.result()
    except BaseException:
        if not done.done() and thread.is_alive():
            with uninterrupted():
                thread.join(grace)
                _end_with(thread)
        raise


def _end_with(thread: threading.Thread) -> None:
    """End the JVM, and the thread that works with it or is about to start it."""
    _end_process()
    for _ in range(MOST_LOOKS):
        thread.join(EXIT_SECONDS / MOST_LOOKS)
        if not thread.is_alive():
            break
        _end_process()
    _forget()


def _do(work: Callable[[], Done], done: Future[Done]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def stop(spark: SparkSession) -> None:
    """Stop a session. An interrupt meanwhile ends the JVM."""
    if is_started():
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # a JVM that no longer answers
            run_beside_jvm(spark.stop)


def end() -> None:
    """End the JVM that this process started."""
    if _process is not None:
        _end_process()
        _forget()


def _end_process() -> None:
    """End the JVM by SIGTERM, so that it can remove its files, and by SIGKILL if that takes too long."""
    global _process
    if _process is None:
        return
    process, _process = _process, None
    _stop_listening()
    _send(process, signal.SIGTERM)
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        _send(process, signal.SIGKILL)
        process.wait()


def _send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the JVM's process group, if it has one: a script that starts the JVM is in the group as well."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number) if os.getpgid(process.pid) == process.pid else process.send_signal(number)


def _stop_listening() -> None:
    """Stop pyspark's accumulator server, which would report the end of the JVM as an error."""
    context = SparkContext._active_spark_context
    if context is not None and (server := getattr(context, "_accumulatorServer", None)) is not None:
        context._accumulatorServer = None
        server.shutdown()


def _forget() -> None:
    """Forget the JVM, so that the next session starts another. Work with this JVM must have ended, or it would start
    another one.
    """
    if (context := SparkContext._active_spark_context) is not None:
        context._jsc = None  # otherwise it would be asked to stop and not answer
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
