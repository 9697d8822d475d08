"""Keys as numbers: equal exactly where DuckDB's groups are."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.kernels.windows import numbered_keys
from headrace.kernels.windows.numbered_keys import key_numbers

NAN = float("nan")
COLUMNS: dict[str, Any] = {
    "i": pa.array([1, 2, None, 1, -5, 2, 2**62, None, 0]),
    "f": pa.array([0.0, -0.0, None, NAN, 1.5, -NAN, 0.1, None, 0.0]),
    "g": pa.array([0.5, -0.0, None, NAN, 1.5, -NAN, 0.5, None, 0.0], pa.float32()),
    "s": pa.array(["a", "A", None, "a", "", "ä", "a\0", None, ""]),
    "b": pa.array([True, None, False, True, False, None, True, True, False]),
    "d": pa.array([Decimal("1.10"), Decimal("1.1"), None, Decimal(0), None, None, Decimal(2), Decimal(2), Decimal(0)]),
    "l": pa.array([[1], [], None, [1], [None], [None], [1, 2], None, []], pa.list_(pa.int64())),
}


def groups_of_duckdb(table: pa.Table, by: list[str]) -> list[int]:
    numbered = table.append_column("row", pa.array(range(table.num_rows)))
    keys = ", ".join(by) or "1 = 1"
    found = duck.run_select(f"SELECT list(row) AS rows FROM __tuples GROUP BY {keys}", {duck.TUPLES: numbered})
    of = {row: number for number, rows in enumerate(found["rows"].to_pylist()) for row in rows}
    return [of[row] for row in range(table.num_rows)]


def same_groups(one: list[int], other: list[int]) -> bool:
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_equal_where_groups_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(numbered_keys, "_MOST", 30)  # codes are made small on the way
    rows = np.array([r.randrange(9) for _ in range(60)])
    table = pa.table({name: column.take(pa.array(r.sample(rows.tolist(), 60))) for name, column in COLUMNS.items()})
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    by = r.sample(list(COLUMNS), r.randrange(0, 5))
    assert same_groups(key_numbers(chunked, by).tolist(), groups_of_duckdb(table, by)), by


def test_of_no_rows() -> None:
    table = pa.table(COLUMNS).slice(0, 0)
    assert [len(key_numbers(table, by)) for by in (["i"], ["s", "f"], ["l"], [])] == [0, 0, 0, 0]
