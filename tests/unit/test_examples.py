"""Every example of splits, processors and `each`: by hand, and on its made-up input beside plain Python.

`answer` is the one place that knows what runs a query.
"""

from __future__ import annotations

import cmath
import datetime as dt
import importlib.util
import math
import subprocess
import sys
from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import testing
from headrace.cli import query_file
from headrace.difference import difference
from headrace.query import nodes
from headrace.stream import node_of
from headrace.testing import table_stream
from tests.processors import table

EXAMPLES = Path(__file__).parents[2] / "examples"
TS = pa.timestamp("us", "UTC")
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)

engines = pytest.mark.parametrize("engine", ["reference", "at once", "in epochs"])
THOROUGH = pytest.mark.thorough
both = pytest.mark.parametrize("engine", ["in epochs", pytest.param("reference", marks=THOROUGH)])
seeds = pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=THOROUGH) for n in (2, 3))])


NAMES = ("sessions", "logins", "unanswered", "top10", "enrichment", "vibration", "per_lane", "shipped")


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


inputs = load("inputs")
sessions, logins, unanswered, top10, enrichment, vibration, per_lane, shipped = map(load, NAMES)


def answer(query: hr.Stream, engine: str, folder: Path) -> pa.Table:
    match engine:
        case "reference":
            return hr.reference(query)
        case "at once":
            return testing.run_locally(query, folder)
    return in_epochs(query, folder, epochs=4)


def in_epochs(query: hr.Stream, folder: Path, epochs: int) -> pa.Table:
    """In process, by three slots, the input cut into equal parts by time."""
    tables = {name: s.origin.table().sort_by("ts") for name, s in nodes.named_sources(node_of(query)).items()}
    every = np.sort(np.concatenate([tuples["ts"].to_numpy() for tuples in tables.values()]))
    edges = [every[0], *every[len(every) // epochs :: len(every) // epochs], every[-1] + 1]
    run = testing.LocalRun(query, folder, slots=3)
    for start, stop in pairwise(edges):
        run.epoch({name: between(tuples, start, stop) for name, tuples in tables.items()}, splitters=2)
    run.end()
    run.close()
    return run.results()


def between(tuples: pa.Table, start: np.datetime64, stop: np.datetime64) -> pa.Table:
    times = tuples["ts"].to_numpy()
    return tuples.filter((times >= start) & (times < stop))


def at(minutes: float, seconds: float = 0) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes, seconds=seconds)


def made(name: str, rows: int, seed: int) -> pa.Table:
    return getattr(inputs, name)(np.random.default_rng(seed), rows)


def up_to_minute(time: dt.datetime) -> dt.datetime:
    return time + (NOON - time) % MINUTE


def after_minute(time: dt.datetime) -> dt.datetime:
    """The first whole minute that is later."""
    return up_to_minute(time + dt.timedelta(microseconds=1))


def last_tick(tuples: pa.Table) -> dt.datetime:
    return after_minute(max(tuples["ts"].to_pylist()))


def by_key(tuples: pa.Table, key: str) -> dict[Any, list[dict[str, Any]]]:
    """The tuples of each key, in sequence."""
    found: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for row in tuples.to_pylist():
        found[row[key]].append(row)
    names = ["ts", *(name for name in tuples.column_names if name != "ts")]
    return {key: sorted(rows, key=lambda row: [row[name] for name in names]) for key, rows in found.items()}


def agree(expected: pa.Table, found: pa.Table, least: int = 1) -> None:
    assert expected.num_rows >= least, "a test of nothing"
    assert difference(expected, found) is None


# --- sessions ---------------------------------------------------------------------------------------------------------


@engines
def test_sessions_by_hand(engine: str, tmp_path: Path):
    clicks = table(
        made("clicks", 1, 0).schema,
        (at(0), "ann", "a"),
        (at(10), "ann", "b"),
        (at(39.5), "ann", "c"),  # 29.5 minutes later: the same session
        (at(0.5), "bob", "a"),
        (at(30.5), "bob", "b"),  # just half an hour: another one
        (at(30.5), "bob", "c"),
        (at(80), None, "a"),  # somebody without a name is somebody
        (at(100), "ann", "d"),
    )
    expected = table(
        sessions.Sessions.schema,
        (at(30.5), "bob", at(0.5), at(0.5), 1),  # ended by a click, before the tick of 31 minutes
        (at(61), "bob", at(30.5), at(30.5), 2),  # due at 60.5, ended by the tick
        (at(70), "ann", at(0), at(39.5), 3),
        (at(100), None, at(80), at(80), 1),  # ended by the end
        (at(100), "ann", at(100), at(100), 1),
    )
    agree(expected, answer(sessions.build(table_stream(clicks)), engine, tmp_path))


def sessions_of(clicks: pa.Table) -> pa.Table:
    gap, end, final = dt.timedelta(minutes=30), max(clicks["ts"].to_pylist()), last_tick(clicks)
    found = []
    for user, rows in by_key(clicks, "user").items():
        times = [row["ts"] for row in rows]
        starts = [n for n, time in enumerate(times) if n == 0 or time - times[n - 1] >= gap]
        for start, stop in zip(starts, [*starts[1:], len(times)], strict=True):
            tick = up_to_minute(times[stop - 1] + gap)
            ended = min([*times[stop : stop + 1], tick]) if tick <= final else times[stop] if stop < len(times) else end
            found.append((ended, user, times[start], times[stop - 1], stop - start))
    return table(sessions.Sessions.schema, *found)


@seeds
@both
def test_sessions_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    clicks = made("clicks", 200, seed)
    agree(sessions_of(clicks), answer(sessions.build(table_stream(clicks)), engine, tmp_path), 50)


# --- logins -----------------------------------------------------------------------------------------------------------


@engines
def test_logins_by_hand(engine: str, tmp_path: Path):
    def tries(user: str, text: str, *minutes: float) -> list[tuple[Any, ...]]:
        return [(at(minute), user, mark == "+") for mark, minute in zip(text, minutes, strict=True)]

    attempts = table(
        made("logins", 1, 0).schema,
        *tries("guessed", "---+", 1, 2, 3, 4),
        *tries("honest", "--+-+", 1, 2, 3, 4, 5),
        *tries("slow", "---+", 1, 2, 3, 11),  # ten minutes after the first: too late
        *tries("last", "----+", 1, 2, 3, 11, 11.5),  # the last three count
        *tries("twice", "---+---+", 1, 1, 1, 2, 3, 4, 5, 6),
        *tries("at once", "-+--", 1, 1, 1, 1),  # one time: failures come first in sequence
    )
    expected = table(
        logins.Guessed.schema,
        (at(4), "guessed", at(1)),
        (at(11.5), "last", at(2)),
        (at(2), "twice", at(1)),
        (at(6), "twice", at(3)),
        (at(1), "at once", at(1)),
    )
    agree(expected, answer(logins.build(table_stream(attempts)), engine, tmp_path))


def guessed_in(attempts: pa.Table) -> pa.Table:
    found = []
    for user, rows in by_key(attempts, "user").items():
        for place, row in enumerate(rows[3:], start=3):
            before = rows[place - 3 : place]
            in_time = row["ts"] - before[0]["ts"] < dt.timedelta(minutes=10)
            if row["ok"] and in_time and not any(other["ok"] for other in before):
                found.append((row["ts"], user, before[0]["ts"]))
    return table(logins.Guessed.schema, *found)


@seeds
@both
def test_logins_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    attempts = made("logins", 400, seed)
    agree(guessed_in(attempts), answer(logins.build(table_stream(attempts)), engine, tmp_path), 5)


# --- unanswered -------------------------------------------------------------------------------------------------------


@engines
def test_unanswered_by_hand(engine: str, tmp_path: Path):
    messages = table(
        made("messages", 1, 0).schema,
        (at(0.5), 1, "request"),
        (at(2), 1, "answer"),
        (at(0.5), 2, "request"),  # never answered
        (at(0.5), 3, "request"),
        (at(5.5), 3, "answer"),  # at the very time at which it is overdue
        (at(0.5), 4, "request"),
        (at(4), 4, "request"),  # repeated: waits anew
        (at(8), 4, "answer"),
        (at(1), 5, "request"),
        (at(1), 5, "answer"),  # at the same time
        (at(0.25), 6, "answer"),  # of a request that came later
        (at(0.75), 6, "request"),
        (at(6), 7, "request"),  # the input ends before it is overdue
        (at(8.5), 8, "answer"),  # of nothing
    )
    expected = table(unanswered.Unanswered.schema, (at(6), 2, at(0.5)), (at(6), 3, at(0.5)), (at(6), 6, at(0.75)))
    agree(expected, answer(unanswered.build(table_stream(messages)), engine, tmp_path))


def unanswered_in(messages: pa.Table) -> pa.Table:
    found = []
    for number, rows in by_key(messages, "id").items():
        (asked,) = [row["ts"] for row in rows if row["kind"] == "request"]
        overdue = asked + 5 * MINUTE
        answered = any(asked <= row["ts"] < overdue for row in rows if row["kind"] == "answer")
        if not answered and up_to_minute(overdue) <= last_tick(messages):
            found.append((up_to_minute(overdue), asked, number))
    return table(unanswered.Unanswered.schema, *((ts, number, asked) for ts, asked, number in found))


@seeds
@both
def test_unanswered_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    messages = made("messages", 200, seed)
    agree(unanswered_in(messages), answer(unanswered.build(table_stream(messages)), engine, tmp_path), 10)


# --- shipped ----------------------------------------------------------------------------------------------------------


def shipped_of(sales: pa.Table, payments: pa.Table, shipments: pa.Table) -> hr.Stream:
    streams = {"sales": sales, "payments": payments, "shipments": shipments}
    return shipped.build(*(table_stream(rows, name=name) for name, rows in streams.items()))


@engines
def test_shipped_by_hand(engine: str, tmp_path: Path):
    sales, payments, shipments = (made(name, 10, 0).schema for name in ("sales", "payments", "shipments"))
    query = shipped_of(
        table(sales, (at(0), 1, "tea", 300), (at(1), 2, "jam", 500), (at(2), 3, "nut", 90), (at(9), 4, "fig", 10)),
        table(payments, (at(20), 1, 300), (at(20), 2, 499), (at(62.1), 3, 90), (at(50), 4, 10), (at(59), 4, 12)),
        table(shipments, (at(30), 1, 11), (at(60), 1, 12), (at(30), 2, 13), (at(40), 3, 14), (at(28), 4, 15)),
    )
    expected = (
        table(  # jam is not paid in full, nut is paid too late, and the second payment of fig comes 31 minutes after it
            query.schema,
            (at(0), "tea", 11, 1, 30, False),
            (at(0), "tea", 12, 1, 60, False),
            (at(9), "fig", 15, 4, 19, True),
        )
    )
    agree(expected, answer(query, engine, tmp_path))


@both
@seeds
def test_shipped_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    sales, payments, shipments = (made(name, 150, seed) for name in ("sales", "payments", "shipments"))
    found = []
    for s, p, d in product(*(each.to_pylist() for each in (sales, payments, shipments))):
        latest = max(s["ts"], p["ts"], d["ts"])
        near = latest - min(s["ts"], p["ts"]) <= 60 * MINUTE and latest - d["ts"] <= 30 * MINUTE
        if s["id"] == p["id"] == d["id"] and p["cents"] >= s["cents"] and near:
            minutes = (d["ts"].replace(second=0, microsecond=0) - s["ts"].replace(second=0, microsecond=0)) // MINUTE
            first = min(s["ts"], p["ts"], d["ts"])
            found.append((first, s["item"], d["parcel"], s["id"], minutes, p["ts"] > d["ts"]))
    query = shipped_of(sales, payments, shipments)
    agree(table(query.schema, *found), answer(query, engine, tmp_path), 3)


# --- the first ten ----------------------------------------------------------------------------------------------------


@engines
def test_top10_by_hand(engine: str, tmp_path: Path):
    schema = made("views", 1, 0).schema
    letters = "abcdefghijkl"
    first = [(at(0, place), letter) for place, letter in enumerate(letters[:11])]  # eleven items, one view of each
    views = table(schema, *first, (at(0, 30), "k"), (at(1), "l"), (at(1, 30), "l"), (at(1, 31), "l"))
    expected = table(
        top10.Ranking.schema,
        (at(1), 1, "k", 2),
        *((at(1), place, letter, 1) for place, letter in enumerate(letters[:9], start=2)),  # j has no place
        (at(2), 1, "l", 3),
        (at(2), 2, "k", 2),
        *((at(2), place, letter, 1) for place, letter in enumerate(letters[:8], start=3)),
    )
    agree(expected, answer(top10.build(table_stream(views)), engine, tmp_path))


@both
def test_top10_of_many_items(engine: str, tmp_path: Path):
    """More than ten in every substream, all as often: the first by name."""
    names = [f"item-{n:03}" for n in range(400)]
    views = pa.table({"ts": pa.array([at(0.5)] * 400, TS), "item": names[::-1]})
    expected = table(top10.Ranking.schema, *((at(1), rank, names[rank - 1], 1) for rank in range(1, 11)))
    agree(expected, answer(top10.build(table_stream(views)), engine, tmp_path))


def ranking_of(views: pa.Table) -> pa.Table:
    rows, counts, found = sorted((row["ts"], row["item"]) for row in views.to_pylist()), Counter(), []
    tick = after_minute(rows[0][0])
    for time, item in [*rows, (last_tick(views), None)]:
        while tick <= time:
            best = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:10]
            found += [(tick, rank, name, count) for rank, (name, count) in enumerate(best, start=1)]
            tick += MINUTE
        counts[item] += 1
    return table(top10.Ranking.schema, *found)


@seeds
@both
def test_top10_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    views = made("views", 300, seed)
    agree(ranking_of(views), answer(top10.build(table_stream(views)), engine, tmp_path), 500)


# --- enrichment -------------------------------------------------------------------------------------------------------


def priced(orders: pa.Table, prices: pa.Table, engine: str, folder: Path) -> tuple[pa.Table, pa.Table]:
    results = enrichment.build(table_stream(orders, name="orders"), table_stream(prices, name="prices"))
    return tuple(answer(results[name], engine, folder / name) for name in ("priced", "unpriced"))


@engines
def test_enrichment_by_hand(engine: str, tmp_path: Path):
    orders = table(
        made("orders", 1, 0).schema,
        (at(1), "ann", "tea", 1),  # before the first price
        (at(2), "ann", "tea", 2),  # at the time of a price: it counts
        (at(4), "bob", "tea", 3),
        (at(6), "bob", "tea", 4),
        (at(6), "bob", "salt", 5),  # never had one
        (at(9), "ann", "tea", 6),  # withdrawn
    )
    prices = table(
        made("prices", 1, 0).schema,
        (at(2), "tea", 300),
        (at(5), "tea", 250),
        (at(5), "tea", 280),  # two at one time: the last in sequence
        (at(8), "tea", None),
    )
    kinds = enrichment.Pricing.outputs
    with_price = table(
        kinds["priced"],
        (at(2), "ann", "tea", 2, 300),
        (at(4), "bob", "tea", 3, 300),
        (at(6), "bob", "tea", 4, 280),
    )
    without = table(kinds["unpriced"], (at(1), "ann", "tea", 1), (at(6), "bob", "salt", 5), (at(9), "ann", "tea", 6))
    found = priced(orders, prices, engine, tmp_path)
    agree(with_price, found[0])
    agree(without, found[1])


@both
def test_a_price_that_is_withdrawn_before_anybody_asks(engine: str, tmp_path: Path):
    """Price and withdrawal come in one chunk, the order in a later one."""
    orders = table(
        made("orders", 1, 0).schema, (at(3), "bob", "salt", 1), (at(8), "ann", "tea", 1), (at(9), "bob", "salt", 2)
    )
    prices = table(
        made("prices", 1, 0).schema, (at(1), "tea", 300), (at(2), "tea", None), (at(3), "salt", 5), (at(9), "salt", 6)
    )
    kinds, found = enrichment.Pricing.outputs, priced(orders, prices, engine, tmp_path)
    agree(table(kinds["priced"], (at(3), "bob", "salt", 1, 5), (at(9), "bob", "salt", 2, 6)), found[0])
    agree(table(kinds["unpriced"], (at(8), "ann", "tea", 1)), found[1])


@seeds
@both
def test_enrichment_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    orders, prices = made("orders", 100, seed), made("prices", 500, seed + 100)
    with_price, without = [], []
    changes = sorted(prices.to_pylist(), key=lambda row: (row["ts"], row["cents"] is None, row["cents"]))
    for order in orders.to_pylist():
        valid = [row["cents"] for row in changes if row["item"] == order["item"] and row["ts"] <= order["ts"]]
        if valid and valid[-1] is not None:
            with_price.append((*order.values(), valid[-1]))
        else:
            without.append(tuple(order.values()))
    kinds, found = enrichment.Pricing.outputs, priced(orders, prices, engine, tmp_path)
    agree(table(kinds["priced"], *with_price), found[0], 30)
    agree(table(kinds["unpriced"], *without), found[1], 10)


# --- vibration --------------------------------------------------------------------------------------------------------


@engines
def test_vibration_finds_a_tone(engine: str, tmp_path: Path):
    """384 samples are two windows of 256, 128 apart; a tone that fits them is one line of the spectrum, and its neighbours."""
    steps = range(384)
    tone = [(at(0, step / 100), 7, 2 * math.sin(2 * math.pi * 12.5 * step / 100)) for step in steps]
    broken = [(at(0, 0.005), 7, math.nan), (at(0, 0.006), 7, None), (at(0, 0.007), None, 1.0)]  # are left out
    samples = table(made("samples", 10, 0).schema, *tone, *broken)
    found = answer(vibration.build(table_stream(samples)), engine, tmp_path).sort_by("ts").to_pylist()
    assert [(row["ts"], row["sensor"], row["hz"]) for row in found] == [(at(0, 2.55), 7, 12.5), (at(0, 3.83), 7, 12.5)]
    weight = 255 / 2  # of the Hann window: half of its samples but one
    for row in found:
        assert row["peak"] == pytest.approx(weight**2, rel=1e-3)
        assert row["power"] == pytest.approx(row["peak"] * 1.5, rel=1e-2)  # half as high on either side


def spectra_of(samples: pa.Table, size: int, hop: int) -> pa.Table:
    """Fourier's sum as it is written down."""
    found = []
    taper = [0.5 - 0.5 * math.cos(2 * math.pi * n / (size - 1)) for n in range(size)]
    for sensor, rows in by_key(samples, "sensor").items():
        for end in range(size, len(rows) + 1, hop):
            values = [row["value"] for row in rows[end - size : end]]
            mean = sum(values) / size
            lines = [
                abs(
                    sum(
                        (v - mean) * w * cmath.exp(-2j * cmath.pi * k * n / size)
                        for n, (v, w) in enumerate(zip(values, taper, strict=True))
                    )
                )
                ** 2
                for k in range(size // 2 + 1)
            ]
            strongest = lines.index(max(lines))
            found.append((rows[end - 1]["ts"], sensor, strongest * 100 / size, lines[strongest], sum(lines)))
    return table(vibration.Spectrum.schema, *found)


@seeds
@both
def test_vibration_beside_the_sum_itself(engine: str, seed: int, tmp_path: Path):
    samples = made("samples", 700, seed)
    query = table_stream(samples).split(4, by=["sensor"]).apply(vibration.Spectrum(size=16, hop=12))
    agree(spectra_of(samples, 16, 12), answer(query, engine, tmp_path), 40)


# --- lanes ------------------------------------------------------------------------------------------------------------


@engines
def test_per_lane_by_hand(engine: str, tmp_path: Path):
    cars = table(
        made("cars", 1, 0).schema,
        (at(0, 1), 0, 1, 30.0),
        (at(0, 2), 0, 2, 20.0),  # a second behind, and fast
        (at(0, 2.5), 0, 3, 10.0),  # close, and slow
        (at(0, 2.6), 1, 4, 30.0),  # alone in its lane
        (at(0, 59.5), 3, 5, 20.0),
        (at(1, 0), 3, 6, 40.0),  # counts in the minute of the first of the two
        (at(1, 0.5), 3, 7, 50.0),  # behind two
        (at(1, 0.5), None, 8, 50.0),  # in no lane
    )
    schema = per_lane.build(table_stream(cars)).schema
    expected = table(
        schema,
        (at(0, 1), at(0), at(1), 1, 20.0, 0),
        (at(0, 59.5), at(0), at(1), 2, 50.0, 3),
        (at(1, 0), at(1), at(2), 1, 50.0, 3),
    )
    agree(expected, answer(per_lane.build(table_stream(cars)), engine, tmp_path))


@seeds
@both
def test_per_lane_beside_plain_python(engine: str, seed: int, tmp_path: Path):
    cars = made("cars", 2000, seed)
    query = per_lane.build(table_stream(cars))
    pairs: dict[Any, list[tuple[dt.datetime, float]]] = defaultdict(list)
    for lane, rows in by_key(cars.filter(cars["lane"].is_valid()), "lane").items():
        for place, car in enumerate(rows):
            for behind in rows[place + 1 :]:
                if behind["ts"] - car["ts"] > dt.timedelta(seconds=1):
                    break
                if behind["ts"] > car["ts"] and behind["speed"] > 15:
                    start = after_minute(car["ts"]) - MINUTE
                    pairs[start, lane].append((car["ts"], behind["speed"]))
    found = [
        (min(met)[0], start, start + MINUTE, len(met), max(speed for _, speed in met), lane)
        for (start, lane), met in pairs.items()
    ]
    agree(table(query.schema, *found), answer(query, engine, tmp_path), 50)


# --- all of them ------------------------------------------------------------------------------------------------------


def messages_again(rows: int, seed: int) -> pa.Table:
    """Ids that come again and again, requests and answers in any order."""
    found = made("messages", rows, seed)
    return found.set_column(1, "id", pa.array(np.random.default_rng(seed).integers(0, rows // 4, len(found))))


def tuples_of_pricing(rows: int, seed: int) -> pa.Table:
    orders, prices = made("orders", rows, seed), made("prices", rows * 10, seed)
    kinds = pa.array(["order"] * len(orders) + ["price"] * len(prices))
    return pa.concat_tables([orders, prices], promote_options="default").append_column("kind", kinds)


def candidates(rows: int, seed: int) -> pa.Table:
    return made("views", rows, seed).append_column("views", pa.array(np.arange(rows) % 7))


def seconds(number: float) -> dt.timedelta:
    return dt.timedelta(seconds=number)


def dense(tuples: pa.Table) -> pa.Table:
    """An hour as five minutes: many tuples between two ticks."""
    times = tuples["ts"].cast(pa.int64()).to_numpy()
    return tuples.set_column(0, "ts", inputs.moments((times - times.min()) // 12))


PROCESSORS = {
    "sessions": (sessions.Sessions(seconds(20)), partial(made, "clicks"), {"by": ["user"]}),
    "logins": (logins.Guessed(2, seconds(40)), partial(made, "logins"), {"by": ["user"]}),
    "unanswered": (unanswered.Unanswered(seconds(40)), messages_again, {"route": "id % 2"}),
    "candidates": (top10.Candidates(3), partial(made, "views"), {"by": ["item"]}),
    "ranking": (top10.Ranking(3), candidates, {"route": "0"}),
    "pricing": (enrichment.Pricing(), tuples_of_pricing, {"by": ["customer"], "broadcast": "kind = 'price'"}),
    "spectrum": (vibration.Spectrum(4, 3), partial(made, "samples"), {"route": "sensor % 2"}),
}


@pytest.mark.parametrize(
    "seed, rows, cases",
    [(1, 60, 1), pytest.param(2, 200, 4, marks=THOROUGH), pytest.param(3, 200, 10, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("name", PROCESSORS)
def test_their_processors_are_sound(name: str, seed: int, rows: int, cases: int):
    processor, tuples, rule = PROCESSORS[name]
    testing.check_processor(processor, dense(tuples(rows, seed)), substreams=2, seed=seed, cases=cases, **rule)


def test_input_can_be_made(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "inputs.py", tmp_path], capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) == len(inputs.STREAMS)
    for make in inputs.STREAMS:
        assert pq.read_table(tmp_path / make.__name__).schema == make(np.random.default_rng(1), 10).schema


def results(name: str, spark: Any) -> list[hr.Stream]:
    """What `headrace run` would run."""
    found = query_file.load_query_file(EXAMPLES / f"{name}.py").query(spark)
    return [query for query, _ in found] if isinstance(found, list) else [found]


@pytest.mark.parametrize("name", NAMES)
def test_a_query_file_finds_its_input(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs.main(tmp_path / "in", rows=20)
    monkeypatch.chdir(tmp_path / "in")
    for number, query in enumerate(results(name, None)):
        found = testing.run_locally(query, tmp_path / str(number))
        assert difference(hr.reference(query), found) is None


@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_a_query_file_on_spark(spark: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    inputs.main(tmp_path, rows=3000 if name == "vibration" else 400)
    monkeypatch.chdir(tmp_path)
    for query in results(name, spark):
        agree(hr.reference(query), query.collect(slots=3))


def test_examples_are_importable_without_spark():
    paths = sorted(str(path) for path in EXAMPLES.glob("*.py"))
    assert len(paths) >= 10
    code = "import runpy, sys; [runpy.run_path(path) for path in sys.argv[1:]]; assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
