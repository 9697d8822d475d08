"""What a user handed over instead of what was expected, named in errors. Knows Spark's and pandas' kinds by name only."""

from __future__ import annotations

import os
from typing import Any


def argument_kind(value: Any) -> str:
    """One of a few kinds that are easily taken for another, or "".

    >>> argument_kind(lambda t: t), argument_kind(3)
    ('function', '')
    """
    module, name = type(value).__module__.partition(".")[0], type(value).__name__
    if module in ("pyspark", "pandas", "polars", "pyarrow", "headrace"):
        return f"{module} {name}"
    if module == "builtins" and callable(value) and hasattr(value, "__name__"):
        return "function"
    if isinstance(value, dict | list | tuple):
        return name
    return "path" if isinstance(value, os.PathLike) else ""


def describe_argument(value: Any) -> str:
    """A value in an error: by its kind where its own text would say less or go on for pages.

    >>> describe_argument(3), describe_argument(lambda t: t), describe_argument({"b": "a + 1"})
    ('3', 'a lambda', "a dict {'b': 'a + 1'}")
    """
    kind = argument_kind(value)
    match kind.split(" "):
        case ["pyspark", "Column"]:
            return f"a Spark column, {value!r:.100}"
        case ["polars", "Expr"]:
            return f"a polars expression, {value!r:.100}"
        case ["headrace", "Stream"]:
            return "a stream"
        case ["headrace", "Substreams"]:
            return "a stream that was split"
        case [library, name]:
            return f"a {name} of {library}"
        case ["function"]:
            return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__name__}"
        case ["dict" | "list" | "tuple" as name]:
            return f"a {name} {_content(value)}"
    return f"{value!r:.100}"


def _content(value: Any) -> str:
    """Of a container: its text, unless it holds what takes pages to write."""
    held = list(value.values() if isinstance(value, dict) else value)
    large = next((each for each in held if " " in argument_kind(each)), None)
    return f"{value!r:.100}" if large is None else f"of {len(held)}, such as {describe_argument(large)}"


def is_foreign_expression(value: Any) -> bool:
    """Whether the value is an expression of another library."""
    return argument_kind(value) in ("pyspark Column", "polars Expr")


def instead_of_text(value: Any, example: str) -> str:
    """What to write where SQL text is expected."""
    kind = argument_kind(value)
    if kind == "pyspark Column":
        return f"write it as SQL text, such as {example!r}, or use the column on the DataFrame before headrace.stream(df, ...)"
    if kind == "polars Expr":
        return f"write it as SQL text, such as {example!r}"
    if kind == "function":
        return f"expressions are SQL text, not Python, so that they can be checked and routed; such as {example!r}"
    return f"write SQL text, such as {example!r}"


def instead_of_dataframe(value: Any) -> str:
    """How to get a Spark DataFrame from what was given."""
    kind = argument_kind(value)
    match kind.split(" "):
        case ["pandas", "DataFrame"] | ["pyarrow", "Table"]:
            return "make one of it: headrace.stream(spark.createDataFrame(it), time=...)"
        case ["polars", _]:
            return "make one of it: headrace.stream(spark.createDataFrame(it.to_arrow()), time=...)"
        case ["pyspark", "RDD" | "PipelinedRDD"]:
            return "make one of it: headrace.stream(it.toDF(), time=...)"
        case ["headrace", "Stream"]:
            return "it is a stream already"
        case ["headrace", "Substreams"]:
            return "say what runs on every substream: .each(lambda t: ...) or .apply(processor) gives a stream"
        case ["dict"] if any(argument_kind(each) == "headrace Stream" for each in value.values()):
            return f"choose one of its streams, such as [{next(iter(value))!r}]"
        case ["dict" | "list" | "tuple"]:
            return "make one of its rows: spark.createDataFrame(rows, 'a long, ...')"
    if kind == "path" or isinstance(value, str):
        return "for a folder of files use headrace.files(spark, folder, time=...), or spark.readStream"
    return "such as spark.readStream...load(), or spark.createDataFrame(...)"
