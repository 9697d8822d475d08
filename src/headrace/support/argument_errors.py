"""Descriptions of wrong arguments for error messages. Types of Spark and pandas are recognised by name, without
importing them.
"""

from __future__ import annotations

import os
from typing import Any


def argument_kind(value: Any) -> str:
    """Return the kind of a value if it is one of a few that users often confuse, otherwise "".

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
    """Return a short description of a value for an error: its kind if its text is uninformative or long.

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
    """Describe the content of a container: its text, or its size and an example if an element has a long text."""
    held = list(value.values() if isinstance(value, dict) else value)
    large = next((each for each in held if " " in argument_kind(each)), None)
    return f"{value!r:.100}" if large is None else f"of {len(held)}, such as {describe_argument(large)}"


def is_foreign_expression(value: Any) -> bool:
    """Return whether the value is an expression of another library."""
    return argument_kind(value) in ("pyspark Column", "polars Expr")


def instead_of_text(value: Any, example: str) -> str:
    """Return a hint on what to write where SQL text is expected."""
    kind = argument_kind(value)
    if kind == "pyspark Column":
        return f"write it as SQL text, such as {example!r}, or use the column on the DataFrame before headrace.stream(df, ...)"
    if kind == "polars Expr":
        return f"write it as SQL text, such as {example!r}"
    if kind == "function":
        return f"expressions are SQL text, not Python, so that they can be checked and routed; such as {example!r}"
    return f"write SQL text, such as {example!r}"


def instead_of_dataframe(value: Any) -> str:
    """Return a hint on how to create a Spark DataFrame from the value."""
    kind = argument_kind(value)
    match kind.split(" "):
        case ["pandas", "DataFrame"] | ["pyarrow", "Table"]:
            return "convert it: headrace.stream(spark.createDataFrame(it), time=...)"
        case ["polars", _]:
            return "convert it: headrace.stream(spark.createDataFrame(it.to_arrow()), time=...)"
        case ["pyspark", "RDD" | "PipelinedRDD"]:
            return "convert it: headrace.stream(it.toDF(), time=...)"
        case ["headrace", "Stream"]:
            return "the value is a stream already"
        case ["headrace", "Substreams"]:
            return "define what runs on each substream: .each(lambda t: ...) or .apply(processor) returns a stream"
        case ["dict"] if any(argument_kind(each) == "headrace Stream" for each in value.values()):
            return f"choose one of its streams, such as [{next(iter(value))!r}]"
        case ["dict" | "list" | "tuple"]:
            return "convert its rows: spark.createDataFrame(rows, 'a long, ...')"
    if kind == "path" or isinstance(value, str):
        return "for a folder of files use headrace.files(spark, folder, time=...), or spark.readStream"
    return "such as spark.readStream...load(), or spark.createDataFrame(...)"
