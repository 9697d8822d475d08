"""Delivery of the outbox of a committed manifest to the sinks.

Every start on a checkpoint delivers the newest outbox again: after a kill the sinks may lack it, and a sink drops a
delivery that it has. A part sink already has the rows. It gets the receipts of the parts that count.

Invariant: nothing more is committed before the newest outbox is delivered, so only the newest outbox can be delivered
twice.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from headrace import plan as p
from headrace.errors import CorruptState, QueryError, SinkError, StateMismatch
from headrace.sinks import AnySink, Delivery, Part, PartSink, Publication, notify, takes_parts
from headrace.state.blocks import REPAIR, Block, BlockReader
from headrace.state.manifest import Manifest, Receipt
from headrace.state.store import StateStore
from headrace.support.user_code import comes_from_signal
from headrace.task.outbox_writer import check_receipt

Name = tuple[str, int, str]  # id of the state, epoch, result: the `query`, `epoch` and `result` of a delivery
OTHER_SINK = "late= needs a sink that accepts tables with different columns, such as headrace.sinks.parquet(...)"


@dataclass(frozen=True)
class Deliverer:
    """Delivers the outbox of each committed manifest to the sinks of a run."""

    plan: p.PhysicalPlan
    store: StateStore
    sinks: Mapping[str, AnySink]  # by result; late tuples of a source: "late:<source>"
    labels: Mapping[str, str] = field(default_factory=dict)  # names of results for errors

    @cached_property
    def in_tasks(self) -> dict[str, PartSink]:
        """Return copies of the sinks that tasks write to. Connections that a sink opens to publish stay in the driver."""
        return {result: copy.copy(sink) for result, sink in self.sinks.items() if takes_parts(sink)}

    def begin(self, aside: Mapping[str, tuple[str, pa.Schema]] | None = None) -> None:
        """Let every sink check the results that it will get.

        aside: by result, a description and the schema of what the sink `late` may get (`rejected_results`).
        """
        for edge in self.plan.edges:
            if (begin := getattr(self.sinks.get(edge.target), "begin", None)) is not None:
                begin(edge.target, edge.schema)
        for name, (words, schema) in (aside or {}).items():
            if (begin := getattr(self.sinks.get(name), "begin", None)) is not None:
                try:
                    begin(name, schema)
                except QueryError as error:
                    msg = f"late= cannot hold {words}: {error}; {OTHER_SINK}"
                    raise type(error)(msg) from None

    def resume(self, outbox_names: Mapping[str, str | None]) -> None:
        """Let every sink compare the epochs that it holds with the state, which may have been restored from a backup.

        outbox_names: as for `deliver`.
        """
        last = self.store.last
        if last is None:
            return
        for result, sink in self.sinks.items():
            if (resume := getattr(sink, "resume", None)) is not None:
                for name in sorted({result, outbox_names.get(result) or result}):
                    resume(self.store.state_id, name, last.number)

    def hurry(self) -> None:
        """Stop waiting for servers, because the run is to end."""
        notify(self.sinks.values(), "hurry")

    def close(self) -> None:
        """Close all sinks, because the run has ended."""
        notify(self.sinks.values(), "close")

    def deliver(self, manifest: Manifest, outbox_names: Mapping[str, str | None] | None = None) -> dict[str, float]:
        """Deliver the outbox of a manifest, and return the seconds that each sink took.

        outbox_names: by result, its name in the outbox if the run that filled the outbox used another name; None: the
        outbox has no rows for it. The sink gets that name, because it may already hold the rows under it.
        """
        took = {}
        reader = BlockReader(self.store.storage)
        for result, sink in self.sinks.items():
            called = (outbox_names or {}).get(result, result)
            if called is None:
                continue
            entries = [output.content for output in manifest.outbox if output.result == called]
            name = (self.store.state_id, manifest.number, called)
            begun = time.monotonic()
            if takes_parts(sink):
                self._publish(reader, sink, result, name, entries)
            elif _in_parts(entries) and self.store.all_delivered:  # the previous sink has published them
                continue
            elif entries:
                table = pa.concat_tables(
                    self._tables(reader, result, entries)
                )  # with the present columns of the result
                with self._careful(name):
                    sink.deliver(Delivery(*name, table))
            if entries:
                took[result] = time.monotonic() - begun
        self.store.delivered = manifest.number
        return took

    def _publish(
        self, reader: BlockReader, sink: PartSink, result: str, name: Name, entries: Sequence[Block | Receipt]
    ) -> None:
        """Publish the parts that count. Rows in blocks are written as parts first, because an earlier run had another
        sink."""
        receipts = []
        for each in entries:
            if isinstance(each, Receipt):
                receipts.append(each.value)
                continue
            (table,) = self._tables(reader, result, [each])
            with self._careful(name):
                again = Path(each.name).stem.partition("-")[2]  # the same name in every attempt: it is the same part
                receipts.append(check_receipt(sink.write(Part(*name, again, table))))
        with self._careful(name):
            sink.publish(Publication(*name, tuple(receipts)))

    def _tables(self, reader: BlockReader, result: str, entries: Sequence[Block | Receipt]) -> list[pa.Table]:
        try:
            return self._read(reader, result, entries)
        except BaseException:
            self.store.revoke()  # nothing more may be committed before these results are delivered
            raise

    def _read(self, reader: BlockReader, result: str, entries: Sequence[Block | Receipt]) -> list[pa.Table]:
        """Return the tables of all blocks of a result; raise for an intact block with other columns."""
        blocks = [each for each in entries if isinstance(each, Block)]
        if _in_parts(entries):
            msg = (
                f"the newest {result} was written in parts, by the sink that this checkpoint used before; only such"
                " a sink can publish them, and they may not be published yet, since the previous run did not end normally: start with"
                " it again and stop, then with this one, or use a new checkpoint"
            )
            raise StateMismatch(msg)
        tables = [reader.open(block).table for block in blocks]
        schemas = [edge.schema for edge in self.plan.edges if edge.target == result] or [tables[0].schema]
        for block, table in zip(blocks, tables, strict=True):
            if table.column_names != schemas[0].names:
                msg = f"block {block.name} does not belong to {result}: its columns are {table.column_names}. {REPAIR}"
                raise CorruptState(msg)
        return tables

    @contextmanager
    def _careful(self, name: Name) -> Iterator[None]:
        """Name the sink in any error that is raised in this block."""
        try:
            yield
        except BaseException as error:
            self.store.revoke()  # as in `_tables`
            if comes_from_signal(error):
                raise
            msg = (
                f"the sink of {self.labels.get(name[2], name[2])} failed in epoch {name[1]}: {type(error).__name__}: {error}; the"
                " state is committed; start again and the same results are delivered again"
            )
            raise SinkError(msg) from error


def _in_parts(entries: Sequence[Block | Receipt]) -> bool:
    """Return whether a part sink already has some of the rows."""
    return any(isinstance(each, Receipt) for each in entries)
