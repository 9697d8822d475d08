"""What goes below a join, and what must not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace import plan as p
from headrace.columnar.types import TS_TYPE
from headrace.compile import compile_query
from headrace.difference import difference
from headrace.reference import reference
from headrace.stream import Stream, node_of
from headrace.testing import run_locally, table_stream

from . import queries


def pushed(query: Stream) -> list[tuple[str, str]]:
    edges = compile_query([node_of(query)]).edges
    return [(e.producer, s.text) for e in edges for s in e.steps if isinstance(s, p.FilterStep) and s.pushed]


def test_one_sided_conditions_go_below_a_time_join() -> None:
    on = "l.caller = r.phone and l.began > 5 and r.phone < r.reason and l.began < l.ended"
    query = queries.calls().join(queries.suspects(), on=on, within="60 seconds")
    assert pushed(query) == [
        ("calls", "((began > 5))"),
        ("calls", "((began < ended))"),
        ("suspects", "((phone < reason))"),
    ]
    assert [s.inputs for s in query.plan(slots=2).subqueries] == [("calls", "suspects")]  # no subquery of their own


@pytest.mark.parametrize(
    ("on", "window"),
    [
        ("l.caller = r.phone and l.began > 5", {"last": 10}),  # counts all tuples
        ("l.caller = r.phone and l.began // l.ended > 5", {"within": "60 seconds"}),  # may fail
        ("l.caller = r.phone or l.began > 5", {"within": "60 seconds"}),
        ("l.caller = r.phone and 1 < 2", {"within": "60 seconds"}),
    ],
)
def test_what_stays_in_the_join(on: str, window: dict[str, object]) -> None:
    assert pushed(queries.calls().join(queries.suspects(), on=on, **window)) == []


def test_a_stream_that_is_used_twice_is_still_read_once() -> None:
    calls = queries.calls().filter("began > 1")
    query = calls.join(calls, on="l.caller = r.callee and l.began > 5", within="60 seconds")
    assert len(compile_query([node_of(query)]).sources) == 1


def table() -> pa.Table:
    ts = pa.array([n * 1_000_000 for n in range(40)]).cast(TS_TYPE)
    return pa.table(
        {"ts": ts, "a": [n % 5 for n in range(40)], "x": [None if n % 7 == 0 else n / 3 for n in range(40)]}
    )


@pytest.mark.parametrize("on", ["l.a = r.a and l.x > 4", "l.a < r.a and r.x <= 9.5 and l.x < 3", "l.x > 12"])
@pytest.mark.parametrize("strategy", ["subquery", "operator"])
def test_oracle_pushed_conditions(on: str, strategy: str, tmp_path: Path) -> None:
    stream = table_stream(table(), name="t").filter("a < 4")
    for number, query in enumerate(
        [
            stream.join(stream, on=on, within="4 seconds"),
            stream.join(table_stream(table(), name="u"), on=on, within=("1 second", "6 seconds")),
        ]
    ):
        expected = reference(query)
        assert expected.num_rows > 0
        found = run_locally(query, tmp_path / str(number), slots=3, strategy=strategy)
        assert difference(expected, found) is None
