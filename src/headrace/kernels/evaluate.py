"""Run SQL over tuples; when an expression fails on data, say which expression and which tuple."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from headrace import duck
from headrace.errors import DataError, EngineError


def evaluate(sql: str, tables: Mapping[str, pa.Table], text: str) -> pa.Table:
    """The result of a SELECT; a failure on data becomes a DataError that names expression and tuple."""
    try:
        return duck.run(sql, tables)
    except duckdb.OutOfMemoryException as error:
        msg = f"{text!r} needs more than the {duck.MEMORY_LIMIT} a task may use: {_first_line(error)}; use more slots or set HEADRACE_TASK_MEMORY"
        raise EngineError(msg) from None
    except duckdb.Error as error:
        reason, found = _first_line(error), _culprit(sql, dict(tables))
        raise DataError(f"the expression {text!r} failed: {reason}; on {found}") from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def _culprit(sql: str, tables: dict[str, pa.Table]) -> str:
    """Halve the tables as long as a half still fails; what is left is the tuple to show."""
    for name in tables:
        while tables[name].num_rows > 1:
            half = tables[name].num_rows // 2
            parts = (tables[name].slice(0, half), tables[name].slice(half))
            failing = next((part for part in parts if _fails(sql, {**tables, name: part})), None)
            if failing is None:
                break
            tables[name] = failing
    return "; ".join(f"{name}: {_show(table)}" for name, table in tables.items())


def _fails(sql: str, tables: Mapping[str, pa.Table]) -> bool:
    try:
        duck.run(sql, tables)
    except duckdb.Error:
        return True
    return False


def _show(table: pa.Table) -> str:
    if table.num_rows == 0:
        return "no tuple"
    shown = duck.run(f"SELECT {', '.join(_texts(table))} FROM __tuples", {duck.TUPLES: table.slice(0, 1)})
    return ", ".join(f"{k}={v}" for k, v in shown.to_pylist()[0].items() if not k.startswith("__"))


def _texts(table: pa.Table) -> list[str]:
    return [f"left(CAST({duck.quote(n)} AS VARCHAR), 100) AS {duck.quote(n)}" for n in table.column_names]
