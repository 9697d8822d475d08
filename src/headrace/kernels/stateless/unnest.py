"""The unnesting of a column: one tuple for each element of a list or map, or the fields of a struct in its place.

Invariant: each output tuple has all other columns, and the `ts`, of its input tuple. An input tuple without elements
produces one tuple with nulls if the step is `outer`, and none otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import arrow
from headrace.columnar.arrow import Numbers
from headrace.plan import UnnestStep

MOST_ROWS = 1_000_000  # in one table, unless one tuple has more elements


def unnest_rows(table: pa.Table, step: UnnestStep) -> Iterator[pa.Table]:
    """Yield the tuples that the step makes of a table, at most about `MOST_ROWS` at a time."""
    for batch in table.to_batches():
        values, others = batch.column(step.column), pa.Table.from_batches([batch]).drop_columns([step.column])
        place = batch.schema.get_field_index(step.column)
        if pa.types.is_struct(values.type):
            yield _in_place(others, place, step, values.flatten(), None)
            continue
        lists = _as_lists(values)
        for start, stop in _pieces(_lengths(lists)):
            rows = stop - start
            parents, made, position = _elements(lists.slice(start, rows), outer=step.outer)
            yield _in_place(arrow.take_rows(others.slice(start, rows), parents), place, step, made, position)


def _as_lists(values: Any) -> Any:
    """Return a map as a list of structs; return a list unchanged."""
    kind = values.type
    if not pa.types.is_map(kind):
        return values
    return values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))


def _lengths(lists: Any) -> Numbers:
    """The number of elements of each list; a null has none."""
    return np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)


def _pieces(lengths: Numbers) -> Iterator[tuple[int, int]]:
    """Yield bounds of ranges with at most `MOST_ROWS` elements, or with one list."""
    pieces = np.cumsum(np.maximum(lengths, 1)) // MOST_ROWS
    return pairwise([0, *(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(lengths)])


def _elements(lists: Any, *, outer: bool) -> tuple[Numbers, list[Any], Any]:
    """Return for each element the number of its list; the elements as columns; their positions."""
    lengths = _lengths(lists)
    repeats = np.maximum(lengths, 1) if outer else lengths
    parents = np.repeat(np.arange(len(lengths)), repeats)
    empty = np.repeat(lengths == 0, repeats)
    values = pc.list_flatten(lists)
    if empty.any():
        values = values.take(pa.array(np.cumsum(~empty) - 1, mask=empty))
    position = np.arange(len(parents)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    made = values.flatten() if pa.types.is_struct(values.type) else [values]
    return parents, made, pa.array(position, mask=empty)


def _in_place(others: pa.Table, place: int, step: UnnestStep, made: list[Any], position: Any) -> pa.Table:
    """Return the other columns, with the unnested ones in their place and the position last."""
    names, columns = others.column_names, others.columns
    elements = [_typed(values, field.type) for values, field in zip(made, step.elements, strict=True)]
    names = [*names[:place], *step.elements.names, *names[place:]]
    columns = [*columns[:place], *elements, *columns[place:]]
    if step.index is None:
        return pa.table(columns, names=names)
    return pa.table([*columns, position], names=[*names, step.index])


def _typed(values: Any, kind: pa.DataType) -> Any:
    """Return values in exactly the declared type, because files and DuckDB have their own names for the items of a
    list."""
    return values if values.type.equals(kind) else values.cast(kind)
