"""What tasks send: every record comes back as it was sent, and what only passes through is not opened."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache

import pyarrow as pa
import pytest

from headrace.compile import compile_query
from headrace.control.control_state import ControlState, Decision
from headrace.control.group_load import GroupLoad, HeavyKey
from headrace.errors import CorruptState, EngineError
from headrace.kernels.stateless.split import SplitCounts
from headrace.routing import Diagonal
from headrace.state import Block, BlockReader, Manifest, block_name
from headrace.state.bases import ChangeSummary
from headrace.state.caches import STAMP
from headrace.stream import node_of
from headrace.task.epoch import Epoch
from headrace.task.messages import (
    Attempt,
    BlockHeader,
    Goodbye,
    Header,
    Message,
    RowsHeader,
    decode,
    encode,
    pack,
    unpack,
)
from headrace.task.reports import (
    MergedBlocks,
    Report,
    ReportBuilder,
    SourceCounts,
    StateBlock,
    StateTableChange,
    TableUse,
    TaskOutput,
)
from headrace.task.stages import run_stage
from headrace.task.stretch_counts import StretchCounts
from headrace.task.task import Task
from headrace.task.watermarks import SourceClock
from headrace.task.work import WorkCounts, WorkTotals, sum_counts
from headrace.testing import table_stream
from tests.memory import MemoryStorage

ROWS = pa.table({"ts": pa.array([1, 2], pa.timestamp("us", "UTC")), "k": ["ä", None]})


@cache
def block(number: int = 0) -> Block:
    return Block(block_name(3, 1, number, 7), 100 + number, "ab" * 16, 5, -1, 9)


def report() -> Report:
    """With something in every field."""
    task = ReportBuilder(Attempt(1, 2, 33), "5" * 32)
    task.delivered("calls", SourceCounts(6, 3, 2, 1, -5, 5, [(1.5, 4), (None, 2)]))
    task.added("join-1", 1, block(1))
    task.replaced("aggregate-1", 0, block(2))
    task.merged("join-1", (0, 1), (block(3).name, block(4).name), block(5))
    task.merged("apply-1", (), (block(3).name,), block(8), "cars")
    task.changed("apply-1", "cars", block(9), {3: 7, 0: 0}, [0], [4, 5], ChangeSummary(6, 1, {2: 3}))
    task.changed("apply-1", "tolls", None, {1: 0}, [1], [], ChangeSummary(0, 0, {}))
    for many in (2, 3):
        task.used("apply-1", TableUse(many, {"cold": 1}, 10, 0.5, "x"))
    task.rejected("late:calls", block(6))
    task.result("result-0", block(7))
    task.add_notes("join-2", {"given": [1, 2]})
    task.add_notes("join-2", {"given": [3, 4]})
    task.loaded("join-1", 0, [1, 0, 2], [HeavyKey(2**63, 40, "'a', ä")])
    task.loaded("join-1", 0, [1, 1, 1])
    task.split("split-1", SplitCounts(3, 1, 2), 5)
    task.split("split-1", SplitCounts(1, 0, 0), -4)
    task.split("split-2", SplitCounts(0, 0, 0), None)
    task.add_split_times({"split-1": 4, "split-3": -9})
    task.work.passed("calls>join-1", 6, 3)
    task.work.out["calls"] += 3
    task.work.cpu["calls"] += 0.25
    for _ in range(2):
        task.failed("calls", "map x = y::int", 2)
    task.doubted(["exp(l.x - r.x) = 1"])
    return task.finished(
        {"calls": {"": 5, "t/1": 7}, "others": {"": None}}, [Attempt(0, 1, 9), Attempt(0, 0, 8)], 0.12345678, 0.5
    )


def heads() -> list[Header]:
    goodbye = Goodbye(
        Attempt(0, 1, 9),
        {"calls": {"": 5, "t/1": 7}, "others": {"": None}},
        {"split-1": 5},
        StretchCounts({"rank-1": [[1, 2], []]}),
        12,
    )
    return [BlockHeader("join-1", 1, block()), RowsHeader("join-1", 0), goodbye, report()]


@pytest.mark.parametrize("head", heads(), ids=lambda head: head.kind)
def test_a_record_comes_back_from_the_wire_as_it_was_sent(head: Header) -> None:
    sent = [Message.of(slot, head, pack(ROWS)) for slot in range(3)]
    came = list(decode(encode(sent)))
    assert came == sent and [message.slot for message in came] == [0, 1, 2]
    assert all(message.read(type(head)) == head for message in came)
    assert unpack(came[0].body).equals(ROWS)


def test_the_text_of_a_record_is_made_once_however_many_slots_it_goes_to() -> None:
    head = BlockHeader("join-1", 1, block())
    one, two = (Message.of(slot, head) for slot in range(2))
    assert one.header is two.header


def test_a_report_says_what_was_told_to_it() -> None:
    found = report()
    assert found.senders == (Attempt(0, 0, 8), Attempt(0, 1, 9)), "in order, whoever said goodbye first"
    assert found.cpu == 0.123457
    assert found.added == [StateBlock("join-1", 1, block(1))]
    assert found.replaced == [StateBlock("aggregate-1", 0, block(2))]
    assert found.merged == [
        MergedBlocks("join-1", (0, 1), (block(3).name, block(4).name), block(5)),
        MergedBlocks("apply-1", (), (block(3).name,), block(8), "cars"),
    ]
    assert found.changed == [
        StateTableChange("apply-1", "cars", block(9), {3: 7, 0: 0}, (0,), (4, 5), ChangeSummary(6, 1, {2: 3})),
        StateTableChange("apply-1", "tolls", None, {1: 0}, (1,), (), ChangeSummary(0, 0, {})),
    ]
    assert found.used == {"apply-1": TableUse(5, {"cold": 2}, 20, 1.0, "x")}
    assert found.outbox == [TaskOutput("result-0", block(7)), TaskOutput("late:calls", block(6))], "results come first"
    assert found.notes == {"join-2": {"given": [3, 4]}}, "the newest note counts"
    assert found.load == {"join-1": GroupLoad([[2, 1, 3], []], [[HeavyKey(2**63, 40, "'a', ä")], []])}
    assert found.failed == {("calls", "map x = y::int"): 4}
    assert found.doubted == ["exp(l.x - r.x) = 1"]
    assert found.work.split == {"split-1": [4, 1, 2], "split-2": [0, 0, 0]}
    assert found.split_times == {"split-1": 5, "split-3": -9}, "what others split is handed on"
    assert all(getattr(found, field.name) for field in fields(Report)), "this test forgets nothing"


def test_a_message_of_another_kind_is_not_taken_for_one() -> None:
    with pytest.raises(EngineError, match="a message of kind 'rows' arrived; expected kind 'goodbye'"):
        Message.of(0, RowsHeader("join-1", 0)).read(Goodbye)


# --- in a stage ------------------------------------------------------------------------------------------------------


def stage(messages: list[Message]) -> list[Message]:
    """What the only slot of stage 1 makes of them."""
    query = table_stream(ROWS, name="calls").aggregate(by=["k"], last=2, n="count(*)")
    plan, storage = compile_query([node_of(query)]), MemoryStorage()
    layouts = {o.name: Diagonal.even(4, 1) for o in plan.operators}
    epoch = Epoch(plan, 0, "", 1, 4, {"calls": SourceClock()}, layouts, {})
    return list(run_stage(epoch, 1, Task(1, 0, 5, storage, BlockReader(storage)), messages))


def test_what_passes_through_a_stage_is_neither_read_nor_changed() -> None:
    later = Message(0, BlockHeader.kind, "join-9", "this is no JSON")
    driver = Message(0, Report.kind, "", "nor is this")
    goodbye = Message.of(0, Goodbye(Attempt(0, 0, 1), {}, {}, StretchCounts(), 2))
    out = stage([later, driver, goodbye])
    assert out[:2] == [later, driver]
    assert out[2].read(Report).senders == (Attempt(0, 0, 1),)


def test_what_was_promised_and_did_not_come_ends_the_epoch() -> None:
    with pytest.raises(EngineError, match="received 0 messages, 1 were sent"):
        stage([Message.of(0, Goodbye(Attempt(0, 0, 1), {}, {}, StretchCounts(), 1))])


def test_rows_reach_the_operator_that_they_are_for() -> None:
    rows = Message.of(0, RowsHeader("aggregate-1", 0), pack(ROWS))
    out = stage(
        [rows, Message.of(0, Goodbye(Attempt(0, 0, 1), {"calls": {"": 2}}, {"split-1": 7}, StretchCounts(), 1))]
    )
    found = out[-1].read(Report)
    assert [each.operator for each in found.replaced] == ["aggregate-1"]
    assert found.task == Attempt(1, 0, 5) and found.seen == {"calls": {"": 2}} and found.split_times == {"split-1": 7}


# --- what is stored --------------------------------------------------------------------------------------------------


def test_work_adds_up_and_comes_back() -> None:
    one, two = WorkCounts(), WorkCounts()
    for work, rows in ((one, 3), (two, 4)):
        work.passed("a>b", 10, rows)
        work.delivered("b", 1, rows)
        work.out["b"] += rows
        work.cpu["b"] += rows / 8
        work.divided("s", rows, 1, 0)
        work.table_use["b"] = TableUse(rows, {STAMP: 1}, 10, 0.125).counts
    two.read["b"] += 5
    both = sum_counts([one, two])
    assert both.to_json() == {
        "edges": {"a>b": [20, 7]}, "sent": {"b": [0, 7]}, "out": {"b": 7}, "cpu": {"b": 0.875},
        "read": {"b": 5}, "opened": {}, "pairs": {}, "split": {"s": [7, 2, 0]},
        "tables": {"b": [7, 20, 0.25, 0, 0, 2, 0, 0, 0, 0]},
    }  # fmt: skip
    assert TableUse.of(both.table_use["b"]) == TableUse(7, {STAMP: 2}, 20, 0.25)
    assert one.edges == {"a>b": [10, 3]}, "parts stay as they are"
    stored = WorkTotals((("a>b", "a", "b"),), 4, both, {"b": 1.5})
    assert WorkTotals.from_json(json.loads(json.dumps(stored.to_json()))) == stored


def test_nothing_counted_is_no_section_of_work() -> None:
    empty = Manifest(state_id="0" * 32, number=0, previous=None, run="")
    assert WorkTotals.of(None) is WorkTotals.of(empty) is None
    with pytest.raises(CorruptState, match=r"work should be an object with the fields"):
        WorkTotals.of(replace(empty, work={"since": 0}))


def test_what_a_controller_remembers_comes_back() -> None:
    decision = Decision(3, "join-1", "move", "group 1", "why", 2.0, 0.5, None)
    state = ControlState(3, {"join-1": Diagonal((0, 1, 2), 3)}, (decision, replace(decision, measured=0.75)))
    assert ControlState.from_json(json.loads(json.dumps(state.to_json()))) == state
