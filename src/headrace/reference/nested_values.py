"""`unnest` in plain Python: tuple by tuple, and element by element."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.query import nodes


def unnest(node: nodes.Unnest, tuples: pa.Table) -> pa.Table:
    """Return a tuple for each element of the node's column, with the element in the column's place."""
    column = tuples[node.column].combine_chunks()
    if pa.types.is_struct(column.type):
        return _with_columns(node, tuples, _fields(column), [])
    rows: list[int] = []
    positions: list[int | None] = []
    elements: list[pa.Array] = []
    for row in range(len(column)):
        found = _elements_of(column[row])
        if found is not None and len(found):
            rows += [row] * len(found)
            positions += range(len(found))
            elements.append(found)
        elif node.outer:
            rows.append(row)
            positions.append(None)
            elements.append(pa.nulls(1, _element_type(column.type)))
    values = pa.concat_arrays(elements) if elements else pa.array([], _element_type(column.type))
    return _with_columns(node, tuples.take(pa.array(rows, pa.int64())), _fields(values), positions)


def _elements_of(value: Any) -> Any:
    """Return the elements of a list, or the entries of a map; None for a null."""
    if not value.is_valid or not pa.types.is_map(value.type):
        return value.values if value.is_valid else None
    return pa.array([{"key": key, "value": held} for key, held in value.as_py()], _element_type(value.type))


def _element_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    return kind.value_type


def _fields(values: Any) -> list[Any]:
    """Return the columns that values become: the fields of structs (all null for a null struct), or the values
    themselves."""
    if not pa.types.is_struct(values.type):
        return [values]
    return [pc.struct_field(values, number) for number in range(values.type.num_fields)]


def _with_columns(node: nodes.Unnest, tuples: pa.Table, made: list[Any], positions: list[int | None]) -> pa.Table:
    columns: list[Any] = []
    for name in tuples.column_names:
        columns += made if name == node.column else [tuples[name]]
    columns += [] if node.index is None else [pa.array(positions, pa.int64())]
    return pa.table(columns, names=node.schema.names)
