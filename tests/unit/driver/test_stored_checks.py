"""Manifests that are whole and say what no run wrote: refused by file and field, before anything is computed."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import headrace as hr
from headrace.cli import decision_history, explain_output
from headrace.control.policy import Policy
from headrace.driver import stored_checks
from headrace.driver.position import Batch, Position, admit_batch, check_alignment, spark_batch
from headrace.errors import CorruptState, QueryChanged, StateMismatch
from headrace.state.manifest import _seal
from headrace.state.store import StateStore
from headrace.stream import node_of
from headrace.support.limits import MOST_GROUPS
from headrace.testing import LocalRun, arrow_table, table_stream
from headrace.tools import plan_file

Body = dict[str, Any]


def rows(begin: int) -> pa.Table:
    times = [begin * 1_000_000 + 40_000 * i for i in range(50)]
    values = {"k": ["a" if i % 3 else str(i) for i in range(50)], "v": list(range(50))}
    return pa.table({"ts": pa.array(times).cast(pa.timestamp("us", "UTC")), **values})


def query() -> hr.Stream:
    left = table_stream(rows(0), name="left")
    right = table_stream(rows(0).rename_columns(["ts", "k", "w"]), name="right")
    joined = left.join(right, on="l.k = r.k", within="2 seconds")
    return joined.join(right, on="l.v < r.w", last=3).aggregate(by=["v"], last=2, n="count(*)")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    run = opened(folder)
    for number in range(3):
        run.epoch({"left": rows(number), "right": rows(number).rename_columns(["ts", "k", "w"])})
    run.close()
    plan_file.write_plan(folder, [node_of(query())], query().plan())
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def opened(folder: Path) -> LocalRun:
    store = StateStore.open(folder / "state", fsync=False)
    return LocalRun(query(), folder, slots=2, groups=8, store=store, auto=True, limit=3, policy=Policy(every=1))


def edit(folder: Path, change: Callable[[Body], Any]) -> str:
    """Change the newest manifest and seal it again; gives its name."""
    path = sorted((folder / "state" / "manifests").iterdir())[-1]
    body = json.loads(path.read_text())
    del body["checksum"]
    change(body)
    path.write_bytes(_seal(body))
    return f"manifests/{path.name}"


def at(*way: str | int, to: Any) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        place: Any = body
        for step in way[:-1]:
            place = place[step]
        place[way[-1]] = to

    return change


def without(*way: str) -> Callable[[Body], None]:
    def change(body: Body) -> None:
        place: Any = body
        for step in way[:-1]:
            place = place[step]
        del place[way[-1]]

    return change


DECISION = {"epoch": 0, "operator": "a", "kind": "move", "change": "", "reason": "", "before": 1, "predicted": 1}
NONSENSE: dict[str, tuple[Callable[[Body], Any], str]] = {
    "a source as text": (at("sources", "left", "watermark", to="yesterday"), "sources.left.watermark"),
    "a time beyond all": (at("sources", "left", "largest", to=2**63), "sources.left.largest"),
    "a source without": (without("sources", "left", "delivered"), "sources.left should be an object with the fields"),
    "no source": (without("sources", "left"), "totals.delivered"),
    "another source": (lambda b: b["sources"].update(other=b["sources"].pop("left")), "sources should be those"),
    "a sum that is none": (at("sources", "left", "late", to=5), "sources.left.delivered should be the sum"),
    "totals": (at("totals", "delivered", to=1), "totals.delivered should be that of all sources"),
    "failed": (at("sources", "left", "failed", to=1), "totals.failed should be at least the 1 of the sources"),
    "a total": (at("totals", "results", "result-0", to=-1), "totals.results.result-0"),
    "a position": (at("position", to={}), "position should be an object with the fields"),
    "a batch": (at("position", "batch", to={"query": None, "number": "x", "offsets": "o"}), "position.batch.number"),
    "no offsets": (
        at("position", "batch", to={"query": None, "number": 1}),
        "position.batch should be an object with",
    ),
    "epochs without a batch": (at("position", "own", to=-1), "position.own"),
    "groups": (at("groups", to=0), "groups should be a whole number from 1"),
    "too many groups": (at("groups", to=MOST_GROUPS + 1), "groups should be"),
    "other groups": (at("groups", to=9), "of 9 groups"),
    "a layout": (at("layouts", "join-1", to={"kind": "diagonal"}), "layouts.join-1 should be an object"),
    "no layout": (at("layouts", "join-1", to=7), "layouts.join-1"),
    "many slots": (at("layouts", "join-1", "slots", to=10**9), "layouts.join-1.slots"),
    "a slot that is not there": (
        at("layouts", "join-1", "owner", 0, to=500),
        "layouts.join-1: a layout uses a slot outside",
    ),
    "decisions": (at("decisions", to=[{}]), r"decisions\[0\] should be an object"),
    "a query": (at("query", to={}), "query should be an object with operators"),
    "operators of a query": (at("query", "operators", to=[{}]), r"query.operators\[0\]"),
    "no meanings": (without("query", "means"), "query should be an object with means"),
    "bounds": (
        at(
            "control",
            "layouts",
            to={"join-1": {"kind": "ranges", "bounds": [2, 1], "grids": [[1, 1]] * 3, "points": 0, "first": 0}},
        ),
        "control.layouts.join-1.bounds should be increasing numbers",
    ),
    "layout": (
        at("control", "layouts", to={"join-1": {"kind": "magic"}}),
        "control.layouts.join-1.kind should be one of",
    ),
    "history": (at("control", "history", to=[7]), r"control.history\[0\]"),
    "a decision": (
        at("control", "history", to=[{**DECISION, "measured": "much"}]),
        r"history\[0\].measured",
    ),
    "slots": (at("control", "active", to=0), "control.active"),
    "decided layouts": (at("control", "layouts", to={"join-1": []}), "control.layouts.join-1"),
    "a decided layout of another way": (
        at(
            "control",
            "layouts",
            to={"join-1": {"kind": "rectangles", "groups": 64, "rows": [1], "transposed": False, "first": 0}},
        ),
        "control.layouts.join-1 should be one for hash of",
    ),
    "work": (at("work", "counts", "cpu", to={"left": None}), "work.counts.cpu.left"),
    "the edges of work": (at("work", "plan", to=[[1, 2]]), r"work.plan\[0\]"),
    "work of the future": (at("work", "since", to=50), "work.since"),
    "no state": (without("operators", "join-1"), "operators should be an object with join-1"),
    "an input too few": (lambda b: b["operators"]["join-1"]["inputs"].pop(), "join-1.inputs should be a list of 2"),
    "ranks": (at("operators", "join-2", "extra", to={"given": [1, "x"]}), r"extra.given\[1\]"),
    "times": (at("operators", "join-2", "extra", to={"waiting": [[1, 2], [3, 2**62]]}), r"extra.waiting\[1\]\[1\]"),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_in_a_sealed_manifest_is_named(case: str, folder: Path) -> None:
    change, message = NONSENSE[case]
    name = edit(folder, change)
    with pytest.raises(CorruptState, match=message) as caught:
        opened(folder)
    assert name in str(caught.value) and "backup" in str(caught.value)


@pytest.mark.parametrize("key", ["columns", "types"])
def test_a_step_that_joins_a_table_says_what_it_reads(key: str, tmp_path: Path) -> None:
    def joined() -> LocalRun:
        table = arrow_table(pa.table({"key": ["a"], "x": [1]}), name="table")
        found = table_stream(rows(0), name="left").join(table, on="l.k = r.key")
        return LocalRun(found.aggregate(by=["x"], last=2, n="count(*)"), tmp_path / "state")

    run = joined()
    run.epoch({"left": rows(0)})
    run.close()
    edit(tmp_path, lambda body: body["query"]["means"]["aggregate-1"]["inputs"][0][0]["steps"][0].pop(key))
    with pytest.raises(CorruptState, match=r"steps\[0\] should be an object with .*" + key):
        joined()


def test_state_that_lies_in_another_way_is_refused(folder: Path) -> None:
    edit(folder, at("query", "grouped", "join-1", to=[["v"], ["w"]]))
    with pytest.raises(QueryChanged, match=r"grouped of join-1 was \[\['v'\], \['w'\]\], is \[\['k'\], \['k'\]\]"):
        opened(folder)


def test_whoever_looks_at_the_run_is_told_the_same(folder: Path) -> None:
    edit(folder, at("control", "history", to=[{"epoch": 1}]))
    looks: list[Callable[[], Any]] = [
        lambda: decision_history.print_decisions(folder, Console(file=io.StringIO())),
        *(lambda form=form: explain_output.explain_run(folder, form) for form in ("text", "json", "svg")),  # type: ignore[misc]
    ]
    for look in looks:
        with pytest.raises(CorruptState, match=r"manifests/000000002.json .*control.history\[0\]"):
            look()


def test_a_whole_block_of_something_else_is_refused(folder: Path) -> None:
    body = json.loads(sorted((folder / "state" / "manifests").iterdir())[-1].read_text())
    right = body["operators"]["join-1"]["inputs"][1]
    assert right, "there is something to take for the left side"
    edit(folder, at("operators", "join-1", "inputs", 0, to=right))
    run = opened(folder)
    with pytest.raises(CorruptState, match="does not belong to the state of join-1; missing columns:"):
        for number in (3, 4):
            run.epoch({"left": rows(number), "right": rows(number).rename_columns(["ts", "k", "w"])})
    run.close()


def test_a_result_that_is_none_is_not_delivered(folder: Path) -> None:
    body = json.loads(sorted((folder / "state" / "manifests").iterdir())[-1].read_text())
    block = body["operators"]["join-1"]["inputs"][0][0]
    edit(folder, at("outbox", to=[{"result": "result-0", "part": 0, "block": block}]))
    with pytest.raises(CorruptState, match="does not belong to result-0: its columns are"):
        opened(folder)


def test_what_a_run_wrote_is_fine(folder: Path) -> None:
    run = opened(folder)
    assert run.store.last is not None
    stored_checks.check_manifest(run.store.last)
    run.epoch({"left": rows(3), "right": rows(3).rename_columns(["ts", "k", "w"])})
    run.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": 7}', "[" * 100_000])
def test_a_note_of_sparks_that_is_none(text: str, folder: Path) -> None:
    edit(folder, at("position", to=Position("spark", Batch("q", 1, "o")).to_json()))
    with StateStore.open(folder / "state", read_only=True) as store:
        last = store.last
    assert last is not None
    spark = folder / "spark"
    (spark / "offsets").mkdir(parents=True)
    for name in ("2", "²", "9" * 30, "x"):
        (spark / "offsets" / name).write_text("2")
    (spark / "metadata").write_text('{"id": "q"}')
    with pytest.raises(StateMismatch, match="'spark/offsets/1', cannot be read"):
        check_alignment(last, spark)
    (spark / "metadata").write_text(text)
    with pytest.raises(StateMismatch):
        admit_batch(last, spark_batch(spark, 2))
