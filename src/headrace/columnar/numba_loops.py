# mypy: disable-error-code="no-untyped-def"
"""Loops over plain arrays that NumPy has not, or has much slower: compiled, without a copy, apart from everything else.

What they are given fits: no place is looked at that is not in the array. Callers see to that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.columnar.numba_cache import compile_cached, compile_inner

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

DIGIT = 9  # bits: the places where the next of each digit goes stay in the innermost cache, and so do their pages
DIGITS = 1 << DIGIT
HASH_BITS = 3 * DIGIT  # of a million hashes, about four thousand share these with another


def order_by_bits(keys: Keys, low: int, bits: int) -> Keys:
    """The keys by their bits from `low` on, of which they have so many; alike ones as they stand. What was given is used up.

    Digit by digit from the lowest, each by counting: a fifth of what a sort by comparing takes.
    """
    passes = -(-bits // DIGIT)
    other = np.empty_like(keys)
    found: Any = _by_digits(keys, other, np.zeros((max(passes, 1), DIGITS), np.int64), low, passes)
    return other if found else keys


def order_by_hash(hashed: Keys) -> Numbers:
    """Row numbers by hash, alike ones as they stand.

    Some of its high bits tell nearly all hashes apart, so these are sorted; whoever then stands wrong has not far to go.
    """
    own = max(len(hashed) - 1, 0).bit_length()
    bits = min(HASH_BITS, 64 - own)
    low = np.uint64(64 - bits)
    keys = hashed >> low << low | np.arange(len(hashed), dtype=np.uint64)
    rows: Numbers = (order_by_bits(keys, 64 - bits, bits) & np.uint64((1 << own) - 1)).view(np.int64)
    _put_right(hashed, rows)
    return rows


def whole_units(values: Numbers, least: int, unit: int) -> Numbers | None:
    """How many units each is above the least; None: one is not a whole number of them above it."""
    found = np.empty(len(values), np.int64)
    return found if _whole(values, least, unit, 1.0 / unit, found) else None


@compile_inner
def copy_piece(source, target):
    """Of slices, so that the compiler sees that no place is counted from behind: it then copies some at once."""
    for place in range(len(target)):
        target[place] = source[place]


@compile_cached
def gather(values, rows, target):
    """Values by number, in that order."""
    for place in range(len(rows)):
        target[place] = values[rows[place]]


@compile_cached
def _whole(values, least, unit, share, found):
    """By a product that may be a little off, which the way back shows."""
    for place in range(len(values)):
        above = values[place] - least
        many = np.int64(above * share + 0.5)
        if many * unit != above:
            return False
        found[place] = many
    return True


@compile_cached
def _by_digits(keys, other, next_, low, passes):
    """Whether what is in order is in `other` in the end. next_: zeros, for each pass and digit."""
    mask = np.uint64(DIGITS - 1)
    for i in range(len(keys)):
        rest = keys[i] >> np.uint64(low)
        for p in range(passes):
            next_[p, np.int64(rest & mask)] += 1
            rest >>= np.uint64(DIGIT)
    swapped = False
    for p in range(passes):
        place = 0
        for d in range(DIGITS):
            many = next_[p, d]
            next_[p, d] = place
            place += many
        shift = np.uint64(low + p * DIGIT)
        given, taken = (other, keys) if swapped else (keys, other)
        for i in range(len(given)):
            digit = np.int64((given[i] >> shift) & mask)
            taken[next_[p, digit]] = given[i]
            next_[p, digit] += 1
        swapped = not swapped
    return swapped


@compile_cached
def _put_right(keys, rows):
    """Rows by key that nearly are."""
    for place in range(1, len(rows)):
        row = rows[place]
        before = place
        while before > 0 and keys[rows[before - 1]] > keys[row]:
            rows[before] = rows[before - 1]
            before -= 1
        rows[before] = row


@compile_cached
def merge_sorted(one, two, both):
    """Two ascending lists as one."""
    i, j = 0, 0
    while i < len(one) and j < len(two):
        first = one[i] <= two[j]
        both[i + j] = one[i] if first else two[j]
        i += first
        j += not first
    for rest in range(i, len(one)):
        both[rest + j] = one[rest]
    for rest in range(j, len(two)):
        both[rest + i] = two[rest]


@compile_cached
def number_sessions(keys, first, last, gap, numbers, latest):
    """How many sessions there are; the number of each stretch's goes into `numbers`, the last time of each into `latest`.

    Stretches stand by key, and by their first time within one.
    """
    many = -1
    for place in range(len(keys)):
        if place == 0 or keys[place] != keys[place - 1] or first[place] - latest[many] > gap:
            many += 1
            latest[many] = last[place]
        elif last[place] > latest[many]:
            latest[many] = last[place]
        numbers[place] = many
    return many + 1


@compile_cached
def asof_positions(keys, at, others, others_at, found):
    """For each the place of the last other of its key that is not later, or -1; both stand by key, and by time within one."""
    place = -1
    for row in range(len(keys)):
        while place + 1 < len(others) and (
            others[place + 1] < keys[row] or (others[place + 1] == keys[row] and others_at[place + 1] <= at[row])
        ):
            place += 1
        found[row] = place if place >= 0 and others[place] == keys[row] else -1
