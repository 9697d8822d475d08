"""The generator: every rule of the world holds on every row, and every rare case is really there.

What is looked at are rows, as a reader finds them; nothing here asks the generator how it made them.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv
from typer.testing import CliRunner, Result

from headrace.cli import app
from headrace.errors import WorkloadError
from headrace_linearroad.forms import COMPLETE, FIELDS, INPUT, SEGMENT_HISTORY, TOLL_HISTORY
from headrace_linearroad.generating import Settings, Traffic
from headrace_linearroad.generating.cases import CASES
from headrace_linearroad.generating.demand import Demand
from headrace_linearroad.generating.histories import Segments, days_of
from headrace_linearroad.generating.writing import Job, write

pytestmark = pytest.mark.thorough  # traffic is made in minutes of processor time

PATIENCE = 120  # seconds that nothing takes

Rows = list[tuple[Any, ...]]


def made(settings: Settings, begin: int, end: int, xways: range | None = None) -> pa.Table:
    return pa.concat_tables(table for _, table in Traffic(settings, xways).seconds(begin, end))


def ask(query: str, **tables: pa.Table) -> Rows:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.execute(query).fetchall()


def as_multiset(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()


# --- the rules of the world -------------------------------------------------------------------------------------------

WORLDS = {
    "from the beginning": (Settings(2), 0, 660),
    "later": (Settings(1, seed=2), 5000, 5200),
    "to the end": (Settings(1, seed=3), 10_700, 10_800),
    "full density": (Settings(1, seed=4, density=1700), 0, 240),
    "walmart": (Settings(2, seed=5, density=300, style="walmart"), 30, 700),
    "plain": (Settings(2.5, seed=6, density=200, plain=True), 100, 400),
    "shuffled": (Settings(3, density=100, shuffle=True), 0, 200),
    "half an expressway": (Settings(0.5, density=100), 0, 400),
}

STEPS = """
    select *, time - lag(time) over car as gap, lag(xway) over car as was_xway, lag(dir) over car as was_dir,
        lag(seg) over car as was_seg, lag(pos) over car as was_pos, lag(lane) over car as was_lane,
        case when dir = 0 then pos - was_pos else was_pos - pos end as feet,
        case when dir = 0 then seg - was_seg else was_seg - seg end as segs,
        vid % 524288 >= 458752 as acts
    from rows where type = 0 window car as (partition by vid order by time)
"""


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> tuple[Settings, int, int, pa.Table]:
    settings, begin, end = WORLDS[request.param]
    return settings, begin, end, made(settings, begin, end)


def broken(rows: pa.Table, rule: str, steps: bool = True) -> Rows:
    """Rows, of reports with what was before them, for which a rule does not hold."""
    return ask(
        f"select * from ({STEPS if steps else 'select * from rows'}) where not coalesce({rule}, true) limit 3",
        rows=rows,
    )


def test_fields_are_in_their_domains(world: tuple[Settings, int, int, pa.Table]) -> None:
    settings, begin, end, rows = world
    assert rows.schema == INPUT
    reports = (
        "type = 0 and spd between 0 and 100 and lane between 0 and 4 and dir in (0, 1) and pos between 0 and 527999"
    )
    unused = "qid = -1 and sinit = -1 and send = -1 and dow = -1 and tod = -1 and day = -1"
    always = f"time >= {begin} and time < {end} and epoch_us(ts) = time * 1000000::bigint and vid >= 0"
    assert not broken(rows, f"type in (0, 2, 3, 4) and {always}", steps=False)
    assert not broken(rows, f"type <> 0 or {reports} and {unused} and seg = pos // 5280", steps=False)
    assert not broken(rows, f"type <> 0 or xway between 0 and {settings.roads - 1}", steps=False)
    if settings.expressways % 1:
        assert not broken(rows, f"type <> 0 or xway < {settings.roads - 1} or dir = 0", steps=False)


def test_a_car_reports_every_30_seconds_and_drives_one_way(world: tuple[Settings, int, int, pa.Table]) -> None:
    _, _, _, rows = world
    assert not broken(rows, "gap = 30 or gap > 60")
    assert not broken(rows, "gap > 30 or xway = was_xway and dir = was_dir")
    assert not broken(rows, "gap > 30 or segs in (0, 1) and feet between 0 and 4400")


def test_a_trip_begins_on_the_ramp_and_ends_on_the_other(world: tuple[Settings, int, int, pa.Table]) -> None:
    settings, begin, _, rows = world
    assert not broken(rows, f"gap = 30 or time < {begin} + 30 or lane = 0")  # others were under way
    assert not broken(rows, "gap > 30 or lane <> 0")
    assert not broken(rows, "gap > 30 or was_lane <> 4")
    assert not broken(rows, "gap > 30 or acts or lane = 4 or abs(lane - was_lane) <= 1")
    assert not broken(rows, "lane <> 0 or acts or case when dir = 0 then pos % 5280 else 5279 - pos % 5280 end < 1000")
    if settings.style == "official":
        to_the_end = "case when dir = 0 then 5280 - pos % 5280 else pos % 5280 + 1 end"
        assert not broken(rows, f"lane <> 4 or acts or {to_the_end} <= 1300")


def test_speeds_are_those_of_the_way(world: tuple[Settings, int, int, pa.Table]) -> None:
    _, _, _, rows = world
    assert not broken(rows, "gap > 30 or acts or lane = 4 or feet = 44 * spd::int")
    assert not broken(rows, "acts or spd > 0")  # who stands has a part to play


def test_exits_in_new_segments_are_walmart_style(world: tuple[Settings, int, int, pa.Table]) -> None:
    settings, _, _, rows = world
    new = ask(f"select count(*) from ({STEPS}) where not acts and lane = 4 and segs = 1", rows=rows)[0][0]
    assert (new > 0) == (settings.style == "walmart")


def test_questions_go_with_reports(world: tuple[Settings, int, int, pa.Table]) -> None:
    settings, _, _, rows = world
    alone = "select q.vid, q.qid from rows q anti join (select vid, time from rows where type = 0) r using (vid, time) where q.type <> 0"
    planted = {
        case["qid"] for case in Traffic(settings).cast.truth(0, 10_800)["planted"] if "after_leaving" in case["case"]
    }
    assert {qid for _, qid in ask(alone, rows=rows)} <= planted
    assert ask("select count(*) - count(distinct qid) from rows where type <> 0", rows=rows) == [(0,)]


def test_questions_have_their_fields_and_no_others(world: tuple[Settings, int, int, pa.Table]) -> None:
    settings, _, _, rows = world
    place = "spd = -1 and lane = -1 and dir = -1 and seg = -1 and pos = -1"
    trip = "sinit = -1 and send = -1 and dow = -1 and tod = -1"
    dummy = "(sinit = 0 and send = 0 and dow = 0 and tod = 0)"
    real = "sinit between 0 and 99 and send between 0 and 99 and dow between 1 and 7 and tod between 1 and 1440"
    on = f"xway between 0 and {settings.roads - 1}"
    check = partial(broken, rows, steps=False)
    assert not check("type = 0 or qid >= 0")
    assert not check(f"type <> 4 or {place} and {on} and ({real} or {dummy}) and day = -1")
    assert not check(f"type <> 3 or {on} and {trip} and day between 0 and 69")
    assert not check(f"type <> 2 or {trip} and day = -1")
    if settings.style == "official":
        assert not check(f"type not in (2, 3) or {place} and (type = 3 or xway = -1)")
    else:
        same = "select count(*) from rows q join rows r using (vid, time, spd, xway, lane, dir, seg, pos) where q.type in (2, 3) and r.type = 0"
        assert ask(same, rows=rows)[0][0] >= ask("select count(*) - 2 from rows where type in (2, 3)", rows=rows)[0][0]


def test_one_report_in_a_hundred_asks(world: tuple[Settings, int, int, pa.Table]) -> None:
    _, _, _, rows = world
    kinds = Counter(rows["type"].to_pylist())
    asked = sum(kinds.values()) - kinds[0]
    assert abs(asked - kinds[0] / 100) < 5 * (kinds[0] / 100) ** 0.5 + 30
    for kind, part in ((2, 0.5), (3, 0.1), (4, 0.4)):
        assert abs(kinds[kind] - asked * part) < 5 * (asked * part) ** 0.5 + 25


def test_a_question_stands_before_its_report_or_behind_it() -> None:
    rows = made(Settings(1, density=500), 0, 60)
    rows = rows.append_column("at", pa.array(np.arange(rows.num_rows)))
    order = "select q.at < r.at, count(*) from rows q join rows r using (vid, time) where q.type > 0 and r.type = 0 group by 1"
    assert min(count for _, count in ask(order, rows=rows)) > 50


# --- how much there is ------------------------------------------------------------------------------------------------


def test_official_density() -> None:
    """10 tuples per second at first, then as measured in official data, and 12 million in three hours."""
    rows = made(Settings(1, plain=True), 0, 216)
    per_second = np.bincount(rows["time"].to_numpy())
    for second, tuples in ((0, 10), (60, 31), (120, 50), (180, 65), (214, 80)):
        assert abs(per_second[second : second + 2].mean() - tuples) <= 7, second
    total = Demand(None).tuples(np.arange(10_800)).sum()
    assert 11.5e6 < total < 12.5e6
    last = made(Settings(1, plain=True), 10_790, 10_800)
    assert 1650 <= last.num_rows / 10 <= 1720


def test_density_from_the_beginning() -> None:
    for density in (100, 1700):
        rows = made(Settings(1, density=density, plain=True), 0, 30)
        assert 0.95 * density <= rows.num_rows / 30 <= 1.03 * density
        assert len(set(rows.slice(0, 50)["seg"].to_pylist())) > 10  # they are everywhere already


def test_traffic_is_dense_enough_for_tolls_and_free_elsewhere() -> None:
    """NOV > 50 with a mean speed below 40 in many segments, and free flow in many others."""
    rows = made(Settings(1, density=1700, plain=True), 0, 180)
    segments = """
        select dir, seg, time // 60 as minute, count(distinct vid) as nov, avg(spd) as speed
        from rows where type = 0 group by all
    """
    slow = f"select count(*) filter (nov > 50 and speed < 40), count(*) filter (speed >= 45) from ({segments})"
    jammed, free = ask(slow, rows=rows)[0]
    assert jammed > 100 and free > 200
    tolls = f"""
        select count(*) from ({STEPS}) r join ({segments}) s
        on s.dir = r.dir and s.seg = r.seg and s.minute = r.time // 60 - 1
        where lane <> 4 and (gap is null or gap > 30 or segs = 1) and nov > 50 and speed < 40
    """
    assert ask(tolls, rows=rows)[0][0] > 5_000  # in two minutes; a half hour has fifteen times as many


def test_cars_come_back() -> None:
    """Some one in ten, on the expressway that they left and on others, always after more than a minute."""
    rows = made(Settings(3, density=300, plain=True), 0, 900)
    back = f"select xway = was_xway, count(*) from ({STEPS}) where gap > 30 group by 1 order by 1"
    (elsewhere, others), (here, same) = ask(back, rows=rows)
    assert (elsewhere, here) == (False, True) and others > 20 and same > 20
    assert ask(f"select min(gap), count(*) filter (lane <> 0) from ({STEPS}) where gap > 30", rows=rows)[0] >= (61, 0)


# --- always the same --------------------------------------------------------------------------------------------------


def test_the_same_settings_give_the_same_tuples() -> None:
    assert made(Settings(2), 0, 120).equals(made(Settings(2), 0, 120))
    assert not made(Settings(2), 0, 120).equals(made(Settings(2, seed=2), 0, 120))


@pytest.mark.parametrize("settings", [Settings(2), Settings(2, density=150)], ids=["rising", "steady"])
def test_a_part_is_what_it_is_in_the_whole(settings: Settings) -> None:
    whole = made(settings, 0, 400)
    for begin, end in ((0, 100), (199, 201), (250, 400)):
        part = whole.filter((pc.field("time") >= begin) & (pc.field("time") < end))
        assert as_multiset(made(settings, begin, end)).equals(as_multiset(part))


def test_a_later_part_is_what_it_is_in_the_whole() -> None:
    whole, part = made(Settings(1), 4_400, 5_030), made(Settings(1), 5_000, 5_030)
    inside = whole.filter(pc.field("time") >= 5_000)
    assert as_multiset(part).equals(as_multiset(inside))


def test_an_expressway_has_the_same_traffic_beside_any_others() -> None:
    """But for the numbers of cars that come from others."""
    alone, beside = made(Settings(2, density=200), 0, 200), made(Settings(5, density=200), 0, 200)
    reports = "select time, xway, dir, seg, pos, spd, lane{} from rows where type = 0 and xway < 2 order by all"
    assert ask(reports.format(""), rows=alone) == ask(reports.format(""), rows=beside)
    with_vid = [set(ask(reports.format(", vid"), rows=rows)) for rows in (alone, beside)]
    assert len(with_vid[0] & with_vid[1]) > 0.8 * len(with_vid[0])


def test_expressways_can_be_made_in_pieces() -> None:
    settings = Settings(3, density=150)
    pieces = pa.concat_tables([made(settings, 0, 120, range(1)), made(settings, 0, 120, range(1, 3))])
    assert as_multiset(pieces).equals(as_multiset(made(settings, 0, 120)))


def test_groups_of_expressways_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    together = made(Settings(5, density=50), 0, 60)
    monkeypatch.setattr("headrace_linearroad.generating.traffic.TOGETHER", 2)
    assert as_multiset(made(Settings(5, density=50), 0, 60)).equals(as_multiset(together))


def test_shuffled_seconds_hold_the_same_tuples() -> None:
    plain, shuffled = made(Settings(2, density=200), 0, 40), made(Settings(2, density=200, shuffle=True), 0, 40)
    assert not plain.equals(shuffled) and as_multiset(plain).equals(as_multiset(shuffled))
    assert pc.all(pc.equal(plain["time"], shuffled["time"])).as_py()


def test_without_rare_cases_the_traffic_is_the_same() -> None:
    """But for who is slowed down by a planted accident, which are none in the first two minutes."""
    others = "select * exclude (ts) from rows where vid % 524288 < 458752 and xway <> -1 and time < 60 order by all"
    assert ask(others, rows=made(Settings(1), 0, 60)) == ask(others, rows=made(Settings(1, plain=True), 0, 60))


# --- rare cases -------------------------------------------------------------------------------------------------------


class Look:
    """Rows by what one looks for."""

    def __init__(self, rows: pa.Table, truth: dict[str, Any]) -> None:
        self.truth = truth
        self.reports: dict[int, list[dict[str, int]]] = defaultdict(list)
        self.asked: dict[int, dict[str, int]] = {}
        self.rows = rows
        acting = rows.filter(pc.greater_equal(pc.bit_wise_and(rows["vid"], 524287), 458752))
        for row in acting.drop_columns("ts").sort_by("time").to_pylist():
            if row["type"] == 0:
                self.reports[row["vid"]].append(row)
            else:
                self.asked[row["qid"]] = row

    def all(self, name: str) -> list[dict[str, Any]]:
        return [planted for planted in self.truth["planted"] if planted["case"] == name]

    def __call__(self, name: str) -> dict[str, Any]:
        return self.all(name)[0]

    def standing(self, vid: int) -> list[list[dict[str, int]]]:
        """Runs of four and more equal reports, half a minute apart."""
        runs: list[list[dict[str, int]]] = [[]]
        for row in self.reports[vid]:
            last = runs[-1][-1] if runs[-1] else None
            if last and (row["time"] - last["time"] != 30 or place(row) != place(last)):
                runs.append([])
            runs[-1].append(row)
        return [run for run in runs if len(run) >= 4]

    def cars(self, dir: int, seg: int, minute: int, xway: int = 0) -> dict[int, list[int]]:
        """Speeds of each car in a segment's minute."""
        where = f"type = 0 and xway = {xway} and dir = {dir} and seg = {seg} and time // 60 = {minute}"
        return dict(ask(f"select vid, list(spd) from rows where {where} group by vid", rows=self.rows))


def place(row: dict[str, int]) -> tuple[int, ...]:
    return row["xway"], row["lane"], row["dir"], row["pos"]


@pytest.fixture(scope="module")
def look() -> Look:
    traffic = Traffic(Settings(2, density=60))
    rows = pa.concat_tables(table for _, table in traffic.seconds(0, 610))
    return Look(rows, traffic.cast.truth(0, 610))


def accident_of(look: Look, found: dict[str, Any]) -> tuple[int, int, int]:
    """(detected, last stopped, cleared), from rows, of the cars that stand there."""
    runs = [run for vid in found["vids"] for run in look.standing(vid)]
    assert len(runs) == 2 and len({place(row) for run in runs for row in run}) == 1
    assert {row["spd"] for run in runs for row in run} == {0}
    assert runs[0][0]["seg"] == found["seg"] and place(runs[0][0])[3] == found["pos"]
    detected, cleared = max(run[3]["time"] for run in runs), min(run[-1]["time"] for run in runs) + 30
    last = max(row["time"] for run in runs for row in run if row["time"] < cleared)
    assert (found["detected"], found["last_stopped"], found["cleared"]) == (detected, last, cleared)
    for run in runs:  # it did move
        after = next(row for row in look.reports[run[0]["vid"]] if row["time"] == run[-1]["time"] + 30)
        assert place(after) != place(run[0])
    return detected, last, cleared


def comes_by(look: Look, vid: int, segs: set[int], minutes: set[int]) -> bool:
    """Whether a car's first report from one of some segments is within some minutes."""
    rows = look.reports[vid]
    fresh = [row for n, row in enumerate(rows) if n == 0 or rows[n - 1]["seg"] != row["seg"]]
    return any(row["seg"] in segs and row["time"] // 60 in minutes and row["lane"] != 4 for row in fresh)


def cleared_in_the_minute_of_the_last_stop(look: Look) -> None:
    found = look("accident_cleared_in_the_minute_of_the_last_stop")
    detected, last, cleared = accident_of(look, found)
    assert detected // 60 < last // 60 == cleared // 60
    in_both, in_one = found["witnesses"]
    assert comes_by(look, in_both, set(range(8, 13)), {last // 60})
    assert comes_by(look, in_one, set(range(8, 13)), {last // 60 + 1})


def over_in_the_minute_it_was_found_in(look: Look) -> None:
    found = look("accident_over_in_the_minute_it_was_found_in")
    detected, last, cleared = accident_of(look, found)
    assert detected // 60 == last // 60 == cleared // 60
    assert comes_by(look, found["witnesses"][0], set(range(16, 21)), {cleared // 60 + 1})


def two_within_five_segments(look: Look) -> None:
    found = look("two_accidents_within_five_segments")
    first, second = found["accidents"]
    times = [accident_of(look, one) for one in (first, second)]
    assert 0 < second["seg"] - first["seg"] < 5 and first["dir"] == second["dir"]
    assert max(detected for detected, _, _ in times) < min(cleared for _, _, cleared in times)
    active = set(range(times[0][0] // 60 + 1, times[0][2] // 60 + 1))
    assert comes_by(look, found["witnesses"][0], {first["seg"] - 1}, active)
    assert comes_by(look, found["witnesses"][1], {second["seg"] - 2}, active)


def second_in_the_segment(look: Look) -> None:
    first, second = look("second_accident_in_the_segment")["accidents"]
    (_, _, cleared), (detected, _, again) = accident_of(look, first), accident_of(look, second)
    assert first["seg"] == second["seg"] and first["pos"] != second["pos"] and cleared + 60 < detected
    assert comes_by(look, look("second_accident_in_the_segment")["witnesses"][1], {42}, {again // 60})


def cleared_by_a_change_of_lane(look: Look) -> None:
    found = look("accident_cleared_by_a_change_of_lane")
    _, _, cleared = accident_of(look, found)
    moved = next(row for vid in found["vids"] for row in look.reports[vid] if row["time"] == cleared)
    assert moved["pos"] == found["pos"] and moved["lane"] != found["lane"]


def accident_at_the_end(look: Look) -> None:
    found = look("accident_in_the_last_segment")
    detected, _, _ = accident_of(look, found)
    assert (found["dir"], found["seg"]) == (0, 99)
    assert comes_by(look, found["witnesses"][0], {98, 99}, {detected // 60 + 1, detected // 60 + 2})


def accident_at_the_beginning(look: Look) -> None:
    found = look("accident_near_the_first_segment")
    detected, _, _ = accident_of(look, found)
    assert (found["dir"], found["seg"]) == (1, 98)
    assert comes_by(look, found["witnesses"][0], {99}, {detected // 60 + 1})


def stands_alone(look: Look) -> None:
    found = look("car_that_stands_alone")
    (run,) = look.standing(found["vid"])
    assert len(run) >= 4 and run[0]["pos"] == found["pos"]
    others = f"type = 0 and vid <> {found['vid']} and xway = 0 and dir = 0 and pos = {found['pos']} and time between {run[0]['time']} and {run[-1]['time']}"
    assert ask(f"select count(*) from rows where {others}", rows=look.rows) == [(0,)]


def side_by_side(look: Look, name: str, differs: int) -> None:
    """Two cars stand at one position at one time, in places that differ in one thing: xway, lane, direction."""
    first, second = (look.standing(vid)[0] for vid in look(name)["vids"])
    ours, theirs = place(first[0]), place(second[0])
    assert first[3]["time"] <= second[-1]["time"] and second[3]["time"] <= first[-1]["time"]
    assert [n for n in range(4) if ours[n] != theirs[n]] == [differs]


def journeys(look: Look, vid: int) -> list[list[dict[str, int]]]:
    found: list[list[dict[str, int]]] = []
    for row in look.reports[vid]:
        if not found or row["time"] - found[-1][-1]["time"] > 30:
            found.append([])
        found[-1].append(row)
    return found


def returns_to_the_same(look: Look) -> None:
    found = look("returns_to_the_same_expressway")
    first, second = journeys(look, found["vid"])
    assert first[-1]["lane"] == 4 and second[0]["lane"] == 0 and second[0]["time"] - first[-1]["time"] > 60
    assert first[0]["xway"] == second[0]["xway"] and {row["seg"] for row in first} & {row["seg"] for row in second}
    assert look.asked[found["qid"]]["vid"] == found["vid"] and look.asked[found["qid"]]["time"] > second[0]["time"]


def returns_elsewhere(look: Look) -> None:
    found = look("returns_to_another_expressway")
    first, second = journeys(look, found["vid"])
    assert first[-1]["lane"] == 4 and second[0]["lane"] == 0 and second[0]["time"] - first[-1]["time"] > 60
    assert (first[0]["xway"], second[0]["xway"]) == (0, 1)
    assert look.asked[found["qid"]]["vid"] == found["vid"] and look.asked[found["qid"]]["type"] == 2


def returns_unheard(look: Look) -> None:
    first, second = journeys(look, look("returns_though_it_never_left")["vid"])
    assert first[-1]["lane"] in (1, 2, 3) and second[0]["lane"] == 0 and second[0]["time"] - first[-1]["time"] > 60


def exits_in_a_new_segment(look: Look) -> None:
    *_, before, last = look.reports[look("exit_in_a_new_segment")["vid"]]
    assert last["lane"] == 4 and last["seg"] == before["seg"] + 1


def vanishes(look: Look) -> None:
    found = look("car_that_vanishes")
    last = look.reports[found["vid"]][-1]
    assert last["lane"] in (1, 2, 3) and last["time"] == found["second"] < 500


def end_to_end(look: Look) -> None:
    seen = {(row["dir"], row["seg"]) for vid in look("from_end_to_end")["vids"] for row in look.reports[vid]}
    assert seen >= {(0, 0), (0, 99), (1, 0), (1, 99)}


def asks(look: Look, name: str, nth: int) -> None:
    """Twice in the second of a car's first (0) or last (-1) report: before it and behind it."""
    found = look(name)
    row = look.reports[found["vid"]][nth]
    assert row["lane"] == (0 if nth == 0 else 4)
    second = look.rows.filter(pc.field("time") == row["time"]).to_pylist()
    at = {(one["type"], one["qid"]): n for n, one in enumerate(second) if one["vid"] == found["vid"]}
    before, behind = found["qids"]
    assert at[2, before] < at[0, -1] < at[2, behind]


def asks_after_leaving(look: Look) -> None:
    found = look("question_after_leaving")
    last = look.reports[found["vid"]][-1]
    assert last["lane"] == 4 and look.asked[found["qid"]]["time"] > last["time"] + 30


def day_0(look: Look) -> None:
    asked = look.asked[look("expenditure_of_day_0")["qid"]]
    assert (asked["type"], asked["day"]) == (3, 0)


def no_row(look: Look) -> None:
    found = look("expenditure_without_a_row")
    asked = look.asked[found["qid"]]
    assert (asked["type"], asked["vid"], asked["day"]) == (3, found["vid"], 7)


def dummy_trip(look: Look) -> None:
    asked = look.asked[look("trip_that_means_nothing")["qid"]]
    assert [asked[name] for name in ("type", "sinit", "send", "dow", "tod")] == [4, 0, 0, 0, 0]


def by_a_hair(look: Look, name: str, nov: int, mean: float) -> None:
    """A car enters a segment in whose last minute were so many cars, so fast; before that there was nobody."""
    found = look(name)
    entry = look.reports[found["vid"]][0]
    minute = entry["time"] // 60
    assert (entry["time"], entry["dir"], entry["seg"]) == (found["second"], found["dir"], found["seg"])
    cars = look.cars(entry["dir"], entry["seg"], minute - 1)
    speeds = [sum(of_car) / len(of_car) for of_car in cars.values()]
    assert len(cars) == nov and sum(speeds) / nov == pytest.approx(mean, abs=1e-9)
    reports = [speed for of_car in cars.values() for speed in of_car]
    assert sum(reports) / len(reports) == pytest.approx(mean, abs=1e-9)  # by report as well as by car
    assert not any(look.cars(entry["dir"], entry["seg"], earlier) for earlier in range(minute - 5, minute - 1))
    later = [row["seg"] for row in look.reports[found["vid"]] if row["time"] <= look.asked[found["qid"]]["time"]]
    assert len(set(later)) > 1  # so that it has paid when it asks


def at_a_border(look: Look) -> None:
    found = look("last_and_first_second_of_a_minute")
    first, second = (look.reports[vid][0] for vid in found["vids"])
    assert (first["time"] % 60, second["time"] % 60) == (59, 0) and second["time"] - first["time"] == 1
    cars = look.cars(first["dir"], first["seg"], first["time"] // 60)
    assert len(cars) == 51 and first["vid"] in cars and second["vid"] not in cars


CHECKS: dict[str, Callable[[Look], None]] = {
    "accident_cleared_in_the_minute_of_the_last_stop": cleared_in_the_minute_of_the_last_stop,
    "accident_over_in_the_minute_it_was_found_in": over_in_the_minute_it_was_found_in,
    "two_accidents_within_five_segments": two_within_five_segments,
    "second_accident_in_the_segment": second_in_the_segment,
    "accident_cleared_by_a_change_of_lane": cleared_by_a_change_of_lane,
    "accident_in_the_last_segment": accident_at_the_end,
    "accident_near_the_first_segment": accident_at_the_beginning,
    "car_that_stands_alone": stands_alone,
    "same_position_in_other_lanes": partial(side_by_side, name="same_position_in_other_lanes", differs=1),
    "same_position_in_other_directions": partial(side_by_side, name="same_position_in_other_directions", differs=2),
    "same_position_on_other_expressways": partial(side_by_side, name="same_position_on_other_expressways", differs=0),
    "returns_to_the_same_expressway": returns_to_the_same,
    "returns_to_another_expressway": returns_elsewhere,
    "returns_though_it_never_left": returns_unheard,
    "exit_in_a_new_segment": exits_in_a_new_segment,
    "car_that_vanishes": vanishes,
    "from_end_to_end": end_to_end,
    "question_when_entering": partial(asks, name="question_when_entering", nth=0),
    "question_when_leaving": partial(asks, name="question_when_leaving", nth=-1),
    "question_after_leaving": asks_after_leaving,
    "expenditure_of_day_0": day_0,
    "expenditure_without_a_row": no_row,
    "trip_that_means_nothing": dummy_trip,
    "fifty_cars": partial(by_a_hair, name="fifty_cars", nov=50, mean=30),
    "fifty_one_cars": partial(by_a_hair, name="fifty_one_cars", nov=51, mean=30),
    "mean_speed_39_5": partial(by_a_hair, name="mean_speed_39_5", nov=60, mean=39.5),
    "mean_speed_39_99": partial(by_a_hair, name="mean_speed_39_99", nov=100, mean=39.99),
    "mean_speed_40": partial(by_a_hair, name="mean_speed_40", nov=60, mean=40),
    "last_and_first_second_of_a_minute": at_a_border,
}


@pytest.mark.parametrize("case", CHECKS)
def test_a_planted_case_is_in_the_rows(look: Look, case: str) -> None:
    CHECKS[case](look)


def test_every_case_is_planted_and_looked_at(look: Look) -> None:
    assert {case.name for case in CASES} == set(CHECKS) == {planted["case"] for planted in look.truth["planted"]}
    assert look.truth["missing"] == []


def test_what_cannot_be_planted_is_said() -> None:
    """One expressway has no other, half of one has no other direction, and a minute is too short for most."""
    assert set(Traffic(Settings(1)).cast.truth(0, 900)["missing"]) == {
        "same_position_on_other_expressways",
        "returns_to_another_expressway",
    }
    assert "same_position_in_other_directions" in Traffic(Settings(0.5)).cast.truth(0, 900)["missing"]
    assert "fifty_cars" in Traffic(Settings(1)).cast.truth(0, 60)["missing"]
    assert len(Traffic(Settings(1, plain=True)).cast.truth(0, 900)["missing"]) == len(CASES)


def accidents_in(rows: pa.Table) -> set[tuple[Any, ...]]:
    """(place, cars, detected, cleared): pairs that stand at one place, both found to stand before either moves."""
    still = ask(
        """
        with steps as (
            select vid, time, xway, dir, lane, pos, seg, lag(time) over car = time - 30
                and (lag(xway) over car, lag(dir) over car, lag(lane) over car, lag(pos) over car) = (xway, dir, lane, pos) as same
            from rows where type = 0 window car as (partition by vid order by time)),
        runs as (select *, count(*) filter (same is not true) over (partition by vid order by time) as run from steps)
        select vid, any_value((xway, dir, seg, pos, lane)), min(time), max(time) from runs group by vid, run having count(*) >= 4
        """,
        rows=rows,
    )
    found, last = set(), max(rows["time"].to_pylist())
    for one in still:
        for other in still:
            detected, cleared = max(one[2], other[2]) + 90, min(one[3], other[3]) + 30
            if one[0] < other[0] and one[1] == other[1] and detected < cleared:
                found.add((tuple(one[1]), one[0], other[0], detected, cleared if cleared <= last else None))
    return found


@pytest.mark.parametrize("begin, end", [(0, 610), (1300, 2400), (250, 400)])
def test_the_truth_has_all_accidents_and_no_others(begin: int, end: int) -> None:
    """Also of a part in whose first second cars are standing already."""
    traffic = Traffic(Settings(4, seed=9, density=60))
    rows = pa.concat_tables(table for _, table in traffic.seconds(begin, end))
    truth = traffic.cast.truth(begin, end)["accidents"]
    told = {
        (
            (*(one[name] for name in ("xway", "dir", "seg", "pos", "lane")),),
            *sorted(one["vids"]),
            one["detected"],
            one["cleared"],
        )
        for one in truth
    }
    assert told == accidents_in(rows) and len(told) == len(truth)
    assert len({one[0][0] for one in told}) >= (3 if end - begin > 500 else 1)


def test_traffic_slows_down_behind_an_accident() -> None:
    traffic = Traffic(Settings(1, seed=3, density=300, plain=True))
    accident = traffic.cast.truth(0, 900)["accidents"][0]
    rows = pa.concat_tables(table for _, table in traffic.seconds(0, accident["detected"] + 60))
    ahead, behind = (range(2, 7), range(-4, 1)) if accident["dir"] == 0 else (range(-6, -1), range(5))
    mean = "select avg(spd) from rows where type = 0 and lane in (1, 2, 3) and dir = {dir} and time > {detected} and seg in ({segs})"
    slow, fast = (
        ask(mean.format(**accident, segs=", ".join(str(accident["seg"] + n) for n in which)), rows=rows)[0][0]
        for which in (behind, ahead)
    )
    assert slow < 30 < fast


# --- histories --------------------------------------------------------------------------------------------------------


def all_of(tables: Iterator[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of columns, with the histories that are needed."""
    path = tmp_path_factory.mktemp("road") / "columns"
    write(Settings(2, density=150), path, Job(0, 240))
    return path


def read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def seconds_of(path: Path) -> pa.Table:
    return pa.concat_tables(read(file) for file in sorted(path.glob("*.arrow")))


def test_most_expenditures_have_a_row_and_some_do_not(folder: Path) -> None:
    tolls = read(folder / "history" / "tolls.arrow")
    assert tolls.schema == TOLL_HISTORY
    assert tolls.equals(tolls.sort_by([("vid", "ascending"), ("day", "ascending"), ("xway", "ascending")]))
    assert ask("select count(*) - count(distinct (vid, day, xway)) from tolls", tolls=tolls) == [(0,)]
    answered = "select count(t.toll), count(*) from rows r left join tolls t using (vid, day, xway) where type = 3"
    ((found, asked),) = ask(answered, rows=seconds_of(folder), tolls=tolls)
    assert 0.6 * asked < found < 0.95 * asked
    asked_for = "select count(*) from tolls t semi join (select vid, day from rows where type = 3) r using (vid, day)"
    assert ask(asked_for, rows=seconds_of(folder), tolls=tolls) == [(tolls.num_rows,)]  # and no row too many
    unknown = next(one["vid"] for one in json.loads((folder / "truth.json").read_text())["planted"] if "unknown" in one)
    assert unknown not in tolls["vid"].to_pylist()


def test_the_complete_history_has_every_day_of_every_car(tmp_path: Path, folder: Path) -> None:
    write(Settings(2, density=2, trips=1), tmp_path / "few", Job(0, 240))
    traffic = Traffic(Settings(2, density=2, trips=1))
    from headrace_linearroad.generating.histories import Tolls

    tolls = all_of(Tolls(traffic.settings, traffic.cast.unknown).complete(traffic.demand, 0, 240, traffic.cast.vids))
    assert tolls.equals(tolls.sort_by([("vid", "ascending"), ("day", "ascending")]))
    assert ask("select distinct days from (select count(*) as days from tolls group by vid)", tolls=tolls) == [(69,)]
    assert ask("select min(day), max(day), min(toll) >= 0, max(xway) from tolls", tolls=tolls) == [(1, 69, True, 1)]
    rows, part = seconds_of(tmp_path / "few"), read(tmp_path / "few" / "history" / "tolls.arrow")
    unknown = traffic.cast.unknown[0]
    strangers = "select distinct vid from rows anti join tolls using (vid)"
    assert ask(strangers, rows=rows, tolls=tolls) == [(unknown,)]
    assert ask("select * from part except select * from tolls", part=part, tolls=tolls) == []


@pytest.mark.long
def test_complete_histories_in_files(tmp_path: Path) -> None:
    """All of an expressway: 400 MB."""
    write(Settings(1, density=20), tmp_path, Job(0, 60, history="complete"))
    tolls, segments = (read(tmp_path / "history" / f"{name}.arrow") for name in ("tolls", "segments"))
    assert ask("select count(*) / count(distinct vid) from tolls", tolls=tolls) == [(69.0,)]
    assert 0.9 * 69 * 1440 * 200 < segments.num_rows < 69 * 1440 * 200
    keys = "select count(distinct (xway, dir, seg, min, day)), count(distinct (dir, seg)), max(min), max(day) from segments"
    assert ask(keys, segments=segments) == [(segments.num_rows, 200, 1440, 69)]


def travel_time(
    history: dict[tuple[int, ...], tuple[int, int]], trip: dict[str, int]
) -> tuple[int, int, set[tuple[int, ...]]]:
    """As the rules say it, in plain Python: seconds, toll, and the rows that were looked for."""
    moment, total, toll, looked = (trip["tod"] - 1) * 60_000, 0, 0, set()
    step = 1 if trip["sinit"] <= trip["send"] else -1
    for seg in range(trip["sinit"], trip["send"] + step, step):
        minute = min(moment // 60_000 + 1, 1440)
        keys = [(trip["xway"], int(step < 0), seg, minute, day) for day in range(1, 70) if day % 7 + 1 == trip["dow"]]
        looked |= set(keys)
        rows = [history[key] for key in keys if key in history]
        lavs, tolls = [lav for lav, _ in rows if lav > 0], [paid for lav, paid in rows if lav >= 0]
        ms = 3_600_000 * len(lavs) // sum(lavs) if lavs else 3_600_000
        toll += (2 * sum(tolls) + len(tolls)) // (2 * len(tolls)) if tolls else 0
        moment, total = moment + ms, total + ms
    return total // 1000, toll, looked


def history_of(table: pa.Table) -> dict[tuple[int, ...], tuple[int, int]]:
    rows = ask("select xway, dir, seg, min, day, lav, toll from history", history=table)
    return {row[:5]: row[5:] for row in rows}


def test_trips_find_what_they_need_in_the_history(folder: Path) -> None:
    table = read(folder / "history" / "segments.arrow")
    assert table.schema == SEGMENT_HISTORY
    keys = ["xway", "dir", "seg", "min", "day"]
    assert table.equals(table.sort_by([(key, "ascending") for key in keys]))
    history = history_of(table)
    assert len(history) == table.num_rows
    trips = ask(
        "select distinct xway, sinit, send, dow, tod from rows where type = 4 and dow > 0", rows=seconds_of(folder)
    )
    looked: set[tuple[int, ...]] = set()
    for trip in trips:
        seconds, toll, more = travel_time(
            history, dict(zip(("xway", "sinit", "send", "dow", "tod"), trip, strict=True))
        )
        assert seconds > 0 and toll >= 0
        looked |= more
    rows = [history[key] for key in looked if key in history]
    found = Counter("none" if key not in history else min(history[key][0], 1) for key in looked)
    assert min(found["none"], found[0], found[-1]) > 0.02 * len(looked) and found[1] > 0.7 * len(looked)
    assert any(lav == -1 and toll > 0 for lav, toll in rows)  # to be left out of tolls
    minutes = defaultdict(set)
    for key in looked:
        minutes[key[:4]].add("none" if key not in history else min(history[key][0], 1))
    assert {frozenset({kind}) for kind in ("none", 0, -1)} <= {frozenset(kinds) for kinds in minutes.values()}


def test_the_needed_history_is_all_that_the_complete_one_has_for_these_trips() -> None:
    """Every row that a trip looks for and does not find is missing in the complete history as well."""
    settings = Settings(1, trips=3)
    needed = history_of(all_of(Segments(settings).needed()))
    looked: set[tuple[int, ...]] = set()
    for trip in range(3):
        drawn = Segments(settings).questions.trip(np.array([0]), np.array([trip]))
        asked = {name: int(column[0]) for name, column in drawn.items()} | {"xway": 0}
        looked |= travel_time(needed, asked)[2]
    assert set(needed) <= looked
    seen = 0
    for nth, table in enumerate(Segments(settings).complete()):
        if nth % 40 == 7:
            complete, place = history_of(table), divmod(nth, 100)
            seen += sum(key[1:3] == place for key in needed)
            assert {key: row for key, row in needed.items() if key[1:3] == place} == {
                key: row for key, row in complete.items() if key in looked
            }
            assert 0.9 * 69 * 1440 < len(complete) < 69 * 1440
    assert seen > 30


def test_days_of_weekdays() -> None:
    for weekday in range(1, 8):
        days = days_of(np.array([weekday]))[0]
        assert [day for day in days if day <= 69] == [day for day in range(1, 70) if day % 7 + 1 == weekday]


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_one_second_each(folder: Path) -> None:
    expected = made(Settings(2, density=150), 0, 240)
    assert seconds_of(folder).equals(expected)
    for second in (0, 239):
        table = read(folder / f"{second:06d}.arrow")
        assert set(table["time"].to_pylist()) == {second} and table.schema == INPUT
    done = json.loads((folder / COMPLETE).read_text())
    assert (done["tuples"], done["files"], done["seconds"]) == (expected.num_rows, 240, 240)
    assert sum(done["kinds"].values()) == done["tuples"] and done["seed"] == 1
    assert not list(folder.glob("_*.arrow"))


@pytest.mark.parametrize("name", ["cars.dat", "cars.dat.gz"])
def test_text_holds_the_same_tuples(tmp_path: Path, folder: Path, name: str) -> None:
    write(Settings(2, density=150), tmp_path, Job(0, 240, text=name))
    unpack = gzip.decompress if name.endswith(".gz") else bytes
    text = unpack((tmp_path / name).read_bytes()).decode()
    rows = seconds_of(folder).select(FIELDS)
    assert text.splitlines()[:3] == [
        ",".join(str(row[field]) for field in FIELDS) for row in rows.slice(0, 3).to_pylist()
    ]
    assert _from_text(text, FIELDS, rows.schema).equals(rows.combine_chunks())
    for history in ("tolls", "segments"):
        expected = read(folder / "history" / f"{history}.arrow")
        suffix = ".csv.gz" if name.endswith(".gz") else ".csv"
        found = unpack((tmp_path / "history" / f"{history}{suffix}").read_bytes()).decode()
        assert _from_text(found, expected.column_names, expected.schema).equals(expected.combine_chunks())
    assert not list(tmp_path.rglob("*.arrow"))


def _from_text(text: str, names: Any, schema: pa.Schema) -> pa.Table:
    read = csv.ReadOptions(column_names=list(names))
    types = csv.ConvertOptions(column_types={field.name: field.type for field in schema})
    return csv.read_csv(pa.BufferReader(text.encode()), read, convert_options=types).cast(schema).combine_chunks()


def test_a_folder_is_complete_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Iterator[pa.Table]:
        yield SEGMENT_HISTORY.empty_table()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace_linearroad.generating.histories.Segments.needed", full)
    with pytest.raises(WorkloadError, match=r"segments.arrow.*No space left on device; free some space"):
        write(Settings(1), tmp_path, Job(0, 5))
    assert not (tmp_path / COMPLETE).exists() and not list(tmp_path.rglob("_*"))


def test_without_histories(tmp_path: Path) -> None:
    write(Settings(1), tmp_path, Job(0, 5, history="none"))
    assert sorted(os.listdir(tmp_path)) == [*(f"{n:06d}.arrow" for n in range(5)), COMPLETE, "truth.json"]


# --- the command ------------------------------------------------------------------------------------------------------


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["linearroad", "generate", *map(str, arguments)])


def test_the_command(tmp_path: Path) -> None:
    found = call(
        "--out", tmp_path / "road", "--minutes", 0.5, "--begin", 600, "--expressways", 1.5, "--seed", 3, "--plain"
    )
    assert found.exit_code == 0, found.output
    rows = seconds_of(tmp_path / "road")
    assert rows.equals(made(Settings(1.5, seed=3, plain=True), 600, 630))
    assert f"{rows.num_rows:,} tuples in {tmp_path / 'road'}" in found.output
    assert json.loads((tmp_path / "road" / COMPLETE).read_text())["expressways"] == 1.5


def test_full_density_is_a_density(tmp_path: Path) -> None:
    for name, given in (("a", ["--full-density"]), ("b", ["--density", "1700"])):
        assert call("--out", tmp_path / name, "--seconds", 2, "--history", "none", *given).exit_code == 0
    assert seconds_of(tmp_path / "a").equals(seconds_of(tmp_path / "b"))


@pytest.mark.parametrize(
    "given, message",
    [
        (["--expressways", "0"], "the number of expressways must be 0.5 to 2,000"),
        (["--expressways", "2.3"], "in steps of a half"),
        (["--expressways", "5000"], "the number of expressways must be"),
        (["--begin", "10800"], "the first second must be 0 to 10,799"),
        (["--begin", "-5"], "found -5"),
        (["--begin", "10000", "--seconds", "801"], "the length must be 1 to 800 seconds"),
        (["--seconds", "0"], "the length must be 1 to 10,800 seconds"),
        (["--seconds", "5", "--minutes", "1"], "give one of them"),
        (["--density", "50", "--full-density"], "give one of them"),
        (["--density", "0"], "the density must be 1 to 2,000"),
        (["--density", "nan"], "the density must be"),
        (["--trips", "0"], "the number of trips must be"),
        (["--text", "a/b.dat"], "cannot be the text's name"),
        (["--text", "_complete.json"], "cannot be the text's name"),
        (["--expressways", "2000", "--full-density"], "generate fewer expressways or seconds"),
    ],
)
def test_what_cannot_be_made_is_said(tmp_path: Path, given: list[str], message: str) -> None:
    found = call("--out", tmp_path / "road", *given)
    assert found.exit_code == 1 and message in found.stderr, found.output
    assert not list(tmp_path.rglob("*.*"))


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    found = call("--out", tmp_path, "--seconds", 1)
    assert found.exit_code == 1 and "is not empty" in found.stderr
    assert os.listdir(tmp_path) == ["mine.txt"]


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "linearroad", "generate", "--out", str(folder), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_ctrl_c_leaves_whole_files_and_no_complete_folder(tmp_path: Path) -> None:
    with start(tmp_path / "road", "--expressways", "4", "--full-density") as process:
        while not list(tmp_path.glob("road/0000*.arrow")) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert "stopped after " in out and "is half written" in out
    assert seconds_of(tmp_path / "road").num_rows > 0
    assert not list(tmp_path.glob("road/_*"))


@pytest.mark.parametrize("form", [[], ["--text", "cars.dat"]], ids=["columns", "text"])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, form: list[str]) -> None:
    """As on a disk that is full."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (40_000, 40_000))
    with start(tmp_path / "road", "--full-density", "--seconds", "20", *form, preexec_fn=limit) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1 and "cannot write" in errors and "File too large" in errors
    assert "Traceback" not in errors and not list(tmp_path.glob("road/_*"))
