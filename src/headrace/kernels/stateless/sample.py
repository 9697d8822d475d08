"""A sample of tuples: those whose salted hash falls below a fraction of all hashes.

    hash  =  mix(SALT + the sum over the columns, in order of their names, of mix(31 * hash of the value + place))

The hash of a value is that of `headrace.routing.hashing`, except that a list, struct or map is hashed as a tuple of its
parts. So it depends on no version of a library, and doubles inside a list have different hashes.

Invariant: whether a tuple is kept depends only on its own values in these columns and on the fraction. The salt and the
second mix make the choice independent of the group of a tuple. State on disk relies on the hash: a sample that continues
must keep the same tuples (tests/unit/kernels/stateless/test_sample.py has golden values).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa

from headrace.plan import SampleStep
from headrace.routing.hashing import NULL, Hashes, hash_column, mix

SALT = np.uint64(0xD1B54A32D192ED03)
ALL_HASHES = 2**64


def sample_tuples(table: pa.Table, step: SampleStep) -> pa.Table:
    """Return the tuples that the sample keeps."""
    limit = int(Fraction(step.fraction) * ALL_HASHES)
    if limit == ALL_HASHES:
        return table
    return table.filter(pa.array(sample_hashes(table, step.hashed) < np.uint64(limit)))


def sample_hashes(table: pa.Table, columns: Sequence[str]) -> Hashes:
    """Return one 64-bit hash per tuple over these columns, independent of `hash_rows`."""
    return _combined([_hash_values(table.column(name)) for name in columns], table.num_rows)


def _combined(parts: Sequence[Hashes], rows: int) -> Hashes:
    """Return the hash of each tuple from the hashes of its parts; `parts` has one array for each place."""
    total = np.full(rows, SALT, np.uint64)
    for place, hashes in enumerate(parts):
        total += _placed(hashes, np.uint64(place))
    return mix(total)


def _placed(hashes: Hashes, places: Hashes | np.uint64) -> Hashes:
    return mix(hashes * np.uint64(31) + places)


def _hash_values(column: pa.ChunkedArray) -> Hashes:
    if not pa.types.is_nested(column.type):
        return hash_column(column)
    return np.concatenate([np.empty(0, np.uint64), *map(_hash_array, column.chunks)])


def _hash_array(array: pa.Array) -> Hashes:
    if not pa.types.is_nested(array.type):
        return hash_column(array)
    if pa.types.is_struct(array.type):
        hashes = _combined(list(map(_hash_array, array.flatten())), len(array))
    else:
        hashes = _hash_lists(array)
    return np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, hashes)


def _hash_lists(array: pa.Array) -> Hashes:
    """Return the hashes of lists or maps: the hash of each item is placed, then the hashes of each list are added up."""
    if not len(array):
        return np.empty(0, np.uint64)
    ends = np.asarray(array.offsets).astype(np.int64)
    size = int(ends[-1] - ends[0])
    places = np.arange(size, dtype=np.int64) - np.repeat(ends[:-1] - ends[0], np.diff(ends))
    placed = _placed(_hash_items(array, int(ends[0]), size), places.view(np.uint64))
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(placed, dtype=np.uint64)])  # modulo 2**64
    return mix(SALT + sums[ends[1:] - ends[0]] - sums[ends[:-1] - ends[0]])


def _hash_items(array: pa.Array, start: int, size: int) -> Hashes:
    if pa.types.is_map(array.type):
        return _combined([_hash_array(each.slice(start, size)) for each in (array.keys, array.items)], size)
    return _hash_array(array.values.slice(start, size))
