"""The first tuples of each group and window in a given order.

The first n tuples of a window follow from the first n of each of its panes, so the state has at most n rows per group
and pane. Each row is a tuple as it came, the start of its pane, and the smallest `ts` of all tuples of the group in the
pane (`__first`), dropped tuples included.

Invariant: the sequence of whole tuples decides ties, so the same rows are dropped wherever tuples are compared.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.columnar import arrow, duck
from headrace.columnar.arrow import Numbers
from headrace.columnar.types import TS, TS_TYPE
from headrace.kernels.stateless.evaluate import evaluate
from headrace.kernels.stateless.steps import in_schema
from headrace.kernels.windows.aggregate import PANE, SEQ, START, in_closing_windows, keys_sql, number_groups, times
from headrace.kernels.windows.numbered_keys import key_numbers
from headrace.kernels.windows.sessions import FIRST, SESSION, session_numbers
from headrace.kernels.windows.time_windows import pane_starts
from headrace.kernels.windows.window_specs import SessionTopSpec, TopSpec, WindowTopSpec
from headrace.support.event_time import move_back

RANK = "__rank"


def best_of_panes(operator: WindowTopSpec, tuples: pa.Table) -> pa.Table:
    """Return the first tuples of each group and pane."""
    at = times(tuples)
    panes = tuples.append_column(PANE, pa.array(pane_starts(operator.windows, at))).append_column(FIRST, pa.array(at))
    return _best(operator, panes, PANE).drop_columns([RANK])


def merge_panes(operator: WindowTopSpec, state: pa.Table) -> pa.Table:
    """Return the first tuples of each group and pane of several blocks of state."""
    return _best(operator, state, PANE).drop_columns([RANK])


def close_panes(operator: WindowTopSpec, held: pa.Table, before: int, after: int) -> pa.Table:
    """Return the results of the windows that close between two watermarks."""
    found = []
    for expanded in in_closing_windows(held, np.asarray(held.column(PANE)), operator.windows, before, after):
        best = _best(operator, expanded, START)
        starts = np.asarray(best.column(START))
        ends = operator.windows.ends(operator.windows.latest(starts))
        found.append(_results(operator, best, np.asarray(best.column(FIRST)), starts, ends))
    return pa.concat_tables(found or [operator.schema.empty_table()])


def close_sessions(operator: SessionTopSpec, held: pa.Table, bound: int) -> tuple[pa.Table, pa.Table]:
    """Return the results of the complete sessions, and the tuples of the others."""
    at = times(held)
    numbers, latest = session_numbers(key_numbers(held, operator.by), at, at, operator.gap)
    complete = (latest < move_back(bound, operator.gap))[numbers]
    numbered = held.append_column(SESSION, pa.array(numbers)).append_column(FIRST, pa.array(at))
    best = _best(operator, numbered.filter(pa.array(complete)), SESSION)
    last = latest[np.asarray(best.column(SESSION))]
    results = _results(operator, best, last, np.asarray(best.column(FIRST)), last)
    return results, held.filter(pa.array(~complete))


def _best(operator: TopSpec, rows: pa.Table, unit: str) -> pa.Table:
    """Return the first rows of each group and unit, with ranks. `__first` becomes the smallest of the group and unit."""
    if not rows.num_rows:
        return rows.append_column(RANK, pa.array([], pa.int64()))
    ordered = number_groups(rows, operator.schemas[0].names)
    keys = ", ".join(keys_sql(operator, unit))
    order = ", ".join([*operator.order_sql, SEQ])
    sql = (
        f"SELECT {SEQ}, row_number() OVER (PARTITION BY {keys} ORDER BY {order}) AS {RANK},"
        f" min({FIRST}) OVER (PARTITION BY {keys}) AS {FIRST} FROM __tuples QUALIFY {RANK} <= {operator.n}"
    )
    found = evaluate(sql, {duck.TUPLES: ordered}, ", ".join(operator.texts))
    taken, ranks, first = (np.asarray(found.column(name)).astype(np.int64) for name in (SEQ, RANK, FIRST))
    best = arrow.take_rows(ordered.drop_columns([SEQ]), taken)
    best = best.set_column(best.schema.get_field_index(FIRST), FIRST, pa.array(first))
    return in_schema(best, rows.schema).append_column(RANK, pa.array(ranks))


def _results(operator: TopSpec, best: pa.Table, ts: Numbers, starts: Numbers, ends: Numbers) -> pa.Table:
    made = {
        TS: pa.array(ts).cast(TS_TYPE),
        "window_start": pa.array(starts).cast(TS_TYPE),
        "window_end": pa.array(ends).cast(TS_TYPE),
        "rank": best.column(RANK),
        "tuple_ts": best.column(TS),
    }
    columns = [made[name] if name in made else best.column(name) for name in operator.schema.names]
    return pa.table(columns, schema=operator.schema)
