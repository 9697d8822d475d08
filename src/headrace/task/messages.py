"""Messages between the tasks of one epoch: packets made of JSON and Arrow bytes only.

A `Message` names the slot that it goes to, its kind, and the operator that it is for. Its header is a record of that kind as
JSON, and its body has the tuples of a `RowsHeader`. Only the slot that has the operator reads the header. A stage that a
message only passes through sends it on unchanged.

    BlockHeader  a stored block, by reference
    RowsHeader   tuples, by value
    Goodbye      the last message of a sender: its name, how many messages it sent to this slot, and the times of its tuples,
                 and its counts of tuples by stretch
    Report       for the driver (`headrace.task.reports`)
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import pyarrow as pa

from headrace.errors import EngineError
from headrace.state.blocks import Block
from headrace.task.stretch_counts import StretchCounts
from headrace.task.watermarks import Seen, SplitTimes

LENGTH = struct.Struct("<Q")  # length of the index of a packet
ALIGNMENT = 16  # bytes
LARGEST_BODY = 32 << 20


class Header(ABC):
    """The record in a message. One record may be sent to several slots, so its text is made once."""

    kind: ClassVar[str]

    @property
    def to(self) -> str:
        """Return the operator that the message is for; empty for a goodbye (to the stage) and a report (to the driver)."""
        return ""

    @abstractmethod
    def to_json(self) -> Any: ...

    @classmethod
    @abstractmethod
    def from_json(cls, data: Any) -> Self: ...

    @cached_property
    def text(self) -> str:
        return json.dumps(self.to_json())


H = TypeVar("H", bound=Header)


@dataclass(frozen=True)
class Message:
    """A message from one task to a slot: its kind, the operator that it is for, its header as JSON, and its body."""

    slot: int
    kind: str
    to: str
    header: str
    body: bytes | memoryview = b""

    @staticmethod
    def of(slot: int, header: Header, body: bytes = b"") -> Message:
        return Message(slot, header.kind, header.to, header.text, body)

    def read(self, kind: type[H]) -> H:
        """Return the record in the message, which must be of this kind."""
        if self.kind != kind.kind:
            raise EngineError(f"a message of kind {self.kind!r:.50} arrived; expected kind {kind.kind!r}")
        return kind.from_json(json.loads(self.header))


# --- kinds ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockHeader(Header):
    """A block of which this slot needs some groups, for one input of an operator."""

    kind = "block"
    operator: str
    input: int
    block: Block

    @property
    def to(self) -> str:
        return self.operator

    def to_json(self) -> Any:
        return [self.operator, self.input, self.block.to_json()]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        operator, side, block = data
        return cls(operator, side, Block.from_json(block))


@dataclass(frozen=True)
class RowsHeader(Header):
    """Tuples for one input of an operator; they are the body of the message."""

    kind = "rows"
    operator: str
    input: int

    @property
    def to(self) -> str:
        return self.operator

    def to_json(self) -> Any:
        return [self.operator, self.input]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        return cls(*data)


class Attempt(NamedTuple):
    """The name of one attempt of a task: stage, number of the splitter or slot, and number of the attempt."""

    stage: int
    number: int
    attempt: int


@dataclass(frozen=True)
class Goodbye(Header):
    """The last message of a task to a slot of the next stage."""

    kind = "goodbye"
    task: Attempt
    seen: Seen
    split_times: SplitTimes
    stretches: StretchCounts  # that the slot needs or passes on
    messages: int  # sent to this slot, the goodbye not counted

    def to_json(self) -> Any:
        return [self.task, self.seen, self.split_times, self.stretches.to_json(), self.messages]

    @classmethod
    def from_json(cls, data: Any) -> Self:
        task, seen, split_times, stretches, messages = data
        return cls(Attempt(*task), seen, split_times, StretchCounts.from_json(stretches), messages)


# --- the wire ------------------------------------------------------------------------------------------------------


def encode(messages: Sequence[Message]) -> bytes:
    """Return one packet: the length of its index, the index (JSON, padded with spaces), and the bodies one after the
    other.

    Bodies begin at multiples of `ALIGNMENT` from the start of the packet, because Arrow needs aligned buffers.
    """
    index = json.dumps([[m.slot, m.kind, m.to, m.header, len(m.body)] for m in messages]).encode()
    index += b" " * _gap(LENGTH.size + len(index))
    parts: list[bytes | memoryview] = [LENGTH.pack(len(index)), index]
    for message in messages:
        parts += (message.body, bytes(_gap(len(message.body))))
    return b"".join(parts)


def decode(packet: bytes) -> Iterator[Message]:
    """Yield the messages of a packet. Their bodies are views of it, not copies."""
    data = memoryview(packet)
    (length,) = LENGTH.unpack_from(data)
    at = LENGTH.size + length
    for slot, kind, to, header, size in json.loads(bytes(data[LENGTH.size : at])):
        yield Message(slot, kind, to, header, data[at : at + size])
        at += size + _gap(size)


def _gap(size: int) -> int:
    return -size % ALIGNMENT


def pack(table: pa.Table) -> bytes:
    """Return tuples as the bytes of an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def unpack(body: bytes | memoryview) -> pa.Table:
    """Return the tuples in the bytes of an Arrow stream."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        return reader.read_all()
