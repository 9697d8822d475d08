"""Splitters and physical windows that a start is given: they take effect in every epoch, and change no answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.columnar.types import TS_TYPE
from headrace.control.splitter_count import USUAL
from headrace.difference import difference
from headrace.spark import dataframes
from headrace.testing import table_stream
from tests.helpers import wait_until

pytestmark = pytest.mark.spark

ROWS, GROUP = 4_000, 100  # of a file, and of its row groups or record batches
GIVEN = [(1, "1 GiB"), (3, "4 KiB"), (None, 2_048), (5, None), (None, None)]


def tuples(seed: int) -> pa.Table:
    r = np.random.default_rng(seed)
    ts = pa.array(np.sort(r.integers(0, 20, ROWS) + 20 * seed) * 1_000_000, TS_TYPE)
    return pa.table({"ts": ts, "k": r.integers(0, 9, ROWS), "x": r.integers(0, 1 << 40, ROWS)})


def put(folder: Path, number: int, table: pa.Table) -> int:
    """Write a file with many groups of rows; return its bytes."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number}{'.parquet' if number % 2 else '.feather'}"
    hidden = folder / f"_{path.name}"
    if number % 2:
        pq.write_table(table, hidden, row_group_size=GROUP)
    else:
        feather.write_feather(table, hidden, chunksize=GROUP)
    size = hidden.stat().st_size
    hidden.rename(path)
    return size


QUERIES: dict[str, Any] = {
    "aggregate": lambda s: s.aggregate(by=["k"], window="10 seconds", every="5 seconds", n="count(*)", x="sum(x)"),
    "last": lambda s: s.aggregate(by=["k"], last=7, every=3, first="min(x)", n="count(*)"),
    "join": lambda s: s.filter("k < 2").join(s, on="l.x = r.x + 1 or l.x = r.x", within="2 seconds").map(k="l_k"),
}


@pytest.mark.parametrize("name", QUERIES)
def test_answers_do_not_depend_on_splitters_and_windows(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One checkpoint, started with other numbers for each file."""
    dealt: list[Sequence[Sequence[Any]]] = []
    deal = dataframes.assign_pieces
    monkeypatch.setattr(dataframes, "assign_pieces", lambda *given: dealt.append(deal(*given)) or dealt[-1])
    tables = [tuples(number) for number in range(len(GIVEN))]
    sink = hr.sinks.parquet(tmp_path / "out")
    for number, (p, W) in enumerate(GIVEN):
        size = put(tmp_path / "in", number, tables[number])
        stream = hr.files(spark, tmp_path / "in", time="ts", name="s")
        options = {"checkpoint": tmp_path / "checkpoint", "epoch": "0 seconds", "slots": 2, "show": False}
        with QUERIES[name](stream).start(sink, splitters=p, physical_window=W, **options) as run:
            wait_until(run, lambda progress, so_far=number: progress.tuples_in == ROWS * (so_far + 1))
            assert [d for d in run.decisions if d["kind"] == "splitters"] == []
        hands = dealt.pop()
        assert dealt == []
        pieces = [portion.piece.size for hand in hands for portion in hand]
        limit = {"1 GiB": 1 << 30, "4 KiB": 4_096, None: USUAL}.get(W, W)
        assert len(hands) == min(p or 2, len(pieces)), (p, W)
        assert max(pieces) <= limit or limit < size / (ROWS / GROUP), (p, W)
        assert len(pieces) >= size / limit, (p, W)
    query = QUERIES[name](table_stream(pa.concat_tables(tables), name="s"))
    found = pq.read_table(tmp_path / "out").cast(query.schema)
    expected = hr.reference(query, epochs=tables, end=False)
    assert expected.num_rows and difference(expected, found) is None
