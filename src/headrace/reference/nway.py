"""Joins of several streams, one alias after the other.

A combination lies within its windows exactly if every two of its tuples do: x is at most the window of its alias older than
any other tuple, because it is so for the latest. Combinations are therefore made by adding one alias after the other, and
those that are already outside are left out.

Invariant: a conjunct that can fail is evaluated only on complete combinations for which all others are true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.expressions.nway_predicates import Conjunct
from headrace.query import nodes
from headrace.reference.evaluate import evaluate_rows, truth
from headrace.reference.tuples import Numbers, times_of, timestamps
from headrace.reference.windows import WindowInput

MOST_COMBINATIONS = 200_000  # of which the next alias is added at once

Combinations = tuple[Numbers, ...]  # a row number of each alias so far


def nway_join(node: nodes.NWayJoin, inputs: Sequence[WindowInput]) -> pa.Table:
    tables = [given.table for given in inputs]
    found = [rows for rows in _completed(node, tables, ()) if len(rows[0])]
    rows = (
        [np.concatenate(each) for each in zip(*found, strict=True)] if found else [np.empty(0, np.int64)] * len(tables)
    )
    taken = {alias: table.take(of) for alias, table, of in zip(node.aliases, tables, rows, strict=True)}
    times = np.minimum.reduce([times_of(table) for table in taken.values()])
    columns = [taken[alias][name] for _, alias, name in node.columns]
    return pa.table([timestamps(times), *columns], names=node.schema.names)


def _completed(node: nodes.NWayJoin, tables: Sequence[pa.Table], begun: Combinations) -> Iterator[Combinations]:
    """Yield the combinations that satisfy the predicate and begin with these tuples."""
    known = len(begun)
    if known == len(tables):
        yield _satisfying(node, tables, begun, node.on.unsafe)
        return
    decided = [part for part in node.on.safe if max(part.aliases, default=0) == known]
    for longer in _extended(node, tables, begun):
        yield from _completed(node, tables, _satisfying(node, tables, longer, decided))


def _extended(node: nodes.NWayJoin, tables: Sequence[pa.Table], begun: Combinations) -> Iterator[Combinations]:
    """Yield these combinations with every tuple of the next alias that is within the windows."""
    times = [times_of(table) for table in tables]
    alias = len(begun)
    if not begun:
        yield (np.arange(len(times[0])),)
        return
    several = max(1, MOST_COMBINATIONS // max(len(times[alias]), 1))
    for start in range(0, len(begun[0]), several):
        part = [rows[start : start + several] for rows in begun]
        inside = np.ones((len(part[0]), len(times[alias])), dtype=bool)
        for other, rows in enumerate(part):
            apart = times[alias][None, :] - times[other][rows][:, None]
            inside &= (-apart <= node.windows[alias]) & (apart <= node.windows[other])
        numbers, added = np.nonzero(inside)
        yield (*(rows[numbers] for rows in part), added)


def _satisfying(
    node: nodes.NWayJoin, tables: Sequence[pa.Table], rows: Combinations, parts: Sequence[Conjunct]
) -> Combinations:
    """Return the combinations for which all these conjuncts are true."""
    if not parts or not len(rows[0]):
        return rows
    taken = {
        alias: _used(table, place, parts).take(of)
        for place, (alias, table, of) in enumerate(zip(node.on.aliases, tables, rows, strict=False))
    }
    sql = " AND ".join(["true", *(part.sql for part in parts)])
    origin = " POSITIONAL JOIN ".join(f'"{alias}"' for alias in taken)
    true = np.asarray(truth(evaluate_rows(sql, node.on.text, origin, taken)))
    return tuple(of[true] for of in rows)


def _used(table: pa.Table, place: int, parts: Sequence[Conjunct]) -> pa.Table:
    """Return the columns of an alias that the conjuncts read, and a row number, so that there is at least one column."""
    used = {name.lower() for part in parts for at, name in part.columns if at == place}
    numbered = table.append_column("__row", pa.array(np.arange(table.num_rows)))
    return numbered.select([name for name in table.column_names if name.lower() in used] + ["__row"])
