"""Stateless steps: maps and filters over one window of tuples, one after the other as the user wrote them."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace import duck
from headrace.kernels.evaluate import evaluate
from headrace.plan import FilterStep, MapStep, Step


def run_steps(table: pa.Table, steps: Sequence[Step]) -> pa.Table:
    """The tuples that come out of the steps. Steps are not fused: a later one never sees what an earlier dropped."""
    for step in steps:
        table = _filter(table, step) if isinstance(step, FilterStep) else _map(table, step)
    return table


def _filter(table: pa.Table, step: FilterStep) -> pa.Table:
    if table.num_rows == 0:
        return table
    mask = evaluate(f"SELECT {step.sql} AS keep FROM __tuples", {duck.TUPLES: table}, step.text)
    return table.filter(mask.column(0))


def _map(table: pa.Table, step: MapStep) -> pa.Table:
    columns = ", ".join(f"{sql} AS {duck.quote(name)}" for name, sql in (("ts", "ts"), *step.columns))
    return in_schema(evaluate(f"SELECT {columns} FROM __tuples", {duck.TUPLES: table}, step.text), step.schema)


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in exactly the declared types (DuckDB names the items of a list its own way)."""
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


def sequence(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The tuples in sequence: by `ts`, ties by the columns in order, nulls last, text by its bytes."""
    order = ", ".join(f"{duck.quote(name)} ASC NULLS LAST" for name in ("ts", *columns))
    if table.num_rows < 2:
        return table
    names = ", ".join(duck.quote(name) for name in table.column_names)
    return in_schema(duck.run(f"SELECT {names} FROM __tuples ORDER BY {order}", {duck.TUPLES: table}), table.schema)
