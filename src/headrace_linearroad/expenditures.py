# mypy: disable-error-code="no-untyped-def"
"""Expenditures of a car on an expressway on one of the last 69 days: a row of the history of tolls, or no answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.columnar.numba_cache import compile_cached
from headrace.processor import State
from headrace_linearroad.forms import OUTPUTS, TOLL_HISTORY
from headrace_linearroad.lookups import NO_HISTORY, NO_ROW, NOT_A_DAY, UNANSWERED, count_unanswered, mapped

QUESTIONS = ("qid", "time", "vid", "day", "xway")
DAYS = 69


class Expenditures(hr.Processor):
    """The processor of expenditures. history: an Arrow file with `forms.TOLL_HISTORY`, or None."""

    schema = OUTPUTS["expenditures"]
    tables = {"unanswered": UNANSWERED}  # noqa: RUF012

    def __init__(self, history: Path | None = None) -> None:
        self.history = None if history is None else str(history)

    def open(self, substream: int, substreams: int) -> None:
        self.columns = None if self.history is None else mapped(self.history)

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        given = {name: tuples[name].to_numpy() for name in QUESTIONS}
        paid, reasons = np.zeros(len(tuples), np.int64), np.full(len(tuples), NO_HISTORY, np.int8)
        if self.columns is not None:
            history = tuple(self.columns[name] for name in TOLL_HISTORY.names)
            look_up(given["vid"], given["day"], given["xway"], *history, paid, reasons)
        count_unanswered(state["unanswered"], reasons)
        rows = np.flatnonzero(reasons == 0)
        found = [given[name][rows].astype(np.int64) for name in QUESTIONS]
        columns = [tuples["ts"].take(pa.array(rows)), *map(pa.array, found), pa.array(paid[rows])]
        return pa.Table.from_arrays(columns, schema=self.schema)


@compile_cached
def look_up(vid, day, xway, vids, days, xways, tolls, paid, reasons):
    """Look up each question by binary search in the history, which is sorted by car, day and expressway."""
    for place in range(len(vid)):
        if not 1 <= day[place] <= DAYS:
            reasons[place] = NOT_A_DAY
            continue
        low, high = 0, len(vids)
        while low < high:
            middle = (low + high) // 2
            if vids[middle] != vid[place]:
                before = vids[middle] < vid[place]
            elif days[middle] != day[place]:
                before = days[middle] < day[place]
            else:
                before = xways[middle] < xway[place]
            if before:
                low = middle + 1
            else:
                high = middle
        found = low < len(vids) and vids[low] == vid[place] and days[low] == day[place] and xways[low] == xway[place]
        reasons[place] = 0 if found else NO_ROW
        paid[place] = tolls[low] if found else 0
