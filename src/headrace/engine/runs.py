"""Merging of runs: small blocks of state become larger ones, so that an epoch opens few files.

Invariant: a merge reads blocks of manifest n - 1 and replaces them, by one block with the same rows, in manifest n.
Blocks are merged with blocks of about their own size that lie next to them in time, so every tuple is rewritten about
log(window / epoch) times and expiry still drops whole blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from headrace.compile import plan as p
from headrace.engine.epoch import Merge
from headrace.state.blocks import Block
from headrace.state.manifest import OperatorState

FAN_IN = 8  # this many neighbours of one size are merged
FACTOR = 4  # blocks within this factor have one size
MOST_ROWS = 4_000_000


def plan_merges(operator: p.Operator, state: OperatorState | None) -> list[Merge]:
    """At most one merge per input; inputs that hold the same blocks in the same groups share it."""
    if state is None:
        return []
    found: dict[tuple[Block, ...], list[int]] = {}
    for side, blocks in enumerate(state.inputs):
        run = mergeable_run(blocks)
        if run:
            found.setdefault(run, []).append(side)
    merges = []
    for run, sides in found.items():
        if len({operator.groupings[side] for side in sides}) == 1:
            merges.append(Merge(operator.name, tuple(sides), run))
        else:
            merges += [Merge(operator.name, (side,), run) for side in sides]
    return merges


def mergeable_run(blocks: Sequence[Block]) -> tuple[Block, ...] | None:
    """The first FAN_IN neighbours in time that are of one size, the smallest size first."""
    ordered = sorted(blocks, key=lambda b: (b.low if b.low is not None else 0, b.name))
    runs = [list(run) for _, run in groupby(ordered, key=_size)]
    runs = [run for run in runs if len(run) >= FAN_IN and sum(b.rows for b in run[:FAN_IN]) <= MOST_ROWS]
    return tuple(min(runs, key=lambda run: _size(run[0]))[:FAN_IN]) if runs else None


def _size(block: Block) -> int:
    size = 0
    while block.rows >= FACTOR ** (size + 1):
        size += 1
    return max(size, 5)  # below a thousand rows all blocks are small
