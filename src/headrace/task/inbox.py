"""The input of a slot for the operators of its stage: sent by the stage before, or handed over within the slot."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from headrace.state.blocks import Block
from headrace.task import watermarks
from headrace.task.messages import Attempt, BlockHeader, Goodbye, Message, RowsHeader, unpack
from headrace.task.stretch_counts import StretchCounts


@dataclass
class Inputs:
    """Tuples by operator and input: in blocks, or as rows."""

    _blocks: dict[tuple[str, int], list[Block]] = field(default_factory=dict)
    _rows: dict[tuple[str, int], list[pa.Table]] = field(default_factory=dict)

    def add_block(self, operator: str, side: int, block: Block) -> None:
        self._blocks.setdefault((operator, side), []).append(block)

    def add_rows(self, operator: str, side: int, rows: pa.Table) -> None:
        self._rows.setdefault((operator, side), []).append(rows)

    def blocks(self, operator: str, side: int) -> list[Block]:
        return self._blocks.get((operator, side), [])

    def rows(self, operator: str, side: int) -> list[pa.Table]:
        return self._rows.get((operator, side), [])


@dataclass
class Inbox:
    """The content of the messages to a slot: inputs of operators, and facts from the goodbyes of senders."""

    inputs: Inputs = field(default_factory=Inputs)
    seen: watermarks.Seen = field(default_factory=dict)
    split_times: watermarks.SplitTimes = field(default_factory=dict)
    stretches: StretchCounts = field(default_factory=StretchCounts)
    senders: list[Attempt] = field(default_factory=list)
    promised: int = 0  # messages that senders report as sent
    received: int = 0

    def add(self, message: Message) -> None:
        """Add a block or rows to the input of the operator that the message is for."""
        if message.kind == BlockHeader.kind:
            sent = message.read(BlockHeader)
            self.inputs.add_block(sent.operator, sent.input, sent.block)
        else:
            header = message.read(RowsHeader)
            self.inputs.add_rows(header.operator, header.input, unpack(message.body))

    def add_goodbye(self, goodbye: Goodbye) -> None:
        """Add the facts that a sender reports after its last message."""
        self.senders.append(goodbye.task)
        self.promised += goodbye.messages
        watermarks.merge_times(self.seen, goodbye.seen)
        watermarks.merge_split_times(self.split_times, goodbye.split_times)
        self.stretches.merge(goodbye.stretches)
