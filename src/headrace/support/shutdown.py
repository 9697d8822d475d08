"""Quiet shutdown of Spark's Python workers and of active runs.

Spark closes the sockets of idle Python workers before it ends them, and a worker that notices would report an error.
`quiet_worker_exit`, called in a task, makes the worker check first whether the connection is still open.

`uninterrupted` protects cleanup, which a second Ctrl-C must not interrupt. When the interpreter ends, active runs are
stopped as by `run.stop()`, within `EXIT_SECONDS`; otherwise Spark would report batches whose Python process has ended.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

EXIT_SECONDS = 10.0  # seconds that runs get to finish their epoch when the interpreter ends
DAEMON = "pyspark.daemon"
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Worker = Callable[[socket.socket, bool], int]


class StoppableRun(Protocol):
    """The attributes of a run that this module uses."""

    _ended: threading.Event

    def _ask_to_stop(self) -> None: ...


# --- workers -------------------------------------------------------------------------------------------------------


def quiet_worker_exit() -> None:
    """Let a worker of Spark's daemon treat a closed connection as its end and not as an error, from the next task on."""
    main: Any = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) != DAEMON:
        return
    worker = getattr(main, "worker", None)
    if worker is not None and not isinstance(worker, QuietStream):
        main.worker = QuietStream(worker)


class QuietStream:
    """Spark's loop over tasks, which exits when Spark closes the connection."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __call__(self, connection: socket.socket, authenticated: bool) -> int:
        if not _spoken_to(connection):
            os._exit(0)
        return self._worker(connection, authenticated)


def _spoken_to(connection: socket.socket) -> bool:
    """Wait until there is data to read. Return False if the connection is closed."""
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


# --- interrupts ----------------------------------------------------------------------------------------------------


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore ending signals in this block. It is for cleanup that takes at most `EXIT_SECONDS`."""
    if threading.current_thread() is not threading.main_thread():  # signals interrupt only the main thread
        yield
        return
    with handle_signals(_pass_over):
        yield


@contextmanager
def handle_signals(handler: Callable[..., None]) -> Iterator[None]:
    """Handle ending signals with `handler`. SIGHUP is included unless it is ignored, as under nohup."""
    wanted = [n for n in END_SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)


def _pass_over(*_: Any) -> None:
    """Ignore a signal. Unlike SIG_IGN, a handler is not inherited by child processes."""


# --- runs ----------------------------------------------------------------------------------------------------------

_runs: weakref.WeakSet[StoppableRun] = weakref.WeakSet()


def stop_at_exit(run: StoppableRun) -> None:
    """Stop the run when the interpreter ends, if the run is still active."""
    if not _runs:
        atexit.unregister(_stop_runs)
        atexit.register(_stop_runs, os.getpid())
    _runs.add(run)


def _stop_runs(process: int) -> None:
    if process != os.getpid():  # in a forked child: the runs belong to its parent
        return
    deadline = time.monotonic() + EXIT_SECONDS
    runs = list(_runs)
    for run in runs:
        run._ask_to_stop()
    for run in runs:
        run._ended.wait(max(deadline - time.monotonic(), 0.0))
