"""The beginnings of local days in a time zone, by the rules of the package `tzdata`.

Days are numbered, with 0 for 1970-01-01. Day n begins at the first moment at which the local date is at least n: at
midnight, at the end of the gap if midnight was skipped, or at the first of two midnights. A date that was skipped
entirely begins and ends at the same moment.

Invariant: local days are computed once, when a query is planned. Tasks receive the result, so they need no time zone
rules.
"""

from __future__ import annotations

import difflib
import functools
import io
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise
from zoneinfo import ZoneInfo

from headrace.errors import QueryError, QueryTypeError

SECOND = 1_000_000
DAY = 86_400 * SECOND
DAYS_OF_400_YEARS = 146_097  # the calendar, and every zone's rule for the future, repeats after this many days
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR = int((datetime(2, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())  # no zone has an earlier rule
_FOUR_WEEKS = 28 * 86_400
_HEADER = struct.Struct(">4s c 15x 6l")  # header of a TZif file (RFC 8536)


@dataclass(frozen=True)
class LocalDays:
    """Local days as runs of consecutive days of 24 hours. Only the last day of a run may be longer or shorter.

    runs: (number of the first day, its first moment in microseconds), ascending. The first run also applies to all
    earlier days. repeats_from: the day from which the runs of 400 years repeat; None: the last run has no end.
    """

    runs: tuple[tuple[int, int], ...]
    repeats_from: int | None


def check_zone(zone: str) -> str:
    """Return the name of a zone. Raise if `tzdata` does not contain it."""
    if not isinstance(zone, str):
        raise QueryTypeError(
            f"zone must be the name of a time zone as text; found {zone!r:.100}; such as 'Europe/Berlin'"
        )
    if zone not in _known_zones():
        near = difflib.get_close_matches(zone, _known_zones(), 1, 0.5)
        advice = f"did you mean {near[0]!r}?" if near else "such as 'Europe/Berlin'"
        raise QueryError(
            f"zone names an unknown time zone; found {zone!r:.100}; expected a name of the tz database; {advice}"
        )
    return zone


@functools.cache
def _known_zones() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


@functools.lru_cache(maxsize=64)
def local_days(zone: str) -> LocalDays:
    """Return the local days of a zone."""
    data = resources.files("tzdata").joinpath("zoneinfo", *zone.split("/")).read_bytes()
    rules = ZoneInfo.from_file(io.BytesIO(data), key=zone)
    listed, rule = _file_contents(data)
    if not rule:
        return LocalDays(tuple(_runs(rules, listed)), None)
    last = listed[-1] if listed else 0
    begin = datetime((_EPOCH + timedelta(seconds=last)).year + 2, 1, 1, tzinfo=UTC)
    repeats_from = (begin - _EPOCH).days
    end = (repeats_from + DAYS_OF_400_YEARS + 2) * 86_400
    runs = _runs(rules, [*listed, *_changes(rules, last, end)])
    return LocalDays(tuple(run for run in runs if run[0] < repeats_from + DAYS_OF_400_YEARS), repeats_from)


def _file_contents(data: bytes) -> tuple[list[int], bool]:
    """Return the moments of offset changes in seconds, and whether a rule defines later changes."""
    place = _block_size(data, 0, 4)
    _, _, _, _, _, times, _, _ = _HEADER.unpack_from(data, place)
    listed = struct.unpack_from(f">{times}q", data, place + _HEADER.size)
    footer = data[place + _block_size(data, place, 8) :]
    return [moment for moment in listed if moment >= _FIRST_YEAR], b"," in footer


def _block_size(data: bytes, place: int, time_size: int) -> int:
    """Return the bytes of a header and its data block."""
    counts: tuple[int, ...] = _HEADER.unpack_from(data, place)[2:]
    ut, standard, leaps, times, types, letters = counts
    return _HEADER.size + times * (time_size + 1) + types * 6 + letters + leaps * (time_size + 4) + standard + ut


def _changes(rules: ZoneInfo, after: int, end: int) -> Iterator[int]:
    """Yield the moments at which a rule changes the offset. Changes are at least four weeks apart."""
    for low, high in pairwise(range(after + 1, end, _FOUR_WEEKS)):
        if (before := _offset(rules, low)) != _offset(rules, high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(rules, middle) == before else (low, middle)
            yield high


def _offset(rules: ZoneInfo, moment: int) -> int:
    """Return by how many seconds local time is ahead of UTC."""
    offset = (_EPOCH + timedelta(seconds=moment)).astimezone(rules).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _runs(rules: ZoneInfo, changes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the runs. Between two offset changes each day begins at local midnight; a day whose midnight a change
    skips begins at that change.
    """
    first = changes[0] if changes else 0
    offset = _offset(rules, first - 1)
    day = -(-(first + offset) // 86_400) - 1
    runs = [(day, (day * 86_400 - offset) * SECOND)]
    day += 1
    for moment, following in pairwise([first, *changes[1:], None] if changes else []):
        assert moment is not None
        offset = _offset(rules, moment)
        while day * 86_400 <= moment + offset:
            _add(runs, day, moment)
            day += 1
        end = following if following is None else following + offset  # local time
        if end is None or day * 86_400 < end:
            _add(runs, day, day * 86_400 - offset)
            day = day + 1 if end is None else -(-end // 86_400)
    return runs


def _add(runs: list[tuple[int, int]], day: int, moment: int) -> None:
    """Add a day that begins at a moment in seconds. It begins a new run unless it is 24 hours after the previous day."""
    last, start = runs[-1]
    if start + (day - last) * DAY != moment * SECOND:
        runs.append((day, moment * SECOND))
