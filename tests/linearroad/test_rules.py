"""The query on one sequential machine, and in the engine, against the rules written down plainly."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import table_stream
from headrace_linearroad import query
from headrace_linearroad.history import Histories
from headrace_linearroad.profiles import Profile
from tests.linearroad import plain
from tests.linearroad.traffic import as_table, traffic


def rows(table: pa.Table) -> Counter[tuple[int, ...]]:
    """Without `ts`, which says what `time` says."""
    time = table["ts"].cast(pa.int64()).to_numpy() // 1_000_000
    assert (time == table["time"].to_numpy()).all()
    columns = [column.to_pylist() for column in table.drop_columns(["ts"]).columns]
    return Counter(zip(*columns, strict=True))


def differ(expected: dict[str, plain.Rows], found: dict[str, pa.Table]) -> list[str]:
    told = []
    for name, right in expected.items():
        have, want = rows(found[name]), Counter(right)
        told += [f"{name} lacks {row}" for row in list((want - have).elements())[:3]]
        told += [f"{name} has {row}" for row in list((have - want).elements())[:3]]
    return told


@pytest.mark.parametrize(("seed", "profile"), list(itertools.product(range(6), Profile)))
def test_the_rules(seed: int, profile: Profile) -> None:
    tuples = traffic(seed)
    expected = plain.answers(tuples, profile)
    assert any(row[3] for row in expected["tolls"])
    assert expected["accidents"]
    assert any(row[4] for row in expected["balances"])
    streams = query.answers(table_stream(as_table(tuples), name="input"), profile, Histories(None, None))
    found = {name: hr.reference(stream) for name, stream in streams.items() if name in expected}
    assert differ(expected, found) == []
