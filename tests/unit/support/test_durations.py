"""Lengths of time: every way to write one means the same, and what could mean two things is refused."""

from __future__ import annotations

from datetime import timedelta

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import QueryError, QueryTypeError
from headrace.stream import node_of
from headrace.support.durations import LONGEST_DURATION, MICROSECONDS, SHORT, format_duration, parse_duration
from headrace.testing import table_stream as stream

SECOND = MICROSECONDS["second"]
UNITS = [(word, unit) for unit in SHORT for word in (unit, f"{unit}s", *SHORT[unit])]


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ("1m", 60 * SECOND),
        ("10s", 10 * SECOND),
        ("5 min", 300 * SECOND),
        ("5 mins", 300 * SECOND),
        ("2h", 7200 * SECOND),
        ("2 hrs", 7200 * SECOND),
        ("250ms", SECOND // 4),
        ("0.5 S", SECOND // 2),
        ("1d", 86400 * SECOND),
        (" 2 Minutes ", 120 * SECOND),
        (timedelta(minutes=1, microseconds=7), 60 * SECOND + 7),
        (timedelta(days=99_999), 99_999 * 86400 * SECOND),
        (pd.Timedelta("3s"), 3 * SECOND),
    ],
)
def test_ways_to_write_a_duration(given, length):
    assert parse_duration(given, "window") == length


@given(st.integers(1, 1000), st.sampled_from(UNITS), st.sampled_from(["", " "]))
def test_short_and_long_units_mean_the_same(count, unit, space):
    word, full = unit
    assert parse_duration(f"{count}{space}{word}", "window") == count * MICROSECONDS[full]


@given(st.integers(1, LONGEST_DURATION))
def test_text_and_timedelta_agree(length):
    assert parse_duration(timedelta(microseconds=length), "window") == length
    assert parse_duration(format_duration(length), "window") == length


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("1M", "may be minutes or months; found '1M'; write 'm' or 'minutes'"),
        ("1 month", "their length varies; found '1 month'; use days"),
        ("2 years", "their length varies"),
        ("2y", "their length varies"),
        ("1 mo", "their length varies"),
        ("3 fortnights", "milliseconds (ms, msec, milli), seconds (s, sec), minutes (m, min), hours (h, hr), days (d)"),
        ("3 µs", "unknown unit 'µs'"),
        ("1ss", "unknown unit 'ss'"),
        ("1h30m", "is not a duration; found '1h30m'; expected a number and a unit, such as '60 seconds' or '1m'"),
        ("60", "is not a duration"),
        ("-1m", "window must be more than zero; found '-1m'"),
        (timedelta(seconds=-1), "window must be more than zero; found datetime.timedelta"),
        (timedelta(0), "window must be more than zero"),
        (timedelta(days=200_000), "longer than 100,000 days"),
        (pd.Timedelta("1ns"), "finer than a microsecond"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(QueryError) as error:
        parse_duration(given, "window")
    assert words in str(error.value)


@pytest.mark.parametrize("given", [60, 1.5, True, None, b"1m", ["1m"]])
def test_other_values_are_named(given):
    with pytest.raises(QueryTypeError) as error:
        parse_duration(given, "window")
    assert f"found {given!r}; write it like '60 seconds', or give a datetime.timedelta" in str(error.value)


def test_every_verb_takes_both():
    table = pa.table({"ts": pa.array([1], pa.timestamp("us", "UTC")), "k": [1]})
    text = stream(table, time="ts", lateness="1s", idle="1m", ahead="1h")
    other = stream(table, time="ts", lateness=timedelta(seconds=1), idle=timedelta(minutes=1), ahead=timedelta(hours=1))
    assert node_of(text).describe() == node_of(other).describe()
    verbs = [
        lambda s, minute: s.join(s, on="l.k = r.k", within=(minute, minute)),
        lambda s, minute: s.aggregate(by=["k"], window=minute, every=minute, n="count(*)"),
        lambda s, minute: s.aggregate(by=["k"], session=minute, n="count(*)"),
        lambda s, minute: s.asof(s, by=["k"], within=minute),
        lambda s, minute: s.distinct(by=["k"], within=minute),
    ]
    for verb in verbs:
        assert node_of(verb(text, "1m")).describe() == node_of(verb(text, timedelta(minutes=1))).describe()
