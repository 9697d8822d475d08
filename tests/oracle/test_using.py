"""Joins with `using`: against the same join and map written by hand, and against JOIN ... USING of DuckDB over the whole input."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.columnar import duck
from headrace.errors import QueryError, QueryTypeError
from headrace.query import using
from headrace.reference import reference
from headrace.stream import Stream
from headrace.testing import arrow_table, run_locally, table_stream

from .driving import drive
from .strategies import Table, cut, make_case, make_table
from .test_local import check, same, seeds

HOWS = ("inner", "left", "right", "full")
HAND = {"inner": "l_k", "left": "l_k", "right": "r_k", "full": "coalesce(l_k, r_k)"}


def sides(seed: int) -> dict[str, pa.Table]:
    """Both have k and x, of the same or of other types."""
    r = random.Random(seed)
    return {
        "a": make_table(r.getrandbits(32), 60),
        "b": make_table(r.getrandbits(32), 40, small=seed % 2 == 0),
    }


def streams(tables: dict[str, pa.Table]) -> tuple[Stream, Stream]:
    return tuple(table_stream(rows.select(["ts", "k", "x"]), name=name) for name, rows in tables.items())  # type: ignore[return-value]


@seeds(24)
def test_it_is_the_join_and_the_map_of_old(seed: int) -> None:
    tables, how = sides(seed), HOWS[seed % 4]
    l, r = streams(tables)
    on = None if seed % 3 else "l.x < r.x -- a comment may end it"
    found = l.join(r, on, within="4 seconds", how=how, using="k")
    condition = "l.k = r.k" if on is None else "l.k = r.k and l.x < r.x"
    by_hand = l.join(r, on=condition, within="4 seconds", how=how).map(
        "l_ts", "l_x", "r_ts", "r_x", k=f"CAST({HAND[how]} AS BIGINT)"
    )
    assert found.columns == ["ts", "k", "l_ts", "l_x", "r_ts", "r_x"]
    epochs = cut({n: Table(n, rows.select(["ts", "k", "x"]), "0 seconds") for n, rows in tables.items()}, 3, seed)
    answer = drive(found, epochs, seed, reopen=0.4, change_slots=0.5)
    same(reference(found, epochs=epochs), answer, found)
    same(reference(by_hand, epochs=epochs).select(found.columns), answer, found)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("columns", ["k", ["k", "x"]])
def test_duckdb_says_the_same(how: str, columns: Any, tmp_path: Path) -> None:
    tables = sides(2)
    l, r = streams(tables)
    query = l.join(r, using=columns, within="1 day", how=how)
    names = [columns] if isinstance(columns, str) else columns
    rest = "" if "x" in names else ", l.x AS l_x, r.x AS r_x"
    direct = duck.run_select(
        f"SELECT {', '.join(names)}, l.ts AS l_ts, r.ts AS r_ts{rest} FROM l {how} JOIN r USING ({', '.join(names)})",
        {"l": tables["a"].select(["ts", "k", "x"]), "r": tables["b"].select(["ts", "k", "x"])},
    )
    found = run_locally(query, tmp_path / "state").drop_columns(["ts"])
    same(direct.select(found.column_names).cast(found.schema), found)


def test_the_common_type_is_that_of_asof(tmp_path: Path) -> None:
    times = pa.array([0, 1], pa.timestamp("us", "UTC"))
    kinds = [(pa.int8(), pa.uint32(), pa.int64()), (pa.float32(), pa.float64(), pa.float64())]
    for one, other, common in kinds:
        l = table_stream(pa.table({"ts": times, "k": pa.array([1, 2], one)}), name="a")
        r = table_stream(pa.table({"ts": times, "k": pa.array([2, 3], other)}), name="b")
        for how in HOWS:
            query = l.join(r, using="k", within="1 second", how=how)
            assert query.schema.field("k").type == common
            keys = {"inner": [2], "left": [1, 2], "right": [2, 3], "full": [1, 2, 3]}[how]
            assert sorted(run_locally(query, tmp_path / f"{one} {how}")["k"].to_pylist()) == keys
    text = l.map(k="'a'")
    with pytest.raises(
        QueryTypeError, match="using names 'k', which has type string in this stream and double in the other"
    ):
        text.join(r, using="k", within="1 second")


def test_over_count_windows_and_with_a_table(tmp_path: Path) -> None:
    tables = sides(4)
    l, r = streams(tables)
    counted = l.join(r, using=["k"], last=9)
    assert counted.columns == ["ts", "k", "l_ts", "l_x", "r_ts", "r_x"]
    same(reference(counted), run_locally(counted, tmp_path / "counted"))
    rows = tables["b"].select(["k", "x"])
    for how in ("inner", "left"):
        beside = l.join(arrow_table(rows, name="t"), using="k", how=how)
        assert beside.columns == ["ts", "k", "l_ts", "l_x", "r_x"]
        found = run_locally(beside, tmp_path / how)
        same(reference(beside), found)
        direct = duck.run_select(
            f"SELECT l.ts, k, l.ts AS l_ts, l.x AS l_x, r.x AS r_x FROM l {how} JOIN r USING (k)",
            {"l": tables["a"], "r": rows},
        )
        same(direct.cast(found.schema), found)


def test_names_are_those_of_a_join_of_the_other_columns() -> None:
    times = pa.array([0], pa.timestamp("us", "UTC"))
    l = table_stream(pa.table({"ts": times, "k": [1], "l_k": [1], "v": [1]}), name="a")
    r = table_stream(pa.table({"ts": times, "v": [1], "k": [1], "end": ["x"]}), name="b")
    assert l.join(r, using="k", within="1 s").columns == ["ts", "k", "l_ts", "l_k", "l_v", "r_ts", "r_v", "end"]
    odd = [each.rename({"k": 'of "it"', "v": "order"}) for each in (l, r)]
    query = odd[0].join(odd[1], using=["order", 'of "it"'], within="1 s")
    assert query.columns == ["ts", "order", 'of "it"', "l_ts", "l_k", "r_ts", "end"]
    assert 'join on l.order = r.order and l."of ""it"""' in repr(query)
    both = [each.rename({"k": "l_ts"}) for each in (l, r)]
    with pytest.raises(QueryError, match="using names 'l_ts', which is also what the join calls another column"):
        both[0].join(both[1], using="l_ts", within="1 s")


def test_a_group_by_the_same_column_shares_its_slots() -> None:
    l, r = streams(sides(3))
    joined = l.join(r, using="k", within="1 second")
    assert joined.aggregate(by="k", window="1 minute", n="count(*)").plan(slots=4).shuffles == 1
    assert joined.distinct(by="k", within="1 minute").plan(slots=4).shuffles == 1


def test_inside_each(tmp_path: Path) -> None:
    tables = sides(5)
    l, _ = streams(tables)
    query = l.split(3, by="k").each(lambda t: t.join(t, using="x", within="2 seconds", how="full"))
    same(reference(query), run_locally(query, tmp_path / "state", slots=3))


@seeds(30)
def test_using_among_other_operators(seed: int) -> None:
    case = make_case(f"using-{seed}", ("using_join", "using_join", "columns", "filter", "distinct", "time_aggregate"))
    check(case, seed, change_slots=0.5)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({}, QueryError, "join needs a condition: on='l.a < r.b', or using='k'"),
        ({"on": "k"}, QueryError, "on is a condition over l and r; found 'k'; write using='k', or on='l.k = r.k'"),
        ({"on": ["k", "x"]}, QueryError, "write using=['k', 'x'], or on='l.k = r.k and l.x = r.x'"),
        ({"using": "q"}, QueryError, "using names a column 'q' that the left side lacks; it has ts, k, x"),
        ({"using": "k, x"}, QueryError, "using names a column 'k, x' that the left side lacks"),
        ({"using": []}, QueryTypeError, "using takes the name of a column of both sides, or a list of names"),
        ({"using": 3}, QueryTypeError, "found 3; such as using='k'"),
        ({"using": [None]}, QueryTypeError, "or a list of names; found a list [None]"),
        ({"using": ["k", "k"]}, QueryError, "using names a column twice"),
        ({"using": "ts"}, QueryError, "using cannot contain 'ts', the event time"),
        ({"using": "k", "on": "l.q = 1"}, hr.ExpressionError, "unknown column 'q'"),
    ],
)
def test_bad_arguments(given: dict[str, Any], error: type[hr.HeadraceError], words: str) -> None:
    l, r = streams(sides(1))
    with pytest.raises(error) as found:
        l.join(r, within="1 second", **given)
    assert words in str(found.value)


def test_a_side_that_lacks_the_column() -> None:
    l, r = streams(sides(1))
    with pytest.raises(QueryError, match="that the right side lacks; it has ts, q, x; rename one of them with rename"):
        l.join(r.rename({"k": "q"}), using="k", within="1 second")


def the_left_value_always(patch: pytest.MonkeyPatch) -> None:
    real = using._value
    patch.setattr(using, "_value", lambda node, left, right, how, name: real(node, left, right, "inner", name))


def test_a_broken_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    the_left_value_always(monkeypatch)
    with pytest.raises(AssertionError):
        test_it_is_the_join_and_the_map_of_old(3)
