"""Stateless steps: maps and filters over one window of tuples, one after the other as the user wrote them
(the third kind, a split: `headrace.kernels.stateless.split`).

Which tuples fail in a step is decided for each by itself: a tuple fails iff the step fails on a table of that tuple alone.
So it does not depend on what came together with it.
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

MOST_REASONS = 200  # tuples of one table that are each asked why they failed: that is a query for each
LONGEST_REASON = 300  # characters of a reason
ROW = "__row"
Plain = MapStep | FilterStep


def run_step(table: pa.Table, step: Plain, *, keep: bool) -> tuple[pa.Table, FailedTuples | None]:
    """The tuples that come out of a step, and those that failed in it; they stop the run unless they are kept.

    Steps are not fused: a later one never sees what an earlier dropped.
    """
    rest, found, failed = evaluate_step(table, step, keep=keep)
    return _outcome(rest, step, found), failed


def evaluate_step(table: pa.Table, step: Plain, *, keep: bool) -> tuple[pa.Table, pa.Table | None, FailedTuples | None]:
    """(the tuples that do not fail, what the step's expressions are for them, the tuples that fail).

    Of no tuples nothing is evaluated: DuckDB computes some constants also where there is no row.
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
    """What DuckDB is asked for: not columns that a map passes on, except nested ones, in which it finds fault with values."""
    if isinstance(step, FilterStep):
        return (("keep", step.sql),)
    nested = {field.name for field in step.schema if pa.types.is_nested(field.type)}
    return tuple((name, sql) for name, sql in step.columns if name in nested or column_of(sql) is None)


def _beside(table: pa.Table, step: Plain, found: pa.Table | None) -> pa.Table | None:
    """What was computed, with the columns that a map passes on; None: it computes nothing."""
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
        """Why, per tuple; where many failed, the later ones are not asked."""
        asked = [_why(self.tuples.slice(row, 1), self.step) for row in range(min(self.tuples.num_rows, MOST_REASONS))]
        return asked + [f"as {MOST_REASONS} others that came with it"] * (self.tuples.num_rows - len(asked))


def _failing(table: pa.Table, step: Plain) -> npt.NDArray[np.bool_]:
    """Which tuples fail: those of which DuckDB says so, and those that are found by halving the others."""
    if isinstance(try_evaluate(_sql(step), {duck.TUPLES: table.slice(0, 0)}, step.text), str):
        return np.ones(table.num_rows, bool)  # a constant
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
    """What TRY says, which evaluates tuple by tuple where a vector of them fails: null in place of a list of one value.

    It knows casts, ranges and wrong input, and not every function; nobody fails here where it does not help.
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
    """The table in exactly the declared types (DuckDB names the items of a list its own way)."""
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


def in_sequence(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The tuples in sequence: by `ts`, ties by the columns in order, nulls last, text by its bytes."""
    return order_rows(table, ("ts", *columns))


def order_rows(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows by some columns: nulls last, NaN above the numbers, text by its bytes."""
    return table if table.num_rows < 2 else arrow.take_rows(table, row_order(table, columns))


def row_order(table: pa.Table, columns: Sequence[str]) -> arrow.Numbers:
    """Row numbers by some columns."""
    if not any(pa.types.is_nested(table.schema.field(name).type) for name in columns):
        return sort_order([table.column(name) for name in columns])
    numbered = table.append_column(ROW, pa.array(np.arange(table.num_rows)))
    by = ", ".join(f"{duck.quote(name)} ASC NULLS LAST" for name in (*columns, ROW))
    ordered = duck.run_select(f"SELECT {ROW} FROM __tuples ORDER BY {by}", {duck.TUPLES: numbered})
    found: arrow.Numbers = ordered[ROW].to_numpy()
    return found
