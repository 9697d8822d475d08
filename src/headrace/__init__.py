"""headrace: continuous queries over data streams, in parallel on Apache Spark, with exactly the sequential answer."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from headrace import sinks
from headrace.columnar.types import stream_schema
from headrace.control.policy import Policy
from headrace.errors import (
    CorruptState,
    DataError,
    DeploymentError,
    EngineError,
    ExpressionError,
    HeadraceError,
    MissingLibrary,
    MissingSecret,
    ProcessorError,
    QueryChanged,
    QueryError,
    QueryTypeError,
    SinkError,
    SourceError,
    StateError,
    StateMismatch,
    WorkloadError,
    WriterConflict,
)
from headrace.processor import Processor, StateTable
from headrace.query import nodes
from headrace.query.nodes import Source
from headrace.reference import reference
from headrace.stream import Stream, Table
from headrace.support.argument_errors import describe_argument
from headrace.support.durations import Duration, parse_duration
from headrace.support.habits import missing_function
from headrace.support.limits import check_slots
from headrace.support.secrets import Secret, secret
from headrace.support.version import __version__

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from headrace import testing as testing  # for editors; loaded by `__getattr__`
    from headrace.compile.subqueries import Plan
    from headrace.plan.figures import Figures
    from headrace.run.run import Run

__all__ = [
    "CorruptState",
    "DataError",
    "DeploymentError",
    "EngineError",
    "ExpressionError",
    "HeadraceError",
    "MissingLibrary",
    "MissingSecret",
    "Policy",
    "Processor",
    "ProcessorError",
    "QueryChanged",
    "QueryError",
    "QueryTypeError",
    "Secret",
    "SinkError",
    "SourceError",
    "StateError",
    "StateMismatch",
    "StateTable",
    "Stream",
    "Table",
    "WorkloadError",
    "WriterConflict",
    "__version__",
    "calibrate",
    "files",
    "kafka",
    "read_state",
    "reference",
    "secret",
    "session",
    "sinks",
    "start",
    "stream",
    "table",
]


def session(slots: int = 2, master: str | None = None, **config: str | Secret) -> SparkSession:
    """A SparkSession with the settings headrace needs: local[slots], or the given master. `config` adds more settings.

    Those that are secret by name, or `hr.secret("NAME")`, are kept out of the arguments of Spark's process.
    """
    from headrace.spark import session as spark_session

    return spark_session.session(slots, master, **config)


def stream(
    df: DataFrame,
    time: str,
    lateness: Duration = "0 seconds",
    idle: Duration | None = None,
    ahead: Duration | None = None,
    name: str | None = None,
) -> Stream:
    """Return a stream over a streaming or static Spark DataFrame.

    time: the column with the event time, a timestamp; the stream calls it `ts`.
    lateness: how far a tuple may lag behind the largest `ts` before it without being late.
    idle: after this much wall-clock time without a tuple the other streams stop waiting for this one. None: never.
    ahead: a tuple that is further than this past the largest `ts` committed is rejected. None: no limit.
    name: what logs, progress and results of late tuples call the source. None: source-1, source-2, ...

    calls = hr.stream(df, time="start", lateness="2 seconds", name="calls")
    """
    from headrace.spark import dataframes

    origin = dataframes.DataFrameOrigin(df)
    return _source(origin, dataframes.arrow_schema(df.schema), time, lateness, idle, ahead, name)


def files(
    spark: SparkSession,
    folder: str | os.PathLike[str],
    time: str,
    lateness: Duration = "0 seconds",
    files_per_epoch: int | None = None,
    name: str | None = None,
    idle: Duration | None = None,
    ahead: Duration | None = None,
    schema: pa.Schema | None = None,
    order: Literal["modified", "name"] = "modified",
) -> Stream:
    """Return a stream over the *.parquet, *.arrow and *.feather files of a folder that may grow.

    time, lateness, idle, ahead, name: as in `headrace.stream`.
    files_per_epoch: how many files one epoch takes. None: as many as fit.
    schema: the columns of the files. None: those of the first file, which then must be there.
    order: in which files are taken: by "modified", the time of the last change and then the name, or by "name".

    orders = hr.files(spark, "orders/", time="at", name="orders")
    """
    from headrace.sources.files import FilesOrigin, checked_folder, checked_order, checked_schema

    if files_per_epoch is not None and (not isinstance(files_per_epoch, int) or files_per_epoch < 1):
        raise QueryError(f"files_per_epoch must be a whole number, at least 1; found {files_per_epoch!r}")
    origin = FilesOrigin(spark, checked_folder(folder), files_per_epoch, checked_schema(schema), checked_order(order))
    return _source(origin, origin.schema(), time, lateness, idle, ahead, name)


def kafka(
    spark: SparkSession,
    servers: str | Sequence[str],
    topic: str | Sequence[str],
    time: str | None = None,
    schema: pa.Schema | None = None,
    format: Literal["json", "avro", "arrow", "raw"] = "json",
    lateness: Duration = "0 seconds",
    start: Literal["earliest", "latest"] | dt.datetime = "earliest",
    name: str | None = None,
    *,
    idle: Duration | None = None,
    ahead: Duration | None = None,
    messages_per_epoch: int | None = None,
    avro: str | Mapping[str, Any] | None = None,
    gaps: Literal["stop", "count"] = "stop",
    settings: Mapping[str, Any] | None = None,
) -> Stream:
    """A stream over a topic of Kafka, or several; each partition is in an order of its own, and `lateness` is within it.

    time: a field of the schema; "@timestamp": when the message was written, which is the default for format="raw".
    schema: the fields that are read of a message; not for format="raw", which has key, value, headers, topic, partition,
        offset and timestamp.
    format: "json" (an object per message), "avro" (a record, of the schema in avro=), "arrow" (an Arrow stream, any number
        of rows per message: the fast way) or "raw".
    start: "earliest", "latest" or a time with a zone: where a new checkpoint begins.
    idle: a partition silent for that long no longer holds the others back; without it an empty partition does so forever.
    messages_per_epoch: about so many, of all partitions together, and at least one of each; by default as many as fit.
    gaps: "stop" (offsets that retention removed before they were read end the run) or "count" (they are passed over).
    settings: those of librdkafka, such as for TLS and SASL, with hr.secret("NAME") for what is secret. They are not stored.
        No text shows what hr.secret stands for, nor what is secret by its name (passwords, keys, tokens).
    """
    from headrace.sources.kafka.client import checked_servers
    from headrace.sources.kafka.decoders import WRITTEN, decoder
    from headrace.sources.kafka.origin import KafkaOrigin, checked_gaps, checked_limit, checked_start, checked_topics

    if time is None and format != "raw":
        raise QueryError(f"time must be a field of the schema, or {WRITTEN!r}: when a message was written")
    when = "timestamp" if format == "raw" and time in (None, WRITTEN) else str(time)
    origin = KafkaOrigin(
        spark,
        checked_servers(servers, settings),
        checked_topics(topic),
        decoder(format, schema, when, avro),
        checked_start(start),
        checked_limit(messages_per_epoch),
        checked_gaps(gaps),
    )
    return _source(origin, origin.decoder.schema, when, lateness, idle, ahead, name)


def table(
    source: DataFrame | str | os.PathLike[str] | Callable[[], DataFrame],
    refresh: Duration | None = None,
    name: str | None = None,
    schema: pa.Schema | None = None,
) -> Table:
    """Rows without time, to join streams with: `s.join(table, on=...)`, any predicate, no window.

    source: a static DataFrame, a folder of columnar files or one such file, or a function that returns a static DataFrame.
    refresh: read it again that often, such as "10 minutes"; by default with every start. Not of a DataFrame, which keeps the
        list of files that it was made with.
    schema: its columns. Without it they are learnt from what is there when the query is built, which then must be there, also
        where a checkpoint has a version of it.
    """
    from headrace.sources.files import checked_schema
    from headrace.sources.tables import mounted_table, table_schema

    if name is not None and not isinstance(name, str):
        raise QueryTypeError(f"name must be text, what to call the table; found {describe_argument(name)}")
    every = None if refresh is None else parse_duration(refresh, "refresh")
    found: Any
    if isinstance(source, str | os.PathLike):
        found = mounted_table(source, may_be_away=schema is not None)
    else:
        from headrace.spark import dataframes

        found = dataframes.FunctionTable(source) if callable(source) else dataframes.DataFrameTable(source)
    if every is not None and not found.renewable:
        raise QueryError(
            "a DataFrame keeps the list of files that it was made with, so reading it again finds nothing new;"
            f" found refresh={refresh!r}; give hr.table the folder, or a function that returns the DataFrame"
        )
    given = checked_schema(schema)
    return Table(nodes.TableDefinition(name, table_schema(found.schema() if given is None else given), every, found))


def _source(
    origin: Any,
    schema: pa.Schema,
    time: str,
    lateness: Duration,
    idle: Duration | None,
    ahead: Duration | None,
    name: str | None,
) -> Stream:
    for what, value in (("time", time), *((("name", name),) if name is not None else ())):
        if not isinstance(value, str):
            how = "the name of a column" if what == "time" else "what to call the source"
            raise QueryTypeError(f"{what} must be text, {how}; found {describe_argument(value)}")
    source = Source(
        name,
        schema,
        time,
        parse_duration(lateness, "lateness", zero=True),
        None if idle is None else parse_duration(idle, "idle"),
        None if ahead is None else parse_duration(ahead, "ahead", zero=True),
        origin,
        stream_schema(schema, time),
    )
    return Stream(source)


def calibrate(query: Stream, slots: int = 2, tuples: int = 50_000) -> Figures:
    """Measure what a query costs and lets pass, for the option `figures` of `plan` and `explain`.

    slots: tasks per stage, on which the number of partials that are sent depends.
    tuples: how many tuples of each source are measured, from its first on.

    print(q.explain(slots=8, figures=hr.calibrate(q, slots=8)))
    """
    from headrace.stream import count_of_tuples, node_of
    from headrace.tools.calibrate import calibrate

    slots, tuples = check_slots(slots), count_of_tuples(tuples, "tuples")
    return calibrate([node_of(query)], [False], slots=slots, tuples=tuples)


def read_state(checkpoint: str | os.PathLike[str], operator: str, table: str) -> pa.Table:
    """Return what a run, live or stopped, holds in a state table of a processor, by substream and key.

    checkpoint: the folder of the run. operator: such as "apply-1", as plans and progress name it. table: its name in the class.
    The result has the columns of the table, and `substream` last.

    seen = hr.read_state("ckpt/", "apply-1", "seen")
    """
    from headrace.tools.inspect_state import read_state

    return read_state(checkpoint, operator, table)


def start(
    results: Sequence[tuple[Stream, sinks.AnySink]],
    *,
    checkpoint: str | os.PathLike[str],
    epoch: Duration = "1 second",
    slots: int | Literal["auto"] | None = None,
    order: Literal["transparent", "best-effort"] = "transparent",
    late: sinks.AnySink | None = None,
    errors: Literal["stop", "keep"] = "stop",
    show: bool | None = None,
    strategy: Literal["subquery", "operator", "query"] = "subquery",
    plan: Plan | None = None,
    policy: Policy | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    most_slots: int | None = None,
    once: bool = False,
    cache: int | str | None = None,
    splitters: int | None = None,
    physical_window: int | str | None = None,
) -> Run:
    """Start a run: one or more results, pairs of a stream and a sink, computed continuously on Spark.

    checkpoint: a folder that belongs to this run alone. A second start with the same folder resumes where the first ended.
    epoch: the shortest time between the beginnings of two epochs. "0 seconds": the next epoch begins at once.
    slots: tasks per stage; None: one per core of the session. "auto": few at first, then as many as the load needs. The number
        may differ from one start to the next.
    order: "transparent": exactly the sequential answer. "best-effort": the run does not wait, so joins may miss results and
        count windows give other results.
    late: a sink for late, rejected and failed tuples, with their source and the reason. None: they are only counted.
    errors: "stop": a tuple on which an expression fails ends the run. "keep": in `map`, `filter` and `case` such a tuple is
        counted and kept apart; in joins and aggregates it still ends the run.
    show: whether standard error shows a live line of progress. None: only if standard error is a terminal.
    strategy: "subquery"; or "operator" or "query", to compare. It may differ from one start to the next.
    plan: a plan that `q.plan` made, perhaps edited. The run uses its strategy, slots and shapes, and does not adapt.
    policy: how the run adapts: a `headrace.Policy`, a mapping of its fields, or the path of a TOML file with them.
    most_slots: the largest number of slots that "auto" and `set_slots` may choose. None: four per core of the session.
    once: take what is there now, epoch after epoch, then end the input: windows and checkpoint are closed, `wait` returns.
    cache: bytes that state tables may take on each machine between epochs, such as "4g". 0: every epoch reads the tables.
    splitters: tasks that read files and topics. None: one for each slot at first, then as the load needs.
    physical_window: bytes that such a task reads at once, such as "16 MiB". None: 16 MiB at first, then as the load needs. If
        splitters or physical_window is given, the run changes neither. No answer depends on them.

    run = hr.start([(busy, hr.sinks.parquet("busy/")), (all_calls, hr.sinks.memory())], checkpoint="ckpt/")
    """
    from headrace.run import start as starting

    return starting.start(
        results,
        checkpoint=checkpoint,
        epoch=epoch,
        slots=slots,
        order=order,
        late=late,
        errors=errors,
        show=show,
        strategy=strategy,
        plan=plan,
        policy=policy,
        most_slots=most_slots,
        once=once,
        cache=cache,
        splitters=splitters,
        physical_window=physical_window,
    )


def __dir__() -> list[str]:
    """What is meant to be used."""
    return sorted([*__all__, "testing", "__doc__", "__file__", "__name__"])


def __getattr__(name: str) -> Any:
    """`headrace.testing` is loaded when it is asked for."""
    if name == "testing":
        return importlib.import_module("headrace.testing")
    raise missing_function(name)


def load_ipython_extension(shell: Any) -> None:
    """Let an IPython shell show Arrow tables and schemas as HTML. In a notebook, importing headrace does this."""
    from headrace.showing.notebook import register

    register(shell)


def _register_in_notebook() -> None:
    """In a notebook the results of queries, which are Arrow tables, are shown as tables."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        load_ipython_extension(shell)


_register_in_notebook()
