"""`asof`: against plain Python and plain SQL that share nothing with engine or reference, and in random queries."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace import sinks
from headrace.columnar import duck, numba_loops
from headrace.difference import difference
from headrace.errors import QueryError, QueryTypeError
from headrace.kernels.windows import asof
from headrace.reference import reference
from headrace.state.store import StateStore
from headrace.stream import Stream
from headrace.support.event_time import FOREVER
from headrace.testing import LocalRun, table_stream

from .driving import Driven, drive, driven, in_two_epochs
from .strategies import SECOND, STATELESS, Table, cut, make_case, make_table
from .test_distinct import Row, as_table, made_up
from .test_local import KEYS, check, odd_keys, same, seeds

Found = tuple[int, Any, int, int | None, Any, int | None]  # ts, l_k, l_v, r_ts, r_k, r_v


def plain(left: list[Row], right: list[Row], within: int | None, keep: bool) -> Counter[Found]:
    """Every change is looked at for every tuple."""
    found: Counter[Found] = Counter()
    for ts, key, value in left:
        mine = [r for r in right if key is not None and r[1] == key and r[0] <= ts]
        last = max(mine, default=None)  # of one key: by time, then by value
        if last is not None and (within is None or ts - last[0] <= within):
            found[ts, key, value, last[0], last[1], last[2]] += 1
        elif keep:
            found[ts, key, value, None, None, None] += 1
    return found


def found_in(table: pa.Table) -> Counter[Found]:
    assert table["ts"].equals(table["l_ts"])
    names = ["l_ts", "l_k", "l_v", "r_ts", "r_k", "r_v"]
    columns = [c.cast(pa.int64()) if c.type != pa.string() else c for c in map(table.column, names)]
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


@seeds(30)
@pytest.mark.parametrize("best_effort", [False, True])
def test_what_is_found_is_what_a_plain_search_finds(seed: int, best_effort: bool, tmp_path: Path) -> None:
    """Disorder within each stream, and one that comes ahead of the other: tuples wait for both."""
    r = random.Random(seed)
    late = {"a": r.choice([0, 5]), "b": r.choice([0, 5])}
    within, how = r.choice([None, 1, 4]), r.choice(["inner", "left"])
    rows = {name: made_up(r, late[name] * SECOND) for name in late}
    tables = {name: as_table(given) for name, given in rows.items()}
    a, b = (table_stream(tables[n], lateness=f"{late[n]} seconds", name=n) for n in late)
    query = a.asof(b, by=["k"], within=None if within is None else f"{within} seconds", how=how)
    sink, folder = sinks.memory(), tmp_path / "state"
    cuts = {n: [0, *sorted(r.randint(0, len(rows[n])) for _ in range(5)), len(rows[n])] for n in rows}
    for number in range(6):
        store = StateStore.open(folder, fsync=False)
        run = LocalRun(query, folder, slots=r.choice([1, 2, 5]), sink=sink, store=store, best_effort=best_effort)
        part = {n: tables[n].slice(cuts[n][number], cuts[n][number + 1] - cuts[n][number]) for n in rows}
        run.epoch(part, splitters=2, final=number == 5)
        run.close()
    expected = plain(rows["a"], rows["b"], None if within is None else within * SECOND, how == "left")
    found = sink.table()
    assert found is not None and found_in(found) == expected
    assert found_in(reference(query)) == expected


@seeds(40)
def test_asof_among_other_operators(seed: int) -> None:
    operators = (*STATELESS, "asof", "asof", "time_join", "distinct", "count_aggregate", "session_aggregate")
    check(make_case(f"asof-{seed}", operators), seed, change_slots=0.3)


@seeds(20)
def test_asof_of_tuples_that_come_too_late_and_without_an_end(seed: int) -> None:
    case = make_case(f"late-asof-{seed}", ("asof", "filter"), depth=(1, 2), disorder=9 * SECOND)
    check(case, seed, epochs=2 + seed % 5, reopen=0.5, end=seed % 2 == 0)


# --- against plain SQL -------------------------------------------------------------------------------------------------

IN_SQL = """
    SELECT l.ts, l.x AS l_x, CASE WHEN {near} THEN r.x END AS r_x FROM l ASOF LEFT JOIN (
        SELECT * FROM r QUALIFY row_number() OVER (PARTITION BY {keys}, ts ORDER BY x DESC NULLS FIRST) = 1
    ) r ON {on} AND l.ts >= r.ts
"""


@seeds(8)
@pytest.mark.parametrize("by", [["k"], ["s"], ["k", "b"], ["f"]], ids="-".join)
def test_it_is_the_asof_join_of_sql(seed: int, by: list[str]) -> None:
    """Changes of one key and one time differ in x, the first column that decides their sequence."""
    tables = {
        name: make_table(2 * seed + number, 300, odd=True, span=200 * SECOND, grain=SECOND, lateness=6 * SECOND)
        for number, name in enumerate("lr")
    }
    tables = {n: t.select(["ts", "x", *(c for c in ("k", "f", "s", "b") if c in by)]) for n, t in tables.items()}
    l, r = (table_stream(t, lateness="6 seconds", name=n) for n, t in tables.items())
    within = (None, 30 * SECOND)[seed % 2]
    query = l.asof(r, by=by, within=None if within is None else "30 seconds", how="left").map("l_x", "r_x")
    found = drive(query, cut({n: Table(n, t, "6 seconds") for n, t in tables.items()}, 5, seed), seed, change_slots=0.5)
    near = "true" if within is None else f"epoch_us(l.ts) - epoch_us(r.ts) <= {within}"
    on = " AND ".join(f"l.{name} = r.{name}" for name in by)
    expected = duck.run_select(IN_SQL.format(near=near, keys=", ".join(by), on=on), tables)
    assert expected["r_x"].null_count < expected.num_rows - 30
    same(expected.cast(found.schema), found, query)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("by", [["f"], ["g"], ["k"], ["k", "f"]])
def test_null_meets_nothing_and_nan_and_negative_zero_their_like(by: list[str], slots: int) -> None:
    rows = odd_keys()
    s = table_stream(rows, name="a")
    for how in ("inner", "left"):
        query = s.asof(s.filter("x % 2 = 0"), by=by, how=how)
        found = in_two_epochs(query, {"a": rows}, slots)
        same(reference(query), found)
        on = " AND ".join(f"l.{name} = r.{name}" for name in by)
        join = "ASOF LEFT JOIN" if how == "left" else "ASOF JOIN"
        sql = f"SELECT l.x AS l_x, r.x AS r_x FROM rows l {join} (FROM rows WHERE x % 2 = 0) r ON {on} AND l.ts >= r.ts"
        same(duck.run_select(sql, {"rows": rows}), found.select(["l_x", "r_x"]))


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(kind: str) -> None:
    column = KEYS[kind]
    times = pa.array(range(0, len(column) * SECOND, SECOND), pa.timestamp("us", "UTC"))
    rows = pa.table({"ts": times, "v": column, "x": pa.array(range(len(column)), pa.int64())})
    s = table_stream(rows, name="a")
    query = s.asof(s.filter("x < 6"), by=["v"], how="left")
    found = in_two_epochs(query, {"a": rows}, 3)
    same(reference(query), found)
    sql = "SELECT l.x AS l_x, r.x AS r_x FROM rows l ASOF LEFT JOIN (FROM rows WHERE x < 6) r ON l.v = r.v AND l.ts >= r.ts"
    same(duck.run_select(sql, {"rows": rows}), found.select(["l_x", "r_x"]))


def test_keys_of_two_widths_meet() -> None:
    left = pa.table({"ts": pa.array([5], pa.timestamp("us", "UTC")), "k": pa.array([7], pa.int32()), "f": [0.5]})
    right = left.set_column(1, "k", pa.array([7], pa.int64())).set_column(2, "f", pa.array([0.5], pa.float32()))
    query = table_stream(left, name="a").asof(table_stream(right, name="b"), by=["k", "f"])
    same(reference(query), in_two_epochs(query, {"a": left, "b": right}, 3))
    assert reference(query).num_rows == 1


# --- borders, time and state -------------------------------------------------------------------------------------------


def asked_at(times: list[int], changes: list[Row], **options: Any) -> list[int | None]:
    """The values that tuples at these seconds find."""
    a = table_stream(as_table([(ts * SECOND, "a", 0) for ts in times]), name="a")
    b = table_stream(as_table([(ts * SECOND, key, value) for ts, key, value in changes]), name="b")
    found = reference(a.asof(b, by=["k"], how="left", **options)).sort_by("ts")
    values: list[int | None] = found["r_v"].to_pylist()
    return values


def test_a_change_counts_at_its_own_time_and_the_last_in_sequence_counts() -> None:
    changes = [(10, "a", 1), (20, "a", 3), (20, "a", 2), (20, "b", 9)]
    assert asked_at([9, 10, 19, 20, 99], changes) == [None, 1, 1, 3, 3]


def test_within_is_inclusive() -> None:
    assert asked_at([10, 15, 16], [(10, "a", 1)], within="5 seconds") == [1, 1, None]


def test_it_does_not_look_behind_a_change_that_is_too_old() -> None:
    assert asked_at([30], [(10, "a", 1), (12, "b", 2)], within="19 seconds") == [None]


def state_of(run: Driven) -> list[int]:
    """How many tuples wait, and how many changes are held."""
    (state,) = run.last.operators.values()
    return [sum(block.rows for block in side) for side in state.inputs]


def held_after(asking: list[Row], changes: list[Row], late: str = "0 seconds", **options: Any) -> list[list[int]]:
    """Of epochs with one tuple of each: what is held after each."""
    tables = {"a": as_table(asking), "b": as_table(changes)}
    a, b = table_stream(tables["a"], lateness=late, name="a"), table_stream(tables["b"], name="b")
    with driven(a.asof(b, by=["k"], **options), 2) as run:
        found = []
        for row in range(max(len(asking), len(changes))):
            run.epoch({n: t.slice(row, 1) for n, t in tables.items() if row < t.num_rows})
            found.append(state_of(run))
        run.epoch(final=True)
        assert state_of(run) == [0, 0]
        return found


def test_of_the_changes_before_all_that_can_ask_the_newest_stays() -> None:
    """A tuple of time n comes with the change of time n; it waits until both watermarks are past it."""
    rows = [(ts * SECOND, "a", ts) for ts in range(1, 6)]
    assert held_after(rows, rows) == [[1, 1]] * 5
    assert held_after(rows, rows, within="1 second") == [[1, 1]] * 5
    # three seconds late: the changes of these and the newest before them
    assert held_after(rows, rows, late="3 seconds") == [[1, 1], [2, 2], [3, 3], [4, 4], [4, 4]]


def test_changes_that_are_too_old_for_anybody_go() -> None:
    changes = [(SECOND, key, 0) for key in "abcd"]
    asking = [(ts * SECOND, "z", 0) for ts in (1, 2, 3, 4, 5, 6)]
    assert [held for _, held in held_after(asking, changes)] == [1, 2, 3, 4, 4, 4]
    assert [held for _, held in held_after(asking, changes, within="4 seconds")] == [1, 2, 3, 4, 4, 0]


def test_of_changes_of_one_time_the_last_stays() -> None:
    changes = [(SECOND, "a", value) for value in (3, 7, 5, 7)]
    assert [held for _, held in held_after([(SECOND, "a", 0)], changes)] == [1, 1, 1, 1]


def test_without_tuples_that_could_ask_nothing_is_held() -> None:
    """The stream that asks has ended, the other goes on."""
    a, b = as_table([(SECOND, "a", 0)]), as_table([(ts * SECOND, "a", ts) for ts in range(5)])
    query = table_stream(a, name="a").asof(table_stream(b, name="b"), by=["k"])
    after = [FOREVER, 10 * SECOND]
    (operator,) = planned(query)
    results, waiting, kept = asof.join_asof(operator, a, b, after)
    assert (results.num_rows, waiting.num_rows, kept.num_rows) == (1, 0, 0)


def planned(query: Stream) -> Any:
    from headrace.compile import compile_query
    from headrace.stream import node_of

    return compile_query([node_of(query)]).operators


# --- streams of one source ---------------------------------------------------------------------------------------------


def test_a_stream_with_itself_finds_its_own_time() -> None:
    rows = [(SECOND, "a", 1), (SECOND, "a", 2), (2 * SECOND, "a", 0), (2 * SECOND, None, 0)]
    s = table_stream(as_table(rows), name="a")
    query = s.asof(s, by=["k"])
    assert sorted(v for *_, v in found_in(reference(query)).elements()) == [0, 2, 2]
    same(reference(query), in_two_epochs(query, {"a": as_table(rows)}, 2))


@seeds(10)
def test_on_every_substream_alone(seed: int) -> None:
    rows = make_table(seed, 150, lateness=3 * SECOND)
    s = table_stream(rows, lateness="3 seconds", name="a")
    query = s.split(4, route="abs(x) % 4", broadcast="k = 3").each(
        lambda t: t.filter("x > 0").asof(t.filter("x <= 20"), by=["k"], how="left", within="9 seconds")
    )
    same(reference(query), drive(query, cut({"a": Table("a", rows, "")}, 4, seed), seed, change_slots=0.5))


# --- how it is asked for and shown -------------------------------------------------------------------------------------


def two() -> tuple[Stream, Stream]:
    return table_stream(as_table([(0, "a", 0)]), name="a"), table_stream(as_table([(0, "a", 0)]), name="b")


def test_its_columns_are_those_of_a_join() -> None:
    a, b = two()
    query = a.map("k", mine="v").asof(b.map("k", theirs="v"), by=["k"])
    assert query.columns == ["ts", "l_ts", "l_k", "mine", "r_ts", "r_k", "theirs"]
    assert query.columns == a.map("k", mine="v").join(b.map("k", theirs="v"), on="true", within="1 second").columns


def test_it_says_what_it_is_and_shares_slots() -> None:
    a, b = two()
    query = a.asof(b, by=["k"], within="1 minute", how="left")
    assert "left asof by k within 1 minute" in repr(query)
    assert "left asof by k within 1 minute" in query.explain()
    assert "asof by nothing" in a.asof(b, by=[]).explain()
    counted = query.aggregate(by=["l_k"], window="1 minute", n="count(*)")
    assert counted.plan(slots=4).shuffles == 1
    assert a.aggregate(by=["k"], window="1 minute", n="count(*)").asof(b, by=["k"]).plan(slots=4).shuffles == 1
    by_theirs = query.aggregate(by=["r_k"], window="1 minute", n="count(*)")  # null where there is none
    assert by_theirs.plan(slots=4).shuffles == 2


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"by": 3}, QueryTypeError, "by must be a column or a list"),
        ({"by": ["x"]}, QueryError, "unknown column 'x'"),
        ({"by": ["v"]}, QueryError, "by names a column 'v' that the other stream lacks; it has ts, k, w"),
        ({"by": ["ts"]}, QueryError, "by cannot contain 'ts'"),
        ({"by": ["k", "k"]}, QueryError, "by names a column twice"),
        ({"by": ["k"], "within": "0 seconds"}, QueryError, "within must be more than zero"),
        ({"by": ["k"], "within": 5}, QueryTypeError, "within must be a duration"),
        ({"by": ["k"], "how": "right"}, QueryError, "asof takes how='inner' or how='left'; found 'right'"),
        (
            {"by": ["w"]},
            QueryTypeError,
            "by names 'w', which has type string in this stream and int64 in the other; cast one of them",
        ),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    a, b = two()
    with pytest.raises(error, match=words):
        a.map("k", "v", w="'text'").asof(b.map("k", w="v"), **given)


def test_the_other_must_be_a_stream() -> None:
    with pytest.raises(QueryTypeError, match="asof takes streams"):
        two()[0].asof("prices", by=["k"])  # type: ignore[arg-type]


# --- broken on purpose -------------------------------------------------------------------------------------------------


def forgets_what_it_knew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asof, "_askable", lambda changes, *given: np.zeros(changes.num_rows, bool))


def forgets_the_newest_before_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(asof, "_askable", lambda changes, horizons, within: asof.times(changes) >= horizons)


def forgets_tuples_that_wait(patch: pytest.MonkeyPatch) -> None:
    real = asof._horizons
    patch.setattr(asof, "_horizons", lambda keys, waiting, at, watermark: real(keys, waiting[:0], at[:0], watermark))


def does_not_wait_for_the_other(patch: pytest.MonkeyPatch) -> None:
    real = asof.join_asof
    patch.setattr("headrace.operators.asof.join_asof", lambda o, a, c, after: real(o, a, c, [after[0], after[0]]))


def takes_the_first_of_a_time(patch: pytest.MonkeyPatch) -> None:
    def first(changes: pa.Table, columns: Any) -> pa.Table:
        changes = asof.order_rows(changes, (asof.KEY, "ts", *columns))
        pairs = list(zip(asof._keys(changes).tolist(), asof.times(changes).tolist(), strict=True))
        return changes.filter(pa.array([n == 0 or pairs[n] != pairs[n - 1] for n in range(len(pairs))], pa.bool_()))

    patch.setattr(asof, "_last_of_each_time", first)


def misses_its_own_time(patch: pytest.MonkeyPatch) -> None:
    real = numba_loops.asof_positions
    patch.setattr(numba_loops, "asof_positions", lambda keys, at, *others: real(keys, at - 1, *others))


def null_meets_null(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("headrace.operators.asof.drop_null_keys", lambda tuples, by: tuples)


CANARIES = [
    forgets_what_it_knew,
    forgets_the_newest_before_all,
    forgets_tuples_that_wait,
    does_not_wait_for_the_other,
    takes_the_first_of_a_time,
    misses_its_own_time,
    null_meets_null,
]


@pytest.mark.thorough
@pytest.mark.parametrize("canary", CANARIES)
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        case = make_case(f"canary-{seed}", ("asof",), depth=(1,))
        arrived = cut(case.tables, 5, seed)
        return difference(reference(case.query, epochs=arrived), drive(case.query, arrived, seed)) is not None

    assert any(wrong(seed) for seed in range(80))
