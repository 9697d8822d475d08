"""Words of other SQL dialects are errors that name what to write."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from headrace.errors import ExpressionError, QueryError
from headrace.expressions.gates import allowed_functions
from headrace.expressions.sql_habits import SAME_MEANING, prefix_hint
from headrace.stream import Stream
from headrace.testing import table_stream

TS = pa.array([1], pa.timestamp("us", "UTC"))
S = table_stream(pa.table({"ts": TS, "user": ["ann"], "x": [1]}), name="s")
T = table_stream(pa.table({"ts": TS, "user": ["ann"], "y": [1]}), name="t")


def joined() -> Stream:
    return S.join(T, on="l.user = r.user", within="1 minute", how="left")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("nvl(x, 0) > 1", "'nvl' that does not exist; write coalesce(a, b)"),
        ("unix_timestamp(ts) > 1", "; write epoch(ts)"),
        ("to_date(user) = ts", "; write CAST(a AS DATE)"),
        ("rlike(user, 'a')", "; write regexp_matches(a, 'pattern')"),
        ("user RLIKE 'a'", "; instead of RLIKE, write regexp_matches(a, 'pattern')"),
        ('user = "ann"', "; text has single quotes, such as 'ann'"),
        ("user = ann", "unknown column 'ann'; there are ts, user, x"),
    ],
)
def test_a_filter_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(hint)):
        S.filter(text)


def test_an_aggregate_says_what_to_write() -> None:
    with pytest.raises(ExpressionError, match=re.escape("; write list(a)")):
        S.aggregate(window="1 minute", all="collect_list(x)")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("r.ts IS NULL", "; after a join it is r_ts"),
        ("L.USER = 'ann'", "; after a join it is l_user"),
        ("r.y > 1", "; after a join it is y"),
    ],
)
def test_columns_behind_a_join_have_other_names(text: str, hint: str) -> None:
    with pytest.raises(ExpressionError, match=re.escape(hint) + "$"):
        joined().filter(text)


@pytest.mark.parametrize(
    ("columns", "name", "hint"),
    [
        (
            ["ts", "l_ts", "k"],
            "l_k",
            "; did you mean k? A join adds l_ or r_ to names of both sides, except those in using",
        ),
        (["ts", "l_k", "r_k"], "k", "; did you mean l_k or r_k? A join adds"),
        (["ts", "l_l_k", "l_r_k", "r_k"], "K", "; did you mean l_l_k or l_r_k or r_k? A join adds"),
        (["ts", "k"], "K", "; did you mean k?"),
        (["ts", "l_", "r"], "r_", ""),
        (["ts", "level"], "evel", ""),
    ],
)
def test_prefixes_of_joins(columns: list[str], name: str, hint: str) -> None:
    found = prefix_hint(name, columns)
    assert found.startswith(hint) and bool(found) == bool(hint)


@pytest.mark.parametrize("how", ["anti", "left_anti", "leftanti", "left anti"])
def test_an_anti_join_is_an_outer_join_and_a_filter(how: str) -> None:
    with pytest.raises(QueryError, match=r"how='left' and then filter\('r_ts IS NULL'\)"):
        S.join(T, on="l.user = r.user", within="1 minute", how=how)  # type: ignore[arg-type]
    assert joined().filter("r_ts IS NULL").columns == joined().columns


def test_no_function_of_duckdb_has_a_hint() -> None:
    assert not SAME_MEANING.keys() & allowed_functions().keys()
