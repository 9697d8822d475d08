"""The interface of sources that headrace drives itself, from the origin to the rows that a task reads.

    DrivenOrigin    the source as the user defined it; it creates the ledger
    Ledger          in the driver: what waits, what an epoch takes of it, and what was taken, which the manifest stores
    Item            what a ledger lists and chooses from: a file (`TakenFile`), a range of offsets (`OffsetRange`)
    TakenInput      an item that an epoch takes, with its source (`FileToRead`, `TakenOffsets`); `Ledger.inputs` creates it
    Piece           what one task reads at once (`FilePiece`, `OffsetPiece`); `TakenInput.pieces` creates it
    Reader          in the tasks: reads the rows of pieces
    ReadRows        the rows that a reader yields, with facts about them
    PhysicalWindow  these rows with their source: what `run_splitter` processes at once

Invariant: what was taken is stored in the manifest of the epoch that took it and nowhere else, so position and state
cannot disagree. The rows of a piece depend on the piece alone, so a second attempt of a task reads the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from headrace.state.blocks import BlockReader
from headrace.state.manifest import TakenState
from headrace.state.storage import Storage

Item: TypeAlias = Any  # only the ledger knows the type
# (location, schema of the rows there) -> the columns to read; raises if the schema does not fit
Wanted = Callable[[str, pa.Schema], Sequence[str]]
UNPARTITIONED = ""  # the only partition of a source without partitions


@dataclass(frozen=True)
class UnreadMessages:
    """Messages that could not be decoded: their raw content and the reason for each."""

    tuples: pa.Table
    why: tuple[str, ...]

    def reasons(self) -> list[str]:
        """Return the reason for each message."""
        return list(self.why)

    @staticmethod
    def together(parts: Sequence[UnreadMessages]) -> UnreadMessages:
        """Return the messages of all parts (at least one) in order."""
        return UnreadMessages(
            pa.concat_tables(each.tuples for each in parts), tuple(why for each in parts for why in each.why)
        )


class MessageAmount(NamedTuple):
    """The number and the bytes of messages that a reader has read. Files are not counted."""

    bytes: int
    messages: int


NO_MESSAGES = MessageAmount(0, 0)


@dataclass(frozen=True)
class ReadRows:
    """Rows that a reader yields: those of a piece, or of a part of it."""

    rows: pa.Table
    arrived: float | None = None  # seconds; for latency only
    location: str | None = None  # the file or offsets of the rows, for error messages
    partition: str = UNPARTITIONED
    unread: UnreadMessages | None = None
    amount: MessageAmount = NO_MESSAGES


@dataclass(frozen=True)
class PhysicalWindow:
    """Rows of a source that a splitter reads at once."""

    source: str
    rows: pa.Table
    arrived: float | None = None  # seconds; for latency only
    location: str | None = None  # the file or messages of the rows, for error messages
    partition: str = UNPARTITIONED
    unread: UnreadMessages | None = None  # messages of the window that could not be decoded
    amount: MessageAmount = NO_MESSAGES
    is_checked: bool = False  # True: the reader has checked that texts are UTF-8

    @staticmethod
    def of(source: str, read: ReadRows) -> PhysicalWindow:
        """Return the rows that a reader has read from a source as a physical window."""
        return PhysicalWindow(source, **vars(read), is_checked=True)


class Piece(Protocol):
    """The unit that one task reads at once: a dataclass of plain values."""

    @property
    def size(self) -> int:
        """Return the approximate bytes of the piece."""


class TakenInput(Protocol):
    """An item that an epoch takes: a file, or a range of offsets of one partition."""

    @property
    def source(self) -> str:
        """Return the name of the source."""

    @property
    def bytes(self) -> int:
        """Return the approximate bytes of the item."""

    def sample_times(self, column: str) -> Sequence[tuple[int, int]]:
        """Return a sample of the times in a column: (microseconds, rows that each represents). It is empty if the times
        are known only after reading.
        """

    def pieces(self, most: int) -> Sequence[Piece]:
        """Return pieces of at most about `most` bytes, which together contain each row exactly once."""


class Reader(Protocol):
    """Reads pieces in the tasks, to which it is sent."""

    def piece(self, data: Mapping[str, Any]) -> Piece:
        """Return a piece from its fields."""

    def read(self, pieces: Sequence[Any], wanted: Wanted, *, keep: bool) -> Iterator[ReadRows]:
        """Yield the rows of pieces.

        keep: messages that cannot be read are returned as `ReadRows.unread`; otherwise the first one is an error.
        """


class Ledger(Protocol):
    """The record of what was taken from one source, and the choice of what the next epoch takes."""

    @property
    def unit(self) -> str:
        """Return the unit of the items: files or messages."""

    @property
    def must_be_noted(self) -> bool:
        """Return whether a manifest must record the start of the source before any tuple arrives."""

    @property
    def state(self) -> TakenState:
        """Return what was taken, as in the newest manifest."""

    @property
    def reader(self) -> Reader:
        """Return the reader of its pieces."""

    @property
    def partitions(self) -> Collection[str]:
        """Return the partitions known so far, each with a separate order of tuples. Empty: the source has no
        partitions.
        """

    @property
    def silent_since(self) -> float:
        """Return the monotonic time before which missing tuples do not count as silence."""

    def keep_to_list(self) -> None:
        """Restrict this run to what waits now, or to what was listed when this was first called for this state."""

    def waiting(self) -> Sequence[Item]:
        """Return what could be taken, in order. Raise `SourceAway` if the run ends before the source answers."""

    def choose(self, waiting: Sequence[Item], ahead: Collection[str] = ()) -> Sequence[Item]:
        """Return what one epoch takes from `waiting`, without the partitions that are `ahead`."""

    def remaining(self, waiting: Sequence[Item], chosen: Sequence[Item]) -> Mapping[str, int]:
        """Return for each partition how much of `waiting` was not chosen."""

    def inputs(self, source: str, chosen: Sequence[Item]) -> Sequence[TakenInput]:
        """Return the chosen items as the inputs of an epoch."""

    def state_after(self, storage: Storage, epoch: int, chosen: Sequence[Item]) -> TakenState:
        """Return what the manifest of `epoch` stores: everything taken so far, including `chosen`. The ledger itself
        does not change before `note_commit`.
        """

    def note_commit(self, state: TakenState, chosen: Sequence[Item], read: MessageAmount) -> None:
        """Note that an epoch is committed: `state` is its `state_after`, and its tasks read this amount of messages."""

    def hurry(self) -> None:
        """Stop waiting for servers, because the run must end."""


class DrivenOrigin(Protocol):
    """The origin of a source that headrace drives."""

    state_type: type[Any]  # type of its section in a manifest
    if_moved: str  # hint for a user whose data was moved; empty: there is none

    def ledger(self, state: TakenState, reader: BlockReader) -> Ledger:
        """Return the ledger of the source, which continues from `state`."""

    def is_at(self, place: str) -> bool:
        """Return whether the origin reads the data at `place`, although its own place may now have another name."""


def is_driven(origin: object) -> bool:
    """Return whether headrace drives a source of this origin; otherwise Spark does."""
    return hasattr(origin, "ledger")


def driven_sources(origins: Mapping[str, Any]) -> dict[str, DrivenOrigin]:
    """Return the origins, by source, that headrace drives."""
    return {name: origin for name, origin in origins.items() if is_driven(origin)}
