"""Durations as users write them, "90 seconds", "1m" or a timedelta, stored as whole microseconds.

Invariant: a text has one meaning or is rejected, such as "M", which could be minutes or months, and units without a
fixed length.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import TypeAlias

from headrace.errors import QueryError, QueryTypeError

Duration: TypeAlias = str | timedelta

MICROSECONDS = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
SHORT = {
    "millisecond": ("ms", "msec", "milli"),
    "second": ("s", "sec"),
    "minute": ("m", "min"),
    "hour": ("h", "hr"),
    "day": ("d",),
}
_UNITS = {word: unit for unit, words in SHORT.items() for word in (unit, *words)}
_NO_FIXED_LENGTH = ("month", "mon", "mo", "quarter", "q", "year", "yr", "y")
LONGEST_DURATION = 100_000 * MICROSECONDS["day"]
_TEXT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([^\W\d_]+)\s*")


def parse_duration(given: Duration, what: str, *, zero: bool = False) -> int:
    """Return a duration in microseconds. `what` names the argument in errors.

    >>> parse_duration("1.5 seconds", "window"), parse_duration("2m", "window"), parse_duration(timedelta(hours=1), "w")
    (1500000, 120000000, 3600000000)
    """
    if isinstance(given, timedelta):
        return _checked(_length(given), what, given, zero=zero)
    if not isinstance(given, str):
        msg = (
            f"{what} must be a duration; found {given!r:.100}; write it like '60 seconds', or give a datetime.timedelta"
        )
        raise QueryTypeError(msg)
    match = _TEXT.fullmatch(given)
    if match is None:
        msg = f"{what} is not a duration; found {given!r:.100}; expected a number and a unit, such as '60 seconds' or '1m'"
        raise QueryError(msg)
    return _checked(Decimal(match[1]) * _unit(match[2], what, given), what, given, zero=zero)


def _length(given: timedelta) -> Decimal:
    """Return a timedelta in microseconds. Those of pandas may have nanoseconds."""
    whole = given.days * MICROSECONDS["day"] + given.seconds * MICROSECONDS["second"] + given.microseconds
    return whole + Decimal(getattr(given, "nanoseconds", 0)) / 1000


def _unit(word: str, what: str, text: str) -> int:
    if word == "M":
        msg = f"{what} has the unit 'M', which may be minutes or months; found {text!r}; write 'm' or 'minutes'"
        raise QueryError(msg)
    name = word.lower()
    if name not in _UNITS and len(name) > 2:
        name = name.removesuffix("s")
    if name in _NO_FIXED_LENGTH:
        msg = f"{what} cannot be given in {word}: their length varies; found {text!r}; use days"
        raise QueryError(msg)
    if name not in _UNITS:
        known = ", ".join(f"{unit}s ({', '.join(words)})" for unit, words in SHORT.items())
        msg = f"{what} has an unknown unit {word!r}; found {text!r}; expected one of {known}"
        raise QueryError(msg)
    return MICROSECONDS[_UNITS[name]]


def _checked(length: Decimal, what: str, text: Duration, *, zero: bool) -> int:
    if length != int(length):
        msg = f"{what} is finer than a microsecond; found {text!r}; use whole microseconds"
        raise QueryError(msg)
    if length < 0 or (length == 0 and not zero):
        msg = f"{what} must be {'zero or more' if zero else 'more than zero'}; found {text!r}"
        raise QueryError(msg)
    if length > LONGEST_DURATION:
        msg = f"{what} is longer than 100,000 days; found {text!r}"
        raise QueryError(msg)
    return int(length)


def format_duration(length: int) -> str:
    """Return the shortest exact text of a duration.

    >>> format_duration(90_000_000)
    '90 seconds'
    """
    for unit in ("day", "hour", "minute", "second", "millisecond"):
        size = MICROSECONDS[unit]
        if length % size == 0 and (length >= size or unit == "millisecond"):
            count = length // size
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return f"{Decimal(length) / 1000} milliseconds"
