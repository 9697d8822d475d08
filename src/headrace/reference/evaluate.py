"""Evaluation of expressions by DuckDB on rows that the reference chose. An error names the failing row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import duck
from headrace.columnar.values import rows_text
from headrace.errors import DataError
from headrace.expressions import Expression
from headrace.reference.tuples import single_value


def passing_tuples(
    step: Callable[[pa.Table], pa.Table], empty: pa.Table, tuples: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """Return the output of a step for the tuples on which it does not fail, and the failing tuples, found by halving."""
    try:
        return step(tuples), tuples.slice(0, 0)
    except ExpressionFailed as failure:
        if not duck.is_data_error(failure.error):
            raise
    if tuples.num_rows == 1:
        return empty, tuples
    half = tuples.num_rows // 2
    halves = (tuples.slice(0, half), tuples.slice(half))
    found, failing = zip(*(passing_tuples(step, empty, t) for t in halves), strict=True)
    return single_value(found), single_value(failing)


def value_of(expression: Expression, tuples: pa.Table) -> Any:
    return evaluate_rows(expression.sql, expression.text, "__tuples", {"__tuples": tuples}).cast(expression.type)


def is_true(sql: str, text: str, tuples: pa.Table) -> Any:
    return truth(evaluate_rows(sql, text, "__tuples", {"__tuples": tuples}))


def truth(column: Any) -> Any:
    """Return a column of booleans in which null is false."""
    return pc.fill_null(column, False)


def evaluate_rows(sql: str, text: str, origin: str, tables: Mapping[str, pa.Table]) -> Any:
    """Return the value of an expression for every row of the tables side by side, in their order."""
    found = run_select(f"SELECT {sql} AS c FROM {origin}", tables, text, by_row=True)
    return found["c"].combine_chunks()


@dataclass
class ExpressionFailed(Exception):
    """An expression failed; by_row: on one row of the tables."""

    error: duckdb.Error
    sql: str
    tables: Mapping[str, pa.Table]
    text: str
    by_row: bool

    def told(self) -> DataError:
        reason = str(self.error).splitlines()[0]
        where = f" on {_culprit(self.sql, self.tables)}" if self.by_row else ""
        return DataError(
            f"{self.text!r} failed{where}: {reason}; correct the data or use a safe form, such as TRY_CAST"
        )


def run_select(sql: str, tables: Mapping[str, pa.Table], text: str, *, by_row: bool = False) -> pa.Table:
    try:
        return duck.run_select(sql, tables)
    except duckdb.Error as error:
        raise ExpressionFailed(error, sql, tables, text, by_row) from error


def _culprit(sql: str, tables: Mapping[str, pa.Table]) -> str:
    """Return the text of the first row of the tables on which the query fails, found by halving."""
    low, high = 0, max(table.num_rows for table in tables.values())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fails(sql, tables, low, middle) else (middle, high)
    own = {side: [n for n in table.column_names if n != "__row"] for side, table in tables.items()}
    return " and ".join(
        "".join(rows_text(table.select(own[side]).slice(low, 1))) for side, table in tables.items() if own[side]
    )


def _fails(sql: str, tables: Mapping[str, pa.Table], low: int, high: int) -> bool:
    try:
        duck.run_select(sql, {name: table.slice(low, high - low) for name, table in tables.items()})
    except duckdb.Error:
        return True
    return False
