"""A small run into a store, in a process of its own that is killed: by another at some moment of a delivery, or by itself
at a chosen step of one.

Every row of the input is a result, so what must be in the store in the end is plain: each value once.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi  # noqa: F401  # all that a run imports is there before the fork
import confluent_kafka.admin  # noqa: F401
import deltalake
import pandas as pd  # noqa: F401
import pyiceberg.catalog.sql
import pyiceberg.table

from headrace.sinks import Delivery
from headrace.testing import LocalRun, table_stream
from tests.patience import PATIENCE
from tests.sinks.stores import Store, rows

ROWS = 3_000
AT_ONCE = (50, 400)  # rows of an epoch, at least and at most
SLOWEST = {"kafka": 0.15}  # seconds after the beginning of a delivery in which a kill comes; for others:
USUALLY = 0.02


@dataclass(frozen=True)
class Kill:
    """Who dies when: `at` is a step of delivering (-1: none, or another process's choice)."""

    at: int = -1


def work(kind: str, place: str, name: str, folder: str, seed: int, kill: Kill, told: Connection, broken: bool) -> None:
    """Goes on where the state stands, to the end of the rows."""
    steps = Steps(kill.at)
    sink = watched(Store(kind, place, name).sink(), steps, told)
    if broken:
        sink._claim_epoch, sink._has = lambda *_: True, lambda *_: False  # keeps no record of what it has
    run = LocalRun(table_stream(rows(0), name="events"), Path(folder), sink=sink)
    random_ = random.Random(seed)
    while True:
        last = run.store.last
        first = last.sources["events"].delivered if last else 0
        if first >= ROWS:
            break
        run.epoch(rows(*range(first, min(first + random_.randint(*AT_ONCE), ROWS))))
    run.close()
    told.send(("steps", steps.seen))


class Steps:
    """Counts; dies at the one that was chosen."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def __call__(self) -> None:
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1


def watched(sink: Any, steps: Steps, told: Connection) -> Any:
    """The sink itself, with steps between all that it does."""
    deliver = sink.deliver

    def delivering(delivery: Delivery) -> None:
        told.send(("delivering", delivery.epoch))
        steps()
        deliver(delivery)
        steps()

    sink.deliver = delivering
    if hasattr(sink, "database"):
        sink.database.transaction = _stepping(sink.database.transaction, steps)
    elif hasattr(sink, "cluster"):
        sink._begun = _stepping_writer(sink._begun, steps)
    else:
        sink._prepare = _after(sink._prepare, steps)
        _step_around_the_commit(steps)
    return sink


def _stepping_writer(begun: Callable[[str], Any], steps: Steps) -> Callable[[str], Any]:
    """Of a topic: when a producer has fenced off older ones, rows are on their way, all are there, and are committed."""

    def stepping(name: str) -> Any:
        writer = begun(name)
        steps()
        for method in ("_send", "_all_sent", "write"):
            setattr(writer, method, _after(getattr(writer, method), steps))
        return writer

    return stepping


def _step_around_the_commit(steps: Steps) -> None:
    """Of a lake: when the rows are in files, and when the log or the catalog has them."""
    deltalake.write_deltalake = _after(deltalake.write_deltalake, steps)
    commit = pyiceberg.table.Transaction.commit_transaction

    def stepping(self: Any) -> Any:
        steps()
        found = commit(self)
        steps()
        return found

    pyiceberg.table.Transaction.commit_transaction = stepping  # type: ignore[method-assign]


def _stepping(transaction: Callable[[], Any], steps: Steps) -> Callable[[], Any]:
    @contextmanager
    def stepping() -> Iterator[Any]:
        with transaction() as session:
            execute = session.execute

            def changing(statement: str, *values: Any) -> Any:
                """A look at the tables is no step, so the steps of all databases are the same."""
                found = execute(statement, *values)
                if not statement.startswith(("SELECT", "LOCK")):
                    steps()
                return found

            session.execute, session.insert = changing, _after(session.insert, steps)
            yield session
            steps()  # all is there, nothing is committed
        steps()

    return stepping


def _after(method: Callable[..., Any], steps: Steps) -> Callable[..., Any]:
    def stepping(*given: Any, **named: Any) -> Any:
        found = method(*given, **named)
        steps()
        return found

    return stepping


# --- who kills ---------------------------------------------------------------------------------------------------------

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def run(store: Store, folder: Path, seed: int = 0, kill: Kill | None = None, *, broken: bool = False) -> int | None:
    """One process, killed by itself if a step is given; how many steps there were, or None if it died."""
    with _started(store, folder, seed, kill or Kill(), broken) as (process, told):
        said = list(iter(lambda: _heard(told), None))
        process.join(PATIENCE)
        if process.exitcode == -signal.SIGKILL:
            return None
        assert process.exitcode == 0
        return int(said[-1][1])


def killed(store: Store, folder: Path, random_: random.Random) -> bool:
    """One process, killed some moments after it began a delivery; false if it was done before."""
    deliveries, wait = random_.randint(1, 4), random_.random() * SLOWEST.get(store.kind, USUALLY)
    with _started(store, folder, random_.randrange(1_000), Kill(), broken=False) as (process, told):
        while deliveries and (said := _heard(told)) is not None:
            deliveries -= said[0] == "delivering"
        time.sleep(wait)
        process.kill()
        process.join(PATIENCE)
        return process.exitcode == -signal.SIGKILL


def _heard(told: Connection) -> tuple[str, int] | None:
    try:
        said: tuple[str, int] = told.recv()
        return said
    except EOFError:
        return None


@contextmanager
def _started(store: Store, folder: Path, seed: int, kill: Kill, broken: bool) -> Iterator[tuple[Any, Connection]]:
    told, tell = _context.Pipe(duplex=False)
    given = (store.kind, store.place, store.name, str(folder), seed, kill, tell, broken)
    process = _context.Process(target=work, args=given)
    process.start()
    tell.close()
    try:
        yield process, told
    finally:
        told.close()
        process.close()
