"""Columns whose names are words of SQL: they need no quotes where that is unambiguous, and the error names the quotes elsewhere."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from headrace import testing as t
from headrace.columnar import duck
from headrace.errors import ExpressionError
from headrace.expressions.gates import parse_scalar
from headrace.expressions.reserved_words import quote_columns

WORDS = [name for (name,) in duck.fetch_rows("SELECT keyword_name FROM duckdb_keywords() ORDER BY 1")]
CONSTANTS = ["default", "false", "null", "true"]  # which mean a value without quotes
EVENTS = t.source("events", {"end": "int64", "at": "int64", "window": "int64", "k": "string"})


def schema(*names: str) -> pa.Schema:
    return pa.schema([("ts", pa.timestamp("us", "UTC")), *((name, pa.int64()) for name in names)])


@pytest.mark.parametrize("text", ["{0} > 1", "1 + {0}", "{0}", "coalesce({0}, 2) = {0}", "{0}::double"])
def test_every_word_of_duckdb_can_be_a_column(text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    wrong = []
    for word in sorted(set(WORDS) - set(CONSTANTS)):
        found = parse_scalar(text.format(word), schema(word), "x")
        plain = parse_scalar(text.format("plain"), schema("plain"), "x")
        if found.columns != {(word,)} or found.sql.replace(f'"{word}"', word) != plain.sql.replace("plain", word):
            wrong.append((word, found.sql))
    assert wrong == []


def test_an_expression_keeps_its_meaning() -> None:
    """What is an expression without quotes stays as it is, whatever columns there are."""
    for text in ("case when k > 1 then 1 end", "left('abc', k)", "k is not null", "list(k order by k desc)", "'end'"):
        columns = schema("k", "case", "end", "left", "null", "order", "desc", "is", "not")
        try:
            found = parse_scalar(text, columns, "x")
        except ExpressionError as error:  # an aggregate function
            assert "aggregate" in str(error)
        else:
            assert found.columns <= {("k",)}


def test_calls_texts_and_quoted_columns_are_left_alone() -> None:
    scopes = {"": schema("left", "end", "k")}
    assert quote_columns("left(k, 1) || left", scopes) == ('left(k, 1) || "left"', ["left"])
    assert quote_columns("""'end' = "end" + end""", scopes) == ("""'end' = "end" + "end\"""", ["end"])
    assert quote_columns("k + 1", scopes) == ("k + 1", [])
    assert quote_columns("k + 'open", scopes) == ("k + 'open", [])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("case when end > 1 then true end", "'end' is an SQL keyword; quote the column: \"end\""),
        ("at > ", "'at' is an SQL keyword; quote the column: \"at\""),
    ],
)
def test_where_a_word_is_ambiguous_the_error_says_to_quote_it(text: str, hint: str) -> None:
    with pytest.raises(ExpressionError) as told:
        EVENTS.filter(text)
    assert str(told.value).startswith(f"filter = {text!r} is not an expression: ")
    assert str(told.value).endswith(f"; {hint}")


@pytest.mark.parametrize("text", ["row_number() over (partition by end)", "end > (select 1)", "k as end"])
def test_no_quotes_are_suggested_where_they_do_not_help(text: str) -> None:
    with pytest.raises(
        ExpressionError, match=r"is refused: it contains (a window function|a subquery|an alias)"
    ) as told:
        EVENTS.filter(text)
    assert "quote the column" not in str(told.value) and repr(text) in str(told.value)
    assert type(told.value) is ExpressionError


def test_a_text_that_is_refused_stays_refused() -> None:
    for text in ("select 1", "end; drop table t", "(select 1) > end", "at over ()"):
        with pytest.raises(ExpressionError):
            EVENTS.filter(text)


def test_such_columns_go_through_a_whole_query() -> None:
    ends = EVENTS.filter("end > at and window = 1").map("end", "window", "k", at="at + end", order="end")
    sums = ends.aggregate(by=["end", "k"], window="10 seconds", most="max(at)", all="list(window order by at)")
    pairs = ends.join(ends, on="l.end = r.order and l.window <= r.window", within="1 second")
    steps = t.play([sums, pairs], [t.epoch(events=[(1, 5, 2, 1, "a"), (2, 1, 2, 1, "a")]), t.restart(), t.end()])
    steps[0].expect([{"l_end": 5, "r_order": 5}], result=1)
    steps[2].expect([{"end": 5, "most": 7, "all": [1]}], result=0)
