"""Windows of local days: against Python's zoneinfo, through both changes of daylight saving time and stranger days."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from headrace.columnar.types import TS_TYPE
from headrace.errors import HeadraceError, QueryChanged, QueryError, QueryTypeError
from headrace.operators import aggregates, time_aggregate
from headrace.reference import reference
from headrace.stream import Stream
from headrace.support.event_time import EPOCH, FURTHEST
from headrace.support.local_days import LocalDays
from headrace.testing import LocalRun, table_stream

from .driving import drive, driven
from .strategies import SECOND, STATELESS, Table, cut, make_case
from .test_distinct import as_table
from .test_local import check, same, seeds

HOUR = 3_600 * SECOND
PARTIAL = {"n": "count(*)", "t": "sum(v)"}
WHOLE = {"n": "count(*)", "t": "sum(v)", "q": "list(v)"}
BERLIN = ZoneInfo("Europe/Berlin")
# (zone, a day around which tuples lie)
PLACES = [
    ("Europe/Berlin", "2024-03-31"),
    ("Europe/Berlin", "2024-10-27"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Havana", "2024-11-03"),
    ("Asia/Beirut", "2022-03-27"),
    ("America/St_Johns", "2006-10-29"),
    ("Pacific/Apia", "2011-12-30"),
    ("Asia/Kathmandu", "1969-12-30"),
]


def rows_around(day: str, seed: int, count: int = 200, lateness: int = 4 * HOUR) -> pa.Table:
    """Tuples of nine days in order of arrival, many of them close to a full hour."""
    r = random.Random(seed)
    middle = (datetime.fromisoformat(day).replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    hours = [r.randrange(-4 * 24, 5 * 24) for _ in range(count)]
    times = [middle + hour * HOUR + r.choice([0, 0, -1, 1, 1_800 * SECOND, r.randrange(HOUR)]) for hour in hours]
    times.sort(key=lambda ts: ts + r.randrange(lateness + 1))
    return as_table([(ts, r.choice(["a", "b", None]), r.randrange(100)) for ts in times])


def local_day(ts: int, zone: ZoneInfo) -> date:
    """The largest local date that had come by then: clocks that go back do not bring a day back."""
    moments = (EPOCH + timedelta(microseconds=ts) - timedelta(minutes=back) for back in range(0, 130, 1))
    return max(moment.astimezone(zone).date() for moment in moments)


def in_python(rows: pa.Table, zone: str) -> Counter[tuple[Any, ...]]:
    """(key, local date, smallest ts, how many, sum) of each group and day."""
    groups: dict[tuple[Any, date], list[tuple[int, int]]] = {}
    columns = (rows["ts"].cast(pa.int64()).to_pylist(), rows["k"].to_pylist(), rows["v"].to_pylist())
    for ts, key, value in zip(*columns, strict=True):
        groups.setdefault((key, local_day(ts, ZoneInfo(zone))), []).append((ts, value))
    return Counter((*group, min(found)[0], len(found), sum(v for _, v in found)) for group, found in groups.items())


def days_of(found: pa.Table, zone: str) -> Counter[tuple[Any, ...]]:
    """The same of results, whose windows must be days."""
    rows = []
    for start, end, ts, key, n, t in zip(
        *(_plain(found[c]) for c in ("window_start", "window_end", "ts", "k", "n", "t")), strict=True
    ):
        day = local_day(start, ZoneInfo(zone))
        assert local_day(start - 1, ZoneInfo(zone)) < day < local_day(end, ZoneInfo(zone))
        assert local_day(end - 1, ZoneInfo(zone)) == day
        rows.append((key, day, ts, n, t))
    return Counter(rows)


def _plain(column: Any) -> list[Any]:
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def daily(rows: pa.Table, zone: str | None, functions: dict[str, str], window: str = "1 day", **given: Any) -> Stream:
    stream = table_stream(rows, lateness="4 hours", name="a")
    return stream.aggregate(by=["k"], window=window, zone=zone, **given, **functions)


@seeds(2)
@pytest.mark.parametrize(("zone", "day"), PLACES)
@pytest.mark.parametrize("functions", [PARTIAL, WHOLE], ids=["partials", "tuples"])
def test_days_are_those_of_zoneinfo(seed: int, zone: str, day: str, functions: dict[str, str]) -> None:
    rows = rows_around(day, seed)
    query = daily(rows, zone, functions)
    expected = in_python(rows, zone)
    assert days_of(reference(query), zone) == expected
    found = drive(query, cut({"a": Table("a", rows, "4 hours")}, 5, seed), seed, change_slots=0.5)
    assert days_of(found, zone) == expected
    same(reference(query), found)


@pytest.mark.parametrize(("day", "hours"), [("2024-03-31", 23), ("2024-10-27", 25), ("2024-06-01", 24)])
def test_bounds_are_midnights_of_berlin(day: str, hours: int) -> None:
    midnight = datetime.combine(date.fromisoformat(day), time.min, tzinfo=BERLIN).astimezone(UTC)
    ts = (midnight - EPOCH) // timedelta(microseconds=1)
    rows = as_table([(ts + hour * HOUR, "a", hour) for hour in range(30)])
    found = reference(daily(rows, "Europe/Berlin", PARTIAL)).sort_by("ts")
    assert found["n"].to_pylist() == [hours, 30 - hours]
    assert found["window_start"][0].as_py() == midnight
    assert found["window_end"][0].as_py() == midnight + timedelta(hours=hours)
    assert found["window_start"].type == found["window_end"].type == TS_TYPE


def test_a_week_from_the_fourth_day_begins_on_monday() -> None:
    rows = rows_around("2024-03-31", 1)
    query = daily(rows, "Europe/Berlin", PARTIAL, "7 days", offset="4 days")
    found = drive(query, cut({"a": Table("a", rows, "4 hours")}, 4, 1), 1)
    same(reference(query), found)
    for edge in ("window_start", "window_end"):
        local = [moment.astimezone(BERLIN) for moment in found[edge].to_pylist()]
        assert {(moment.weekday(), moment.hour) for moment in local} == {(0, 0)}
    assert sum(found["n"].to_pylist()) == rows.num_rows


@seeds(24)
def test_among_other_operators(seed: int) -> None:
    """Their watermark is the start of the day, so what is behind them must not be closed too early."""
    operators = (*STATELESS, "time_aggregate", "time_aggregate", "session_aggregate", "time_join", "top", "each")
    case = make_case(f"local-days-{seed}", operators, suitable=lambda case: has_zone(case.query))
    check(case, seed, change_slots=0.3, end=seed % 3 > 0)


def has_zone(query: Stream) -> bool:
    return "window" in repr(query) and " in " in repr(query).replace("in UTC", "")


@seeds(8)
def test_weeks_of_days_of_hours(seed: int) -> None:
    """An aggregate of an aggregate of an aggregate, over tuples of some days."""
    rows = rows_around("2024-10-27", seed, lateness=9 * HOUR)
    hours = table_stream(rows, lateness="4 hours", name="a").aggregate(by=["k"], window="1 hour", n="count(*)")
    days = hours.aggregate(by=["k"], window="1 day", zone="Europe/Berlin", m="sum(n)", l="list(n)")
    query = days.aggregate(window="2 days", zone="Asia/Kathmandu", s="CAST(sum(m) AS BIGINT)")
    arrived = cut({"a": Table("a", rows, "")}, 6, seed)
    expected = reference(query, epochs=arrived, end=seed % 2 == 0)
    same(expected, drive(query, arrived, seed, end=seed % 2 == 0, change_slots=0.5), query)


def test_a_day_closes_at_local_midnight_and_not_before() -> None:
    """The day is 31 March 2024, which has 23 hours: from 23:00 UTC to 22:00 UTC."""
    at = (datetime(2024, 3, 30, 23, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
    table = as_table([(at + hour * HOUR, "a", hour) for hour in (-1, 0, 22, 23, 46)])
    query = table_stream(table, name="a").aggregate(by=["k"], window="1 day", zone="Europe/Berlin", **PARTIAL)
    with driven(query, 2) as run:
        closed = []
        for row in range(5):
            run.epoch({"a": table.slice(row, 1)})
            closed.append(run.table().num_rows)
        assert closed == [0, 1, 1, 2, 2]


def test_times_of_every_age() -> None:
    """Python has no dates for most of them; the calendar of a zone repeats every 400 years."""
    times = [
        -FURTHEST + 1,
        -(10**17),
        -62_000 * 365 * 24 * HOUR,
        -(10**15),
        -1,
        0,
        10**15,
        10**16,
        10**17,
        FURTHEST - 1,
    ]
    rows = as_table([(ts, "a", number) for number, ts in enumerate(times)])
    for zone in ("Europe/Berlin", "Pacific/Apia", "America/St_Johns"):
        query = table_stream(rows, name="a").aggregate(window="1 day", zone=zone, **PARTIAL)
        found = drive(query, [{"a": rows.slice(0, 4)}, {"a": rows.slice(4)}], 1)
        same(reference(query), found)
        assert found.num_rows == len(times) - 1  # -1 and 0 are of one day in each of these zones


def test_it_says_what_it_is_and_is_part_of_the_query() -> None:
    rows = as_table([(0, "a", 0)])
    query = daily(rows, "Europe/Berlin", PARTIAL, "7 days", offset="4 days")
    assert "aggregate by k window 7 days every 7 days offset 4 days in Europe/Berlin: n = count(*)" in repr(query)
    assert "window 7 days every 7 days offset 4 days in Europe/Berlin" in query.explain()
    described = query._node.describe()
    assert (described["zone"], described["offset"]) == ("Europe/Berlin", 4 * 24 * HOUR)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"zone": "Europe/Paris"}, "zone was 'Europe/Berlin', is 'Europe/Paris'"),
        ({"zone": None}, "zone was 'Europe/Berlin', is None"),
        ({"offset": "4 days"}, "offset was None, is 345600000000"),
    ],
)
def test_a_state_does_not_continue_with_another_zone_or_offset(now: dict[str, Any], words: str, tmp_path: Path) -> None:
    rows = rows_around("2024-03-31", 1)
    run = LocalRun(daily(rows, "Europe/Berlin", PARTIAL, "7 days"), tmp_path)
    run.epoch({"a": rows})
    run.close()
    with pytest.raises(QueryChanged, match=words):
        LocalRun(daily(rows, **{"zone": "Europe/Berlin", "functions": PARTIAL, "window": "7 days", **now}), tmp_path)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"zone": "Berlin"}, QueryError, "unknown time zone; found 'Berlin'.*did you mean 'Europe/Berlin'"),
        ({"zone": "europe/berlin"}, QueryError, "did you mean 'Europe/Berlin'"),
        ({"zone": 1}, QueryTypeError, "zone must be the name of a time zone as text; found 1"),
        ({"window": "36 hours"}, QueryError, "with a zone, window must be whole days; found '36 hours'"),
        ({"window": "2 days", "every": "1 day"}, QueryError, "every is the window, '2 days'; found every='1 day'; leave it out"),
        ({"window": "2 days", "offset": "6 hours"}, QueryError, "with a zone, offset must be whole days; found '6 hours'"),
        ({"window": "2 days", "offset": "2 days"}, QueryError, "offset must be shorter"),
        ({"window": None, "session": "1 day"}, QueryError, "zone is for time windows"),
        ({"window": None, "last": 3}, QueryError, "zone is for time windows"),
    ],
)  # fmt: skip
def test_bad_arguments(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        arguments = {"n": "count(*)", "window": "1 day", "zone": "Europe/Berlin", **given}
        table_stream(as_table([(0, "a", 0)]), name="a").aggregate(**arguments)


# --- broken on purpose -------------------------------------------------------------------------------------------------


def days_of_24_hours(patch: pytest.MonkeyPatch) -> None:
    real = time_aggregate.local_days
    patch.setattr(time_aggregate, "local_days", lambda zone: LocalDays(real(zone).runs[:1], None))


def reports_too_far(patch: pytest.MonkeyPatch) -> None:
    """Its watermark is that of its input: what is behind it closes too early."""
    patch.setattr(aggregates.WindowAggregate, "watermark", lambda self, inputs: inputs[0])


@pytest.mark.thorough
@pytest.mark.parametrize("canary", [days_of_24_hours, reports_too_far])
def test_a_broken_one_is_seen(canary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    canary(monkeypatch)

    def wrong(seed: int) -> bool:
        rows = rows_around("2024-10-27", seed)
        days = table_stream(rows, lateness="4 hours", name="a").aggregate(
            window="1 day", zone="Europe/Berlin", n="count(*)"
        )
        query = days.aggregate(window="2 hours", m="sum(n)")
        arrived = cut({"a": Table("a", rows, "4 hours")}, 6, seed)
        try:
            same(reference(query, epochs=arrived), drive(query, arrived, seed))
        except (AssertionError, HeadraceError):
            return True
        return False

    assert any(wrong(seed) for seed in range(20))
