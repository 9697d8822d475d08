"""Random numbers that belong to what they are about.

A draw is a function of the seed, a purpose and some numbers (an expressway, a car, a second), never of what was drawn
before it. So an expressway has the same traffic beside whatever others, and any part of the three hours can be made alone.
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
    """64 bits for a purpose."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=8).digest(), "big")


def draw(purpose: int, *numbers: Any) -> U64:
    """64 random bits for every combination of numbers, which are broadcast against each other."""
    drawn = np.atleast_1d(np.uint64(purpose))
    for number in numbers:
        drawn = _mixed(drawn ^ np.asarray(number).astype(np.int64).view(np.uint64))
    return drawn


def _mixed(words: U64) -> U64:
    """The finisher of splitmix64: every bit that goes in changes half of those that come out."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    words ^= words >> np.uint64(31)
    return words


def between(drawn: U64, low: Any, high: Any, part: int = 0) -> Ints:
    """Whole numbers from low to high, both included; `part` 0 and 1 are two halves of a draw that know nothing of each other."""
    word = (drawn >> np.uint64(32)) if part == 0 else (drawn & _LOW)
    low = np.asarray(low, np.int64)
    many = (np.asarray(high, np.int64) - low + 1).astype(np.uint64)
    found: Ints = low + ((word * many) >> np.uint64(32)).astype(np.int64)
    return found


def share(drawn: U64) -> npt.NDArray[np.float64]:
    """From 0 to less than 1."""
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shaken(marks: U32, moment: int, into: U32, room: U32) -> U32:
    """32 random bits per mark and moment, in place: the one draw that is made for every report there is."""
    np.add(marks, np.uint32(moment), out=into)
    for factor, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
        np.multiply(into, np.uint32(factor), out=into)
        np.right_shift(into, np.uint32(shift), out=room)
        np.bitwise_xor(into, room, out=into)
    return into
