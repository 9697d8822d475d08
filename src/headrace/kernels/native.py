"""Nested loops compiled for one predicate: what a join does when no index can help.

The loop runs over the moving side; for each of its tuples one pass over the still side fills a mask without a branch
(so that the compiler uses vector instructions), and a second pass, only where something was found, writes row numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.expressions.native import LARGEST, Native
from headrace.kernels.aggregate import Numbers

WORTH_COMPILING = 2_000_000  # pairs; below, DuckDB is done before the compiler
ROOM = 1 << 20  # row numbers written before they are handed on

_SOURCE = """
def kernel(start, places, positions, back, ahead, {arguments}, moving_out, still_out):
    found = 0
    count = len(positions)
    mask = np.empty(count, np.bool_)
    for i in range(start, len(places)):
        if found + count > len(moving_out):
            return i, found
        low = places[i] - back
        high = places[i] + ahead
{hoisted}
        hits = 0
        for j in range(count):
            hit = {predicate} & (positions[j] >= low) & (positions[j] <= high)
            mask[j] = hit
            hits += hit
        if hits > 0:
            for j in range(count):
                if mask[j]:
                    moving_out[found] = i
                    still_out[found] = j
                    found += 1
    return len(places), found
"""


def usable(native: Native, left: pa.Table, right: pa.Table) -> bool:
    """Whether the data is such that native arithmetic cannot differ from DuckDB's."""
    sides = {"l": left, "r": right}
    return all(_is_plain(sides[side].column(name)) for _, (side, name) in native.variables)


def _is_plain(column: pa.ChunkedArray) -> bool:
    if column.null_count:
        return False
    values = np.asarray(column)
    return bool(np.all(np.abs(values) <= LARGEST))  # false for NaN and infinity as well


def loop(
    native: Native, moving: int, sides: tuple[pa.Table, pa.Table], place: str, position: str, back: int, ahead: int
) -> Iterator[tuple[Numbers, Numbers]]:
    """Row numbers (moving, still) of the pairs that band and predicate admit, some at a time."""
    kernel = _compiled(_generate(native, moving))
    tables = {"l": sides[0], "r": sides[1]}
    places, positions = np.asarray(sides[moving].column(place)), np.asarray(sides[1 - moving].column(position))
    values = [np.ascontiguousarray(tables[side].column(name)) for _, (side, name) in native.variables]
    room = max(ROOM, len(positions))
    out = np.empty(room, np.int64), np.empty(room, np.int64)
    start = 0
    while start < len(places):
        start, found = kernel(start, places, positions, back, ahead, *values, *out)
        if found:
            yield out[0][:found].copy(), out[1][:found].copy()


def _generate(native: Native, moving: int) -> str:
    """Source in which a variable of the moving side is read once per tuple, one of the still side once per pair."""
    side = ("l", "r")[moving]
    hoisted, predicate = [], native.source
    for name, (of, _) in native.variables:
        if of == side:
            hoisted.append(f"        {name}_i = {name}[i]")
        replacement = f"{name}_i" if of == side else f"{name}[j]"
        predicate = re.sub(rf"\b{name}\b", replacement, predicate)
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
