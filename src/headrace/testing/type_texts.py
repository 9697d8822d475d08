"""Types that a test writes as text.

Invariant: every type of a stream's column is found again by the text that `print(stream)` shows for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pyarrow as pa

from headrace.columnar import duck
from headrace.columnar.types import plain_type

_NESTED = re.compile(r"(list|array|struct|map)\s*<(.*)>", re.DOTALL)
_TIMESTAMP = re.compile(r"timestamp\[(\w+), tz=([^\]]+)\]")


def type_of_text(text: str, column: str) -> pa.DataType | None:
    """Return the type with this name in Arrow, Spark or DuckDB, or None. `column`: the name of the column, for errors.

    >>> [str(type_of_text(text, "k")) for text in ("list<item: string>", "array<string>", "varchar[]", "strng")]
    ['list<item: string>', 'list<item: string>', 'list<item: string>', 'None']
    """
    text = text.strip()
    try:
        return pa.type_for_alias(text)
    except ValueError:
        pass
    if found := _NESTED.fullmatch(text):
        return _nested_type(found[1], list(_split(found[2])), column)
    if found := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    return _duck_type(text.replace("decimal128(", "decimal("), column)


def _nested_type(kind: str, parts: list[str], column: str) -> pa.DataType | None:
    """Return the type of these parts: the elements of a list, key and value of a map, or the fields of a struct."""
    names, texts = [""] * len(parts), parts
    if kind == "struct" or parts[0].startswith("item:"):
        names, _, texts = (list(each) for each in zip(*(part.partition(":") for part in parts), strict=True))
    types = [type_of_text(each, column) for each in texts]
    if None in types or len(types) != {"struct": len(types), "map": 2}.get(kind, 1):
        return None
    if kind == "struct":
        return pa.struct(list(zip(map(str.strip, names), types, strict=True)))
    return pa.map_(*types) if kind == "map" else pa.list_(*types)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that are not in brackets."""
    depth, start = 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "<([") - (sign in ">)]")
        if sign == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def _duck_type(text: str, column: str) -> pa.DataType | None:
    try:
        return plain_type(duck.run_select(f"SELECT CAST(NULL AS {text}) AS c", {}).schema.field("c").type, column)
    except duckdb.Error:
        return None
