"""The tuples of one second while they are gathered: a column of numbers for every field, in the widths of the files.

Reports are put down one after the other as they are made; questions come last, some before all reports and some behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace_linearroad.forms import FIELDS, INPUT, NOTHING, REPORT
from headrace_linearroad.generating.draws import Ints

SECOND = 1_000_000  # microseconds
PLACE = ("spd", "xway", "lane", "dir", "seg", "pos")  # of a car, in a report
QUESTION = ("qid", "sinit", "send", "dow", "tod", "day")
DTYPES: dict[str, Any] = {name: INPUT.field(name).type.to_pandas_dtype() for name in FIELDS}


class Rows:
    """Room for so many reports and questions at most."""

    def __init__(self, second: int, reports: int, questions: int) -> None:
        self.second, self._begin, self._end = second, questions, questions
        most = reports + 2 * questions
        self.columns = {name: np.empty(most, DTYPES[name]) for name in ("type", "vid", *PLACE, *QUESTION)}

    def take(self, count: int) -> slice:
        """The next so many reports, whose vid and place are to be set."""
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
        """Questions with all their fields, and which of them stand before the reports; when all reports are there."""
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
    """Without a copy."""
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def numbers(table: pa.Table, name: str) -> Ints:
    """A column of a table as above, without a copy, and without pandas, which Arrow's own way loads."""
    column = table[name].chunk(0)
    return np.frombuffer(column.buffers()[1], DTYPES[name])[column.offset : column.offset + len(column)]
