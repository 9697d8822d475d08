"""Buffers for the tuples of one second: one array for every field, with the integer widths of the files.

Reports are appended as they are generated. Questions are added last, some before all reports and some after them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace_linearroad.forms import FIELDS, INPUT, NOTHING, REPORT
from headrace_linearroad.generating.draws import Ints

SECOND = 1_000_000  # microseconds
PLACE = ("spd", "xway", "lane", "dir", "seg", "pos")  # fields of a car's place in a report
QUESTION = ("qid", "sinit", "send", "dow", "tod", "day")
DTYPES: dict[str, Any] = {name: INPUT.field(name).type.to_pandas_dtype() for name in FIELDS}


class Rows:
    """Buffers with space for at most `reports` reports and `questions` questions."""

    def __init__(self, second: int, reports: int, questions: int) -> None:
        self.second, self._begin, self._end = second, questions, questions
        most = reports + 2 * questions
        self.columns = {name: np.empty(most, DTYPES[name]) for name in ("type", "vid", *PLACE, *QUESTION)}

    def take(self, count: int) -> slice:
        """Reserve the next `count` reports. The caller sets their vid and place."""
        where = self._next(count)
        self.columns["type"][where] = REPORT
        for name in QUESTION:
            self.columns[name][where] = NOTHING
        return where

    def _next(self, count: int) -> slice:
        self._end += count
        return slice(self._end - count, self._end)

    def report(self, reports: dict[str, Ints]) -> None:
        where = self.take(len(reports["vid"]))
        for name in ("vid", *PLACE):
            self.columns[name][where] = reports[name]

    def ask(self, asked: dict[str, Ints], before: Ints) -> None:
        """Add questions, some before and some after the reports. Call it after all reports are added."""
        ahead = int(np.count_nonzero(before))
        self._begin -= ahead
        for where, which in (
            (slice(self._begin, self._begin + ahead), before),
            (self._next(len(before) - ahead), ~before),
        ):
            for name, column in self.columns.items():
                column[where] = asked[name][which]

    def table(self, order: Ints | None = None) -> pa.Table:
        columns = {name: column[self._begin : self._end] for name, column in self.columns.items()}
        if order is not None:
            columns = {name: column[order] for name, column in columns.items()}
        columns["time"] = np.full(len(self), self.second, DTYPES["time"])
        columns["ts"] = np.full(len(self), self.second * SECOND, np.int64)
        arrays = [as_array(columns[field.name], field.type) for field in INPUT]
        return pa.Table.from_arrays(arrays, schema=INPUT)

    def __len__(self) -> int:
        return self._end - self._begin


def as_array(column: Ints, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array on the same memory."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def numbers(table: pa.Table, name: str) -> Ints:
    """Return a column as a NumPy array without a copy, and without pandas, which Arrow's own conversion imports."""
    column = table[name].chunk(0)
    return np.frombuffer(column.buffers()[1], DTYPES[name])[column.offset : column.offset + len(column)]
