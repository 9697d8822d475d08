"""A time-window join whose window is zero on one side: against DuckDB over the whole input, in every kernel and kind."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import QueryError
from headrace.kernels.joins import pairs, theta_join
from headrace.operators import joins
from headrace.reference import reference
from headrace.testing import table_stream

from .driving import drive, driven, random_layouts
from .strategies import SECOND, Table, cut, make_table
from .test_distinct import as_table
from .test_local import same, seeds
from .test_outer_joins import ON, in_sql

HOWS = ("inner", "left", "right", "full")
ONE_SIDED = [("0 seconds", "4 seconds"), ("4 seconds", "0 seconds")]


@seeds(2)
@pytest.mark.parametrize("on", ON)
@pytest.mark.parametrize("how", HOWS)
def test_it_is_the_join_of_sql(seed: int, how: str, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are whole seconds, so that many pairs have equal times and lie on the border of the window."""
    if seed % 2:
        for module, name, value in (
            (joins, "FEW_ROWS", 0),
            (theta_join, "FEWEST_SLICE_PAIRS", 20),
            (pairs, "MOST_PAIRS", 7),
        ):
            monkeypatch.setattr(module, name, value)
    r = random.Random(f"{seed}-{how}-{on}")
    tables = {n: make_table(r.getrandbits(32), 120, odd=True, span=40 * SECOND, lateness=6 * SECOND) for n in "lr"}
    left, right = (table_stream(rows, lateness="6 seconds", name=name) for name, rows in tables.items())
    within = r.choice(ONE_SIDED)
    w1, w2 = (int(window.split()[0]) * SECOND for window in within)
    query = left.join(right, on=on, within=within, how=how)
    expected = in_sql(how, on, w1, w2, tables).cast(query.schema)
    same(expected, reference(query), query)
    arrived = cut({name: Table(name, rows, "6 seconds") for name, rows in tables.items()}, r.choice([1, 3, 6]), seed)
    layouts = random_layouts(seed) if seed % 2 else None
    same(expected, drive(query, arrived, seed, change_slots=0.5, layouts=layouts), query)


@pytest.mark.parametrize(("within", "apart"), [(ONE_SIDED[0], [-4, -1, 0]), (ONE_SIDED[1], [0, 1, 4])])
@pytest.mark.parametrize("on", ["l.k = r.k", "l.v <= r.v"])
def test_a_tuple_may_be_at_the_same_time_and_on_one_side_only(within: Any, apart: list[int], on: str) -> None:
    offsets = [-5, -4, -1, 0, 1, 4, 5]  # of r.ts from l.ts
    left, right = as_table([(0, "a", 0)]), as_table([(at * SECOND, "a", at + 5) for at in offsets])
    query = table_stream(left, name="l").join(table_stream(right, lateness="1 minute", name="r"), on=on, within=within)
    for found in (
        reference(query),
        drive(query, [{"l": left}, {"r": right}], 1),
        drive(query, [{"r": right}, {"l": left}], 2),
    ):
        assert sorted(at - 5 for at in found["r_v"].to_pylist()) == apart
        assert found["ts"].cast(pa.int64()).to_pylist() == [min(0, at - 5) * SECOND for at in found["r_v"].to_pylist()]


@pytest.mark.parametrize("within", ONE_SIDED)
def test_the_side_that_must_not_be_earlier_is_not_kept(within: Any) -> None:
    """With W1 = 0 a left tuple waits only for right tuples of its own time: the right watermark lets it go."""
    rows = as_table([(at * SECOND, "a", at) for at in range(100)])
    left, right = (table_stream(rows, name=name) for name in "lr")
    with driven(left.join(right, on="l.k = r.k", within=within), 2) as run:
        for start in range(0, 100, 10):
            run.epoch({name: rows.slice(start, 10) for name in "lr"})
        (state,) = run.last.operators.values()
        kept = [sum(block.rows for block in side) for side in state.inputs]
        assert max(kept) >= 5 and kept[within.index("0 seconds")] <= 10  # the blocks of the last epoch


def test_zero_on_both_sides_is_refused() -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a")
    for within in ("0 seconds", ("0 seconds", "0 minutes")):
        with pytest.raises(QueryError, match=r"within must be more than zero on at least one side; found .*0 seconds"):
            s.join(s, on="l.k = r.k", within=within)
    with pytest.raises(QueryError, match=r"within must be more than zero; found '0 seconds'"):
        s.distinct(by=["k"], within="0 seconds")
