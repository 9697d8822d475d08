"""Something else than what was expected: the error names it, and the way that works."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import table_stream

S = table_stream(pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "x": [1]}))
PANDAS = pd.DataFrame({"x": [1]})


def doubled(row):
    return row


CASES = {
    "filter by a lambda": (lambda: S.filter(lambda t: t.x > 1), "found a lambda; expressions are SQL text, not Python"),
    "filter by a function": (lambda: S.filter(doubled), "found the function doubled; expressions are SQL text"),
    "filter by pandas": (lambda: S.filter(PANDAS.x > 1), "found a Series of pandas; write SQL text, such as 'x > 1'"),
    "case by a lambda": (lambda: S.case(lambda t: t), "case 1 must be an expression as text; found a lambda"),
    "join on a lambda": (lambda: S.join(S, on=lambda l, r: l == r, within="1s"), "found a lambda"),
    "join with pandas": (
        lambda: S.join(PANDAS, on="true", within="1s"),
        "found a DataFrame of pandas; convert it: headrace.stream(spark.createDataFrame(it), time=...)",
    ),
    "map of a dict": (lambda: S.map({"y": "x + 1"}), "found a dict {'y': 'x + 1'}; new columns are keywords"),
    "map to a lambda": (lambda: S.map(y=lambda t: t.x), "y must be an expression as text; found a lambda"),
    "aggregate by a function": (
        lambda: S.aggregate(window="1s", n=len),
        "found the function len; expressions are SQL text, not Python, so that they can be checked and routed; such as 'count(*)'",
    ),
    "by a lambda": (
        lambda: S.distinct(by=lambda t: t.x, within="1s"),
        "by must be a column or a list of columns; found a lambda",
    ),
    "by a list of lambdas": (lambda: S.distinct(by=[doubled], within="1s"), "by takes column names as text"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_given_is_named_with_what_works(name):
    act, words = CASES[name]
    with pytest.raises(hr.QueryError) as error:
        act()
    assert words in str(error.value)
    assert len(str(error.value)) < 400
