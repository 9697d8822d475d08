"""Predicates that leave many pairs in doubt: the loop gives up, DuckDB does the rest, and somebody hears of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.difference import difference
from headrace.kernels.joins import pair_loop, undecided_pairs
from headrace.query import nodes
from headrace.stream import Stream, node_of
from headrace.telemetry.progress import IN_DOUBT
from headrace.testing import LocalRun, arrow_table, table_stream

ON = "exp(l.x - r.x) = 1 and l.n <> r.n"  # in doubt where l.x = r.x and l.n differs: exp is not exact
SECOND = 1_000_000


def rows(many: int, of: Callable[[np.ndarray], Any], seed: int = 0) -> pa.Table:
    """Numbered rows, whose x is some function of the number."""
    n = np.arange(many)
    return pa.table({"x": pa.array(np.asarray(of(n), np.float64)), "n": pa.array(n + seed), "m": pa.array(n % 7)})


def stream(table: pa.Table, name: str) -> Stream:
    times = pa.array(np.zeros(table.num_rows, np.int64)).cast(pa.timestamp("us", "UTC"))
    return table_stream(table.add_column(0, "ts", times), name=name)


def few(n: np.ndarray) -> Any:
    return n % 400


def many(n: np.ndarray) -> Any:
    return n % 3


def many_in_the_end(n: np.ndarray) -> Any:
    """So that the loop has told of some before it gives up."""
    return np.where(n < 0.6 * len(n), -n - 1, 0)


def one_odd(n: np.ndarray) -> Any:
    return np.where(n == 0, np.nan, n % 400)


SHAPES = {  # left, right, whether the loop gives up
    "few": (rows(400, few), rows(500, few, 1000), False),
    "many": (rows(400, many), rows(500, many, 1000), True),
    "many, and more on the left": (rows(500, many), rows(400, many, 1000), True),
    "many in the end": (rows(400, many_in_the_end), rows(500, many, 1000), True),
    "many in the end, and more on the left": (rows(500, many), rows(400, many_in_the_end, 1000), True),
    "one odd tuple": (rows(400, one_odd), rows(500, few, 1000), False),
}


def beside(left: pa.Table, right: pa.Table) -> Stream:
    return stream(left, "a").join(arrow_table(right, name="t"), on=ON)


def joined(left: pa.Table, right: pa.Table) -> Stream:
    return stream(left, "a").join(stream(right, "b"), on=ON, within="1 second")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops for few pairs, that hand on few at a time."""
    monkeypatch.setattr(pair_loop, "WORTH_COMPILING", 0)
    monkeypatch.setattr(pair_loop, "FIRST_BATCH_PAIRS", 600)
    monkeypatch.setattr(pair_loop, "PAIRS_PER_BATCH", 2400)
    undecided_pairs.take_noted()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [beside, joined])
def test_a_loop_gives_up_where_many_are_in_doubt_and_nothing_is_lost(kind: Any, shape: str, tmp_path: Path) -> None:
    left, right, gives_up = SHAPES[shape]
    query = kind(left, right)
    run = LocalRun(query.map("l_n", "r_n"), tmp_path / "state")
    name = next(iter(run.driver.progress.joins))
    before = run.driver.progress.joins[name]
    assert before.endswith("DuckDB where it leaves many in doubt")
    tables = {name: source.origin.table() for name, source in nodes.named_sources(node_of(query)).items()}
    run.epoch(tables)
    found = run.results().drop_columns(["ts"])
    expected = duck.run_select(f"SELECT l.n AS l_n, r.n AS r_n FROM l JOIN r ON {ON}", {"l": left, "r": right})
    assert difference(expected, found) is None
    assert (run.driver.progress.joins[name] == before + IN_DOUBT) == gives_up
    run.epoch({n: t.slice(0, 0) for n, t in tables.items()})
    assert run.driver.progress.joins[name].count(IN_DOUBT) == gives_up, "it is said once, and stays said"
    run.close()


def test_who_asks_hears_it_once() -> None:
    undecided_pairs.note_undecided("b")
    undecided_pairs.note_undecided("a")
    undecided_pairs.note_undecided("b")
    assert undecided_pairs.take_noted() == ["a", "b"]
    assert undecided_pairs.take_noted() == []


def test_a_few_are_borne_and_many_are_not() -> None:
    assert not undecided_pairs.is_too_many(0, 0, 1000)
    assert not undecided_pairs.is_too_many(1000 // 128, 0, 1000)
    assert undecided_pairs.is_too_many(1 + 1000 // 128, 0, 1000)
    assert not undecided_pairs.is_too_many(1000 // 16, 1000, 1000)
    assert undecided_pairs.is_too_many(1000 // 8, 1000, 1000)
