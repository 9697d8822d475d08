"""Lookup of tuple numbers among marked numbers.

The numbers of one task in one epoch are consecutive (`headrace.task.block_writer.tuple_numbers`). If the numbers come
from few tasks, marks are looked up in a table of bits; otherwise they are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.arrow import Numbers

LOW_BITS = 26  # low bits of a number: they count the tuples of one task in one epoch
BITS_PER_NUMBER = 16  # table size for each number that is looked up or marked
FEWEST_BITS = 1_000_000

Bits = npt.NDArray[np.bool_]


def is_marked(numbers: Numbers, marks: Sequence[Numbers]) -> Bits:
    """Return which of the numbers are among the marks."""
    marked = np.concatenate([np.empty(0, np.int64), *marks])
    if not len(numbers) or not len(marked):
        return np.zeros(len(numbers), bool)
    tasks = pc.unique(pa.array(numbers >> LOW_BITS))
    within = (1 << LOW_BITS) - 1
    width = int((numbers & within).max()) + 1
    if len(tasks) * width > BITS_PER_NUMBER * (len(numbers) + len(marked)) + FEWEST_BITS:
        return np.isin(numbers, marked)
    marked = marked[(marked & within) < width]
    task = pc.index_in(pa.array(marked >> LOW_BITS), tasks)
    known = np.asarray(task.is_valid())
    table = np.zeros(len(tasks) * width, bool)
    table[_place(task.drop_null(), width) + (marked[known] & within)] = True
    return table[_place(pc.index_in(pa.array(numbers >> LOW_BITS), tasks), width) + (numbers & within)]


def _place(tasks: pa.Array, width: int) -> Numbers:
    return np.asarray(tasks).astype(np.int64) * width
