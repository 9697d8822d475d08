"""Rows by number and pieces of tables, whatever the length of their text."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import arrow, duck
from headrace.difference import difference
from headrace.reference import reference
from headrace.state.blocks import BlockReader, block_name, write_block
from headrace.testing import LocalRun, run_locally, table_stream
from tests.memory import MemoryStorage

TS = pa.timestamp("us", "UTC")


def mixed(rows: int, seed: int = 1) -> pa.Table:
    r = random.Random(seed)
    texts = [None if r.random() < 0.1 else "é" * r.randint(0, 40) for _ in range(rows)]
    return pa.table(
        {
            "ts": pa.array([r.randint(0, 9) * 1_000_000 for _ in range(rows)], TS),
            "k": pa.array([r.randint(0, 3) for _ in range(rows)]),
            "text": texts,
            "raw": pa.array([t and t.encode() for t in texts], pa.binary()),
            "list": pa.array([[t] * r.randint(0, 3) for t in texts], pa.list_(pa.string())),
            "deep": pa.array([{"a": {"b": t, "c": [i]}} for i, t in enumerate(texts)]),
            "map": pa.array([[("k", t)] for t in texts], pa.map_(pa.string(), pa.string())),
        }
    )


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if tables of some hundred bytes were beyond what one array holds."""
    monkeypatch.setattr(arrow, "FEW", 3)
    monkeypatch.setattr(arrow, "SAFE", 200)
    monkeypatch.setattr(arrow, "MOST_TABLE_BYTES", 1_000)
    monkeypatch.setattr(arrow.slice_table, "__defaults__", (1_000,))


def test_take_in_pieces_is_take(small_pieces: None) -> None:
    table = pa.concat_tables([mixed(40, seed) for seed in range(5)])
    rows = np.random.default_rng(2).integers(0, table.num_rows, 500)
    found = arrow.take_rows(table, rows)
    assert found.column("text").num_chunks > 1, "nothing was cut"
    assert found.schema == table.schema
    assert found.to_pylist() == [table.slice(int(row), 1).to_pylist()[0] for row in rows]
    assert arrow.take_rows(table, rows[:0]).num_rows == 0


def test_numbers_are_taken_as_arrow_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "FEW", 0)
    monkeypatch.setattr(arrow, "SPARSE", 100)
    rng = np.random.default_rng(3)
    kinds = [
        pa.int8(),
        pa.uint16(),
        pa.int32(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.time64("us"),
        TS,
    ]
    columns = {str(kind): pa.array(rng.integers(0, 100, 90)).cast(_number(kind)).view(kind) for kind in kinds}
    whole = pa.table({**columns, "null": pa.array([None, *range(89)]), "text": list(map(str, range(90)))})
    table = pa.concat_tables([whole.slice(5, 30), whole.slice(40, 0), whole.slice(7, 50)])
    rows = rng.integers(0, 80, 200)
    found = arrow.take_rows(table, rows)
    found.validate(full=True)
    assert found.equals(table.take(pa.array(rows)))
    for wrong in (-1, 80):
        with pytest.raises(IndexError, match="of a table of 80"):
            arrow.take_rows(table.select(["int8"]), np.array([wrong]))


def _number(kind: pa.DataType) -> pa.DataType:
    return {32: pa.int32(), 64: pa.int64()}[kind.bit_width] if pa.types.is_temporal(kind) else kind


def test_nested_text_of_several_chunks_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow joins no chunks of nested text beyond 2 GiB: a large table keeps those that it has."""
    monkeypatch.setattr("headrace.state.blocks.SAFE", 200)
    table, storage = pa.concat_tables([mixed(20, 1), mixed(20, 2)]), MemoryStorage()
    opened = BlockReader(storage).open(write_block(storage, block_name(0, 0, 0, 0), table, None, None, None))
    assert opened.table.column("deep").num_chunks == 2 and opened.table.equals(table)


def test_pieces_are_the_table(small_pieces: None) -> None:
    table = mixed(300)
    pieces = list(arrow.slice_table(table))
    assert len(pieces) > 3
    assert pa.concat_tables(pieces).equals(table)
    assert next(arrow.slice_table(table.slice(0, 0))).num_rows == 0


@pytest.mark.long
def test_rows_that_are_far_longer_than_most() -> None:
    table = pa.table({"text": ["x" * 100_000_000] + ["y"] * 100_000})
    found = arrow.take_rows(table, np.array([0] * 22 + [7]))
    assert [len(chunk) for chunk in found.column("text").chunks] != [23], "more than 2 GiB in one chunk"
    assert found.num_rows == 23 and found.column("text")[22].as_py() == "y"


def test_queries_give_the_same_in_pieces(small_pieces: None, tmp_path: Path) -> None:
    table = mixed(50)
    s = table_stream(table, name="a")
    queries = {
        "keyed": s.join(s, on="l.k = r.k and l.text < r.text", within="2 seconds"),
        "any": s.join(s, on="l.k <> r.k and l.text <> r.text", within="1 second"),
        "list": s.aggregate(by=["k"], window="4 seconds", every="1 second", l="list(text)", n="count(*)"),
        "panes": s.aggregate(by=["text"], window="4 seconds", every="3 seconds", n="count(*)", m="max(raw)"),
        "count": s.aggregate(by=["k"], last=7, every=3, l="list(text)"),
    }
    for name, query in queries.items():
        assert difference(reference(query), run_locally(query, tmp_path / name, slots=2)) is None, name


def test_a_block_holds_more_text_than_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    table, storage = mixed(50), MemoryStorage()
    halves = [*table.slice(0, 20).combine_chunks().to_batches(), *table.slice(20).combine_chunks().to_batches()]
    monkeypatch.setattr("headrace.state.blocks._batches", lambda _: halves)
    block = write_block(storage, block_name(0, 0, 0, 0), table, np.array([0, 10, 30, 50]), None, None)
    opened = BlockReader(storage).open(block)
    assert opened.table.column("text").num_chunks == 2
    assert opened.slice([1]).equals(table.slice(10, 20))


@pytest.mark.thorough
def test_a_hot_key_with_long_tuples(tmp_path: Path) -> None:
    """2.25 million pairs, 2.7 GB of text if they are all written down."""
    n = 1_500
    left = pa.table({"ts": pa.array(range(n), TS), "k": [1] * n, "text": ["x" * 1_200] * n})
    right = pa.table({"ts": pa.array(range(n), TS), "k": [1] * n})
    pairs = table_stream(left, name="a").join(table_stream(right, name="b"), on="l.k = r.k", within="1 second")
    few = pairs.map("text", n="length(text)").filter("n < 0")
    run = LocalRun([few, pairs.aggregate(window="1 second", n="count(*)")], tmp_path / "state")
    run.epoch({"a": left, "b": right}, final=True)
    assert run.results("result-0").num_rows == 0
    assert run.results("result-1").column("n").to_pylist() == [n * n]
    run.close()


@pytest.mark.long
def test_few_and_very_long_results_of_duckdb() -> None:
    table = pa.table({"n": pa.array(range(23))})
    found = duck.run_select("SELECT n, repeat('x', 100000000) AS text FROM t", {"t": table})
    assert found.num_rows == 23 and found.column("text").num_chunks > 1


@pytest.mark.long
def test_a_small_file_that_unpacks_to_more_than_two_gigabytes(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from headrace.sources.files import read_file

    path = tmp_path / "big.parquet"
    text = pa.array([f"x{i % 1000:05d}" * 170 for i in range(100_000)])
    writer = None
    for group in range(22):
        part = pa.table(
            {"ts": pa.array(range(group * 100_000, (group + 1) * 100_000), TS), "k": range(100_000), "text": text}
        )
        writer = writer or pq.ParquetWriter(path, part.schema, compression="zstd")
        writer.write_table(part)
    assert writer is not None
    writer.close()
    table = read_file(path)
    assert table.nbytes > 2**31 > 100 * path.stat().st_size
    s = table_stream(table.slice(0, 1), name="a")
    met = s.join(s, on="l.k = r.k and l.ts = r.ts", within="1 second").map(n="length(l_text)").filter("n < 0")
    counted = s.aggregate(window="1 hour", n="count(*)", longest="max(length(text))")
    run = LocalRun([met, counted], tmp_path / "state", slots=2)
    run.epoch({"a": table}, final=True)
    assert run.results("result-0").num_rows == 0
    assert run.results("result-1").select(["n", "longest"]).to_pylist() == [{"n": 2_200_000, "longest": 1_020}]
    run.close()
