"""Every aggregate function that DuckDB has: what is taken for independent of the order of rows must be."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.errors import HeadraceError
from headrace.expressions import parse_aggregate
from headrace.expressions.gates import allowed_functions

N = 12
R = random.Random(1)
TUPLES = pa.table(
    {
        "ts": pa.array(range(N), pa.timestamp("us", "UTC")),
        "i": pa.array([R.choice([1, 2, 3, None]) for _ in range(N)], pa.int32()),
        "g": pa.array([R.choice([1.0, 2.5, None, -3.0, float("nan")]) for _ in range(N)]),
        "h": pa.array([R.choice([1.0, 2.5, -3.0, 7.0]) for _ in range(N)]),
        "s": pa.array([R.choice(["a", "A", "c", None]) for _ in range(N)]),
        "p": pa.array([R.choice([True, False, None]) for _ in range(N)]),
        "ls": pa.array([R.choice([[1], [2], None]) for _ in range(N)], pa.list_(pa.int32())),
    }
)
ARGUMENTS = [
    "",
    "i",
    "g",
    "s",
    "p",
    "ls",
    "i, h",
    "h, i",
    "s, i",
    "i, s",
    "h, 0.5",
    "s, 2",
    "i, [1, 2]",
    "i, ls",
    "s, i, 2",
]
ARGUMENTS += ["s collate nocase", "distinct i", "distinct h, i", "distinct s"]
SHUFFLES = [random.Random(seed).sample(range(N), N) for seed in range(6)]
NAMES = sorted(name for name, kinds in allowed_functions().items() if kinds == {"aggregate"})


def values(sql: str) -> set[str]:
    """What the expression is for the same rows in other orders."""
    found = set()
    for order in SHUFFLES:
        try:
            table = duck.run_select(f"SELECT {sql} AS v FROM t", {"t": TUPLES.take(pa.array(order))})
            found.add(str(rounded(table.column(0)[0].as_py())))
        except duckdb.Error:
            found.add("an error")
    return found


def rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return f"{value:.9g}" if isinstance(value, float) else value


def independent() -> list[str]:
    """The calls that are accepted and taken for independent of order."""
    found = []
    for text in [f"{name}({arguments})" for name in NAMES for arguments in ARGUMENTS]:
        try:
            checked = parse_aggregate(text, TUPLES.schema, (), "v")
        except HeadraceError:
            continue
        if not checked.ordered:
            found.append(checked.sql)
    return found


@pytest.mark.thorough
def test_no_order_of_rows_matters_where_it_is_not_bought() -> None:
    calls = independent()
    assert len(calls) > 150
    assert [sql for sql in calls if len(values(sql)) > 1] == []


def test_the_test_finds_a_function_that_depends_on_order() -> None:
    assert len(values("first(h)")) > 1


@pytest.mark.parametrize("text", ["max(h, i)", "min(distinct s, i)", "histogram(i, ls)", "histogram_exact(i, ls)"])
def test_a_parameter_that_is_read_from_one_row_is_refused(text: str) -> None:
    with pytest.raises(HeadraceError, match="must be the same for all tuples"):
        parse_aggregate(text, TUPLES.schema, (), "v")
