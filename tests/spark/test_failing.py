"""Tuples that fail, on Spark: two sources, steps before and behind a join, a run that stopped and goes on with "keep"."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.difference import difference
from headrace.reference import failed_tuples, reference
from tests.helpers import add_file, wait_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.spark

SECOND = 1_000_000
ROWS = 40


def orders(number: int) -> pa.Table:
    """Every seventh amount is no number, every fifth has no units to divide by."""
    n = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "ts": pa.array([i * SECOND // 4 for i in n], pa.timestamp("us", "UTC")),
            "item": pa.array([i % 4 for i in n], pa.int64()),
            "amount": pa.array([f"{i}" if i % 7 else "unknown" for i in n], pa.string()),
            "units": pa.array([i % 5 for i in n], pa.int64()),
        }
    )


def prices(number: int) -> pa.Table:
    n = range(number * 10, (number + 1) * 10)
    return pa.table(
        {
            "ts": pa.array([i * SECOND for i in n], pa.timestamp("us", "UTC")),
            "item": pa.array([i % 4 for i in n], pa.int64()),
            "price": pa.array([f"{i}.5" if i % 6 else "" for i in n], pa.string()),
        }
    )


def query(spark: Any, folder: Path) -> hr.Stream:
    left = hr.files(spark, folder / "orders", time="ts", name="orders", files_per_epoch=1)
    right = hr.files(spark, folder / "prices", time="ts", name="prices", files_per_epoch=1)
    counted = left.map("item", amount="amount::int", each="100 // units")
    known = right.map("item", price="price::double").filter("item < 3")
    joined = counted.join(known, on="l.item = r.item", within="2 seconds")
    return joined.map("amount", "price", share="100 // (amount % 3)")


def kept(folder: Path) -> Counter[tuple[str, str]]:
    """Who, and in what kind of step."""
    found: Counter[tuple[str, str]] = Counter()
    for path in folder.glob("*.parquet"):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            assert "Error: " in row["_reason"]
            found[row["_source"], row["_reason"].split()[1]] += 1
    return found


def test_a_run_that_stopped_goes_on_with_keep(spark: Any, tmp_path: Path) -> None:
    def arrive(number: int) -> None:
        add_file(tmp_path / "orders", number, orders(number))
        add_file(tmp_path / "prices", number, prices(number))

    arrive(0)
    arrive(1)
    asked = query(spark, tmp_path)
    out, late = hr.sinks.parquet(tmp_path / "out"), hr.sinks.parquet(tmp_path / "late")
    options = {"checkpoint": tmp_path / "checkpoint", "epoch": "0 seconds", "late": late, "show": False}
    with pytest.raises(hr.DataError, match=r"failed: (Conversion|Invalid Input) Error"):
        asked.start(out, slots=2, **options).wait(PATIENCE)
    total = 3 * (ROWS + 10)
    for slots, enough in ((2, 2 * total // 3), (3, total)):
        if slots == 3:
            arrive(2)
        with asked.start(out, slots=slots, errors="keep", **options) as run:
            wait_until(run, lambda p, enough=enough: p.tuples_in >= enough)
    whole = [{"orders": pa.concat_tables(map(orders, range(3))), "prices": pa.concat_tables(map(prices, range(3)))}]
    tables = [pq.read_table(path, partitioning=None) for path in (tmp_path / "out").glob("*.parquet")]
    assert difference(reference(asked, whole, end=False, errors="keep"), pa.concat_tables(tables)) is None
    failed = failed_tuples(asked, whole, end=False)
    expected = Counter({(f.source or "join-1", f.summary.split()[0]): f.table.num_rows for f in failed})
    assert set(expected) == {("orders", "map"), ("prices", "map"), ("join-1", "map")}
    assert kept(tmp_path / "late") == expected
    assert run.progress.failed == sum(expected.values()) == sum(run.progress.failed_steps.values())
    assert run.progress.accepted == run.progress.tuples_in == total, "they stay accepted"


def test_collect_keeps_and_says_what_it_left_out(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    add_file(tmp_path / "orders", 0, orders(0))
    add_file(tmp_path / "prices", 0, prices(0))
    asked, late = query(spark, tmp_path), hr.sinks.memory()
    with pytest.raises(hr.DataError):
        asked.collect(slots=2)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        found = asked.collect(slots=2, errors="keep", late=late)
    assert difference(reference(asked, errors="keep"), found) is None
    assert "tuples that failed: orders: map" in caplog.text
    sources = Counter(s for table in late.epochs.values() for s in table["_source"].to_pylist())
    assert sources == Counter(
        {
            name: sum(f.table.num_rows for f in failed_tuples(asked) if (f.source or "join-1") == name)
            for name in sources
        }
    )
    with pytest.raises(hr.QueryTypeError, match="epochs"):
        late.table()
    with pytest.raises(hr.QueryError, match="errors must be one of stop, keep; found 'ignore'"):
        asked.collect(errors="ignore")


def test_a_column_that_late_would_add_is_refused_before_anything_is_written(spark: Any, tmp_path: Path) -> None:
    add_file(tmp_path / "orders", 0, orders(0))
    taken = hr.files(spark, tmp_path / "orders", time="ts", name="orders").map(_reason="amount").filter("_reason = ''")
    options = {"checkpoint": tmp_path / "checkpoint", "late": hr.sinks.memory()}
    with pytest.raises(hr.QueryError, match=r"late= adds _reason, but what fails in .* has such a column"):
        taken.start(hr.sinks.memory(), errors="keep", **options)
    assert not (tmp_path / "checkpoint").exists()
