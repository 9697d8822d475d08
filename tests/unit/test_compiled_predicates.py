"""What the source of a loop says of pairs is what DuckDB says: random predicates over every function, awkward values.

The source is run over arrays, as it is, without a compiler; some are compiled as well.
"""

from __future__ import annotations

import random

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from headrace import duck
from headrace.expressions.native import Native, Obstacle, native
from headrace.expressions.tree import parse
from headrace.kernels import arithmetic
from headrace.kernels import native as kernel
from tests.predicates import COLUMNS, Predicates, table

SCHEMA = pa.schema(COLUMNS)
ROWS = 24


def said(found: Native, left: pa.Table, right: pa.Table) -> tuple[np.ndarray, np.ndarray] | None:
    """Of every pair, whether the source says true, and whether it is not sure."""
    fitted = kernel.fit(found, left, right)
    if fitted is None:
        return None
    names = dict(arithmetic.ON_ARRAYS)
    for variable, value in zip(fitted.source.variables, fitted.values, strict=True):
        side = variable.column[0] if variable.column else ""
        names[variable.name] = value[:, None] if side == "l" else value[None, :] if side == "r" else value
    with np.errstate(all="ignore"):
        for name, text in fitted.source.lines:
            names[name] = eval(text, names)
    shape = (left.num_rows, right.num_rows)
    true, unsure = (eval(text or "False", names) for text in (fitted.source.true, fitted.source.unsure))
    return np.broadcast_to(true, shape).ravel(), np.broadcast_to(unsure, shape).ravel()


def answers(on: str, left: pa.Table, right: pa.Table) -> np.ndarray:
    """DuckDB's: 1 true, 0 not true, -1 an error."""
    l = left.take(np.repeat(np.arange(left.num_rows), right.num_rows))
    r = right.take(np.tile(np.arange(right.num_rows), left.num_rows))
    return _answers(f"SELECT coalesce(TRY(coalesce({on}, false))::INTEGER, -1) AS a FROM l POSITIONAL JOIN r", l, r)


def _answers(sql: str, l: pa.Table, r: pa.Table) -> np.ndarray:
    try:
        return np.asarray(duck.run(sql, {"l": l, "r": r}).column("a"))
    except duckdb.Error:  # some errors TRY does not see
        if len(l) == 1:
            return np.array([-1])
        half = len(l) // 2
        return np.concatenate([_answers(sql, l[:half], r[:half]), _answers(sql, l[half:], r[half:])])


def differing(on: str, left: pa.Table, right: pa.Table) -> tuple[str | None, float | None]:
    """What differs for one predicate, and the share of pairs of which the source is not sure (None: it has no source)."""
    found = native(parse(on, "on"), {"l": left.schema, "r": right.schema})
    if isinstance(found, Obstacle):
        return None, None
    told = said(found, left, right)
    if told is None:
        return None, 1.0
    true, unsure = told
    wanted = answers(on, left, right)
    wrong = np.flatnonzero(~unsure & (wanted != true))
    share = float(unsure.mean())
    if not len(wrong):
        return None, share
    l, r = divmod(int(wrong[0]), right.num_rows)
    rows = left.slice(l, 1).to_pylist(), right.slice(r, 1).to_pylist()
    return f"{on}\n said {true[wrong[0]]}, DuckDB {wanted[wrong[0]]}, {len(wrong)} pairs, such as {rows}", share


def bound(on: str) -> bool:
    try:
        duck.type_of(f"SELECT {on} AS c FROM l, r", {"l": SCHEMA.empty_table(), "r": SCHEMA.empty_table()})
    except duckdb.Error:
        return False
    return True


def check(seed: int, predicates: int) -> None:
    r = random.Random(seed)
    write, tried, shares = Predicates(r), 0, []
    while tried < predicates:
        awkward = tried % 2 == 0
        left, right = (table(r, ROWS, awkward=awkward) for _ in "lr")
        on = write(r.choice([1, 2, 3]))
        if not bound(on):
            continue
        wrong, share = differing(on, left, right)
        assert wrong is None, wrong
        tried += 1
        if share is not None and not awkward:
            shares.append(share)
    assert len(shares) > 0.4 * predicates / 2  # most have source
    assert np.mean(shares) < 0.2  # and most pairs are decided by it


@pytest.mark.parametrize("seed", range(2))
def test_oracle_random_predicates(seed):
    check(seed, 75)
