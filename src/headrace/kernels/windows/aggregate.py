"""Aggregates over time windows and over count windows.

Time windows are numbered (`headrace.kernels.windows.time_windows`). A tuple, or a pane of tuples, at position t is in
the windows k with  closed(t) < k <= latest(t). Of these, an epoch that moves the watermark from `before` to `after`
closes those with  closed(before) < k <= closed(after).  Rows are copied only for the windows that close in the epoch,
so a far jump of the watermark costs no more than its results.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import arrow, duck
from headrace.columnar.arrow import Numbers
from headrace.columnar.types import TS_TYPE
from headrace.kernels.stateless.evaluate import evaluate
from headrace.kernels.stateless.steps import in_schema, in_sequence
from headrace.kernels.windows.time_windows import WindowGrid, pane_starts
from headrace.kernels.windows.window_specs import (
    AggregateSpec,
    CountWindowSpec,
    PartialWindowSpec,
    TimeWindowSpec,
    TupleWindowSpec,
)

MOST_WINDOW_ROWS = 4_000_000  # copies of rows for their windows, at one time
MOST_WINDOW_BYTES = 1 << 30  # bytes of these copies
PANE, START, SEQ, NUMBER = "__pane", "__start", "__seq", "__n"


def times(table: pa.Table) -> Numbers:
    """Return event times in microseconds."""
    return np.asarray(table.column("ts").cast(pa.int64()))


# --- panes ---------------------------------------------------------------------------------------------------------


def partials_of(operator: PartialWindowSpec, tuples: pa.Table) -> pa.Table:
    """Return one row per group and pane: the grouping columns, `ts` (the smallest), the start of the pane and the
    partials."""
    panes = pane_starts(operator.windows, times(tuples))
    columns = [(name, sql) for partial in operator.partials for name, sql, _ in partial.columns]
    return evaluate_aggregates(operator, grouping(operator, PANE, columns), tuples.append_column(PANE, pa.array(panes)))


def merge_partials(operator: PartialWindowSpec, partials: pa.Table) -> pa.Table:
    """Merge partials of the same group and pane into one row, when blocks of state are merged."""
    columns = [(name, f"{merge}({name})") for partial in operator.partials for name, _, merge in partial.columns]
    return in_schema(evaluate_aggregates(operator, grouping(operator, PANE, columns), partials), partials.schema)


def close_panes(operator: PartialWindowSpec, partials: pa.Table, before: int, after: int) -> pa.Table:
    """Return the results of the windows that close between two watermarks.

    One query merges the partials and computes the functions. Two queries would pass values through Arrow, which lacks
    some of DuckDB's types: a sum of integers would become a decimal and divide differently.
    """
    merged = [pair for partial in operator.partials for pair in partial.merged]
    made = [*keys_sql(operator, START), "ts", *compute_keys(operator.functions)]
    sql = f"SELECT {', '.join(made)} FROM ({grouping(operator, START, merged)})"
    return _close(operator, sql, partials, np.asarray(partials.column(PANE)), before, after)


# --- tuples --------------------------------------------------------------------------------------------------------


def close_tuples(operator: TupleWindowSpec, tuples: pa.Table, before: int, after: int) -> pa.Table:
    """Return the results of the windows that close between two watermarks, computed from tuples."""
    if operator.ordered:
        tuples = number_groups(tuples, operator.schemas[0].names)
    sql = grouping(operator, START, operator.functions)
    return _close(operator, sql, tuples, times(tuples), before, after)


def number_groups(tuples: pa.Table, columns: Sequence[str]) -> pa.Table:
    ordered = in_sequence(tuples, columns)
    return ordered.append_column(SEQ, pa.array(np.arange(ordered.num_rows)))


def in_closing_windows(
    table: pa.Table, positions: Numbers, windows: WindowGrid, before: int, after: int
) -> Iterator[pa.Table]:
    """Yield every row once per closing window that contains it, with the start of the window; rows of a window stay
    together."""
    first = np.maximum(windows.closed(positions), windows.closed(before)) + 1
    last = np.minimum(windows.latest(positions), windows.closed(after))
    for low, high in _some_windows(first, last, min(MOST_WINDOW_ROWS, MOST_WINDOW_BYTES // arrow.row_bytes(table))):
        rows, numbers = _expand(np.maximum(first, low), np.minimum(last, high))
        yield arrow.take_rows(table, rows).append_column(START, pa.array(windows.starts(numbers)))


def _some_windows(first: Numbers, last: Numbers, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of windows that cover all rows. A range makes at most `most` copies, unless it is a single window."""
    some = last >= first
    first, last = first[some], last[some]
    while len(first):
        low, high = int(first.min()), int(last.max())
        if _copies(first, last, high) > most:
            high = bisect.bisect_right(range(low, high), most, key=lambda k: _copies(first, last, k)) + low - 1
            high = max(high, low)
        yield low, high
        first = np.maximum(first, high + 1)
        some = last >= first
        first, last = first[some], last[some]


def _copies(first: Numbers, last: Numbers, high: int) -> int:
    """Return the number of copies that the windows up to `high` make."""
    return int(np.maximum(np.minimum(last, high) - first + 1, 0).sum())


def _expand(first: Numbers, last: Numbers) -> tuple[Numbers, Numbers]:
    """Return row numbers, each repeated for every integer from first[row] to last[row], and those integers."""
    counts = np.maximum(last - first + 1, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    ends = np.cumsum(counts)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return rows, np.repeat(first, counts) + within


def _close(operator: TimeWindowSpec, sql: str, held: pa.Table, at: Numbers, before: int, after: int) -> pa.Table:
    """Return the results of a query that gives one row per group and closing window."""
    found = [
        _with_bounds(operator, evaluate_aggregates(operator, sql, expanded))
        for expanded in in_closing_windows(held, at, operator.windows, before, after)
    ]
    return pa.concat_tables(found or [operator.schema.empty_table()])


def _with_bounds(operator: TimeWindowSpec, results: pa.Table) -> pa.Table:
    starts = np.asarray(results.column(START))
    ends = operator.windows.ends(operator.windows.latest(starts))
    for name, values in (("window_start", starts), ("window_end", ends)):
        results = results.append_column(name, pa.array(values).cast(TS_TYPE))
    return in_schema(results.select(operator.schema.names), operator.schema)


# --- SQL -----------------------------------------------------------------------------------------------------------


def grouping(operator: AggregateSpec, unit: str, columns: Sequence[tuple[str, str]], ts: str = "min(ts)") -> str:
    keys = keys_sql(operator, unit)
    return (
        f"SELECT {', '.join([*keys, f'{ts} AS ts', *compute_keys(columns)])} FROM __tuples GROUP BY {', '.join(keys)}"
    )


def keys_sql(operator: AggregateSpec, unit: str) -> list[str]:
    return [*(duck.quote(name) for name in operator.by), unit]


def compute_keys(columns: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{sql} AS {duck.quote(name)}" for name, sql in columns]


def evaluate_aggregates(operator: AggregateSpec, sql: str, table: pa.Table) -> pa.Table:
    return evaluate(sql, {duck.TUPLES: table}, ", ".join(operator.texts))


# --- count windows -------------------------------------------------------------------------------------------------


def count_windows(operator: CountWindowSpec, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Number the tuples below `bound` in sequence within their group. Return the results and the tuples to hold.

    `held` has the operator's input columns and `__n`, the tuple's number in its group, null while it waits.
    """
    waiting = np.asarray(held.column(NUMBER).is_null()) & (times(held) >= bound)
    pending, active = held.filter(pa.array(waiting)), held.filter(pa.array(~waiting))
    if active.num_rows == 0:
        return operator.schema.empty_table(), held
    given = _number(operator, number_groups(active, operator.schemas[0].names))
    results = _count_results(operator, given)
    kept = given.filter(pa.array(_needed(operator, given))).select(held.column_names)
    return results, pa.concat_tables([kept.cast(held.schema), pending])


def _number(operator: CountWindowSpec, active: pa.Table) -> pa.Table:
    """Add `__n` to all tuples, and per group `__base` (the last number given before) and `__top` (the last number given
    now)."""
    keys = ", ".join(duck.quote(name) for name in operator.by) or "1"
    base = f"coalesce(max({NUMBER}) OVER (PARTITION BY {keys}), 0)"
    rank = f"row_number() OVER (PARTITION BY {keys}, {NUMBER} IS NULL ORDER BY {SEQ})"
    inner = f"SELECT *, {base} AS __base, {rank} AS __rank FROM __tuples"
    outer = f"SELECT * EXCLUDE ({NUMBER}, __rank), coalesce({NUMBER}, __base + __rank) AS {NUMBER} FROM ({inner})"
    return duck.run_select(
        f"SELECT *, max({NUMBER}) OVER (PARTITION BY {keys}) AS __top FROM ({outer})", {duck.TUPLES: active}
    )


def _count_results(operator: CountWindowSpec, numbered: pa.Table) -> pa.Table:
    number, base, top = (np.asarray(numbered.column(c)).astype(np.int64) for c in (NUMBER, "__base", "__top"))
    # results are at c = last + j*every; tuple n is in those with n <= c < n + last; new ones: base < c <= top
    first = np.maximum(-((operator.last - number) // operator.every), 0)
    first = np.maximum(first, (base - operator.last) // operator.every + 1)
    latest = np.minimum((number - 1) // operator.every, (top - operator.last) // operator.every)
    rows, results = _expand(first, latest)
    expanded = arrow.take_rows(numbered, rows).append_column(START, pa.array(results))
    if expanded.num_rows == 0:
        return operator.schema.empty_table()
    sql = grouping(operator, START, operator.functions, ts=f"arg_max(ts, {NUMBER})")
    return in_schema(evaluate_aggregates(operator, sql, expanded), operator.schema)


def _needed(operator: CountWindowSpec, numbered: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which tuples the next result of a group needs, and its last tuple in any case, which carries the count."""
    number, top = (np.asarray(numbered.column(c)).astype(np.int64) for c in (NUMBER, "__top"))
    due = np.maximum((top - operator.last) // operator.every + 1, 0) * operator.every + operator.last
    needed: npt.NDArray[np.bool_] = (number > due - operator.last) | (number == top)
    return needed
