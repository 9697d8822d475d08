"""Blocks that tasks write: grouped state and plain rows. `headrace.task.outbox_writer` writes what leaves the plan.

Invariant: a grouped block is sorted by group, and within a group as its operator needs it (`Arrangement`). The rows of group g
are offsets[g] .. offsets[g + 1] - 1. A block that is sorted by a number has one group and records the extent of its intervals
(`headrace.routing.by_range`). Rows that every slot reads form one more group at the end. The tuples of a join carry the
hash that chose their group: it is computed once, before columns are dropped. The position of a row is its value in the
operator's `expiry_column`: an event time, the start of a pane, or a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.columnar import arrow, numba_loops
from headrace.errors import CorruptState, EngineError
from headrace.kernels.joins.match_marks import LOW_BITS
from headrace.kernels.joins.stored_orders import BlockPieces
from headrace.operators.base import AppendingOperator, Arrangement, Operator, ReplacingOperator
from headrace.routing import EVERYWHERE, Layout, RangeGrouping, Ranges
from headrace.routing.by_range import SortedRows
from headrace.routing.hashing import hash_column_of
from headrace.state.blocks import REPAIR, Block, OpenBlock, block_name, join_runs, write_block
from headrace.state.state_tables import EPOCH_COLUMN, SUBSTREAM_COLUMN, narrow_columns
from headrace.task.epoch import Epoch
from headrace.task.task import Task

EXTENT = b"headrace.extent"  # in a block sorted by a number: length of its longest interval
EPOCH_BITS, PLACE_BITS, TUPLE_BITS = 23, 14, LOW_BITS  # bits of a tuple's number; no window spans 2**23 epochs
AnyNumbers = npt.NDArray[Any]
Grouped = AppendingOperator | ReplacingOperator  # operators with grouped state


def open_state_block(task: Task, operator: Operator, side: int, block: Block) -> OpenBlock:
    """Open a block of an operator's state. Refuse an undamaged block that lacks columns of this operator."""
    found = task.reader.open(block)
    wanted = operator.stored(side)
    if not wanted <= set(found.table.column_names):
        missing = ", ".join(sorted(wanted - set(found.table.column_names)))
        raise CorruptState(
            f"block {block.name} does not belong to the state of {operator.name}; missing columns: {missing}. {REPAIR}"
        )
    return found


@dataclass(frozen=True)
class NumberedRows:
    """The rows of a block that is sorted by a number (`Arrangement.NUMBER`)."""

    table: pa.Table
    sorted: SortedRows
    first: int  # of the groups by position: which one has a row more than others, so that small blocks are spread

    def rows_of(self, layout: Layout, slot: int, side: int, total: int) -> list[tuple[int, int]]:
        """Return the row intervals that a slot reads. A layout of groups gets groups of equally many rows, by position."""
        if isinstance(layout, Ranges):
            return [layout.rows(self.sorted, slot, side)]
        ends = [(self.table.num_rows * group + self.first % total) // total for group in range(total + 1)]
        return join_runs([(ends[group], ends[group + 1]) for group in layout.groups(slot, side)])


def numbered_rows(operator: Operator, side: int, block: Block, table: pa.Table) -> NumberedRows:
    """Return the rows of a block by their number, as every slot of the epoch sees them."""
    grouping = operator.groupings[side]
    assert isinstance(grouping, RangeGrouping)
    extent = (table.schema.metadata or {}).get(EXTENT)
    if extent is None:  # before format 8: grouped by a hash, or by ranges that never changed
        table = _sorted_by_number(grouping, table.select(operator.schemas[side].names))
    found = grouping.extent(table) if extent is None else float(extent)
    return NumberedRows(
        table,
        SortedRows(grouping.values(table), found, grouping.width),
        xxhash.xxh32_intdigest(block.checksum.encode()),
    )


def _sorted_by_number(grouping: RangeGrouping, table: pa.Table) -> pa.Table:
    for name in grouping.columns:
        table = table.filter(table.column(name).is_valid())
    return arrow.take_rows(table, np.argsort(grouping.values(table), kind="stable"))


def tuple_numbers(epoch: Epoch, task: Task, first: int, rows: int) -> npt.NDArray[np.int64]:
    """Return a number for each tuple that is unique in its window, made of the epoch, the task and a count."""
    place = task.number * (epoch.plan.last_stage + 1) + task.stage
    if place >= 1 << PLACE_BITS or first + rows > 1 << TUPLE_BITS:
        raise EngineError(
            f"an outer join takes at most {1 << TUPLE_BITS} tuples of each of {1 << PLACE_BITS} tasks in an epoch;"
            f" found {first + rows} of task {place}; take smaller epochs, or fewer and larger partitions"
        )
    start = (epoch.number % (1 << EPOCH_BITS) << PLACE_BITS | place) << TUPLE_BITS
    return np.arange(start + first, start + first + rows, dtype=np.int64)


def write_rows(epoch: Epoch, task: Task, table: pa.Table) -> Block:
    """Write rows in their present order: results, late tuples, or waiting tuples."""
    name = block_name(epoch.number, task.stage, task.number, task.attempt)
    return write_block(task.storage, name, table, None, None, None)


@dataclass(frozen=True)
class GroupedBlock:
    """A block of grouped state that a task wrote."""

    block: Block
    rows: npt.NDArray[np.int64]  # number of rows of each group
    for_all: int  # rows that every slot reads
    numbered: NumberedRows | None = None  # the rows, if they are sorted by a number

    def rows_for(self, layout: Layout, slot: int, side: int, total: int) -> int:
        """Return how many rows a slot reads."""
        if self.numbered is not None:
            return sum(stop - start for start, stop in self.numbered.rows_of(layout, slot, side, total))
        cells = (_part(self.rows[group], which, of) for group, which, of in layout.hot_cells(slot, side))
        return int(self.rows[layout.groups(slot, side)].sum()) + sum(cells) + self.for_all


def _part(rows: int, which: int, parts: int) -> int:
    return int(rows * (which + 1) // parts - rows * which // parts)


def write_grouped(epoch: Epoch, task: Task, operator: Grouped, side: int, table: pa.Table) -> GroupedBlock:
    """Write new state of one input of an operator. Tuples without a group are left out, tuples of all groups come last."""
    grouping = operator.groupings[side]
    if isinstance(grouping, RangeGrouping):
        return _write_by_number(epoch, task, operator, side, table)
    groups = grouping.groups(table, epoch.groups)
    groups = np.where(groups == EVERYWHERE, epoch.groups, groups)
    arranged = operator.arrangement(side) if isinstance(operator, AppendingOperator) else operator.arrangement_kind
    positions = np.asarray(table.column(operator.expiry_column).cast(pa.int64()))
    if arranged is Arrangement.ANYHOW:
        return _write_ordered(epoch, task, table, groups, epoch.groups, positions, _by_group(groups, epoch.groups))
    if len(groups) and groups.min() < 0:
        table, groups = table.filter(pa.array(groups >= 0)), groups[groups >= 0]
        positions = np.asarray(table.column(operator.expiry_column).cast(pa.int64()))
    by_hash = arranged is Arrangement.HASH
    order = numba_loops.order_by_hash(hash_column_of(table)) if by_hash else np.lexsort((positions, groups))
    if isinstance(operator, AppendingOperator):
        table = operator.with_orders(side, table, order)
    return _write_ordered(epoch, task, table, groups, epoch.groups, positions, order)


def _write_by_number(epoch: Epoch, task: Task, operator: Grouped, side: int, table: pa.Table) -> GroupedBlock:
    """Write a block that is sorted by the number of its rows."""
    grouping = operator.groupings[side]
    assert isinstance(grouping, RangeGrouping)
    table = _sorted_by_number(grouping, table).replace_schema_metadata({EXTENT: repr(grouping.extent(table))})
    positions = np.asarray(table.column(operator.expiry_column).cast(pa.int64()))
    low, high = (int(positions.min()), int(positions.max())) if len(positions) else (None, None)
    rows = np.array([table.num_rows], np.int64)
    name = block_name(epoch.number, task.stage, task.number, task.attempt)
    block = write_block(task.storage, name, table, np.append(0, rows), low, high)
    return GroupedBlock(block, rows, 0, numbered_rows(operator, side, block, table))


def _by_group(groups: AnyNumbers, total: int) -> AnyNumbers:
    """Return the order of rows by group, without rows of no group.

    Numbers of one or two bytes are sorted by counting, so groups are converted to the smallest type.
    """
    counted = (groups + 1).astype(np.min_scalar_type(total + 1))
    return np.argsort(counted, kind="stable")[int(np.count_nonzero(groups < 0)) :]


def write_table_rows(epoch: Epoch, task: Task, table: pa.Table, groups: AnyNumbers, total: int) -> Block:
    """Write rows of a state table of `total` groups, in each group sorted by substream."""
    order = np.lexsort((np.asarray(table.column(SUBSTREAM_COLUMN)), groups))
    rows, at = narrow_columns(table), np.asarray(table.column(EPOCH_COLUMN))
    return _write_ordered(epoch, task, rows, groups, total, at, order).block


def _write_ordered(
    epoch: Epoch,
    task: Task,
    table: pa.Table,
    groups: AnyNumbers,
    total: int,
    positions: AnyNumbers,
    order: AnyNumbers,
) -> GroupedBlock:
    """Write rows in an order that is sorted by group. The order may leave out rows of no group."""
    if len(order) < len(groups):
        positions, groups = positions[groups >= 0], groups[groups >= 0]
    rows = np.bincount(groups, minlength=total).astype(np.int64)
    offsets = np.append(0, np.cumsum(rows))
    low, high = (int(positions.min()), int(positions.max())) if len(positions) else (None, None)
    name = block_name(epoch.number, task.stage, task.number, task.attempt)
    block = write_block(task.storage, name, arrow.take_rows(table, order), offsets, low, high)
    return GroupedBlock(block, rows[:total], int(rows[total:].sum()))


def slice_for(block: OpenBlock, groups: Sequence[int], total: int) -> pa.Table:
    """Return the rows of a block that a slot with these groups reads."""
    shared = range(total, len(block.offsets) - 1) if block.offsets is not None else ()
    return block.slice([*groups, *shared])


def pieces_for(
    block: OpenBlock, groups: Sequence[int], cells: Sequence[tuple[int, int, int]], total: int
) -> BlockPieces:
    """Return what a slot with these groups, and these parts of hot groups, reads of a block."""
    assert block.offsets is not None
    pieces = block.pieces([*groups, *range(total, len(block.offsets) - 1)])
    for group, which, parts in cells:
        for start, stop in block.pieces([group]):
            pieces.append((start + (stop - start) * which // parts, start + (stop - start) * (which + 1) // parts))
    return BlockPieces(block.table, tuple(sorted((start, stop) for start, stop in pieces if start < stop)))


def write_merged(
    epoch: Epoch, task: Task, operator: AppendingOperator, side: int, blocks: Sequence[Block], piece: tuple[int, int]
) -> Block:
    """Write one block with the rows of several blocks; `piece` (which, of how many) selects some of the groups."""
    found = [open_state_block(task, operator, side, block) for block in blocks]
    parts = [block.table if piece == (0, 1) else _piece(block, *piece) for block in found]
    if operator.arrangement(side) is Arrangement.NUMBER:  # blocks of former formats have further columns
        parts = [part.select(operator.schemas[side].names).replace_schema_metadata(None) for part in parts]
    table = pa.concat_tables([operator.widened(side, part) for part in parts])
    return write_grouped(epoch, task, operator, side, operator.merged(side, table)).block


def _piece(block: OpenBlock, which: int, many: int) -> pa.Table:
    """Return the rows of piece `which` of `many`: some groups. Together, the pieces have every row once."""
    assert block.offsets is not None
    groups = len(block.offsets) - 1
    return block.slice(range(groups * which // many, groups * (which + 1) // many))
