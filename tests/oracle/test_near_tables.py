"""Joins with tables by a distance on the Earth or by bounds that one side computes: the pairs of raw DuckDB and of the
reference, and none of them by a comparison of all pairs unless a number has no place in the index."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.difference import difference
from headrace.errors import DataError
from headrace.expressions import join_predicate
from headrace.kernels.joins import band, pair_loop, table_join
from headrace.reference import reference
from headrace.stream import Stream
from headrace.testing import arrow_table, run_locally, table_stream

from .test_haversine import CALL, COMPUTED, MIDDLES, places
from .test_tables import compiled, in_small_pieces

CIRCLES = (
    f"{CALL} < 30",
    f"{CALL} <= 0 and l.n <> r.zone",
    "2 >= haversine_km(r.lat, r.lon, l.lat, l.lon) and l.lat between r.lat - 1 and r.lat + r.radius",
    f"{CALL} < 9000",
    f"{CALL} < 20015",
)
BOUNDS = tuple(on.replace("r.n", "r.zone") for on in COMPUTED)
WAYS = {"as it is": None, "in small pieces": in_small_pieces, "compiled": compiled}


def sides(r: random.Random, odd: float) -> tuple[pa.Table, pa.Table]:
    middle = r.choice([*MIDDLES])
    left, right = places(r, middle, odd), places(r, middle, r.choice([0.0, odd]))
    return left, right.drop_columns(["ts"]).rename_columns({"n": "zone"})


def joined(left: pa.Table, right: pa.Table, on: str, how: Any) -> Stream:
    return table_stream(left, name="l").join(arrow_table(right, name="zones"), on=on, how=how).map("n", "zone")


def in_duckdb(left: pa.Table, right: pa.Table, on: str, how: str) -> list[tuple[int, int | None]]:
    sql = join_predicate(on, left.schema, right.schema).sql  # haversine_km is not a function of DuckDB
    with duckdb.connect() as con:
        con.register("l", left)
        con.register("r", right)
        return sorted(con.sql(f"SELECT l.n, r.zone FROM l {how} JOIN r ON {sql}").fetchall(), key=str)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("on", [*CIRCLES, *BOUNDS])
def test_they_have_the_pairs_of_duckdb(on: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with and without nulls, NaN, infinities and places off the map, by every way that the pairs can go."""
    for seed, (way, change) in enumerate(WAYS.items()):
        for odd in (0.0, 0.15):
            left, right = sides(random.Random(f"{on} {seed}"), odd)
            query = joined(left, right, on, how)
            with monkeypatch.context() as patch:
                if change is not None:
                    change(patch)
                found = run_locally(query, tmp_path / f"{way}-{odd}", slots=2)
            pairs = sorted(((row["n"], row["zone"]) for row in found.to_pylist()), key=str)
            assert pairs == in_duckdb(left, right, on, how), (way, odd)
            assert difference(reference(query), found) is None, (way, odd)


LATITUDES = [0.0, -0.0, 48.1, 48.1 + 1e-9, 90.0, 90.0 - 1e-9, -90.0, 90.1, 1e300, math.nan, math.inf, -math.inf, None]
LONGITUDES = [0.0, 11.5, 180.0, -180.0, 180.0 - 1e-9, 540.0, 721.0, 1e15, math.nan, math.inf, None]


def table_of(name: str) -> st.SearchStrategy[pa.Table]:
    row = st.tuples(st.sampled_from(LATITUDES), st.sampled_from(LONGITUDES), st.sampled_from([0.0, 1.0, 1e4, math.nan]))
    return st.lists(row, min_size=1, max_size=8).map(
        lambda rows: pa.table(
            {
                "ts": pa.array(range(len(rows)), pa.timestamp("us", "UTC")),
                name: range(len(rows)),
                **{
                    column: pa.array([row[n] for row in rows], pa.float64())
                    for n, column in enumerate(("lat", "lon", "radius"))
                },
            }
        )
    )


@pytest.mark.parametrize("on", [*CIRCLES, f"{CALL} <= 0.0002", *BOUNDS])
def test_places_at_every_edge(on: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    @settings(max_examples=25, derandomize=True, deadline=None)
    @given(table_of("n"), table_of("zone").map(lambda table: table.drop_columns(["ts"])))
    def check(left: pa.Table, right: pa.Table) -> None:
        found = run_locally(joined(left, right, on, "left"), tmp_path_factory.mktemp("edges"), slots=1)
        pairs = sorted(((row["n"], row["zone"]) for row in found.to_pylist()), key=str)
        assert pairs == in_duckdb(left, right, on, "left")

    check()


@pytest.mark.parametrize(
    ("on", "along"),
    [
        (f"{CALL} < 30", "r.lat"),
        ("haversine_km(r.lat, r.lon, l.lat, l.lon) < 30 and abs(l.lon - r.lon) < 1", "l.lat"),
        ("l.lat between r.lat - r.radius / 111 and r.lat + r.radius / 111", "l.lat"),
        ("abs(l.lat - (r.lat + 1)) < 0.5", "(lat + 1) of r"),
    ],
)
def test_an_index_compares_few_pairs_and_explain_names_it(
    on: str, along: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = sides(random.Random(1), 0.0)
    query = joined(left, right, on, "inner")
    assert f"index, looked up along {along}" in query.explain()
    monkeypatch.setattr(table_join, "_matching", lambda *_: pytest.fail("all pairs are compared"))
    assert difference(reference(query), run_locally(query, tmp_path)) is None


def test_rows_without_a_place_leave_the_index_to_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = places(random.Random(2), "city"), places(random.Random(3), "city")
    lats = [95.0, math.nan, *right["lat"].to_pylist()[2:]]
    right = right.set_column(2, "lat", pa.array(lats)).drop_columns(["ts"]).rename_columns({"n": "zone"})
    compared, matching = [], table_join._matching

    def counted(on: Any, l: pa.Table, r: pa.Table) -> Any:
        compared.append((l.num_rows, r.num_rows))
        return matching(on, l, r)

    monkeypatch.setattr(table_join, "_matching", counted)
    query = joined(left, right, f"{CALL} < 20", "left")
    assert difference(reference(query), run_locally(query, tmp_path, slots=1)) is None
    assert {rows for _, rows in compared} == {2}


def test_a_condition_that_can_fail_has_no_index(tmp_path: Path) -> None:
    left, right = sides(random.Random(4), 0.0)
    query = joined(left, right, f"{CALL} < 0 and (l.n - 9223372036854775807) - r.zone < 0", "inner")
    assert "no index, because" in query.explain()
    with pytest.raises(DataError):
        run_locally(query, tmp_path)


@pytest.mark.parametrize("broken", ["a circle that is too small", "rows without a place that nothing compares"])
def test_canaries(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "circle" in broken:
        most = band.most_squared
        monkeypatch.setattr(band, "most_squared", lambda circle: 0.8 * most(circle))
    else:
        monkeypatch.setattr(table_join, "_every", lambda *_: iter(()))
    left, right = places(random.Random(5), "city", 0.2), places(random.Random(6), "city", 0.2)
    right = right.drop_columns(["ts"]).rename_columns({"n": "zone"})
    query = joined(left, right, f"{CALL} < 20", "inner")
    if "circle" not in broken:  # NaN equals NaN, so such pairs are true
        query = joined(left, right, "l.lat between r.lat - r.radius / 111 and r.lat + r.radius / 111", "inner")
    assert difference(reference(query), run_locally(query, tmp_path)) is not None


def test_a_wide_circle_takes_the_loop_over_its_band(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where most pairs of the band are near, a compiled loop is faster than a look at each of them."""
    looped = []
    made = table_join._loop

    def noted(*given: Any, **named: Any) -> Any:
        looped.append(made(*given, **named))
        return looped[-1]

    monkeypatch.setattr(pair_loop, "WORTH_COMPILING", 0)
    monkeypatch.setattr(table_join, "_loop", noted)
    left, right = places(random.Random(7), "city"), places(random.Random(8), "city")
    right = right.drop_columns(["ts"]).rename_columns({"n": "zone"})
    for km, expected in ((0.5, False), (60, True)):
        query = joined(left, right, f"{CALL} < {km}", "inner")
        assert difference(reference(query), run_locally(query, tmp_path / f"{km}", slots=1)) is None
        assert bool(looped) == expected
