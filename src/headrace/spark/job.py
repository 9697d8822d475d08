"""The stages of an epoch as one Spark job. With `sparks`, which knows what differs from Spark to Spark, and `jvm`, the only
module that imports pyspark.

One epoch = one RDD chain: rows of the batch -> split -> exchange by slot -> process -> exchange -> ... -> reports.
What crosses an exchange is (slot, Arrow bytes); the tasks are the pure functions of `headrace.task.stages`.
RDDs rather than DataFrames because a window is opaque to Spark anyway and planning would cost more than the job.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import RDD, SparkContext, TaskContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructType

from headrace import errors
from headrace.columnar import duck
from headrace.control.splitter_count import Splitters
from headrace.errors import EngineError, HeadraceError, QueryTypeError, SourceError
from headrace.plan import PhysicalPlan
from headrace.query.nodes import Source
from headrace.sources.protocol import TakenInput
from headrace.sources.tables import Part
from headrace.spark import compat, jvm, privacy, worker_memory
from headrace.state.blocks import BlockReader
from headrace.state.storage import Storage, open_storage
from headrace.support import shutdown
from headrace.support.argument_errors import describe_argument, instead_of_dataframe
from headrace.support.limits import check_slots
from headrace.support.secrets import Secret, is_secret_name, resolve_secrets, without_logins
from headrace.task import user_code_notes
from headrace.task.block_writer import Task
from headrace.task.epoch import Epoch, PhysicalWindow
from headrace.task.messages import Message, decode, encode, pack, unpack
from headrace.task.splitters import SourcePiece, assign_pieces, read_windows, reader_of
from headrace.task.stages import run_splitter, run_stage

MUCH, MANY = 64 << 20, 1_000_000  # bytes and rows of a static DataFrame that is not looked at whole at every start
NOBODY_KNOWS = 1 << 60  # bytes that Spark says when it cannot tell, as of rows that a program made
EXECUTOR_GRACE_SECONDS = 5.0  # seconds that the other executors get once the first has come
LONGEST_STOP = 60_000  # milliseconds in which a query that is asked to stop is stopped
INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling sleep.\n: java.lang.InterruptedException"
BATCH = "source string, kind string, body binary"  # a physical window, or where one is: in a file, in a topic
PIECE_KIND, ROWS_KIND = "piece", "rows"  # kinds

LOG_LEVEL = "spark.log.level"
REDACTED = (  # settings that Spark shows neither in its log of events nor on its pages
    "(?i)passw|passphrase|secret|token|credential|pwd|authorization|(access|account|api|private)[._-]?key"
)
IDENTIFYING = ("path", "subscribe", "subscribePattern", "assign", "topic", "table", "host", "port")

ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "Union")  # as Spark calls them

Row = tuple[str, str, bytes]
Columns = Mapping[str, Collection[str]]  # by source: those that are read, as the source calls them


# --- sessions and DataFrames ---------------------------------------------------------------------------------------


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
        **asked,
        "spark.redaction.regex": _redacted(asked),
        **privacy.private_settings(asked.get("spark.master", master), asked),
    }


def _redacted(asked: Mapping[str, Any]) -> str:
    """The names of settings that Spark shows nowhere: those that look like secrets, those given as one, and the user's own."""
    given = [re.escape(name) for name, value in asked.items() if isinstance(value, Secret)]
    return "|".join([REDACTED, *given, *filter(None, [asked.get("spark.redaction.regex")])])


def check_dataframe(df: Any) -> DataFrame:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        msg = "this DataFrame belongs to Spark Connect, which headrace cannot drive; use a classic session: headrace.session(...)"
        raise QueryTypeError(msg)
    if not isinstance(df, DataFrame):
        raise QueryTypeError(
            f"headrace.stream takes a Spark DataFrame; found {describe_argument(df)}; {instead_of_dataframe(df)}"
        )
    return df


def arrow_schema(schema: StructType) -> pa.Schema:
    for field in schema.fields:
        try:
            compat.arrow_schema(StructType([field]))
        except PySparkException as error:
            msg = f"column {field.name!r} has type {field.dataType.simpleString()}, which streams do not carry ({error}); cast it to a number or to text first"
            raise QueryTypeError(msg) from None
    return compat.arrow_schema(schema)


class DataFrameOrigin:
    """A Spark DataFrame as a source."""

    def __init__(self, df: DataFrame) -> None:
        self.df = check_dataframe(df)
        self.spark = df.sparkSession

    @property
    def bounded(self) -> bool:
        return not self.df.isStreaming

    @property
    def driven(self) -> str:
        return "static" if self.bounded else "stream"

    @property
    def place(self) -> str | None:
        """What a DataFrame reads, or holds if it is static and that is cheap to tell.

        A streaming one as far as Spark tells: Spark's log knows its sources by their order only.
        """
        if self.bounded:
            return self._content()
        leaves = self.df._jdf.queryExecution().analyzed().collectLeaves()
        found = [leaves.apply(index) for index in range(leaves.size())]
        return ", ".join(_reads(leaf) for leaf in found if leaf.isStreaming()) or None

    def _content(self) -> str | None:
        """Rows, columns and a hash that does not depend on the order of rows; None where it would cost much to tell."""
        estimate = int(str(self.df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        if MUCH < estimate < NOBODY_KNOWS:
            return None
        hashed = self.df.selectExpr("xxhash64(struct(*)) hash").limit(MANY + 1)
        try:
            rows, total = hashed.selectExpr("count(*)", "sum(cast(hash as decimal(38, 0)))").head()
        except PySparkException:  # a column that cannot be hashed, or data that the run itself will refuse
            return None
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.df.schema.fields)
        return None if rows > MANY else f"{rows} rows of ({columns}), hash {total or 0}"

    def table(self) -> pa.Table:
        return self.df.toArrow()

    def head(self, rows: int) -> pa.Table:
        return self.df.limit(rows).toArrow()


class DataFrameTable:
    """A static DataFrame as a table beside streams: what it reads was decided when it was made."""

    renewable = False

    def __init__(self, df: DataFrame) -> None:
        self._df = _static(df, "hr.table takes a static DataFrame, a folder or a function")
        self.place = "a DataFrame"

    def schema(self) -> pa.Schema:
        return arrow_schema(self._df.schema)

    def parts(self) -> list[Part]:
        return [(self.place, collect_rows(self._df))]


class FunctionTable:
    """A function that returns a static DataFrame, asked whenever the table is read."""

    renewable = True

    def __init__(self, function: Callable[[], DataFrame]) -> None:
        self._function = function
        self.place = f"the function {getattr(function, '__name__', type(function).__name__)}"

    def schema(self) -> pa.Schema:
        return arrow_schema(self._asked().schema)

    def parts(self) -> list[Part]:
        return [(self.place, collect_rows(self._asked()))]

    def _asked(self) -> DataFrame:
        return _static(self._function(), f"{self.place} that hr.table was given must return a static DataFrame")


def _static(df: Any, what: str) -> DataFrame:
    if not isinstance(df, DataFrame) or type(df).__module__.startswith("pyspark.sql.connect"):
        raise QueryTypeError(f"{what}; found {describe_argument(df)}")
    if df.isStreaming:
        raise QueryTypeError(
            f"{what}; found a streaming one; rows that come as time goes on are a stream: headrace.stream"
        )
    return df


def collect_rows(df: DataFrame) -> pa.Table:
    """All rows of a DataFrame; that it cannot be read is said in one line."""
    try:
        return df.toArrow()
    except Exception as error:  # Spark's own, or py4j's around it
        raise SourceError(
            f"Spark could not read it: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:500]}"
        ) from None


def _reads(leaf: Any) -> str:
    """A streaming source by kind and by the options that say what it reads; no others, they may hold secrets."""
    kind = leaf.getClass().getSimpleName()
    if not kind.startswith("StreamingRelation"):
        return str(kind)
    options = leaf.extraOptions() if kind == "StreamingRelationV2" else {}
    given = [f"{key}={value}" for key in IDENTIFYING if (value := options.get(key)) is not None]
    name = re.sub(r"(?<=^FileSource\[).*(?=\]$)", _one_spelling, leaf.sourceName())
    return without_logins(f"{name}{given or ''}")


def _one_spelling(found: re.Match[str]) -> str:
    """The path of a folder, which may have been given in several ways."""
    path = re.sub("^file:(//)?(?=/)", "", found[0])
    return path if re.match("[A-Za-z][A-Za-z0-9+.-]*:/", path) else str(Path(path).absolute())


# --- what Spark reads ----------------------------------------------------------------------------------------------


def static_rows(sources: Mapping[str, Source], columns: Columns) -> RDD[Row]:
    """All that static DataFrames hold, as rows of a batch."""
    parts = [to_rows(pack_dataframe(name, source.origin.df, columns[name])) for name, source in sources.items()]
    return parts[0] if len(parts) == 1 else parts[0].context.union(parts)


def pack_dataframe(name: str, df: DataFrame, wanted: Collection[str]) -> DataFrame:
    """A DataFrame as physical windows. Columns travel by place: mapInArrow trips over dots and backticks in names.

    Only those that are wanted, unless Spark keeps state of its own for the DataFrame: what it keeps would follow from what
    is wanted, and no longer fit when that changes from one start to the next.
    """
    numbered = df.toDF(*(f"c{index}" for index in range(len(df.columns))))
    whole = df.isStreaming and not _keeps_nothing(df._jdf.queryExecution().analyzed())
    places = [place for place, column in enumerate(df.columns) if whole or column in wanted]
    chosen = numbered.select([f"c{place}" for place in places])
    return chosen.mapInArrow(functools.partial(_pack, name, tuple(df.columns[place] for place in places)), BATCH)


def _keeps_nothing(node: Any) -> bool:
    """Whether a logical plan of Spark is made of sources and of what looks at one row at a time."""
    children = [node.children().apply(place) for place in range(node.children().size())]
    return (not children or node.nodeName() in ROW_BY_ROW) and all(map(_keeps_nothing, children))


def _pack(name: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    shutdown.quiet_worker_exit()
    for batch in batches:
        if batch.num_rows:
            body = pack(pa.Table.from_batches([batch]).rename_columns(list(columns)))
            yield pa.RecordBatch.from_pydict({"source": [name], "kind": [ROWS_KIND], "body": [body]})


def stream_rows(sources: Mapping[str, Source], columns: Columns) -> DataFrame:
    """The streaming DataFrames of a query as one streaming DataFrame of physical windows."""
    return functools.reduce(
        DataFrame.union, [pack_dataframe(name, s.origin.df, columns[name]) for name, s in sources.items()]
    )


def file_rows(sc: SparkContext, taken: Sequence[TakenInput], splitters: Splitters) -> RDD[Row]:
    """Files and messages as physical windows, by where they are: one partition for each splitter."""
    hands = [[_named(portion) for portion in hand] for hand in assign_pieces(taken, splitters)]
    return sc.parallelize(hands, max(1, len(hands))).flatMap(list)


def _named(portion: SourcePiece) -> Row:
    return portion.source, PIECE_KIND, json.dumps(asdict(portion.piece)).encode()  # type: ignore[call-overload]


def to_rows(df: DataFrame) -> RDD[Row]:
    return df.rdd.map(tuple)


# --- the job -------------------------------------------------------------------------------------------------------


def execute_epoch(sc: SparkContext, rows: RDD[Row] | None, epoch: Epoch) -> list[Message]:
    """Run an epoch as one Spark job; the messages that are left are the tasks' reports."""
    reports = _run(sc, rows if rows is not None else _nothing(sc), epoch)
    if not reports:  # a batch without partitions: nobody ran, yet windows may have to close
        reports = _run(sc, _nothing(sc), epoch)
    return reports


def _nothing(sc: SparkContext) -> RDD[Row]:
    return sc.parallelize([], 1)


def _run(sc: SparkContext, rows: RDD[Row], epoch: Epoch) -> list[Message]:
    sent: RDD[tuple[int, bytes]] = rows.mapPartitions(functools.partial(_split_task, epoch))
    for stage in range(1, epoch.plan.stages + 1):
        exchanged = sent.partitionBy(epoch.slots, _slot)
        sent = exchanged.mapPartitions(functools.partial(_process_task, epoch, stage))
    try:
        parts = sent.collect()
    except Exception as error:  # Spark's own, or py4j's around what a task raised
        raise _died(epoch, str(error)) or _cause(error, sc) from None
    return [message for _, body in parts for message in decode(unpack(body).to_batches())]


def _slot(slot: int) -> int:
    return slot


_FAILED = "headrace-error:"


def _cause(error: Exception, sc: SparkContext | None = None) -> Exception:
    """The error that a task raised on purpose, as it was raised; anything else as it is."""
    text = str(error)
    start = text.find(_FAILED)
    if start < 0 and sc is not None and (words := _another_python(sc, text)):
        return EngineError(words)
    if start < 0:
        return EngineError(f"the Spark job of this epoch failed: {_raised(text)}{text.strip()[:2000]}")
    kind, message = json.JSONDecoder().raw_decode(text[start + len(_FAILED) :])[0]
    found: Exception = getattr(errors, kind)(message)
    return found


_LOST = re.compile(r"Lost task \S+ in stage \S+ \(TID (\d+)\)")


def _died(epoch: Epoch, text: str) -> EngineError | None:
    """The error of a task whose process died in user code, as the task's note has it; None: there is no such task."""
    attempts = dict.fromkeys(int(found) for found in _LOST.findall(text))
    calls = dict.fromkeys(
        filter(None, (user_code_notes.last_user_call(epoch.folder, epoch.run, each) for each in attempts))
    )
    if not calls:
        return None
    return EngineError(
        f"the Python process of a task died in epoch {epoch.number}, in {', '.join(calls)}; nothing of the epoch was"
        " committed. Such code may have called os._exit, may have crashed in a native library, or may have been killed"
        " because the machine had no memory left (the kernel's log shows it): put it right, or give it more memory, and start again"
    )


def _raised(text: str) -> str:
    """What a Python task raised, which stands at the end of a long list of where."""
    _, found, trace = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in trace.splitlines() if line.strip() and not line.startswith(" ")]
    return f"{lines[0].strip()}; in full: " if found and lines else ""


def _named_errors(messages: Iterator[Message]) -> Iterator[Message]:
    """Errors that say what to do travel to the driver as themselves."""
    try:
        yield from messages
    except HeadraceError as error:
        raise RuntimeError(_FAILED + json.dumps([type(error).__name__, str(error)])) from None


def _split_task(epoch: Epoch, rows: Iterable[Row]) -> Iterator[tuple[int, bytes]]:
    task = _task(epoch, 0)
    return _packets(_watched(epoch, task, run_splitter(epoch, task, _windows(epoch, rows))), epoch.slots)


def _process_task(epoch: Epoch, stage: int, sent: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    messages = (message for _, body in sent for message in decode(unpack(body).to_batches()))
    task = _task(epoch, stage)
    return _packets(_watched(epoch, task, run_stage(epoch, stage, task, messages)), epoch.slots)


def _watched(epoch: Epoch, task: Task, messages: Iterator[Message]) -> Iterator[Message]:
    with user_code_notes.note_user_code(epoch.folder, epoch.run, task.attempt):
        yield from messages


def _windows(epoch: Epoch, rows: Iterable[Row]) -> Iterator[PhysicalWindow]:
    for kind, together in itertools.groupby(rows, lambda row: row[1]):
        if kind == PIECE_KIND:
            pieces = ((source, json.loads(bytes(body))) for source, _, body in together)
            yield from read_windows(epoch, (SourcePiece(s, reader_of(epoch, s).piece(data)) for s, data in pieces))
        else:
            yield from (PhysicalWindow(source, unpack(body)) for source, _, body in together)


def _packets(messages: Iterator[Message], slots: int) -> Iterator[tuple[int, bytes]]:
    """Messages to the same slot together; a large one leaves at once."""
    waiting: dict[int, list[Message]] = {}
    for message in _named_errors(messages):
        if len(message.body) > 1 << 20:
            yield message.slot, _bytes([message])
        else:
            waiting.setdefault(message.slot, []).append(message)
    for slot, gathered in waiting.items():
        yield slot, _bytes(gathered)


def _bytes(messages: Sequence[Message]) -> bytes:
    return pack(pa.Table.from_batches(list(encode(messages))))


@functools.lru_cache(maxsize=8)
def _reader(uri: str) -> tuple[Storage, BlockReader]:
    """Open blocks outlive a task: a reused Python worker maps and checks a block once."""
    storage = open_storage(uri)
    return storage, BlockReader(storage)


_settled = 0  # modules that were loaded when this worker last put its objects aside


def _settle() -> None:
    """Spare the collector what modules hold: a worker collects after every task, some 50 ms when it looks at all."""
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
    """Whether the session of this context is stopped, or the JVM behind it is gone."""
    try:
        return sc._jsc is None or bool(sc._jsc.sc().isStopped())
    except Exception:  # py4j cannot ask: there is nobody left
        return True


def await_interrupt(spark: SparkSession) -> str:
    """In a callback of a streaming query: wait in the query's own thread of the JVM until the query is stopped.

    Gives the words of an error that Spark takes for the end of a query that was stopped; any other it would report with
    all its frames. They are all that is said: Spark looks for them in a way that takes no long text.
    """
    try:
        spark._jvm.java.lang.Thread.sleep(LONGEST_STOP)
    except Exception:  # the interrupt, or there is no JVM any more
        return INTERRUPTED
    return "the run was stopped"


def keep_refusals_quiet() -> None:
    """py4j logs every error of a callback, with a traceback. The error that refuses a batch is intended: it is not logged."""
    for module in ("clientserver", "java_gateway"):
        logging.getLogger(f"py4j.{module}").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return record.exc_info is None or str(record.exc_info[1]) != INTERRUPTED


def has_drained(query: StreamingQuery) -> bool:
    """Whether a query with the trigger `availableNow` ended because all that was there is done.

    One that was stopped from outside looks the same: not active, and no exception. Only what its last look for tuples
    found tells them apart.
    """
    return query.exception() is None and bool(query._jsq.streamingQuery().noNewData())


def check_shipped(sink: Any) -> None:
    """Refuse a sink that cannot be sent to the tasks that write to it."""
    try:
        cloudpickle.dumps(sink)
    except Exception as error:
        msg = (
            f"the sink {sink!r} takes parts in tasks and must be sent to them, but it cannot be pickled:"
            f" {type(error).__name__}: {error}; let it hold names and settings, and open connections and files in write()"
        )
        raise QueryTypeError(msg) from None


def check_code(sc: SparkContext, plan: PhysicalPlan, what: Sequence[str]) -> None:
    """Refuse code of the user's own that cannot be sent to tasks, or that they cannot load; `what` is in it."""
    if not what:
        return
    named = ", ".join(what)
    try:
        cloudpickle.dumps(plan)
    except Exception as error:
        msg = (
            f"{named} must be sent to tasks, but cannot be pickled: {type(error).__name__}: {error};"
            " let a processor hold plain settings, and load files and open connections in its open()"
        )
        raise QueryTypeError(msg) from None
    tasks = max(2, sc.defaultParallelism)
    try:
        sc.parallelize(range(tasks), tasks).map(functools.partial(_loaded, plan)).collect()
    except Exception as error:
        raise EngineError(_another_python(sc, str(error)) or _not_loaded(named, str(error))) from None


def _loaded(plan: PhysicalPlan, _: int) -> None:
    """Who runs this has loaded the plan, and all that is in it."""
    shutdown.quiet_worker_exit()


_MISSING = re.compile(r"No module named '([^']+)'")
_STRANGE = re.compile(r"Can't get attribute '([^']+)' on <module '([^']+)' (.*)>")


def _not_loaded(named: str, text: str) -> str:
    if missing := _MISSING.search(text):
        why = f"their Python has no module {missing[1]!r}; {_send(missing[1])}"
    elif strange := _STRANGE.search(text):
        attribute, module, origin = strange.groups()
        if "namespace" in origin.lower():  # what Python makes of a folder that has no __init__.py
            why = f"their Python takes a folder {module!r} for the module {module!r}; rename the folder; or {_send(module)}"
        else:
            why = f"their Python has another module {module!r} ({origin}), without {attribute!r}; {_send(module)}"
    else:
        why = _raised(text).removesuffix("; in full: ") or text[:1000]
    return f"tasks cannot load {named}: {why}"


def _send(module: str) -> str:
    return (
        "put the code into the file that is run, which is sent along, or send the module:"
        f" spark.sparkContext.addPyFile('{module.partition('.')[0]}.py') before the start, or install it there"
    )


# --- are there executors? ------------------------------------------------------------------------------------------


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


def runs_on_this_machine(sc: SparkContext) -> bool:
    """Whether tasks run in the driver itself."""
    return sc.master.startswith("local") and not sc.master.startswith("local-cluster")


def _come(sc: SparkContext, count: int, seconds: float) -> bool:
    """Whether so many executors are there within so many seconds."""
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


# --- can the tasks reach the state? --------------------------------------------------------------------------------


def check_sockets(sc: SparkContext) -> None:
    """Refuse a session whose sockets other users of this machine can connect to."""
    settings = sc._jsc.sc().conf()  # asked for two values: py4j logs all that it is answered, and some are secret
    enabled = settings.get(compat.SOCKETS, "") or os.environ.get("PYSPARK_UDS_MODE", "false")
    folder = settings.get(compat.SOCKET_FOLDER, "") or sc._jvm.java.lang.System.getProperty("java.io.tmpdir")
    privacy.check_driver(enabled, folder)


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
            why = _another_python(sc, str(error)) or f"a task could not be run on {sc.master}: {_why(str(error))}"
            raise EngineError(why) from None
    return all(text == token for text in found)


def _another_python(sc: SparkContext, text: str) -> str | None:
    """Whether tasks failed because Spark, here on this machine, starts another Python than the one that we are."""
    if not runs_on_this_machine(sc):
        return None
    used = str(Path(shutil.which(sc.pythonExec) or sc.pythonExec).absolute())
    if used == str(Path(sys.executable).absolute()):
        return None
    if missing := _MISSING.search(text):
        what = f"that one has no module {missing[1]!r}"
    elif "PYTHON_VERSION_MISMATCH" in text:
        what = "their versions differ"
    elif "Cannot run program" in text:
        what = "that one cannot be started"
    else:
        return None
    return (
        f"this session starts its Python workers with {used!r}, but this program is run by {sys.executable!r}, and {what};"
        ' before the session is made, set PYSPARK_PYTHON: os.environ["PYSPARK_PYTHON"] = sys.executable; or make the'
        " session with headrace.session()"
    )


def _why(text: str) -> str:
    if missing := _MISSING.search(text):
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
