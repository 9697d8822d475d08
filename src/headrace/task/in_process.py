"""Execution of the stages of an epoch in one process, without Spark: for samples and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.sources.protocol import PhysicalWindow
from headrace.state.blocks import BlockReader
from headrace.state.storage import Storage
from headrace.task.epoch import Epoch
from headrace.task.messages import Message, decode, encode
from headrace.task.stages import run_splitter, run_stage
from headrace.task.task import Task


def execute_locally(epoch: Epoch, windows: Sequence[Iterable[PhysicalWindow]], storage: Storage) -> list[Message]:
    """Run all stages of an epoch in this process: one splitter per series of windows, one task per slot."""
    reader = BlockReader(storage)
    messages: list[Message] = []
    for partition, given in enumerate(windows or [[]]):
        messages += _over_the_wire(run_splitter(epoch, Task(0, partition, 0, storage, reader), given))
    for stage in range(1, epoch.plan.last_stage + 1):
        inboxes: list[list[Message]] = [[] for _ in range(epoch.slots)]
        for message in messages:
            inboxes[message.slot].append(message)
        messages = []
        for slot, inbox in enumerate(inboxes):
            messages += _over_the_wire(run_stage(epoch, stage, Task(stage, slot, 0, storage, reader), inbox))
    return messages


def _over_the_wire(messages: Iterable[Message]) -> list[Message]:
    return list(decode(encode(list(messages))))
