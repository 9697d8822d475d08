"""Time windows that begin some time after the multiples of `every`: against plain SQL, and in random queries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.columnar import duck
from headrace.errors import QueryError, QueryTypeError
from headrace.kernels.windows.time_windows import RegularWindows
from headrace.reference import reference
from headrace.testing import table_stream

from .driving import drive, driven
from .strategies import SECOND, STATELESS, Table, cut, make_case, make_table
from .test_distinct import as_table
from .test_local import check, same, seeds

PARTIAL = {"n": "count(*)", "t": "sum(x)", "m": "max(x) - min(x)"}
WHOLE = {"n": "count(*)", "t": "sum(x)", "q": "quantile_disc(x, 0.5)"}
WINDOWS = [(5, 5, 2), (10, 5, 3), (10, 4, 1), (7, 3, 2), (3, 1, 0.5), (86_400, 43_200, 7_200)]

IN_SQL = """
    SELECT min(ts) AS ts, {keys} make_timestamptz(begin) AS window_start, make_timestamptz(begin + {window}) AS window_end,
        {functions}
    FROM (SELECT *, unnest(generate_series(
        (epoch_us(ts) - {offset} - {window}) // {every} - 1, (epoch_us(ts) - {offset}) // {every} + 1)) * {every} + {offset} AS begin
        FROM rows)
    WHERE begin <= epoch_us(ts) AND epoch_us(ts) < begin + {window} GROUP BY {keys} begin
"""


def in_sql(rows: pa.Table, by: list[str], windows: tuple[float, float, float], functions: dict[str, str]) -> pa.Table:
    """Candidates on both sides of a tuple, then the definition of a window."""
    window, every, offset = (int(seconds * SECOND) for seconds in windows)
    computed = ", ".join(f"{text} AS {name}" for name, text in functions.items())
    keys = "".join(f"{name}, " for name in by)
    sql = IN_SQL.format(keys=keys, window=window, every=every, offset=offset, functions=computed)
    return duck.run_select(sql, {"rows": rows})


@seeds(4)
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("functions", [PARTIAL, WHOLE], ids=["partials", "tuples"])
def test_windows_are_those_of_sql(seed: int, windows: tuple[float, float, float], functions: dict[str, str]) -> None:
    start = (0, -40 * SECOND, 1_700_000_000 * SECOND)[seed % 3]
    rows = make_table(seed, 300, odd=True, start=start, span=90 * SECOND, grain=250_000, lateness=8 * SECOND)
    by = [["k"], [], ["s", "b"]][seed % 3]
    window, every, offset = (f"{seconds} seconds" for seconds in windows)
    stream = table_stream(rows, lateness="8 seconds", name="a")
    query = stream.aggregate(by=by, window=window, every=every, offset=offset, **functions)
    expected = in_sql(rows, by, windows, functions).cast(query.schema)
    same(expected, reference(query), query)
    found = drive(query, cut({"a": Table("a", rows, "8 seconds")}, 5, seed), seed, change_slots=0.5)
    same(expected, found, query)


@seeds(20)
def test_among_other_operators(seed: int) -> None:
    operators = (*STATELESS, "time_aggregate", "time_aggregate", "time_join", "distinct", "session_aggregate")
    check(make_case(f"offset-{seed}", operators), seed, change_slots=0.3)


@pytest.mark.parametrize("functions", [PARTIAL, WHOLE], ids=["partials", "tuples"])
def test_a_window_closes_when_the_watermark_reaches_its_end(functions: dict[str, str]) -> None:
    """Windows are [2, 12), [12, 22): the tuple at 12 closes the first."""
    table = as_table([(at * SECOND, "a", at) for at in (1, 2, 11, 12, 21, 22)]).rename_columns(["ts", "k", "x"])
    query = table_stream(table, name="a").aggregate(by=["k"], window="10 seconds", offset="2 seconds", **functions)
    with driven(query, 2) as run:
        closed = []
        for row in range(6):
            run.epoch({"a": table.slice(row, 1)})
            closed.append(run.table().num_rows)
        (state,) = run.last.operators.values()
        assert sum(block.rows for side in state.inputs for block in side) == 1  # what is closed is gone
        assert closed == [0, 1, 1, 2, 2, 3]
        assert run.table()["n"].to_pylist() == [1, 2, 2]


def test_panes_are_as_long_as_without_an_offset() -> None:
    windows = RegularWindows(10, 4, 3)
    assert windows.panes == RegularWindows(2, 2, 1)


def test_an_offset_of_zero_is_the_same_query() -> None:
    stream = table_stream(as_table([(0, "a", 0)]), name="a")
    plain, zero = (stream.aggregate(window="1 day", n="count(*)", offset=offset) for offset in (None, "0 seconds"))
    assert repr(plain) == repr(zero)
    assert "offset" not in repr(plain) + plain.explain()
    shifted = stream.aggregate(window="1 day", n="count(*)", offset="2 hours")
    assert "window 1 day every 1 day offset 2 hours" in repr(shifted)
    assert "window 1 day every 1 day offset 2 hours" in shifted.explain()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            {"window": "1 hour", "offset": "1 hour"},
            QueryError,
            r"shorter than .* 1 hour; found '1 hour'; without it there are the same windows",
        ),
        (
            {"window": "1 hour", "every": "10 minutes", "offset": "25 minutes"},
            QueryError,
            "offset='5 minutes' gives the same windows",
        ),
        ({"window": "1 hour", "offset": "-1 second"}, QueryError, "offset must be zero or more"),
        ({"window": "1 hour", "offset": 3}, QueryTypeError, "offset must be a duration; found 3"),
        (
            {"last": 3, "offset": "1 second"},
            QueryError,
            "offset is for time windows, window='1 day'; found offset='1 second'",
        ),
        ({"session": "1 hour", "offset": "1 second"}, QueryError, "offset is for time windows"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        table_stream(as_table([(0, "a", 0)]), name="a").aggregate(**{"n": "count(*)", **given})
