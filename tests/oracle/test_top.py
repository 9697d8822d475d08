"""The first tuples of each group and window: against plain SQL and a plain walk, in random queries, and broken on purpose."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar import duck
from headrace.errors import ExpressionError, QueryChanged, QueryError, QueryTypeError
from headrace.kernels.windows import aggregate, top
from headrace.operators.top import WindowTopOperator
from headrace.reference import reference
from headrace.state import merge_planning
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream

from .driving import drive, driven, random_layouts
from .strategies import SECOND, STATELESS, Table, cut, make_case, make_table
from .test_distinct import as_table
from .test_local import KEYS, check, in_epochs, odd_keys, same, seeds

# In SQL every term says where nulls are; ties are decided by `ts` and then all columns.
ORDERS = {
    "x": "x ASC NULLS LAST",
    "x desc": "x DESC NULLS LAST",
    "f desc, s": "f DESC NULLS LAST, s ASC NULLS LAST",
    "abs(x - 20) ASC, b desc nulls last": "abs(x - 20) ASC NULLS LAST, b DESC NULLS LAST",
    "coalesce(x, 0) % 3": "coalesce(x, 0) % 3 ASC NULLS LAST",
}
NAMES = ["k", "x", "f", "s", "b", "d", "day"]
SEQUENCE = ", ".join(f"{name} ASC NULLS LAST" for name in ["ts", *NAMES])

IN_SQL = """
    SELECT min(ts) OVER (PARTITION BY {by} part) AS ts, {by} make_timestamptz(part) AS window_start,
        make_timestamptz(part + {window}) AS window_end, rank() OVER (PARTITION BY {by} part ORDER BY {order}, {sequence}, twin) AS rank,
        ts AS tuple_ts, {others}
    FROM (SELECT *, row_number() OVER () AS twin, unnest(generate_series(
        (epoch_us(ts) - {window}) // {every} - 1, epoch_us(ts) // {every} + 1)) * {every} AS part FROM rows)
    WHERE part <= epoch_us(ts) AND epoch_us(ts) < part + {window}
"""


def in_sql(rows: pa.Table, n: int, by: list[str], order: str, window: int, every: int) -> pa.Table:
    sql = IN_SQL.format(
        by="".join(f"{name}, " for name in by),
        order=ORDERS[order],
        sequence=SEQUENCE,
        window=window,
        every=every,
        others=", ".join(name for name in NAMES if name not in by),
    )
    return duck.run_select(f"SELECT * FROM ({sql}) WHERE rank <= {n}", {"rows": rows})


@seeds(2)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("by", [["k"], ["s", "b"], []], ids=lambda by: "-".join(by) or "nothing")
def test_it_is_what_plain_sql_ranks(seed: int, order: str, by: list[str]) -> None:
    rows = make_table(seed, 400, odd=True, span=90 * SECOND, lateness=6 * SECOND).select(["ts", *NAMES])
    n, (window, every) = [(1, (10, 10)), (3, (10, 4)), (2, (3, 1))][(seed + len(order)) % 3]
    stream = table_stream(rows, lateness="6 seconds", name="a")
    query = stream.top(n, by=by, order=order, window=f"{window} seconds", every=f"{every} seconds")
    expected = in_sql(rows, n, by, order, window * SECOND, every * SECOND).cast(query.schema)
    assert expected.num_rows > (5 if n == 1 else 20)
    same(expected, reference(query), query)
    arrived = cut({"a": Table("a", rows, "6 seconds")}, 5, seed)
    found = drive(query, arrived, seed, change_slots=0.5, layouts=random_layouts(seed) if seed % 2 else None)
    same(expected, found, query)


def in_python(rows: pa.Table, n: int, gap: int) -> list[tuple[Any, ...]]:
    """(ts, key, start, end, rank, tuple_ts, v) of the largest v of each session of a key."""
    found = []
    for key in set(rows["k"].to_pylist()):
        mine = sorted((ts, v) for ts, k, v in _plain(rows) if k == key)
        while mine:
            size = 1
            while size < len(mine) and mine[size][0] - mine[size - 1][0] <= gap:
                size += 1
            session, mine = mine[:size], mine[size:]
            best = sorted(session, key=lambda tuple_: (-tuple_[1], tuple_))[:n]
            first, last = session[0][0], session[-1][0]
            found += [(last, key, first, last, rank, ts, v) for rank, (ts, v) in enumerate(best, start=1)]
    return found


def _plain(rows: pa.Table) -> list[tuple[Any, ...]]:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in rows.columns]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@seeds(12)
def test_sessions_are_those_of_a_plain_walk(seed: int) -> None:
    rows = (
        make_table(seed, 150, span=80 * SECOND, lateness=4 * SECOND)
        .select(["ts", "k", "x"])
        .rename_columns(["ts", "k", "v"])
    )
    query = table_stream(rows, lateness="4 seconds", name="a").top(2, by=["k"], order="v desc", session="2 seconds")
    arrived = cut({"a": Table("a", rows, "4 seconds")}, 4, seed)
    expected = sorted(in_python(rows, 2, 2 * SECOND), key=str)
    assert sorted(_plain(reference(query)), key=str) == expected
    assert sorted(_plain(drive(query, arrived, seed, change_slots=0.5)), key=str) == expected


# --- in random queries -------------------------------------------------------------------------------------------------


@seeds(40)
def test_among_other_operators(seed: int) -> None:
    operators = (*STATELESS, "top", "top", "time_join", "distinct", "time_aggregate", "each")
    check(make_case(f"top-{seed}", operators), seed, change_slots=0.3)


@seeds(16)
def test_of_tuples_that_come_too_late_and_without_an_end(seed: int) -> None:
    case = make_case(f"late-top-{seed}", ("top", "filter"), depth=(1, 2), disorder=9 * SECOND)
    check(case, seed, epochs=2 + seed % 5, reopen=0.5, end=seed % 2 == 0)


@seeds(12)
def test_under_a_new_layout_at_every_epoch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of blocks are merged by twos, and windows are multiplied one by one."""
    monkeypatch.setattr(merge_planning, "FAN_IN", 2)
    monkeypatch.setattr(aggregate, "MOST_WINDOW_ROWS", 5)
    case = make_case(f"top-layout-{seed}", ("top", "top", "filter"), depth=(1, 1, 2))
    check(case, seed, epochs=6, reopen=0.1, change_slots=0.8, layouts=random_layouts(seed))


@seeds(4)
def test_beside_operators_that_read_the_same_tuples(seed: int, tmp_path: Path) -> None:
    """These share blocks with each other. What top holds are some tuples only, so it shares none."""
    rows = make_table(seed, 120, span=40 * SECOND)
    s = table_stream(rows, name="a")
    queries = [
        s.top(2, by=["k"], order="x", window="9 seconds"),
        s.aggregate(by=["k"], window="9 seconds", l="list(x)"),
        s.top(1, by=["k"], order="x desc", window="9 seconds", every="3 seconds"),
        s.join(s.filter("x > 5"), on="l.k = r.k", within="1 second"),
        s.aggregate(by=["k"], window="5 seconds", n="count(*)"),
    ]
    r = random.Random(seed)
    r.shuffle(queries)
    run = LocalRun(queries, tmp_path, slots=2)
    epochs = cut({"a": Table("a", rows, "0 seconds")}, 4, seed)
    for epoch in epochs:
        run.epoch(epoch, splitters=2)
    for number, query in enumerate(queries):
        found = run.sinks[f"result-{number}"].table()
        same(reference(query, epochs=epochs, end=False), query.schema.empty_table() if found is None else found, query)
    run.close()


# --- meaning -----------------------------------------------------------------------------------------------------------


def ranked(query: Stream, table: pa.Table) -> list[tuple[int, int]]:
    """(rank, v) as the engine finds them, which is what the reference finds."""
    found = in_epochs(query, table, 2)
    same(reference(query), found)
    return sorted(zip(found["rank"].to_pylist(), found["v"].to_pylist(), strict=True))


def test_nulls_are_last_and_nan_is_above_the_numbers() -> None:
    nan = float("nan")
    values = [1.0, None, nan, -5.0, 2.0, None]
    table = pa.table({"ts": as_table([(at, "a", 0) for at in range(6)])["ts"], "f": values, "v": list(range(6))})
    for direction, expected in (("asc", [3, 0, 4, 2, 1, 5]), ("desc", [2, 4, 0, 3, 1, 5])):
        query = table_stream(table, name="a").top(9, order=f"f {direction}", window="1 second")
        assert [v for _, v in ranked(query, table)] == expected


def test_equal_tuples_get_successive_ranks_and_ties_go_by_the_sequence() -> None:
    table = as_table([(5, "a", 7), (5, "a", 7), (5, "a", 7), (4, "a", 9), (6, "a", 1)])
    query = table_stream(table, lateness="1 second", name="a").top(4, by=["k"], order="length(k)", window="1 second")
    assert ranked(query, table) == [(1, 9), (2, 7), (3, 7), (4, 7)]


def test_ts_is_the_smallest_of_the_window_also_where_that_tuple_is_not_among_the_first() -> None:
    table = as_table([(11 * SECOND, "a", 1), (12 * SECOND, "a", 9), (13 * SECOND, "a", 5), (19 * SECOND, "b", 2)])
    query = table_stream(table, name="a").top(1, by=["k"], order="v desc", window="10 seconds")
    assert query.columns == ["ts", "k", "window_start", "window_end", "rank", "tuple_ts", "v"]
    expected = [(11, "a", 10, 20, 1, 12, 9), (19, "b", 10, 20, 1, 19, 2)]
    for found in (reference(query), in_epochs(query, table, 2)):
        seconds = [tuple(v // SECOND if isinstance(v, int) and v > 99 else v for v in row) for row in _plain(found)]
        assert sorted(seconds) == expected


def test_the_state_is_the_best_of_each_pane() -> None:
    table = as_table([(at * 1000, "ab"[at % 2], at) for at in range(4_000)])
    query = table_stream(table, name="a").top(3, by=["k"], order="v % 100", window="1 minute")
    with driven(query, 2) as run:
        for start in range(0, 4_000, 500):
            run.epoch({"a": table.slice(start, 500)}, splitters=2)
        (state,) = run.last.operators.values()
        assert sum(block.rows for side in state.inputs for block in side) <= 8 * 2 * 2 * 3  # epochs, splitters, keys
        run.epoch(final=True)
        assert run.table().num_rows == 6


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(kind: str) -> None:
    column = KEYS[kind]
    times = pa.array(range(0, len(column) * SECOND, SECOND), pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "v": column, "x": pa.array(range(len(column)), pa.int64())})
    for over in ({"window": "3 seconds"}, {"session": "3 seconds"}):
        for by in (["v"], []):
            query = table_stream(rows, name="a").top(2, by=by, order="x % 2", **over)
            same(reference(query), in_epochs(query, rows, 3))


@pytest.mark.parametrize("by", [["f"], ["g"], ["k"], ["k", "f"]])
def test_null_nan_and_negative_zero_as_groups(by: list[str]) -> None:
    rows = odd_keys()
    for order in ("x", "f desc, g"):
        query = table_stream(rows, name="a").top(2, by=by, order=order, window="2 seconds")
        same(reference(query), in_epochs(query, rows, 3))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"order": "v desc"}, r"order was .*'asc'.*, is .*'desc'"),
        ({"n": 3}, "n was 2, is 3"),
        ({"window": "5 seconds"}, "window was 4000000, is 5000000"),
        ({"by": []}, r"by was \['k'\], is \[\]"),
    ],
)
def test_a_state_does_not_continue_with_another_top(now: dict[str, Any], words: str, tmp_path: Path) -> None:
    table = as_table([(at * SECOND, "ab"[at % 2], at) for at in range(20)])
    s = table_stream(table, name="a")
    was = {"n": 2, "by": ["k"], "order": "v", "window": "4 seconds"}
    for _ in range(2):
        run = LocalRun(s.top(**was), tmp_path)  # type: ignore[arg-type]
        run.epoch({"a": table.slice(0, 10)})
        run.close()
    with pytest.raises(QueryChanged, match=words):
        LocalRun(s.top(**{**was, **now}), tmp_path)  # type: ignore[arg-type]


def test_it_says_what_it_is() -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a")
    query = s.top(3, by=["k"], order="v  desc, k", window="1 minute")
    assert "top 3 by k window 1 minute every 1 minute: v desc, k" in repr(query)
    assert "top 3 by k window 1 minute every 1 minute: v desc, k" in query.explain()
    assert "top 1 by nothing session 5 seconds: v" in repr(s.top(1, order="v", session="5 seconds"))


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"window": None}, QueryError, "top needs exactly one window"),
        ({"session": "1 minute"}, QueryError, "top needs exactly one window"),
        ({"window": None, "session": "1 minute", "every": "1 second"}, QueryError, "every is for time windows"),
        ({"window": "0 seconds"}, QueryError, "window must be more than zero"),
        ({"window": None, "session": "0 seconds"}, QueryError, "session must be more than zero"),
        ({"every": "2 minutes"}, QueryError, "longer than the window"),
        ({"n": 0}, QueryError, "n must be at least 1; found 0"),
        ({"n": True}, QueryTypeError, "n must be a whole number of tuples; found True"),
        ({"order": 3}, QueryTypeError, "order must be text; found 3"),
        (
            {"order": ""},
            ExpressionError,
            "order = '' has an empty term; expected expressions, such as 'distance asc, id'",
        ),
        ({"order": "v,"}, ExpressionError, "empty term"),
        ({"order": "desc"}, ExpressionError, "order = 'desc'"),
        ({"order": "nothing desc"}, ExpressionError, "unknown column 'nothing'"),
        ({"order": "v desc nulls first"}, ExpressionError, "nulls are last in both directions"),
        ({"order": "[v]"}, QueryTypeError, "which is a list.*; order by a field or an element of it"),
        ({"order": "sum(v)"}, ExpressionError, "aggregate"),
        ({"order": "v limit 3"}, ExpressionError, "order = 'v limit 3'"),
        ({"order": "1"}, ExpressionError, "order = '1' orders by '1', which uses no column"),
        ({"order": "v, pi()"}, ExpressionError, r"orders by 'pi\(\)', which uses no column"),
        ({"order": "ascending"}, ExpressionError, "unknown column 'ascending'; there are ts, k, v$"),
        (
            {"order": "v + 1 ascending"},
            ExpressionError,
            r"a direction is asc or desc, not ascending; write 'v \+ 1 asc'",
        ),
        ({"by": ["x"]}, QueryError, "unknown column 'x'"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a")
    with pytest.raises(error, match=words):
        s.top(**{"n": 1, "by": ["k"], "order": "v", "window": "1 minute", **given})


@pytest.mark.parametrize("name", ["rank", "tuple_ts", "window_start", "Rank"])
def test_a_column_that_results_have_themselves(name: str) -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a").map("k", **{name: "v"})
    with pytest.raises(
        QueryError, match=rf"top cannot make a column '{name}'.*which every result .*: s\.drop\('{name}'\) or s\.rename"
    ):
        s.top(1, order="k", window="1 minute")


def test_an_order_that_fails_on_a_tuple_is_named() -> None:
    table = as_table([(0, "a", 1), (1, "x", 2)])
    query = table_stream(table, name="a").top(1, order="CAST(CASE WHEN v = 2 THEN k END AS INT)", window="1 minute")
    with pytest.raises(hr.DataError, match=re.escape("k=x")):
        in_epochs(query, table, 1)


# --- broken on purpose -------------------------------------------------------------------------------------------------


def forgets_the_first_time(patch: pytest.MonkeyPatch) -> None:
    """The smallest `ts` of the tuples that are left, instead of all."""
    real = top._best

    def forgetful(operator: Any, rows: pa.Table, unit: str) -> pa.Table:
        found = real(operator, rows, unit)
        at = found.schema.get_field_index(top.FIRST)
        return found.set_column(at, top.FIRST, pa.array(aggregate.times(found)))

    patch.setattr(top, "_best", forgetful)


def ties_as_they_come(patch: pytest.MonkeyPatch) -> None:
    import numpy as np

    patch.setattr(
        top, "number_groups", lambda rows, names: rows.append_column(aggregate.SEQ, pa.array(np.arange(rows.num_rows)))
    )


def keeps_too_few_of_a_pane(patch: pytest.MonkeyPatch) -> None:
    real = top.best_of_panes
    patch.setattr(top, "best_of_panes", lambda operator, tuples: real(operator, tuples).slice(1))


def merges_panes_of_all_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merge_planning, "FAN_IN", 2)
    patch.setattr(WindowTopOperator, "merged", lambda self, side, state: state.slice(1))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "canary", [forgets_the_first_time, ties_as_they_come, keeps_too_few_of_a_pane, merges_panes_of_all_groups]
)
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        case = make_case(f"canary-top-{seed}", ("top",), depth=(1,))
        arrived = cut(case.tables, 6, seed)
        try:
            same(reference(case.query, epochs=arrived), drive(case.query, arrived, seed))
        except (AssertionError, hr.HeadraceError):
            return True
        return False

    assert any(wrong(seed) for seed in range(60))
