"""Where local days begin: against Python's zoneinfo in every zone of the tz database, and in cases read from almanacs."""

from __future__ import annotations

import io
import random
from datetime import UTC, date, datetime, timedelta
from importlib import resources
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from headrace.errors import QueryError, QueryTypeError
from headrace.kernels.windows.time_windows import LocalDayWindows
from headrace.reference.local_days import first_moment, local_window
from headrace.support.event_time import EPOCH, FURTHEST, to_micros
from headrace.support.local_days import DAY, check_zone, local_days

ZONES = sorted(resources.files("tzdata").joinpath("zones").read_text().split())
MICROSECOND = timedelta(microseconds=1)
# first moments of days, as a person finds them: (zone, day) -> UTC
KNOWN = {
    ("Europe/Berlin", "2024-03-31"): "2024-03-30T23:00",  # 23 hours
    ("Europe/Berlin", "2024-04-01"): "2024-03-31T22:00",
    ("Europe/Berlin", "2024-10-27"): "2024-10-26T22:00",  # 25 hours
    ("Europe/Berlin", "2024-10-28"): "2024-10-27T23:00",
    ("Europe/Berlin", "3024-07-01"): "3024-06-30T22:00",
    ("America/Sao_Paulo", "2018-11-04"): "2018-11-04T03:00",  # 00:00 was skipped: the day began at 01:00
    ("America/Sao_Paulo", "2018-02-18"): "2018-02-18T03:00",  # 23:00 came twice the day before
    ("America/Havana", "2024-03-10"): "2024-03-10T05:00",  # 00:00 was skipped
    ("America/Havana", "2024-11-03"): "2024-11-03T04:00",  # 00:00 came twice
    ("Asia/Beirut", "2022-03-27"): "2022-03-26T22:00",  # 00:00 was skipped
    ("America/St_Johns", "2006-10-29"): "2006-10-29T02:30",  # 00:00 came, then 23:01 of the day before, then 00:00 again
    ("America/Toronto", "1919-03-31"): "1919-03-31T04:30",  # 23:30 became 00:30
    ("Pacific/Apia", "2011-12-30"): "2011-12-30T10:00",  # was skipped as a whole
    ("Pacific/Apia", "2011-12-31"): "2011-12-30T10:00",
    ("Pacific/Apia", "2012-01-01"): "2011-12-31T10:00",
    ("Pacific/Kwajalein", "1993-08-21"): "1993-08-21T12:00",
    ("Asia/Kathmandu", "2024-01-01"): "2023-12-31T18:15",
    ("UTC", "1969-12-31"): "1969-12-31T00:00",
}  # fmt: skip


def windows(zone: str, days: int = 1, first: int = 0) -> LocalDayWindows:
    return LocalDayWindows(days, first, local_days(zone))


def day_number(text: str) -> int:
    return (date.fromisoformat(text) - date(1970, 1, 1)).days


@pytest.mark.parametrize(("zone", "day"), KNOWN)
def test_days_that_a_person_looked_up(zone: str, day: str) -> None:
    expected = to_micros(datetime.fromisoformat(KNOWN[zone, day]).replace(tzinfo=UTC))
    assert int(windows(zone).starts(day_number(day))) == expected
    assert first_moment(zone, day_number(day)) == expected


def rules_of(zone: str) -> ZoneInfo:
    """Not those of the machine: they may be older."""
    return ZoneInfo.from_file(io.BytesIO(resources.files("tzdata").joinpath("zoneinfo", zone).read_bytes()), zone)


def interesting_days(zone: str, r: random.Random) -> list[int]:
    """Days around each change of the offset between 1840 and 2140, and some of all times."""
    rules = rules_of(zone)
    offsets = [(EPOCH + timedelta(days=day)).astimezone(rules).utcoffset() for day in range(-47_500, 62_000, 20)]
    changes = [-47_500 + 20 * place for place in range(1, len(offsets)) if offsets[place] != offsets[place - 1]]
    around = {day + apart for day in r.sample(changes, min(len(changes), 12)) for apart in range(-21, 2)}
    return sorted(
        around
        | {r.randrange(-27_000_000, 27_000_000) for _ in range(10)}
        | {r.randrange(-99_999, 99_999) for _ in range(20)}
    )


@pytest.mark.parametrize("share", range(4))
def test_every_zone(share: int) -> None:
    """The kernel's days are those of the reference, and those of the reference are those of zoneinfo."""
    for zone in ZONES[share::4]:
        days = np.array(interesting_days(zone, random.Random(zone)))
        found = windows(zone).starts(days)
        expected = [first_moment(zone, day) for day in days.tolist()]
        assert found.tolist() == expected, zone
        assert_days_of_zoneinfo(zone, days.tolist(), expected)


def assert_days_of_zoneinfo(zone: str, days: list[int], moments: list[int]) -> None:
    rules = rules_of(zone)
    for day, moment in zip(days, moments, strict=True):
        if abs(day) < 700_000:
            begin, wanted = EPOCH + moment * MICROSECOND, date(1970, 1, 1) + timedelta(days=day)
            assert begin.astimezone(rules).date() >= wanted, (zone, day)
            assert (begin - MICROSECOND).astimezone(rules).date() < wanted, (zone, day)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Africa/Casablanca", "Asia/Tokyo", "UTC"]
)
@pytest.mark.parametrize(("days", "first"), [(1, 0), (7, 4), (3, 2), (400, 0)])
def test_windows_cover_time_without_gaps(zone: str, days: int, first: int) -> None:
    r = random.Random(f"{zone}-{days}")
    grid = windows(zone, days, first)
    times = [r.randrange(-FURTHEST, FURTHEST) for _ in range(200)] + [
        r.randrange(-3 * 10**15, 4 * 10**15) for _ in range(400)
    ]
    times += [int(grid.starts(k)) + apart for k in range(-50, 50) for apart in (-1, 0, 1)]
    at = np.array(times)
    numbers = grid.latest(at)
    starts, ends = grid.starts(numbers), grid.ends(numbers)
    assert ((starts <= at) & (at < ends)).all()
    assert (grid.closed(at) == numbers - 1).all()
    assert ((ends - starts) <= grid.longest).all()
    assert [grid.move_back(ts) for ts in times] == starts.tolist()
    for ts, start, end in list(zip(times, starts.tolist(), ends.tolist(), strict=True))[::5]:
        assert local_window(zone, days, first, ts) == (start, end)


def test_seven_days_from_the_fourth_begin_on_monday() -> None:
    grid, berlin = windows("Europe/Berlin", 7, 4), ZoneInfo("Europe/Berlin")
    for k in range(-3_000, 3_000, 7):
        begin = (EPOCH + int(grid.starts(k)) * MICROSECOND).astimezone(berlin)
        assert (begin.weekday(), begin.hour) == (0, 0)


def test_what_tasks_are_sent_is_small() -> None:
    assert max(len(local_days(zone).runs) for zone in ZONES[::12]) < 2_000
    assert len(local_days("UTC").runs) == 1
    assert local_days("UTC").runs[0][1] % DAY == 0


def test_names_of_zones() -> None:
    assert check_zone("America/Argentina/Buenos_Aires") == "America/Argentina/Buenos_Aires"
    for wrong, words in [
        ("Europe/Berln", "did you mean 'Europe/Berlin'"),
        ("../etc/passwd", "such as 'Europe/Berlin'"),
    ]:
        with pytest.raises(QueryError, match=words):
            check_zone(wrong)
    with pytest.raises(QueryTypeError, match="zone must be the name of a time zone as text; found 2"):
        check_zone(2)  # type: ignore[arg-type]
