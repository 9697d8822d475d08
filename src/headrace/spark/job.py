"""The execution of an epoch's stages as one Spark job.

    one epoch = one chain of RDDs:  rows -> run_splitter -> exchange by slot -> run_stage -> exchange -> ... -> reports

The rows are pieces to read, or physical windows of a batch. An exchange moves (slot, packet of messages). The tasks are
the pure functions of `headrace.task.stages`. The chain uses RDDs and not DataFrames, because Spark cannot look into a
window, and planning a DataFrame would cost more than the job.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import logging
import sys
from collections.abc import Iterable, Iterator

from pyspark import RDD, SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.columnar import duck
from headrace.sources.protocol import PhysicalWindow
from headrace.spark import privacy, worker_memory
from headrace.spark.dataframes import PIECE_KIND, Row
from headrace.spark.task_errors import error_of_death, error_of_job, send_errors
from headrace.state.blocks import BlockReader
from headrace.state.storage import Storage, open_storage
from headrace.support import shutdown
from headrace.task import user_code_notes
from headrace.task.epoch import Epoch
from headrace.task.messages import Message, decode, encode, unpack
from headrace.task.splitters import SourcePiece, read_windows, reader_of
from headrace.task.stages import run_splitter, run_stage
from headrace.task.task import Task

LONGEST_STOP = 60_000  # milliseconds within which a query stops after a request
INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling sleep.\n: java.lang.InterruptedException"


def run_spark_job(sc: SparkContext, rows: RDD[Row] | None, epoch: Epoch) -> list[Message]:
    """Run an epoch as one Spark job. Return the messages of the last stage: the reports of all tasks."""
    reports = _run_stages(sc, rows if rows is not None else _nothing(sc), epoch)
    if not reports:  # a batch without partitions runs no task, but windows may have to close
        reports = _run_stages(sc, _nothing(sc), epoch)
    return reports


def _nothing(sc: SparkContext) -> RDD[Row]:
    return sc.parallelize([], 1)


def _run_stages(sc: SparkContext, rows: RDD[Row], epoch: Epoch) -> list[Message]:
    sent: RDD[tuple[int, bytes]] = rows.mapPartitions(functools.partial(_splitter_task, epoch))
    for stage in range(1, epoch.plan.last_stage + 1):
        exchanged = sent.partitionBy(epoch.slots, _slot)
        sent = exchanged.mapPartitions(functools.partial(_slot_task, epoch, stage))
    try:
        parts = sent.collect()
    except Exception as error:  # an error of Spark, possibly wrapped by py4j
        raise error_of_death(epoch, str(error)) or error_of_job(error, sc) from None
    return [message for _, body in parts for message in decode(body)]


def _slot(slot: int) -> int:
    return slot


def _splitter_task(epoch: Epoch, rows: Iterable[Row]) -> Iterator[tuple[int, bytes]]:
    task = _task(epoch, 0)
    return _packets(_watched(epoch, task, run_splitter(epoch, task, _windows(epoch, rows))), epoch.slots)


def _slot_task(epoch: Epoch, stage: int, sent: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    messages = (message for _, body in sent for message in decode(body))
    task = _task(epoch, stage)
    return _packets(_watched(epoch, task, run_stage(epoch, stage, task, messages)), epoch.slots)


def _watched(epoch: Epoch, task: Task, messages: Iterator[Message]) -> Iterator[Message]:
    with user_code_notes.note_user_code(epoch.folder, epoch.run_id, task.attempt):
        yield from messages


def _windows(epoch: Epoch, rows: Iterable[Row]) -> Iterator[PhysicalWindow]:
    for kind, together in itertools.groupby(rows, lambda row: row[1]):
        if kind == PIECE_KIND:
            pieces = ((source, json.loads(bytes(body))) for source, _, body in together)
            yield from read_windows(epoch, (SourcePiece(s, reader_of(epoch, s).piece(data)) for s, data in pieces))
        else:
            yield from (PhysicalWindow(source, unpack(body)) for source, _, body in together)


def _packets(messages: Iterator[Message], slots: int) -> Iterator[tuple[int, bytes]]:
    """Yield packets of messages to the same slot. A large message is sent at once in a separate packet."""
    waiting: dict[int, list[Message]] = {}
    for message in send_errors(messages):
        if len(message.body) > 1 << 20:
            yield message.slot, encode([message])
        else:
            waiting.setdefault(message.slot, []).append(message)
    for slot, gathered in waiting.items():
        yield slot, encode(gathered)


@functools.lru_cache(maxsize=8)
def _reader(uri: str) -> tuple[Storage, BlockReader]:
    """Open the storage. Open blocks outlive a task, so a reused Python worker maps and checks a block once."""
    storage = open_storage(uri)
    return storage, BlockReader(storage)


_settled = 0  # number of loaded modules when this worker last called gc.freeze


def _settle() -> None:
    """Exclude loaded modules from garbage collection: a worker collects after every task, which takes some 50 ms with
    them.
    """
    global _settled
    privacy.check_worker()
    shutdown.quiet_worker_exit()
    worker_memory.keep_freed_memory()
    if len(sys.modules) > _settled:
        gc.freeze()
        _settled = len(sys.modules)


def _task(epoch: Epoch, stage: int) -> Task:
    _settle()
    duck.guard_memory()
    context = TaskContext.get()
    assert context is not None
    storage, reader = _reader(epoch.folder)
    reader.keep_only(epoch.live)
    return Task(stage, context.partitionId(), context.taskAttemptId(), storage, reader)


def is_stopped(sc: SparkContext) -> bool:
    """Return whether the session of this context is stopped, or its JVM has ended."""
    try:
        return sc._jsc is None or bool(sc._jsc.sc().isStopped())
    except Exception:  # py4j cannot connect: the JVM has ended
        return True


def await_interrupt(spark: SparkSession) -> str:
    """Wait in a callback of a streaming query, in the query's own JVM thread, until the query is stopped.

    Return the text of an error that Spark recognises as the end of a stopped query. Spark would log any other error
    with all its frames. The text must contain nothing else, because Spark matches it exactly.
    """
    try:
        spark._jvm.java.lang.Thread.sleep(LONGEST_STOP)
    except Exception:  # interrupted, or the JVM has ended
        return INTERRUPTED
    return "the run was stopped"


def keep_refusals_quiet() -> None:
    """Suppress py4j's log of the error that refuses a batch. py4j logs errors of callbacks with a traceback, and this
    one is intended.
    """
    for module in ("clientserver", "java_gateway"):
        logging.getLogger(f"py4j.{module}").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.exc_info is None or str(record.exc_info[1]) != INTERRUPTED


def has_drained(query: StreamingQuery) -> bool:
    """Return whether a query with the trigger `availableNow` ended because all available data was processed.

    A query that was stopped from outside also is inactive without an exception. Only the result of its last poll
    distinguishes the two.
    """
    return query.exception() is None and bool(query._jsq.streamingQuery().noNewData())
