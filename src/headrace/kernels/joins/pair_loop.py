"""Loops over pairs, compiled for one predicate: used when no index can reduce the pairs enough.

The loop runs over the moving side, and compares each of its tuples with a range of the fixed side. A first pass over
the range fills a mask without branches, so that the compiler uses vector instructions. A second pass, only if the mask
is not empty, writes row numbers. For some pairs the loop cannot know DuckDB's answer: it marks these pairs, and gives
up if they are too many.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba.core.errors import NumbaError

from headrace.columnar import duck
from headrace.columnar.arrow import Numbers
from headrace.columnar.numba_cache import compile_text
from headrace.expressions.bound_expression import ValueType
from headrace.expressions.loop_values import form_of
from headrace.expressions.pair_codegen import (
    LARGEST_DOUBLE,
    LARGEST_TIME,
    LARGEST_WHOLE,
    Column,
    CompiledPredicate,
    LoopSource,
    Variable,
)
from headrace.kernels.joins import pair_arithmetic, undecided_pairs
from headrace.kernels.stateless.evaluate import try_evaluate

_log = logging.getLogger(__name__)

WORTH_COMPILING = 2_000_000  # pairs; with fewer, DuckDB finishes before the compiler
PAIRS_PER_BATCH = 1 << 20  # row numbers that one batch can have
FIRST_BATCH_PAIRS = 1 << 14  # size of the first batch; it doubles, so that many doubts are noticed early

_SOURCE = """
def kernel(start, first, last, places, positions, back, ahead, {arguments}, mask, moving_out, fixed_out, unsure_out):
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
            inside = (position[j] >= low) & (position[j] <= high)
{lines}
            mask[j] = {state}
            hits += mask[j] != 0
        if hits > 0:
            for j in range(count):
                if mask[j]:
                    moving_out[found] = i
                    fixed_out[found] = begin + j
                    unsure_out[found] = mask[j] > 1
                    found += 1
    return len(places), found
"""


@dataclass(frozen=True)
class PairRanges:
    """The pairs to compare: row i of the moving table and rows first[i] .. last[i] - 1 of the fixed one.

    The window admits the pairs with  position in [place - back, place + ahead].
    """

    moving: int  # 0: L, 1: R
    places: Numbers
    positions: Numbers
    back: int
    ahead: int
    first: Numbers
    last: Numbers

    @classmethod
    def all(cls, moving: int, places: Numbers, positions: Numbers, back: int, ahead: int) -> PairRanges:
        first = np.zeros(len(places), np.int64)
        return cls(moving, places, positions, back, ahead, first, np.full(len(places), len(positions)))


# --- arguments of the loop -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundLoop:
    """A predicate bound to two tables: the source of the loop, and an array or a number for each variable."""

    source: LoopSource
    values: tuple[Any, ...]

    def kernel(self, moving: int) -> Any:
        return _compiled(_generate(self.source, moving))

    def compiles(self, moving: int) -> bool:
        """Return whether the compiler accepts the source, tested without any pair. DuckDB evaluates what it does not
        accept."""
        none, no_pairs = (
            _fixed(np.empty(0, np.int64)),
            (np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)),
        )
        try:
            self.kernel(moving)(0, none, none, none, none, 0, 0, *self.values, *no_pairs, np.empty(0, np.bool_))
        except NumbaError as error:
            _log.warning("a predicate is not compiled, and is left to DuckDB, which is slower: %s", error)
            return False
        return True


def bind_columns(native: CompiledPredicate, left: pa.Table, right: pa.Table) -> BoundLoop | None:
    """Bind a predicate to two tables. Return None if the part that DuckDB computes per side fails on some tuple.

    The failing tuple may be in no pair, so the failure must not end the run here.
    """
    columns = _columns(native, {"l": left, "r": right})
    if columns is None:
        return None
    plain = all(_is_plain(columns[column], kind) for column, kind in native.columns.items())
    source = native.source(plain=plain)
    texts = [variable.text for variable in source.variables if variable.text is not None]
    codes = _codes({name: columns[name] for name, kind in native.columns.items() if form_of(kind) == "text"}, texts)
    values = [_value(variable, columns, native.columns, codes) for variable in source.variables]
    return BoundLoop(source, tuple(values))


def _columns(native: CompiledPredicate, tables: Mapping[str, pa.Table]) -> dict[Column, pa.ChunkedArray] | None:
    found = {c: tables[c[0]].column(c[1]) for c in native.columns if c[1] in tables[c[0]].column_names}
    for side, table in tables.items():
        given = [each for each in native.given if each.side == side]
        if not given:
            continue
        sql = ", ".join(f"{each.sql} AS {duck.quote(each.name)}" for each in given)
        computed = try_evaluate(f"SELECT {sql} FROM {side}", {side: table}, native.sql)
        if isinstance(computed, str):
            return None
        found |= {(side, each.name): computed.column(each.name) for each in given}
    return found


def _is_plain(column: pa.ChunkedArray, kind: ValueType) -> bool:
    if column.null_count:
        return False
    match form_of(kind):
        case "double" | "single":
            return bool(np.all(np.abs(np.asarray(column)) <= LARGEST_DOUBLE))  # also false for NaN and infinity
        case "whole":
            return _within(column, -LARGEST_WHOLE, LARGEST_WHOLE)
        case "time":
            return _within(column.cast(pa.int64()), 0, LARGEST_TIME)
    return True


def _within(column: pa.ChunkedArray, low: int, high: int) -> bool:
    ends = pc.min_max(column)
    return not len(column) or bool(low <= ends["min"].as_py() and ends["max"].as_py() <= high)


def _value(
    variable: Variable,
    columns: Mapping[Column, pa.ChunkedArray],
    kinds: Mapping[Column, ValueType],
    codes: Mapping[Any, Any],
) -> Any:
    if variable.column is None:
        return codes[variable.text]
    column = columns[variable.column]
    if variable.nulls:
        return _fixed(np.ascontiguousarray(column.is_null()))
    if variable.column in codes:
        return _fixed(codes[variable.column])
    return _fixed(_numbers(column, form_of(kinds[variable.column])))


def _numbers(column: pa.ChunkedArray, kind: str) -> npt.NDArray[Any]:
    """Return a column as an array for the loop. The values at nulls are arbitrary."""
    if kind == "wide":
        return _units(column)
    if kind == "boolean":
        return np.ascontiguousarray(column.fill_null(False), np.bool_)
    if kind in ("double", "single"):
        return np.ascontiguousarray(column.fill_null(0.0), np.float64)
    plain = column.cast(pa.int32()) if kind == "date" else column
    return np.ascontiguousarray(plain.cast(pa.int64()).fill_null(0))


def _units(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return decimals in units of their last place, and unsigned 64-bit integers, as the nearest doubles."""
    if not pa.types.is_decimal(column.type):
        return np.ascontiguousarray(column.fill_null(0), np.float64)
    scale = column.type.scale
    whole = pa.chunked_array(
        [chunk.cast(pa.decimal128(38, scale)) for chunk in column.chunks], pa.decimal128(38, scale)
    )
    pieces = [
        np.frombuffer(c.buffers()[1], np.int64).reshape(-1, 2)[c.offset : c.offset + len(c)] for c in whole.chunks
    ]
    halves = np.concatenate([np.empty((0, 2), np.int64), *pieces])
    low, high = halves[:, 0], halves[:, 1]
    short = high == low >> 63
    return np.where(short, low.astype(np.float64), high * 2.0**64 + low.view(np.uint64).astype(np.float64))


def _codes(columns: Mapping[Column, pa.ChunkedArray], texts: list[str]) -> dict[Any, Any]:
    """Return, for text columns and constant texts, numbers that compare like the texts: ranks by bytes among all texts."""
    if not columns and not texts:
        return {}
    parts = [pa.chunked_array([texts], pa.large_string()), *(c.cast(pa.large_string()) for c in columns.values())]
    every = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.large_string()).combine_chunks()
    encoded = every.dictionary_encode()
    order = np.asarray(pc.sort_indices(encoded.dictionary))
    place = np.empty(len(order) + 1, np.int64)
    place[order] = np.arange(len(order))
    place[-1] = 0  # the code of a null
    found = place[np.asarray(encoded.indices.fill_null(len(order)))]
    ends = np.cumsum([len(part) for part in parts])
    named: dict[Any, Any] = {text: int(found[n]) for n, text in enumerate(texts)}
    named |= {name: np.ascontiguousarray(found[a:b]) for name, a, b in zip(columns, ends[:-1], ends[1:], strict=True)}
    return named


def _fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view. The compiler makes a separate loop for every combination of writable and read-only
    arrays."""
    fixed = values.view()
    fixed.setflags(write=False)
    return fixed


# --- the loop ------------------------------------------------------------------------------------------------------------


class PairLoop:
    """Row numbers (moving, fixed) of the pairs that window and predicate admit, in batches, and whether DuckDB must
    decide.

    patient: keep going however many pairs are in doubt. Otherwise the loop may give up; moving rows from `done` on are
    then not processed.
    """

    def __init__(self, fitted: BoundLoop, reach: PairRanges, *, patient: bool = False) -> None:
        self.fitted, self.reach, self.patient = fitted, reach, patient
        self.done = 0

    @property
    def gave_up(self) -> bool:
        return self.done < len(self.reach.places)

    def __iter__(self) -> Iterator[tuple[Numbers, Numbers, npt.NDArray[np.bool_]]]:
        reach, kernel = self.reach, self.fitted.kernel(self.reach.moving)
        counts = reach.last - reach.first
        widest, pairs = int(counts.max(initial=0)), int(counts.sum())
        mask = np.empty(widest, np.uint8)
        where = (*map(_fixed, (reach.first, reach.last, reach.places, reach.positions)), reach.back, reach.ahead)
        room, looked_at, unsure = min(FIRST_BATCH_PAIRS, PAIRS_PER_BATCH), 0, 0
        while self.gave_up:
            size = max(room, widest)
            out = (np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.bool_))
            stop, found = kernel(self.done, *where, *self.fitted.values, mask, *out)
            looked_at += int(counts[self.done : stop].sum())
            unsure += int(np.count_nonzero(out[2][:found]))
            if not self.patient and undecided_pairs.is_too_many(unsure, looked_at, pairs):
                return
            self.done, room = stop, min(2 * room, PAIRS_PER_BATCH)
            if found:
                yield out[0][:found], out[1][:found], out[2][:found]


def _generate(source: LoopSource, moving: int) -> str:
    """Return the source, in which a variable of the moving side is read once per tuple, one of the fixed side once per
    pair."""
    side = "lr"[moving]
    hoisted, lines = [], []
    for variable in source.variables:
        name = variable.name
        if variable.column is None:
            hoisted.append(f"{name} = {name}_all")
        elif variable.column[0] == side:
            hoisted.append(f"{name} = {name}_all[i]")
        else:
            hoisted.append(f"{name}_some = {name}_all[begin : begin + count]")
            lines.append(f"{name} = {name}_some[j]")
    lines += [f"{name} = {text}" for name, text in source.lines]
    true = f"({source.true}) & inside"
    state = true if source.unsure is None else f"where(({source.unsure}) & inside, 2, i64({true}))"
    return _SOURCE.format(
        arguments=", ".join(f"{variable.name}_all" for variable in source.variables),
        hoisted="\n".join(f"        {line}" for line in hoisted),
        lines="\n".join(f"            {line}" for line in lines),
        state=state,
    )


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> Any:
    return compile_text(source, "kernel", pair_arithmetic.TEXT, pair_arithmetic.NAMES)
