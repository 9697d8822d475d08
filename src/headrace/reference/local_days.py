"""Local days by Python's `zoneinfo`, one at a time."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from importlib import resources
from zoneinfo import ZoneInfo

DAY = 86_400_000_000  # microseconds
ERA = 146_097  # days of 400 years, after which the calendar repeats
YEAR_1200, YEAR_2600 = (
    -281_237,
    230_103,
)  # days; no zone has a rule from before the first; after the last, all rules repeat
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def local_window(zone: str, days: int, offset: int, ts: int) -> tuple[int, int]:
    """Return the window of `days` local days that contains a time; one window starts at day `offset`."""
    today = max(day for day in range(ts // DAY - 3, ts // DAY + 4) if first_moment(zone, day) <= ts)
    begin = today - (today - offset) % days
    return first_moment(zone, begin), first_moment(zone, begin + days)


@functools.lru_cache(maxsize=100_000)
def first_moment(zone: str, day: int) -> int:
    """Return the first moment at which the local date is this day or later; days count from 1970-01-01."""
    if day < YEAR_1200:
        return _eras_away(zone, day, YEAR_1200)
    if day >= YEAR_2600:
        return _eras_away(zone, day, YEAR_2600 - ERA)
    midnight = datetime(1970, 1, 1) + timedelta(days=day)
    first = midnight.replace(tzinfo=_rules(zone)).astimezone(UTC)  # if midnight occurs twice, the first
    if _local(zone, first) != midnight:
        first = _end_of_gap(zone, midnight)
    return (first - EPOCH) // timedelta(microseconds=1)


def _eras_away(zone: str, day: int, begin: int) -> int:
    eras = (day - begin) // ERA
    return first_moment(zone, day - eras * ERA) + eras * ERA * DAY


def _end_of_gap(zone: str, midnight: datetime) -> datetime:
    """Return the end of the gap that skips midnight, found by halving between a moment before and one after it."""
    low, high = (midnight.replace(tzinfo=_rules(zone), fold=fold).astimezone(UTC) for fold in (1, 0))
    while high - low > timedelta(microseconds=1):
        middle = low + (high - low) // 2
        low, high = (low, middle) if _local(zone, middle) >= midnight else (middle, high)
    return high


def _local(zone: str, moment: datetime) -> datetime:
    return moment.astimezone(_rules(zone)).replace(tzinfo=None, fold=0)


@functools.cache
def _rules(zone: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=zone)
