"""Values as plain Python objects that compare in the order of streams, and values as text.

Invariant: `sort_key(a) < sort_key(b)` iff a is before b in a sequence, and `sort_key(a) == sort_key(b)` iff they are
the same value. The reference and the comparison of results use this module. The engine does not: it sorts and groups in
DuckDB and Arrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.columnar import duck

Key = tuple[Any, ...]


def comparable_values(column: Any) -> list[Any]:
    """Return a column as Python values that compare correctly: times as numbers, text as bytes."""
    wanted = _comparable_type(column.type)
    plain: list[Any] = (column if wanted == column.type else column.cast(wanted)).to_pylist()
    return plain


@lru_cache(maxsize=1024)
def _comparable_type(kind: pa.DataType) -> pa.DataType:
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, _comparable_type(f.type)) for f in kind])
    if t.is_map(kind):
        return pa.map_(_comparable_type(kind.key_type), _comparable_type(kind.item_type))
    if t.is_list(kind):
        return pa.list_(_comparable_type(kind.value_type))
    if t.is_timestamp(kind) or t.is_time64(kind):
        return pa.int64()
    if t.is_date32(kind):
        return pa.int32()
    return pa.binary() if t.is_string(kind) else kind


def sort_key(value: Any, leaf: Callable[[Any], Any] = lambda number: number) -> Key:
    """Return a key for `<` and `==`: NaN above all numbers, null last, lists and structs compared element by
    element."""
    match value:
        case None:
            return (2,)
        case float() if math.isnan(value):
            return (1,)
        case list() | tuple():
            return (0, tuple(sort_key(element, leaf) for element in value))
        case dict():
            return (0, tuple(sort_key(element, leaf) for element in value.values()))
        case _:
            return (0, leaf(value))


def rows_text(table: pa.Table) -> list[str]:
    """Format rows as text, including times outside Python's range."""
    fields = [f"CAST({duck.quote(name)} AS VARCHAR)" for name in table.column_names]
    columns = duck.run_select(f"SELECT {', '.join(fields)} FROM __rows", {"__rows": table}).columns
    named = [[f"{name}={v}" for v in c.to_pylist()] for name, c in zip(table.column_names, columns, strict=True)]
    return [f"({', '.join(row)})" for row in zip(*named, strict=True)]
