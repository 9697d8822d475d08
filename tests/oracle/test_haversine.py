"""Joins by distance on the Earth, and by bounds that are computed from one side: all pairs that DuckDB finds, and no others.

The index searches latitudes and then straight lines through the sphere. Both are wider than the circle, also at the
poles, across 180 degrees and for circles as large as half of the Earth.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace.difference import difference
from headrace.errors import ExpressionError
from headrace.expressions import join_predicate
from headrace.kernels.joins import band
from headrace.reference import reference
from headrace.testing import arrow_table, run_locally, table_stream

SECOND = 1_000_000
ROWS = 80
FORMULA = """2 * 6371.0088 * asin(sqrt(least(1, pow(sin(radians(r.lat - l.lat) / 2), 2)
    + cos(radians(l.lat)) * cos(radians(r.lat)) * pow(sin(radians(r.lon - l.lon) / 2), 2))))"""
MIDDLES = {
    "city": (48.1, 11.5, 0.3),
    "pole": (90.0, 0.0, 0.4),
    "south pole": (-89.9, 120.0, 0.4),
    "180 degrees": (-17.0, 180.0, 0.3),
    "everywhere": (0.0, 0.0, 200.0),
}
CALL = "haversine_km(l.lat, l.lon, r.lat, r.lon)"
ODD = (math.nan, math.inf, -math.inf, None, 95.0, -1e300)


def places(r: random.Random, middle: str, odd: float = 0.0) -> pa.Table:
    lat, lon, spread = MIDDLES[middle]
    rows = []
    for _ in range(ROWS):
        place = (
            max(-90.0, min(90.0, lat + r.uniform(-spread, spread))),
            (lon + r.uniform(-spread, spread) * (900 if "pole" in middle else 1) + 180) % 360 - 180,
        )
        if r.random() < 0.1 and rows:
            place = r.choice(rows)
        if r.random() < odd:
            place = (r.choice(ODD), place[1]) if r.random() < 0.5 else (place[0], r.choice(ODD))
        rows.append(place)
    times = pa.array([SECOND * at for at in range(ROWS)], pa.timestamp("us", "UTC"))
    lats, lons = (pa.array([row[n] for row in rows], pa.float64()) for n in (0, 1))
    radius = pa.array([r.choice([0.0, 0.1, 5.0]) for _ in rows], pa.float64())
    return pa.table({"ts": times, "n": range(ROWS), "lat": lats, "lon": lons, "radius": radius})


def found(left: pa.Table, right: pa.Table, on: str, folder: Path) -> set[tuple[int, int]]:
    l, r = table_stream(left, name="l"), table_stream(right, name="r")
    query = l.join(r, on=on, within="50 seconds").map("l_n", "r_n")
    rows = run_locally(query, folder, slots=3)
    assert difference(reference(query), rows) is None
    return {(row["l_n"], row["r_n"]) for row in rows.to_pylist()}


def in_duckdb(left: pa.Table, right: pa.Table, value: str) -> dict[tuple[int, int], float]:
    """The value of an expression for every pair in the window."""
    with duckdb.connect() as con:
        con.register("l", left)
        con.register("r", right)
        rows = con.sql(f"SELECT l.n, r.n, {value} FROM l, r WHERE abs(l.n - r.n) <= 50").fetchall()
    return {(l, r): value for l, r, value in rows}


@pytest.mark.parametrize("middle", MIDDLES)
@pytest.mark.parametrize("km", [0.0, 0.5, 20.0, 9_000.0, 20_014.0])
def test_all_pairs_within_a_distance(middle: str, km: float, tmp_path: Path) -> None:
    r = random.Random(f"{middle} {km}")
    left, right = places(r, middle), places(r, middle)
    on = f"haversine_km(l.lat, l.lon, r.lat, r.lon) <= {km}"
    near = join_predicate(on, left.schema, right.schema).near
    assert near is not None and band.is_usable(near, left, right)
    apart = in_duckdb(left, right, FORMULA)
    edge = 1e-9 * (1 + km)  # the test's formula is written in another way, so its last bits may differ
    result = found(left, right, on, tmp_path)
    assert {pair for pair, value in apart.items() if value < km - edge} <= result
    assert result <= {pair for pair, value in apart.items() if value <= km + edge}
    assert result or km < 1


@pytest.mark.parametrize("seed", range(6))
def test_places_that_do_not_exist_are_compared_as_duckdb_does(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    middle = r.choice([*MIDDLES])
    left, right = places(r, middle, 0.2), places(r, middle, r.choice([0.0, 0.2]))
    on = "30 > haversine_km(r.lat, r.lon, l.lat, l.lon) and l.n <> r.n"
    sql = join_predicate(on, left.schema, right.schema).sql
    true = in_duckdb(left, right, sql)
    assert found(left, right, on, tmp_path) == {pair for pair, value in true.items() if value}


COMPUTED = (
    "l.lat between r.lat - r.radius / 111 and r.lat + r.radius / 111",
    "abs(l.lat - (r.lat + r.radius / 20)) <= 0.05",
    "l.lat * 2 >= r.lat * 2 - r.radius and l.lat * 2 < r.lat + r.lat",
    "haversine_km(l.lat, l.lon, r.lat, r.lon) < r.radius and abs(l.lat - r.lat) < 0.5",
)


@pytest.mark.parametrize("odd", [0.0, 0.2])
@pytest.mark.parametrize("on", COMPUTED)
def test_all_pairs_within_bounds_that_one_side_computes(on: str, odd: float, tmp_path: Path) -> None:
    r = random.Random(on)
    left, right = places(r, "city", odd), places(r, "city", odd)
    assert join_predicate(on, left.schema, right.schema).near is not None
    wanted = {
        pair
        for pair, value in in_duckdb(left, right, join_predicate(on, left.schema, right.schema).sql).items()
        if value
    }
    assert wanted and found(left, right, on, tmp_path) == wanted


def test_only_pairs_near_each_other_are_compared() -> None:
    r = np.random.default_rng(1)
    table = pa.table({"lat": 48 + r.random(2_000) * 0.4, "lon": 11 + r.random(2_000) * 0.4})
    near = join_predicate("haversine_km(l.lat, l.lon, r.lat, r.lon) < 0.2", table.schema, table.schema).near
    assert near is not None
    candidates = band.Candidates.of(near, table, table)
    assert candidates.count < 0.02 * 2_000**2
    assert 2_000 <= sum(len(l) for l, _ in candidates) < 0.001 * 2_000**2


def test_a_canary_with_a_circle_that_is_too_small_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = band.Distances.of

    def smaller(*given: Any) -> band.Distances:
        found = made(*given)
        return replace(found, most=0.8 * found.most)

    monkeypatch.setattr(band.Distances, "of", smaller)
    r = random.Random(3)
    left, right = places(r, "city"), places(r, "city")
    with pytest.raises(AssertionError):
        found(left, right, "haversine_km(l.lat, l.lon, r.lat, r.lon) <= 20", tmp_path)


def test_a_longitude_that_is_far_away_is_compared_as_duckdb_does(tmp_path: Path) -> None:
    """1e15 degrees are a place on no map, but a number; the difference of two such numbers is rounded."""
    time = pa.array([0], pa.timestamp("us", "UTC"))
    left, right = (pa.table({"ts": time, "n": [0], "lat": [0.0], "lon": [lon]}) for lon in (1e15, 5.0))
    [apart] = in_duckdb(
        left, right, join_predicate(f"{CALL} < 1", left.schema, right.schema).sql.partition(" < ")[0] + "))"
    ).values()
    assert found(left, right, f"{CALL} <= {apart}", tmp_path) == {(0, 0)}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_with_a_table_may_have_a_distance(how: Any, tmp_path: Path) -> None:
    r = random.Random(how)
    left, zones = places(r, "city"), places(r, "city").drop_columns(["ts"])
    table = arrow_table(zones.rename_columns({"n": "zone"}), name="zones")
    query = table_stream(left, name="l").join(table, on=f"{CALL} < 20", how=how).map("n", "zone")
    assert "zones" in query.explain()
    assert difference(reference(query), run_locally(query, tmp_path)) is None


@pytest.mark.parametrize(
    "call",
    [
        "haversine_km(DISTINCT lat, lon, 0, 0)",
        "haversine_km(lat, lon, 0, 0) FILTER (WHERE lat < 0)",
        "haversine_km(lat, lon, 0, 0 ORDER BY lat)",
        "nosuch.haversine_km(lat, lon, 0, 0)",
        "haversine_km(lon1 := lon, lat1 := lat, lat2 := lat, lon2 := lon)",
    ],
)
def test_a_call_with_more_than_arguments_is_refused(call: str) -> None:
    s = table_stream(places(random.Random(1), "city"), name="s")
    with pytest.raises(ExpressionError):
        s.map(km=call)


def test_small_and_unsigned_integers_are_places_too(tmp_path: Path) -> None:
    time = pa.array([0, 1], pa.timestamp("us", "UTC"))
    table = pa.table({"ts": time, "lat": pa.array([1, 0], pa.uint8()), "lon": pa.array([-100, 100], pa.int8())})
    rows = run_locally(
        table_stream(table, name="s").map(km="haversine_km(lat, lon, 2::utinyint, -100::tinyint)"), tmp_path
    )
    assert min(rows["km"].to_pylist()) == pytest.approx(111.195, abs=0.01)


def test_a_call_with_other_arguments_says_which_are_needed() -> None:
    s = table_stream(places(random.Random(1), "city"), name="s")
    with pytest.raises(ExpressionError, match=r"takes lat1, lon1, lat2, lon2, in degrees; found 2 arguments"):
        s.map(km="haversine_km(lat, lon)")


def test_the_distance_is_a_column_too(tmp_path: Path) -> None:
    r = random.Random(2)
    s = table_stream(places(r, "everywhere"), name="s").map("n", km="HAVERSINE_KM(lat, lon, 52.52, 13.405)")
    rows = run_locally(s, tmp_path).sort_by("n")["km"].to_numpy()
    table = places(random.Random(2), "everywhere")
    lat, lon = (np.radians(table[name].to_numpy()) for name in ("lat", "lon"))
    to = np.radians([52.52, 13.405])
    a = np.sin((to[0] - lat) / 2) ** 2 + np.cos(lat) * np.cos(to[0]) * np.sin((to[1] - lon) / 2) ** 2
    assert np.allclose(rows, 2 * 6371.0088 * np.arcsin(np.sqrt(a)), rtol=1e-9)
