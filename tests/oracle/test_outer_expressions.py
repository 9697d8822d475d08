"""What is made of aggregates, against plain DuckDB over the whole input: no code of ours, and no Arrow in between.

The reference cannot find what is wrong here: it hands the same expressions to the same DuckDB.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from headrace.stream import node_of
from headrace.testing import table_stream
from tests.helpers import duckdb_in_utc

from .driving import in_random_epochs

TS = pa.timestamp("us", "UTC")
WINDOW = 10_000_000

PARTIALS = [
    "sum(i)",
    "sum(small)",
    "sum(unsigned)",
    "sum(large)",
    "sum(d)",
    "count(*)",
    "count(i)",
    "min(i)",
    "max(large)",
    "max(unsigned)",
    "max(d)",
    "min(i) filter (where p)",
    "sum(i) filter (where p)",
    "sum(case when p then i else -i end)",
]
OUTER = [
    "{}",
    "{} // 2",
    "{} // -3",
    "-{} // 7",
    "{} % 3",
    "{} / 3",
    "{} // count(*)",
    "{} + 0.5",
    "{} * 3 - 1",
    "{}::varchar",
    "typeof({})",
    "abs({}) // 3",
    "greatest({}, 5)",
    "{} = 1.5",
    "[{}, 1]",
    "{{'n': {}, 'm': 1}}",
    "struct_pack(n := {})",
    "case when {} > 2 then 'many' else 'few' end",
    "{} is null",
    "coalesce({}, 0) // 2",
    "{} & 1",
    "{} >> 1",
    "{} | 1",
    "xor({}, 1)",
    "bit_count({})",
    "gcd({}, 3)",
    "printf('%d', {})",
]
OTHERS = [  # the first are merged, of the rest Arrow would make something else, so they need the tuples
    "max(s)",
    "min(s) || '!'",
    "upper(max(s))",
    "max(ts)::varchar",
    "epoch_us(min(ts)) // 7",
    "bool_and(p)::int + 1",
    "bool_or(p)",
    "max(raw)",
    "avg(small)::int // 2",
    "{'n': count(*), 'm': {'k': max(i)}}",
    "max('101'::bit)::varchar",
    "max('12:00:00+01'::timetz)::varchar",
    "max(i::hugeint) // 2",
    "sum(i::hugeint) // 2",
    "(max(unsigned::uhugeint) // 2)::varchar",
    "max(ts::timestamp_s)::varchar",
    "max(ts::timestamp_ns)::varchar",
    "typeof(max(s::uuid))",
    "max(to_json(i))::varchar",
    "max({'a': i}).a // 2",
    "max([i::hugeint])[1] // 2",
    "max(case when p then 'a' else 'b' end::enum('a', 'b'))::varchar",
    "median(i) // 2",
    "sum(distinct i) // 2",
]


def tuples(seed: int) -> pa.Table:
    r = random.Random(seed)
    n = 60

    def some(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if r.random() < 0.1 else values() for _ in range(n)], kind)

    return pa.table(
        {
            "ts": pa.array([r.randrange(0, 3 * WINDOW) for _ in range(n)], TS),
            "k": pa.array([r.randrange(3) for _ in range(n)], pa.int32()),
            "i": some(lambda: r.randint(-9, 9), pa.int64()),
            "small": some(lambda: r.randint(-128, 127), pa.int8()),
            "unsigned": some(lambda: r.choice([0, 1, 2**64 - 1]), pa.uint64()),
            "large": some(lambda: r.choice([-(2**63), 2**63 - 1, 2**62 + 1, 2**53 + 1]), pa.int64()),
            "d": some(lambda: r.randint(-999, 999), pa.decimal128(12, 0)).cast(pa.decimal128(14, 2)),
            "p": some(lambda: r.random() < 0.5, pa.bool_()),
            "s": some(lambda: f"8f14e45f-ceea-467f-a9ed-57bd4f1e6c{r.randint(10, 99)}", pa.string()),
            "raw": some(lambda: r.randbytes(3), pa.binary()),
        }
    )


def plain_duckdb(table: pa.Table, texts: list[str]) -> Counter[str]:
    con = duckdb_in_utc()
    con.register("tuples", table)
    values = ", ".join(f"{text} AS v{number}" for number, text in enumerate(texts))
    return rows(con.sql(f"SELECT k, {values} FROM tuples GROUP BY k, epoch_us(ts) // {WINDOW}").to_arrow_table())


def answers(table: pa.Table, text: str) -> bool:
    """Whether DuckDB has an answer at all: some have no form for some types, or go beyond their range."""
    try:
        return bool(plain_duckdb(table, [text]))
    except duckdb.Error:
        return False


def rows(table: pa.Table) -> Counter[str]:
    names = [name for name in table.column_names if name not in ("ts", "window_start", "window_end")]
    return Counter(str([plain(row[name]) for name in names]) for row in table.to_pylist())


def plain(value: Any) -> Any:
    """Doubles agree within 1e-9."""
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


@pytest.mark.thorough
@pytest.mark.parametrize("partial", PARTIALS)
def test_whatever_is_made_of_merged_values(partial: str, tmp_path: Path) -> None:
    for seed in (1, 2):
        table = tuples(seed)
        texts = [text for outer in OUTER if answers(table, text := outer.format(partial))]
        assert len(texts) >= 18
        query = table_stream(table, name="a", lateness="1 hour").aggregate(
            by=["k"], window="10 seconds", **{f"v{number}": text for number, text in enumerate(texts)}
        )
        node = node_of(query)
        assert all(f.partials is not None for _, f in node.functions), "not merged: nothing is tested"  # type: ignore[attr-defined]
        assert rows(in_random_epochs(query, table, tmp_path / str(seed), seed)) == plain_duckdb(table, texts)


@pytest.mark.parametrize("text", OTHERS)
def test_whatever_needs_a_type_that_arrow_lacks(text: str, tmp_path: Path) -> None:
    table = tuples(3)
    query = table_stream(table, name="a", lateness="1 hour").aggregate(by=["k"], window="10 seconds", v0=text)
    assert rows(in_random_epochs(query, table, tmp_path / "state", 3)) == plain_duckdb(table, [text])
