"""What `headrace bench split` is fed with, counts and claims. No Spark here; tests/spark/test_bench.py runs it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace import testing
from headrace.errors import ProcessorError
from headrace.testing import LocalRun, table_stream
from headrace_bench import answers, report, roads, split, systems
from headrace_bench.measure import Spread
from headrace_bench.roads import BALANCE, BATCH, EXPENSES, NOTHING, OWN, REPORT, ROUND, TRAVEL, Roads
from headrace_bench.running import OK, Outcome, judged
from headrace_bench.split import BASE, EXPENSIVE, ONE_FILE, PARQUET, SORTED, SPARK, Size
from headrace_bench.systems import headrace_job, spark_split
from headrace_bench.systems.headrace_processors import CountByType
from headrace_bench.task import Case, Query

pytestmark = pytest.mark.thorough

SMALL = Roads(("reports",), 202, 60, 3, 4, gap=1.0)
TINY = Size(rate=101, seconds=30, warm=1, measured=2, many=16, rehearsed=2)


def seconds(table: pa.Table) -> np.ndarray:
    return table["ts"].cast(pa.int64()).to_numpy() // roads.SECOND - roads.BEGIN


def epochs(stream: Roads) -> list[pa.Table]:
    """Without the last tuple."""
    return list(stream.tables("reports"))[:-1]


# --- the tuples ----------------------------------------------------------------------------------------------------


def test_a_tuple_has_the_15_columns_of_linear_road_in_33_bytes():
    table = epochs(SMALL)[0]
    assert tuple(table.column_names) == OWN and len(OWN) == 15
    assert sum(field.type.bit_width // 8 for field in table.schema) == roads.BYTES == 33
    assert table.num_rows == SMALL.per_epoch == 202 * 60


def test_of_tuples_half_a_percent_is_for_all_and_as_many_for_nobody():
    kinds = Roads(("reports",), 10_100, 30, 1, 8, gap=1.0).round(0)["type"].to_pylist()
    counts = Counter(kinds)
    assert counts[REPORT] / len(kinds) == pytest.approx(100 / 101)
    assert counts[BALANCE] / len(kinds) == pytest.approx(0.005, rel=0.1)
    assert counts[TRAVEL] + counts[EXPENSES] < 0.01 * len(kinds)
    assert counts[EXPENSES] < counts[TRAVEL]


def test_the_same_seed_gives_the_same_tuples_in_however_many_files(tmp_path: Path):
    for name, stream in (("one", SMALL), ("many", replace(SMALL, files=3)), ("rows", replace(SMALL, form="parquet"))):
        roads.write(stream, tmp_path / name)
    one, many, rows = (answers.scan(tmp_path / name / "reports").to_table() for name in ("one", "many", "rows"))
    assert one.equals(many) and one.equals(rows.cast(one.schema))
    assert len(list((tmp_path / "many" / "reports").iterdir())) == 3 * SMALL.epochs + 1
    assert not one.equals(pa.concat_tables(replace(SMALL, seed=8).tables("reports")))


def test_large_files_have_batches_that_can_be_cut_from_them(tmp_path: Path):
    stream = Roads(("reports",), 5_050, 30, 1, 8, gap=1.0)
    roads.write(stream, tmp_path)
    with pa.ipc.open_file(tmp_path / "reports" / "part-00000-00.arrow") as file:
        assert file.num_record_batches == -(-stream.per_epoch // BATCH) > 1


def test_tuples_are_shuffled_within_seconds_and_not_across():
    found = epochs(SMALL)
    times = [seconds(table) for table in found]
    assert all(np.array_equal(each, np.sort(each)) for each in times)
    assert [(each[0], each[-1]) for each in times] == [(0, 59), (60, 119), (120, 179)]
    assert set(Counter(np.concatenate(times).tolist()).values()) == {202}
    vids = found[0].slice(0, 202).filter(pc.equal(found[0].slice(0, 202)["type"], REPORT))["vid"].to_numpy()
    assert not np.array_equal(vids, np.sort(vids))
    first, *_, last = np.flatnonzero(found[0].slice(0, 2_020)["type"].to_numpy())  # queries are not at an end of them
    assert first % 202 < 200 or last % 202 < 200


def test_a_car_reports_every_30_seconds_and_drives():
    whole = pa.concat_tables(epochs(SMALL))
    cars: dict[int, list[dict[str, Any]]] = {}
    for row in whole.filter(pc.equal(whole["type"], REPORT)).sort_by("ts").to_pylist():
        cars.setdefault(row["vid"], []).append(row)
    assert len(cars) > SMALL.reports * ROUND  # some left, and others came
    assert any(rows[0]["lane"] == 0 for rows in cars.values()) and any(rows[-1]["lane"] == 4 for rows in cars.values())
    for rows in cars.values():
        assert {row["xway"] for row in rows} == {rows[0]["xway"]} and 0 <= rows[0]["xway"] < SMALL.keys
        for one, two in pairwise(rows):
            assert two["ts"] - one["ts"] == dt.timedelta(seconds=30)
            assert one["lane"] < 4 and two["lane"] > 0
            assert (two["pos"] > one["pos"]) == (one["dir"] == 0) and abs(two["seg"] - one["seg"]) <= 1
        assert all(0 <= row["pos"] < roads.FEET and row["seg"] == row["pos"] // roads.MILE for row in rows)


def test_columns_that_a_tuple_has_no_use_for_say_so():
    whole = pa.concat_tables(epochs(SMALL))
    used = {
        REPORT: {"spd", "xway", "lane", "dir", "seg", "pos"},
        BALANCE: {"qid"},
        EXPENSES: {"qid", "xway", "day"},
        TRAVEL: {"qid", "xway", "sinit", "send", "dow", "tod"},
    }
    for kind, names in used.items():
        rows = whole.filter(pc.equal(whole["type"], kind))
        for name in set(OWN) - {"type", "ts", "vid"}:
            assert (pc.min(rows[name]).as_py() >= 0) == (name in names), (kind, name)
            assert name in names or pc.max(rows[name]).as_py() == NOTHING
    asked = whole.filter(pc.greater_equal(whole["qid"], 0))["qid"].to_pylist()
    assert sorted(asked) == list(range(SMALL.queries * 180))


def test_who_asks_reports_in_the_same_second():
    whole = epochs(SMALL)[0]
    kind = whole["type"].to_numpy()
    pairs = list(zip(seconds(whole).tolist(), whole["vid"].to_pylist(), strict=True))
    reports = {pair for pair, is_report in zip(pairs, kind == REPORT, strict=True) if is_report}
    assert {pair for pair, is_query in zip(pairs, kind != REPORT, strict=True) if is_query} <= reports


def test_many_expressways_are_all_used_by_as_many_tuples():
    stream = Roads(("reports",), 2_020, 30, 1, 512, gap=1.0)
    table = epochs(stream)[0]
    assert len(table) == stream.per_epoch and len(set(table["xway"].to_pylist()) - {NOTHING}) == 512


# --- the answers ---------------------------------------------------------------------------------------------------


def counted(stream: Roads, substreams: int) -> Counter:
    """(end of the epoch, substream, type): how many, one tuple after the other."""
    found: Counter = Counter()
    for table in stream.tables("reports"):
        for row in table.to_pylist():
            second = int(row["ts"].timestamp())
            end = (second // round(stream.seconds) + 1) * round(stream.seconds)
            goes = {REPORT: [row["xway"]], BALANCE: range(substreams)}.get(row["type"], [])
            found.update((end, number, row["type"]) for number in goes)
    return found


def rows_of(table: pa.Table) -> Counter:
    ends = [int(time.timestamp()) for time in table["ts"].to_pylist()]
    keys = zip(ends, table["substream"].to_pylist(), table["type"].to_pylist(), strict=True)
    return Counter(dict(zip(keys, table["n"].to_pylist(), strict=True)))


def tiny(route: str = split.PLAIN, **options: Any) -> Case:
    stream = Roads(("reports",), TINY.rate, TINY.seconds, 3, 4, gap=1.0, **options)
    query = Query("split", every=TINY.seconds, substreams=4, route=route, broadcast=split.BROADCAST)
    return Case("tiny", stream, query, 1)


def found_by_headrace(case: Case, folder: Path, cut: int = 1) -> pa.Table:
    """All files, each in so many epochs."""
    tables = list(case.streams.tables("reports"))
    task = {"kind": "split", "every": case.query.every, "substreams": case.query.substreams}
    task |= {"route": case.query.route, "broadcast": case.query.broadcast}
    run = LocalRun(headrace_job.build(task, [table_stream(tables[0], name="reports")]), folder, slots=2)
    for table in tables:
        size = -(-table.num_rows // cut)
        for start in range(0, table.num_rows, size):
            run.epoch(table.slice(start, size), splitters=2)
    run.close()
    return run.results()


@pytest.mark.parametrize(
    ("route", "form"), [(split.PLAIN, "arrow"), (split.expensive_route(4), "parquet")], ids=["plain", "expensive"]
)
def test_oracle_headrace_duckdb_and_plain_python_count_the_same(route: str, form: str, tmp_path: Path):
    case = tiny(route, files=2, form=form)
    assert isinstance(case.streams, Roads)
    roads.write(case.streams, tmp_path / "in")
    found = found_by_headrace(case, tmp_path / "state", cut=2)
    assert rows_of(found) == counted(case.streams, 4)
    assert answers.answer_of([found], case.query) == answers.expected(case, tmp_path / "in")


def test_delivered_is_what_was_routed_and_for_every_substream_what_was_broadcast(tmp_path: Path):
    case = tiny()
    assert isinstance(case.streams, Roads)
    roads.write(case.streams, tmp_path)
    share = split.shares(case.query, tmp_path / "reports")
    tuples = case.streams.tuples + 1
    assert sum(share.values()) == pytest.approx(1) and share["broadcast"] > 0 and share["omitted"] > 0
    assert counted(case.streams, 4).total() == pytest.approx((share["routed"] + 4 * share["broadcast"]) * tuples)


def test_a_tuple_in_another_substream_is_another_answer(tmp_path: Path):
    case = tiny()
    found = found_by_headrace(case, tmp_path / "state")
    moved = found.set_column(1, "substream", pc.subtract(3, found["substream"]))
    lost = found.set_column(3, "n", pc.subtract(found["n"], pc.cast(pc.equal(found["substream"], 0), pa.int64())))
    right = answers.answer_of([found], case.query)
    assert right not in (answers.answer_of([moved], case.query), answers.answer_of([lost], case.query))


def test_sparks_counting_says_the_same(tmp_path: Path):
    """Of a micro-batch, substream by substream and in pieces, as `mapInArrow` hands them over."""
    case = tiny()
    found: Counter = Counter()
    for table in case.streams.tables("reports"):
        for number in range(4):
            mine = pc.or_(
                pc.and_(pc.equal(table["type"], REPORT), pc.equal(table["xway"], number)),
                pc.equal(table["type"], BALANCE),
            )
            sent = table.filter(mine).append_column("substream", pa.array([number] * pc.sum(mine).as_py(), pa.int32()))
            for batch in spark_split.counting(30)(pieces(sent)):
                found += rows_of(pa.table(batch))
    assert isinstance(case.streams, Roads)
    assert found == counted(case.streams, 4)


def pieces(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.combine_chunks().to_batches(max_chunksize=100)


# --- the processor -------------------------------------------------------------------------------------------------


def test_check_processor_finds_nothing():
    table = Roads(("reports",), 20, 30, 1, 2, gap=1.0).round(0).slice(0, 200)
    testing.check_processor(
        CountByType(dt.timedelta(seconds=3)), table, substreams=2, route="xway", broadcast="type > 0", cases=4
    )


class KeepsOnCounting(CountByType):
    """On itself, where it is lost."""

    def process(self, tuples: pa.Table, state: Any) -> None:
        self.sofar = getattr(self, "sofar", 0) + len(tuples)
        super().process(tuples, state)


@pytest.mark.thorough
def test_canary_a_counter_on_self_is_found():
    table = Roads(("reports",), 20, 30, 1, 2, gap=1.0).round(0).slice(0, 200)
    with pytest.raises(ProcessorError):
        testing.check_processor(
            KeepsOnCounting(dt.timedelta(seconds=3)), table, substreams=2, route="xway", broadcast="type > 0", cases=4
        )


# --- what is measured ----------------------------------------------------------------------------------------------


def test_an_expensive_route_goes_where_the_plain_one_goes():
    tuples = Roads(("reports",), 101, 30, 1, 8, gap=1.0).round(0)
    with duckdb.connect() as connection:
        connection.register("tuples", tuples)
        found = connection.sql(f"select {split.PLAIN} a, {split.expensive_route(8)} b from tuples").to_arrow_table()
    assert found["a"].cast(pa.int64()).equals(found["b"].cast(pa.int64()))
    assert found["a"].null_count == tuples.num_rows - pc.sum(pc.equal(tuples["type"], REPORT)).as_py() > 0


def test_a_scan_reads_every_tuple(tmp_path: Path):
    roads.write(SMALL, tmp_path)
    files = sorted((tmp_path / "reports").iterdir())
    assert sum(map(split._read, files)) == SMALL.tuples + 1
    assert split.scanned(tmp_path / "reports") > 0


def test_an_engine_is_held_to_a_number_of_splitters():
    task = {"cores": 2, "epoch": "0 seconds"}
    assert "splitters" not in headrace_job.settings(task)
    assert headrace_job.settings({**task, **systems.HEADRACE_ONE_SPLITTER.options})["splitters"] == 1


def test_variants_are_what_the_claims_are_about():
    names = {variant.name: variant for variant in split.variants(split.FULL)}
    assert {BASE, "q = 512", ONE_FILE, EXPENSIVE, PARQUET, SPARK, SORTED} <= set(names)
    assert {variant.roads.tuples for variant in names.values()} == {split.FULL.per_epoch * 9}
    assert names["q = 512"].roads.keys == 512 and names[ONE_FILE].roads.files == 1
    assert names[PARQUET].roads == names[SPARK].roads == names[SORTED].roads
    assert 2e6 < split.FULL.per_epoch < 5e6
    half = split.scaled(split.FULL, 0.5)
    assert half.per_epoch * 2 == split.FULL.per_epoch and split.scaled(split.FULL, 0.01).seconds == ROUND


def test_claims_and_ratios_follow_from_the_rates(tmp_path: Path):
    rates = {BASE: (8e6, 0.3), "q = 16": (3e6, 0.5), ONE_FILE: (6e6, 0.3), EXPENSIVE: (5e6, 0.39)}
    rates |= {PARQUET: (4e6, 0.4), SPARK: (1e6, 2.0), SORTED: (5e5, 4.0)}
    right, found = answers.Answer(5, "aa"), []
    for variant in split.variants(TINY):
        if variant.name not in rates:
            continue  # an engine that lets one choose the splitters
        rate, cpu = rates[variant.name]
        outcome = Outcome(variant.system.name, variant.system.family, OK, rate, cpu, 1.0, answer=right)
        case = replace(variant.case, facts={"routed": 0.99, "broadcast": 0.005, "omitted": 0.005})
        found.append(judged(case, [outcome], right))
    made = split.reported(TINY, found, Spread.of([16e6]), {"plain": 0.01, "expensive": 0.11})
    assert [claim["holds"] for claim in made.data["claims"]] == [True, False, False, True]
    ratios = made.data["ratios"]
    assert ratios[f"{PARQUET} : {SPARK}"] == 4 and ratios[f"{PARQUET} : {SORTED}"] == 8
    assert ratios[f"{BASE} : a bare scan"] == 0.5
    assert all(len(row) == len(grid.headings) for grid in made.grids for row in grid.rows)
    rows = {row[0]: row for row in made.grids[1].rows}
    assert rows[BASE][5] == report.number(8e6 * (0.99 + 8 * 0.005)) and rows[SPARK][-1] == "right"
    chart = report.draw(tmp_path, made, report.machine())
    assert chart is not None and chart.read_bytes().startswith(b"\x89PNG")


def test_a_wrong_answer_is_said_and_not_compared():
    right, wrong = answers.Answer(5, "aa"), answers.Answer(5, "bb")
    base, *_ = split.variants(TINY)
    case = replace(base.case, facts={"routed": 0.99, "broadcast": 0.005, "omitted": 0.005})
    outcome = Outcome(systems.HEADRACE.name, "headrace", OK, 1e6, 1.0, 1.0, answer=wrong)
    made = split.reported(TINY, [judged(case, [outcome], right)], Spread.of([16e6]), {})
    assert made.data["claims"] == [] and made.data["ratios"] == {}
    assert len(made.grids) == 1 and "wrong answer" in made.grids[0].rows[0][0]
