"""Joins, `asof`, aggregates, `distinct` and `limit`: windows, order, matching and time in plain Python and numpy.

DuckDB evaluates only tuples and pairs of the window in question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from headrace.columnar import duck
from headrace.columnar.types import TS
from headrace.columnar.values import Key, comparable_values, sort_key
from headrace.errors import DataError
from headrace.expressions import JoinPredicate, OrderTerm
from headrace.query import nodes
from headrace.reference.evaluate import evaluate_rows, run_select, truth, value_of
from headrace.reference.local_days import DAY, local_window
from headrace.reference.tuples import (
    Numbers,
    in_sequence,
    keys_of,
    row_numbers,
    single_value,
    times_of,
    timestamps,
    tuples_before,
)

PAIRS_TOGETHER = 1_000_000  # pairs, or tuples of windows, in one batch
EARLIEST, LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


Window: TypeAlias = tuple[int, int]  # (first moment, first moment after it)


class WindowInput(Protocol):
    """Tuples of an input, and the time until which nothing follows."""

    @property
    def table(self) -> pa.Table: ...

    @property
    def watermark(self) -> float: ...


def distinct(node: nodes.Distinct, given: WindowInput) -> pa.Table:
    """Keep a tuple unless one with the same key was kept within the given time before it."""
    tuples = in_sequence(tuples_before(given.watermark, given.table))
    kept_at: dict[Key, int] = {}
    rows = []
    for row, (key, ts) in enumerate(zip(keys_of(tuples, node.by), times_of(tuples).tolist(), strict=True)):
        if key not in kept_at or ts - kept_at[key] > node.within:
            kept_at[key] = ts
            rows.append(row)
    return tuples.take(row_numbers(rows))


def limit(node: nodes.Limit, given: WindowInput) -> pa.Table:
    """Return the first tuples of the sequence that the watermark has passed."""
    return in_sequence(tuples_before(given.watermark, given.table)).slice(0, node.count)


def as_of(node: nodes.AsOf, given_left: WindowInput, given_right: WindowInput) -> pa.Table:
    """Walk both streams together, at equal times the right first, and look up the last right tuple of each key."""
    until = min(given_left.watermark, given_right.watermark)
    left, right = (in_sequence(tuples_before(until, given.table)) for given in (given_left, given_right))
    l_times, r_times = times_of(left).tolist(), times_of(right).tolist()
    l_keys, r_keys = (_keys_or_none(side, node.by) for side in (left, right))
    latest: dict[Key, int] = {}  # key -> row of the right
    come = 0
    pairs: list[tuple[int, int | None]] = []
    for row, (ts, key) in enumerate(zip(l_times, l_keys, strict=True)):
        while come < len(r_times) and r_times[come] <= ts:
            if (changed := r_keys[come]) is not None:
                latest[changed] = come
            come += 1
        found = None if key is None else latest.get(key)
        if found is not None and (node.within is None or ts - r_times[found] <= node.within):
            pairs.append((row, found))
        elif node.keep:
            pairs.append((row, None))
    l_rows, r_rows = row_numbers(row for row, _ in pairs), pa.array([found for _, found in pairs], pa.int64())
    return _joined(node, times_of(left)[l_rows], left.take(l_rows), right.take(r_rows))


def _keys_or_none(tuples: pa.Table, by: Sequence[str]) -> list[Key | None]:
    """Return the keys; None for a key with a null, which equals nothing."""
    missing = [False] * tuples.num_rows
    for name in by:
        missing = [a or b for a, b in zip(missing, tuples[name].is_null().to_pylist(), strict=True)]
    return [None if without else key for without, key in zip(missing, keys_of(tuples, by), strict=True)]


def table_join(node: nodes.TableJoin, tuples: pa.Table, rows: pa.Table) -> pa.Table:
    """Compare every tuple with every row. With `keep`, a tuple without a match is a result with nulls."""
    whole = np.full(tuples.num_rows, rows.num_rows)
    l_rows, r_rows = _matches(node.on, tuples, rows, _pairs(np.zeros_like(whole), whole))
    alone = np.setdiff1d(np.arange(tuples.num_rows), l_rows) if node.keep else row_numbers([])
    l_rows = np.concatenate([l_rows, alone])
    r_taken = rows.take(pa.array([*r_rows.tolist(), *[None] * len(alone)], pa.int64()))
    return _joined(node, times_of(tuples)[l_rows], tuples.take(l_rows), r_taken)


# --- joins --------------------------------------------------------------------------------------------------


def time_join(node: nodes.TimeJoin, given_left: WindowInput, given_right: WindowInput) -> pa.Table:
    left, right = given_left.table, given_right.table
    right = right.take(np.argsort(times_of(right), kind="stable"))
    l_times, r_times = times_of(left), times_of(right)
    low = np.searchsorted(r_times, _plus(l_times, -node.w2), side="left")
    high = np.searchsorted(r_times, _plus(l_times, node.w1), side="right")
    l_rows, r_rows = _matches(node.on, left, right, _pairs(low, high))
    found = [_joined(node, np.minimum(l_times[l_rows], r_times[r_rows]), left.take(l_rows), right.take(r_rows))]
    if "l" in node.kept:
        alone = _without_partner(l_times, l_rows, node.w1, given_right.watermark)
        found.append(_joined(node, l_times[alone], left.take(alone), right.take(_nothing(alone))))
    if "r" in node.kept:
        alone = _without_partner(r_times, r_rows, node.w2, given_left.watermark)
        found.append(_joined(node, r_times[alone], left.take(_nothing(alone)), right.take(alone)))
    return single_value(found)


def _without_partner(times: Numbers, paired: Numbers, window: int, other: float) -> Numbers:
    """Return the rows that are in no pair and can be in none, because the other side's watermark is past their window."""
    known = set(paired.tolist())
    return row_numbers(row for row, ts in enumerate(times.tolist()) if row not in known and other > ts + window)


def _nothing(rows: Numbers) -> pa.Array:
    """Return null row numbers, one for each row."""
    return pa.nulls(len(rows), pa.int64())


def count_join(node: nodes.CountJoin, given_left: WindowInput, given_right: WindowInput) -> pa.Table:
    """Join rows in sequence, so that a tuple's row number is its rank."""
    until = min(given_left.watermark, given_right.watermark)
    left, right = (in_sequence(tuples_before(until, given.table)) for given in (given_left, given_right))
    l_times, r_times = times_of(left), times_of(right)
    r_before, l_before = _walk_together(l_times.tolist(), r_times.tolist())
    complete_l = _pairs(np.maximum(r_before - node.n2, 0), r_before)
    complete_r = ((l_row, r_row) for r_row, l_row in _pairs(np.maximum(l_before - node.n1, 0), l_before))
    found = [_matches(node.on, left, right, pairs) for pairs in (complete_l, complete_r)]
    l_rows, r_rows = (np.concatenate(rows) for rows in zip(*found, strict=True))
    return _joined(node, np.maximum(l_times[l_rows], r_times[r_rows]), left.take(l_rows), right.take(r_rows))


def _walk_together(l_times: list[int], r_times: list[int]) -> tuple[Numbers, Numbers]:
    """Return for every l the number of r before it, and for every r the number of l; at equal times each l comes first."""
    r_before: list[int] = []
    l_before: list[int] = []
    for _, side in sorted([(ts, "l") for ts in l_times] + [(ts, "r") for ts in r_times]):
        if side == "l":
            r_before.append(len(l_before))
        else:
            l_before.append(len(r_before))
    return np.array(r_before, np.int64), np.array(l_before, np.int64)


def _pairs(low: Numbers, high: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield every (i, j) with low[i] <= j < high[i], in batches."""
    ends = np.cumsum(high - low)
    starts = ends - (high - low)
    total = int(ends[-1]) if len(ends) else 0
    for begin in range(0, total, PAIRS_TOGETHER):
        numbers = np.arange(begin, min(begin + PAIRS_TOGETHER, total))
        owner = np.searchsorted(ends, numbers, side="right")
        yield owner, low[owner] + (numbers - starts[owner])


def _matches(
    on: JoinPredicate, left: pa.Table, right: pa.Table, pairs: Iterable[tuple[Numbers, Numbers]]
) -> tuple[Numbers, Numbers]:
    """Return the pairs of row numbers for which the predicate is true."""
    left, right = _used(left, "l", on), _used(right, "r", on)
    found: list[tuple[Numbers, Numbers]] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for l_rows, r_rows in pairs:
        tables = {"l": left.take(l_rows), "r": right.take(r_rows)}
        true = np.asarray(truth(evaluate_rows(on.sql, on.text, "l POSITIONAL JOIN r", tables)))
        found.append((l_rows[true], r_rows[true]))
    l_found, r_found = (np.concatenate(rows) for rows in zip(*found, strict=True))
    return l_found, r_found


def _used(table: pa.Table, side: str, on: JoinPredicate) -> pa.Table:
    """Return the columns that the predicate reads, and a row number, so that there is at least one column."""
    used = {path[1].lower() for path in on.columns if path[0].lower() == side}
    numbered = table.append_column("__row", pa.array(np.arange(table.num_rows)))
    return numbered.select([name for name in table.column_names if name.lower() in used] + ["__row"])


def _joined(node: nodes.PairingNode | nodes.TableJoin, times: Numbers, left: pa.Table, right: pa.Table) -> pa.Table:
    sides = {"l": left, "r": right}
    columns = [sides[side][name] for _, side, name in node.columns]
    return pa.table([timestamps(times), *columns], names=node.schema.names)


# --- aggregates ---------------------------------------------------------------------------------------------


def time_aggregate(node: nodes.TimeAggregate, given: WindowInput) -> pa.Table:
    tuples = in_sequence(given.table)
    windows = _closed_windows(node, tuples, given.watermark)
    members = [rows for _, rows in windows]
    first = tuples.take(row_numbers(rows[0] for rows in members))
    bounds = [timestamps(row_numbers(window[edge] for window, _ in windows)) for edge in (0, 1)]
    keys = [first[name] for name in node.by]
    return pa.table([first[TS], *keys, *bounds, *_functions(node, tuples, members)], names=node.schema.names)


def _closed_windows(
    node: nodes.TimeAggregate | nodes.TimeTop, tuples: pa.Table, watermark: float
) -> list[tuple[Window, list[int]]]:
    """Return every window that has ended, with the tuples of one group in it, in sequence."""
    windows: dict[tuple[int, Window], list[int]] = {}
    for row, (group, ts) in enumerate(zip(_groups(tuples, node.by), times_of(tuples).tolist(), strict=True)):
        for window in windows_of(node.over, ts):
            if window[1] <= watermark:
                windows.setdefault((group, window), []).append(row)
    return [(window, rows) for (_, window), rows in windows.items()]


def windows_of(over: nodes.TimeWindows, ts: int) -> list[Window]:
    """Return the windows that contain a time, as (start, end), end excluded; // rounds down, also below zero."""
    if over.zone is not None:
        return [local_window(over.zone, over.window // DAY, over.offset // DAY, ts)]
    late = ts - over.offset
    numbers = range((late - over.window) // over.every + 1, late // over.every + 1)
    starts = [k * over.every + over.offset for k in numbers]
    return [(start, start + over.window) for start in starts]


def session_aggregate(node: nodes.SessionAggregate, given: WindowInput) -> pa.Table:
    tuples = in_sequence(given.table)
    members = _complete_sessions(node, tuples, given.watermark)
    first = tuples.take(row_numbers(rows[0] for rows in members))
    last = tuples.take(row_numbers(rows[-1] for rows in members))
    keys = [first[name] for name in node.by]
    found = [last[TS], *keys, first[TS], last[TS], *_functions(node, tuples, members)]
    return pa.table(found, names=node.schema.names)


def _complete_sessions(
    node: nodes.SessionAggregate | nodes.SessionTop, tuples: pa.Table, watermark: float
) -> list[list[int]]:
    """Return the tuples of every complete session, in sequence."""
    times = times_of(tuples).tolist()
    sessions: list[list[int]] = []
    latest: dict[int, list[int]] = {}  # group -> its latest session
    for row, group in enumerate(_groups(tuples, node.by)):
        if group not in latest or times[row] - times[latest[group][-1]] > node.gap:
            latest[group] = []
            sessions.append(latest[group])
        latest[group].append(row)
    return [rows for rows in sessions if watermark - times[rows[-1]] > node.gap]


def count_aggregate(node: nodes.CountAggregate, given: WindowInput) -> pa.Table:
    tuples = in_sequence(tuples_before(given.watermark, given.table))
    seen: dict[int, list[int]] = {}  # group -> its tuples in sequence
    members: list[list[int]] = []
    for row, group in enumerate(_groups(tuples, node.by)):
        rows = seen.setdefault(group, [])
        rows.append(row)
        if len(rows) >= node.last and (len(rows) - node.last) % node.every == 0:
            members.append(rows[-node.last :])
    first = tuples.take(row_numbers(rows[0] for rows in members))
    completing = tuples.take(row_numbers(rows[-1] for rows in members))
    keys = [first[name] for name in node.by]
    return pa.table([completing[TS], *keys, *_functions(node, tuples, members)], names=node.schema.names)


# --- the first tuples in an order ---------------------------------------------------------------------------


def time_top(node: nodes.TimeTop, given: WindowInput) -> pa.Table:
    tuples = in_sequence(given.table)
    times = times_of(tuples).tolist()
    windows = _closed_windows(node, tuples, given.watermark)
    return _top(node, tuples, [(times[rows[0]], window, rows) for window, rows in windows])


def session_top(node: nodes.SessionTop, given: WindowInput) -> pa.Table:
    tuples = in_sequence(given.table)
    times = times_of(tuples).tolist()
    sessions = _complete_sessions(node, tuples, given.watermark)
    return _top(node, tuples, [(times[rows[-1]], (times[rows[0]], times[rows[-1]]), rows) for rows in sessions])


def _top(node: nodes.Top, tuples: pa.Table, windows: Sequence[tuple[int, Window, list[int]]]) -> pa.Table:
    """Return the results of a `top`. windows: for each the `ts` of its results, its bounds, and its tuples in sequence."""
    asked = sorted({row for _, _, rows in windows for row in rows})
    values = [_order_values(term, tuples, asked) for term in node.order]
    found = [
        (ts, window, rank, row)
        for ts, window, rows in windows
        for rank, row in enumerate(_ordered(rows, node.order, values)[: node.n], start=1)
    ]
    chosen = tuples.take(row_numbers(row for *_, row in found))
    bounds = [timestamps(row_numbers(window[edge] for _, window, _, _ in found)) for edge in (0, 1)]
    ranks = pa.array([rank for _, _, rank, _ in found], pa.int64())
    ts, keys = timestamps(row_numbers(ts for ts, *_ in found)), [chosen[name] for name in node.by]
    others = [chosen[name] for name in node.others]
    return pa.table([ts, *keys, *bounds, ranks, chosen[TS], *others], names=node.schema.names)


def _order_values(term: OrderTerm, tuples: pa.Table, rows: Sequence[int]) -> dict[int, Key]:
    """Return the sort keys of an expression for some rows; NaN is above the numbers."""
    if not rows:
        return {}
    found = value_of(term.expression, tuples.take(row_numbers(rows)))
    return {row: sort_key(value) for row, value in zip(rows, comparable_values(found), strict=True)}


def _ordered(rows: list[int], order: Sequence[OrderTerm], values: Sequence[dict[int, Key]]) -> list[int]:
    """Return the rows in order: sort by the last term first, since each sort is stable. Nulls are last in both
    directions."""
    null = sort_key(None)
    for term, value in reversed(list(zip(order, values, strict=True))):
        known, unknown = ([row for row in rows if (value[row] == null) is is_null] for is_null in (False, True))
        rows = sorted(known, key=value.__getitem__, reverse=term.descending) + unknown
    return rows


# --- groups and functions ---------------------------------------------------------------------------------


def _groups(tuples: pa.Table, by: Sequence[str]) -> list[int]:
    """Return the group number of every tuple; in a key, null is a value, NaN equals NaN, and -0.0 equals 0.0."""
    numbers: dict[Key, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys_of(tuples, by)]


def _functions(node: nodes.Aggregation, tuples: pa.Table, members: Sequence[Sequence[int]]) -> list[Any]:
    """Return one column per function: its value for every list of rows of `tuples`, which are in sequence."""
    kinds = pa.schema([(name, function.type) for name, function in node.functions])
    parts = [_evaluated(node, tuples, batch).cast(kinds) for batch in _batches(members)]
    return list(single_value([kinds.empty_table(), *parts]).columns)


def _batches(members: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    batch: list[Sequence[int]] = []
    size = 0
    for rows in members:
        batch.append(rows)
        size += len(rows)
        if size >= PAIRS_TOGETHER:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _evaluated(node: nodes.Aggregation, tuples: pa.Table, members: Sequence[Sequence[int]]) -> pa.Table:
    rows = np.concatenate([np.array(rows, np.int64) for rows in members])
    window = np.repeat(np.arange(len(members)), [len(rows) for rows in members])
    expanded = tuples.take(rows).append_column("__seq", pa.array(rows))
    expanded = expanded.append_column("__window", pa.array(window))
    chosen = ", ".join(f"{function.sql} AS __f{i}" for i, (_, function) in enumerate(node.functions))
    grouped = ", ".join(["__window", *(duck.quote(name) for name in node.by)])
    sql = f"SELECT {chosen} FROM __tuples GROUP BY {grouped} ORDER BY __window"
    found = run_select(sql, {"__tuples": expanded}, ", ".join(function.text for _, function in node.functions))
    if found.num_rows != len(members):
        raise DataError(f"DuckDB and the reference form different groups of {', '.join(node.by)}")
    return found.rename_columns([name for name, _ in node.functions])


def _plus(times: Numbers, length: int) -> Numbers:
    """Return times moved by a length; beyond the range of times, the first or last time."""
    if length >= 0:
        return np.where(times > LATEST - length, LATEST, np.minimum(times, LATEST - length) + length)
    return np.where(times < EARLIEST - length, EARLIEST, np.maximum(times, EARLIEST - length) + length)
