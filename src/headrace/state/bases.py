"""The renewal of the bases of state tables, and the blocks that it makes unnecessary.

`headrace.state.state_tables` describes which rows count.

An epoch adds the rows that it changed, so blocks hold more and more rows than the table has. A base is one whole group,
written again; nothing older in the group is needed. Bases are renewed a few groups at a time, oldest first. Once every
group has a base from after epoch n, the blocks that end with epoch n are dropped. Nothing is renewed while rows are
only added. If all rows of an epoch have been written again, its blocks are dropped without a base.

    stored rows    <  about 3 times the live rows plus some thousands; about 2 times if the same keys keep changing
    written rows   about 2 or 3 for each row that changed, plus merges
    in one epoch   the changes; bases of at most `RENEWED_PER_CHANGED` times the changes of the epoch before, or of one
                   group; and about two merges, each of at most twice the changes, or `MERGE_ROWS_ALLOWED` rows, or one
                   in `SHARE` of the stored rows, and of `LITTLE` bytes or one in `SHARE`
    blocks         some hundreds

The more is stored, the more is renewed for each row that changes. This matters when all bases are equally old, as after
an initial load: the oldest block then stays until the last base has been renewed. A merge takes a small part of the
table, so that no epoch takes much longer than others and no block is kept for long by its newest row. The limit in
bytes is for large rows, such as arrays: few such blocks exist, and they need no merge.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from headrace.errors import StateError
from headrace.state.blocks import Block
from headrace.state.manifest import EpochRange, TableState
from headrace.state.merge_planning import FAN_IN, MOST_MERGED_BYTES, MOST_MERGED_ROWS, group_by_size

WASTE = 1.5  # stored rows per live row above which bases are renewed
SMALL = 10_000  # wasted rows that are not worth a renewal
FEWEST_RENEWED = 1_000  # rows that an epoch with few changes renews, so that waste does not stay
RENEWED_PER_CHANGED = 3  # rows that are renewed for each changed row
MERGE_ROWS_ALLOWED = 30_000  # a merge may always have this many rows
LITTLE = 4 << 20  # a merge may always have this many bytes
SHARE = 256  # a merge may have 1/SHARE of the stored rows or bytes, which keeps blocks few
MOST_AGES = 256  # entries that a manifest stores about the epochs of one table


@dataclass(frozen=True)
class ChangeSummary:
    """Counts of the rows that a slot wrote, and of the rows that they replace."""

    born: int  # live rows
    gone: int  # tombstones
    died: Mapping[int, int]  # rows that were live, by the epoch that wrote them


def groups_to_renew(state: TableState, last: int, parts: int) -> tuple[int, ...]:
    """Return the groups whose bases the epoch after `last` renews, ascending. They follow from the last manifest alone.

    parts: the number of neighbouring groups that one slot has. Among equally old groups, each slot gets some.
    """
    live, stored = sum(state.rows), sum(block.rows for block in state.blocks)
    if stored <= WASTE * live + SMALL or not live:
        return ()
    pressure = min(2 * (stored - live) / live, RENEWED_PER_CHANGED)
    budget = max(int(changed_row_count(state, last) * pressure), FEWEST_RENEWED)
    oldest_first = sorted((renewed, n % parts, n) for n, renewed in enumerate(state.renewed) if state.rows[n])
    found: list[int] = []
    for _, _, group in oldest_first:
        if found and state.rows[group] > budget:
            break
        budget -= state.rows[group]
        found.append(group)
    return tuple(sorted(found))


def changed_row_count(state: TableState, last: int) -> int:
    """Return about how many rows an epoch wrote that are not the base of their group."""
    written = sum(block.rows for block in state.blocks if block.high == last)
    return max(written - sum(n for n, renewed in zip(state.rows, state.renewed, strict=True) if renewed == last), 0)


def needed_blocks(
    blocks: Sequence[Block], renewed: Sequence[int], rows: Sequence[int], ages: Sequence[EpochRange]
) -> tuple[Block, ...]:
    """Return the blocks that may contain live rows: rows that no base, newer row or tombstone has replaced."""
    oldest = min((epoch for epoch, live in zip(renewed, rows, strict=True) if live), default=None)
    left = [b for b in blocks if oldest is not None and b.high is not None and b.high >= oldest]
    return _hidden_left_out(left, ages)


def _hidden_left_out(blocks: Sequence[Block], ages: Sequence[EpochRange]) -> tuple[Block, ...]:
    """Return the blocks without those whose rows have all been replaced or deleted."""
    live, gone = [age for age in ages if age.live], [age for age in ages if age.gone]
    dead = [b for b in blocks if not _meets(b, live)]
    marks = {b.name for b in dead if _meets(b, gone)}
    plain = {b.name for b in dead} - marks
    left = [b for b in blocks if b.name not in plain]
    lows = sorted(map(_low, left))
    for block in sorted((b for b in left if b.name in marks), key=_high):
        older = bisect_left(lows, _high(block)) - (_low(block) < _high(block))
        if not older:
            left.remove(block)
            lows.remove(_low(block))
    return tuple(left)


def _meets(block: Block, ages: Sequence[EpochRange]) -> bool:
    """Return whether a block may have rows of one of these epoch ranges."""
    place = bisect_left(ages, _low(block), key=lambda age: age.last)
    return place < len(ages) and ages[place].first <= _high(block)


def _low(block: Block) -> int:
    return block.low or 0


def _high(block: Block) -> int:
    return block.high or 0


def add_epoch(before: Sequence[EpochRange], told: Sequence[ChangeSummary], epoch: int) -> tuple[EpochRange, ...]:
    """Return the epoch ranges of a table after one more epoch. told: the changes that the slots reported."""
    died = Counter[int]()
    for each in told:
        for at, many in each.died.items():
            place = bisect_left(before, at, key=lambda age: age.last)
            if place == len(before) or before[place].first > at:
                raise StateError(f"epoch {epoch} reports replaced rows of epoch {at}, which has no rows")
            died[place] += many
    now = [replace(age, live=age.live - died[place]) for place, age in enumerate(before)]
    if any(age.live < 0 for age in now):
        raise StateError(f"epoch {epoch} reports more replaced rows of an earlier epoch than that epoch had")
    now.append(EpochRange(epoch, epoch, sum(each.born for each in told), sum(each.gone for each in told)))
    return tuple(age for age in now if age.live or age.gone)


def limit_ages(ages: Sequence[EpochRange], blocks: Sequence[Block]) -> tuple[EpochRange, ...]:
    """Return the ranges that still have stored rows. If there are too many, old neighbours are combined."""
    lows, highs = sorted(map(_low, blocks)), sorted(map(_high, blocks))
    left = [a for a in ages if a.live or bisect_right(lows, a.last) > bisect_left(highs, a.first)]
    half = MOST_AGES // 4 * 2  # the older half
    while len(left) > MOST_AGES:
        pairs = zip(left[0:half:2], left[1:half:2], strict=True)
        left[:half] = [EpochRange(a.first, b.last, a.live + b.live, a.gone + b.gone) for a, b in pairs]
    return tuple(left)


def runs_to_merge(state: TableState, last: int) -> list[tuple[Block, ...]]:
    """Return the runs of blocks to merge: blocks of about one size, neighbours in time first."""
    stored = sum(block.rows for block in state.blocks)
    most = min(max(MERGE_ROWS_ALLOWED, 2 * changed_row_count(state, last), stored // SHARE), MOST_MERGED_ROWS)
    heaviest = min(max(LITTLE, sum(block.bytes for block in state.blocks) // SHARE), MOST_MERGED_BYTES)
    found = []
    for members in group_by_size([block for block in state.blocks if 2 * block.bytes <= heaviest]):
        run: list[Block] = []
        for block in members if len(members) >= FAN_IN else ():
            if len(run) == FAN_IN or not _fits([*run, block], most, heaviest):
                found.append(tuple(run))
                run = []
            run.append(block)
        if len(run) == FAN_IN:
            found.append(tuple(run))
    return _some([run for run in found if len(run) > 1], 2 * most)


def _fits(run: Sequence[Block], rows: int, size: int) -> bool:
    return sum(block.rows for block in run) <= rows and sum(block.bytes for block in run) <= size


def _some(runs: Sequence[tuple[Block, ...]], most: int) -> list[tuple[Block, ...]]:
    """Return the first runs with at most `most` rows together. The others can wait for a later epoch."""
    sums = accumulate(sum(block.rows for block in run) for run in runs)
    return [run for run, rows in zip(runs, sums, strict=True) if rows <= most]
