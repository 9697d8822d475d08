"""Spark DataFrames as sources and tables, and their rows in the form that a job receives."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from headrace.control.splitter_count import Splitters
from headrace.errors import QueryTypeError, SourceError
from headrace.query.nodes import Source
from headrace.sources.protocol import TakenInput
from headrace.sources.tables import Part
from headrace.spark import compat
from headrace.support import shutdown
from headrace.support.argument_errors import describe_argument, instead_of_dataframe
from headrace.support.secrets import without_logins
from headrace.task.messages import pack
from headrace.task.splitters import SourcePiece, assign_pieces

# limits in bytes and rows, above which the content of a static DataFrame is not hashed at every start
MUCH, MANY = 64 << 20, 1_000_000
NOBODY_KNOWS = 1 << 60  # bytes that Spark reports when it cannot estimate, for example for rows from a program
BATCH = "source string, kind string, body binary"  # a physical window, or the description of a piece of a file or topic
PIECE_KIND, ROWS_KIND = "piece", "rows"  # values of `kind`
IDENTIFYING = ("path", "subscribe", "subscribePattern", "assign", "topic", "table", "host", "port")
# names of Spark's logical operators that process single rows
ROW_BY_ROW = ("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "Union")
Row = tuple[str, str, bytes]
Columns = Mapping[str, Collection[str]]  # source -> the columns to read, by the names that the source uses


def check_dataframe(df: Any) -> DataFrame:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        msg = "this DataFrame belongs to Spark Connect, which headrace does not support; use a classic session: headrace.session(...)"
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

    unread_schema = None

    def __init__(self, df: DataFrame) -> None:
        self.df = check_dataframe(df)
        self.spark = df.sparkSession

    @property
    def bounded(self) -> bool:
        return not self.df.isStreaming

    @property
    def readable_whole(self) -> bool:
        return self.bounded

    @property
    def driven(self) -> str:
        return "static" if self.bounded else "stream"

    @property
    def place(self) -> str | None:
        """Return a description of what the DataFrame reads, or a hash of its content if it is static and small.

        The description of a streaming DataFrame identifies its sources, because Spark's own log knows them by their
        order only.
        """
        if self.bounded:
            return self._content()
        leaves = self.df._jdf.queryExecution().analyzed().collectLeaves()
        found = [leaves.apply(index) for index in range(leaves.size())]
        return ", ".join(_reads(leaf) for leaf in found if leaf.isStreaming()) or None

    def _content(self) -> str | None:
        """Return the number of rows, the columns and an order-independent hash, or None if computing it would be
        expensive.
        """
        estimate = int(str(self.df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))
        if MUCH < estimate < NOBODY_KNOWS:
            return None
        hashed = self.df.selectExpr("xxhash64(struct(*)) hash").limit(MANY + 1)
        try:
            rows, total = hashed.selectExpr("count(*)", "sum(cast(hash as decimal(38, 0)))").head()
        except PySparkException:  # a column that cannot be hashed, or data that the run will reject
            return None
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.df.schema.fields)
        return None if rows > MANY else f"{rows} rows of ({columns}), hash {total or 0}"

    def table(self) -> pa.Table:
        return self.df.toArrow()

    def head(self, rows: int) -> pa.Table:
        return self.df.limit(rows).toArrow()


class DataFrameTable:
    """A static DataFrame as a table. Its content was fixed when it was created."""

    renewable = False

    def __init__(self, df: DataFrame) -> None:
        self._df = _static(df, "hr.table takes a static DataFrame, a folder or a function")
        self.place = "a DataFrame"

    def schema(self) -> pa.Schema:
        return arrow_schema(self._df.schema)

    def parts(self) -> list[Part]:
        return [(self.place, collect_rows(self._df))]


class FunctionTable:
    """A function that returns a static DataFrame. It is called whenever the table is read."""

    renewable = True

    def __init__(self, function: Callable[[], DataFrame]) -> None:
        self._function = function
        self.place = f"the function {getattr(function, '__name__', type(function).__name__)}"

    def schema(self) -> pa.Schema:
        return arrow_schema(self._asked().schema)

    def parts(self) -> list[Part]:
        return [(self.place, collect_rows(self._asked()))]

    def _asked(self) -> DataFrame:
        return _static(self._function(), f"{self.place} given to hr.table must return a static DataFrame")


def _static(df: Any, what: str) -> DataFrame:
    if not isinstance(df, DataFrame) or type(df).__module__.startswith("pyspark.sql.connect"):
        raise QueryTypeError(f"{what}; found {describe_argument(df)}")
    if df.isStreaming:
        raise QueryTypeError(f"{what}; found a streaming DataFrame; use headrace.stream for rows that arrive over time")
    return df


def collect_rows(df: DataFrame) -> pa.Table:
    """Return all rows of a DataFrame. An error has one line."""
    try:
        return df.toArrow()
    except Exception as error:  # an error of Spark, possibly wrapped by py4j
        raise SourceError(
            f"Spark could not read the DataFrame: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:500]}"
        ) from None


def _reads(leaf: Any) -> str:
    """Describe a streaming source by its kind and identifying options. Other options may contain secrets."""
    kind = leaf.getClass().getSimpleName()
    if not kind.startswith("StreamingRelation"):
        return str(kind)
    options = leaf.extraOptions() if kind == "StreamingRelationV2" else {}
    given = [f"{key}={value}" for key in IDENTIFYING if (value := options.get(key)) is not None]
    name = re.sub(r"(?<=^FileSource\[).*(?=\]$)", _one_spelling, leaf.sourceName())
    return without_logins(f"{name}{given or ''}")


def _one_spelling(found: re.Match[str]) -> str:
    """Return the path of a folder in a canonical spelling."""
    path = re.sub("^file:(//)?(?=/)", "", found[0])
    return path if re.match("[A-Za-z][A-Za-z0-9+.-]*:/", path) else str(Path(path).absolute())


def static_rows(sources: Mapping[str, Source], columns: Columns) -> RDD[Row]:
    """Return all rows of static DataFrames as rows of a batch."""
    parts = [to_rows(pack_dataframe(name, source.origin.df, columns[name])) for name, source in sources.items()]
    return parts[0] if len(parts) == 1 else parts[0].context.union(parts)


SAMPLED_TIMES = 256  # percentiles of the times of a DataFrame


def sample_times(df: DataFrame, column: str) -> list[list[int]]:
    """Return a sample of the times of a static DataFrame, each with about the rows that it represents; empty if it cannot
    be read. This is a pass over one column.
    """
    place = df.columns.index(column)
    times = df.toDF(*(f"c{index}" for index in range(len(df.columns)))).selectExpr(
        f"unix_micros(try_cast(c{place} as timestamp)) as t"
    )
    shares = ", ".join(f"{(2 * step + 1) / (2 * SAMPLED_TIMES)}D" for step in range(SAMPLED_TIMES))
    sampled = times.selectExpr(f"percentile_approx(t, array({shares}), 1000) as found", "count(t) as rows")
    try:
        [row] = sampled.collect()
    except Exception:  # an error of Spark, possibly wrapped by py4j; the tasks report what is wrong with the DataFrame
        return []
    return [[int(time), max(row["rows"] // SAMPLED_TIMES, 1)] for time in row["found"] or ()]


def pack_dataframe(name: str, df: DataFrame, wanted: Collection[str]) -> DataFrame:
    """Return a DataFrame as physical windows. Columns are passed by position, because mapInArrow fails on dots and
    backticks in names.

    Only wanted columns are included, unless Spark keeps state for the DataFrame: its content would depend on the wanted
    columns, and would no longer fit when they change between starts.
    """
    numbered = df.toDF(*(f"c{index}" for index in range(len(df.columns))))
    whole = df.isStreaming and not _keeps_nothing(df._jdf.queryExecution().analyzed())
    places = [place for place, column in enumerate(df.columns) if whole or column in wanted]
    chosen = numbered.select([f"c{place}" for place in places])
    return chosen.mapInArrow(functools.partial(_pack, name, tuple(df.columns[place] for place in places)), BATCH)


def _keeps_nothing(node: Any) -> bool:
    """Return whether a logical plan consists of sources and operators that process single rows."""
    children = [node.children().apply(place) for place in range(node.children().size())]
    return (not children or node.nodeName() in ROW_BY_ROW) and all(map(_keeps_nothing, children))


def _pack(name: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    shutdown.quiet_worker_exit()
    for batch in batches:
        if batch.num_rows:
            body = pack(pa.Table.from_batches([batch]).rename_columns(list(columns)))
            yield pa.RecordBatch.from_pydict({"source": [name], "kind": [ROWS_KIND], "body": [body]})


def stream_rows(sources: Mapping[str, Source], columns: Columns) -> DataFrame:
    """Return the streaming DataFrames of a query as one streaming DataFrame of physical windows."""
    return functools.reduce(
        DataFrame.union, [pack_dataframe(name, s.origin.df, columns[name]) for name, s in sources.items()]
    )


def piece_rows(sc: SparkContext, inputs: Sequence[TakenInput], splitters: Splitters) -> RDD[Row]:
    """Return descriptions of the pieces of files and topics as rows, with one partition per splitter."""
    dealt = [[_piece_row(each) for each in pieces] for pieces in assign_pieces(inputs, splitters)]
    return sc.parallelize(dealt, max(1, len(dealt))).flatMap(list)


def _piece_row(found: SourcePiece) -> Row:
    return found.source, PIECE_KIND, json.dumps(asdict(found.piece)).encode()  # type: ignore[call-overload]


def to_rows(df: DataFrame) -> RDD[Row]:
    return df.rdd.map(tuple)
