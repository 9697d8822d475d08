"""A run over a topic in a process of its own, without Spark, that dies by SIGKILL at a moment that is named.

    python -m tests.kafka.dying '{"servers": ..., "topic": ..., "folder": ..., "moment": "commit", "at": 3}'

Moments: "reading" (some messages of an epoch were handed on, others were not), "read" (the tasks of an epoch are done, nothing is committed), "commit" (committed, nothing is delivered), "deliver"
(delivered, nothing is cleaned up); "never": it goes on to the end. Everything but Spark is the real thing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.control.splitter_count import Splitters
from headrace.driver.delivery import Deliverer
from headrace.driver.position import Position
from headrace.sources.kafka import reader as reading_messages
from headrace.sources.kafka.reader import KafkaReader
from headrace.state.blocks import BlockReader
from headrace.state.manifest import TopicsState
from headrace.stream import node_of
from headrace.task.in_process import execute_locally
from headrace.task.splitters import assign_pieces, read_windows
from headrace.testing import LocalRun
from tests.kafka import sending


def query(job: dict[str, Any]) -> tuple[hr.Stream, Any]:
    calls = hr.kafka(
        None,  # type: ignore[arg-type]
        job["servers"],
        job["topic"],
        time="at",
        schema=sending.SCHEMA,
        lateness="2 seconds",
        name="calls",
        messages_per_epoch=job["messages"],
    )
    pairs = calls.join(calls, on="l.caller = r.caller and l.seconds < r.seconds", within="1 second")
    return pairs, node_of(calls).origin


def main(job: dict[str, Any]) -> None:
    folder = Path(job["folder"])
    stream, origin = query(job)
    run = LocalRun(stream, folder / "state", slots=2, sink=hr.sinks.parquet(folder / "out"))
    driver: Any = run.driver
    known = driver.last.ledgers if driver.last else {}
    ledger = origin.ledger(known.get("calls", TopicsState()), BlockReader(run.store.storage))
    driver.ledgers = {"calls": ledger}
    ledger.keep_to_list()
    left = job["at"]
    reading_messages.MOST_GATHERED_BYTES = 2_000  # bytes: a range comes in several goes

    def reached(moment: str) -> None:
        nonlocal left
        if moment == job["moment"]:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    commit, deliver = run.store.commit, Deliverer.deliver

    def committed(manifest: Any) -> None:
        commit(manifest)
        reached("commit")

    def delivered(*given: Any) -> Any:
        found = deliver(*given)
        reached("deliver")
        return found

    def reading(*given: Any, **how: Any) -> Any:
        for found in read(*given, **how):
            yield found
            reached("reading")

    run.store.commit, Deliverer.deliver = committed, delivered  # type: ignore[method-assign]
    read, KafkaReader.read = KafkaReader.read, reading  # type: ignore[method-assign]
    while not driver.closed:
        chosen = ledger.choose(ledger.waiting())

        def execute(epoch: Any, taken: Any = chosen) -> Any:
            hands = assign_pieces(ledger.inputs("calls", taken), Splitters(2, 1 << 14))
            found = execute_locally(epoch, [read_windows(epoch, hand) for hand in hands], run.store.storage)
            reached("read")
            return found

        driver.run_epoch(Position("files"), execute, taken={"calls": chosen}, final=not chosen)
    run.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
