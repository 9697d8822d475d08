"""Evaluation of SQL over tuples, with errors that name the failing expression and tuple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from headrace.columnar import duck
from headrace.columnar.types import value_text
from headrace.errors import DataError, EngineError


def evaluate(sql: str, tables: Mapping[str, pa.Table], text: str, *, in_pairs: bool = False) -> pa.Table:
    """Return the result of a SELECT; raise a `DataError` that names expression and tuple if it fails on data.

    in_pairs: row n of one table belongs to row n of the other.
    """
    try:
        return duck.run_select(sql, tables)
    except (duckdb.OutOfMemoryException, MemoryError) as error:
        msg = f"{text!r} needs more than the {duck.MEMORY_LIMIT} a task may use: {_first_line(error)}; use more slots or set HEADRACE_TASK_MEMORY"
        raise EngineError(msg) from None
    except duckdb.IOException as error:
        msg = f"{text!r} could not be evaluated: {_first_line(error)}; is the disk with the temporary files full?"
        raise EngineError(msg) from None
    except duckdb.Error as error:
        sides = [tuple(tables)] if in_pairs else [(name,) for name in tables]
        reason, found = _first_line(error), _culprit(sql, dict(tables), sides)
        raise DataError(f"the expression {text!r} failed: {reason}; on {found}") from None


def try_evaluate(sql: str, tables: Mapping[str, pa.Table], text: str) -> pa.Table | str:
    """Return the result of a SELECT, or the reason if it fails on a value. Failures that no tuple causes are raised."""
    try:
        return duck.run_select(sql, tables)
    except duckdb.Error as error:
        if duck.is_data_error(error):
            return _first_line(error)
    except MemoryError:
        pass
    return evaluate(sql, tables, text)  # again: the failure was temporary, or this call raises it by name


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _culprit(sql: str, tables: dict[str, pa.Table], sides: Sequence[tuple[str, ...]]) -> str:
    """Return the text of a failing tuple, found by halving the tables (those of one side together) while a half fails."""
    for names in sides:
        while (rows := tables[names[0]].num_rows) > 1:
            cuts = ((0, rows // 2), (rows // 2, rows - rows // 2))
            parts = [{**tables, **{name: tables[name].slice(*cut) for name in names}} for cut in cuts]
            failing = next((part for part in parts if _fails(sql, part)), None)
            if failing is None:
                break
            tables = failing
    if set(tables) == {duck.TUPLES}:
        return f"the tuple {first_tuple_text(tables[duck.TUPLES])}"
    return "; ".join(f"{name}: {first_tuple_text(table)}" for name, table in tables.items())


def _fails(sql: str, tables: Mapping[str, pa.Table]) -> bool:
    try:
        duck.run_select(sql, tables)
    except duckdb.Error:
        return True
    return False


def first_tuple_text(table: pa.Table) -> str:
    """Return the first tuple of a table as text."""
    if table.num_rows == 0:
        return "no tuple"
    row = zip(table.column_names, table.slice(0, 1).columns, strict=True)
    return ", ".join(f"{name}={value_text(column[0])[:100]}" for name, column in row if not name.startswith("__"))
