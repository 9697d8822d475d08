"""The tuples of one second while they are gathered: a column of numbers for every field, in the widths of the files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace_linearroad.forms import FIELDS, INPUT, NOTHING

SECOND = 1_000_000  # microseconds
PLACE = ("spd", "xway", "lane", "dir", "seg", "pos")  # of a car, in a report
QUESTION = ("qid", "sinit", "send", "dow", "tod", "day")
DTYPES = {name: INPUT.field(name).type.to_pandas_dtype() for name in FIELDS}


class Rows:
    """Room for so many tuples at most; what is not set of a tuple is what a report has there."""

    def __init__(self, second: int, most: int) -> None:
        self.second, self.count = second, 0
        self.columns = {name: np.empty(most, DTYPES[name]) for name in ("vid", *PLACE)}
        self.columns |= {name: np.full(most, NOTHING, DTYPES[name]) for name in QUESTION}
        self.columns["type"] = np.zeros(most, DTYPES["type"])

    def take(self, count: int) -> slice:
        """The next so many tuples, to be set."""
        self.count += count
        return slice(self.count - count, self.count)

    def add(self, tuples: dict[str, Any], count: int) -> None:
        """Tuples with all that they have; a field that they lack is nothing."""
        where = self.take(count)
        for name, column in self.columns.items():
            column[where] = tuples.get(name, NOTHING)

    def table(self, order: np.ndarray[Any, Any] | None = None) -> pa.Table:
        count = self.count
        columns = {name: column[:count] for name, column in self.columns.items()}
        if order is not None:
            columns = {name: column[order] for name, column in columns.items()}
        columns["time"] = np.full(count, self.second, DTYPES["time"])
        columns["ts"] = np.full(count, self.second * SECOND, np.int64)
        arrays = [_array(columns[field.name], field.type) for field in INPUT]
        return pa.Table.from_arrays(arrays, schema=INPUT)


def _array(column: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
