"""Random numbers as pure functions.

A draw is a function of the seed, a purpose and some numbers (an expressway, a car, a second), never of earlier draws.
So the traffic of an expressway does not depend on the other expressways, and any part of the three hours can be
generated alone.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
Ints = npt.NDArray[Any]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LOW = np.uint64(0xFFFFFFFF)


def salt(*what: Any) -> int:
    """Return 64 bits that identify a purpose."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "big")


def draw(purpose: int, *numbers: Any) -> U64:
    """Return 64 random bits for every combination of numbers, which are broadcast against each other."""
    drawn = np.atleast_1d(np.uint64(purpose))
    for number in numbers:
        drawn = _mixed(drawn ^ np.asarray(number).astype(np.int64).view(np.uint64))
    return drawn


def _mixed(words: U64) -> U64:
    """Mix with the finalizer of splitmix64: each input bit changes half of the output bits on average."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    words ^= words >> np.uint64(31)
    return words


def between(drawn: U64, low: Any, high: Any, part: int = 0) -> Ints:
    """Return whole numbers from low to high, both included. `part` 0 and 1 are independent halves of a draw."""
    word = (drawn >> np.uint64(32)) if part == 0 else (drawn & _LOW)
    low = np.asarray(low, np.int64)
    many = (np.asarray(high, np.int64) - low + 1).astype(np.uint64)
    found: Ints = low + ((word * many) >> np.uint64(32)).astype(np.int64)
    return found


def share(drawn: U64) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1)."""
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shaken(marks: U32, moment: int, into: U32, room: U32) -> U32:
    """Write 32 random bits per mark and moment into `into`. This is the only draw for every report, so it is fast."""
    np.add(marks, np.uint32(moment), out=into)
    for factor, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        np.multiply(into, np.uint32(factor), out=into)
        np.right_shift(into, np.uint32(shift), out=room)
        np.bitwise_xor(into, room, out=into)
    return into
