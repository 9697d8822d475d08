"""What a sink is: of one of two kinds. Both are told which query, epoch and result it is, and both may be told twice.

    Sink        deliver(delivery)     in the driver, after the commit: all results of an epoch as one table
    PartSink    write(part)           in the tasks, before it: some of the results; may never count, however it ended
                publish(publication)  in the driver, after it: which parts count

`(query, epoch, result)` names a delivery and a publication: the same name always comes with the same rows, or the same
receipts. A sink that drops what it has already seen has every result exactly once.

A sink of either kind may have these methods too, which are called in the driver:

    begin(result, schema)   before anything is run: what it could not store is refused here, by the column's name; given as
                            `late`, for everything that may be put aside
    resume(query, result, epoch)
                            after it, where a checkpoint goes on: the newest epoch of its state; who has later ones refuses
                            it here: it was put back to an earlier time
    discard(query, result)  a part sink only: the query will never be started again, so remove the parts that were written and
                            not published; also called in tasks, and more than once
    hurry()                 the run is to end: wait for nobody any more; may come from another thread
    close()                 the run has ended
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import TypeIs


@dataclass(frozen=True)
class Delivery:
    """The results of one epoch."""

    query: str
    epoch: int
    result: str
    table: pa.Table


class Sink(Protocol):
    """Takes the results of whole epochs. `ordered`: held back until complete and delivered by `ts`."""

    ordered: bool

    def deliver(self, delivery: Delivery) -> None: ...


@dataclass(frozen=True)
class Part:
    """Some results of one epoch, in the task that made them. No other part ever has its name."""

    query: str
    epoch: int
    result: str
    name: str  # stage, partition and attempt of the task, and something random
    table: pa.Table


@dataclass(frozen=True)
class Publication:
    """The parts of an epoch that count, as their receipts, in the order of the tasks; none: there were no results."""

    query: str
    epoch: int
    result: str
    receipts: tuple[Any, ...]


class PartSink(Protocol):
    """Takes results where they are made; it is pickled and sent to every task.

    What `write` returns, the receipt, is small and plain JSON: it is kept in the state. A part whose task failed, or was
    tried twice, or whose epoch was never committed, has no receipt in any publication. `publish` comes after every
    commit, also of an epoch without results: what older epochs, and this one, left behind can be swept then.
    """

    def write(self, part: Part) -> Any: ...

    def publish(self, publication: Publication) -> None: ...


AnySink = Sink | PartSink


def takes_parts(sink: AnySink) -> TypeIs[PartSink]:
    """Return whether tasks write the parts of results, and the driver publishes them."""
    return not hasattr(sink, "deliver") and callable(getattr(sink, "write", None)) and hasattr(sink, "publish")


def wants_order(sink: AnySink) -> bool:
    """Parts have none: each task writes what it has, and nobody sees all."""
    return not takes_parts(sink) and sink.ordered


def is_sink(thing: object) -> bool:
    """Return whether something is a sink of either kind."""
    return (hasattr(thing, "deliver") and hasattr(thing, "ordered")) or takes_parts(thing)  # type: ignore[arg-type]


def discard(sink: AnySink, query: str, result: str) -> None:
    """Remove what was written for a query that will never be started again, if the sink knows how."""
    if (method := getattr(sink, "discard", None)) is not None:
        method(query, result)


def notify(sinks: Iterable[AnySink], what: Literal["hurry", "close"]) -> None:
    """Those that want to know."""
    for sink in sinks:
        method = getattr(sink, what, None)
        if method is not None:
            method()
