# mypy: disable-error-code="no-untyped-def"
"""Compiled loops over plain arrays that NumPy lacks or runs much slower. They make no copies.

The loops do not check bounds: callers guarantee that all positions are within the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.columnar.numba_cache import compile_cached, compile_inner

Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

DIGIT = 9  # bits; the table of positions per digit stays in the L1 cache, and its pages in the TLB
DIGITS = 1 << DIGIT
HASH_BITS = 3 * DIGIT  # of a million hashes, about four thousand share these bits with another


def order_by_bits(keys: Keys, low: int, bits: int) -> Keys:
    """Sort keys by `bits` bits starting at bit `low`. Equal keys keep their order. The input array is overwritten.

    A radix sort from the lowest digit; it takes a fifth of the time of a comparison sort.
    """
    passes = -(-bits // DIGIT)
    other = np.empty_like(keys)
    found: Any = _by_digits(keys, other, np.zeros((max(passes, 1), DIGITS), np.int64), low, passes)
    return other if found else keys


def order_by_hash(hashed: Keys) -> Numbers:
    """Return row numbers ordered by hash. Rows with equal hashes keep their order.

    Sorts by the high bits, which distinguish nearly all hashes, and then moves the few misplaced rows.
    """
    own = max(len(hashed) - 1, 0).bit_length()
    bits = min(HASH_BITS, 64 - own)
    low = np.uint64(64 - bits)
    keys = hashed >> low << low | np.arange(len(hashed), dtype=np.uint64)
    rows: Numbers = (order_by_bits(keys, 64 - bits, bits) & np.uint64((1 << own) - 1)).view(np.int64)
    _put_right(hashed, rows)
    return rows


def whole_units(values: Numbers, least: int, unit: int) -> Numbers | None:
    """Return how many units each value is above `least`, or None if a value is not a whole number of units above it."""
    found = np.empty(len(values), np.int64)
    return found if _whole(values, least, unit, 1.0 / unit, found) else None


@compile_inner
def copy_piece(source, target):
    """Copy a slice. Loops over slices let the compiler assume nonnegative positions and copy several values at once."""
    for place in range(len(target)):
        target[place] = source[place]


@compile_cached
def gather(values, rows, target):
    """Copy the values at these row numbers, in this order."""
    for place in range(len(rows)):
        target[place] = values[rows[place]]


def near_points(
    rows: Doubles, points: Doubles, first: Numbers, last: Numbers, most: float, batch: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield pairs (row, point), in batches, whose squared distance is at most `most`; x, y and z are the columns of both.

    Row i is compared with the points first[i] .. last[i] - 1.
    """
    size = max(batch, int((last - first).max(initial=0)))
    start = 0
    while start < len(first):
        found = np.empty(size, np.int64), np.empty(size, np.int64)
        start, count = _near_points(rows, points, first, last, most, start, *found)
        yield found[0][:count], found[1][:count]


@compile_cached
def _near_points(rows, points, first, last, most, start, found_rows, found_points):
    """Fill the arrays from row `start` on; return the row after the last one, and the number of pairs."""
    count = 0
    for row in range(start, len(first)):
        if count + last[row] - first[row] > len(found_rows):
            return row, count
        x, y, z = rows[row, 0], rows[row, 1], rows[row, 2]
        for point in range(first[row], last[row]):
            a, b, c = points[point, 0] - x, points[point, 1] - y, points[point, 2] - z
            if a * a + b * b + c * c <= most:
                found_rows[count] = row
                found_points[count] = point
                count += 1
    return len(first), count


@compile_cached
def _whole(values, least, unit, share, found):
    """Divide by multiplication with `share`, and check each quotient exactly."""
    for place in range(len(values)):
        above = values[place] - least
        many = np.int64(above * share + 0.5)
        if many * unit != above:
            return False
        found[place] = many
    return True


@compile_cached
def _by_digits(keys, other, next_, low, passes):
    """Sort by counting, digit by digit. Return whether the sorted keys are in `other`. next_: zeros, one row per
    pass."""
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
    """Finish sorting rows that are nearly in the order of their keys (insertion sort)."""
    for place in range(1, len(rows)):
        row = rows[place]
        before = place
        while before > 0 and keys[rows[before - 1]] > keys[row]:
            rows[before] = rows[before - 1]
            before -= 1
        rows[before] = row


@compile_cached
def merge_sorted(one, two, both):
    """Merge two ascending lists."""
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
    """Return the number of sessions. Write the session of each stretch to `numbers` and the last time of each session
    to `latest`.

    Stretches must be sorted by key and, within a key, by first time.
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
    """For each row, find the last row of the others with the same key that is not later, or -1. Both sides must be
    sorted by key and time.
    """
    place = -1
    for row in range(len(keys)):
        while place + 1 < len(others) and (
            others[place + 1] < keys[row] or (others[place + 1] == keys[row] and others_at[place + 1] <= at[row])
        ):
            place += 1
        found[row] = place if place >= 0 and others[place] == keys[row] else -1
