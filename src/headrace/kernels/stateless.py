"""Stateless steps: maps and filters over one window of tuples, one after the other as the user wrote them.

Which tuples fail in a step is decided for each by itself: a tuple fails iff the step fails on a table of that tuple alone.
So it does not depend on what came together with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import duck
from headrace.kernels.evaluate import attempt, evaluate
from headrace.plan import FilterStep, MapStep, Step

REASONS = 200  # tuples of one table that are each asked why they failed: that is a query for each
LONGEST = 300  # characters of a reason


def run_steps(table: pa.Table, steps: Sequence[Step]) -> pa.Table:
    """The tuples that come out of the steps. Steps are not fused: a later one never sees what an earlier dropped."""
    for step in steps:
        if table.num_rows:
            table = _outcome(table, step, evaluate(_sql(step), {duck.TUPLES: table}, step.text))
        else:
            table = _nothing(table, step)
    return table


def _nothing(table: pa.Table, step: Step) -> pa.Table:
    """What comes of no tuples. Nothing is evaluated: DuckDB computes some constants also where there is no row."""
    return step.schema.empty_table() if isinstance(step, MapStep) else table


def _sql(step: Step) -> str:
    if isinstance(step, FilterStep):
        return f"SELECT {step.sql} AS keep FROM __tuples"
    columns = ", ".join(f"{sql} AS {duck.quote(name)}" for name, sql in (("ts", "ts"), *step.columns))
    return f"SELECT {columns} FROM __tuples"


def _outcome(table: pa.Table, step: Step, found: pa.Table) -> pa.Table:
    return table.filter(found.column(0)) if isinstance(step, FilterStep) else in_schema(found, step.schema)


# --- steps that some tuples fail -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """Tuples as they were before the step in which they failed."""

    step: Step
    tuples: pa.Table

    def reasons(self) -> list[str]:
        """Why, per tuple; where many failed, the later ones are not asked."""
        asked = [_why(self.tuples.slice(row, 1), self.step) for row in range(min(self.tuples.num_rows, REASONS))]
        return asked + [f"as {REASONS} others that came with it"] * (self.tuples.num_rows - len(asked))


def run_step_keeping(table: pa.Table, step: Step) -> tuple[pa.Table, Failed | None]:
    """The tuples that come out of a step, and those that failed in it."""
    if not table.num_rows:
        return _nothing(table, step), None
    found = attempt(_sql(step), {duck.TUPLES: table}, step.text)
    if isinstance(found, pa.Table):
        return _outcome(table, step, found), None
    failing = _failing(table, step)
    rest, failed = table.filter(pa.array(~failing)), Failed(step, table.filter(pa.array(failing)))
    return run_steps(rest, [step]), failed


def _failing(table: pa.Table, step: Step) -> npt.NDArray[np.bool_]:
    """Which tuples fail: those of which DuckDB says so, and those that are found by halving the others."""
    if isinstance(attempt(_sql(step), {duck.TUPLES: table.slice(0, 0)}, step.text), str):
        return np.ones(table.num_rows, bool)  # a constant
    failing = _tried(table, step)
    others = np.flatnonzero(~failing)
    open_ = [others] if len(others) else []
    while open_:
        rows = open_.pop()
        part = table if len(rows) == table.num_rows else table.take(pa.array(rows))
        if isinstance(attempt(_sql(step), {duck.TUPLES: part}, step.text), pa.Table):
            continue
        if len(rows) == 1:
            failing[rows] = True
        else:
            open_ += np.array_split(rows, 2)
    return failing


def _tried(table: pa.Table, step: Step) -> npt.NDArray[np.bool_]:
    """What TRY says, which evaluates tuple by tuple where a vector of them fails: null in place of a list of one value.

    It knows casts, ranges and wrong input, and not every function; nobody fails here where it does not help.
    """
    texts = [step.sql] if isinstance(step, FilterStep) else [sql for _, sql in step.columns]
    columns = " OR ".join(f"TRY([{sql}]) IS NULL" for sql in texts)
    try:
        found = duck.run(f"SELECT {columns} AS failing FROM __tuples", {duck.TUPLES: table})
    except (duckdb.Error, MemoryError):
        return np.zeros(table.num_rows, bool)
    return np.array(found.column(0))


def _why(one: pa.Table, step: Step) -> str:
    found = attempt(_sql(step), {duck.TUPLES: one}, step.text)
    return found[:LONGEST] if isinstance(found, str) else "it could not be evaluated"


def in_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in exactly the declared types (DuckDB names the items of a list its own way)."""
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)


def sequence(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The tuples in sequence: by `ts`, ties by the columns in order, nulls last, text by its bytes."""
    return ordered(table, ("ts", *columns))


def ordered(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows by some columns: nulls last, NaN above the numbers, text by its bytes."""
    if table.num_rows < 2:
        return table
    order = ", ".join(f"{duck.quote(name)} ASC NULLS LAST" for name in columns)
    names = ", ".join(duck.quote(name) for name in table.column_names)
    return in_schema(duck.run(f"SELECT {names} FROM __tuples ORDER BY {order}", {duck.TUPLES: table}), table.schema)
