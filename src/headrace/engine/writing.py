"""Blocks as tasks write them: grouped state, and plain rows.

Invariant: a grouped block is sorted by group, and within it by position, or for a join with an equality by the hash of
the key; rows of group g are offsets[g] .. offsets[g + 1] - 1. The tuples of a join have the hash that gave them their
group beside them: it is taken once, before columns are dropped. The position is what an operator's state expires by: event
time, the start of a pane, or a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace import arrow
from headrace.engine.messages import Attempt
from headrace.errors import CorruptState, EngineError
from headrace.operators.base import Appended, Operator, Replaced
from headrace.routing import EVERYWHERE
from headrace.routing.hashing import hashes
from headrace.state.blocks import REPAIR, Block, BlockReader, Offsets, OpenBlock, block_name, write_block
from headrace.state.storage import Storage

if TYPE_CHECKING:
    from headrace.engine.epoch import Epoch

REACH = b"headrace.reach"
Grouped = Appended | Replaced  # operators whose state lies in groups


@dataclass
class Task:
    """Who is running: stage, partition (in a later stage: the slot) and attempt; and its way to the state folder."""

    stage: int
    partition: int
    attempt: int
    storage: Storage
    reader: BlockReader

    @property
    def itself(self) -> Attempt:
        return Attempt(self.stage, self.partition, self.attempt)


def opened(task: Task, operator: Operator, side: int, block: Block) -> OpenBlock:
    """A block of an operator's state; refuses one that is whole, but holds something else than this operator keeps."""
    found = task.reader.open(block)
    wanted = operator.stored(side)
    if not wanted <= set(found.table.column_names):
        missing = ", ".join(sorted(wanted - set(found.table.column_names)))
        raise CorruptState(f"block {block.name} is no state of {operator.name}: it has no {missing}. {REPAIR}")
    return found


def reach(table: pa.Table) -> int:
    """How many groups after its own a tuple of a block can find what it meets in: a slot looks as far before its own."""
    return int((table.schema.metadata or {}).get(REACH, 0))


def write_rows(epoch: Epoch, task: Task, table: pa.Table) -> Block:
    """Rows in the order they have: results, late tuples, tuples that wait."""
    name = block_name(epoch.number, task.stage, task.partition, task.attempt)
    return write_block(task.storage, name, table, None, None, None)


@dataclass(frozen=True)
class Written:
    """A block of state; where its groups lie, and how far its tuples reach over others."""

    block: Block
    offsets: Offsets
    reach: int


def write_grouped(epoch: Epoch, task: Task, operator: Grouped, side: int, table: pa.Table) -> Written:
    """State of one input of an operator; tuples whose group is nowhere are left out."""
    grouping = operator.groupings[side]
    groups = grouping.groups(table, epoch.groups)
    if len(groups) and groups.min() < 0:
        if (groups == EVERYWHERE).any():
            raise EngineError(f"{operator.name}: state has no group that every slot reads")
        table, groups = table.filter(pa.array(groups >= 0)), groups[groups >= 0]
    positions = np.asarray(table.column(operator.position).cast(pa.int64()))
    far = grouping.reach(table, groups)
    order = np.argsort(hashes(table), kind="stable") if operator.sorted_by_hash else np.lexsort((positions, groups))
    if far:
        table = table.replace_schema_metadata({REACH: str(far)})
    offsets = np.searchsorted(groups[order], np.arange(epoch.groups + 1)).astype(np.int64)
    low, high = (int(positions.min()), int(positions.max())) if len(positions) else (None, None)
    name = block_name(epoch.number, task.stage, task.partition, task.attempt)
    return Written(write_block(task.storage, name, arrow.take(table, order), offsets, low, high), offsets, far)


def write_merged(epoch: Epoch, task: Task, operator: Appended, side: int, blocks: Sequence[Block]) -> Block:
    """One block with the rows of several."""
    table = pa.concat_tables([opened(task, operator, side, block).table for block in blocks])
    return write_grouped(epoch, task, operator, side, operator.merged(table)).block
