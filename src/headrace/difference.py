"""Comparison of two answers: which rows of two tables have no equal row in the other one.

Invariant: no answer is called equal by luck of order. Rows that are equal in every value cancel each other, as often as
they come (in DuckDB, which is fast); of the rest as many are matched as can be whose doubles are close and whose other
values are the same.

Examples:
    >>> from headrace.difference import difference
    >>> print(difference(pa.table({"x": [1, 2, 2]}), pa.table({"x": [2, 1, 3]})))
    expected 3 rows, found 3
    missing 1:
      (x=2)
    extra 1:
      (x=3)
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import duck
from headrace.columnar.types import has_float
from headrace.columnar.values import Key, comparable_values, rows_text, sort_key

Numbers = npt.NDArray[np.int64]

TOLERANCE = 1e-9  # relative tolerance for doubles
SHOWN_ROWS = 5  # rows of each kind in the text of a difference


def difference(expected: pa.Table, found: pa.Table) -> str | None:
    """Return the rows that two tables do not share, as text; None if they have the same rows, in any order.

    Doubles are equal within 1e-9 of their size, NaN equals NaN, and -0.0 equals 0.0. All other values must be the same.
    A row that appears twice in one table must appear twice in the other.

    Args:
        expected: a table.
        found: another table.

    Returns:
        How the columns differ, or the missing and the extra rows, at most five of each; None if the tables are equal.

    Examples:
        >>> from headrace.difference import difference
        >>> difference(pa.table({"x": [1.0, 2.0]}), pa.table({"x": [2.0, 1.0 + 1e-12]})) is None
        True
        >>> print(difference(pa.table({"x": [1, 2]}), pa.table({"x": [2, 3]})))
        expected 2 rows, found 2
        missing 1:
          (x=1)
        extra 1:
          (x=3)
    """
    kinds = [[(field.name, field.type) for field in table.schema] for table in (expected, found)]
    if kinds[0] != kinds[1]:
        return f"the columns differ: expected {_columns(expected)}; found {_columns(found)}"
    missing, extra = differing_rows(expected, found)
    if not missing.num_rows and not extra.num_rows:
        return None
    lines = [f"expected {expected.num_rows} rows, found {found.num_rows}"]
    lines += [_listed("missing", missing), _listed("extra", extra)]
    return "\n".join(line for line in lines if line)


def _columns(table: pa.Table) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in table.schema)


def _listed(what: str, rows: pa.Table) -> str:
    if not rows.num_rows:
        return ""
    more = [f"  and {rows.num_rows - SHOWN_ROWS} more"] if rows.num_rows > SHOWN_ROWS else []
    shown = [f"  {row}" for row in rows_text(rows.slice(0, SHOWN_ROWS))]
    return "\n".join([f"{what} {rows.num_rows}:", *shown, *more])


def differing_rows(expected: pa.Table, found: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the missing and the extra rows of two tables with the same columns. Doubles that are close are equal."""
    missing, extra = unmatched_rows(expected, found)
    if any(has_float(field.type) for field in expected.schema):
        missing, extra = _unmatched(missing, extra)
    return missing, extra


def unmatched_rows(expected: pa.Table, found: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of each table that remain after equal rows cancel each other."""
    names = [f"c{i}" for i in range(expected.num_columns)]
    listed = ", ".join(names)
    both = "SELECT *, 1 AS __n FROM __e UNION ALL SELECT *, -1 AS __n FROM __f"
    count = "CAST(sum(__n) AS BIGINT)"
    sql = f"SELECT {listed}, {count} AS __n FROM ({both}) GROUP BY {listed} HAVING {count} <> 0"
    found_once = duck.run_select(sql, {"__e": expected.rename_columns(names), "__f": found.rename_columns(names)})
    counts = np.asarray(found_once["__n"].combine_chunks(), np.int64)
    rows = found_once.drop_columns(["__n"]).rename_columns(expected.column_names).cast(expected.schema)
    return _repeated(rows, counts), _repeated(rows, -counts)


def _repeated(rows: pa.Table, counts: Numbers) -> pa.Table:
    return rows.take(np.repeat(np.arange(len(counts)), np.maximum(counts, 0)))


Floats = tuple[float, ...]
# values other than floats -> (floats, row number) of each row with these values
Sided = dict[Key, list[tuple[Floats, int]]]


def _unmatched(missing: pa.Table, extra: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that remain after rows with close doubles and equal other values are matched."""
    left, right = _by_exact_part(missing), _by_exact_part(extra)
    unmatched_left = {row for rows in left.values() for _, row in rows}
    unmatched_right = {row for rows in right.values() for _, row in rows}
    for key in left.keys() & right.keys():
        for i, j in _matched([f for f, _ in left[key]], [f for f, _ in right[key]]):
            unmatched_left.discard(left[key][i][1])
            unmatched_right.discard(right[key][j][1])
    rest_left, rest_right = (np.array(sorted(rows), np.int64) for rows in (unmatched_left, unmatched_right))
    return missing.take(rest_left), extra.take(rest_right)


def _by_exact_part(table: pa.Table) -> Sided:
    found: Sided = {}
    columns = [comparable_values(column) for column in table.columns]
    for row, values in enumerate(zip(*columns, strict=True)):
        key, floats = _parts(values)
        found.setdefault(key, []).append((floats, row))
    for rows in found.values():
        rows.sort()
    return found


def _parts(values: tuple[Any, ...]) -> tuple[Key, Floats]:
    """Split a row into a key of its exact parts (nulls, NaN and shapes included) and its floats in order."""
    floats: list[float] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        floats.append(value)
        return None

    return sort_key(values, leaf), tuple(floats)


def _matched(left: Sequence[Floats], right: Sequence[Floats]) -> list[tuple[int, int]]:
    """Return a maximum matching of close vectors. Both lists must be sorted."""
    in_order = list(zip(range(len(left)), range(len(right)), strict=False))
    if all(_close(left[i], right[j]) for i, j in in_order):
        return in_order
    firsts = [floats[0] for floats in right]
    to_right: dict[int, int] = {}
    to_left: dict[int, int] = {}
    for i in range(len(left)):
        _match_one_more(i, lambda i: _near(left[i], right, firsts), to_right, to_left)
    return list(to_right.items())


def _near(floats: Floats, right: Sequence[Floats], firsts: list[float]) -> list[int]:
    margin = 2 * TOLERANCE * abs(floats[0]) if math.isfinite(floats[0]) else 0.0
    candidates = range(bisect_left(firsts, floats[0] - margin), bisect_right(firsts, floats[0] + margin))
    return [j for j in candidates if _close(floats, right[j])]


def _match_one_more(
    start: int, near: Callable[[int], list[int]], to_right: dict[int, int], to_left: dict[int, int]
) -> None:
    """Match `start` with a right row. Earlier matches on the augmenting path move to another right row."""
    reached: dict[int, int] = {}  # right row -> the left row from which the search reached it
    queue = deque([start])
    while queue:
        i = queue.popleft()
        for j in near(i):
            if j in reached:
                continue
            reached[j] = i
            if j not in to_left:
                _move_along(j, reached, to_right, to_left)
                return
            queue.append(to_left[j])


def _move_along(last: int, reached: Mapping[int, int], to_right: dict[int, int], to_left: dict[int, int]) -> None:
    free: int | None = last
    while free is not None:
        i = reached[free]
        given_up = to_right.get(i)
        to_right[i], to_left[free] = free, i
        free = given_up


def _close(a: Floats, b: Floats) -> bool:
    return all(math.isclose(x, y, rel_tol=TOLERANCE) for x, y in zip(a, b, strict=True))
