# mypy: disable-error-code="no-untyped-def"
"""Pages of cars: each row of a keyed table contains the records of many cars, sorted by car number.

A change of a row costs microseconds, a change of a record within a page nanoseconds. So cars that change together share
a page: since a car reports every 30 seconds, there are thirty pages, one for each second of the half minute.

A page is two rows: the numbers of its cars, ascending, and the other words of each car (`rest`). A search for a car
reads only the first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace.columnar.numba_loops import copy_piece
from headrace.processor import ProcessorTable

PAGES = 30

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Pages(NamedTuple):
    """Some pages in memory, each with room for more cars."""

    vids: Ints
    rest: Ints  # [car, word]
    starts: Longs
    counts: Longs
    changed: Mask


# --- rows of a table -------------------------------------------------------------------------------------------------


class Pieces:
    """The bytes of some rows, concatenated, as 32-bit words."""

    def __init__(self, table: ProcessorTable, keys: Sequence[tuple[str, Ints]]) -> None:
        asked = pa.table({name: pa.array(values) for name, values in keys})
        chunks = table.get(asked)["bytes"].chunks
        found = chunks[0] if len(chunks) == 1 else pa.concat_arrays([pa.array([], pa.binary()), *chunks])
        offsets = np.frombuffer(found.buffers()[1], np.int32, len(found) + 1, found.offset * 4) // 4
        data = found.buffers()[2]
        self.data: Ints = np.frombuffer(data, np.int32) if data is not None and data.size else np.zeros(1, np.int32)
        self.starts, self.lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)


def blobs(data: Ints, starts: Longs, lengths: Longs) -> pa.Array:
    """Return slices of an array as binary values."""
    target = np.empty(int(lengths.sum()), np.int32)
    gather(data, starts, lengths, target, np.cumsum(lengths) - lengths)
    return binary(target, lengths)


def binary(words: Ints, lengths: Longs) -> pa.Array:
    """Return consecutive words as binary values of the given lengths (in words)."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths * words.itemsize, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(words)])


@compile_cached
def gather(data, starts, lengths, target, places):
    """Copy slices of `data` to the given places of `target`."""
    for piece in range(len(starts)):
        start, place, size = starts[piece], places[piece], lengths[piece]
        copy_piece(data[start : start + size], target[place : place + size])


# --- cars in pages ---------------------------------------------------------------------------------------------------


@compile_inner
def place_in(vids, start, count, vid):
    """Return the place of a car in a page, or where it would be inserted."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if vids[start + middle] < vid:
            low = middle + 1
        else:
            high = middle
    return low


@compile_inner
def place_after(vids, start, count, vid, low):
    """Return the place of a car in a page, or where it would be inserted, searching from `low` on.

    The steps double, so a caller that looks up cars in order can start each search at the last place.
    """
    high, step = low, 1
    while high < count and vids[start + high] < vid:
        low = high + 1
        high += step
        step *= 2
    return low + place_in(vids, start + low, min(high, count) - low, vid)


@compile_inner
def has(vids, start, count, vid):
    place = place_in(vids, start, count, vid)
    return place < count and vids[start + place] == vid


@compile_inner
def take_out(pages, page, place, car):
    """Remove a car from a page, and copy its words to `car`."""
    start, count = pages.starts[page], pages.counts[page]
    for word in range(len(car)):
        car[word] = pages.rest[start + place, word]
    for later in range(start + place, start + count - 1):
        pages.vids[later] = pages.vids[later + 1]
        for word in range(len(car)):
            pages.rest[later, word] = pages.rest[later + 1, word]
    pages.counts[page] = count - 1
    pages.changed[page] = True


@compile_inner
def put_in(pages, page, kept, new, vids, rest):
    """Merge `new` cars into the first `kept` cars of a page, from the last to the first."""
    start, words = pages.starts[page], rest.shape[1]
    old, target = start + kept - 1, start + kept + new - 1
    for place in range(new - 1, -1, -1):
        while old >= start and pages.vids[old] > vids[place]:
            pages.vids[target] = pages.vids[old]
            for word in range(words):
                pages.rest[target, word] = pages.rest[old, word]
            old -= 1
            target -= 1
        pages.vids[target] = vids[place]
        for word in range(words):
            pages.rest[target, word] = rest[place, word]
        target -= 1
    pages.counts[page] = kept + new
    pages.changed[page] = True
