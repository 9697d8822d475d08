"""Keys as numbers: rows with equal keys get the same number.

Null is a value, NaN equals NaN and -0.0 equals 0.0. Each column is encoded exactly, and the codes are combined. DuckDB
handles types that Arrow cannot encode or compares differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import duck
from headrace.columnar.arrow import SAFE, Numbers

_ROW, _KEY = "__row", "__key"
_MOST = 1 << 62
_CODED = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
)


def key_numbers(table: pa.Table, by: Sequence[str]) -> Numbers:
    """Return a number for the key of every row; without columns, all rows have the same key."""
    columns = [table.column(name) for name in by]
    if not all(_is_coded(column) for column in columns):
        return _by_duckdb(table, by)
    total, most = np.zeros(table.num_rows, np.int64), 1
    for column in columns:
        codes, many = _codes(column)
        if most * many > _MOST:
            found, total = np.unique(total, return_inverse=True)
            most = len(found)
        total, most = total * many + codes, most * many
    return total


def _is_coded(column: pa.ChunkedArray) -> bool:
    return any(kind(column.type) for kind in _CODED) and int(column.nbytes) <= SAFE


def _codes(column: pa.ChunkedArray) -> tuple[Numbers, int]:
    """Return a code for every value, and a bound on the number of codes."""
    encoded: Any = pc.dictionary_encode(_comparable(column).combine_chunks(), null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return np.asarray(encoded.indices).astype(np.int64), max(len(encoded.dictionary), 1)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats with one bit pattern for equal values."""
    if not pa.types.is_floating(column.type):
        return column
    values = pc.add(column.cast(pa.float64()), 0.0)  # -0.0 + 0.0 = 0.0
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), pa.float64()), values)


def _by_duckdb(table: pa.Table, by: Sequence[str]) -> Numbers:
    rows = table.select(list(by)).append_column(_ROW, pa.array(np.arange(table.num_rows)))
    keys = ", ".join(duck.quote(name) for name in by)
    sql = f"SELECT {_ROW}, min({_ROW}) OVER (PARTITION BY {keys}) AS {_KEY} FROM __tuples"
    found = duck.run_select(sql, {duck.TUPLES: rows})
    numbers = np.empty(table.num_rows, np.int64)
    numbers[np.asarray(found.column(_ROW))] = np.asarray(found.column(_KEY))
    return numbers
