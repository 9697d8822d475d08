"""Sessions: against plain Python and plain SQL that share nothing with engine or reference, and in random queries."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar import duck, numba_loops
from headrace.errors import QueryError, QueryTypeError
from headrace.kernels.windows import sessions
from headrace.operators import session_aggregate
from headrace.reference import reference
from headrace.state.blocks import BlockReader
from headrace.stream import Stream
from headrace.testing import table_stream

from .driving import drive, driven, in_random_epochs
from .strategies import SECOND, STATELESS, Table, cut, make_case, make_table
from .test_distinct import Row, as_table, made_up
from .test_local import KEYS, check, in_epochs, odd_keys, same, seeds

PARTIAL = {"n": "count(*)", "t": "sum(v)", "m": "max(v) - min(v)"}  # a row for every open session
WHOLE = {"n": "count(*)", "t": "sum(v)", "m": "max(v) - min(v)", "l": "list(v)"}  # its tuples, in sequence
Session = tuple[Any, int, int, int, int, int]


def plain(rows: list[Row], gap: int) -> Counter[Session]:
    """(key, first, last, how many, sum, spread) of every session."""
    found: Counter[Session] = Counter()
    for key in {key for _, key, _ in rows}:
        mine = sorted((ts, value) for ts, k, value in rows if k == key)
        while mine:
            size = 1
            while size < len(mine) and mine[size][0] - mine[size - 1][0] <= gap:
                size += 1
            session, mine = mine[:size], mine[size:]
            values = [value for _, value in session]
            spread = max(values) - min(values)
            found[key, session[0][0], session[-1][0], size, sum(values), spread] += 1
    return found


def sessions_of(table: pa.Table) -> Counter[Session]:
    assert table["ts"].equals(table["window_end"])
    names = ["k", "window_start", "window_end", "n", "t", "m"]
    columns = [c.cast(pa.int64()) if c.type != pa.string() else c for c in map(table.column, names)]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


def query_over(table: pa.Table, gap: str, functions: dict[str, str], lateness: str = "0 seconds") -> Stream:
    return table_stream(table, lateness=lateness, name="a").aggregate(by=["k"], session=gap, **functions)


@seeds(20)
@pytest.mark.parametrize("functions", [PARTIAL, WHOLE], ids=["partials", "tuples"])
@pytest.mark.parametrize("best_effort", [False, True])
def test_sessions_are_those_of_a_plain_walk(
    seed: int, functions: dict[str, str], best_effort: bool, tmp_path: Path
) -> None:
    r = random.Random(seed)
    lateness, gap = r.choice([0, 5]), r.choice([1, 2, 4])
    rows = made_up(r, lateness * SECOND)
    table = as_table(rows)
    query = query_over(table, f"{gap} seconds", functions, f"{lateness} seconds")
    expected = plain(rows, gap * SECOND)
    found = in_random_epochs(query, table, tmp_path / "state", seed, best_effort=best_effort)
    assert sessions_of(found) == expected
    assert sessions_of(reference(query)) == expected


@seeds(40)
def test_sessions_among_other_operators(seed: int) -> None:
    operators = (*STATELESS, "session_aggregate", "session_aggregate", "time_join", "distinct", "count_aggregate")
    check(make_case(f"sessions-{seed}", operators), seed, change_slots=0.3)


@seeds(20)
def test_sessions_of_tuples_that_come_too_late_and_without_an_end(seed: int) -> None:
    case = make_case(f"late-sessions-{seed}", ("session_aggregate", "filter"), depth=(1, 2), disorder=9 * SECOND)
    check(case, seed, epochs=2 + seed % 5, reopen=0.5, end=seed % 2 == 0)


# --- against plain SQL -------------------------------------------------------------------------------------------------

IN_SQL = """
    SELECT max(ts) AS ts, {keys} min(ts) AS window_start, max(ts) AS window_end, {functions} FROM (
        SELECT *, count(*) FILTER (WHERE begins) OVER (PARTITION BY {by} ORDER BY ts) AS session FROM (
            SELECT *, coalesce(epoch_us(ts) - epoch_us(lag(ts) OVER (PARTITION BY {by} ORDER BY ts)) > {gap}, true) AS begins
            FROM rows
        )
    ) GROUP BY {by}, session
"""


def in_sql(rows: pa.Table, by: list[str], gap: int, functions: dict[str, str]) -> pa.Table:
    computed = ", ".join(f"{text} AS {name}" for name, text in functions.items())
    keys = "".join(f"{name}, " for name in by)
    sql = IN_SQL.format(by=", ".join(by) or "1 = 1", keys=keys, gap=gap, functions=computed)
    return duck.run_select(sql, {"rows": rows})


@seeds(6)
@pytest.mark.parametrize("by", [["k"], ["s"], ["k", "b"], ["f"], []], ids=lambda by: "-".join(by) or "nothing")
def test_sessions_are_those_of_window_functions_in_sql(seed: int, by: list[str]) -> None:
    rows = make_table(seed, 400, odd=True, span=600 * SECOND, grain=250_000, lateness=8 * SECOND)
    functions = {"n": "count(*)", "t": "sum(x)", "m": "min(s)", **({"q": "quantile_disc(x, 0.5)"} if seed % 2 else {})}
    gap = (500_000, 3 * SECOND, 20 * SECOND)[seed % 3]
    query = table_stream(rows, lateness="8 seconds", name="a").aggregate(
        by=by, session=f"{gap // 1000} milliseconds", **functions
    )
    found = drive(query, cut({"a": Table("a", rows, "8 seconds")}, 5, seed), seed, change_slots=0.5)
    expected = in_sql(rows, by, gap, functions)
    assert expected.num_rows > (3 if by else 0)
    same(expected.cast(found.schema), found, query)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("by", [["f"], ["g"], ["k"], ["k", "f"]])
def test_null_nan_and_negative_zero_as_groups(by: list[str], slots: int) -> None:
    rows = odd_keys()
    for functions in ({"n": "count(*)", "t": "sum(x)"}, {"l": "list(x)"}):
        query = table_stream(rows, name="a").aggregate(by=by, session="2 seconds", **functions)
        found = in_epochs(query, rows, slots)
        same(reference(query), found)
        assert found.num_rows == in_sql(rows, by, 2 * SECOND, {"n": "count(*)"}).num_rows


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(kind: str) -> None:
    column = KEYS[kind]
    times = pa.array(range(0, len(column) * SECOND, SECOND), pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "v": column, "x": pa.array(range(len(column)), pa.int64())})
    for by in (["v"], ["x", "v"]):
        query = table_stream(rows, name="a").aggregate(by=by, session="3 seconds", t="sum(x)")
        found = in_epochs(query, rows, 3)
        same(reference(query), found)
        assert found.num_rows == in_sql(rows, by, 3 * SECOND, {"t": "sum(x)"}).num_rows


# --- borders, time and state -------------------------------------------------------------------------------------------


def test_a_pause_of_the_gap_goes_on_and_a_longer_one_ends_it() -> None:
    rows = [
        (0, "a", 0),
        (10 * SECOND, "a", 1),
        (20 * SECOND + 1, "a", 2),
        (15 * SECOND, None, 3),
        (25 * SECOND, None, 4),
    ]
    query = query_over(as_table(rows), "10 seconds", PARTIAL)
    assert sorted(n for _, _, _, n, _, _ in sessions_of(reference(query))) == [1, 2, 2]
    same(reference(query), in_epochs(query, as_table(rows), 2))


@pytest.mark.parametrize("functions", [PARTIAL, WHOLE], ids=["partials", "tuples"])
def test_a_result_comes_as_soon_as_the_watermark_is_more_than_the_gap_past_it(functions: dict[str, str]) -> None:
    table = as_table([(0, "a", 0), (10 * SECOND, "b", 0), (10 * SECOND + 1, "b", 0)])
    with driven(query_over(table, "10 seconds", functions), 2) as run:
        found = []
        for row in range(3):
            run.epoch({"a": table.slice(row, 1)})
            found.append(run.table().num_rows)
        assert found == [0, 0, 1]


def test_a_tuple_between_two_parts_of_a_session_joins_them() -> None:
    """The two were in the state by themselves, whoever brought them."""
    rows = [(0, "a", 1), (20 * SECOND, "a", 2), (10 * SECOND, "a", 3)]
    table = as_table(rows)
    query = query_over(table, "10 seconds", PARTIAL, lateness="1 minute")
    with driven(query, 3) as run:
        for row in range(3):
            run.epoch({"a": table.slice(row, 1)})
            run.close()
            run.open(1 + row)
        run.epoch(final=True)
        assert sessions_of(run.table()) == {("a", 0, 20 * SECOND, 3, 6, 2): 1}


def test_however_long_a_session_is_its_state_is_one_row() -> None:
    rows = [(number * SECOND, "ab"[number % 2], 1) for number in range(400)]
    table = as_table(rows)
    with driven(query_over(table, "5 seconds", PARTIAL), 2) as run:
        for start in range(0, 400, 40):
            run.epoch({"a": table.slice(start, 40)}, splitters=2)
            (state,) = run.last.operators.values()
            assert sum(block.rows for side in state.inputs for block in side) == 2
        run.epoch(final=True)
        (state,) = run.last.operators.values()
        assert not any(state.inputs)
        assert sessions_of(run.table()) == plain(rows, 5 * SECOND)


def test_what_is_stored_of_a_session_has_the_names_it_had() -> None:
    """Other names would be another stored format."""
    table = as_table([(0, "a", 0)])
    with driven(query_over(table, "5 seconds", {"n": "count(*)", "a": "avg(v)"}), 1) as run:
        run.epoch({"a": table})
        (state,) = run.last.operators.values()
        ((block,),) = state.inputs
        assert run.run is not None
        stored = BlockReader(run.run.store.storage).open(block).table
    assert stored.column_names == ["k", "ts", "__first", "__f0m0v", "__f1m0s", "__f1m0c"]


def test_times_before_1970() -> None:
    rows = [(ts * SECOND, "a", 1) for ts in (-100, -95, -7, -3, 1, 4, 30)]
    query = query_over(as_table(rows), "5 seconds", PARTIAL)
    assert sessions_of(in_epochs(query, as_table(rows), 2)) == plain(rows, 5 * SECOND)


# --- how it is asked for and shown -------------------------------------------------------------------------------------


def test_it_stands_behind_a_join_by_the_same_key_without_an_exchange() -> None:
    s = table_stream(as_table([(0, "a", 0)]), name="a")
    joined = s.join(s, on="l.k = r.k", within="1 second").map(k="l_k", v="l_v")
    query = joined.aggregate(by=["k"], session="1 minute", n="count(*)")
    assert query.plan(slots=4).shuffles == 1
    assert "aggregate by k session 1 minute: n = count(*)" in repr(query)
    assert "aggregate by k session 1 minute: count(*)" in query.explain()
    assert query.columns == ["ts", "k", "window_start", "window_end", "n"]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"session": "1 minute", "window": "1 minute"}, QueryError, "exactly one window"),
        ({"session": "1 minute", "last": 3}, QueryError, "exactly one window"),
        ({}, QueryError, "session='30 minutes'"),
        ({"session": "1 minute", "every": "10 seconds"}, QueryError, "has no every; found every='10 seconds'"),
        ({"session": "1 minute", "every": 3}, QueryError, "has no every; found every=3"),
        ({"session": "0 seconds"}, QueryError, "session must be more than zero; found '0 seconds'"),
        ({"session": "-1 second"}, QueryError, "session must be more than zero"),
        ({"session": "1 month"}, QueryError, "session cannot be given in month"),
        ({"session": 30}, QueryTypeError, "session must be a duration; found 30"),
        ({"session": "1 minute", "by": ["x"]}, QueryError, "unknown column 'x'"),
        ({"session": "1 minute", "window_end": "max(ts)"}, QueryError, "window_end"),
        ({"session": "1 minute", "n": "v + 1"}, QueryError, "no aggregate function"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    with pytest.raises(error, match=words):
        table_stream(as_table([(0, "a", 0)]), name="a").aggregate(**{"n": "count(*)", **given})


def test_a_session_without_a_function_is_refused() -> None:
    with pytest.raises(QueryError, match="aggregate has no function"):
        table_stream(as_table([(0, "a", 0)]), name="a").aggregate(by=["k"], session="1 minute")


# --- broken on purpose -------------------------------------------------------------------------------------------------


def ends_at_the_gap(patch: pytest.MonkeyPatch) -> None:
    real = numba_loops.number_sessions
    patch.setattr(
        numba_loops, "number_sessions", lambda keys, first, last, gap, *out: real(keys, first, last, gap - 1, *out)
    )


def closes_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sessions, "move_back", lambda bound, gap: bound)


def closes_too_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(session_aggregate, "move_back", lambda bound, gap: bound)  # its watermark is ahead of its results


def looks_at_the_last_stretch_only(patch: pytest.MonkeyPatch) -> None:
    """One that began before may have lasted longer."""
    real = sessions.session_numbers

    def forgetful(keys: Any, first: Any, last: Any, gap: int) -> Any:
        return real(keys, first, first, gap)

    patch.setattr(sessions, "session_numbers", forgetful)


def sends_panes_that_are_too_long(patch: pytest.MonkeyPatch) -> None:
    real = sessions.stretches_of

    class Longer:
        def __init__(self, operator: Any) -> None:
            self.by, self.texts, self.partials, self.gap = (
                operator.by,
                operator.texts,
                operator.partials,
                operator.gap * 2,
            )

    patch.setattr(sessions, "stretches_of", lambda operator, tuples: real(Longer(operator), tuples))  # type: ignore[arg-type]


def forgets_what_was_open(patch: pytest.MonkeyPatch) -> None:
    real = sessions._joined
    patch.setattr(sessions, "_joined", lambda operator, held: real(operator, held).slice(1))


def groups_together(patch: pytest.MonkeyPatch) -> None:
    real = sessions.key_numbers
    patch.setattr(sessions, "key_numbers", lambda table, by: real(table, by[:-1]))


CANARIES = [
    ends_at_the_gap,
    closes_too_early,
    closes_too_late,
    looks_at_the_last_stretch_only,
    sends_panes_that_are_too_long,
    forgets_what_was_open,
    groups_together,
]


@pytest.mark.thorough
@pytest.mark.parametrize("canary", CANARIES)
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        operators = ("session_aggregate",) if seed % 2 else ("session_aggregate", "session_aggregate", "time_aggregate")
        case = make_case(f"canary-{seed}", operators, depth=(1, 2))
        arrived = cut(case.tables, 5, seed)
        try:
            same(reference(case.query, epochs=arrived), drive(case.query, arrived, seed))
        except (AssertionError, hr.HeadraceError):
            return True
        return False

    assert any(wrong(seed) for seed in range(60))
