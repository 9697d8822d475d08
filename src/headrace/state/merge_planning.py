"""The choice of sorted runs to merge: small blocks become larger ones, so that an epoch opens few files.

Invariant: a merge reads blocks of manifest n - 1 and replaces them in manifest n by one block with the same rows.
Blocks are merged with blocks of about the same size, neighbours in time first. Every row is therefore rewritten about
log(window / epoch) times, and expiry still drops whole blocks.

Blocks that are too large for a merge stay unchanged until they expire. If state does not expire, but merges drop the
rows that no longer count, large blocks are merged as well: in pieces of some groups each.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.state.blocks import Block, epoch_of

FAN_IN = 8  # this many blocks of one size are merged
FACTOR = 4  # blocks within this factor have the same size
MOST_MERGED_ROWS = 4_000_000  # in one merge
MOST_MERGED_BYTES = 256 << 20


def mergeable_runs(blocks: Sequence[Block]) -> list[tuple[Block, ...]]:
    """Return disjoint runs of `FAN_IN` blocks of about one size, within the limits of rows and bytes of a merge."""
    runs = [
        tuple(members[start : start + FAN_IN])
        for members in group_by_size(blocks)
        for start in range(0, len(members) - FAN_IN + 1, FAN_IN)
    ]
    return [
        run
        for run in runs
        if sum(b.rows for b in run) <= MOST_MERGED_ROWS and sum(b.bytes for b in run) <= MOST_MERGED_BYTES
    ]


def large_run(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Return the blocks that are too large for `mergeable_runs`, if they have twice the rows of the oldest of them.

    The oldest are the result of the last such merge, so the cost of merges follows the rows that were added since.
    """
    large = [b for b in blocks if FAN_IN * b.rows > MOST_MERGED_ROWS or FAN_IN * b.bytes > MOST_MERGED_BYTES]
    first = min((epoch_of(b.name) for b in large), default=0)
    left = sum(b.rows for b in large if epoch_of(b.name) == first)
    return tuple(large) if sum(b.rows for b in large) >= 2 * left else ()


def merge_pieces(run: Sequence[Block]) -> int:
    """Return the number of pieces in which a run is merged, so that each is about as large as a merge may be."""
    return max(-(-sum(b.rows for b in run) // MOST_MERGED_ROWS), -(-sum(b.bytes for b in run) // MOST_MERGED_BYTES))


def group_by_size(blocks: Sequence[Block]) -> list[list[Block]]:
    """Return lists of blocks of about one size, the smallest first, each in order of time."""
    sizes: dict[int, list[Block]] = {}
    for block in sorted(blocks, key=lambda b: (b.low if b.low is not None else 0, b.name)):
        sizes.setdefault(_size(block), []).append(block)
    return [members for _, members in sorted(sizes.items())]


def _size(block: Block) -> int:
    size = 0
    while block.rows >= FACTOR ** (size + 1):
        size += 1
    return max(size, 5)  # below about a thousand rows, all blocks have the same size
