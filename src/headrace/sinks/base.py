"""The two kinds of sinks, and the methods that a user's own sink implements.

    Sink        deliver(delivery)     in the driver, after the commit: all results of an epoch as one table
    PartSink    write(part)           in the tasks, before the commit: some results of an epoch; a part may never count
                publish(publication)  in the driver, after the commit: the parts that count

`(query, epoch, result)` names a delivery or a publication. The driver may repeat one, after a crash for example. The same
name always comes with the same rows, or the same receipts. So a sink that drops a name that it has seen already has every
result exactly once.

A sink of either kind may have further methods. The driver calls each if the sink has it:

    begin(result, schema)           before a run begins: raise an error that names the column that the sink cannot store. The
                                    sink `late` gets this call for every kind of rows that it may get.
    resume(query, result, epoch)    after `begin`, if the checkpoint has a state whose newest epoch is `epoch`: raise an error
                                    if the sink holds later epochs, because the state was restored from a backup
    demand_columns(columns)         before a run begins, if the result has other columns than in the last run: raise an error
                                    if the sink holds results with the former columns
    discard(query, result)          part sinks only: the query never runs again, so remove parts that were written and not
                                    published. Tasks may call it too, and it may be called more than once.
    hurry()                         the run is to end: stop waiting for servers. It may be called from another thread.
    close()                         the run has ended
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
    """A sink for the results of whole epochs.

    ordered: results are held back until no earlier one can follow, and are delivered in the order of `ts`.
    """

    ordered: bool

    def deliver(self, delivery: Delivery) -> None: ...


@dataclass(frozen=True)
class Part:
    """Some results of one epoch, in the task that computed them. No other part ever has the same name."""

    query: str
    epoch: int
    result: str
    name: str  # stage, number and attempt of the task, and random characters
    table: pa.Table


@dataclass(frozen=True)
class Publication:
    """The parts of an epoch that count, as their receipts in the order of the tasks. It is empty if there were no results."""

    query: str
    epoch: int
    result: str
    receipts: tuple[Any, ...]


class PartSink(Protocol):
    """A sink that tasks write to. It is pickled and sent to every task.

    `write` returns a receipt, a small value of plain JSON that the state stores. A part has no receipt in any publication if
    its task failed, if another attempt of its task counts, or if its epoch was not committed. `publish` follows every commit,
    also that of an epoch without results, so it can delete parts that do not count.
    """

    def write(self, part: Part) -> Any: ...

    def publish(self, publication: Publication) -> None: ...


AnySink = Sink | PartSink


def takes_parts(sink: AnySink) -> TypeIs[PartSink]:
    """Return whether tasks write the parts of results, and the driver publishes them."""
    return not hasattr(sink, "deliver") and callable(getattr(sink, "write", None)) and hasattr(sink, "publish")


def wants_order(sink: AnySink) -> bool:
    """Return whether the sink needs ordered results. A part sink never does, because no task has all results."""
    return not takes_parts(sink) and sink.ordered


def is_sink(thing: Any) -> bool:
    """Return whether an object is a sink of either kind."""
    return (hasattr(thing, "deliver") and hasattr(thing, "ordered")) or takes_parts(thing)


def discard(sink: AnySink, query: str, result: str) -> None:
    """Call `discard` of a sink if it has that method."""
    if (method := getattr(sink, "discard", None)) is not None:
        method(query, result)


def notify(sinks: Iterable[AnySink], what: Literal["hurry", "close"]) -> None:
    """Call `hurry` or `close` of every sink that has this method."""
    for sink in sinks:
        method = getattr(sink, what, None)
        if method is not None:
            method()
