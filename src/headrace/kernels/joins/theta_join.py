"""Theta joins: joins of two windows of tuples on any predicate without an equality.

`headrace.kernels.joins.equijoin` serves predicates with an equality.

Invariant: the result has exactly the pairs (l, r) of the two tables that the window admits and for which the predicate
is true. The predicate is never evaluated on a pair that the window does not admit, unless it cannot fail.

Both kinds of window are strips: a tuple is compared with tuples of the other side whose position is in an interval that
moves with the tuple's own position. A time join is one strip over `ts`. A count join is two strips: one for pairs in
which L came first (over the ranks of L) and one for those in which R did. One side is cut into slices along the strip,
and a slice is compared only with the range of the other side that it can reach. The cost therefore follows the window,
not the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headrace.columnar import arrow, duck
from headrace.columnar.arrow import Numbers
from headrace.expressions import JoinPredicate
from headrace.kernels.joins import band, pair_loop, undecided_pairs
from headrace.kernels.joins.join_spec import JoinSpec, Strip
from headrace.kernels.joins.pairs import Count, decide_pairs, join_results, satisfying_pairs, uncounted
from headrace.kernels.stateless.evaluate import evaluate
from headrace.kernels.stateless.steps import in_schema

TIME = "__t"  # event time as an integer
FEWEST_SLICE_PAIRS = 2_000_000  # fewer pairs are not worth a separate slice
RANGE_JOIN_PAYS = 100_000_000  # pairs; with fewer, a compiled loop finishes before DuckDB has sorted
WORTH_LOOKING_UP = 1 / 16  # share of all pairs; more pairs are faster in a loop, where each costs less
WORTH_SORTING = 0.75  # share of one side that all of the other reaches; above, sorting does not pay


def theta_join(operator: JoinSpec, left: pa.Table, right: pa.Table, count: Count = uncounted) -> Iterator[pa.Table]:
    """Yield the results of all pairs of the two tables, in batches."""
    if left.num_rows == 0 or right.num_rows == 0:
        return
    sides = (_with_time(left), _with_time(right))
    near, kernel = operator.on.near, _compare
    if near is not None and operator.time_window is not None:
        sides = (band.with_computed(near, "l", sides[0]), band.with_computed(near, "r", sides[1]))
        kernel = _look_up if band.is_usable(near, *sides) else _compare
    for strip in operator.strips:
        for l, r in slices(strip, *sides):
            yield from kernel(operator, strip, l, r, count)


def pairing_method(on: JoinPredicate, *, in_time: bool) -> str:
    """Return how the pairs of a join are found, and which part of the predicate rules out an index or a compiled loop."""
    found = _pairing(on, in_time=in_time)
    return f"{found}; {no_index(on)}" if in_time and not on.keys and on.near_if_safe and not on.safe else found


def no_index(on: JoinPredicate) -> str:
    """Return why a predicate that keeps two numbers close is evaluated on every pair."""
    return f"no index, because {on.may_fail} may fail"


def _pairing(on: JoinPredicate, *, in_time: bool) -> str:
    blame = "; ".join(map(str, on.obstacles))
    if on.keys:
        beside = "; compiled where a key is hot" if on.residual and in_time else ""
        left = f"; DuckDB, one by one, what is found: no loop takes {blame}" if blame else ""
        return f"index, looked up by their key{beside}{left}"
    if on.near and in_time:
        return f"index, looked up along {on.near.along}"
    if on.native:
        left = "; DuckDB where it leaves many in doubt" if on.native.source(plain=True).unsure else ""
        return f"compiled, every pair in a loop made for the predicate{left}"
    if on.ranges:
        return "index, found by a range join of DuckDB"
    return f"DuckDB, one by one, which is slow: no loop takes {blame or on.text}"


def _look_up(operator: JoinSpec, strip: Strip, left: pa.Table, right: pa.Table, count: Count) -> Iterator[pa.Table]:
    """Return the results of a slice among the pairs that are near each other, found by binary search.

    `strip` is the whole window here. If so many pairs are near that a loop over all pairs is faster, the loop is used.
    """
    assert operator.on.near is not None
    found = band.Candidates.of(operator.on.near, left, right)
    pairs = left.num_rows * right.num_rows
    if operator.on.native is not None and pairs >= pair_loop.WORTH_COMPILING and found.count > WORTH_LOOKING_UP * pairs:
        return _compare(operator, strip, left, right, count)
    count(found.count)
    return satisfying_pairs(operator, left, right, iter(found))


def _compare(operator: JoinSpec, strip: Strip, left: pa.Table, right: pa.Table, count: Count) -> Iterator[pa.Table]:
    """Yield the results of a slice from all pairs: in a compiled loop if that pays and decides most pairs, else in
    DuckDB."""
    compiled, pairs = operator.on.native, left.num_rows * right.num_rows
    count(pairs)
    most = RANGE_JOIN_PAYS if operator.on.ranges else np.inf
    worth = compiled is not None and pair_loop.WORTH_COMPILING <= pairs < most
    fitted = pair_loop.bind_columns(compiled, left, right) if compiled and worth else None
    if fitted and fitted.compiles(strip.moving):
        sides = (left, right)
        places, positions = (
            sides[strip.moving].column(strip.moving_column),
            sides[1 - strip.moving].column(strip.fixed_column),
        )
        reach = pair_loop.PairRanges.all(
            strip.moving, np.asarray(places), np.asarray(positions), strip.back, strip.ahead
        )
        looped = pair_loop.PairLoop(fitted, reach)
        for moving, fixed, unsure in looped:
            l, r = (moving, fixed) if strip.moving == 0 else (fixed, moving)
            yield from join_results(operator, left, right, *decide_pairs(operator, left, right, l, r, unsure))
        if not looped.gave_up:
            return
        undecided_pairs.note_undecided(operator.on.text)
        rest = sides[strip.moving].slice(looped.done)
        left, right = (rest, right) if strip.moving == 0 else (left, rest)
    yield in_schema(evaluate(_sql(operator, strip), {"l": left, "r": right}, operator.text), operator.schema)


def slices(strip: Strip, left: pa.Table, right: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield parts of the two tables that together contain every pair that the strip admits, each once."""
    moving, fixed = (left, right) if strip.moving == 0 else (right, left)
    if moving.num_rows * fixed.num_rows <= FEWEST_SLICE_PAIRS or _all_in_reach(strip, moving, fixed):
        yield left, right
        return
    moving, places = _sorted(moving, strip.moving_column)
    fixed, positions = _sorted(fixed, strip.fixed_column)
    for start, stop in _cuts(strip, places, positions):
        first = np.searchsorted(positions, places[start] - strip.back, side="left")
        last = np.searchsorted(positions, places[stop - 1] + strip.ahead, side="right")
        if first < last:
            parts = (moving.slice(start, stop - start), fixed.slice(first, last - first))
            yield parts if strip.moving == 0 else (parts[1], parts[0])


def _all_in_reach(strip: Strip, moving: pa.Table, fixed: pa.Table) -> bool:
    """Return whether slices would save little: the moving side is one slice and reaches most of the fixed side."""
    places, positions = np.asarray(moving.column(strip.moving_column)), np.asarray(fixed.column(strip.fixed_column))
    low, high = places.min(), places.max()
    if high - low > strip.back + strip.ahead:
        return False
    met = np.count_nonzero((positions >= low - strip.back) & (positions <= high + strip.ahead))
    return bool(met >= WORTH_SORTING * len(positions))


def _sorted(table: pa.Table, column: str) -> tuple[pa.Table, Numbers]:
    values = np.asarray(table.column(column))
    if np.all(values[:-1] <= values[1:]):
        return table, values
    order = np.argsort(values, kind="stable")
    return arrow.take_rows(table, order), values[order]


def _cuts(strip: Strip, places: Numbers, positions: Numbers) -> Iterator[tuple[int, int]]:
    """Yield slices of the moving side: as long as the strip is wide, longer where they reach few tuples."""
    width = max(strip.back + strip.ahead, 1)
    start = 0
    while start < len(places):
        stop = int(np.searchsorted(places, places[start] + width, side="right"))
        reach = np.searchsorted(positions, places[stop - 1] + strip.ahead, side="right")
        reach -= np.searchsorted(positions, places[start] - strip.back, side="left")
        stop = max(stop, start + FEWEST_SLICE_PAIRS // max(int(reach), 1))
        yield start, min(stop, len(places))
        start = stop


def _with_time(table: pa.Table) -> pa.Table:
    return table.append_column(TIME, table.column("ts").cast(pa.int64()))


def _sql(operator: JoinSpec, strip: Strip) -> str:
    columns = [f"{side}.{duck.quote(name)} AS {duck.quote(out)}" for out, side, name in operator.columns]
    return f"SELECT {', '.join([f'{operator.ts_sql(strip)} AS ts', *columns])} FROM l JOIN r ON {_condition(operator, strip)}"


def _condition(operator: JoinSpec, strip: Strip) -> str:
    """Return the join condition in the form that DuckDB runs fastest without evaluating more pairs than allowed."""
    window = strip.sql
    if not operator.on.safe:
        return f"CASE WHEN {window} THEN {operator.sql} ELSE false END"
    if operator.on.ranges:  # a range join on the predicate; CASE hides the window from the optimiser
        return f"{operator.sql} AND CASE WHEN l.{TIME} IS NOT NULL THEN {window} ELSE false END"
    return f"CASE WHEN {operator.sql} THEN {window} ELSE false END"
