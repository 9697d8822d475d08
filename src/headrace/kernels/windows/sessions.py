"""Aggregates over sessions: tuples of a group, each at most a gap after the one before it.

Tuples of a group in one pane, [k*gap, (k + 1)*gap), always belong to one session, because they are less than a gap
apart. The producer therefore sends one row per group and pane, a stretch: its first and last `ts`, and partials. A
stretch has no pause longer than the gap. Two stretches belong to one session iff they overlap or are at most the gap
apart, and together they form a stretch again. The state is thus one row per open session, or per part of a session that
a later tuple can join.

Invariant: no later tuple has `ts` < bound, so a session whose last `ts` is more than the gap before the bound is
complete.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import numba_loops
from headrace.columnar.arrow import Numbers
from headrace.columnar.sorting import sort_order
from headrace.kernels.stateless.steps import in_schema
from headrace.kernels.windows.aggregate import (
    PANE,
    compute_keys,
    evaluate_aggregates,
    grouping,
    keys_sql,
    number_groups,
    times,
)
from headrace.kernels.windows.numbered_keys import key_numbers
from headrace.kernels.windows.window_specs import PartialSessionSpec, SessionSpec, TupleSessionSpec
from headrace.support.event_time import move_back

FIRST = "__first"  # first time of a stretch; its `ts` is the last time
SESSION = "__session"
Marks = npt.NDArray[np.bool_]


def stretches_of(operator: PartialSessionSpec, tuples: pa.Table) -> pa.Table:
    """Return one row per group and pane: the grouping columns, the first and the last `ts`, and the partials."""
    panes = times(tuples) // operator.gap
    columns = [(FIRST, "min(ts)"), *((name, sql) for partial in operator.partials for name, sql, _ in partial.columns)]
    sql = grouping(operator, PANE, columns, ts="max(ts)")
    return evaluate_aggregates(operator, sql, tuples.append_column(PANE, pa.array(panes))).drop_columns([PANE])


def close_partial_sessions(operator: PartialSessionSpec, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Return the results of the complete sessions, and the stretches of the others.

    One query merges the partials and computes the functions, as for panes.
    """
    first = np.asarray(held.column(FIRST).cast(pa.int64()))
    held, complete = _with_sessions(operator, held, first, bound)
    merged = [(FIRST, f"min({FIRST})"), *(pair for partial in operator.partials for pair in partial.merged)]
    bounds = ["ts", f"{FIRST} AS window_start", "ts AS window_end"]
    made = [*keys_sql(operator, SESSION), *bounds, *compute_keys(operator.functions)]
    sql = f"SELECT {', '.join(made)} FROM ({grouping(operator, SESSION, merged, ts='max(ts)')})"
    results = _results(operator, sql, held.filter(pa.array(complete)))
    return results, _joined(operator, held.filter(pa.array(~complete))).drop_columns([SESSION])


def _joined(operator: PartialSessionSpec, held: pa.Table) -> pa.Table:
    """Return one stretch for each session; most sessions have one already."""
    numbers = np.asarray(held.column(SESSION))
    alone = np.bincount(numbers, minlength=1)[numbers] == 1
    if alone.all():
        return held
    columns = [(name, f"{merge}({name})") for partial in operator.partials for name, _, merge in partial.columns]
    sql = grouping(operator, SESSION, [(FIRST, f"min({FIRST})"), *columns], ts="max(ts)")
    together = in_schema(evaluate_aggregates(operator, sql, held.filter(pa.array(~alone))), held.schema)
    return pa.concat_tables([held.filter(pa.array(alone)), together])


def close_tuple_sessions(operator: TupleSessionSpec, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Return the results of the complete sessions, and the tuples of the others."""
    found, complete = _with_sessions(operator, held, times(held), bound)
    found = found.filter(pa.array(complete))
    if operator.ordered:
        found = number_groups(found, operator.schemas[0].names)
    bounds = [("window_start", "min(ts)"), ("window_end", "max(ts)")]
    sql = grouping(operator, SESSION, [*bounds, *operator.functions], ts="max(ts)")
    return _results(operator, sql, found), held.filter(pa.array(~complete))


def _results(operator: SessionSpec, sql: str, found: pa.Table) -> pa.Table:
    return (
        in_schema(evaluate_aggregates(operator, sql, found), operator.schema)
        if found.num_rows
        else operator.schema.empty_table()
    )


def _with_sessions(operator: SessionSpec, held: pa.Table, first: Numbers, bound: int) -> tuple[pa.Table, Marks]:
    """Return the rows with the number of their session, and which rows belong to complete sessions."""
    numbers, latest = session_numbers(key_numbers(held, operator.by), first, times(held), operator.gap)
    complete = latest < move_back(bound, operator.gap)
    return held.append_column(SESSION, pa.array(numbers)), complete[numbers]


def session_numbers(keys: Numbers, first: Numbers, last: Numbers, gap: int) -> tuple[Numbers, Numbers]:
    """Return the session number of every stretch, and the last time of each session. The stretches may be in any order."""
    by = sort_order([pa.array(keys), pa.array(first)])
    numbers, latest, found = (np.empty(len(keys), np.int64) for _ in range(3))
    many = numba_loops.number_sessions(keys[by], first[by], last[by], gap, numbers, latest)
    found[by] = numbers
    return found, latest[:many]
