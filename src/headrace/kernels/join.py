"""Joins of two windows of tuples on any predicate.

Invariant: of the pairs (l, r) of the two tables, exactly those are returned that the window admits and for which the
predicate is true; the predicate is never evaluated on a pair that the window does not admit, unless it cannot fail.
"""

from __future__ import annotations

import pyarrow as pa

from headrace import duck
from headrace.compile.plan import CountJoinOperator, JoinOperator, TimeJoinOperator
from headrace.kernels.evaluate import evaluate
from headrace.kernels.stateless import conform

TIME = "__t"  # event time as a plain number


def join(operator: JoinOperator, left: pa.Table, right: pa.Table) -> pa.Table:
    """The results of all pairs of the two tables."""
    if left.num_rows == 0 or right.num_rows == 0:
        return operator.schema.empty_table()
    sql = f"SELECT {_results(operator)} FROM l JOIN r ON {_condition(operator)}"
    found = evaluate(sql, {"l": _with_time(left), "r": _with_time(right)}, operator.text)
    return conform(found, operator.schema)


def _with_time(table: pa.Table) -> pa.Table:
    return table.append_column(TIME, table.column("ts").cast(pa.int64()))


def _results(operator: JoinOperator) -> str:
    ts = "least(l.ts, r.ts)" if isinstance(operator, TimeJoinOperator) else "greatest(l.ts, r.ts)"
    columns = [f"{side}.{duck.quote(name)} AS {duck.quote(out)}" for out, side, name in operator.columns]
    return ", ".join([f"{ts} AS ts", *columns])


def _condition(operator: JoinOperator) -> str:
    keys = [f"l.{duck.quote(key.left)} = r.{duck.quote(key.right)}" for key in operator.keys]
    window = _window(operator)
    predicate = operator.sql if operator.safe else f"CASE WHEN {window} THEN {operator.sql} ELSE false END"
    return " AND ".join([*keys, window, predicate])


def _window(operator: JoinOperator) -> str:
    if isinstance(operator, TimeJoinOperator):
        return f"(r.{TIME} >= l.{TIME} - {operator.w2} AND r.{TIME} <= l.{TIME} + {operator.w1})"
    assert isinstance(operator, CountJoinOperator)
    return (
        f"((l.__pos < r.__pos AND r.__other - l.__rank <= {operator.n1})"
        f" OR (r.__pos < l.__pos AND l.__other - r.__rank <= {operator.n2}))"
    )
