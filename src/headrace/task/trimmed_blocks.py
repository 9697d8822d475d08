"""Trimmed blocks: blocks of state that slots replace in an epoch by a new block with the tuples that are still needed.

Each slot rewrites the remaining rows of its own groups. The slot with group 0 also rewrites the rows that every slot
reads.

Invariant: the choice of trimmed blocks follows from the last manifest, the blocks that arrived and the watermarks. So
every slot and the driver make the same choice without a message. A block that is merged in the same epoch is not
trimmed, because its rows are in the merged block.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.operators.base import AppendingOperator
from headrace.state.blocks import Block
from headrace.task.epoch import Epoch


def blocks_rewritten(
    epoch: Epoch, operator: AppendingOperator, blocks: Sequence[Block], before: int, after: int
) -> list[Block]:
    """Return the blocks of an input that slots rewrite when its watermark advances from `before` to `after`."""
    merges = [merge for of_slot in epoch.merges for merge in of_slot if merge.operator == operator.name]
    merged = {block.name for merge in merges for block in merge.blocks}
    return [block for block in blocks if block.name not in merged and operator.rewrites(block, before, after)]
