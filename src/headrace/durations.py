"""Lengths of time as users write them: a number and a unit, kept as whole microseconds."""

from __future__ import annotations

import re
from decimal import Decimal

from headrace.errors import QueryError, QueryTypeError

MICROSECONDS = {
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}
LONGEST = 100_000 * MICROSECONDS["day"]
_TEXT = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_duration(text: str, what: str, *, zero: bool = False) -> int:
    """Microseconds of a duration such as "2.5 seconds"; `what` names the argument in errors.

    >>> parse_duration("1.5 seconds", "window")
    1500000
    """
    if not isinstance(text, str):
        msg = f"{what} must be a duration as text; found {text!r}; write it like '60 seconds'"
        raise QueryTypeError(msg)
    match = _TEXT.fullmatch(text)
    if match is None:
        msg = f"{what} is not a duration; found {text!r}; expected a number and a unit, such as '60 seconds'"
        raise QueryError(msg)
    return _checked(Decimal(match[1]) * _unit(match[2], what, text), what, text, zero=zero)


def _unit(word: str, what: str, text: str) -> int:
    name = word.lower().removesuffix("s")
    if name in ("month", "year", "quarter"):
        msg = f"{what} cannot be given in {word}: their length varies; found {text!r}; use days"
        raise QueryError(msg)
    if name not in MICROSECONDS:
        known = ", ".join(f"{unit}s" for unit in MICROSECONDS)
        msg = f"{what} has an unknown unit {word!r}; found {text!r}; expected one of {known}"
        raise QueryError(msg)
    return MICROSECONDS[name]


def _checked(length: Decimal, what: str, text: str, *, zero: bool) -> int:
    if length != int(length):
        msg = f"{what} is finer than a microsecond; found {text!r}; time is kept in whole microseconds"
        raise QueryError(msg)
    if length < 0 or (length == 0 and not zero):
        msg = f"{what} must be {'zero or more' if zero else 'more than zero'}; found {text!r}"
        raise QueryError(msg)
    if length > LONGEST:
        msg = f"{what} is longer than 100,000 days; found {text!r}"
        raise QueryError(msg)
    return int(length)


def format_duration(length: int) -> str:
    """The shortest exact text of a duration.

    >>> format_duration(90_000_000)
    '90 seconds'
    """
    for unit in ("day", "hour", "minute", "second", "millisecond"):
        size = MICROSECONDS[unit]
        if length % size == 0 and (length >= size or unit == "millisecond"):
            count = length // size
            return f"{count} {unit}" + ("" if count == 1 else "s")
    return f"{Decimal(length) / 1000} milliseconds"
