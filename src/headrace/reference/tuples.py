"""Tuples as the reference sees them: their times, their sequence, and keys that are equal iff the values are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.types import TS, TS_TYPE, plain_type
from headrace.columnar.values import Key, comparable_values, sort_key
from headrace.errors import QueryTypeError

Numbers = npt.NDArray[np.int64]


def single_value(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


def times_of(tuples: pa.Table) -> Numbers:
    """Return event times in microseconds; a missing one reads as zero."""
    column = tuples[TS].combine_chunks().cast(pa.int64())
    return np.asarray(pc.fill_null(column, 0), np.int64)


def timestamps(times: Numbers) -> Any:
    return pa.array(times, pa.int64()).cast(TS_TYPE)


def row_numbers(rows: Iterable[int]) -> Numbers:
    return np.array(list(rows), np.int64)


def tuples_before(watermark: float, tuples: pa.Table) -> pa.Table:
    return tuples.filter(pa.array(times_of(tuples) < watermark))


def in_sequence(tuples: pa.Table) -> pa.Table:
    """Return the tuples by time, ties by their columns in the order of the schema."""
    keys = keys_of(tuples, [TS, *(name for name in tuples.column_names if name != TS)])
    return tuples.take(row_numbers(sorted(range(len(keys)), key=keys.__getitem__))).combine_chunks()


def keys_of(tuples: pa.Table, names: Sequence[str]) -> list[Key]:
    """Return for each tuple the key over these columns."""
    if not names:
        return [()] * tuples.num_rows
    columns = [[sort_key(value) for value in comparable_values(tuples[name])] for name in names]
    return list(zip(*columns, strict=True))


def same_kind(found: pa.DataType, declared: pa.DataType) -> bool:
    """Return whether streams carry both types as one type, so that no value needs to be converted."""
    try:
        return bool(plain_type(found, "") == plain_type(declared, ""))
    except QueryTypeError:  # streams do not carry the type
        return False
