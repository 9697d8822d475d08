"""Joins of tuples with a table: each tuple with all rows of the table that satisfy a predicate.

Invariant: the result has exactly the pairs (tuple, row) for which the predicate is true, each once. With `keep`, every
tuple without a pair is emitted once, with nulls. The method affects only the time:

    an equality      rows are indexed by the hash of their key, and tuples are looked up
    near each other  rows, or tuples, are sorted by the number, and ranges of them are compared (of a box, one dimension);
                     of a distance on the Earth, the latitude is the number, and straight lines reduce the ranges
    a compiled loop  over all remaining pairs, if it is exact and there are enough pairs
    anything else    DuckDB

The indexes of a table are made once for every version and kept in the process (`indexed_table`).
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
from headrace.kernels.joins import band, pair_loop, theta_join, undecided_pairs
from headrace.kernels.joins.equijoin import equal_ranges
from headrace.kernels.joins.pairs import expand_ranges, pair_batches, side_by_side
from headrace.kernels.stateless.evaluate import evaluate
from headrace.plan import TableStep
from headrace.plan.columns_read import Names, names_of, side_columns
from headrace.routing.by_range import as_numbers
from headrace.routing.hashing import Hashes, hash_rows

MOST_PAIRS_TOGETHER = 10_000_000  # pairs that DuckDB gets at a time, all of which may be results
MOSTLY_NEAR = 1 / 6  # share of the pairs of a band; if more are in the circle, a loop over the band is faster
MOST_INDEXED_TABLES = 32  # steps whose tables stay in the process
ROW = "__row"

Pairs = Iterator[tuple[Numbers, Numbers]]  # row numbers of tuples and of the table


@dataclass(frozen=True)
class IndexedTable:
    """A version of a table for one step, and its indexes."""

    step: TableStep
    rows: pa.Table
    checksum: str

    @cached_property
    def by_hash(self) -> tuple[Numbers, Hashes]:
        """Return the rows sorted by the hash of their key, and the hashes. Rows with a null key match nothing and are
        omitted."""
        keys, names = self.step.on.keys, [key.right for key in self.step.on.keys]
        valid = _valid(self.rows, names)
        hashed = hash_rows(_some(self.rows, names, valid), names, [key.type for key in keys])
        order = numba_loops.order_by_hash(hashed)
        return valid[order], hashed[order]

    @cached_property
    def along(self) -> BandIndex | None:
        """Return the rows sorted by the number of the band condition; None if there is no such index."""
        near = near_part(self.step.on)
        return None if near is None else band_index(near, "r", self.rows)


@dataclass(frozen=True)
class BandIndex:
    """Rows that can be near a number, and those numbers: one array of sorted points, or two arrays of interval bounds.

    others: rows with NaN, infinity or a place that is not on the Earth. DuckDB has its own order for these, so they are
    compared with every row of the other side. places: the rows as points on a sphere, if the condition is a circle.
    """

    rows: Numbers
    values: tuple[band.Doubles, ...]
    others: Numbers
    places: band.Doubles | None


_kept: OrderedDict[TableStep, IndexedTable] = OrderedDict()
_lock = threading.Lock()


def table_columns_read(step: TableStep) -> Names:
    """Return the columns of the table that the step reads, in lower case."""
    return names_of(column for _, side, column in step.columns if side == "r") | side_columns(step.on.sql, "r")


def indexed_table(step: TableStep, rows: pa.Table, checksum: str) -> IndexedTable:
    """Return the table version with this checksum, indexed for the step. It replaces an earlier version."""
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
    """Return the name of the method that finds the pairs of tuples and rows."""
    on = step.on
    part = None if on.keys else near_part(on)
    if part:
        return f"index, looked up along {part.along}"
    barred = not on.keys and not on.safe and (on.band or on.box or on.near_if_safe)
    found = theta_join.pairing_method(on, in_time=False)
    return f"{found}; {theta_join.no_index(on)}" if barred else found


def join_table(tuples: pa.Table, table: IndexedTable) -> Iterator[pa.Table]:
    """Yield the joined tuples in batches."""
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
        return _along(part, tuples, table, band_index(part, "l", tuples), table.along)
    return _every(tuples, table, np.arange(tuples.num_rows), np.arange(table.rows.num_rows))


# --- by an equality ------------------------------------------------------------------------------------------------


def _of_one_key(tuples: pa.Table, table: IndexedTable) -> Pairs:
    """Yield pairs with equal hashes; the predicate checks them."""
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
    """Return the numbers of the pairs that satisfy the predicate; null is not true."""
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
    """Return the columns that the predicate reads; at least one, because a table needs a column to have rows."""
    used = side_columns(sql, side)
    return rows.select([name for name in rows.column_names if name.lower() in used] or rows.column_names[:1])


def _some(rows: pa.Table, names: Sequence[str], numbers: Numbers) -> pa.Table:
    """Return these rows, in ascending order, of columns that may be named twice."""
    return rows if len(numbers) == rows.num_rows else arrow.take_rows(rows.select(list(dict.fromkeys(names))), numbers)


def _valid(rows: pa.Table, names: Sequence[str]) -> Numbers:
    """Return the numbers of the rows without a null in these columns."""
    found = np.ones(rows.num_rows, bool)
    for name in names:
        column = rows.column(name)
        if column.null_count:
            found &= np.asarray(column.is_valid())
    return np.flatnonzero(found)


# --- near each other -----------------------------------------------------------------------------------------------


def near_part(on: JoinPredicate) -> BandCondition | None:
    """Return the part of a predicate that keeps two numbers near each other; None if there is none or the predicate can
    fail. A circle comes first, because it is the strictest part.

    A predicate that can fail is evaluated on every pair, as in the reference: other data must not decide whether it
    fails.
    """
    near = on.near
    return near if near and near.circle else (on.band or on.box or near if on.safe else None)


def band_index(part: BandCondition, side: str, rows: pa.Table) -> BandIndex:
    """Return an index of rows by the numbers of a band condition. Nulls are near nothing and are omitted."""
    rows = band.with_computed(part, side, rows)
    is_point = part.point[0] == side
    names = part.point[1:] if is_point else part.interval
    place = part.circle.place(side) if part.circle else ()
    valid = _valid(rows, [*names, *place])
    some = _some(rows, [*names, *place], valid)
    values = [as_numbers(some.column(name)).astype(np.float64) for name in names]  # `band.SLACK` covers this rounding
    usable = band.are_places(some, *place) if place else np.all(np.isfinite(values), axis=0)
    held = np.flatnonzero(usable)
    if is_point:
        held = held[np.argsort(values[0][held], kind="stable")]
    places = band.on_sphere(arrow.take_rows(_some(rows, place, valid), held), *place) if place else None
    return BandIndex(valid[held], tuple(each[held] for each in values), valid[~usable], places)


def _along(part: BandCondition, tuples: pa.Table, table: IndexedTable, left: BandIndex, right: BandIndex) -> Pairs:
    """Yield the pairs that the two indexes hold, then those of the rows that they do not hold."""
    yield from _nearby(part, tuples, table, left, right)
    yield from _every(tuples, table, left.others, np.arange(table.rows.num_rows))
    yield from _every(tuples, table, left.rows, right.others)


def _nearby(part: BandCondition, tuples: pa.Table, table: IndexedTable, left: BandIndex, right: BandIndex) -> Pairs:
    """Yield the pairs of a band condition: each interval is compared with one range of the points."""
    moving = "lr".index(part.moving)
    asking, fixed = (left, right) if moving == 0 else (right, left)
    first, last = band.point_ranges(part, *fixed.values, *asking.values)
    on, looked_at = table.step.on, int((last - first).sum())
    worth, candidates = on.native is not None and looked_at >= pair_loop.WORTH_COMPILING, expand_ranges(first, last)
    if part.circle and asking.places is not None and fixed.places is not None:
        distances = band.Distances(asking.places, fixed.places, band.most_squared(part.circle))
        worth = worth and distances.estimated_pairs(first, last) > MOSTLY_NEAR * looked_at
        candidates = distances.within(first, last)
    if worth:
        l = arrow.take_rows(_used(tuples, on.sql, "l"), left.rows)
        r = arrow.take_rows(_used(table.rows, on.sql, "r"), right.rows)
        looped = _loop(on, l, r, _without_window(moving, first, last), patient=True)
        if looped is not None:
            return _as_rows(moving, asking.rows, fixed.rows, _decided(on, l, r, looped))
    return _satisfying(tuples, table, _as_rows(moving, asking.rows, fixed.rows, candidates))


def _loop(
    on: JoinPredicate, left: pa.Table, right: pa.Table, reach: pair_loop.PairRanges, *, patient: bool = False
) -> pair_loop.PairLoop | None:
    """Return a compiled loop over pairs; None if it cannot be compiled."""
    fitted = pair_loop.bind_columns(on.native, left, right) if on.native else None
    return pair_loop.PairLoop(fitted, reach, patient=patient) if fitted and fitted.compiles(reach.moving) else None


def _decided(on: JoinPredicate, left: pa.Table, right: pa.Table, looped: pair_loop.PairLoop) -> Pairs:
    """Yield pairs (moving, fixed). DuckDB decides the pairs of which the loop is not sure."""
    for moving, fixed, unsure in looped:
        true, asked = ~unsure, np.flatnonzero(unsure)
        l, r = (moving[asked], fixed[asked]) if looped.reach.moving == 0 else (fixed[asked], moving[asked])
        if len(asked):
            true[asked[_asked(on, left, right, l, r)]] = True
        yield moving[true], fixed[true]


def _as_rows(moving: int, asking: Numbers, fixed: Numbers, pairs: Pairs) -> Pairs:
    """Convert places in the two indexes to row numbers of tuples and of the table."""
    for i, j in pairs:
        yield (asking[i], fixed[j]) if moving == 0 else (fixed[j], asking[i])


def _without_window(moving: int, first: Numbers, last: Numbers) -> pair_loop.PairRanges:
    """Return the pairs without a window: a table has no time, so all positions are equal."""
    positions = np.zeros(int(last.max(initial=0)), np.int64)
    return pair_loop.PairRanges(moving, np.zeros(len(first), np.int64), positions, 0, 0, first, last)


# --- anything else -------------------------------------------------------------------------------------------------


def _every(tuples: pa.Table, table: IndexedTable, l: Numbers, r: Numbers) -> Pairs:
    """Yield the matching pairs among all pairs of these rows."""
    if len(l) and len(r):
        left, right = _used(tuples, table.step.on.sql, "l"), _used(table.rows, table.step.on.sql, "r")
        for i, j in _matching(table.step.on, arrow.take_rows(left, l), arrow.take_rows(right, r)):
            yield l[i], r[j]


def _matching(on: JoinPredicate, left: pa.Table, right: pa.Table) -> Pairs:
    """Yield the matching pairs of two tables: from a compiled loop if that pays and decides most pairs, else from
    DuckDB."""
    pairs = left.num_rows * right.num_rows
    done = [0, 0]  # processed rows of each side
    if on.native is not None and pairs >= pair_loop.WORTH_COMPILING:
        moving = int(left.num_rows > right.num_rows)  # the inner loop runs along the longer side
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
    """Yield the pairs of the rows from `l` and `r` on."""
    numbered = right.append_column(ROW, pa.array(np.arange(right.num_rows))).slice(r)
    sql = f"SELECT l.{ROW} AS l, r.{ROW} AS r FROM l JOIN r ON {on.sql}"
    most = max(1, MOST_PAIRS_TOGETHER // numbered.num_rows)
    for start in range(l, left.num_rows, most):
        some = left.slice(start, most)
        some = some.append_column(ROW, pa.array(np.arange(start, start + some.num_rows)))
        found = evaluate(sql, {"l": some, "r": numbered}, on.text)
        yield np.asarray(found.column("l")), np.asarray(found.column("r"))
