"""The judge of Linear Road: it agrees with a second reading, accepts what is right, and finds what is not."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace_linearroad.validating as validating
from headrace import cli
from headrace.errors import SourceError
from headrace_linearroad.validating import (
    OFFICIAL,
    PROFILES,
    WALMART,
    Answer,
    Rules,
    Verdict,
    accidents,
    answer,
    compare,
    expected,
    reading,
    statistics,
    text,
)
from headrace_linearroad.validating.shapes import OUTPUTS
from tests.choosing import some
from tests.linearroad import driving
from tests.linearroad.by_tuple import ByTuple, Tuple, expenditures, travel_times

Tables = dict[str, pa.Table]


# --- a whole input, and its answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Road:
    tuples: Sequence[Tuple]
    tolls: Sequence[tuple[int, ...]]  # histories
    segments: Sequence[tuple[int, ...]]
    path: Path
    histories: Sequence[Path]

    def answer(self, rules: Rules, **options: Any) -> Answer:
        return answer(self.path, self.histories, rules, **options)

    def tables(self, rules: Rules) -> Tables:
        return expected(self.path, self.histories, rules=rules)


class Town(Road):
    """One road for many tests: what is right is computed once."""

    @cache  # noqa: B019
    def right(self, rules: Rules) -> tuple[Answer, Tables]:
        return self.answer(rules), self.tables(rules)


def road(folder: Path, tuples: Sequence[Tuple], seed: int) -> Town:
    tolls, segments = driving.toll_history(seed, 300, 2), driving.segment_history(seed, 2)
    files = [driving.write_csv(folder / "t.csv", tolls), driving.write_csv(folder / "s.csv.gz", segments, packed=True)]
    return Town(tuples, tolls, segments, driving.write_csv(folder / "input.txt", tuples), files)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return road(tmp_path_factory.mktemp("town"), driving.mixed(11), 11)


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def plain(table: pa.Table) -> list[tuple[Any, ...]]:
    return rows(table.drop_columns("ts") if "ts" in table.column_names else table)


def faults(verdict: Verdict, name: str) -> Counter[str]:
    return +verdict.outputs[name].faults


# --- two readings ----------------------------------------------------------------------------------------------------


def demand_agreement(each: Road, profile: str, free_cars: int = 50) -> ByTuple:
    found = each.answer(replace(PROFILES[profile], free_cars=free_cars))
    other = ByTuple(each.tuples, profile, free_cars)
    assert rows(found.tables["tolls"]) == sorted(other.tolls)
    assert rows(found.tables["accidents"]) == sorted(other.accidents)
    assert rows(found.tables["expenditures"]) == sorted(expenditures(each.tuples, each.tolls))
    assert rows(found.tables["travel_times"]) == sorted(travel_times(each.tuples, each.segments))
    right = defaultdict(set)
    for qid, _, _, low, high, bal in rows(found.accepted):
        right[qid].add((low, high, bal))
    needed = dict(zip(*(found.tables["balances"][name].to_pylist() for name in ("qid", "needed")), strict=True))
    assert needed == {query.qid: must for query, _, must in other.accepted}
    strange = twice_in_a_second(each.tuples)  # what was notified "before" is not said for them
    assert {q.qid: right[q.qid] for q, _, _ in other.accepted if q.vid not in strange} == {
        q.qid: some for q, some, _ in other.accepted if q.vid not in strange
    }
    return other


def twice_in_a_second(tuples: Iterable[Tuple]) -> set[int]:
    often = Counter((each.vid, each.time) for each in tuples if each.type == 0)
    return {vid for (vid, _), times in often.items() if times > 1}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("seed", some(range(8)))
def test_two_readings_of_wild_traffic_agree(seed: int, profile: str, tmp_path: Path) -> None:
    other = demand_agreement(road(tmp_path, driving.wild(seed), seed), profile, free_cars=2)
    assert any(toll for _, _, _, toll, *_ in other.tolls)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("seed", some(range(2)))
def test_two_readings_of_crowds_agree(seed: int, profile: str, tmp_path: Path) -> None:
    other = demand_agreement(road(tmp_path, driving.crowd(seed), seed), profile)
    assert sum(toll > 0 for _, _, _, toll, *_ in other.tolls) > 100
    assert len(other.accidents) > 20


@pytest.mark.parametrize("profile", PROFILES)
def test_two_readings_of_a_town_agree(town: Town, profile: str) -> None:
    demand_agreement(town, profile)


@pytest.mark.thorough
def test_two_readings_of_generated_traffic_agree(tmp_path: Path) -> None:
    """That of the application's generator: a folder of seconds, with the history that its questions need."""
    folder = tmp_path / "road"
    options = ("--full-density", "--seconds", "180", "--shuffle")
    made = CliRunner().invoke(cli.app, ["linearroad", "generate", "--out", str(folder), *options])
    assert made.exit_code == 0, made.output
    tuples = [Tuple(*each) for file in sorted(folder.glob("*.arrow")) for each in of_arrow(file, Tuple._fields)]
    tolls, segments = (of_arrow(folder / "history" / f"{kind}.arrow") for kind in ("tolls", "segments"))
    for profile in PROFILES:
        other = demand_agreement(Road(tuples, tolls, segments, folder, []), profile)
        assert sum(toll > 0 for _, _, _, toll, *_ in other.tolls) > 1000
        assert other.accidents


def of_arrow(file: Path, names: Sequence[str] | None = None) -> list[tuple[int, ...]]:
    table = pa.ipc.open_file(str(file)).read_all()
    return list(zip(*(table[name].to_pylist() for name in names or table.column_names), strict=True))


@pytest.mark.long
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("seed", range(100, 200))
def test_two_readings_agree_for_longer(seed: int, profile: str, tmp_path: Path) -> None:
    demand_agreement(road(tmp_path, driving.mixed(seed), seed), profile)


# --- what is right is accepted ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_the_right_answer_is_accepted(town: Town, profile: str) -> None:
    verdict = compare(*town.right(PROFILES[profile]))
    assert verdict.ok
    assert all(output.found == output.expected > 0 for output in verdict.outputs.values())


@pytest.mark.parametrize("profile", PROFILES)
def test_every_right_balance_is_accepted_and_no_other(town: Town, profile: str) -> None:
    found, tables = town.right(PROFILES[profile])
    random = Random(3)
    right: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for qid, _, _, low, high, bal in rows(found.accepted):
        right[qid] += [(low, bal), (high, bal)]
    chosen = {qid: random.choice(pairs) for qid, pairs in right.items()}
    others = balances(tables, lambda row: row | dict(zip(("resulttime", "bal"), chosen[row["qid"]], strict=True)))
    assert plain(others["balances"]) != plain(tables["balances"])
    assert compare(found, others).ok
    for change in (  # times of nothing; no toll is odd
        lambda row: row | {"bal": row["bal"] + 1},
        lambda row: row | {"resulttime": row["time"] + 1},
        lambda row: row | {"resulttime": -1},
    ):
        verdict = compare(found, balances(tables, change))
        assert faults(verdict, "balances") == {"wrong": len(right)}


def test_a_car_that_was_never_seen_may_be_told_nothing_or_zero(tmp_path: Path) -> None:
    path = driving.write_csv(tmp_path / "input.txt", [Tuple(2, 5, 1, qid=7), Tuple(0, 6, 1, 50, 0, 0, 0, 3, 15900)])
    found, tables = answer(path, [], OFFICIAL), expected(path)
    assert plain(tables["balances"]) == [(7, 5, 5, 1, 0)]
    assert compare(found, tables).ok
    assert compare(found, tables | {"balances": tables["balances"].slice(0, 0)}).ok
    assert not compare(found, balances(tables, lambda row: row | {"bal": 2})).ok
    assert not compare(found, balances(tables, lambda row: row | {"resulttime": 4})).ok
    walmart = expected(path, profile="walmart")
    assert not compare(answer(path, [], WALMART), walmart | {"balances": walmart["balances"].slice(0, 0)}).ok


def balances(tables: Tables, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Tables:
    given = tables["balances"]
    return tables | {"balances": pa.Table.from_pylist([change(row) for row in given.to_pylist()], given.schema)}


# --- planted errors: rules -------------------------------------------------------------------------------------------

MISREAD: dict[str, tuple[str, Rules]] = {  # NOV < 50 instead of <= 50 is none: the toll of 50 cars is 0 anyway
    "speeds are rounded": ("tolls", replace(OFFICIAL, half_up=True)),
    "speeds of this minute": ("tolls", replace(OFFICIAL, back=(0, 1, 2, 3, 4))),
    "speeds of six minutes": ("tolls", replace(OFFICIAL, back=(1, 2, 3, 4, 5, 6))),
    "speeds of reports": ("tolls", replace(OFFICIAL, mean_of="reports")),
    "no speed is zero": ("tolls", replace(OFFICIAL, no_speed=0)),
    "cars of this minute": ("tolls", replace(OFFICIAL, counted=0)),
    "51 cars are free": ("tolls", replace(OFFICIAL, free_cars=51)),
    "40 mph are not free": ("tolls", replace(OFFICIAL, free_speed=41)),
    "39 mph are free": ("tolls", replace(OFFICIAL, free_speed=39)),
    "a toll that is not squared": ("tolls", replace(OFFICIAL, power=1)),
    "a toll without its factor": ("tolls", replace(OFFICIAL, factor=1)),
    "a toll near an accident": ("tolls", replace(OFFICIAL, waived=False)),
    "an exit lane is told": ("tolls", replace(OFFICIAL, exits_notified=True)),
    "minutes of 61 seconds": ("tolls", replace(OFFICIAL, minute=61)),
    "a pause of 61 s is none": ("tolls", replace(OFFICIAL, pause=61)),
    "a pause of 60 s is one": ("tolls", replace(OFFICIAL, pause=59)),
    "reports after an exit are dropped": ("tolls", replace(OFFICIAL, drops=True)),
    "three reports are a stop": ("accidents", replace(OFFICIAL, equal=3)),
    "five reports are a stop": ("accidents", replace(OFFICIAL, equal=5)),
    "a rolling car stands": ("accidents", replace(OFFICIAL, standing=False)),
    "one car is an accident": ("accidents", replace(OFFICIAL, cars=1)),
    "an accident reaches five upstream": ("accidents", replace(OFFICIAL, reach=(0, 1, 2, 3, 4, 5))),
    "an accident reaches three upstream": ("accidents", replace(OFFICIAL, reach=(0, 1, 2, 3))),
    "an accident reaches downstream": ("accidents", replace(OFFICIAL, reach=(0, -1, -2, -3, -4))),
    "the farthest accident": ("accidents", replace(OFFICIAL, reach=(4, 3, 2, 1, 0))),
    "an accident ends when it is cleared": ("accidents", replace(OFFICIAL, ends="cleared")),
    "an accident counts at once": ("accidents", replace(OFFICIAL, later=0)),
    "an accident counts a minute late": ("accidents", replace(OFFICIAL, later=2)),
    "the ramp is charged": ("balances", replace(OFFICIAL, exits_charged=True)),
    "result times of half minutes": ("balances", replace(OFFICIAL, entries=False)),
    "weekdays are shifted": ("travel_times", replace(OFFICIAL, weekday=2)),
    "a day after midnight": ("travel_times", replace(OFFICIAL, wraps=True)),
    "tolls of history are cut": ("travel_times", replace(OFFICIAL, rounded=False)),
    "walmart: speeds are cut": ("tolls", replace(WALMART, half_up=False)),
    "walmart: speeds of minutes": ("tolls", replace(WALMART, mean_of="means")),
    "walmart: no speed": ("tolls", replace(WALMART, no_speed=-1)),
    "walmart: reports after an exit": ("tolls", replace(WALMART, drops=False)),
    "walmart: only speed 0 stands": ("accidents", replace(WALMART, standing=True)),
    "walmart: an accident ends after its last report": ("accidents", replace(WALMART, ends="last stop")),
    "walmart: three reports are a stop": ("accidents", replace(WALMART, equal=3)),
    "walmart: the ramp is charged": ("balances", replace(WALMART, exits_charged=True)),
}


@pytest.mark.parametrize("misreading", some(MISREAD))
def test_a_rule_that_is_read_wrong_is_found(town: Town, misreading: str) -> None:
    name, rules = MISREAD[misreading]
    right = WALMART if misreading.startswith("walmart") else OFFICIAL
    demand_found(town, right, town.tables(rules), name)


def demand_found(town: Town, rules: Rules, wrong: Tables, name: str) -> None:
    """The answer is another one, or else the data is too tame; and that is seen."""
    found, right = town.right(rules)
    assert plain(wrong[name]) != plain(right[name])
    verdict = compare(found, wrong)
    assert not verdict.outputs[name].ok
    different = set(plain(right[name])) ^ set(plain(wrong[name]))
    if name != "balances":  # of which several are right
        counted = verdict.outputs[name].faults
        assert 2 * counted["wrong"] + counted["missing"] + counted["extra"] == len(different)


# --- planted errors: made another way --------------------------------------------------------------------------------


def alert_instead_of_toll(town: Town, right: Tables) -> Tables:
    return right | {"tolls": right["tolls"].join(right["accidents"], ["vid", "time"], join_type="left anti")}


def nothing_is_charged(town: Town, right: Tables) -> Tables:
    return balances(right, lambda row: row | {"bal": 0})


def a_second_visit_is_not_told(town: Town, right: Tables) -> Tables:
    seen, kept = set(), []
    for row in sorted(right["tolls"].to_pylist(), key=lambda row: row["time"]):
        visit = tuple(row[name] for name in ("vid", "xway", "dir", "seg"))
        kept += [] if visit in seen else [row]
        seen.add(visit)
    return right | {"tolls": pa.Table.from_pylist(kept, right["tolls"].schema)}


def accounts_of_one_expressway(town: Town, right: Tables) -> Tables:
    """Queries go where the car is; what it paid elsewhere is not known there."""
    where: dict[int, int] = {}
    parts: dict[int, list[Tuple]] = defaultdict(list)
    for each in sorted(town.tuples, key=lambda each: (each.time, each.type)):
        if each.type == 0:
            where[each.vid] = each.xway
        if each.type in (0, 2):
            parts[where.get(each.vid, 0)].append(each)
    found = [
        expected(driving.write_csv(town.path.with_name(f"{xway}.txt"), tuples))["balances"]
        for xway, tuples in parts.items()
    ]
    return right | {"balances": pa.concat_tables(found)}


def expenditures_of_any_expressway(town: Town, right: Tables) -> Tables:
    spent = {(vid, day): toll for vid, day, _, toll in town.tolls}
    found = [
        {"ts": q.time * 1_000_000, "bal": spent[q.vid, q.day]}
        | {n: getattr(q, n) for n in ("qid", "time", "vid", "day", "xway")}
        for q in town.tuples
        if q.type == 3 and (q.vid, q.day) in spent
    ]
    return right | {"expenditures": pa.Table.from_pylist(found, right["expenditures"].schema)}


def expenditures_without_a_row_are_zero(town: Town, right: Tables) -> Tables:
    answered = set(right["expenditures"]["qid"].to_pylist())
    zeros = [
        {"ts": q.time * 1_000_000, "bal": 0} | {n: getattr(q, n) for n in ("qid", "time", "vid", "day", "xway")}
        for q in town.tuples
        if q.type == 3 and q.qid not in answered
    ]
    table = right["expenditures"]
    return right | {"expenditures": pa.concat_tables([table, pa.Table.from_pylist(zeros, table.schema)])}


def dummies_are_answered(town: Town, right: Tables) -> Tables:
    dummies = [q for q in town.tuples if q.type == 4 and q.dow == q.tod == q.sinit == q.send == 0]
    zeros = [{"ts": q.time * 1_000_000, "qid": q.qid, "time": q.time, "traveltime": 0, "toll": 0} for q in dummies]
    table = right["travel_times"]
    return right | {"travel_times": pa.concat_tables([table, pa.Table.from_pylist(zeros, table.schema)])}


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("tolls", alert_instead_of_toll),
        ("tolls", a_second_visit_is_not_told),
        ("balances", nothing_is_charged),
        ("balances", accounts_of_one_expressway),
        ("expenditures", expenditures_of_any_expressway),
        ("expenditures", expenditures_without_a_row_are_zero),
        ("travel_times", dummies_are_answered),
    ],
)
def test_an_answer_that_is_made_wrong_is_found(town: Town, name: str, made: Callable[[Road, Tables], Tables]) -> None:
    demand_found(town, OFFICIAL, made(town, town.right(OFFICIAL)[1]), name)


def test_an_accident_on_the_other_side_is_found(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    is_active = accidents.Accidents._is_active

    def on_either(self: Any, cell: Any, minute: Any) -> Any:
        other = np.where(cell // 100 % 2 == 0, cell + 100, cell - 100)
        return is_active(self, cell, minute) | is_active(self, other, minute)

    with monkeypatch.context() as patch:
        patch.setattr(accidents.Accidents, "_is_active", on_either)
        wrong = town.tables(OFFICIAL)
    demand_found(town, OFFICIAL, wrong, "accidents")


def test_a_place_without_its_lane_is_found(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(accidents, "PLACE", "cell, pos")
        wrong = town.tables(OFFICIAL)
    demand_found(town, OFFICIAL, wrong, "accidents")


def test_reports_counted_as_cars_are_found(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = statistics.gathered

    def reports_counted(*given: Any) -> pa.Table:
        table = whole(*given)
        return table.set_column(3, "cars", pc.multiply(table["cars"], table["n"]))

    with monkeypatch.context() as patch:
        patch.setattr(statistics, "gathered", reports_counted)
        wrong = town.tables(OFFICIAL)
    demand_found(town, OFFICIAL, wrong, "tolls")


def test_statistics_without_ramps_are_found(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = statistics.gathered

    def travelling(con: Any, reports: Any, rules: Rules) -> pa.Table:
        all_lanes = whole(con, reports, rules)
        nothing = pa.array(np.zeros(all_lanes.num_rows, int))
        known = all_lanes.set_column(3, "cars", nothing).set_column(4, "speed", nothing)
        on = (reports["lane"] > 0) & (reports["lane"] < 4)
        return pa.concat_tables([known, whole(con, {name: each[on] for name, each in reports.items()}, rules)])

    with monkeypatch.context() as patch:
        patch.setattr(statistics, "gathered", travelling)
        wrong = town.tables(OFFICIAL)
    demand_found(town, OFFICIAL, wrong, "tolls")


# --- planted errors: rows --------------------------------------------------------------------------------------------


def altered(table: pa.Table, place: int, **values: Any) -> pa.Table:
    listed = table.to_pylist()
    listed[place] |= values
    return pa.Table.from_pylist(listed, table.schema)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OUTPUTS)
def test_single_rows_are_found(town: Town, name: str) -> None:
    right, tables = town.right(OFFICIAL)
    table = tables[name]
    place = table.num_rows // 2
    row = table.slice(place, 1).to_pylist()[0]
    if name == "balances":  # one that must be answered
        needed = right.tables[name]["needed"].to_pylist()
        place = needed.index(True)
        row = table.slice(place, 1).to_pylist()[0]
    last = OUTPUTS[name].columns[-1]
    without = pa.concat_tables([table.slice(0, place), table.slice(place + 1)])
    one = table.slice(place, 1)
    changed = {
        "missing": without,
        "doubled": pa.concat_tables([table, one]),
        "extra": pa.concat_tables([table, altered(one, 0, time=12345, ts=12345_000_000)]),
        "wrong": altered(table, place, **{last: row[last] + 1}),
    }
    for kind, wrong in changed.items():
        verdict = compare(right, tables | {name: wrong})
        assert faults(verdict, name) == {kind: 1}
        assert [other for other, output in verdict.outputs.items() if not output.ok] == [name]
        example = verdict.outputs[name].examples[0]
        assert example.kind == kind
        wanted = {column: row[column] for column in OUTPUTS[name].columns}
        assert (wanted in example.expected) == (kind in ("missing", "wrong"))
    for column in OUTPUTS[name].columns:
        verdict = compare(right, tables | {name: altered(table, place, **{column: None})})
        assert faults(verdict, name).total() in (1, 2), column  # a key that is none is a row too many and one too few
    other_time = altered(table, place, ts=row["time"] * 1_000_000 + 1)
    assert faults(compare(right, tables | {name: other_time}), name) == {"wrong": 1}
    assert faults(compare(right, tables | {name: table.slice(0, 0)}), name)["missing"] >= table.num_rows - 60


def test_a_right_and_a_wrong_row_for_one_question(town: Town) -> None:
    right, tables = town.right(OFFICIAL)
    for name in OUTPUTS:
        last = OUTPUTS[name].columns[-1]
        one = tables[name].slice(0, 1)
        both = pa.concat_tables([tables[name], altered(one, 0, **{last: one[last][0].as_py() + 1})])
        assert faults(compare(right, tables | {name: both}), name) == {"extra": 1}


def test_two_right_balances_for_one_question_are_one_too_many(town: Town) -> None:
    right, tables = town.right(WALMART)
    one = tables["balances"].filter(pc.field("time") > 100).slice(0, 1)
    row = one.to_pylist()[0]
    both = pa.concat_tables([tables["balances"], altered(one, 0, resulttime=row["time"] - 1)])
    assert faults(compare(right, tables | {"balances": both}), "balances") == {"doubled": 1}


# --- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_files_of_every_kind_have_one_answer(town: Town, tmp_path: Path) -> None:
    """Text, gzip, a folder; lines shuffled within seconds; cars looked at in parts."""
    random = Random(5)
    shuffled = sorted(town.tuples, key=lambda each: (each.time, random.random()))
    packed = driving.write_csv(tmp_path / "input", shuffled, packed=True)
    folder = driving.write_seconds(tmp_path / "seconds", town.tuples)
    history = tmp_path / "seconds" / "history"
    history.mkdir()
    write_arrow(history / "tolls.arrow", town.tolls, ("vid", "day", "xway", "toll"))
    names = ("day", "min", "xway", "dir", "seg", "lav", "cnt", "toll")
    write_arrow(history / "segments.arrow", town.segments, names)
    right = {name: rows(table) for name, table in town.right(OFFICIAL)[1].items()}
    assert {name: rows(table) for name, table in expected(packed, town.histories).items()} == right
    assert {name: rows(table) for name, table in expected(folder).items()} == right  # history/ is found
    assert {name: rows(table) for name, table in expected(folder, [history]).items()} == right
    in_parts = town.answer(OFFICIAL, parts=3)
    whole, _ = town.right(OFFICIAL)
    assert {name: rows(table) for name, table in in_parts.tables.items()} == {
        name: rows(table) for name, table in whole.tables.items()
    }
    assert set(rows(in_parts.accepted)) == set(rows(whole.accepted))
    assert (in_parts.tuples, in_parts.left) == (whole.tuples, whole.left)


def write_arrow(path: Path, given: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    table = pa.table({name: pa.array([row[place] for row in given], pa.int32()) for place, name in enumerate(names)})
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


GOOD = Tuple(0, 100, 5, 50, 1, 2, 0, 10, 52900)
BAD: list[tuple[str, str | Tuple]] = [
    ("malformed", ""),
    ("malformed", "0,1,2"),
    ("malformed", ",".join(map(str, GOOD)) + ",1"),
    ("malformed", ",".join(map(str, GOOD)).replace("52900", "52900.0")),
    ("malformed", ",".join(map(str, GOOD)).replace("52900", "")),
    ("malformed", ",".join(map(str, GOOD)).replace("52900", "-")),
    ("malformed", ",".join(map(str, GOOD)).replace("52900", "+52900")),
    ("malformed", ",".join(map(str, GOOD)).replace("52900", "5 2900")),
    ("malformed", ",".join(map(str, GOOD)).replace("52900", "1" * 19)),
    ("malformed", ",".join(map(str, GOOD)) + ","),
    ("malformed", ",".join(map(str, Tuple(2, 100, 5, qid=7))).replace("7", "7.0")),
    ("malformed", "x" + ",".join(map(str, GOOD))[1:]),
    ("malformed", "time,vid"),
    ("malformed", "\xe9\x00"),
    ("of no known type", GOOD._replace(type=1)),
    ("of no known type", GOOD._replace(type=5)),
    ("of no known type", GOOD._replace(type=-1)),
    *(
        ("with a field outside its domain", GOOD._replace(**{name: value}))
        for name, values in {
            "time": (-1, 10800),
            "vid": (-1, 2**31),
            "spd": (-1, 101),
            "xway": (-1, 2**15),
            "lane": (-1, 5),
            "dir": (-1, 2),
            "seg": (-1, 100),
            "pos": (-1, 528_000),
        }.items()
        for value in values
    ),
    ("with a field outside its domain", Tuple(2, 100, 5, qid=-1)),
    ("with a field outside its domain", Tuple(3, 100, -5, qid=1)),
    ("with a field outside its domain", Tuple(4, 10800, 5, qid=1)),
    ("going back in time", GOOD._replace(time=99)),
    ("going back in time", Tuple(2, 3, 5, qid=1)),
]


@pytest.mark.parametrize(("reason", "bad"), BAD)
def test_what_is_no_tuple_is_counted_and_left_out(reason: str, bad: str | Tuple, tmp_path: Path) -> None:
    line = bad if isinstance(bad, str) else ",".join(map(str, bad))
    good = ",".join(map(str, GOOD))
    later = ",".join(map(str, GOOD._replace(time=130, seg=11)))
    path = tmp_path / "input.txt"
    path.write_text(f"{good}\n{line}\n{later}\n")
    found = answer(path, [], OFFICIAL)
    assert +found.left == {reason: 1}
    assert found.tuples == 3
    assert [row[:2] for row in rows(found.tables["tolls"])] == [(5, 100), (5, 130)]
    assert not found.tables["balances"].num_rows


def test_time_is_that_of_the_latest_line_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [(100, 2), (50, 2), (60, 2), (9000, 5), (99, 2), (100, 2), (101, 2)]  # the one on lane 5 does not count
    path = driving.write_csv(
        tmp_path / "input.txt", [GOOD._replace(time=t, vid=n, lane=lane) for n, (t, lane) in enumerate(clock)]
    )
    for block in (text.BLOCK, 1):
        monkeypatch.setattr(text, "BLOCK", block)
        found = answer(path, [], OFFICIAL)
        assert +found.left == {"going back in time": 3, "with a field outside its domain": 1}
        assert sorted(found.tables["tolls"]["vid"].to_pylist()) == [0, 5, 6]


def test_domains_of_a_folder(tmp_path: Path) -> None:
    bad = [GOOD._replace(type=1), GOOD._replace(lane=5), GOOD._replace(seg=-1), Tuple(2, 100, 5, qid=-1)]
    folder = driving.write_seconds(tmp_path / "seconds", [GOOD, *bad])
    found = answer(folder, [], OFFICIAL)
    assert +found.left == {"of no known type": 1, "with a field outside its domain": 3}
    assert found.tables["tolls"].num_rows == 1


def test_a_tuple_of_a_folder_without_a_value_or_of_another_time(tmp_path: Path) -> None:
    folder = driving.write_seconds(tmp_path / "seconds", [GOOD, GOOD._replace(vid=6), GOOD._replace(vid=7)])
    file = folder / "000100.arrow"
    table = pa.ipc.open_file(str(file)).read_all()

    def put(**values: int | None) -> None:
        other = altered(table, 1, **values)
        with pa.ipc.new_file(str(file), other.schema) as written:
            written.write_table(other)

    for column, value in (("seg", None), ("ts", None), ("type", None), ("time", 101)):
        put(**{column: value})
        found = answer(folder, [], OFFICIAL)
        assert +found.left == {"malformed": 1}
        assert sorted(found.tables["tolls"]["vid"].to_pylist()) == [5, 7]
    put(qid=None)
    assert answer(folder, [], OFFICIAL).tables["tolls"].num_rows == 3, "a report has no use for it"
    put(ts=101_000_000)
    with pytest.raises(SourceError, match="more than one second"):
        answer(folder, [], OFFICIAL)


def test_files_of_a_folder_are_in_the_order_of_their_seconds(tmp_path: Path) -> None:
    folder = driving.write_seconds(tmp_path / "seconds", [GOOD, GOOD._replace(time=101)])
    (folder / "000101.arrow").rename(folder / "000099.arrow")
    with pytest.raises(SourceError, match="a file before it"):
        answer(folder, [], OFFICIAL)


def test_what_may_stand_around_numbers(tmp_path: Path) -> None:
    good = ",".join(map(str, GOOD))
    path = tmp_path / "input.txt"
    spaced, negative = good.replace(",", " ,\t"), good.replace("52900", "-0052900")
    path.write_bytes(f"{good}\r\n {spaced} \r\n{negative}\n{good}".encode())
    found = answer(path, [], OFFICIAL)
    assert (found.tuples, +found.left) == (4, {"with a field outside its domain": 1})


def test_unused_fields_may_hold_anything(tmp_path: Path) -> None:
    most = 10**18 - 1
    path = driving.write_csv(
        tmp_path / "input.txt",
        [
            GOOD._replace(qid=most, sinit=-most, day=4711),
            Tuple(2, 100, 5, most, most, -most, most, most, most, 1, most, most, most, most, most),
        ],
    )
    with path.open("a") as file:
        file.write("2,100,6,,x y,1.5,-, ,+3,2,0x1,'',\"\",--1,None\n")
        file.write("0,100,7,50,1,2,0,10,52900,,,,,,\r\n")
    found = answer(path, [], OFFICIAL)
    assert not found.left.total()
    assert plain(expected(path)["balances"]) == [(1, 100, 100, 5, 0), (2, 100, 100, 6, 0)]
    assert plain(expected(path)["tolls"]) == [(vid, 100, -1, 0, 1, 0, 10) for vid in (5, 7)]


@pytest.mark.parametrize("seed", some(range(20)))
def test_a_block_is_called_clean_only_if_each_line_is(seed: int) -> None:
    """And whatever is done with a block at once is what is done line by line."""
    random = Random(seed)
    for _ in range(200):
        lines = [",".join(str(random.randrange(-5, 10**4)) for _ in range(15)) for _ in range(3)]
        block = bytearray(("\n".join(lines) + "\n").encode())
        for _ in range(random.randrange(3)):
            block[random.randrange(len(block) - 1)] = random.choice(b"0,-\n 1")
        good = [text._fields(line) for line in bytes(block)[:-1].split(b"\n")]
        table, malformed = text._table(bytes(block))
        assert malformed == good.count(None)
        assert [list(row.values()) for row in table.to_pylist()] == [[int(n) for n in line] for line in good if line]


def test_blocks_are_cut_between_lines(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = reading.read(town.path)
    monkeypatch.setattr(text, "BLOCK", 1000)
    cut = reading.read(town.path)
    assert all((whole.reports[name] == cut.reports[name]).all() for name in whole.reports)
    assert cut.left == whole.left


def test_an_empty_input_has_an_empty_answer(tmp_path: Path) -> None:
    path = tmp_path / "input.txt"
    path.write_text("")
    for profile in PROFILES:
        assert all(not table.num_rows for table in expected(path, profile=profile).values())
        assert compare(answer(path, [], PROFILES[profile]), expected(path, profile=profile)).ok


def test_input_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no input at"):
        answer(tmp_path / "none", [], OFFICIAL)
    folder = driving.write_seconds(tmp_path / "seconds", [GOOD])
    (folder / "_complete.json").unlink()
    with pytest.raises(SourceError, match="half written"):
        answer(folder, [], OFFICIAL)
    (folder / "_complete.json").write_text("{}")
    (folder / "000101.arrow").write_bytes(b"no Arrow")
    with pytest.raises(SourceError, match="is not an Arrow file"):
        answer(folder, [], OFFICIAL)
    with pa.ipc.new_file(str(folder / "000101.arrow"), pa.schema([("ts", pa.int64())])):
        pass
    with pytest.raises(SourceError, match="has columns ts int64; expected a timestamp"):
        answer(folder, [], OFFICIAL)
    packed = driving.write_csv(tmp_path / "input.gz", [GOOD] * 10_000, packed=True)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(SourceError, match="cannot be read to its end"):
        answer(packed, [], OFFICIAL)


# --- histories -------------------------------------------------------------------------------------------------------


def test_histories_that_cannot_be_read(tmp_path: Path) -> None:
    path = driving.write_csv(tmp_path / "input.txt", [Tuple(3, 1, 5, xway=0, qid=1, day=1)])
    history = tmp_path / "history.csv"
    for given, message in {
        "1,2,3\n": "a line of 3 columns; expected vid, day, xway, toll or day, min",
        "1,2,3,4,5\n": "a line of 5 columns",
        "": "a line of 1 columns",
        "1,2,3,4\n1,2,3\n": "does not have 4 columns of whole numbers",
        "1,2,3,4\n1,2,3,4.5\n": "does not have 4 columns of whole numbers",
        "1,2,3,x\n": "does not have 4 columns of whole numbers",
        "5,1,0,4\n5,1,0,5\n": "two tolls for vid 5, day 1, xway 0",
    }.items():
        history.write_text(given)
        with pytest.raises(SourceError, match=message):
            answer(path, [history], OFFICIAL)
    with pytest.raises(SourceError, match="there is no history at"):
        answer(path, [tmp_path / "none.csv"], OFFICIAL)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="the folder is empty"):
        answer(path, [tmp_path / "empty"], OFFICIAL)
    write_arrow(tmp_path / "empty" / "tolls.arrow", [(1, 2)], ("vid", "day"))
    with pytest.raises(SourceError, match="has columns vid, day; expected"):
        answer(path, [tmp_path / "empty"], OFFICIAL)


def test_without_history_nothing_is_answered(town: Town) -> None:
    found = answer(town.path, [], OFFICIAL)
    assert found.without == {"expenditures", "travel_times"}
    assert not found.tables["expenditures"].num_rows
    assert found.unanswered["expenditures"] == sum(each.type == 3 for each in town.tuples)


def test_a_trip_by_hand(tmp_path: Path) -> None:
    """30 mph take two minutes, then 20 mph three; beyond midnight the last minute goes on."""
    history = [
        (1, 1439, 0, 0, 7, 30, 0, 3),
        (8, 1439, 0, 0, 7, -1, 0, 1000),  # no speed, so no toll
        (15, 1439, 0, 0, 7, 0, 0, 4),  # a toll, and no speed
        (1, 1440, 0, 0, 8, 20, 0, 10),
        (1, 1440, 0, 0, 9, 60, 0, 0),
        (2, 1440, 0, 0, 9, 1, 0, 99),  # another weekday
    ]
    query = Tuple(4, 5, 1, xway=0, qid=1, sinit=7, send=9, dow=2, tod=1439)
    path = driving.write_csv(tmp_path / "input.txt", [query])
    file = driving.write_csv(tmp_path / "history.csv", history)
    assert plain(expected(path, [file])["travel_times"]) == [(1, 5, 120 + 180 + 60, 4 + 10 + 0)]  # (3 + 4) / 2 is 4


# --- hand-made rules -------------------------------------------------------------------------------------------------


def stands(vid: int, first: int, last: int, moves: int | None = None, **other: int) -> list[Tuple]:
    """On one spot of segment 50 from one second to another, then, perhaps, elsewhere."""
    there = Tuple(0, first, vid, 0, 0, 2, 0, 50, 264_100)._replace(**other)
    reports = [there._replace(time=time) for time in range(first, last + 1, 30)]
    return reports if moves is None else [*reports, there._replace(time=moves, pos=264_200)]


def minutes_told(folder: Path, cars: Sequence[Sequence[Tuple]], seg: int = 50) -> dict[str, list[int]]:
    """In which minutes a car that enters a segment is told of an accident, by profile."""
    entering = [Tuple(0, 60 * m + 30, 1000 + m, 50, 0, 0, 0, seg, 5280 * seg) for m in range(20)]
    tuples = sorted([*entering, *(each for car in cars for each in car)], key=lambda each: each.time)
    path = driving.write_csv(folder / "input.txt", tuples)
    told = {}
    for profile in PROFILES:
        demand_agreement(Town(tuples, [], [], path, []), profile)
        told[profile] = sorted(
            row["time"] // 60 + 1 for row in expected(path, profile=profile)["accidents"].to_pylist()
        )
    return told


ACCIDENTS: dict[str, tuple[list[list[Tuple]], list[int], list[int]]] = {
    "last stop and first move in one minute": (
        [stands(1, 0, 300, 330), stands(2, 5, 305, 335)],
        [3, 4, 5, 6, 7],
        [3, 4, 5, 6],
    ),
    "first move in the next": ([stands(1, 0, 330, 360), stands(2, 5, 335, 365)], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7]),
    "known before it moves, in another minute": (
        [stands(1, 35, 335, 365), stands(2, 32, 362, 392)],
        [4, 5, 6, 7, 8],
        [4, 5, 6, 7],
    ),
    "moves in the second of the other's last stop": (
        [stands(1, 0, 330, 360), stands(2, 0, 360, 390)],
        [3, 4, 5, 6, 7],
        [3, 4, 5, 6, 7],
    ),
    "stops in the second in which the other moves": ([stands(1, 0, 90, 120), stands(2, 30, 300)], [], []),
    "three reports": ([stands(1, 0, 300), stands(2, 0, 60, 90)], [], []),
    "over within its minute": ([stands(1, 0, 120, 150), stands(2, 30, 120, 150)], [4], []),
    "of three cars, two at a time": (
        [stands(1, 0, 210, 240), stands(2, 0, 420, 450), stands(3, 90, 450)],
        [3, 4, 5, 6, 7, 8, 9],
        [3, 4, 5, 6, 7, 8],
    ),
    "one vanishes": ([stands(1, 0, 90), stands(2, 0, 300)], [3, 4, 5, 6, 7], list(range(3, 21))),
    "other lanes": ([stands(1, 0, 300), stands(2, 0, 300, lane=3)], [], []),
    "other directions": ([stands(1, 0, 300), stands(2, 0, 300, dir=1)], [], []),
    "other expressways": ([stands(1, 0, 300), stands(2, 0, 300, xway=1)], [], []),
    "rolling": ([stands(1, 0, 300, 330), stands(2, 0, 300, 330, spd=1)], [], [3, 4, 5, 6]),
    "of one car": ([stands(1, 0, 300)], [], []),
    "twice": (
        [stands(1, 0, 90, 120), stands(2, 0, 90, 120), stands(3, 300, 390, 420), stands(4, 300, 390, 420)],
        [3, 8],
        [3, 8],
    ),
}


@pytest.mark.parametrize("case", some(ACCIDENTS))
def test_in_which_minutes_an_accident_is_told(case: str, tmp_path: Path) -> None:
    cars, official, walmart = ACCIDENTS[case]
    assert minutes_told(tmp_path, cars) == {"official": official, "walmart": walmart}


def test_who_is_told(tmp_path: Path) -> None:
    cars = ACCIDENTS["first move in the next"][0]
    for seg in range(44, 53):
        told = minutes_told(tmp_path, cars, seg)["official"]
        assert bool(told) == (46 <= seg <= 50), seg


def test_forty_miles_per_hour_are_forty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of three cars in each of five minutes, whose mean is 40: doubles are a hair below it now and then."""
    sums = ([114, 104, 119, 122, 141], [131, 120, 119, 129, 101], [113, 116, 135, 120, 116], [123, 114, 116, 137, 110])
    tuples = [
        Tuple(0, 60 * minute, 10 * seg + car, total // 3 + (car < total % 3), 0, 1, 0, seg, 5280 * seg + car)
        for seg, totals in enumerate(sums)
        for minute, total in enumerate(totals)
        for car in range(3)
    ]
    late = [Tuple(0, 300, 1000 + seg, 50, 0, 0, 0, seg, 5280 * seg) for seg in range(len(sums))]
    path = driving.write_csv(tmp_path / "input.txt", sorted(tuples + late, key=lambda each: each.time))

    def speeds() -> list[int]:
        return [row["lav"] for row in expected(path)["tolls"].to_pylist() if row["time"] == 300]

    assert speeds() == [40] * len(sums)
    monkeypatch.setattr(statistics, "NEAR", -1)
    assert 39 in speeds()


# --- outputs and the command -----------------------------------------------------------------------------------------


def written(folder: Path, tables: Mapping[str, pa.Table]) -> Path:
    """As a run writes them: folders of epochs, with what is no result beside them."""
    for name, table in tables.items():
        half = table.num_rows // 2
        for epoch, part in enumerate((table.slice(0, half), table.slice(half))):
            place = folder / name / f"epoch-{epoch}"
            place.mkdir(parents=True)
            pq.write_table(part, place / "part-00000.parquet")
        staging = folder / name / "_staging-1"
        staging.mkdir()
        pq.write_table(table, staging / "part-00000.parquet")
    return folder


def call(*arguments: str | Path) -> Any:
    environment = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(cli.app, ["linearroad", "validate", *map(str, arguments)], env=environment)


def asked(town: Town, out: Path) -> list[str | Path]:
    return ["--input", town.path, "--out", out, *(part for file in town.histories for part in ("--history", file))]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_command_accepts(town: Town, tmp_path: Path, profile: str) -> None:
    out = written(tmp_path, town.right(PROFILES[profile])[1])
    done = call(*asked(town, out), "--profile", profile)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("✓") == 5
    assert f"{profile} profile, {len(town.tuples):,} tuples\n" in done.stdout
    other = call(*asked(town, out), "--profile", next(name for name in PROFILES if name != profile))
    assert other.exit_code == 1


def test_the_command_refuses_and_says_why(town: Town, tmp_path: Path) -> None:
    _, tables = town.right(OFFICIAL)
    tolls = tables["tolls"]
    wrong = pa.concat_tables([altered(tolls, 9, toll=777).slice(1), tolls.slice(5, 1)])
    out = written(tmp_path, tables | {"tolls": wrong})
    done = call(*asked(town, out))
    assert done.exit_code == 1
    assert "1 missing, 1 wrong, 1 doubled" in done.stdout
    assert re.search(r"toll 777 .*; expected toll \d+\n", done.stdout)
    time = tolls["time"][9].as_py() * 1_000_000
    later = altered(tolls, 9, ts=time + 5)
    done = call(*asked(town, written(tmp_path / "later", tables | {"tolls": later})))
    assert f"ts {time + 5}; expected ts {time}\n" in done.stdout
    shown = json.loads(call(*asked(town, out), "--json").stdout)
    assert (shown["ok"], shown["profile"], shown["tuples"]) == (False, "official", len(town.tuples))
    assert [shown["outputs"]["tolls"][kind] for kind in ("missing", "extra", "wrong", "doubled")] == [1, 0, 1, 1]
    assert shown["outputs"]["accidents"]["found"] == shown["outputs"]["accidents"]["expected"] > 0
    kinds = {example["kind"] for example in shown["outputs"]["tolls"]["examples"]}
    assert kinds == {"missing", "wrong", "doubled"}


def test_a_judge_that_was_stopped_has_not_said_that_all_is_right(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_linearroad.validating.judge", lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM))
    done = call(*asked(town, written(tmp_path, town.right(OFFICIAL)[1])))
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr.endswith("stopped before the rows were checked\n")


def test_outputs_that_are_none(town: Town, tmp_path: Path) -> None:
    _, tables = town.right(OFFICIAL)
    out = written(tmp_path / "out", tables)
    for where, message in ((tmp_path / "none", "there is no"), (out / "tolls", "there is no folder")):
        done = call(*asked(town, where))
        assert done.exit_code == 1
        assert message in done.stderr.replace("\n", " ")
    file = out / "balances" / "epoch-1" / "part-00000.parquet"
    for wrong in (
        tables["balances"].drop_columns("bal"),
        tables["balances"].append_column("more", tables["balances"]["bal"]),
        tables["balances"].set_column(5, "bal", tables["balances"]["bal"].cast(pa.int32())),
        tables["balances"].set_column(0, "ts", tables["balances"]["time"]),
    ):
        pq.write_table(wrong, file)
        done = call(*asked(town, out))
        assert done.exit_code == 1
        assert "expected ts TIMESTAMP, qid BIGINT" in " ".join(done.stderr.split())
    file.write_bytes(b"no Parquet")
    done = call(*asked(town, out))
    assert (done.exit_code, "cannot be read" in done.stderr) == (1, True)


def test_a_folder_without_files_holds_no_rows(tmp_path: Path) -> None:
    path = driving.write_csv(tmp_path / "input.txt", [Tuple(4, 1, 5, xway=0, qid=1)])
    for name in OUTPUTS:
        (tmp_path / "out" / name).mkdir(parents=True)
    done = call("--input", path, "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "no history, 1 unanswered" in done.stdout


# --- apart -----------------------------------------------------------------------------------------------------------

SHARED = {"headrace.errors"}  # names of errors


def test_the_judge_shares_nothing_with_those_it_judges() -> None:
    """It knows the standard library, what is installed, itself, and how errors are called."""
    files = sorted(Path(validating.__file__).parent.rglob("*.py"))
    assert len(files) > 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, file
                found = [str(node.module)]
            else:
                found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in found:
                if name.split(".")[0].startswith("headrace"):
                    assert name in SHARED or name.startswith("headrace_linearroad.validating"), f"{file.name}: {name}"


ASK = {"validating", "cli.py", "demo", "rating", "beside"}  # itself, its command, and what ends with a verdict


def test_nothing_that_is_judged_knows_the_judge() -> None:
    package = Path(validating.__file__).parents[1]
    judged = [file for file in package.rglob("*.py") if file.relative_to(package).parts[0] not in ASK]
    assert len(judged) > 2
    for file in judged:
        assert "linearroad.validating" not in file.read_text(), file
