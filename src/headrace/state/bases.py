"""When the bases of a keyed table are written anew, and what that lets go of. Which rows count: `headrace.state.tables`.

An epoch adds the rows that it changed, so blocks hold ever more rows than the table. A group whose whole table is written
once more, its base, needs nothing older. Bases are renewed a few groups at a time, oldest first; once every group has one
from after epoch n, blocks that end with epoch n are dropped. While rows are only added nothing is renewed.

    stored rows    <  about 3 times the live ones, and some thousands; about 2 times when the same keys go on changing
    written rows   about 2 or 3 for each row that changed, and what merging takes
    in one epoch   what changed, and bases of at most MOST times what the epoch before changed, or one group's

The more is stored, the more is renewed for each row that changes. That matters when all bases are equally old, as after a
first load: the oldest block then stays until the last of them was renewed. A merge takes at most a part of the table, so
that a block is not kept for long by its newest row.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.state.blocks import Block
from headrace.state.manifest import TableState
from headrace.state.runs import MOST_ROWS, mergeable_runs

WASTE = 1.5  # stored rows for a live one from which on bases are renewed
SMALL = 10_000  # rows that may be stored besides: not worth to look at
LEAST = 1_000  # rows that are renewed in an epoch which changed fewer, so that waste does not stay
MOST = 8  # rows that are renewed for one that changed
PART = 8  # a merge has at most this part of the live rows,
FEW = 30_000  # or so many rows


def due(state: TableState, last: int) -> tuple[int, ...]:
    """The groups whose bases the epoch after `last` renews, ascending: a function of the last manifest alone."""
    live, stored = sum(state.rows), sum(block.rows for block in state.blocks)
    if stored <= WASTE * live + SMALL or not live:
        return ()
    pressure = min(2 * (stored - live) / live, MOST)
    budget = max(int(changed(state, last) * pressure), LEAST)
    oldest_first = sorted((renewed, group) for group, renewed in enumerate(state.renewed) if state.rows[group])
    found: list[int] = []
    for _, group in oldest_first:
        if found and state.rows[group] > budget:
            break
        budget -= state.rows[group]
        found.append(group)
    return tuple(sorted(found))


def changed(state: TableState, last: int) -> int:
    """About how many rows an epoch wrote that are not the base of their group."""
    written = sum(block.rows for block in state.blocks if block.high == last)
    return max(written - sum(n for n, renewed in zip(state.rows, state.renewed, strict=True) if renewed == last), 0)


def needed(blocks: Sequence[Block], renewed: Sequence[int], rows: Sequence[int]) -> tuple[Block, ...]:
    """Without the blocks of which no row counts any more."""
    oldest = min((epoch for epoch, live in zip(renewed, rows, strict=True) if live), default=None)
    return tuple(b for b in blocks if oldest is not None and b.high is not None and b.high >= oldest)


def runs(state: TableState) -> list[tuple[Block, ...]]:
    """Which blocks are merged."""
    return mergeable_runs(state.blocks, min(max(sum(state.rows) // PART, FEW), MOST_ROWS))
