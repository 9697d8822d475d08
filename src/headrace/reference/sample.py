"""`sample` in plain Python: the hash of a tuple, value by value, and the tuples whose hash falls below the fraction.

    kept        iff   hash of the tuple < fraction * 2**64
    hash        =     mix(SALT + the sum over the values, in order of column names, of mix(31 * hash of value + place))
    a value     :     null: NULL; a number, boolean, date or time: mix(its 64 bits); text and bytes: XXH3-64;
                      a decimal: mix of its halves; a list, struct or map: as a tuple of its parts

Invariant: the hash depends only on values, so it does not depend on other tuples, on the cut into epochs or on slots.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import xxhash

from headrace.columnar.values import comparable_values
from headrace.query import nodes

SALT = 0xD1B54A32D192ED03
NULL = 0x9AE16A3B2F90404F
BITS = (1 << 64) - 1


def sample_tuples(node: nodes.Sample, tuples: pa.Table) -> pa.Table:
    """Return the tuples that the sample keeps."""
    columns = [comparable_values(tuples[name]) for name in node.hashed]
    limit = Fraction(node.fraction) * 2**64
    return tuples.filter(pa.array([_combined(row) < limit for row in zip(*columns, strict=True)], pa.bool_()))


def _combined(parts: Iterable[Any]) -> int:
    return _mix(SALT + sum(_mix(31 * _hash(part) + place) for place, part in enumerate(parts)))


def _hash(value: Any) -> int:
    match value:
        case None:
            return NULL
        case int():
            return _mix(value)
        case float():
            plain = math.nan if math.isnan(value) else value + 0.0  # one NaN; -0.0 + 0.0 = 0.0
            return _mix(int.from_bytes(struct.pack("<d", plain), "little"))
        case bytes():
            return xxhash.xxh3_64_intdigest(value)
        case Decimal():
            return _hash_decimal(value)
        case dict():
            return _combined(value.values())
        case list() | tuple():
            return _combined(value)
    raise TypeError(f"sample has no hash for a value of type {type(value).__name__}; add one")


def _hash_decimal(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return _mix(31 * _mix(whole) + (whole >> 64 & BITS))


def _mix(number: int) -> int:
    """Return the finaliser of SplitMix64 for the lowest 64 bits of a number."""
    number &= BITS
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & BITS
    number = (number ^ number >> 27) * 0x94D049BB133111EB & BITS
    return number ^ number >> 31
