"""Event times in microseconds since 1970, and the smallest and largest possible time."""

from __future__ import annotations

import datetime as dt

NEVER, FOREVER = -(2**62), 2**62
FURTHEST = 2**61  # microseconds; event times beyond this, some 73,000 years from 1970, are rejected
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_micros(time: dt.datetime) -> int:
    """Return a time with a time zone in microseconds since 1970.

    >>> to_micros(dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC))
    -1
    """
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def to_datetime(time: int) -> dt.datetime:
    """Return a time in UTC. Raise OverflowError for years outside 1 to 9999, which Python does not support.

    >>> to_datetime(-1)
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.timezone.utc)
    """
    return EPOCH + dt.timedelta(microseconds=time)


def moment_text(time: int) -> str:
    """Return an event time as readable text.

    >>> moment_text(1_500_000), moment_text(FURTHEST)
    ('1970-01-01T00:00:01.500000+00:00', '2305843009213693952 microseconds')
    """
    try:
        return to_datetime(time).isoformat()
    except OverflowError:
        return f"{time} microseconds"


def move_back(watermark: int, length: int) -> int:
    """Return a watermark moved back by `length`. `NEVER` and `FOREVER` stay unchanged."""
    return watermark if watermark in (NEVER, FOREVER) else watermark - length
