"""Tuples beside a table: each with all rows of it that satisfy a predicate.

Invariant: of the pairs (tuple, row) exactly those are found for which the predicate is true, each once; with `keep` every
tuple of no such pair comes once, with nulls. Which way they are found changes nothing but the time it takes:

    an equality      the rows lie by the hash of their key, and tuples are looked up
    near each other  rows, or tuples, lie along the number, and ranges of them are looked at (a box: one side of it so)
    a compiled loop  over what is left to look at, where it is exact and there is enough of it
    anything else    DuckDB

What a table's rows lie by is made once for every version and kept in the process (`kept`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar import arrow, numba_loops
from headrace.columnar.arrow import Numbers
from headrace.expressions.predicates import BandCondition, JoinPredicate
from headrace.kernels.joins import band, pair_loop, undecided_pairs, window_join
from headrace.kernels.joins.equijoin import equal_ranges
from headrace.kernels.joins.pairs import expand_ranges, pair_batches, side_by_side
from headrace.kernels.stateless.evaluate import evaluate
from headrace.plan import TableStep
from headrace.plan.columns_read import Names, names_of, side_columns
from headrace.routing.by_range import as_numbers
from headrace.routing.hashing import Hashes, hash_rows

MOST_PAIRS_TOGETHER = 10_000_000  # pairs that DuckDB is given at a time: they may all be results
MOST_INDEXED_TABLES = 32  # steps whose tables stay in the process
ROW = "__row"

Pairs = Iterator[tuple[Numbers, Numbers]]  # row numbers of tuples and of the table


@dataclass(frozen=True)
class IndexedTable:
    """A version of a table for one step, and what its rows lie by."""

    step: TableStep
    rows: pa.Table
    checksum: str

    @cached_property
    def by_hash(self) -> tuple[Numbers, Hashes]:
        """Rows by the hash of their key, and the hashes; a null meets nothing."""
        keys, names = self.step.on.keys, [key.right for key in self.step.on.keys]
        valid = _valid(self.rows, names)
        hashed = hash_rows(_some(self.rows, names, valid), names, [key.type for key in keys])
        order = numba_loops.order_by_hash(hashed)
        return valid[order], hashed[order]

    @cached_property
    def along(self) -> BandIndex | None:
        """Rows by the numbers that a tuple must be near to."""
        near = near_part(self.step.on)
        return None if near is None else band_index(near, "r", self.rows)


@dataclass(frozen=True)
class BandIndex:
    """Rows that can be near something, and the numbers that they lie by: one for points, which are in order, two for
    intervals.
    """

    rows: Numbers
    values: tuple[band.Doubles, ...]


_kept: OrderedDict[TableStep, IndexedTable] = OrderedDict()
_lock = threading.Lock()


def table_columns_read(step: TableStep) -> Names:
    """The columns of the table that the step reads, in lower case."""
    return names_of(column for _, side, column in step.columns if side == "r") | side_columns(step.on.sql, "r")


def indexed_table(step: TableStep, rows: pa.Table, checksum: str) -> IndexedTable:
    """The version with this checksum, as the step wants it; an earlier one is let go."""
    with _lock:
        found = _kept.get(step)
        if found is None or found.checksum != checksum:
            needed = table_columns_read(step)
            names = [name for name in rows.column_names if name.lower() in needed] or rows.column_names[:1]
            found = _kept[step] = IndexedTable(step, rows.select(names).combine_chunks(), checksum)
        _kept.move_to_end(step)
        while len(_kept) > MOST_INDEXED_TABLES:
            _kept.popitem(last=False)
        return found


def pairing_method(step: TableStep) -> str:
    """How the pairs of tuples and rows are found."""
    on = step.on
    part = None if on.keys else near_part(on)
    if part:
        return f"index, looked up along {'.'.join(part.point)}"
    barred = not on.keys and not on.safe and (on.band or on.box)
    found = window_join.pairing_method(on, in_time=False)
    return f"{found}; {window_join.no_index(on)}" if barred else found


def join_table(tuples: pa.Table, table: IndexedTable) -> Iterator[pa.Table]:
    """What comes of the tuples, some at a time."""
    step = table.step
    met = np.zeros(tuples.num_rows, bool)
    for l, r in _true_pairs(tuples, table) if tuples.num_rows and table.rows.num_rows else ():
        met[l] = True
        for some in pair_batches(tuples, table.rows, len(l)):
            yield side_by_side(step, arrow.take_rows(tuples, l[some]), arrow.take_rows(table.rows, r[some]))
    if step.keep and not met.all():
        yield side_by_side(step, arrow.take_rows(tuples, np.flatnonzero(~met)), None)


def _true_pairs(tuples: pa.Table, table: IndexedTable) -> Pairs:
    on = table.step.on
    if on.keys:
        return _satisfying(tuples, table, _of_one_key(tuples, table))
    if (part := near_part(on)) is not None and table.along is not None:
        mine = band_index(part, "l", tuples)
        if mine is not None:
            return _nearby(part, tuples, table, mine, table.along)
    return _every(tuples, table)


# --- by an equality ------------------------------------------------------------------------------------------------


def _of_one_key(tuples: pa.Table, table: IndexedTable) -> Pairs:
    """Pairs of equal hashes, and perhaps others."""
    keys, names = table.step.on.keys, [key.left for key in table.step.on.keys]
    order, hashed = table.by_hash
    if not len(order):
        return
    valid = _valid(tuples, names)
    asked = hash_rows(_some(tuples, names, valid), names, [key.type for key in keys])
    some, first, last = equal_ranges(asked, hashed)
    for i, j in expand_ranges(first, last):
        yield valid[some[i]], order[j]


def _satisfying(tuples: pa.Table, table: IndexedTable, candidates: Pairs) -> Pairs:
    for l, r in candidates:
        if len(l):
            true = _true(tuples, table, l, r)
            yield l[true], r[true]


def _true(tuples: pa.Table, table: IndexedTable, l: Numbers, r: Numbers) -> Numbers:
    """Which pairs satisfy the predicate; null is not true."""
    on = table.step.on
    return _asked(on, _used(tuples, on.sql, "l"), _used(table.rows, on.sql, "r"), l, r)


def _asked(on: JoinPredicate, left: pa.Table, right: pa.Table, l: Numbers, r: Numbers) -> Numbers:
    pairs = {"l": arrow.take_rows(left, l), "r": arrow.take_rows(right, r)}
    if on.plain_keys:
        equal = [pc.equal(pairs["l"].column(key.left), pairs["r"].column(key.right)) for key in on.keys]
        found = equal[0]
        for other in equal[1:]:
            found = pc.and_(found, other)
    else:
        sql = f"SELECT coalesce({on.sql}, false) AS keep FROM l POSITIONAL JOIN r"
        found = evaluate(sql, pairs, on.text, in_pairs=True).column(0)
    return np.flatnonzero(np.asarray(found))


def _used(rows: pa.Table, sql: str, side: str) -> pa.Table:
    """The columns that the predicate looks at; at least one, so that a table of them has rows."""
    used = side_columns(sql, side)
    return rows.select([name for name in rows.column_names if name.lower() in used] or rows.column_names[:1])


def _some(rows: pa.Table, names: Sequence[str], numbers: Numbers) -> pa.Table:
    """These rows, in ascending order, of columns that may be named twice."""
    return rows if len(numbers) == rows.num_rows else arrow.take_rows(rows.select(list(dict.fromkeys(names))), numbers)


def _valid(rows: pa.Table, names: Sequence[str]) -> Numbers:
    """Numbers of the rows without a null in these columns."""
    found = np.ones(rows.num_rows, bool)
    for name in names:
        column = rows.column(name)
        if column.null_count:
            found &= np.asarray(column.is_valid())
    return np.flatnonzero(found)


# --- near each other -----------------------------------------------------------------------------------------------


def near_part(on: JoinPredicate) -> BandCondition | None:
    """The part of a predicate that keeps two numbers near each other. One that may fail is asked of every pair, as it is by the
    reference: whether it fails must not depend on what else is there."""
    return on.band or on.box if on.safe else None


def band_index(part: BandCondition, side: str, rows: pa.Table) -> BandIndex | None:
    """None: NaN or an infinity, of which DuckDB knows more. A null is near to nothing."""
    point = part.point[0] == side
    names = part.point[1:] if point else part.interval
    valid = _valid(rows, names)
    some = _some(rows, names, valid)
    values = [as_numbers(some.column(name)).astype(np.float64) for name in names]  # slack is for what this rounds
    if not all(np.isfinite(each).all() for each in values):
        return None
    if point:
        order = np.argsort(values[0], kind="stable")
        valid, values = valid[order], [values[0][order]]
    return BandIndex(valid, tuple(values))


def _nearby(part: BandCondition, tuples: pa.Table, table: IndexedTable, left: BandIndex, right: BandIndex) -> Pairs:
    """Every interval looks at one range of the points."""
    moving = "lr".index(part.moving)
    asking, fixed = (left, right) if moving == 0 else (right, left)
    first, last = band.point_ranges(part, *fixed.values, *asking.values)
    on, looked_at = table.step.on, int((last - first).sum())
    if on.native is not None and looked_at >= pair_loop.WORTH_COMPILING:
        l = arrow.take_rows(_used(tuples, on.sql, "l"), left.rows)
        r = arrow.take_rows(_used(table.rows, on.sql, "r"), right.rows)
        looped = _loop(on, l, r, _without_window(moving, first, last), patient=True)  # else they are all asked for
        if looped is not None:
            return _as_rows(moving, asking.rows, fixed.rows, _decided(on, l, r, looped))
    return _satisfying(tuples, table, _as_rows(moving, asking.rows, fixed.rows, expand_ranges(first, last)))


def _loop(
    on: JoinPredicate, left: pa.Table, right: pa.Table, reach: pair_loop.PairRanges, *, patient: bool = False
) -> pair_loop.PairLoop | None:
    """A compiled loop over pairs; None: it cannot be done."""
    fitted = pair_loop.bind_columns(on.native, left, right) if on.native else None
    return pair_loop.PairLoop(fitted, reach, patient=patient) if fitted and fitted.compiles(reach.moving) else None


def _decided(on: JoinPredicate, left: pa.Table, right: pa.Table, looped: pair_loop.PairLoop) -> Pairs:
    """Pairs (moving, fixed); DuckDB says what the loop is not sure of."""
    for moving, fixed, unsure in looped:
        true, asked = ~unsure, np.flatnonzero(unsure)
        l, r = (moving[asked], fixed[asked]) if looped.reach.moving == 0 else (fixed[asked], moving[asked])
        if len(asked):
            true[asked[_asked(on, left, right, l, r)]] = True
        yield moving[true], fixed[true]


def _as_rows(moving: int, asking: Numbers, fixed: Numbers, pairs: Pairs) -> Pairs:
    """Places among those that ask and those that are asked, as row numbers of tuples and of the table."""
    for i, j in pairs:
        yield (asking[i], fixed[j]) if moving == 0 else (fixed[j], asking[i])


def _without_window(moving: int, first: Numbers, last: Numbers) -> pair_loop.PairRanges:
    """A table has no time: all places are one."""
    positions = np.zeros(int(last.max(initial=0)), np.int64)
    return pair_loop.PairRanges(moving, np.zeros(len(first), np.int64), positions, 0, 0, first, last)


# --- anything else -------------------------------------------------------------------------------------------------


def _every(tuples: pa.Table, table: IndexedTable) -> Pairs:
    """Every pair: in a compiled loop where that pays and leaves little open, else in DuckDB."""
    on, pairs = table.step.on, tuples.num_rows * table.rows.num_rows
    left, right = _used(tuples, on.sql, "l"), _used(table.rows, on.sql, "r")
    done = [0, 0]  # rows of each side that are dealt with
    if on.native is not None and pairs >= pair_loop.WORTH_COMPILING:
        moving = int(left.num_rows > right.num_rows)  # the long side is what the loop runs along
        count, along = sorted((left.num_rows, right.num_rows))
        reach = _without_window(moving, np.zeros(count, np.int64), np.full(count, along))
        looped = _loop(on, left, right, reach)
        if looped is not None:
            yield from _as_rows(moving, np.arange(count), np.arange(along), _decided(on, left, right, looped))
            if not looped.gave_up:
                return
            undecided_pairs.note_undecided(on.text)
            done[moving] = looped.done
    yield from _by_duckdb(on, left, right, *done)


def _by_duckdb(on: JoinPredicate, left: pa.Table, right: pa.Table, l: int, r: int) -> Pairs:
    """Pairs of the rows from these on."""
    numbered = right.append_column(ROW, pa.array(np.arange(right.num_rows))).slice(r)
    sql = f"SELECT l.{ROW} AS l, r.{ROW} AS r FROM l JOIN r ON {on.sql}"
    most = max(1, MOST_PAIRS_TOGETHER // numbered.num_rows)
    for start in range(l, left.num_rows, most):
        some = left.slice(start, most)
        some = some.append_column(ROW, pa.array(np.arange(start, start + some.num_rows)))
        found = evaluate(sql, {"l": some, "r": numbered}, on.text)
        yield np.asarray(found.column("l")), np.asarray(found.column("r"))
