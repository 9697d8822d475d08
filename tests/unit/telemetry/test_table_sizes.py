"""What is shown of splits and of tables: it adds up over epochs, restarts and plans, and names who holds and grows most."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from headrace.cli import explain_output
from headrace.compile import STRATEGIES
from headrace.routing import SubstreamGrouping
from headrace.showing import live
from headrace.state.blocks import Block
from headrace.state.manifest import TableState
from headrace.stream import Stream, node_of
from headrace.telemetry.progress import SplitFigures
from headrace.telemetry.table_sizes import GroupSize, table_size
from headrace.testing import LocalRun, table_stream
from headrace.tools import plan_file
from headrace.tools.inspect_state import read_state
from tests.processors import COLUMNS, Sessions
from tests.processors import Counter as Counts

SECOND = 1_000_000


def rows(start: int, stop: int) -> pa.Table:
    """Every fifth tuple for all substreams, every fourth for none."""
    found = [
        {"ts": n * SECOND, "user": f"u{n % 11}", "kind": "all" if n % 5 == 0 else "x", "n": n % 3 if n % 4 else None}
        for n in range(start, stop)
    ]
    return pa.Table.from_pylist(found, COLUMNS)


def query(processor: Any) -> Stream:
    stream = table_stream(rows(0, 0), name="logins")
    found: Stream = stream.split(3, route="n", broadcast="kind = 'all'").apply(processor)
    return found


def counted(start: int, stop: int) -> SplitFigures:
    kinds = Counter("all" if n % 5 == 0 else "one" if n % 4 else "none" for n in range(start, stop))
    return SplitFigures(kinds["one"], kinds["all"], kinds["none"])


EPOCHS = [(0, 20), (20, 20), (20, 33), (33, 60)]


def test_splits_and_tables_are_shown_as_they_are(tmp_path: Path) -> None:
    """By epoch and in all; whatever the plan, also after a restart."""
    records: list[Any] = []
    held, before = 0, 0
    for number, (start, stop) in enumerate(EPOCHS):
        strategy = STRATEGIES[number % 2]
        run = LocalRun(query(Counts()), tmp_path / "state", slots=1 + number % 3, strategy=strategy)
        if number:
            known = run.driver.progress
            assert known.splits == {"split-1": counted(0, start)}, "before the first epoch of this life"
            assert (
                known.tables["apply-1"]["seen"].rows == held and known.tables["apply-1"]["seen"].grown == held - before
            )
        run.driver.listeners.add(records.append)
        run.epoch(rows(start, stop), splitters=2)
        progress, last = run.driver.progress, run.store.last
        assert last is not None and progress.last is not None
        assert progress.splits == {"split-1": counted(0, stop)}
        assert progress.last.splits.get("split-1", SplitFigures(0, 0, 0)) == counted(start, stop)
        plan_file.write_plan(tmp_path, [node_of(query(Counts()))], query(Counts()).plan(slots=2))
        told = explain_output.record_from_manifests(run.store.previous, last, {"apply-1": 3})
        assert told.splits.get("split-1", SplitFigures(0, 0, 0)) == counted(start, stop)
        assert told.tables == told.progress.tables == progress.tables
        assert told.table_use == told.progress.table_use == progress.table_use
        run.close()
        own = Counter(read_state(tmp_path, "apply-1", "seen")["substream"].to_pylist())
        (seen,) = progress.tables["apply-1"].values()
        before, held = held, sum(own.values())
        assert (seen.rows, seen.grown) == (held, held - before)
        assert seen.largest == tuple(
            GroupSize(s, s, many) for s, many in sorted(own.items(), key=lambda o: (-o[1], o[0]))
        )
        assert sum(share.rows for share in seen.growing) == seen.grown and 0 < seen.bytes <= progress.state_bytes
        run.driver.listeners.close()
    assert [r.splits.get("split-1", SplitFigures(0, 0, 0)) for r in records] == [counted(*each) for each in EPOCHS]
    assert [r.tables for r in records] == [r.progress.tables for r in records]
    written = json.loads(json.dumps(records[-1].to_json()))
    assert (
        written["tables"]["apply-1"]["seen"]["rows"] == held == written["progress"]["tables"]["apply-1"]["seen"]["rows"]
    )
    assert written["progress"]["splits"]["split-1"]["omitted"] == counted(0, 60).omitted


def test_what_people_are_shown(tmp_path: Path) -> None:
    made = query(Sessions())
    run = LocalRun(made, tmp_path / "state", slots=2)
    for start, stop in ((0, 20), (20, 33)):
        run.epoch(rows(start, stop))
    progress = run.driver.progress
    all_, newest, found = counted(0, 33), counted(20, 33), progress.tables["apply-1"]["open"]
    split = (
        f"{all_.routed} routed to one substream (+{newest.routed}), {all_.broadcast} broadcast to all (+{newest.broadcast}),"
        f" {all_.omitted} omitted (+{newest.omitted})"
    )
    most = found.largest[0]
    table = (
        f"{found.rows} rows ({found.grown:+}), {live.size_text(found.bytes)}; most in substream {most} ({most.rows})"
    )
    table = table.replace(" (+0)", "")
    plan_file.write_plan(tmp_path, [node_of(made)], made.plan(slots=2))
    run.close()
    text = explain_output.explain_run(tmp_path, "text")
    assert f"\n  split-1: {split}\n" in text and f"\n  table open of apply-1: {table}" in text
    use = progress.table_use["apply-1"]
    assert use.found == 3 and not use.built, "one of each substream"
    assert text.endswith("\n  tables of apply-1: 3 in place")
    assert "__" not in text, "what an operator keeps for itself is not shown"
    data = json.loads(explain_output.explain_run(tmp_path, "json"))["epoch"]
    assert data["table_use"]["apply-1"]["found"] == 3
    assert data["splits"]["split-1"]["routed"] == newest.routed and list(data["tables"]["apply-1"]) == ["open"]
    assert "apply Sessions to each of 3 substreams" in explain_output.explain_run(tmp_path, "svg")
    rates = live.RecentRates()
    rates.see(progress)
    line = live.progress_line(progress, rates)
    assert f"split-1 routed {all_.routed} to all {all_.broadcast} omitted {all_.omitted}" in line
    assert f"open {found.rows} rows" in line
    console = Console(width=300, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(live._condition(progress))
    shown = console.export_text()
    assert split in shown and table in shown


def test_queries_without_splits_are_shown_as_before(tmp_path: Path) -> None:
    run = LocalRun(table_stream(rows(0, 9), name="logins").filter("n > 0"), tmp_path / "state")
    run.epoch(rows(0, 9))
    assert run.driver.progress.splits == {} == run.driver.progress.tables
    assert live.splits_text(run.driver.progress, {}) == [] == live.tables_text(run.driver.progress)
    run.close()


@pytest.mark.parametrize(("groups", "substreams"), [(64, 3), (64, 64), (64, 1000), (7, 100), (100, 7), (1024, 5000)])
def test_groups_are_named_by_their_substreams(groups: int, substreams: int) -> None:
    numbers = range(substreams)
    of = pa.table({"s": pa.array(numbers, pa.int32())})
    members: dict[int, list[int]] = {}
    for substream, group in zip(
        numbers, SubstreamGrouping(("s",), substreams).groups(of, groups).tolist(), strict=True
    ):
        members.setdefault(group, []).append(substream)
    for group, mine in members.items():
        held = tuple(5 if other == group else 0 for other in range(groups))
        state = TableState(("k",), pa.schema([("k", pa.int64())]), (), (0,) * groups, held)
        assert table_size(state, None, groups, substreams).largest == (GroupSize(mine[0], mine[-1], 5),)
        assert mine == list(range(mine[0], mine[-1] + 1))


def test_a_table_that_shrinks_and_one_of_many_substreams() -> None:
    block = Block("blocks/e000000000-s0-p0-a0-0123456789abcdef.arrow", 100, "0" * 32, 9, 0, 1)
    schema = pa.schema([("k", pa.int64())])
    before = TableState(("k",), schema, (block,), (0,) * 3, (4, 4, 0))
    now = TableState(("k",), schema, (block,), (0,) * 3, (5, 0, 1))
    found = table_size(now, before, 3, 300)
    assert (found.rows, found.grown, found.bytes, found.stored, found.blocks) == (6, -2, 100, 9, 1)
    assert found.growing == (GroupSize(0, 99, 1), GroupSize(200, 299, 1))
    assert live._table(found) == (
        "6 rows (-2), 100 B; most in substream 0 .. 99 (5), 200 .. 299 (1); growing most in substream 0 .. 99 (1), 200 .. 299 (1)"
    )
