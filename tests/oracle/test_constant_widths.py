"""Distances whose limits are computed from constants are searched by an index; the pairs are those of plain Python."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.difference import difference
from headrace.expressions import join_predicate
from headrace.reference import reference
from headrace.testing import run_locally, table_stream

SECOND = 1_000_000
ON = {
    "abs(l.x - r.x) < 1 / 3": lambda a, b: abs(a - b) < 1 / 3,
    "abs(l.x - r.x) <= 2 * 3 and pi() * l.x < 2 * 4 * r.x": lambda a, b: abs(a - b) <= 6 and math.pi * a < 8 * b,
    "abs(l.x - r.x) < round(1.26, 1) and least(l.x, 1.5) <= greatest(r.x, 0.5)": lambda a, b: (
        abs(a - b) < 1.3 and min(a, 1.5) <= max(b, 0.5)
    ),
}


def rows(r: random.Random, count: int) -> pa.Table:
    times = pa.array([SECOND * at for at in range(count)], pa.timestamp("us", "UTC"))
    near = [r.choice([r.uniform(-4, 4), r.randrange(-4, 4) / 3, float(r.randrange(-4, 4))]) for _ in range(count)]
    return pa.table({"ts": times, "n": range(count), "x": near})


@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("seed", range(3))
def test_an_index_with_a_computed_limit_finds_every_pair(on: str, seed: int, tmp_path: Path) -> None:
    r = random.Random(f"{on} {seed}")
    left, right = rows(r, 60), rows(r, 60)
    assert join_predicate(on, left.schema, right.schema).near is not None
    l, rs = table_stream(left, name="l"), table_stream(right, name="r")
    query = l.join(rs, on=on, within="20 seconds").map("l_n", "r_n")
    found = run_locally(query, tmp_path, slots=2)
    assert difference(reference(query), found) is None
    wanted = {
        (i, j)
        for i, a in enumerate(left["x"].to_pylist())
        for j, b in enumerate(right["x"].to_pylist())
        if abs(i - j) <= 20 and ON[on](a, b)
    }
    assert {(row["l_n"], row["r_n"]) for row in found.to_pylist()} == wanted
