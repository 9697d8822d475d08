"""What the driver promises beside the answer: nothing is committed over undelivered results, state stays bounded."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest

from headrace import sinks
from headrace.compile import CompiledQuery
from headrace.difference import difference
from headrace.driver import position
from headrace.errors import DataError, EngineError, QueryChanged, QueryError, SinkError, SourceError, WriterConflict
from headrace.kernels.stateless import evaluate
from headrace.kernels.windows import aggregate
from headrace.reference import reference
from headrace.run.chosen_plan import choose_plan
from headrace.sources.files import read_file
from headrace.spark.task_errors import error_of_job
from headrace.state.blocks import Block
from headrace.state.merge_planning import FAN_IN, MOST_MERGED_ROWS, large_run, merge_pieces, mergeable_runs
from headrace.stream import node_of
from headrace.task.in_process import execute_locally
from headrace.testing import LocalRun, run_locally, table_stream
from tests.helpers import keyed

SECOND = 1_000_000


def test_nothing_is_committed_over_results_that_were_not_delivered(tmp_path):
    seen = []

    def fails_once(found: pa.Table, epoch: int) -> None:
        seen.append(epoch)
        if len(seen) == 1:
            raise OSError("no room")

    stream = table_stream(keyed(1), name="s")
    run = LocalRun(stream, tmp_path / "state", sink=sinks.foreach(fails_once))
    with pytest.raises(SinkError, match="no room"):
        run.epoch(keyed(1))
    with pytest.raises(WriterConflict):
        run.epoch(keyed(2))
    run.close()
    LocalRun(stream, tmp_path / "state", sink=sinks.foreach(fails_once)).close()
    assert seen == [0, 0]


@pytest.mark.parametrize(("strategy", "shares_slots"), [("subquery", True), ("query", False)])
def test_progress_tells_what_was_sent_from_what_stayed_in_its_slot(tmp_path, strategy, shares_slots):
    stream = table_stream(keyed(1), name="s")
    counted = stream.aggregate(by=["k"], window="1 second", n="count(*)")
    twice = counted.aggregate(by=["k"], window="2 seconds", total="sum(n)")
    run = LocalRun(twice, tmp_path / "state", slots=2, strategy=strategy)
    run.epoch(keyed(0.5))
    first = run.driver.progress.last
    assert first.sent_bytes > 0 == first.kept_bytes  # no window has closed: nothing behind the first aggregate
    run.epoch(keyed(1.5))
    second = run.driver.progress.last
    assert second.sent_bytes > 0 and (second.kept_bytes > 0) == shares_slots
    assert (second.sent_bytes > first.sent_bytes) != shares_slots
    run.close()


def test_keys_beyond_the_years_that_python_has(tmp_path):
    """The text of a heavy key is only for people, and so is the console."""
    far = pa.array([2**60] * 40, pa.timestamp("us", "UTC"))
    rows = keyed(*[1] * 40).append_column("until", far)
    stream = table_stream(rows, name="s")
    query = stream.join(stream, on="l.until = r.until", within="1 second").map(until="l_until")
    shown = io.StringIO()
    run = LocalRun(query, tmp_path / "state", sink=sinks.console(2, file=shown))
    run.epoch(rows)
    run.close()
    assert str(2**60) in shown.getvalue()


def test_sources_that_fall_silent_together_do_not_hold_each_other_back(tmp_path):
    a, b = (table_stream(keyed(1), name=name, idle="1 second") for name in "ab")
    query = a.union(b).aggregate(by=["k"], window="10 seconds", n="count(*)")
    run = LocalRun(query, tmp_path / "state")
    run.epoch({"a": keyed(1), "b": keyed(55)})
    assert run.results().num_rows == 0
    run.driver.run_epoch(
        position.Position("local"), lambda e: execute_locally(e, [[]], run.store.storage), idle_sources=["a", "b"]
    )
    assert run.results().num_rows == 1
    run.close()


def test_best_effort_count_windows_give_other_results_not_only_fewer(tmp_path):
    """As docs/GUARANTEES.md says: tuples are counted as they come."""
    counted = table_stream(keyed(1), name="s", lateness="9 seconds").aggregate(by=["k"], last=2, every=1, lo="min(ts)")
    run = LocalRun(counted, tmp_path / "state", best_effort=True)
    run.epoch(keyed(1, 3))
    run.epoch(keyed(2, 4))
    found = [row.second for row in run.results().sort_by("ts").column("lo").to_pylist()]
    run.close()
    wanted = reference(counted, epochs=[keyed(1, 3), keyed(2, 4)]).sort_by("ts").column("lo").to_pylist()
    assert ([row.second for row in wanted], found) == ([1, 2, 3], [2, 1, 2])


def test_results_of_a_restored_checkpoint_do_not_pass_for_those_before(tmp_path):
    stream, state, out = table_stream(keyed(1), name="s"), tmp_path / "state", tmp_path / "out"

    def run(*epochs: pa.Table) -> None:
        local = LocalRun(stream, state, sink=sinks.parquet(out))
        try:
            for rows in epochs:
                local.epoch(rows)
        finally:
            local.close()

    run(keyed(1))
    shutil.copytree(state, tmp_path / "backup")
    run(keyed(2), keyed(3))
    run()  # delivers the newest again
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    with pytest.raises(SinkError, match="contains other results of the same epoch, as after a checkpoint was restored"):
        run(keyed(2, 3))


def test_an_equality_join_that_fails_names_the_pair_that_met(tmp_path):
    values = [1, 2, 3, 2**62, 5, 6]
    rows = keyed(*[1] * 6).set_column(1, "k", pa.array(range(6))).append_column("a", pa.array(values))
    stream = table_stream(rows, name="s")
    query = stream.join(stream, on="l.k = r.k and l.a * r.a > 0", within="1 second")
    with pytest.raises(DataError, match=r"on l: k=3, a=4611686018427387904; r: k=3, a=4611686018427387904"):
        run_locally(query, tmp_path / "state")


def test_what_a_task_raised_stands_first():
    trace = "Job aborted\nTraceback (most recent call last):\n" + '  File "x.py", line 1, in f\n' * 200
    error = error_of_job(
        RuntimeError(f"{trace}pyarrow.lib.ArrowInvalid: offsets too short\n\n\tat org.apache.spark.api")
    )
    assert str(error).startswith(
        "the Spark job of this epoch failed: pyarrow.lib.ArrowInvalid: offsets too short; in full"
    )
    assert str(error_of_job(RuntimeError("nobody knows"))) == "the Spark job of this epoch failed: nobody knows"


def test_a_disk_that_fails_is_not_blamed_on_a_tuple(monkeypatch):
    def full(*_: object) -> None:
        raise duckdb.IOException("IO Error: could not write: No space left on device")

    monkeypatch.setattr(evaluate.duck, "run_select", full)
    with pytest.raises(
        EngineError,
        match=r"'sum\(v\)' could not be evaluated: .*No space left.*; is the disk with the temporary files full",
    ):
        evaluate.evaluate("SELECT 1", {"t": keyed(1)}, "sum(v)")


def test_what_spark_wrote_down_of_a_batch_is_on_the_disk_before_our_commit(tmp_path, monkeypatch):
    for name in ("metadata", "offsets/3", "offsets/2", "sources/0/3", "sources/1/3.compact", "commits/2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    synced = []
    monkeypatch.setattr(position, "sync_path", lambda path: synced.append(str(path.relative_to(tmp_path))))
    position.make_durable(tmp_path, 3)
    files = ["metadata", "offsets/3", "sources/0/3", "sources/1/3.compact"]
    assert sorted(synced) == sorted([*files, "offsets", "sources/0", "sources/1", "."])
    assert synced.index("offsets/3") < synced.index("offsets")  # a name counts once its folder is written


def test_a_plan_for_more_slots_than_there_are_is_refused_before_anything_runs():
    query = table_stream(keyed(1), name="s").aggregate(by=["k"], window="1 second", n="count(*)")
    with pytest.raises(QueryError, match="the plan needs 4 slots, but this run has 2; start it with slots=4"):
        choose_plan(CompiledQuery([node_of(query)]), "subquery", 2, query.plan(slots=4))


def test_a_number_is_a_condition_in_a_join(tmp_path):
    rows = keyed(1, 2, 3).append_column("flag", pa.array([0, 1, 2]))
    stream = table_stream(rows, name="s")
    query = stream.join(stream, on="l.k = r.k and l.flag", within="5 seconds")
    found = run_locally(query, tmp_path / "state")
    assert difference(reference(query), found) is None and found.num_rows == 6


def test_best_effort_closes_every_window_of_an_ordered_stream(tmp_path):
    rows = keyed(*range(40))
    counted = table_stream(rows, name="s", lateness="10 seconds").aggregate(by=["k"], window="5 seconds", n="count(*)")
    run = LocalRun(counted, tmp_path / "state", slots=2, best_effort=True)
    for start in range(0, 40, 4):
        run.epoch(rows.slice(start, 4))
    run.end()
    assert difference(reference(counted), run.results()) is None
    run.close()


@pytest.mark.parametrize("function", ["count(*)", "median(k)", "list(k)"])
def test_many_open_windows_close_in_pieces(tmp_path, monkeypatch, function):
    monkeypatch.setattr(aggregate, "MOST_WINDOW_ROWS", 50)
    query = table_stream(keyed(*range(30)), name="s").aggregate(
        by=["k"], window="20 seconds", every="1 second", n=function
    )
    assert difference(reference(query), run_locally(query, tmp_path / "state", slots=2)) is None


def blocks(*rows: int) -> list[Block]:
    return [Block(f"blocks/e{i:09d}-s0-p0-a0-00000000.arrow", 100, "0" * 32, n, i, i) for i, n in enumerate(rows)]


def test_all_runs_of_an_epoch_are_merged_not_only_the_first():
    runs = mergeable_runs(blocks(*[10] * 40))
    assert [len(run) for run in runs] == [FAN_IN] * 5
    assert len({block.name for run in runs for block in run}) == 40


def test_small_and_large_blocks_in_turn_are_merged_each_with_its_like():
    runs = mergeable_runs(blocks(*[10_000, 10] * 8))
    assert [{block.rows for block in run} for run in runs] == [{10}, {10_000}]


@pytest.mark.parametrize("live", [600_000, 5_000_000, 40_000_000])
def test_large_blocks_are_merged_when_that_may_halve_them(live):
    """What is held stays within twice the rows that count, and no more than three rows are written for one that comes."""
    held: list[Block] = []
    most, written, came = 0, 0, 0
    for epoch in range(300):
        held += [replace(block, name=f"blocks/e{epoch:09d}-s0-p0-a0-{epoch:016x}.arrow") for block in blocks(600_000)]
        came += 600_000
        if run := large_run(held):
            many, rows = merge_pieces(run), min(live, sum(block.rows for block in run))
            assert sum(block.rows for block in run) <= many * MOST_MERGED_ROWS
            names = [f"blocks/e{epoch:09d}-s0-p0-a0-{piece:016x}.arrow" for piece in range(many)]
            held = [replace(run[0], name=name, rows=rows // many) for name in names]
            written += rows
        most = max(most, sum(block.rows for block in held))
    assert most <= 2 * live + 1_200_000 and written <= 3 * came


def test_blocks_stay_few_with_many_splitters(tmp_path):
    stream = table_stream(keyed(0), name="s")
    joined = stream.join(stream, on="l.k = r.k and l.ts < r.ts", within="1 hour")
    run = LocalRun(joined, tmp_path / "state", slots=2)
    for epoch in range(30):
        run.epoch(keyed(*range(epoch * 16, epoch * 16 + 16), key=epoch), splitters=16)
    assert run.driver.progress.blocks < 60
    run.close()


def test_a_source_may_be_called_like_an_operator(tmp_path):
    a, b = (table_stream(keyed(1, 2), name=name) for name in ("join-1", "aggregate-1"))
    query = a.join(b, on="l.k = r.k", within="9 seconds").aggregate(by=["l_k"], window="5 seconds", n="count(*)")
    assert difference(reference(query), run_locally(query, tmp_path / "state", slots=2)) is None


def test_state_made_by_best_effort_is_not_continued_as_exact(tmp_path):
    stream = table_stream(keyed(1), name="s")
    run = LocalRun(stream, tmp_path / "state", best_effort=True)
    run.epoch(keyed(1))
    run.close()
    with pytest.raises(QueryChanged, match="order"):
        LocalRun(stream, tmp_path / "state")


def test_a_file_that_changes_while_it_is_taken_is_refused(tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(keyed(1), path)
    stat = path.stat()
    assert read_file(path, (stat.st_size, stat.st_mtime_ns)).num_rows == 1
    with pytest.raises(SourceError, match="changed"):
        read_file(path, (stat.st_size, stat.st_mtime_ns - 1))


def test_a_console_shows_brackets_as_they_are(tmp_path):
    import io

    out = io.StringIO()
    sinks.console(file=out).deliver(sinks.Delivery("q", 1, "result-0", pa.table({"[b]": ["[/red] :smile:"]})))
    assert "[/red] :smile:" in out.getvalue()


def test_a_position_says_what_drives_its_sources():
    """Folders and topics share one kind, so the message names both."""
    assert position.Position("files").driven_by == "headrace, which drives folders and Kafka topics"
    assert position.Position("local").driven_by == "'local'"
