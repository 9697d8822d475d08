"""Random joins of several streams, and their answer as a nested loop in plain Python.

The loop shares nothing with engine or reference: predicates are functions of Python values beside their SQL, and late
tuples are told apart by a walk through the epochs.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.stream import Stream
from headrace.testing import table_stream
from tests.helpers import rows_of

from .strategies import SECOND, Case, Table

TS = pa.timestamp("us", "UTC")
KINDS = {"k": pa.int64(), "s": pa.string(), "f": pa.float64(), "i": pa.int64()}
DOUBLES = [0.0, -0.0, 0.5, 0.5, 1.0, 2.0, 2.5, math.nan, math.inf, -math.inf, None]
ROWS = {2: 60, 3: 26, 4: 13, 5: 8}  # of a source, by the number of aliases
TRIES = 30  # to find rows that have a result

Row = dict[str, Any]
Holds = Callable[[Mapping[str, Row]], bool | None]


@dataclass
class Condition:
    """One part of a predicate, as SQL and as plain Python; None is null."""

    sql: str
    holds: Holds


@dataclass
class PlainJoin:
    """A random join: the streams under its aliases, its windows in microseconds, and the parts of its predicate."""

    tables: dict[str, Table]
    sources: dict[str, str]  # by alias
    windows: dict[str, int]
    conditions: list[Condition]

    @property
    def on(self) -> str:
        return " and ".join(condition.sql for condition in self.conditions) or "true"

    @property
    def query(self) -> Stream:
        streams = {t.name: table_stream(t.rows, lateness=t.lateness, name=t.name) for t in self.tables.values()}
        return self.over(streams)

    def over(self, streams: Mapping[str, Stream]) -> Stream:
        """The join over these streams by the names of the sources."""
        same = len(set(self.windows.values())) == 1
        within = {alias: f"{window // 1000} milliseconds" for alias, window in self.windows.items()}
        joined = {alias: streams[source] for alias, source in self.sources.items()}
        return hr.join(joined, on=self.on, within=next(iter(within.values())) if same else within)

    @property
    def case(self) -> Case:
        return Case(self.query, self.tables, frozenset())

    def answer(self, epochs: Sequence[Mapping[str, pa.Table]] | None = None) -> Counter[tuple[Any, ...]]:
        """How often each row of the answer is there. epochs: the cut in which tuples may be late; None: none is."""
        cut = [{name: t.rows for name, t in self.tables.items()}] if epochs is None else epochs
        accepted = {name: accepted_rows(t, [e.get(name) for e in cut]) for name, t in self.tables.items()}
        found: Counter[tuple[Any, ...]] = Counter()
        for rows in itertools.product(*(accepted[source] for source in self.sources.values())):
            if self.is_result(dict(zip(self.sources, rows, strict=True))):
                found[plain_result(rows)] += 1
        return found

    def is_result(self, rows: Mapping[str, Row]) -> bool:
        latest = max(row["ts"] for row in rows.values())
        if any(latest - row["ts"] > self.windows[alias] for alias, row in rows.items()):
            return False
        return all(condition.holds(rows) is True for condition in self.conditions)


def plain_result(rows: Sequence[Row]) -> tuple[Any, ...]:
    values = [value for row in rows for value in row.values()]
    return (min(row["ts"] for row in rows), *map(repr, values))


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows of an answer of the engine or the reference, in the form of `PlainJoin.answer`."""
    return Counter((row[0], *map(repr, row[1:])) for row in rows_of(table))


def accepted_rows(table: Table, arrived: Sequence[pa.Table | None]) -> list[Row]:
    """The rows that are not late: their time is not below the watermark after the epoch before."""
    lateness = int(table.lateness.split()[0]) * 1000
    accepted: list[Row] = []
    watermark = -math.inf
    for rows in arrived:
        new = [dict(zip(table.rows.column_names, row, strict=True)) for row in ([] if rows is None else rows_of(rows))]
        accepted += [row for row in new if row["ts"] >= watermark]
        watermark = max((row["ts"] - lateness for row in accepted), default=watermark)
    return accepted


# --- parts of a predicate --------------------------------------------------------------------------------------------


def place(value: Any) -> Any:
    """The place of a value in the order of its type; NaN is above all numbers and equal to itself."""
    return (True, 0.0) if isinstance(value, float) and math.isnan(value) else (False, value)


def compared(one: Any, other: Any, holds: Callable[[Any, Any], bool]) -> bool | None:
    return None if one is None or other is None else holds(place(one), place(other))


def equal(a: str, b: str, column: str, other: str | None = None) -> Condition:
    return Condition(
        f"{a}.{column} = {b}.{other or column}",
        lambda rows: compared(rows[a][column], rows[b][other or column], lambda x, y: bool(x == y)),
    )


def less(a: str, b: str, column: str) -> Condition:
    return Condition(
        f"{a}.{column} <= {b}.{column}",
        lambda rows: compared(rows[a][column], rows[b][column], lambda x, y: bool(x <= y)),
    )


def near(a: str, b: str, width: float) -> Condition:
    def holds(rows: Mapping[str, Row]) -> bool | None:
        x, y = rows[a]["f"], rows[b]["f"]
        return None if x is None or y is None else compared(abs(x - y), width, lambda p, q: bool(p <= q))

    return Condition(f"abs({a}.f - {b}.f) <= {width}", holds)


def between(a: str, b: str, c: str) -> Condition:
    def holds(rows: Mapping[str, Row]) -> bool | None:
        low, value, high = rows[b]["i"], rows[a]["i"], rows[c]["i"]
        parts = [compared(low, value, lambda p, q: bool(p <= q)), compared(value, high, lambda p, q: bool(p <= q))]
        return False if False in parts else None if None in parts else True

    return Condition(f"{a}.i between {b}.i and {c}.i", holds)


def remainder(a: str, b: str) -> Condition:
    """A part that can fail, because a sum of whole numbers can overflow; it never does here."""

    def holds(rows: Mapping[str, Row]) -> bool | None:
        x, y = rows[a]["i"], rows[b]["i"]
        return None if x is None or y is None else (x + 2 * y) % 3 != 1

    return Condition(f"({a}.i + 2 * {b}.i) % 3 <> 1", holds)


def any_of_two(a: str, b: str) -> Condition:
    def holds(rows: Mapping[str, Row]) -> bool | None:
        parts = [equal(a, b, "s").holds(rows), less(b, a, "i").holds(rows)]
        return True if True in parts else None if None in parts else False

    return Condition(f"({a}.s = {b}.s or {b}.i <= {a}.i)", holds)


def not_distinct(a: str, b: str) -> Condition:
    return Condition(f"{a}.k is not distinct from {b}.k", lambda rows: bool(rows[a]["k"] == rows[b]["k"]))


def one_sided(a: str, least: int) -> Condition:
    return Condition(f"{a}.i >= {least}", lambda rows: compared(rows[a]["i"], least, lambda x, y: bool(x >= y)))


def conditions(r: random.Random, aliases: Sequence[str]) -> list[Condition]:
    """A mixture of equalities, bands, inequalities and other parts, or none."""

    def two() -> list[str]:
        return r.sample(aliases, 2)

    def others(many: int) -> list[Condition]:
        made: list[Callable[[], Condition]] = [
            lambda: less(*two(), r.choice(["f", "i", "ts", "s"])),
            lambda: near(*two(), r.choice([0.0, 0.5, 2.0])),
            lambda: between(*r.sample(aliases, 3)) if len(aliases) > 2 else one_sided(aliases[0], 1),
            lambda: remainder(*two()),
            lambda: any_of_two(*two()),
            lambda: not_distinct(*two()),
            lambda: one_sided(r.choice(aliases), r.choice([0, 2])),
            lambda: equal(*two(), r.choice(["k", "s", "f", "i"])),
        ]
        return [r.choice(made)() for _ in range(many)]

    match r.choice(["one key", "one key", "chain", "chain", "star", "two", "others", "none"]):
        case "one key":
            column = r.choice(["k", "k", "s", "f"])
            found = [equal(a, b, column) for a, b in itertools.pairwise(aliases)] + others(r.choice([0, 0, 1]))
        case "chain":
            found = [equal(a, b, r.choice(["k", "s", "f", "i"])) for a, b in itertools.pairwise(aliases)]
            found += others(r.choice([0, 0, 1]))
        case "star":
            found = [equal(aliases[-1], a, r.choice(["k", "s"])) for a in aliases[:-1]] + others(r.choice([0, 1]))
        case "two":
            found = [equal(*two(), "k", r.choice(["k", "i"])), *others(r.choice([0, 1, 2]))]
        case "others":
            found = others(r.choice([1, 2, 3]))
        case _:
            found = []
    return r.sample(found, len(found))


# --- joins -----------------------------------------------------------------------------------------------------------


def random_rows(r: random.Random, rows: int, lateness: int, disorder: int) -> pa.Table:
    """Rows in order of arrival, with few values and many equal times."""
    span = r.choice([4, 8, 20]) * SECOND
    grain = r.choice([SECOND, SECOND, SECOND // 4])
    times = [r.randrange(max(span // grain, 1)) * grain for _ in range(rows)]
    times.sort(key=lambda ts: (ts + r.randint(0, disorder), r.random()))
    columns = {
        "k": [r.choice([1, 1, 2, 3, None]) for _ in times],
        "s": [r.choice(["a", "a", "b", "", None]) for _ in times],
        "f": [r.choice(DOUBLES) for _ in times],
        "i": [r.choice([0, 1, 2, 3, 4, None]) for _ in times],
    }
    arrays = [pa.array(values, KINDS[name]) for name, values in columns.items()]
    return pa.table([pa.array(times, pa.int64()).cast(TS), *arrays], names=["ts", *columns])


def random_join(seed: object, *, late: bool = False, most: int = 5) -> PlainJoin:
    """A join of 2 to 5 aliases over one source or several; few have no result."""
    r = random.Random(f"nway-{seed}")
    for _ in range(TRIES):
        many = min(r.choice([2, 3, 3, 3, 4, 4, 5]), most)
        tables = {}
        for number in range(r.randint(1, many)):
            lateness = r.choice([0, 0, SECOND, 4 * SECOND])
            disorder = 6 * SECOND if late else lateness
            rows = random_rows(r, r.randint(ROWS[many] // 2, ROWS[many]), lateness, disorder)
            tables[f"source{number}"] = Table(f"source{number}", rows, f"{lateness // 1000} milliseconds")
        aliases = r.sample(["a", "b", "c", "D", "e_1"], many)
        sources = dict(zip(aliases, [*tables, *r.choices(list(tables), k=many - len(tables))], strict=True))
        windows = random_windows(r, aliases)
        found = PlainJoin(tables, sources, windows, conditions(r, aliases))
        if found.answer():
            break
    return found


def random_windows(r: random.Random, aliases: Sequence[str]) -> dict[str, int]:
    """One window for all, or one for each; some are zero."""
    if r.random() < 0.5:
        return dict.fromkeys(aliases, r.choice([SECOND, 2 * SECOND, 5 * SECOND]))
    windows = {alias: r.choice([0, SECOND // 4, SECOND, 3 * SECOND, 10 * SECOND]) for alias in aliases}
    return windows if any(windows.values()) else {**windows, aliases[0]: SECOND}
