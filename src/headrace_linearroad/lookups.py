"""Shared code of expenditures and travel times: histories that are mapped into memory, and counts of unanswered
questions.

Histories are not state. Only the counts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.processor import ProcessorTable

Column = npt.NDArray[Any]

NO_HISTORY, NOT_A_DAY, NO_ROW, NOT_A_TRIP, NO_ROAD = range(1, 6)
REASONS = {
    NO_HISTORY: "no history was given",
    NOT_A_DAY: "a day outside 1..69",
    NO_ROW: "no row in the history of tolls",
    NOT_A_TRIP: "an invalid weekday, time or segment",
    NO_ROAD: "no history of segments for the expressway",
}
UNANSWERED = hr.StateTable(key=["reason"], columns=pa.schema([("reason", pa.int8()), ("n", pa.int64())]))


def count_unanswered(table: ProcessorTable, reasons: npt.NDArray[np.int8]) -> None:
    """Add the unanswered questions to the counts. reasons: one per question, 0 if it has an answer."""
    many = np.bincount(reasons, minlength=len(REASONS) + 1)
    many[0] = 0
    found = np.flatnonzero(many).astype(np.int8)
    if len(found):
        rows = table.numbers(found)
        table.columns["n"][rows] += many[found]
        table.touched(rows)


def mapped(path: str) -> Mapping[str, Column]:
    """Return the columns of an Arrow file of one record batch. All callers in a process share one mapping."""
    stat = Path(path).stat()
    return _mapped(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=8)
def _mapped(path: str, size: int, modified: int) -> Mapping[str, Column]:
    reader = pa.ipc.open_file(pa.memory_map(path))
    if reader.num_record_batches > 1:
        raise hr.DataError(f"the history {path!r} has {reader.num_record_batches} record batches; expected one")
    batch = reader.get_batch(0) if reader.num_record_batches else reader.schema.empty_table().combine_chunks()
    return {name: np.asarray(batch.column(name)) for name in reader.schema.names}
