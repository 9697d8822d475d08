"""Answers held against each other: what is a difference, and what is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.difference import difference

NAN = math.nan


def table(*values: Any, kind: pa.DataType | None = None) -> pa.Table:
    times = pa.array([1] * len(values), pa.int64()).cast(TS_TYPE)
    return pa.table({"ts": times, "x": pa.array(values, kind or pa.float64())})


def test_difference_of_multisets() -> None:
    a, b = table(1, 2, 2, kind=pa.int64()), table(2, 1, 2, kind=pa.int64())
    assert difference(a, b) is None
    text = difference(a, table(1, 1, 2, 5, kind=pa.int64())) or ""
    assert text.startswith("expected 3 rows, found 4\nmissing 1:\n  (ts=1970-01-01 00:00:00.000001+00, x=2)\nextra 2:")


def test_difference_of_columns() -> None:
    assert "x int64" in (difference(table(1.0), table(1, kind=pa.int64())) or "")


def test_difference_shows_only_the_first_rows() -> None:
    text = difference(table(*range(9), kind=pa.int64()), table(kind=pa.int64()))
    assert text is not None and "and 4 more" in text


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([0.3], [0.1 + 0.2], True),
        ([1e-20], [0.0], False),
        ([1.0], [1 + 2e-9], False),
        ([-0.0, NAN, None, math.inf], [None, NAN, 0.0, math.inf], True),
        ([NAN], [None], False),
        ([math.inf], [-math.inf], False),
        ([1.0, 1.0], [1.0], False),
        ([1.0, 1 + 8e-10], [1 + 4e-10, 1 - 8e-10], True),  # only one of the two pairings works
    ],
)
def test_difference_of_doubles(a: list[Any], b: list[Any], equal: bool) -> None:
    assert (difference(table(*a), table(*b)) is None) == equal


def test_difference_inside_lists_and_structs() -> None:
    kind = pa.list_(pa.struct([("a", pa.float64()), ("b", pa.string())]))
    a = table([{"a": 0.3, "b": "x"}, None], [], None, kind=kind)
    assert difference(a, table([{"a": 0.1 + 0.2, "b": "x"}, None], None, [], kind=kind)) is None
    assert difference(a, table([{"a": 0.1 + 0.2, "b": "y"}, None], None, [], kind=kind)) is not None


def test_difference_needs_the_best_matching_not_the_first() -> None:
    kind = pa.struct([("a", pa.float64()), ("b", pa.float64())])
    step = 8e-10
    a = table({"a": 1.0, "b": 1.0}, {"a": 1.0 + step, "b": 1.0 + 2 * step}, kind=kind)
    b = table({"a": 1.0 - step, "b": 1.0 + step}, {"a": 1.0 + step, "b": 1.0 - step}, kind=kind)
    assert "missing 1" in (difference(a, b) or "")
    c = table({"a": 1.0, "b": 1.0 + step}, {"a": 1.0 + step / 2, "b": 1.0 - step}, kind=kind)
    assert difference(a, c) is None


def test_difference_is_fast_without_floats() -> None:
    numbers = np.random.default_rng(1).integers(0, 1000, 300_000)
    a = pa.table({"ts": pa.array(numbers).cast(TS_TYPE), "x": numbers})
    assert difference(a, a.take(np.argsort(numbers, kind="stable"))) is None
