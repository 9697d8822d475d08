"""Blocks that are no state any more though some of their tuples are: the slots wrote those anew.

    which blocks they are follows from the last manifest, the blocks that arrived and the watermarks

so every slot and the driver say the same of a block without a word between them. A slot writes what is left of its own
groups; what every slot reads is written by the slot that has group 0. A block that is merged in the same epoch stays out of
it: its rows are in another one already.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.operators.base import AppendedState
from headrace.state.blocks import Block
from headrace.task.epoch import Epoch


def blocks_rewritten(
    epoch: Epoch, operator: AppendedState, blocks: Sequence[Block], before: int, after: int
) -> list[Block]:
    """Those of an input's blocks of which the slots write anew what is left when its watermark goes from one to the other."""
    merges = [merge for of_slot in epoch.merges for merge in of_slot if merge.operator == operator.name]
    merged = {block.name for merge in merges for block in merge.blocks}
    return [block for block in blocks if block.name not in merged and operator.rewrites(block, before, after)]
