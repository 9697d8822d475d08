"""The rating: when an answer was there, which number holds, who judges what; and all of it as anybody would start it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.dom import minidom

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import HeadraceError, WorkloadError
from headrace.telemetry.epoch_record import EpochRecord, ResultFigures, SourceFigures
from headrace_linearroad import running
from headrace_linearroad.forms import COMPLETE, FIELDS, HISTORY, INPUT, OUTPUTS
from headrace_linearroad.generating import Settings, Traffic
from headrace_linearroad.generating.world import CARS
from headrace_linearroad.rating import judgement, judging, making, offering, trial
from headrace_linearroad.rating import report as page
from headrace_linearroad.rating.helpers import Stopped, helper
from headrace_linearroad.rating.listening import Listening
from headrace_linearroad.rating.making import Counts, Maker, Piece, digest
from headrace_linearroad.rating.responses import (
    LIMITS,
    Clock,
    Found,
    Response,
    find,
    first_broken,
    quantiles,
    read_published,
    respond,
    responses,
)
from headrace_linearroad.rating.searching import search
from headrace_linearroad.rating.show import in_words
from headrace_linearroad.rating.trial import Plan, Trial
from headrace_linearroad.validating import expected
from tests.patience import PATIENCE

# --- responses --------------------------------------------------------------------------------------------------------


def rows(*given: tuple[int, int, int]) -> Found:
    """(epoch, second, how many) of each."""
    return Found(*(np.array(column, np.int64) for column in zip(*given, strict=True)))


def test_a_response_is_from_when_its_second_was_due_to_when_its_epoch_was_visible() -> None:
    clock = Clock(100, 110, speed=2.0)
    found = rows((3, 99, 50), (4, 100, 10), (4, 101, 10), (5, 108, 80), (6, 110, 7))
    response, course = respond(found, {3: -1.0, 4: 1.5, 5: 9.5, 6: 99.0}, clock, limit=5)
    assert response == Response(limit=5, rows=100, worst=5.5, p50=5.5, p99=5.5, broken=108, late=80)
    assert course == [1.5, 1.0, 0, 0, 0, 0, 0, 0, 5.5, 0]
    assert not response.held
    assert respond(found, {3: -1.0, 4: 1.5, 5: 9.0, 6: 99.0}, clock, limit=5)[0].held  # just in time


def test_an_output_without_rows_holds() -> None:
    response, course = respond(rows((1, 5, 3)), {1: 100.0}, Clock(10, 12, 1.0), limit=5)
    assert (response.rows, response.worst, response.held, course) == (0, 0.0, True, [0.0, 0.0])


def test_quantiles_count_rows() -> None:
    assert quantiles(np.array([2.0, 1.0, 3.0]), np.array([98, 1, 1]), (0.005, 0.5, 0.99, 1.0)) == [1.0, 2.0, 2.0, 3.0]


def test_a_clock_that_stood_still_counts_nobody_late_for_it() -> None:
    clock = Clock(0, 100, speed=1.0, pauses=((50, 20.0),))
    assert clock.due(np.array([0, 48, 49, 50, 51])).tolist() == [0.0, 48.0, 69.0, 70.0, 71.0]


def test_the_first_limit_that_failed_is_named() -> None:
    kept = Response(5, 1, 1.0, 1.0, 1.0, None, 0)
    late = {name: Response(5, 1, 9.0, 9.0, 9.0, second, 1) for name, second in (("balances", 7), ("tolls", 9))}
    assert first_broken({"accidents": kept, **late}) == "balances"
    assert first_broken({"accidents": kept}) is None


def put_out(folder: Path, name: str, epoch: int, times: list[int]) -> None:
    """As a sink does."""
    table = pa.Table.from_pylist(
        [dict.fromkeys(OUTPUTS[name].names, 1) | {"time": time} for time in times], OUTPUTS[name]
    )
    path = folder / name / f"epoch-{epoch:09d}-result-0-abc.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def test_which_rows_are_of_which_epoch_is_read_off_the_files(tmp_path: Path) -> None:
    out = tmp_path / "epoch-7-of-mine"
    running.begin_folders(out)  # a file without rows, of no epoch
    put_out(out, "tolls", 12, [5, 5, 6])
    put_out(out, "tolls", 13, [7])
    put_out(out, "travel_times", 13, [6])
    found = find(out, "tolls")
    assert sorted(zip(found.epoch.tolist(), found.second.tolist(), found.rows.tolist(), strict=True)) == [
        (12, 5, 2),
        (12, 6, 1),
        (13, 7, 1),
    ]
    (tmp_path / "published").write_text("12\t1.5\n13\t33.0\n")
    published = read_published(tmp_path / "published")
    by_output, courses = responses(out, published, Clock(5, 8, 1.0))
    assert {name: each.worst for name, each in by_output.items()} == {
        **dict.fromkeys(OUTPUTS, 0.0),
        "tolls": 31.0,
        "travel_times": 32.0,
    }
    assert [name for name, each in by_output.items() if not each.held] == ["tolls", "travel_times"]
    assert courses["tolls"] == [1.5, 0.5, 31.0]


def record(epoch: int, second: int | None, **rows: int) -> EpochRecord:
    """As a run tells it."""
    names = {name: f"result-{n}" for n, name in enumerate(OUTPUTS)}
    watermark = None if second is None else second * 1_000_000
    source = SourceFigures(delivered=10, accepted=10, late=0, rejected=0, failed=0, watermark=watermark, idle=False)
    results = {names[name]: ResultFigures(many, None) for name, many in rows.items()}
    return EpochRecord(epoch, seconds=0.1, sources={"input": source}, results=results)


def test_what_is_heard_is_written_down_and_shown(tmp_path: Path) -> None:
    taken = list[int]()
    heard = Listening(10, 20, tmp_path / "published", taken.append)
    heard(record(0, None))
    heard(record(1, 9, tolls=5))
    assert (heard.second, heard.worst, heard.behind(time.monotonic()), taken) == (9, {}, 0.0, [9])
    now = time.monotonic()
    heard.begin(now - 7.0, 10, speed=1.0)  # the clock has run for seven seconds
    heard(record(2, 12, tolls=3, travel_times=1))  # answers seconds 10 and 11
    assert heard.worst.keys() == {"tolls", "travel_times"}
    assert all(7.0 <= worst < 8.0 for worst in heard.worst.values())
    assert heard.broken() == "tolls"
    assert 5.0 <= heard.behind(time.monotonic()) < 6.0
    published = read_published(tmp_path / "published")
    assert sorted(published) == [0, 1, 2]
    assert published[0] <= published[1] <= 7.0 + (time.monotonic() - now) and published[2] >= 7.0
    heard.begin(now + 100.0, 15, speed=1.0)  # what comes next is offered later than it would have been
    assert heard.pauses == ((15, pytest.approx(102.0)),)


# --- search -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bears", "first"), [(1, 1), (7, 64), (64, 64), (300, 64), (5000, 64), (0, 8)])
def test_the_search_finds_what_holds(bears: int, first: int) -> None:
    tried = list[int]()

    def holds(expressways: int) -> bool:
        assert expressways not in tried
        tried.append(expressways)
        return expressways <= bears

    found = search(holds, first, 0.0)
    assert found == min(bears, 2000)
    assert len(tried) < 16


# --- traffic ----------------------------------------------------------------------------------------------------------

SETTINGS = Settings(5, seed=4)


def test_a_digest_is_of_the_tuples_and_not_of_their_order() -> None:
    (_, table), (_, other) = Traffic(SETTINGS).seconds(60, 62)
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(table.num_rows)))
    assert digest(table) == digest(shuffled.combine_chunks()) != digest(other)
    for name in FIELDS:
        changed = table.to_pylist()
        changed[3][name] = changed[3][name] ^ 1
        assert digest(pa.Table.from_pylist(changed, INPUT).combine_chunks()) != digest(table), name


def test_groups_of_expressways_make_again_what_was_offered(tmp_path: Path) -> None:
    whole = [digest(table) for _, table in Traffic(SETTINGS).seconds(60, 63)]
    parts = [
        judging._made_again(SETTINGS, group, range(60, 63), _folder(tmp_path, group), lambda _: None)
        for group in ((0, 2), (2, 5))
    ]
    assert [sum(each) % 2**64 for each in zip(*parts, strict=True)] == whole


def _folder(tmp_path: Path, group: tuple[int, int]) -> Path:
    path = tmp_path / str(group)
    path.mkdir()
    return path


def test_the_cars_of_a_group_drive_where_it_looks() -> None:
    """And nowhere else: that is what makes it right to judge them alone."""
    settings = Settings(9, seed=4)
    places: dict[int, set[int]] = {}
    for _, table in Traffic(settings).seconds(1500, 1800):
        kind, vid, xway = (table[name].to_numpy() for name in ("type", "vid", "xway"))
        for home, where in set(zip((vid[kind == 0] // CARS).tolist(), xway[kind == 0].tolist(), strict=True)):
            places.setdefault(home, set()).add(where)
    assert any(len(found) > 1 for found in places.values())
    for group in ((0, 1), (3, 5), (8, 9)):
        looked = {xway for xways in judging.needed(settings, group) for xway in xways}
        driven = set().union(*(places[home] for home in range(*group)))
        assert driven <= looked
        assert len(looked) < 9
    assert judging.needed(settings, (3, 5)) == [range(3, 5), range(1, 3), range(5, 6)]
    assert {x for xways in judging.needed(Settings(2), (0, 2)) for x in xways} == {0, 1}


@pytest.mark.parametrize("tuples", [10**6, 10**9])
def test_every_expressway_is_in_one_group(tuples: int) -> None:
    settings = Settings(70)
    found = judging.groups(settings, 100, tuples)
    assert [xway for group in found for xway in range(*group)] == list(range(70))
    assert (len(found) > 1) == (tuples > 10**8)


def test_rows_of_nobody_and_other_input_are_no_success() -> None:
    judged, none = judging.Judged(), dict.fromkeys(("missing", "extra", "wrong", "doubled"), 0)
    line = {"found": 10, "examples": []} | none
    judged.add({"outputs": dict.fromkeys(OUTPUTS, line), "digests": [1, 2**64 - 1]})
    judged.add({"outputs": dict.fromkeys(OUTPUTS, line), "digests": [5, 3]})
    offered, counted = Counts(0, [1, 1], [1, 1], [6, 2]), dict.fromkeys(OUTPUTS, 20)
    assert judged.verdict(counted, offered)["ok"]
    assert not judged.verdict(counted, Counts(0, [1, 1], [1, 1], [6, 3]))["ok"]
    assert judged.verdict(counted | {"tolls": 21}, offered)["nobodys"] == {"tolls": 1}
    judged.add({"outputs": {"tolls": line | {"wrong": 1}}, "digests": [0, 0]})
    assert not judged.verdict(counted | {"tolls": 30}, offered)["ok"]


def waiting(folder: Path) -> judgement.Judgement:
    """A rating of three expressways whose answers are right, and which nobody has judged."""
    settings, begin, end = Settings(3, seed=2, density=40), 10_000, 10_090
    road = folder / judgement.WORK / "road"
    road.mkdir(parents=True)
    pieces = [Piece(begin, end)]
    with helper(
        making.MODULE, making.job(settings, pieces, road, folder / judgement.WORK), folder / "errors"
    ) as process:
        offered = Maker(process, pieces).next(lambda: False, lambda _: None)
    (road / COMPLETE).write_text("{}\n")
    for name, table in expected(road, [folder / judgement.WORK / HISTORY]).items():
        (folder / judgement.ANSWERS / name).mkdir(parents=True)
        pq.write_table(table.cast(OUTPUTS[name]), folder / judgement.ANSWERS / name / "epoch-0.parquet")
    held = {name: {"held": True, "worst": 1.0, "rows": 1} for name in OUTPUTS}
    result = {"profile": "official", "outputs": held, "given_up": None, "expressways": 3}
    return judgement.Judgement(folder, settings, offered, result)


@pytest.mark.thorough
def test_a_judgement_that_is_interrupted_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "usable_cores", lambda: 1)
    monkeypatch.setattr(judging, "groups", lambda *_: [(0, 1), (1, 3)])
    waiting(tmp_path).write()
    kept = tmp_path / judgement.JUDGED
    with pytest.raises(Stopped):
        judgement.read(tmp_path).judge(lambda: kept.exists() and kept.stat().st_size > 0, lambda _: None)
    assert [json.loads(line)["group"] for line in kept.read_text().splitlines()] == [[0, 1]]
    with open(kept, "a") as file:
        file.write('{"group": [1, 3], "outp')  # it was killed while it wrote

    monkeypatch.setattr(judging, "groups", lambda *_: [(0, 2), (2, 3)])  # there is less memory now
    result = judgement.read(tmp_path).judge(lambda: False, lambda _: None)
    assert result["held"] and result["judged"]["ok"] and result["judged"]["input_is_what_was_offered"]
    assert result["judged"]["rows"]["tolls"] > 50
    assert [json.loads(line)["group"] for line in kept.read_text().splitlines()] == [[0, 1], [1, 2], [2, 3]]

    path = tmp_path / judgement.ANSWERS / "tolls" / "epoch-0.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)  # a row has gone since its group was judged
    verdict = judgement.read(tmp_path).judge(lambda: False, lambda _: None)["judged"]
    assert not verdict["ok"] and verdict["nobodys"] == {"tolls": -1}
    judgement.read(tmp_path).end()
    assert not judgement.waits(tmp_path)
    with pytest.raises(WorkloadError, match=r"there is no unjudged\.json"):
        judgement.read(tmp_path)


def test_pieces_are_made_one_by_one(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    pieces = [Piece(60, 62, write=False), Piece(62, 64)]
    with helper(making.MODULE, making.job(SETTINGS, pieces, made, tmp_path), tmp_path / "errors") as process:
        maker = Maker(process, pieces)
        first = maker.next(lambda: False, lambda _: None)
        assert list(made.iterdir()) == []
        second = maker.next(lambda: False, lambda _: None)
    assert sorted(path.name for path in made.iterdir()) == ["000062.arrow", "000063.arrow"]
    assert {path.name for path in (tmp_path / "history").iterdir()} == {"tolls.arrow", "segments.arrow"}
    tables = [table for _, table in Traffic(SETTINGS).seconds(60, 64)]
    assert first.tuples + second.tuples == [table.num_rows for table in tables]
    assert first.digests + second.digests == [digest(table) for table in tables]
    assert Counts(500, [5, 6, 7], [4, 5, 6]).within(501, 503) == 13
    assert Counts(0, [2] * 40, [1] * 40).cars(39) == 30


def test_a_maker_that_cannot_says_so(tmp_path: Path) -> None:
    job = making.job(SETTINGS, [Piece(60, 61)], tmp_path / "nowhere", None)
    with helper(making.MODULE, job, tmp_path / "errors") as process, pytest.raises(WorkloadError, match="cannot write"):
        Maker(process, []).next(lambda: False, lambda _: None)
    with helper("headrace_linearroad.rating.nothing", {}, tmp_path / "errors") as process:
        with pytest.raises(HeadraceError, match="No module named"):
            list(process.said(lambda: False))
    with helper(making.MODULE, job, tmp_path / "errors") as process, pytest.raises(Stopped):
        list(process.said(lambda: True))
    assert process.ended


# --- the feeder -------------------------------------------------------------------------------------------------------


def test_the_feeder_publishes_each_second_when_it_is_due(tmp_path: Path) -> None:
    made, road = tmp_path / "made", tmp_path / "road"
    for folder in (made, road):
        folder.mkdir()
    for second in (3, 4, 6):
        (made / f"{second:06d}.arrow").write_bytes(b"x")
    start = time.monotonic() + 1.0
    job = {"made": str(made), "road": str(road), "first": 3, "last": 7, "start": start, "speed": 4.0}
    seen = dict[str, float]()
    with helper(offering.__name__, job | {"log": str(tmp_path / "log")}, tmp_path / "errors") as feeder:
        ended = False
        while not ended:
            ended = feeder.ended  # and then one look more: it may publish and end between two
            for path in road.iterdir():
                seen.setdefault(path.name, time.monotonic() - start)
            time.sleep(0.002)
        feeder.check()
    assert seen.keys() == {"000003.arrow", "000004.arrow", "000006.arrow"}
    assert seen["000003.arrow"] >= 0 and seen["000004.arrow"] >= 0.25 and seen["000006.arrow"] >= 0.75
    log = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [what for what, _ in log] == ["3", "4", "5", "6", "cpu"]
    assert all(float(late) >= 0 for _, late in log)


# --- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_is_of_the_last_minutes_or_of_all() -> None:
    plan = Plan(2)
    assert (plan.first, plan.begin, plan.end) == (8999, 10_199, 10_799)
    whole = Plan(2, whole=True, seconds=10_799, warm_up=0)
    assert (whole.first, whole.begin, whole.end, whole.settings.density) == (0, 0, 10_799, None)
    for wrong in ({"seconds": 0}, {"seconds": 9_600}, {"warm_up": -1}, {"whole": True}):
        with pytest.raises(WorkloadError):
            Plan(2, **wrong)  # type: ignore[arg-type]


class Silent:
    """Shows nothing."""

    def say(self, text: str) -> None: ...

    def doing(self, text: str) -> None: ...

    def show(self, listening: Listening) -> None: ...


def test_what_does_not_fit_the_disk_is_made_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(2, seconds=10, warm_up=0, density=100)
    mine = Trial(plan, tmp_path, Silent(), lambda: False, strict=False)
    assert mine._pieces() == [Piece(10_789, 10_800)]
    monkeypatch.setattr(trial.shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * 200 * 37 / trial.SHARE))
    assert mine._pieces() == [Piece(10_789, 10_793), Piece(10_793, 10_797), Piece(10_797, 10_800)]


# --- the page ---------------------------------------------------------------------------------------------------------


def a_trial(expressways: float, held: bool = True, **other: Any) -> dict[str, Any]:
    outputs = {name: Response(limit, 10, 2.0, 1.0, 1.5, None, 0).to_json() for name, limit in LIMITS.items()}
    epochs = [
        {"at": at, "seconds": 0.5, "tuples": 99, "rows": {"tolls": 3}, "state_bytes": 1e6, "tables": {"apply-1": 5e5}}
        for at in (1.0, 2.0)
    ]
    used = {"feeder": 1, "driver": 2, "JVM": 3, "workers": 4}
    found = {
        "rating": "peak",
        "expressways": expressways,
        "held": held,
        "given_up": None,
        "first_broken": None,
        "speed": 1.0,
        "seconds": 2,
        "warm_up": 5,
        "tuples": 3400,
        "tuples_per_second": 1700.0 * expressways,
        "pieces": [[0, 3]],
        "outputs": outputs,
        "judged": {"ok": True, "rows": {"tolls": 1234}, "faults": {}, "nobodys": {}},
        "wall": 2.0,
        "cpu": {"feeder": 0.01, "roads": 1.0, "JVM": 2.5},
        "phases": {"reading": 0.5, "operators": 1.0},
        "feeder": {"cpu": 0.01, "latest": 0.003},
        "epoch_seconds": {"median": 0.5, "p99": 0.6, "worst": 0.6},
        "memory": used,
        "state": {"bytes": 1e6, "cars": 100, "bytes_per_car": 1e4, "tables_per_car": {"roads": 90, "accounts": 80}},
        "epochs": epochs,
        "samples": [{"at": 0.0, "memory": used}, {"at": 2.0, "memory": used}],
        "worst_by_second": {name: [2.0, 1.0] for name in OUTPUTS},
    }
    return found | other


def a_page(tmp_path: Path, *trials: dict[str, Any]) -> str:
    machine = {"cores_used": [0, 1], "processor": "a <fast> one", "memory_gb": 4, "system": "x", "at": "now"}
    result = {"form": 1, "machine": machine, "best": None, "trials": trials}
    (tmp_path / "result.json").write_text(json.dumps(result))
    page.write([tmp_path / "result.json"], tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()


def test_the_page_says_what_more_cores_would_bring(tmp_path: Path) -> None:
    sizes = range(100_000, 1_000_000, 30_000)
    epochs = [
        {"at": 1.0, "seconds": 0.1 + n * 6e-7, "tuples": n, "phases": {"reading": n * 1e-7, "operators": n * 4e-7}}
        for n in sizes
    ]
    also = {"rows": {}, "state_bytes": 1, "tables": {}}
    text = a_page(tmp_path, a_trial(64, epochs=[each | also for each in epochs]))
    assert "2 cores serve 931, 4 cores serve 1,597, 8 cores serve 2,484 expressways" in text
    assert "cores serve" not in a_page(tmp_path, a_trial(64))


def test_the_page_says_what_holds_and_opens_without_a_network(tmp_path: Path) -> None:
    beside = {
        name: a_trial(2)[name] for name in ("rating", "expressways", "held", "given_up", "first_broken", "tuples")
    }
    beside |= {"tuples_per_second": 1.0, "wall": 1.0, "epoch_seconds": {"median": 1.0}, "system": "spark"}
    beside |= {"cpu": {}, "memory": {}, "state": {}, "outputs": {"tolls": a_trial(2)["outputs"]["tolls"]}}
    found = a_page(tmp_path, a_trial(8), a_trial(16), a_trial(32, held=False, given_up="it was 61 s behind"), beside)
    assert "Peak-rate L = 16 on 2 cores: 27.2 k tuples/s, 5 of 5 outputs, all 1,234 rows right" in found
    assert "a &lt;fast&gt; one" in found
    assert "no: it was 61 s behind" in found
    assert "spark, which computes only tolls: L = 2 holds." in found
    assert "takes 1.75 of 2 cores" in found and "the processors are the bottleneck" in found
    assert found.count("<svg") == 9
    for outside in ("<script", "<link", "<img", "src=", "@import", "url(http"):
        assert outside not in found
    minidom.parseString(found[found.index("<svg") : found.index("</svg>") + 6])


def test_an_output_without_rows_is_not_said_to_be_rated(tmp_path: Path) -> None:
    trial = a_trial(8)
    trial["outputs"]["accidents"] = Response(5, 0, 0.0, 0.0, 0.0, None, 0).to_json()
    assert "there were no accidents, which are not rated" in in_words(trial)
    assert "4 of 5 outputs" in a_page(tmp_path, trial)
    assert "not rated" not in in_words(a_trial(8))


def test_a_page_of_what_does_not_hold_says_so(tmp_path: Path) -> None:
    found = a_page(tmp_path, a_trial(4, held=False, first_broken="tolls"))
    assert "Peak-rate: no trial holds; the smallest was L = 4" in found
    assert "class=ours" not in found
    with pytest.raises(WorkloadError, match="have no trial of headrace"):
        a_page(tmp_path)
    (tmp_path / "result.json").write_text("[]")
    with pytest.raises(WorkloadError, match="is not a result of linearroad rate"):
        page.write([tmp_path / "result.json"], tmp_path / "report.html")


# --- all of it --------------------------------------------------------------------------------------------------------


def test_a_strict_trial_ends_with_the_first_limit_that_is_broken_and_any_when_it_is_hopeless(tmp_path: Path) -> None:
    plan = Plan(2, seconds=300, warm_up=0)
    for strict, since, why in (
        (True, 7.0, "tolls came too late"),
        (False, 7.0, None),
        (True, 4.0, None),
        (False, 70.0, "it was 68 s behind"),
    ):
        mine = Trial(plan, tmp_path, Silent(), lambda: False, strict=strict)
        mine.listening.begin(time.monotonic() - since, plan.begin, 1.0)
        mine.listening(record(0, plan.begin + 2, tolls=1))
        assert mine._hopeless() == why, (strict, since)


class Slow:
    """A sink that pauses once, when it is handed an epoch whose rows count."""

    def __init__(self, sink: Any, since: int, seconds: float) -> None:
        self.sink, self.since, self.seconds, self.ordered = sink, since, seconds, sink.ordered

    def deliver(self, delivery: Any) -> None:
        if self.seconds and max(delivery.table["time"].to_pylist()) >= self.since:
            time.sleep(self.seconds)
            self.seconds = 0.0
        self.sink.deliver(delivery)


@pytest.mark.long
@pytest.mark.spark
def test_a_limit_that_is_broken_is_seen_and_the_rows_are_right_all_the_same(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(2, whole=True, seconds=24, warm_up=0, speed=4.0)
    given = running.results

    def slow(*arguments: Any) -> Any:
        (stream, sink), *others = given(*arguments)
        return [(stream, Slow(sink, plan.begin + 4, LIMITS["tolls"] + 1)), *others]

    monkeypatch.setattr(trial, "spark_session", lambda *_, **__: nullcontext(spark))
    monkeypatch.setattr(running, "results", slow)
    monkeypatch.setattr(trial, "HOPELESS", math.inf)
    found = Trial(plan, tmp_path / "rated", Silent(), lambda: False, strict=False).run()
    assert found["held"] is False
    assert found["outputs"]["tolls"]["worst"] > LIMITS["tolls"]
    assert found["first_broken"] in ("tolls", "balances")
    assert found["judged"]["ok"] and found["judged"]["rows"]["tolls"] > 100
    assert found["tuples_left_out"] == 0
    assert [path.name for path in sorted((tmp_path / "rated").iterdir())] == ["answers", "published"]


def rate(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace.cli", "linearroad", "rate", "--out", str(tmp_path / "rated"), *options]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, stdin=subprocess.DEVNULL
    )


@pytest.mark.spark
def test_a_small_rating(tmp_path: Path) -> None:
    small = ["--expressways", "2", "--warm-up", "10", "--seconds", "10", "--speed", "2", "--density", "30"]
    with rate(tmp_path, *small, "--keep") as process:
        said, errors = process.communicate(timeout=PATIENCE)
    result = json.loads((tmp_path / "rated" / "result.json").read_text())
    (trial,) = result["trials"]
    assert process.returncode == (0 if trial["held"] else 1), said + errors  # how fast this machine is now is no matter
    assert errors == ""
    assert trial["judged"]["ok"] and trial["judged"]["input_is_what_was_offered"]
    assert trial["given_up"] is None and trial["expressways"] == 2
    assert f"peak-rate L = 2 {'holds' if trial['held'] else 'does not hold'}" in said
    published = read_published(tmp_path / "rated" / "published")
    worst = respond(find(tmp_path / "rated" / "answers", "tolls"), published, Clock(10_789, 10_799, 2.0), 5)[0].worst
    assert worst == trial["outputs"]["tolls"]["worst"] > 0
    assert set(trial["cpu_by_process"]) == {"feeder", "driver", "JVM", "workers"}
    assert all(seconds > 0 for seconds in trial["cpu_by_process"].values())
    assert all(used > 1 << 20 for used in trial["memory"].values())
    assert trial["state"]["cars"] > 500 and trial["state"]["tables"]["roads"] > 0
    assert {path.name for path in (tmp_path / "rated").iterdir()} == {"answers", "published", "result.json"}


@pytest.mark.spark
def test_a_rating_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    with rate(tmp_path, "--expressways", "1", "--whole", "--seconds", "600") as process:
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / "rated" / "published").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert "stopped; generated files were deleted" in said
    assert not (tmp_path / "rated").exists()
