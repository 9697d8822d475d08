"""Delivery: the outbox of a committed manifest to the sinks, again after a crash.

Invariant: nothing more is committed before the newest outbox has been delivered, so at most the newest can come twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace import plan as p
from headrace.errors import CorruptState, SinkError
from headrace.sinks import Delivery, Sink
from headrace.state.blocks import REPAIR, BlockReader
from headrace.state.manifest import Manifest, Output
from headrace.state.store import StateStore


@dataclass(frozen=True)
class Deliverer:
    plan: p.PhysicalPlan
    store: StateStore
    sinks: Mapping[str, Sink]  # by result; late tuples of a source: "late:<source>"

    def deliver(self, manifest: Manifest) -> dict[str, float]:
        """Seconds that each sink took."""
        took = {}
        reader = BlockReader(self.store.storage)
        for result, sink in self.sinks.items():
            parts = [output for output in manifest.outbox if output.result == result]
            if parts:
                table = self._readable(reader, result, parts)
                begun = time.monotonic()
                self._hand_over(sink, Delivery(self.store.state_id, manifest.number, result, table))
                took[result] = time.monotonic() - begun
        return took

    def _readable(self, reader: BlockReader, result: str, parts: Sequence[Output]) -> pa.Table:
        try:
            return self._table(reader, result, parts)
        except BaseException:
            self.store.revoke()  # as below
            raise

    def _table(self, reader: BlockReader, result: str, parts: Sequence[Output]) -> pa.Table:
        """All of a result; refuses blocks that are whole, but hold something else."""
        tables = [reader.open(part.block).table for part in parts]
        schemas = [edge.schema for edge in self.plan.edges if edge.target == result] or [tables[0].schema]
        for part, table in zip(parts, tables, strict=True):
            if table.column_names != schemas[0].names:
                msg = f"block {part.block.name} is no part of {result}: it has {table.column_names}. {REPAIR}"
                raise CorruptState(msg)
        return pa.concat_tables(tables)

    def _hand_over(self, sink: Sink, delivery: Delivery) -> None:
        try:
            sink.deliver(delivery)
        except BaseException as error:
            self.store.revoke()  # nothing more may be committed before these results are delivered
            if not isinstance(error, Exception):
                raise
            msg = (
                f"the sink of {delivery.result} failed in epoch {delivery.epoch}: {type(error).__name__}: {error}; the"
                " state is committed; start again and the same results are delivered again"
            )
            raise SinkError(msg) from error
