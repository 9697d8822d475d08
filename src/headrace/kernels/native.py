"""Loops over pairs, compiled for one predicate: what a join does when no index can help, or not enough.

The loop runs over the moving side; each of its tuples meets a range of the still side. One pass over that range fills a
mask without a branch (so that the compiler uses vector instructions), and a second pass, only where something was found,
writes row numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrow import Numbers
from headrace.expressions.native import LARGEST, Native

WORTH_COMPILING = 2_000_000  # pairs; below, DuckDB is done before the compiler
ROOM = 1 << 20  # row numbers written before they are handed on

_SOURCE = """
def kernel(start, first, last, places, positions, back, ahead, {arguments}, mask, moving_out, still_out):
    found = 0
    for i in range(start, len(places)):
        begin = first[i]
        count = last[i] - begin
        if found + count > len(moving_out):
            return i, found
        low = places[i] - back
        high = places[i] + ahead
        position = positions[begin : begin + count]
{hoisted}
        hits = 0
        for j in range(count):
            hit = {predicate} & (position[j] >= low) & (position[j] <= high)
            mask[j] = hit
            hits += hit
        if hits > 0:
            for j in range(count):
                if mask[j]:
                    moving_out[found] = i
                    still_out[found] = begin + j
                    found += 1
    return len(places), found
"""


@dataclass(frozen=True)
class Reach:
    """The pairs to look at: row i of the moving table and rows first[i] .. last[i] - 1 of the still one.

    Of those the window admits the pairs with  position in [place - back, place + ahead].
    """

    moving: int  # 0: L, 1: R
    places: Numbers
    positions: Numbers
    back: int
    ahead: int
    first: Numbers
    last: Numbers

    @classmethod
    def all(cls, moving: int, places: Numbers, positions: Numbers, back: int, ahead: int) -> Reach:
        first = np.zeros(len(places), np.int64)
        return cls(moving, places, positions, back, ahead, first, np.full(len(places), len(positions)))


def usable(native: Native, left: pa.Table, right: pa.Table) -> bool:
    """Whether the data is such that native arithmetic cannot differ from DuckDB's."""
    sides = {"l": left, "r": right}
    return all(_is_plain(sides[side].column(name)) for _, (side, name) in native.variables)


def _is_plain(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return False
    if not pa.types.is_floating(column.type):
        return True
    return bool(np.all(np.abs(np.asarray(column)) <= LARGEST))  # false for NaN and infinity as well


def loop(native: Native, left: pa.Table, right: pa.Table, reach: Reach) -> Iterator[tuple[Numbers, Numbers]]:
    """Row numbers (moving, still) of the pairs that window and predicate admit, some at a time."""
    kernel = _compiled(_generate(native, reach.moving))
    tables = {"l": left, "r": right}
    values = [_values(tables[side].column(name)) for _, (side, name) in native.variables]
    widest = int((reach.last - reach.first).max(initial=0))
    room = max(ROOM, widest)
    mask, out = np.empty(widest, np.bool_), (np.empty(room, np.int64), np.empty(room, np.int64))
    where = (*map(_fixed, (reach.first, reach.last, reach.places, reach.positions)), reach.back, reach.ahead)
    start = 0
    while start < len(reach.places):
        start, found = kernel(start, *where, *values, mask, *out)
        if found:
            yield out[0][:found].copy(), out[1][:found].copy()


def _values(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Doubles as they are; whole numbers and times as whole numbers of one size."""
    return _fixed(np.ascontiguousarray(column if pa.types.is_floating(column.type) else column.cast(pa.int64())))


def _fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Not to be written: the compiler makes a loop of its own for every mixture of such arrays and others."""
    fixed = values.view()
    fixed.setflags(write=False)
    return fixed


def _generate(native: Native, moving: int) -> str:
    """Source in which a variable of the moving side is read once per tuple, one of the still side once per pair."""
    side = ("l", "r")[moving]
    hoisted, predicate = [], native.source
    for name, (of, _) in native.variables:
        part = f"{name}[i]" if of == side else f"{name}[begin : begin + count]"
        hoisted.append(f"        {name}_i = {part}")
        predicate = re.sub(rf"\b{name}\b", f"{name}_i" if of == side else f"{name}_i[j]", predicate)
    arguments = ", ".join(name for name, _ in native.variables)
    return _SOURCE.format(arguments=arguments, hoisted="\n".join(hoisted), predicate=predicate)


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> Callable[..., Any]:
    import math

    import numba

    names: dict[str, Any] = {"np": np, "math": math}
    exec(source, names)  # noqa: S102  generated from a checked tree: numbers, operators and our own names only
    compiled: Callable[..., Any] = numba.njit(names["kernel"], nogil=True, error_model="numpy")
    return compiled
