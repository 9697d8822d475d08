"""Sources that headrace drives itself: what a run asks of them, whatever they are made of.

    origin   what the user named; gives a ledger
    ledger   in the driver: what waits, what an epoch takes of it, and what was taken, which stands in the manifest
    cut      what an epoch takes, in pieces that can be read by themselves
    reader   in the tasks: the rows of pieces

Invariant: what was taken stands in the manifest of the epoch that took it and nowhere else, so position and state cannot
disagree; and the rows of a piece depend on the piece alone, so a task that is tried again reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.state.blocks import BlockReader
from headrace.state.manifest import TakenState
from headrace.state.storage import Storage

Item = Any  # what a ledger chooses from, only it knows: files, ranges of offsets
Wanted = Callable[
    [str, pa.Schema], Sequence[str]
]  # of rows from somewhere that have this schema, which it checks: the columns to read


@dataclass(frozen=True)
class UnreadMessages:
    """Messages that are no tuples: as they came, and why."""

    tuples: pa.Table
    why: tuple[str, ...]

    def reasons(self) -> list[str]:
        return list(self.why)

    @staticmethod
    def together(parts: Sequence[UnreadMessages]) -> UnreadMessages:
        return UnreadMessages(
            pa.concat_tables(each.tuples for each in parts), tuple(why for each in parts for why in each.why)
        )


class MessageAmount(NamedTuple):
    """Of messages that were read; files are not counted."""

    bytes: int
    messages: int


NO_MESSAGES = MessageAmount(0, 0)


@dataclass(frozen=True)
class ReadRows:
    """The rows of a piece, or of some of it."""

    rows: pa.Table
    arrived: float | None = None  # seconds, for latency only
    where: str | None = None  # to name it in errors
    partition: str = ""
    unread: UnreadMessages | None = None
    amount: MessageAmount = NO_MESSAGES


class Piece(Protocol):
    """What one task reads at once: a dataclass of plain values."""

    @property
    def size(self) -> int:
        """Bytes, about."""


class TakenInput(Protocol):
    """Something that was taken of a source."""

    @property
    def source(self) -> str: ...

    @property
    def bytes(self) -> int: ...

    def cut(self, most: int) -> Sequence[Piece]:
        """In pieces of about so many bytes, which have each row exactly once."""


class Reader(Protocol):
    """Sent to tasks."""

    def piece(self, data: Mapping[str, Any]) -> Piece:
        """One, from its fields."""

    def read(self, pieces: Sequence[Any], wanted: Wanted, *, keep: bool) -> Iterator[ReadRows]:
        """The rows of pieces; with `keep`, messages that cannot be read are handed on instead of ending it."""


class Ledger(Protocol):
    """What was taken of one source."""

    @property
    def counts(self) -> str:
        """What waits is called: files, messages."""

    @property
    def must_be_noted(self) -> bool:
        """Whether where it begins must stand in a manifest before anything comes."""

    @property
    def state(self) -> TakenState: ...

    @property
    def reader(self) -> Reader: ...

    @property
    def partitions(self) -> Collection[str]:
        """Those that are known by now, each in an order of its own; none: the source is one."""

    @property
    def silent_since(self) -> float:
        """Nobody could speak before that, by this machine's monotonic clock: silence is counted from there at the earliest."""

    def keep_to_list(self) -> None:
        """From now on nothing is taken but what waits now, or what was listed when this was first asked for."""

    def waiting(self) -> Sequence[Item]:
        """What could be taken, in order. `SourceAway`: the run is to end, and nobody knows."""

    def choose(self, waiting: Sequence[Item], ahead: Collection[str] = ()) -> Sequence[Item]:
        """What one epoch takes of it; nothing of the partitions that are ahead."""

    def left(self, waiting: Sequence[Item], chosen: Sequence[Item]) -> Mapping[str, int]:
        """How much waits that was not chosen, by partition."""

    def cuts(self, source: str, chosen: Sequence[Item]) -> Sequence[TakenInput]: ...

    def record(self, storage: Storage, epoch: int, chosen: Sequence[Item]) -> TakenState:
        """What a manifest says of all that was taken, this included."""

    def accept(self, state: TakenState, chosen: Sequence[Item], read: MessageAmount) -> None:
        """The epoch is committed, with so much of messages."""

    def hurry(self) -> None:
        """The run is to end: wait for nobody."""


class DrivenOrigin(Protocol):
    """The origin of such a source."""

    taken: type[Any]  # what a manifest says of it
    if_moved: str  # what to do then; none: nothing helps

    def ledger(self, state: TakenState, reader: BlockReader) -> Ledger: ...

    def is_at(self, place: str) -> bool:
        """Whether it reads what is there, though it is called otherwise now."""


def is_driven(origin: object) -> bool:
    return hasattr(origin, "ledger")


def driven_sources(origins: Mapping[str, Any]) -> dict[str, DrivenOrigin]:
    """Of sources by name, those that headrace drives."""
    return {name: origin for name, origin in origins.items() if is_driven(origin)}
