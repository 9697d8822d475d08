"""Writing of the outbox: rows that leave the plan, as blocks, or as parts with receipts for sinks that take parts.

Invariant: a part counts only if a manifest names its receipt. So an attempt whose report is not used leaves parts that no
publication names.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import pyarrow as pa

from headrace.errors import SinkError, StateError
from headrace.sinks import Part, PartSink, discard
from headrace.state.blocks import Block
from headrace.state.manifest import Receipt
from headrace.support import user_code
from headrace.task.block_writer import write_rows
from headrace.task.epoch import Epoch
from headrace.task.task import Task

LONGEST_RECEIPT = 10_000  # characters


def write_output(epoch: Epoch, task: Task, result: str, table: pa.Table) -> Block | Receipt:
    """Write rows that leave the plan: at once to a part sink, otherwise to a block until the commit."""
    sink = epoch.sinks.get(result)
    return write_rows(epoch, task, table) if sink is None else write_part(epoch, task, sink, result, table)


def write_part(epoch: Epoch, task: Task, sink: PartSink, result: str, table: pa.Table) -> Receipt:
    """Write rows to a part sink, and return its receipt for the outbox.

    If the state of a `collect` is gone by then, the `collect` has failed and has discarded its parts, so this part is
    discarded here. A run that can be started again keeps its parts: other tasks may have receipts for theirs.
    """
    name = f"s{task.stage}-p{task.number}-a{task.attempt}-{uuid.uuid4().hex[:16]}"

    def write() -> Any:
        receipt = check_receipt(sink.write(Part(epoch.state_id, epoch.number, result, name, table)))
        if epoch.bounded:
            try:
                task.storage.require()
            except StateError:
                discard(sink, epoch.state_id, result)
                raise
        return receipt

    def failed(error: BaseException) -> SinkError:
        return SinkError(
            f"the sink {sink!r} of {result} failed to write a part in epoch {epoch.number}:"
            f" {type(error).__name__}: {error}; nothing of the epoch was committed; repair the sink, then start again"
        )

    return Receipt(table.num_rows, user_code.call_user_code(f"write of the sink of {result}", write, failed=failed))


def check_receipt(receipt: Any) -> Any:
    """Return a receipt as the state will return it; raise if it is not JSON or is too long."""
    text = json.dumps(receipt, allow_nan=False)
    if len(text) > LONGEST_RECEIPT:
        msg = (
            f"a receipt has {len(text)} characters, more than {LONGEST_RECEIPT}; name what was written, not its content"
        )
        raise ValueError(msg)
    return json.loads(text)
