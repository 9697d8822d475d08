"""headrace: continuous queries over data streams, in parallel on Apache Spark, with exactly the sequential answer.

Examples:
    >>> import headrace as hr
    >>> calls = hr.testing.source("calls", {"caller": "string"})
    >>> counts = calls.aggregate(by=["caller"], window="10 seconds", n="count(*)")
    >>> steps = hr.testing.play(counts, [hr.testing.epoch(calls=[(1, "ann"), (9, "ann")]), hr.testing.end()])
    >>> steps[1].expect([{"caller": "ann", "n": 2}])
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
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
from headrace.stream import Stream, Table, node_of
from headrace.support.argument_errors import describe_argument
from headrace.support.durations import Duration, parse_duration
from headrace.support.habits import missing_function
from headrace.support.limits import check_slots
from headrace.support.secrets import Secret, secret
from headrace.support.version import __version__

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Sequence

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
    "join",
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
    """Return a Spark session with the settings that headrace needs: the one that exists, or a new one.

    Args:
        slots: how many tasks run at once, if no master is given.
        master: the address of a Spark master, such as "spark://host:7077". None: this machine, `local[slots]`.
        **config: further settings of Spark; spark__ui__enabled="true" sets spark.ui.enabled. Settings that are
            secret by name, and those that are `hr.secret("NAME")`, are kept out of the arguments of Spark's process.

    Returns:
        A `SparkSession`.

    Raises:
        QueryError: the number of slots is out of range.

    Examples:
        >>> spark = hr.session(slots=2)
        >>> spark.sparkContext.defaultParallelism
        2
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

    Args:
        df: the DataFrame.
        time: the column with the event time, a timestamp; the stream calls it `ts`.
        lateness: how far a tuple may lag behind the largest `ts` of the epochs before its own without being late.
        idle: after this much wall-clock time without a tuple the other streams stop waiting for this one; its tuples
            may then be late when it resumes. None: never.
        ahead: a tuple that is further than this past the largest `ts` committed is rejected. None: no limit.
        name: what logs, progress and results of late tuples call the source. None: source-1, source-2, ...

    Returns:
        The stream.

    Raises:
        QueryError: the column does not exist or is no timestamp, a type is not supported, or a duration is invalid.

    Examples:
        >>> df = spark.createDataFrame(pa.table({"at": pa.array([1], pa.timestamp("us", "UTC")), "caller": ["ann"]}))
        >>> calls = hr.stream(df, time="at", lateness="2 seconds", name="calls")
        >>> calls.columns
        ['ts', 'caller']
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

    Args:
        spark: a session.
        folder: the path of the folder.
        time: the column with the event time, a timestamp; the stream calls it `ts`.
        lateness: how far a tuple may lag behind the largest `ts` of the epochs before its own without being late.
        files_per_epoch: how many files one epoch takes. None: as many as fit.
        name: what logs, progress and results of late tuples call the source. None: source-1, source-2, ...
        idle: after this much wall-clock time without a tuple the other streams stop waiting for this one; its tuples
            may then be late when it resumes. None: never.
        ahead: a tuple that is further than this past the largest `ts` committed is rejected. None: no limit.
        schema: the columns of the files. None: the columns of the first file, which then must exist.
        order: "modified": files are taken by the time of their last change, then by name. "name": by name.

    Returns:
        The stream.

    Raises:
        QueryError: the folder does not exist, has no file while no schema is given, or an option is invalid.

    Examples:
        >>> calls = hr.files(spark, "calls/", time="ts", name="calls")
        >>> calls.columns
        ['ts', 'caller', 'seconds']
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
    """Return a stream over one or more topics of Kafka. Each partition has its own order, and `lateness` applies within
    it.

    A message that cannot be decoded follows `errors=` of `start` and `collect`: it ends the run, or with "keep" it is
    counted, and sent to the `late` sink if one is given.

    Args:
        spark: a session.
        servers: the brokers as host:port; several as a list, or with commas.
        topic: the name of a topic, or a list of names.
        time: a field of the schema, or "@timestamp": when the message was written. None: "@timestamp", only with
            format="raw".
        schema: the fields that are read from a message. None with format="raw", which has key, value, headers, topic,
            partition, offset and timestamp.
        format: "json" (an object per message), "avro" (a record, with the schema in `avro`), "arrow" (an Arrow stream,
            any number of rows per message: the fastest) or "raw".
        lateness: how far a tuple may lag behind the largest `ts` of its partition without being late.
        start: where a new checkpoint begins: "earliest", "latest" or a datetime with a zone.
        name: what logs, progress and results of late tuples call the source. None: source-1, source-2, ...
        idle: a partition that is silent for this long no longer holds the others back; its tuples may then be late when
            it resumes. None: an empty partition holds the others back forever.
        ahead: a tuple that is further than this past the largest `ts` committed is rejected. None: no limit.
        messages_per_epoch: roughly how many messages one epoch takes, of all partitions together, and at least one of
            each. None: as many as fit.
        avro: the Avro schema of format="avro", as JSON text or as a dict. None with the other formats.
        gaps: "stop": offsets that retention removed before they were read end the run. "count": they are skipped and
            counted.
        settings: settings of librdkafka, such as for TLS and SASL, with `hr.secret("NAME")` for secret values. They are
            not stored, and no text shows secret values. None: no further settings.

    Returns:
        The stream.

    Raises:
        QueryError: an option is invalid.
        MissingLibrary: the extra `kafka` is not installed.

    Examples:
        >>> schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("caller", pa.string())])
        >>> calls = hr.kafka(spark, "localhost:9092", "calls", time="at", schema=schema, lateness="2 seconds")
        >>> calls.columns
        ['ts', 'caller']
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


def join(
    streams: Mapping[str, Stream],
    *more: object,
    on: str | None = None,
    within: Duration | Mapping[str, Duration] | None = None,
    **others: object,
) -> Stream:
    """Return the combinations of one tuple of each stream that satisfy a predicate and lie within each other's windows.

    The latest tuple of a combination looks back: every other tuple is at most the window of its alias older. The order of
    arrival does not matter. A combination is emitted in the epoch in which the last of its tuples arrives.

    The result has `ts`, the smallest of the combination, then the columns of every stream in the given order; a name that
    occurs in several streams, such as `ts`, gets the alias and _ as prefix.

    Args:
        streams: 2 to 8 streams by alias. A stream may have several aliases.
        on: any predicate over the columns of the aliases, such as "a.id = b.id and b.part = c.part and a.x < c.x".
        within: how much older than the latest tuple of a combination the others may be, such as "60 seconds", or a dict with
            the window of each alias.
        *more: nothing.
        **others: nothing; `last` and `how` belong to joins of two streams.

    Returns:
        A stream of combinations.

    Raises:
        QueryError: an alias or a window is invalid or missing, or two columns would have one name.
        ExpressionError: the predicate is refused, or names a column without its alias.

    Examples:
        >>> orders = hr.testing.source("orders", {"id": "int64", "item": "string"})
        >>> payments = hr.testing.source("payments", {"id": "int64", "cents": "int64"})
        >>> parcels = hr.testing.source("parcels", {"id": "int64", "city": "string"})
        >>> sold = hr.join(
        ...     {"o": orders, "p": payments, "s": parcels}, on="o.id = p.id and p.id = s.id", within="60 seconds"
        ... )
        >>> given = hr.testing.epoch(
        ...     orders=[(1, 7, "tea")], payments=[(9, 7, 350)], parcels=[(30, 7, "Oslo"), (99, 7, "Rome")]
        ... )
        >>> [step] = hr.testing.play(sold, [given])
        >>> step.expect([{"item": "tea", "cents": 350, "city": "Oslo", "s_ts": 30}])
    """
    from headrace.query.nway_arguments import nway_join

    if not isinstance(streams, Mapping) or more:
        found = ", ".join(describe_argument(each) for each in (streams, *more))
        raise QueryTypeError(
            f"join takes streams by alias, as a dict; found {found}; write"
            " hr.join({'a': a, 'b': b}, on=..., within=...)"
        )
    aliased = {alias: node_of(stream, f"the value of {alias!r} must be") for alias, stream in streams.items()}
    return Stream(nway_join(aliased, on, within, others))


def table(
    source: DataFrame | str | os.PathLike[str] | Callable[[], DataFrame],
    refresh: Duration | None = None,
    name: str | None = None,
    schema: pa.Schema | None = None,
) -> Table:
    """Return rows without time, which streams are joined with: `s.join(table, on=...)`.

    Args:
        source: a static DataFrame, a folder of columnar files or one such file, or a function that returns a static
            DataFrame.
        refresh: how often it is read again, such as "10 minutes". None: with every start. A DataFrame cannot be read
            again, because it keeps the list of files that it was made with.
        name: what logs and progress call the table. None: table-1, table-2, ...
        schema: its columns. None: they are read from the source when the query is built, so the source must exist then,
            even if a checkpoint has a version of the table.

    Returns:
        The table.

    Raises:
        QueryError: the folder does not exist while no schema is given, or `refresh` is given for a DataFrame.

    Examples:
        >>> hr.table("zones/", refresh="10 minutes", name="zones").columns
        ['number', 'zone']
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
    """Measure what a query costs and how many tuples it lets pass, for the option `figures` of `plan` and `explain`.

    Args:
        query: a stream over bounded input, or over input that already has tuples.
        slots: tasks per stage, on which the number of partial results depends that are sent.
        tuples: how many tuples of each source are measured, from its first one.

    Returns:
        The measured figures, a `Figures`.

    Raises:
        QueryError: an option is invalid.

    Examples:
        >>> table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "x": [1, 2]})
        >>> query = hr.testing.table_stream(table, name="xs").filter("x > 1")
        >>> figures = hr.calibrate(query, slots=8)
        >>> figures.passing
        {'filter-1 to result-0-1': 1.0, 'xs to filter-1-1': 1.0, 'xs to result-0-1': 0.5}
        >>> print(query.plan(slots=8, figures=figures).headline)
        strategy subquery, 8 slots, 0 shuffles
    """
    from headrace.stream import count_of_tuples
    from headrace.tools.calibrate import calibrate

    slots, tuples = check_slots(slots), count_of_tuples(tuples, "tuples")
    return calibrate([node_of(query)], [False], slots=slots, tuples=tuples)


def read_state(checkpoint: str | os.PathLike[str], operator: str, table: str) -> pa.Table:
    """Return the rows that a run, live or stopped, holds in a state table of a processor, by substream and key.

    Args:
        checkpoint: the folder of the run.
        operator: the name of the operator, such as "apply-1", as plans and progress show it.
        table: the name of the table in the class of the processor.

    Returns:
        A `pyarrow.Table` with the columns of the table, and `substream` last.

    Raises:
        QueryError: there is no such operator or table.
        StateError: the folder is no checkpoint, or its run has not finished an epoch.

    Examples:
        >>> class Seen(hr.Processor):
        ...     schema = pa.schema([("ts", pa.timestamp("us", "UTC"))])
        ...     tables = {"seen": hr.StateTable(key=["caller"], columns=pa.schema([("caller", pa.string())]))}
        ...
        ...     def process(self, tuples, state):
        ...         state["seen"].put(tuples.select(["caller"]).group_by("caller").aggregate([]))
        >>> query = hr.files(spark, "calls/", time="ts").split(4, by=["caller"]).apply(Seen())
        >>> query.start(hr.sinks.memory(), checkpoint="ckpt/", once=True).wait()
        True
        >>> sorted(hr.read_state("ckpt/", "apply-1", "seen")["caller"].to_pylist())
        ['ann', 'bob']
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
    until_idle: bool = False,
    cache: int | str | None = None,
    splitters: int | None = None,
    physical_window: int | str | None = None,
) -> Run:
    """Start a run with one or more results, pairs of a stream and a sink, computed continuously on Spark.

    Args:
        results: pairs of a stream and the sink that gets its results.
        checkpoint: a folder that belongs to this run alone. A second start with the same folder resumes where the first
            ended.
        epoch: the shortest time between the beginnings of two epochs. "0 seconds": the next epoch begins at once.
        slots: tasks per stage. None: one per core of the session. "auto": few at first, then as many as the load needs.
            The number may differ from one start to the next.
        order: "transparent": exactly the sequential answer. "best-effort": the run does not wait, so joins may miss
            results and count windows give other results.
        late: a sink for late, rejected and failed tuples, with their source and the reason. None: they are only
            counted.
        errors: "stop": a tuple on which an expression fails, or a message that cannot be decoded, ends the run. "keep":
            such a message, or a tuple that fails in `map`, `filter` or `case`, is counted, and sent to the `late` sink
            if one is given; a tuple that fails in a join or an aggregate still ends the run.
        show: whether standard error shows a live line of progress. None: only if standard error is a terminal.
        strategy: "subquery", or "operator" or "query" to compare. It may differ from one start to the next.
        plan: a plan that `q.plan` made, perhaps edited. The run uses its strategy, slots and shapes, and does not
            adapt. None: a new plan.
        policy: how the run adapts: a `headrace.Policy`, a mapping of its fields, or the path of a TOML file with them.
            None: the defaults of `headrace.Policy`.
        most_slots: the largest number of slots that "auto" and `set_slots` may choose. None: four per core of the
            session.
        once: True: take what is there now, epoch after epoch, then end the input: windows and checkpoint are closed,
            `wait` returns. False: run until `stop`.
        until_idle: True: stop, as `stop` does, when all input is processed and no tuple has come for 2 seconds. The
            next start continues. False: run until `stop`.
        cache: bytes that state tables may take on each machine between epochs, such as "4g". 0: every epoch reads the
            tables. None: the environment variable `HEADRACE_CACHE_BYTES`, or 4 GiB without it.
        splitters: tasks that read files and topics. None: one for each slot at first, then as the load needs.
        physical_window: bytes that such a task reads at once, such as "16 MiB". None: 16 MiB at first, then as the load
            needs. If splitters or physical_window is given, the run changes neither. No answer depends on them.

    Returns:
        The run, which is in progress.

    Raises:
        QueryError: an option is invalid.
        StateError: the checkpoint belongs to another run or another query, or is damaged.

    Examples:
        >>> calls = hr.files(spark, "calls/", time="ts")
        >>> long = calls.filter("seconds > 60").named("long")
        >>> results = [(long, hr.sinks.parquet("long/")), (calls, hr.sinks.memory())]
        >>> run = hr.start(results, checkpoint="ckpt/", once=True)
        >>> run.wait()
        True
        >>> run.progress.results
        {'long': 1, 'result-1': 3}
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
        until_idle=until_idle,
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
