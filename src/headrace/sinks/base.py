"""The two kinds of sinks, and the methods that a user's own sink implements.

    Sink        deliver(delivery)     in the driver, after the commit: all results of an epoch as one table
    PartSink    write(part)           in the tasks, before the commit: some results of an epoch; a part may never count
                publish(publication)  in the driver, after the commit: the parts that count

`(query, epoch, result)` names a delivery or a publication. The newest one comes again at every start with the same
checkpoint. The same name always comes with the same rows, or the same receipts. So a sink that drops a name that it has
seen already has every result exactly once.

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
    """The results of one epoch, as a sink gets them.

    Attributes:
        query: the identity of the state that the run belongs to.
        epoch: the number of the epoch.
        result: "result-0", "result-1", ...; for late, rejected and failed tuples a name that says so.
        table: the results, a `pyarrow.Table`.

    Examples:
        >>> delivery = hr.sinks.Delivery(query="shop", epoch=3, result="result-0", table=pa.table({"x": [1, 2]}))
        >>> delivery.epoch, delivery.table.num_rows
        (3, 2)
    """

    query: str
    epoch: int
    result: str
    table: pa.Table


class Sink(Protocol):
    """A sink for the results of whole epochs. Any object with these members is one.

    Attributes:
        ordered: whether results are held back until no earlier one can follow, and are delivered in the order of `ts`.

    Examples:
        >>> class Counting:
        ...     ordered = False
        ...     rows = 0
        ...
        ...     def deliver(self, delivery):
        ...         self.rows += delivery.table.num_rows
        >>> hr.sinks.is_sink(Counting())
        True
    """

    ordered: bool

    def deliver(self, delivery: Delivery) -> None:
        """Take the results of an epoch, after it was committed. The newest delivery comes again at every start.

        Args:
            delivery: the results. `(query, epoch, result)` is their name: the same name always comes with the same
                rows.

        Examples:
            >>> class Counting:
            ...     ordered = False
            ...     seen = {}
            ...
            ...     def deliver(self, delivery):
            ...         self.seen[delivery.query, delivery.epoch, delivery.result] = delivery.table.num_rows
            >>> sink = Counting()
            >>> sink.deliver(hr.sinks.Delivery("shop", 3, "result-0", pa.table({"x": [1, 2]})))
            >>> sink.seen
            {('shop', 3, 'result-0'): 2}
        """


@dataclass(frozen=True)
class Part:
    """Some results of one epoch, in the task that computed them. No other part ever has the same name.

    Attributes:
        query: the identity of the state that the run belongs to.
        epoch: the number of the epoch.
        result: "result-0", "result-1", ...
        name: stage, number and attempt of the task, and random characters.
        table: the results, a `pyarrow.Table`.

    Examples:
        >>> part = hr.sinks.Part("shop", 3, "result-0", "1-0-0-ab", pa.table({"x": [1, 2]}))
        >>> part.name, part.table.num_rows
        ('1-0-0-ab', 2)
    """

    query: str
    epoch: int
    result: str
    name: str  # stage, number and attempt of the task, and random characters
    table: pa.Table


@dataclass(frozen=True)
class Publication:
    """The parts of an epoch that count, as their receipts in the order of the tasks. It is empty if there were no
    results.

    Attributes:
        query: the identity of the state that the run belongs to.
        epoch: the number of the epoch.
        result: "result-0", "result-1", ...
        receipts: what `write` returned for each part that counts.

    Examples:
        >>> hr.sinks.Publication("shop", 3, "result-0", receipts=("a.parquet", "b.parquet")).receipts
        ('a.parquet', 'b.parquet')
    """

    query: str
    epoch: int
    result: str
    receipts: tuple[Any, ...]


class PartSink(Protocol):
    """A sink that tasks write to. It is pickled and sent to every task. Any object with these methods is one.

    `write` returns a receipt, a small value of plain JSON that the state stores. A part has no receipt in any
    publication if its task failed, if another attempt of its task counts, or if its epoch was not committed. `publish`
    follows every commit, also that of an epoch without results, so it can delete parts that do not count. With an attribute `ordered` that is true, results
    come as for a `Sink`: the rows of a part are in order, and so are the receipts of a publication.

    Examples:
        >>> class Counting:
        ...     def write(self, part):
        ...         return part.table.num_rows
        ...
        ...     def publish(self, publication):
        ...         print(publication.epoch, sum(publication.receipts))
        >>> hr.sinks.takes_parts(Counting())
        True
    """

    def write(self, part: Part) -> Any:
        """Store some results of an epoch, in a task, before the commit. The part may never count.

        Args:
            part: the results.

        Returns:
            A receipt, a small value of plain JSON.

        Examples:
            >>> class Counting:
            ...     def write(self, part):
            ...         return part.table.num_rows
            >>> Counting().write(hr.sinks.Part("shop", 3, "result-0", "1-0-0-ab", pa.table({"x": [1, 2]})))
            2
        """

    def publish(self, publication: Publication) -> None:
        """Make the parts of an epoch visible, in the driver, after the commit. The newest publication comes again at
        every start.

        Args:
            publication: the receipts of the parts that count.

        Examples:
            >>> class Counting:
            ...     def publish(self, publication):
            ...         print(publication.epoch, sum(publication.receipts))
            >>> Counting().publish(hr.sinks.Publication("shop", 3, "result-0", (2, 5)))
            3 7
        """


AnySink = Sink | PartSink


def takes_parts(sink: AnySink) -> TypeIs[PartSink]:
    """Return whether tasks write the parts of results, and the driver publishes them.

    Args:
        sink: a sink of either kind.

    Returns:
        True for a `PartSink`.

    Examples:
        >>> hr.sinks.takes_parts(hr.sinks.memory()), hr.sinks.takes_parts(hr.sinks.parquet("out/", parts=True))
        (False, True)
    """
    return not hasattr(sink, "deliver") and callable(getattr(sink, "write", None)) and hasattr(sink, "publish")


def wants_order(sink: AnySink) -> bool:
    """Return whether the sink needs ordered results: its attribute `ordered`, which a part sink may leave out.

    The parts of ordered results are in order, and so are the rows of each part.

    Args:
        sink: a sink of either kind.

    Returns:
        True if it does.

    Examples:
        >>> hr.sinks.wants_order(hr.sinks.memory(ordered=True))
        True
    """
    return bool(getattr(sink, "ordered", False))


def is_sink(thing: object) -> bool:
    """Return whether an object is a sink of either kind.

    Args:
        thing: any object.

    Returns:
        True if it has the members of a `Sink` or of a `PartSink`.

    Examples:
        >>> hr.sinks.is_sink(hr.sinks.memory()), hr.sinks.is_sink(print)
        (True, False)
    """
    return (hasattr(thing, "deliver") and hasattr(thing, "ordered")) or takes_parts(thing)  # type: ignore[arg-type]


def discard(sink: AnySink, query: str, result: str) -> None:
    """Call the method `discard` of a sink, if it has one: the query never runs again, so parts without a publication
    can go.

    Args:
        sink: a sink of either kind.
        query: the identity of the state that the run belonged to.
        result: "result-0", "result-1", ...

    Examples:
        >>> hr.sinks.discard(hr.sinks.memory(), "shop", "result-0")
    """
    if (method := getattr(sink, "discard", None)) is not None:
        method(query, result)


def notify(sinks: Iterable[AnySink], what: Literal["hurry", "close"]) -> None:
    """Call a method of every sink that has it.

    Args:
        sinks: the sinks.
        what: "hurry": the run is to end. "close": the run has ended.

    Examples:
        >>> hr.sinks.notify([hr.sinks.memory()], "close")
    """
    for sink in sinks:
        method = getattr(sink, what, None)
        if method is not None:
            method()
