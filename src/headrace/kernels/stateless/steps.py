"""Stateless steps: maps and filters over one window of tuples, in the order of the query. (For splits:
`headrace.kernels.stateless.split`.)

Each tuple fails or not on its own: it fails iff the step fails on a table with only that tuple. Tuples beside it do not
matter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow, duck
from headrace.columnar.sorting import sort_order
from headrace.columnar.types import TS
from headrace.kernels.stateless.evaluate import evaluate, try_evaluate
from headrace.plan import FilterStep, MapStep, Named
from headrace.plan.columns_read import column_of

MOST_REASONS = 200  # failed tuples of one table for which the reason is queried, one query each
LONGEST_REASON = 300  # characters of a reason
ROW = "__row"
Plain = MapStep | FilterStep


def run_step(table: pa.Table, step: Plain, *, keep: bool) -> tuple[pa.Table, FailedTuples | None]:
    """Return the output of a step and the tuples that failed in it. Unless `keep`, a failing tuple raises an error.

    Steps are not fused: a later step never sees a tuple that an earlier one dropped.
    """
    rest, found, failed = evaluate_step(table, step, keep=keep)
    return _outcome(rest, step, found), failed


def evaluate_step(table: pa.Table, step: Plain, *, keep: bool) -> tuple[pa.Table, pa.Table | None, FailedTuples | None]:
    """Return the tuples that do not fail, the values of the step's expressions for them, and the tuples that fail.

    Without tuples nothing is evaluated, because DuckDB computes some constants even for an empty table.
    """
    if not table.num_rows:
        return table, None, None
    if not _computed(step):
        return table, _beside(table, step, None), None
    if not keep:
        return table, _beside(table, step, evaluate(_sql(step), {duck.TUPLES: table}, step.text)), None
    found = try_evaluate(_sql(step), {duck.TUPLES: table}, step.text)
    if isinstance(found, pa.Table):
        return table, _beside(table, step, found), None
    failing = _failing(table, step)
    rest = table.filter(pa.array(~failing))
    return rest, evaluate_step(rest, step, keep=False)[1], FailedTuples(step, table.filter(pa.array(failing)))


def _sql(step: Plain) -> str:
    columns = ", ".join(f"{sql} AS {duck.quote(name)}" for name, sql in _computed(step))
    return f"SELECT {columns} FROM __tuples"


@functools.lru_cache(maxsize=1024)
def _computed(step: Plain) -> Named:
    """Return the expressions that DuckDB computes. Columns that a map only passes on are not included, unless they are
    nested: DuckDB rejects some nested values."""
    if isinstance(step, FilterStep):
        return (("keep", step.sql),)
    nested = {field.name for field in step.schema if pa.types.is_nested(field.type)}
    return tuple((name, sql) for name, sql in step.columns if name in nested or column_of(sql) is None)


def _beside(table: pa.Table, step: Plain, found: pa.Table | None) -> pa.Table | None:
    """Return the computed values with the columns that a map passes on; None if it computes nothing."""
    if isinstance(step, FilterStep):
        return found
    known = {name.lower(): table.column(name) for name in table.column_names}
    made = {} if found is None else dict(zip(found.column_names, found.columns, strict=True))
    columns = {name: made[name] if name in made else known[column_of(sql) or ""] for name, sql in step.columns}
    return pa.table({TS: known[TS], **columns})


def _outcome(table: pa.Table, step: Plain, found: pa.Table | None) -> pa.Table:
    if isinstance(step, MapStep):
        return step.schema.empty_table() if found is None else in_schema(found, step.schema)
    return table if found is None else table.filter(found.column(0))


# --- steps that some tuples fail -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailedTuples:
    """Tuples as they were before the step in which they failed."""

    step: Plain
    tuples: pa.Table

    def reasons(self) -> list[str]:
        """Return the reason for each tuple. If many failed, the later ones are not examined."""
        asked = [_why(self.tuples.slice(row, 1), self.step) for row in range(min(self.tuples.num_rows, MOST_REASONS))]
        return asked + [f"as {MOST_REASONS} others that came with it"] * (self.tuples.num_rows - len(asked))


def _failing(table: pa.Table, step: Plain) -> npt.NDArray[np.bool_]:
    """Return which tuples fail: those that DuckDB's `TRY` finds, and those found by halving the others."""
    if isinstance(try_evaluate(_sql(step), {duck.TUPLES: table.slice(0, 0)}, step.text), str):
        return np.ones(table.num_rows, bool)  # a constant fails
    failing = _tried(table, step)
    others = np.flatnonzero(~failing)
    open_ = [others] if len(others) else []
    while open_:
        rows = open_.pop()
        part = table if len(rows) == table.num_rows else table.take(pa.array(rows))
        if isinstance(try_evaluate(_sql(step), {duck.TUPLES: part}, step.text), pa.Table):
            continue
        if len(rows) == 1:
            failing[rows] = True
        else:
            open_ += np.array_split(rows, 2)
    return failing


def _tried(table: pa.Table, step: Plain) -> npt.NDArray[np.bool_]:
    """Return the tuples that `TRY` reports. It evaluates tuple by tuple if a vector fails, and gives null instead of a
    list.

    `TRY` covers casts, ranges and wrong input, but not every function. Where it does not help, no tuple is reported.
    """
    texts = [step.sql] if isinstance(step, FilterStep) else [sql for _, sql in step.columns]
    columns = " OR ".join(f"TRY([{sql}]) IS NULL" for sql in texts)
    try:
        found = duck.run_select(f"SELECT {columns} AS failing FROM __tuples", {duck.TUPLES: table})
    except (duckdb.Error, MemoryError):
        return np.zeros(table.num_rows, bool)
    return np.array(found.column(0))


def _why(one: pa.Table, step: Plain) -> str:
    found = try_evaluate(_sql(step), {duck.TUPLES: one}, step.text)
    return found[:LONGEST_REASON] if isinstance(found, str) else "it could not be evaluated"


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table in exactly the declared types, because DuckDB has its own name for the items of a list."""
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


def in_sequence(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the tuples in sequence: by `ts`, ties by the columns in order, nulls last, text by its bytes."""
    return order_rows(table, ("ts", *columns))


def order_rows(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the rows ordered by some columns: nulls last, NaN above the numbers, text by its bytes."""
    return table if table.num_rows < 2 else arrow.take_rows(table, row_order(table, columns))


def row_order(table: pa.Table, columns: Sequence[str]) -> arrow.Numbers:
    """Return the row numbers in the order of some columns."""
    if not any(pa.types.is_nested(table.schema.field(name).type) for name in columns):
        return sort_order([table.column(name) for name in columns])
    numbered = table.append_column(ROW, pa.array(np.arange(table.num_rows)))
    by = ", ".join(f"{duck.quote(name)} ASC NULLS LAST" for name in (*columns, ROW))
    ordered = duck.run_select(f"SELECT {ROW} FROM __tuples ORDER BY {by}", {duck.TUPLES: numbered})
    found: arrow.Numbers = ordered[ROW].to_numpy()
    return found
