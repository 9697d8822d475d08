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
from headrace.compile import plan as p
from headrace.errors import CorruptState
from headrace.kernels.aggregate import NUMBER, PANE, merge_partials, partials_of
from headrace.kernels.equijoin import HASH, hashes
from headrace.routing.hashing import Groups, groups_of, hash_rows, scale
from headrace.routing.ranges import range_of
from headrace.state.blocks import REPAIR, Block, BlockReader, Offsets, OpenBlock, block_name, write_block
from headrace.state.storage import Storage

if TYPE_CHECKING:
    from headrace.engine.epoch import Epoch

REACH = b"headrace.reach"


@dataclass
class Task:
    """Who is running: stage, partition (in a later stage: the slot) and attempt; and its way to the state folder."""

    stage: int
    partition: int
    attempt: int
    storage: Storage
    reader: BlockReader


def by_reference(operator: p.Operator) -> bool:
    """Whether the tuples sent to an operator become its state as they are."""
    return not isinstance(operator, p.RankOperator | p.OrderOperator | p.CountAggregateOperator | p.StatelessOperator)


def position(operator: p.Operator) -> str:
    """The column by which an operator's state is ordered and expires."""
    if isinstance(operator, p.PaneAggregateOperator):
        return PANE
    return "__rank" if isinstance(operator, p.CountJoinOperator) else "ts"


def group_numbers(epoch: Epoch, operator: p.Operator, side: int, table: pa.Table) -> Groups:
    if HASH in table.column_names:
        return scale(hashes(table), epoch.groups)
    grouping = operator.groupings[side]
    if grouping.bounds is not None:
        return range_of(table, grouping.columns[0], grouping.bounds, -grouping.width)
    return groups_of(table, grouping.columns, epoch.groups, grouping.types)


def opened(task: Task, operator: p.Operator, side: int, block: Block) -> OpenBlock:
    """A block of an operator's state; refuses one that is whole, but holds something else than this operator keeps."""
    found = task.reader.open(block)
    wanted = _columns(operator, side)
    if not wanted <= set(found.table.column_names):
        missing = ", ".join(sorted(wanted - set(found.table.column_names)))
        raise CorruptState(f"block {block.name} is no state of {operator.name}: it has no {missing}. {REPAIR}")
    return found


def _columns(operator: p.Operator, side: int) -> set[str]:
    """Columns that every block of an input has."""
    if isinstance(operator, p.PaneAggregateOperator):
        return {PANE, "ts", *operator.by, *(name for partial in operator.partials for name, _, _ in partial.columns)}
    names = set(operator.schemas[side].names)
    if isinstance(operator, p.JoinOperator) and operator.groupings[side].bounds is None:
        return names | {HASH}
    return names | {NUMBER} if isinstance(operator, p.CountAggregateOperator) else names


def reach(table: pa.Table) -> int:
    """Of a block that is grouped by ranges: how many groups after its own an interval in it extends to."""
    return int((table.schema.metadata or {}).get(REACH, 0))


def _with_reach(table: pa.Table, grouping: p.Grouping, groups: Groups) -> pa.Table:
    """A block of intervals says how far they reach, so that a slot knows where to look for those that meet its points."""
    if grouping.bounds is None or len(grouping.columns) == 1:
        return table
    ends = range_of(table, grouping.columns[1], grouping.bounds, grouping.width)
    furthest = max(int((ends - groups).max()), 0) if len(groups) else 0
    return table.replace_schema_metadata({REACH: str(furthest)})


def write_rows(epoch: Epoch, task: Task, table: pa.Table) -> Block:
    """Rows in the order they have: results, late tuples, tuples that wait."""
    name = block_name(epoch.number, task.stage, task.partition, task.attempt)
    return write_block(task.storage, name, table, None, None, None)


def state_of(operator: p.Operator, edge: p.Edge, table: pa.Table) -> pa.Table:
    """What the tuples of an edge are as state: partials, or the columns that it carries."""
    grouping, names = operator.groupings[edge.input], edge.schema.names
    if isinstance(operator, p.PaneAggregateOperator):
        return partials_of(operator, table.select(names))
    if not isinstance(operator, p.JoinOperator):
        return table.select(names)
    if grouping.drop_null:
        table = _without_null(table, grouping.columns)
    if grouping.bounds is not None:
        return table.select(names)
    hashed = hash_rows(table, grouping.columns, grouping.types)  # before columns are dropped: it may be of all of them
    return table.select(names).append_column(HASH, pa.array(hashed))


def write_grouped(epoch: Epoch, task: Task, operator: p.Operator, side: int, table: pa.Table) -> tuple[Block, Offsets]:
    """State of one input of an operator."""
    positions = np.asarray(table.column(position(operator)).cast(pa.int64()))
    groups = group_numbers(epoch, operator, side, table)
    order = np.argsort(hashes(table), kind="stable") if sorted_by_hash(operator) else np.lexsort((positions, groups))
    table = _with_reach(table, operator.groupings[side], groups)
    offsets = np.searchsorted(groups[order], np.arange(epoch.groups + 1)).astype(np.int64)
    low, high = (int(positions.min()), int(positions.max())) if len(positions) else (None, None)
    name = block_name(epoch.number, task.stage, task.partition, task.attempt)
    return write_block(task.storage, name, arrow.take(table, order), offsets, low, high), offsets


def sorted_by_hash(operator: p.Operator) -> bool:
    return isinstance(operator, p.JoinOperator) and bool(operator.keys)


def write_merged(epoch: Epoch, task: Task, operator: p.Operator, side: int, blocks: Sequence[Block]) -> Block:
    """One block with the rows of several; partials of one group and pane become one row."""
    table = pa.concat_tables([opened(task, operator, side, block).table for block in blocks])
    if isinstance(operator, p.PaneAggregateOperator):
        table = merge_partials(operator, table)
    return write_grouped(epoch, task, operator, side, table)[0]


def _without_null(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    if not any(table.column(name).null_count for name in columns):
        return table
    keep = np.ones(table.num_rows, dtype=bool)
    for name in columns:
        keep &= np.asarray(table.column(name).is_valid())
    return table.filter(pa.array(keep))
