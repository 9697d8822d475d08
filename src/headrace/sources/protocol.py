"""The interface of sources that headrace drives itself, from their origin to the rows that a task reads.

    DrivenOrigin    the source as the user named it; it makes the ledger
    Ledger          in the driver: what waits, what an epoch takes of it, and what was taken, which the manifest holds
    Item            what a ledger lists and chooses from: a file (`TakenFile`), a range of offsets (`OffsetRange`)
    TakenInput      an item that an epoch takes, with its source (`FileToRead`, `TakenOffsets`); `Ledger.inputs` makes it
    Piece           what one task reads at once (`FilePiece`, `OffsetPiece`); `TakenInput.pieces` makes it
    Reader          in the tasks: reads the rows of pieces
    ReadRows        the rows that a reader yields, with facts about them
    PhysicalWindow  the same with their source: what `run_splitter` processes at once

Invariant: what was taken is stored in the manifest of the epoch that took it and nowhere else, so position and state cannot
disagree. The rows of a piece depend on the piece alone, so a second attempt of a task reads the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from headrace.state.blocks import BlockReader
from headrace.state.manifest import TakenState
from headrace.state.storage import Storage

Item: TypeAlias = Any  # only the ledger knows its type
Wanted = Callable[[str, pa.Schema], Sequence[str]]  # (location, schema of rows there) -> the columns to read; it checks
UNPARTITIONED = ""  # the one partition of a source that has none


@dataclass(frozen=True)
class UnreadMessages:
    """Messages that could not be read as tuples: as they came, and the reason for each."""

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
    location: str | None = None  # the file or offsets that the rows come from, for errors
    partition: str = UNPARTITIONED
    unread: UnreadMessages | None = None
    amount: MessageAmount = NO_MESSAGES


@dataclass(frozen=True)
class PhysicalWindow:
    """Rows of a source that a splitter reads at once."""

    source: str
    rows: pa.Table
    arrived: float | None = None  # seconds; for latency only
    location: str | None = None  # the file or messages that the rows come from, for errors
    partition: str = UNPARTITIONED
    unread: UnreadMessages | None = None  # messages of the window that could not be read
    amount: MessageAmount = NO_MESSAGES
    is_checked: bool = False  # the reader has checked that texts are UTF-8

    @staticmethod
    def of(source: str, read: ReadRows) -> PhysicalWindow:
        """Return what a reader has read of a source as a physical window."""
        return PhysicalWindow(source, **vars(read), is_checked=True)


class Piece(Protocol):
    """What one task reads at once: a dataclass of plain values."""

    @property
    def size(self) -> int:
        """About how many bytes the piece has."""


class TakenInput(Protocol):
    """An item that an epoch takes: a file, or a range of offsets of one partition."""

    @property
    def source(self) -> str:
        """The name of the source."""

    @property
    def bytes(self) -> int:
        """About how many bytes the item has."""

    def pieces(self, most: int) -> Sequence[Piece]:
        """Return pieces of about `most` bytes at most, which together have each row exactly once."""


class Reader(Protocol):
    """Reads pieces in the tasks, to which it is sent."""

    def piece(self, data: Mapping[str, Any]) -> Piece:
        """Return a piece from its fields."""

    def read(self, pieces: Sequence[Any], wanted: Wanted, *, keep: bool) -> Iterator[ReadRows]:
        """Yield the rows of pieces.

        keep: messages that cannot be read are returned as `ReadRows.unread`; otherwise the first one is an error.
        """


class Ledger(Protocol):
    """What was taken of one source, and the choice of what the next epoch takes."""

    @property
    def counts(self) -> str:
        """What the items are counted in: files or messages."""

    @property
    def must_be_noted(self) -> bool:
        """Whether a manifest must hold the beginning of the source before any tuple arrives."""

    @property
    def state(self) -> TakenState:
        """What was taken, as the newest manifest has it."""

    @property
    def reader(self) -> Reader:
        """The reader of its pieces."""

    @property
    def partitions(self) -> Collection[str]:
        """The partitions known so far, each with an order of its own; empty: the source has no partitions."""

    @property
    def silent_since(self) -> float:
        """The earliest time, by this machine's monotonic clock, from which a missing tuple counts as silence."""

    def keep_to_list(self) -> None:
        """From now on take only what waits now, or what was listed when this was first called for this state."""

    def waiting(self) -> Sequence[Item]:
        """Return what could be taken, in order. Raises `SourceAway` if the run ends before the source answers."""

    def choose(self, waiting: Sequence[Item], ahead: Collection[str] = ()) -> Sequence[Item]:
        """Return what one epoch takes of `waiting`, without the partitions that are `ahead`."""

    def remaining(self, waiting: Sequence[Item], chosen: Sequence[Item]) -> Mapping[str, int]:
        """Return for each partition how much waits that was not chosen."""

    def inputs(self, source: str, chosen: Sequence[Item]) -> Sequence[TakenInput]:
        """Return the chosen items as the inputs of an epoch."""

    def record(self, storage: Storage, epoch: int, chosen: Sequence[Item]) -> TakenState:
        """Return what the manifest of `epoch` stores: everything taken so far, `chosen` included."""

    def accept(self, state: TakenState, chosen: Sequence[Item], read: MessageAmount) -> None:
        """Note that the epoch is committed, in which tasks have read this amount of messages."""

    def hurry(self) -> None:
        """Stop waiting for servers, because the run is to end."""


class DrivenOrigin(Protocol):
    """The origin of a source that headrace drives."""

    state_type: type[Any]  # of what a manifest stores of it
    if_moved: str  # what the user can do if its data was moved; empty: nothing

    def ledger(self, state: TakenState, reader: BlockReader) -> Ledger:
        """Return the ledger of the source, which continues from `state`."""

    def is_at(self, place: str) -> bool:
        """Return whether it reads what is at `place`, though its own place may have another name now."""


def is_driven(origin: object) -> bool:
    """Return whether headrace drives a source of this origin; otherwise Spark does."""
    return hasattr(origin, "ledger")


def driven_sources(origins: Mapping[str, Any]) -> dict[str, DrivenOrigin]:
    """Return those of some origins, by source, that headrace drives."""
    return {name: origin for name, origin in origins.items() if is_driven(origin)}
