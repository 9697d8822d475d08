"""Error messages for calls that users of Spark, pandas and polars write by habit, with the verb of headrace to use
instead.

Invariant: there is one way to do a thing. A habit is never a second name for a verb; it is an error that names the
verb.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from headrace.errors import NoSuchVerb, QueryError, QueryTypeError
from headrace.support.argument_errors import describe_argument, is_foreign_expression
from headrace.support.durations import parse_duration

USAGES = {  # examples of calls of verbs
    "map": "s.map('kept', new='a + 1')",
    "select": "s.select('a', b='a + 1')",
    "with_columns": "s.with_columns(b='a + 1')",
    "rename": "s.rename({'old': 'new'})",
    "drop": "s.drop('a', 'b')",
    "filter": "s.filter('a > 1 and b < 2')",
    "union": "s.union(t)",
    "join": "s.join(t, on='l.a < r.b', within='1 minute'), or using='k' for a column that both sides have",
    "aggregate": "s.aggregate(by='k', window='1 minute', n='count(*)')",
    "distinct": "s.distinct(by='k', within='10 minutes')",
    "asof": "s.asof(t, by='k', within='1 hour')",
    "split": "s.split(8, by='k')",
    "unnest": "s.unnest('items')",
    "top": "s.top(3, by='k', order='a desc', window='1 minute')",
    "sample": "s.sample(0.1, by='k')",
    "case": "s.case('a > 1', 'b > 2')",
    "limit": "s.limit(10)",
    "head": "s.head(10)",
    "show": "s.show(10)",
    "peek": "s.peek(10, timeout='10 seconds')",
    "named": "s.named('alarms')",
    "start": "s.start(sink, checkpoint='folder')",
    "collect": "s.collect()",
}

_GROUP = f"use `aggregate(by=...)`, such as {USAGES['aggregate']}"
_COUNT = "use `aggregate`, such as s.aggregate(window='1 minute', n='count(*)')"
_FILTER = "use `filter`, such as s.filter('a > 1')"
_WITH = f"use `with_columns`, such as {USAGES['with_columns']}"
_RENAME = f"use `rename`, such as {USAGES['rename']}"
_UNNEST = "use `unnest`, such as s.unnest('items', outer=True, index='i')"
_DISTINCT = f"use `distinct`, such as {USAGES['distinct']}"
_JOIN = f"use `join`, such as {USAGES['join']}"
_TOP = f"use `top`, such as {USAGES['top']}"
_FIRST = "use `head` for the first rows of bounded input, or `peek` for what arrives; s.limit(10) is a stream of the first ten"
_ROWS = "use `collect`, which returns the results of bounded input as a pyarrow.Table: s.collect().to_pylist()"
_SINK = "use `start` with a sink, such as s.start(headrace.sinks.parquet('out/'), checkpoint='folder')"
_EACH = "use `start` with a sink, such as s.start(headrace.sinks.foreach(function), checkpoint='folder')"
_ORDER = "a stream is in order of event time; use `top` for the first of a window, or sort what `collect` returns"
_OWN_CODE = "use a processor for code of your own, such as s.split(8, by='k').apply(processor)"
_ENGINE = "it needs none: slots= of `start` and `collect` says how many tasks run, and a stream used twice is read once"

INSTEAD: Mapping[str, str] = {  # attribute -> hint
    **dict.fromkeys(["groupBy", "groupby", "group_by", "agg", "rollup", "cube", "value_counts", "pivot"], _GROUP),
    **dict.fromkeys(["sum", "mean", "avg", "min", "max", "median", "std", "nunique", "describe", "summary"], _GROUP),
    **dict.fromkeys(["rolling", "resample", "group_by_dynamic", "groupby_dynamic", "window", "over"], _GROUP),
    **dict.fromkeys(["count", "size", "shape", "height"], _COUNT),
    **dict.fromkeys(["where", "query", "loc", "iloc", "mask", "isin"], _FILTER),
    **dict.fromkeys(["dropna", "drop_nulls"], "use `filter`, such as s.filter('a IS NOT NULL')"),
    **dict.fromkeys(["withColumn", "withColumns", "with_column", "assign", "eval", "selectExpr", "transform"], _WITH),
    **dict.fromkeys(["fillna", "fill_null"], "use `with_columns`, such as s.with_columns(a='coalesce(a, 0)')"),
    **dict.fromkeys(["cast", "astype"], "use `with_columns`, such as s.with_columns(a='CAST(a AS BIGINT)')"),
    **dict.fromkeys(["withColumnRenamed", "withColumnsRenamed", "toDF"], _RENAME),
    **dict.fromkeys(["explode", "explode_outer", "posexplode", "flatten"], _UNNEST),
    **dict.fromkeys(["dropDuplicates", "drop_duplicates", "dropDuplicatesWithinWatermark", "unique"], _DISTINCT),
    **dict.fromkeys(["merge", "crossJoin", "join_where"], _JOIN),
    **dict.fromkeys(["join_asof", "merge_asof"], f"use `asof`, such as {USAGES['asof']}"),
    **dict.fromkeys(
        ["unionAll", "unionByName", "concat", "append", "vstack", "extend"], "use `union`, such as s.union(t)"
    ),
    **dict.fromkeys(["nlargest", "nsmallest", "top_k", "bottom_k", "rank", "row_number"], _TOP),
    **dict.fromkeys(["orderBy", "sort", "sort_values", "sort_index", "sortWithinPartitions"], _ORDER),
    **dict.fromkeys(["first", "take", "tail", "fetch", "slice"], _FIRST),
    **dict.fromkeys(["toPandas", "to_pandas", "to_arrow", "toArrow", "to_polars", "to_dict", "to_dicts"], _ROWS),
    **dict.fromkeys(["rows", "iter_rows", "iterrows", "itertuples", "values", "to_numpy", "toLocalIterator"], _ROWS),
    **dict.fromkeys(["write", "writeStream", "writeTo", "write_parquet", "to_parquet", "to_csv", "to_sql"], _SINK),
    **dict.fromkeys(["foreach", "foreachBatch", "forEachBatch"], _EACH),
    **dict.fromkeys(["flatMap", "mapInPandas", "mapInArrow", "map_batches", "transformWithState", "pipe"], _OWN_CODE),
    **dict.fromkeys(["printSchema", "dtypes", "info", "collect_schema"], "use `schema` or `columns`"),
    **dict.fromkeys(["cache", "persist", "repartition", "coalesce", "checkpoint", "hint", "lazy"], _ENGINE),
    "withWatermark": "use `lateness=` of headrace.stream, headrace.files or headrace.kafka",
    "session_window": "use `aggregate(session=...)`, such as s.aggregate(by='k', session='30 minutes', n='count(*)')",
    "alias": "the two sides of a join are `l` and `r`: on='l.a = r.b'",
}
READERS = {  # functions of other libraries: what to write
    **dict.fromkeys(
        ["read", "read_parquet", "scan_parquet", "readStream", "read_stream", "parquet"],
        "use headrace.files(spark, 'folder', time='ts', name='calls')",
    ),
    **dict.fromkeys(
        ["read_csv", "read_json", "scan_csv", "csv", "json"],
        "use headrace.stream(spark.readStream.schema(schema).csv('folder'), time='ts', name='calls')",
    ),
    "read_kafka": "use headrace.kafka(spark, 'host:9092', 'topic', time='ts', schema=schema)",
}
SINKS = {  # names of sinks that users expect and headrace does not have -> what to write instead
    **dict.fromkeys(
        ["postgres", "postgresql", "sqlite", "duckdb", "jdbc", "sql"],
        "use headrace.sinks.database('postgresql://user@host/db', 'table'); sqlite:/// and duckdb:/// are other URLs",
    ),
    **dict.fromkeys(
        ["csv", "json", "files", "file"],
        "use headrace.sinks.parquet('folder'), or headrace.sinks.foreach(function) to write other files",
    ),
}
WINDOW_WORDS = {  # arguments that other engines have for windows: ours
    **dict.fromkeys(["slide", "hop", "step", "advance"], "every"),
    **dict.fromkeys(["size", "length", "duration", "tumble"], "window"),
    **dict.fromkeys(["gap", "inactivity"], "session"),
}
EXPRESSIONS = frozenset(["col", "column", "lit", "expr", "functions", "when", "count", "sum", "window", "udf"])


def missing_verb(kind: str, name: str, columns: Iterable[str], verbs: Iterable[str]) -> NoSuchVerb:
    """Return the error for an unknown attribute. `kind`: the class, such as Stream; `verbs`: the existing attributes."""
    if name in columns:
        example = f"s.join(table, on='l.a = r.{name}')" if kind == "Table" else f"s.select('{name}')"
        return NoSuchVerb(
            f"`{kind}` has no attribute for column {name!r}: write columns as SQL text, such as {example}"
        )
    if name in INSTEAD:
        inside = " inside `each(lambda t: ...)`" if kind == "Substreams" else ""
        return NoSuchVerb(f"`{kind}` has no `{name}`; {INSTEAD[name]}{inside}")
    known = sorted(verb for verb in verbs if not verb.startswith("_"))
    if near := difflib.get_close_matches(name.lower(), known, 1):
        return NoSuchVerb(f"`{kind}` has no `{name}`; did you mean `{near[0]}`, such as {_usage(near[0])}?")
    return NoSuchVerb(f"`{kind}` has no `{name}`; it has {', '.join(known)}")


def missing_function(name: str) -> AttributeError:
    """Return the error for an unknown name in the module headrace."""
    instead = "; expressions are SQL text, such as s.filter('a > 1')" if name in EXPRESSIONS else ""
    if name in READERS:
        instead = f"; {READERS[name]}"
    return AttributeError(f"module 'headrace' has no attribute {name!r}{instead}")


def missing_sink(name: str) -> AttributeError:
    """Return the error for a name that the module headrace.sinks does not have."""
    instead = f"; {SINKS[name]}" if name in SINKS else ""
    return AttributeError(f"module 'headrace.sinks' has no attribute {name!r}{instead}")


def check_window_words(functions: Mapping[str, Any]) -> None:
    """Refuse a duration that was given to `aggregate` by the name that other engines have for it."""
    for name, given in functions.items():
        if name in WINDOW_WORDS and _is_duration(given):
            raise QueryTypeError(f"aggregate has no {name}=; found {given!r}; write {WINDOW_WORDS[name]}={given!r}")


def check_option_words(columns: Iterable[str], **options: Any) -> None:
    """Refuse a function that was given to `aggregate` under the name of an option. `columns`: names that `by` may have."""
    for name, given in options.items():
        if isinstance(given, str) and "(" in given and given not in columns:
            raise QueryTypeError(
                f"{name}= is an option of aggregate, so no result can be called {name!r}; found {name}={given!r}; choose"
                f" another name and rename the result: {name}_value={given!r} and .rename({{'{name}_value': {name!r}}})"
            )


def _is_duration(given: Any) -> bool:
    try:
        return parse_duration(given, "") > 0
    except QueryError:
        return False


def _usage(verb: str) -> str:
    return USAGES.get(verb, f"s.{verb}")


# --- special methods -------------------------------------------------------------------------------------------------

_COLLECTED = "s.collect() returns the results of bounded input as a pyarrow.Table"


def _is_true(stream: Any) -> bool:
    return True


def _get_item(stream: Any, key: Any) -> Any:
    if isinstance(key, str):
        raise QueryTypeError(f"a stream has no s[{key!r}]; write columns as SQL text, such as s.select({key!r})")
    if isinstance(key, list | tuple) and key and all(isinstance(name, str) for name in key):
        raise QueryTypeError(f"a stream has no s[{key!r}]; use s.select({', '.join(map(repr, key))})")
    if isinstance(key, slice | int):
        raise QueryTypeError(f"the tuples of a stream have no numbers; use s.limit(10) or s.head(10); {_COLLECTED}")
    raise QueryTypeError(f"a stream has no s[...]; found {describe_argument(key)}; {_FILTER}")


def _set_item(stream: Any, key: Any, value: Any) -> None:
    example = f"s.with_columns({key}='a + 1')" if isinstance(key, str) else USAGES["with_columns"]
    raise QueryTypeError(f"a stream never changes, so {key!r} cannot be set; {example} returns another stream")


def _delete_item(stream: Any, key: Any) -> None:
    raise QueryTypeError(
        f"a stream never changes, so {key!r} cannot be deleted; s.drop({key!r}) returns another stream"
    )


def _contains(stream: Any, item: Any) -> bool:
    raise QueryTypeError(f"a stream has no 'in'; for a column, write {item!r:.60} in s.columns")


def _length(stream: Any) -> int:
    raise QueryTypeError(f"a stream has no length, because it may have no end; {_COLLECTED}; to count tuples, {_COUNT}")


def _iterator(stream: Any) -> Any:
    raise QueryTypeError(f"a stream cannot be iterated, because it may have no end; {_COLLECTED}; {_EACH}")


SPECIAL: Mapping[str, Callable[..., Any]] = {  # assigned at run time, so that type checkers do not see them
    "__bool__": _is_true,
    "__getitem__": _get_item,
    "__setitem__": _set_item,
    "__delitem__": _delete_item,
    "__contains__": _contains,
    "__len__": _length,
    "__iter__": _iterator,
}


def answer_habits(kind: type) -> None:
    """Let a class of streams raise helpful errors for `s[...]`, `len(s)` and similar code, and for wrong arguments of
    its verbs.
    """
    for name, answer in SPECIAL.items():
        setattr(kind, name, answer)
    for name, usage in USAGES.items():
        if name in vars(kind):
            setattr(kind, name, _answering(getattr(kind, name), usage))


def _answering(verb: Callable[..., Any], usage: str) -> Callable[..., Any]:
    signature = inspect.signature(verb)

    def wrong_call(error: TypeError, given: tuple[Any, ...]) -> QueryTypeError:
        found = next((each for each in given if is_foreign_expression(each)), None)
        also = "" if found is None else f"; found {describe_argument(found)}"
        return QueryTypeError(f"{verb.__name__}: {error}{also}; write {usage}")

    def call(*given: Any, **named: Any) -> Any:
        try:
            signature.bind(*given, **named)
        except TypeError as error:
            raise wrong_call(error, given[1:]) from None
        return verb(*given, **named)

    # with the globals of the verb's module, for doctest
    own = FunctionType(call.__code__, verb.__globals__, closure=call.__closure__)
    return functools.wraps(verb)(own)
