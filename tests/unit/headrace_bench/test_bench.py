"""The benchmark's own arithmetic: what it calls equal, right, ranked and measured. No Spark here."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace.cli import app
from headrace.compile import STRATEGIES
from headrace.errors import HeadraceError
from headrace.stream import Stream
from headrace.testing import LocalRun, table_stream
from headrace_bench import (
    answers,
    compare,
    feed,
    growth,
    latency,
    report,
    running,
    show,
    strategies,
    summary,
    tables,
    theta,
    workload,
)
from headrace_bench import join as join_bench
from headrace_bench.answers import Answer
from headrace_bench.measure import Meter, Spread, end, span
from headrace_bench.options import Options
from headrace_bench.running import OK, Outcome, judged
from headrace_bench.systems import FLINK, HEADRACE, SPARK, SPARK_NEWEST, System, jobs, strategy
from headrace_bench.systems.headrace_job import figure_8
from headrace_bench.task import Case, Query
from headrace_bench.workload import CLOSING, Streams

STREAMS = Streams(("left", "right"), 20, 2, 5, 10, gap=100)
JOIN = Case("small", STREAMS, Query("join", on="l.key = r.key", within=3), 2)


def everything(streams: Streams, side: str) -> list[dict]:
    return pa.concat_tables(list(streams.tables(side))).to_pylist()


# --- the streams ---------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_files(tmp_path: Path):
    for name in ("a", "b"):
        workload.write(STREAMS, tmp_path / name)
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*.parquet"))
    assert len(files) == 2 * (STREAMS.epochs + 1)
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)
    assert next(iter(STREAMS.tables("left"))) != next(iter(replace(STREAMS, seed=8).tables("left")))


def test_files_of_a_stream_were_written_in_different_milliseconds(tmp_path: Path):
    workload.write(STREAMS, tmp_path)
    files = sorted((tmp_path / "left").iterdir())
    times = [file.stat().st_mtime_ns // workload.MILLISECOND for file in files]
    assert len(set(times)) == len(files) and times == sorted(times)


def test_times_rise_strictly_from_file_to_file_and_are_whole_milliseconds():
    last = None
    for table in STREAMS.tables("left"):
        times = table["ts"].cast(pa.int64()).to_numpy()
        assert (np.diff(times) >= 0).all() and (times % 1000 == 0).all()
        assert last is None or times[0] > last
        last = times[-1]


def test_every_tuple_has_a_payload_of_its_own_and_the_closing_ones_meet_nobody():
    rows = everything(STREAMS, "left") + everything(STREAMS, "right")
    payloads = [row["payload"] for row in rows if row["key"] != CLOSING]
    assert len(payloads) == STREAMS.tuples == len(set(payloads))
    closing = sorted(row["ts"] for row in rows if row["key"] == CLOSING)
    newest = max(row["ts"] for row in rows if row["key"] != CLOSING)
    assert (closing[0] - newest).total_seconds() > 90 and (closing[1] - closing[0]).total_seconds() > 90


def test_the_joined_copy_holds_the_same_rows_in_the_same_order(tmp_path: Path):
    workload.write(STREAMS, tmp_path)
    copy = workload.join_files(tmp_path, STREAMS.sides)
    assert pq.read_table(copy / "left" / "all.parquet").to_pylist() == everything(STREAMS, "left")


def test_admitted_pairs_are_counted_one_by_one():
    left, right = everything(STREAMS, "left")[:-1], everything(STREAMS, "right")[:-1]
    begin = workload.START + 2 * 2 * workload.SECOND
    late = lambda row: row["ts"].timestamp() * 1e6 >= begin  # noqa: E731
    near = [(l, r) for l in left for r in right if abs((l["ts"] - r["ts"]).total_seconds()) <= 3]
    assert workload.admitted_pairs(STREAMS, 3, 2, 5) == sum(late(max(l, r, key=lambda t: t["ts"])) for l, r in near)


# --- answers -------------------------------------------------------------------------------------------------------


def pairs(*rows: tuple[int, int]) -> pa.Table:
    return pa.table({"l_payload": [l for l, _ in rows], "r_payload": [r for _, r in rows]})


def test_a_checksum_forgets_the_order_and_nothing_else():
    of = lambda *tables: answers.answer_of(tables, JOIN.query)  # noqa: E731
    whole = of(pairs((1, 2), (3, 4), (5, 6)))
    assert whole == of(pairs((5, 6)), pairs((3, 4), (1, 2))) and whole.rows == 3
    assert whole != of(pairs((1, 4), (3, 2), (5, 6)))  # partners exchanged
    assert whole != of(pairs((2, 1), (3, 4), (5, 6)))  # sides exchanged
    assert whole != of(pairs((1, 2), (3, 4), (3, 4)))


def test_the_expected_join_is_every_pair_in_the_windows(tmp_path: Path):
    workload.write(STREAMS, tmp_path)
    left, right = everything(STREAMS, "left"), everything(STREAMS, "right")
    found = [
        (l["payload"], r["payload"])
        for l in left
        for r in right
        if l["key"] == r["key"] and abs((l["ts"] - r["ts"]).total_seconds()) <= 3
    ]
    assert answers.expected(JOIN, tmp_path) == answers.answer_of([pairs(*found)], JOIN.query)


def test_the_expected_aggregate_counts_a_tuple_in_every_window_that_holds_it(tmp_path: Path):
    streams = Streams(("stream",), 20, 2, 5, 3, gap=100)
    workload.write(streams, tmp_path)
    groups: dict[tuple[int, int], list[float]] = {}
    for row in everything(streams, "stream")[:-1]:
        last = int(row["ts"].timestamp()) // 2 * 2
        for begin in (last, last - 2, last - 4):
            groups.setdefault((begin, row["key"]), []).append(row["x"])
    table = pa.table(
        {
            "window_start": pa.array([b * 1_000_000 for b, _ in groups], pa.timestamp("us", "UTC")),
            "key": [k for _, k in groups],
            "n": [len(xs) for xs in groups.values()],
            "mean": [sum(xs) / len(xs) for xs in groups.values()],
        }
    )
    query = Query("aggregate", window=6, every=2)
    assert answers.expected(Case("", streams, query, 0), tmp_path) == answers.answer_of([table], query)


def test_the_expected_sessions_end_where_the_next_tuple_is_more_than_a_gap_behind(tmp_path: Path):
    streams = Streams(("clicks",), 20, 2, 5, 30, gap=100)
    workload.write(streams, tmp_path)
    found: dict[int, list[list[dict]]] = {}
    for row in everything(streams, "clicks")[:-1]:
        known = found.setdefault(row["key"], [])
        if known and (row["ts"] - known[-1][-1]["ts"]).total_seconds() <= 1:
            known[-1].append(row)
        else:
            known.append([row])
    sessions = [each for known in found.values() for each in known]
    assert len(sessions) > len(found) and max(map(len, sessions)) > 2
    table = pa.table(
        {
            "window_start": pa.array([s[0]["ts"] for s in sessions], pa.timestamp("us", "UTC")),
            "window_end": pa.array([s[-1]["ts"] for s in sessions], pa.timestamp("us", "UTC")),
            "key": [s[0]["key"] for s in sessions],
            "n": [len(s) for s in sessions],
            "mean": [sum(row["x"] for row in s) / len(s) for s in sessions],
        }
    )
    query = Query("session", gap=1)
    assert answers.expected(Case("", streams, query, 0), tmp_path) == answers.answer_of([table], query)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("shape", tables.POINTS)
def test_the_expected_zones_of_a_point_are_those_it_lies_in(shape: str, how: str, tmp_path: Path):
    case = tables.points(shape, 1, warm=1, zones=40, how=how)
    case = replace(case, streams=replace(case.streams, rate=400))
    workload.write(case.streams, tmp_path)
    found = []
    for point in everything(case.streams, "points")[:-1]:
        mine = [zone["zone"] for zone in case.streams.table().to_pylist() if inside(point, zone, shape)]
        found += [(point["payload"], zone) for zone in mine or ([None] if how == "left" else [])]
    matched = sum(zone is not None for _, zone in found)
    assert 100 < matched < 800, "a point is in about one zone"
    table = pa.table({"payload": [p for p, _ in found], "zone": pa.array([z for _, z in found], pa.int64())})
    assert answers.expected(case, tmp_path) == answers.answer_of([table], case.query)


def inside(point: dict, zone: dict, shape: str) -> bool:
    if shape == "boxes":
        return zone["x0"] <= point["x"] <= zone["x1"] and zone["y0"] <= point["y"] <= zone["y1"]
    lat, lon, there, far = (
        math.radians(v) for v in (40 + point["x"] / 1000, point["y"] / 1000, zone["zone_lat"], zone["zone_lon"])
    )
    cosine = math.sin(lat) * math.sin(there) + math.cos(lat) * math.cos(there) * math.cos(lon - far)
    return 6371 * math.acos(min(1.0, cosine)) <= zone["radius"]


def test_hidden_files_and_logs_of_a_sink_are_no_answer(tmp_path: Path):
    pq.write_table(pairs((1, 2)), tmp_path / "part-0")
    pq.write_table(pairs((3, 4)), tmp_path / ".part-1.inprogress")
    (tmp_path / "_spark_metadata").mkdir()
    assert answers.answer_in(tmp_path, JOIN.query).rows == 1


# --- judging and ranking -------------------------------------------------------------------------------------------

RIGHT, WRONG = Answer(5, "aa"), Answer(5, "bb")


def outcome(system: object, rate: float, answer: Answer | None = RIGHT, status: str = OK) -> Outcome:
    good = status == OK
    figures = (rate, 1.0, 100.0) if good else (None, None, None)
    return Outcome(system.name, system.family, status, *figures, answer=answer if good else None)  # type: ignore[attr-defined]


def ranks(outcomes: Iterable[Outcome], right: Answer | None = RIGHT) -> dict[str, tuple[str, int | None]]:
    return {x.system: (x.status, x.rank) for x in summary.lines(judged(JOIN, list(outcomes), right))}


def test_a_product_is_ranked_by_its_best_variant():
    found = ranks([outcome(HEADRACE, 10), outcome(SPARK, 20), outcome(SPARK_NEWEST, 30), outcome(FLINK, 5)])
    assert {name: rank for name, (_, rank) in found.items()} == {
        HEADRACE.name: 2,
        SPARK.name: None,
        SPARK_NEWEST.name: 1,
        FLINK.name: 3,
    }


def test_canary_a_wrong_answer_is_shown_as_wrong_and_not_ranked():
    found = ranks([outcome(HEADRACE, 99, WRONG), outcome(SPARK, 1), outcome(FLINK, 2)])
    assert found[HEADRACE.name] == ("wrong answer", None)
    assert found[FLINK.name] == (OK, 1)


def test_one_wrong_round_is_enough():
    assert ranks([outcome(SPARK, 9), outcome(SPARK, 9, WRONG)])[SPARK.name] == ("wrong answer", None)


def test_without_an_expected_answer_the_majority_is_right_and_a_tie_ranks_nobody():
    three = [outcome(HEADRACE, 9, WRONG), outcome(SPARK, 1), outcome(FLINK, 1)]
    assert ranks(three, None)[HEADRACE.name] == ("wrong answer", None)
    assert {status for status, _ in ranks(three[:2], None).values()} == {"answers differ"}
    assert ranks(three[:1], None)[HEADRACE.name] == (OK, 1)  # alone: nothing to compare with, and it says so
    assert "nobody" in judged(JOIN, three[:1], None).by


def test_a_system_that_ran_out_of_memory_keeps_its_reason():
    found = ranks([outcome(HEADRACE, 9), outcome(SPARK, 0, status="out of memory: 3 of 9")])
    assert found[SPARK.name] == ("out of memory: 3 of 9", None)


def test_order_alternates_from_round_to_round():
    systems = (HEADRACE, SPARK, FLINK)
    assert running.alternating(systems, 0) == running.alternating(systems, 2) == list(systems)
    assert running.alternating(systems, 1) == [FLINK, SPARK, HEADRACE]


# --- measuring -----------------------------------------------------------------------------------------------------


def test_the_measured_span_leaves_warm_up_and_closing_out():
    points = [(0.0, 0), (5.0, 100), (6.0, 200), (7.0, 300), (9.0, 302)]
    assert span(points, 100, 300) == ((5.0, 100), (7.0, 300))
    assert span(points, 150, 300) == ((6.0, 200), (7.0, 300))
    assert span(points, 302, 302) is None and span([], 0, 1) is None


def test_a_spread_is_median_least_and_most():
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


@pytest.mark.thorough
def test_a_meter_sees_the_processor_time_of_children_and_end_leaves_none():
    child = "t = __import__('time'); e = t.time() + 30\nwhile t.time() < e: pass"
    root = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    meter = Meter(root.pid)
    began = time.time()
    meter.start()
    try:
        time.sleep(2.0)
    finally:
        meter.stop()
        end(meter)
        root.wait()
    assert meter.cpu_between(began, time.time()) > 0.2
    assert meter.peak > 1 << 20
    assert len(meter.seen) == 2 and not any(psutil.pid_exists(pid) and p.is_running() for pid, p in meter.seen.items())


def test_how_a_run_ended_is_told_from_what_it_left(tmp_path: Path):
    meter = Meter(psutil.Process().pid)
    status = lambda code, said: running._status(JOIN, [(1.0, 7)], running.Ended(code, meter, said))  # noqa: E731
    assert status(0, "") == OK
    assert status(None, "").startswith("time limit: 7 of 400 tuples")
    assert status(3, "OutOfMemoryError").startswith("out of memory: 7 of 400")
    assert status(1, "[X] terminated with exception: joins are not supported;") == "refused: joins are not supported"
    assert status(1, "a\nlast line") == "failed: last line" and status(1, "") == "failed: exit code 1"


def test_points_ignore_half_a_line(tmp_path: Path):
    (tmp_path / "points").write_text("1.5 10\n2.5 20\n3.")
    assert running.points_in(tmp_path) == [(1.5, 10), (2.5, 20)]


def test_latency_counts_from_the_later_tuple_and_only_in_the_measured_time():
    streams = Streams(("left", "right"), 20, 0.5, 10, 10, gap=10)  # files of 10 tuples, 0.5 s each
    case = Case("", streams, JOIN.query, warm=4)
    arrivals = np.arange(10) * 0.5
    right = 10 * 10  # the payloads of the right stream begin here
    table = pairs((4 * 10, right + 5 * 10), (3 * 10 + 9, right + 3), (6 * 10, right), (8 * 10, right))
    assert feed.ages(case, table, arrivals, 10.0).tolist() == [10.0 - 2.5, 10.0 - 3.0]  # the others: warm-up, tail


def test_results_of_spark_become_visible_with_the_log_entry_that_names_them(tmp_path: Path):
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for name in ("part-0.parquet", "part-1.parquet"):
        pq.write_table(pairs((1, 2)), tmp_path / name)
    (log / "0").write_text("v1\n" + json.dumps({"path": f"file://{tmp_path}/part-0.parquet"}))
    assert [at for at, _ in feed._visible(tmp_path, ["l_payload", "r_payload"])] == [(log / "0").stat().st_ctime]


def test_the_highest_rate_is_found_by_doubling_and_halving(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(latency, "_keeps_up", lambda system, rate, size, options: rate <= 13_000)
    assert latency.highest_rate(HEADRACE, latency.FULL, None) == 12_000  # type: ignore[arg-type]
    monkeypatch.setattr(latency, "_keeps_up", lambda *_: False)
    assert latency.highest_rate(HEADRACE, latency.FULL, None) == 0  # type: ignore[arg-type]


# --- the cases -----------------------------------------------------------------------------------------------------


def test_windows_are_full_before_anything_is_measured():
    cases = [join_bench.case(10_000, 10, 60, 200_000), theta.case(theta.BAND, 20_000, 5), *_growth_cases()]
    cases += strategies.cases(quick=False) + strategies.cases(quick=True)
    for case in cases:
        assert case.warm * case.streams.seconds >= case.query.length
        assert case.streams.epochs > case.warm


def _growth_cases() -> list[Case]:
    return [point.case for axis in growth.axes(quick=False) for point in axis.points]


def test_growth_doubles_five_times():
    for axis in growth.axes(quick=False)[:4]:
        xs = [point.x for point in axis.points]
        assert len(xs) == 6 and all(b == 2 * a for a, b in itertools.pairwise(xs))


@pytest.mark.parametrize("kind", theta.PREDICATES)
def test_theta_predicates_find_a_few_partners_whatever_the_window(kind: str, tmp_path: Path):
    for window in (500, 2_000):
        case = theta.case(kind, window, 5)
        assert case.streams.per_epoch <= 2 * theta.SHARE * window
        workload.write(case.streams, tmp_path / str(window))
        found = answers.expected(case, tmp_path / str(window))
        assert found is not None and 0.02 < found.rows / case.streams.tuples < 1


def test_windows_of_a_looked_up_predicate_are_checked_by_duckdb_like_any_other(tmp_path: Path):
    for kind in theta.LOOKED_UP:
        case = theta.case(kind, 1_000, 3)
        workload.write(case.streams, tmp_path / kind)
        plain = replace(case, query=replace(case.query, ranges=""))
        assert answers.expected(case, tmp_path / kind) == answers.expected(plain, tmp_path / kind)


def test_only_the_wanted_cases_are_run():
    cases = [theta.case(kind, 1_000, 3) for kind in theta.PREDICATES]
    options = Options(1, True, False, False, print, "band, w")
    assert [c.name for c in options.wanted(cases)] == ["band, windows of 1,000"]
    with pytest.raises(HeadraceError, match="no case has 'x' in its name; the cases are 'distance"):
        replace(options, only="x").wanted(cases)


def test_a_variant_far_behind_its_family_is_not_asked_again():
    outcomes = [outcome(SPARK, 100), outcome(SPARK_NEWEST, 60), outcome(FLINK, 10)]
    assert [running._beaten(s, outcomes) for s in (SPARK, SPARK_NEWEST, FLINK, HEADRACE)] == [False, True, False, False]


def test_a_system_that_took_too_long_has_a_rate_and_no_rank():
    slow = replace(outcome(FLINK, 10), status=f"{running.TIME_LIMIT}: 5 of 9 tuples in 2 s", answer=None)
    measured = judged(JOIN, [outcome(HEADRACE, 300), slow], RIGHT)
    row = compare.reported("join", "A title", [measured]).grids[0].rows[1]
    assert row[0].startswith("Flink: time limit") and row[1] == "10" and row[-2:] == ["30.00", ""]


def test_the_exponent_of_a_power_law():
    xs = [1.0, 2.0, 4.0, 8.0]
    assert growth.fitted(xs, [5 * x**1.5 for x in xs]) == pytest.approx(1.5)


# --- strategies ----------------------------------------------------------------------------------------------------

THREE = strategies.case(50, 1, 3, 2)


def _figure_8(case: Case) -> Stream:
    left, right = (table_stream(next(case.streams.tables(side)), name=side) for side in case.streams.sides)
    return figure_8(left, right, "1 second", "1 second")


@pytest.mark.parametrize("name", STRATEGIES)
def test_oracle_duckdb_gives_the_answer_of_every_strategy(name: str, tmp_path: Path):
    workload.write(THREE.streams, tmp_path / "in")
    run = LocalRun(_figure_8(THREE), tmp_path / "state", slots=2, strategy=name)
    for left, right in zip(*(THREE.streams.tables(side) for side in THREE.streams.sides), strict=True):
        run.epoch({"left": left, "right": right})
    run.close()
    found = answers.answer_of([run.results()], THREE.query)
    assert found == answers.expected(THREE, tmp_path / "in") and found.rows > THREE.streams.epochs


def test_a_strategy_decides_how_often_tuples_are_exchanged():
    shuffles = {name: _figure_8(THREE).plan(slots=2, strategy=name).shuffles for name in STRATEGIES}
    assert shuffles == {"subquery": 2, "query": 3, "operator": 8}
    assert list(strategies.ORDER) == sorted(shuffles, key=shuffles.__getitem__)


def test_what_a_process_counted_is_taken_from_the_measured_epochs(tmp_path: Path):
    epochs = [
        {"tuples": 10 * n, "milliseconds": ms, "tasks": tasks}
        for n, ms, tasks in ((1, 900, 99), (2, 10, 6), (3, 90, 6), (4, 20, 9), (5, 900, 99))
    ]
    (tmp_path / "epochs.json").write_text(json.dumps(epochs))
    assert running._per_epoch(tmp_path, 10, 40) == {"milliseconds": 20, "tasks": 7}
    assert running._per_epoch(tmp_path / "elsewhere", 10, 40) == {}


def _counted(system: System, rate: float, shuffles: int, answer: Answer = RIGHT) -> Outcome:
    counts = dict.fromkeys(strategies.COUNTED, 5000.0) | {"shuffles": float(shuffles), "tasks": 2.0 + 2 * shuffles}
    return replace(outcome(system, rate, answer), per_epoch=counts)


def test_strategies_are_ranked_beside_what_they_moved(tmp_path: Path):
    outcomes = [_counted(strategy("subquery"), rate, 2) for rate in (300, 500, 400)]
    outcomes += [_counted(strategy("operator"), 100, 8), _counted(strategy("query"), 900, 3, WRONG)]
    measured = judged(THREE, outcomes, RIGHT)
    speed, moved = strategies._speed(measured).rows, strategies._moved(measured).rows
    assert speed[0][:2] == ["subquery", "400 (300 .. 500)"] and speed[0][-2:] == ["", "1"]
    assert speed[1][:2] == ["operator", "100"] and speed[1][-2:] == ["4.00", "2"]
    assert speed[2] == ["query: wrong answer", *[""] * 6]
    assert [row[:4] for row in moved] == [["subquery", "2", "6", "5000 B"], ["operator", "8", "18", "5000 B"]]
    drawn = strategies._panels(measured)
    assert drawn[0].ours == drawn[0].series[0].xs[0] == "subquery\n2 shuffles\n6 tasks"
    chart = report.draw(tmp_path, report.Report("name", "Title", [], [], {}, drawn), report.machine())
    assert chart is not None and chart.read_bytes().startswith(b"\x89PNG")


# --- showing -------------------------------------------------------------------------------------------------------


def test_a_report_says_what_ran_what_won_and_by_how_much(tmp_path: Path):
    measured = judged(JOIN, [outcome(HEADRACE, 300), outcome(SPARK, 100), outcome(FLINK, 0, WRONG)], RIGHT)
    found = compare.reported("join", "A title", [measured])
    rows = {row[0]: row for row in found.grids[0].rows}
    assert rows[SPARK.name][-2:] == ["3.00", "2"] and rows[HEADRACE.name][-1] == "1"
    assert f"{FLINK.name}: wrong answer" in rows
    report.save(tmp_path / "new" / "bench.json", [found], report.machine())
    saved = json.loads((tmp_path / "new" / "bench.json").read_text())
    systems = saved["benchmarks"]["join"]["cases"][0]["systems"]
    assert [s["rank"] for s in systems] == [1, 2, None]
    assert systems[1]["headrace_is_times_as_fast"] == 3.0
    assert saved["machine"]["cores_used"]


def test_a_chart_is_a_picture(tmp_path: Path):
    bars = compare.panel(judged(JOIN, [outcome(HEADRACE, 300), outcome(SPARK, 100)], RIGHT))
    lines = report.Panel("growth", "x", "y", [report.Series("a", [1, 2], [1.0, 2.0], [0.5, 1.0], [1.5, 3.0])])
    drawn = report.draw(tmp_path, report.Report("name", "Title", [], [], {}, [bars, lines]), report.machine())
    assert drawn is not None and drawn.read_bytes().startswith(b"\x89PNG")


def test_a_report_can_be_read_as_markdown(tmp_path: Path):
    grid = report.Grid("a case", ["system", ">tuples/s"], [["a|b", "10"]])
    found = report.Report("name", "Title", ["a note"], [grid], {})
    text = report.write(tmp_path, found, report.machine(), tmp_path / "name.png").read_text()
    assert text.startswith("# Title\n") and "![Title](name.png)" in text and "- a note" in text
    assert "| system | tuples/s |\n| --- | ---: |\n| a\\|b | 10 |" in text


def test_numbers_have_three_digits_that_count():
    assert [report.number(x) for x in (1234567, 0.01234, 56.78, 1234, 99_960, 2.5e9)] == [
        "1.23 M",
        "0.0123",
        "56.8",
        "1234",
        "100 k",
        "2.5 G",
    ]


def test_flink_is_set_up_for_benchmarks_that_have_it_and_for_no_other(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    nothing = report.Report("name", "Title", [], [], {})
    monkeypatch.setattr(show.flink, "prepare", lambda say: asked.append("Flink"))
    monkeypatch.setattr(show, "BENCHMARKS", {name: lambda options: nothing for name in show.BENCHMARKS})
    options = Options(1, True, False, True, lambda text: None)
    for name in ("split", "state", "join"):
        assert show.show([name], options, Console(quiet=True), None, None)
    assert asked == ["Flink"]


def test_the_command_explains_itself():
    shown = CliRunner().invoke(app, ["bench", "--help"], terminal_width=120).output
    for word in (
        "join",
        "theta",
        "nway",
        "aggregate",
        "latency",
        "growth",
        "strategies",
        "processors",
        "split",
        "state",
        "adaptive",
        "--size",
        "--rounds",
        "--json",
        "--charts",
        "--quick",
    ):
        assert word in shown
    assert CliRunner().invoke(app, ["bench", "nonsense"]).exit_code == 2


def test_of_jars_that_a_system_was_given_a_report_has_only_the_names(tmp_path: Path):
    jobs.about(
        {"work": tmp_path}, {}, {"spark.jars": "/a/b.jar,/c.jar", "spark.driver.extraClassPath": "/a/b.jar:/c.jar"}
    )
    assert "/" not in (tmp_path / "about.json").read_text()
