"""Moments of event time, in microseconds since 1970, and the two ends of time."""

from __future__ import annotations

import datetime as dt

NEVER, FOREVER = -(2**62), 2**62
FURTHEST = 2**61  # event times beyond this (some 73,000 years) are rejected
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_micros(time: dt.datetime) -> int:
    """A time with a zone in microseconds since 1970.

    >>> to_micros(dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC))
    -1
    """
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def to_datetime(time: int) -> dt.datetime:
    """With the zone UTC; Python has no years before 1 and after 9999: OverflowError.

    >>> to_datetime(-1)
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.timezone.utc)
    """
    return EPOCH + dt.timedelta(microseconds=time)


def moment_text(time: int) -> str:
    """Return an event time for people.

    >>> moment_text(1_500_000), moment_text(FURTHEST)
    ('1970-01-01T00:00:01.500000+00:00', '2305843009213693952 microseconds')
    """
    try:
        return to_datetime(time).isoformat()
    except OverflowError:
        return f"{time} microseconds"


def move_back(watermark: int, length: int) -> int:
    """A watermark moved back; the two ends of time stay where they are."""
    return watermark if watermark in (NEVER, FOREVER) else watermark - length
