"""Random streams, random queries over them and random cuts into epochs, each from one seed.

Plain seeded generators rather than Hypothesis strategies: of 180 cases that Hypothesis drew, half were repeated
queries and a third had no result; here nearly every query is another one and has an answer. `driving.shrink` makes
the rows of a failing case few.
"""

from __future__ import annotations

import datetime
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headrace import join as nway
from headrace.columnar.types import TS_TYPE
from headrace.query import nodes
from headrace.reference import reference
from headrace.stream import Stream, node_of
from headrace.testing import arrow_table, table_stream

from . import processing

SECOND = 1_000_000
MOST_COMBINATIONS = 200_000  # of tuples of a join of several streams, inside the windows or not
MOST_RESULTS = 1500  # of an operator inside a query: keeps a case short
TEXTS = ["a", "b", "B", "", "ä", "Ω≈ç", "a'b", '"', "日本", "\U0001f600", "z" * 40]
DOUBLES = [0.0, -0.0, 0.25, 0.5, -1.5, 2.0, 3.75, 100.0]
ODD_DOUBLES = [*DOUBLES, float("nan"), float("inf"), -float("inf"), -float("nan")]
PREDICATES = {
    "equal": ("l.{a} = r.{b}", "any"),
    "equal and less": ("l.{a} = r.{b} and l.{c} < r.{d}", "any"),
    "two equal": ("l.{a} = r.{b} and l.{c} = r.{d}", "any"),
    "equal and a sum": ("r.{b} = l.{a} and (l.{i} + r.{j}) % 2 = 0", "any"),
    "less": ("l.{a} <= r.{b}", "any"),
    "band": ("l.{i} <= r.{j} and r.{j} < l.{i} + 7", "int"),
    "any": ("(l.{i} + 2 * r.{j}) % 3 = 1", "int"),
    "distance": ("abs(l.{i} - r.{j}) < 4 or l.{i} is null", "int"),
    "not distinct": ("l.{a} is not distinct from r.{b}", "any"),
    "or": ("l.{a} = r.{b} or l.{i} = r.{j}", "int"),
    "not equal": ("l.{a} <> r.{b}", "any"),
    "true": ("true", "any"),
    "time": ("l.ts < r.ts", "any"),
    "same time": ("l.ts = r.ts", "any"),
    "one side": ("l.{i} % 2 = 0", "int"),
}


ZONES = ["Europe/Berlin", "America/Sao_Paulo", "Pacific/Apia", "Asia/Kathmandu", "UTC"]
WHOLE_DAYS = [{"window": "1 day"}, {"window": "7 days", "offset": "4 days"}, {"window": "2 days", "every": "48 hours"}]


@dataclass
class Table:
    """The rows of one source in order of arrival; none is later than `lateness` behind an earlier one."""

    name: str
    rows: pa.Table
    lateness: str


@dataclass
class Case:
    query: Stream
    tables: dict[str, Table]  # of the sources that the query really uses
    inexact: frozenset[str]  # columns that hold rounded doubles

    def __repr__(self) -> str:
        shown = "\n".join(f"{t.name} (lateness {t.lateness}):\n{t.rows.to_pylist()}" for t in self.tables.values())
        return f"Case\n{self.query!r}\n{shown}"

    @property
    def names(self) -> list[str]:
        return list(self.tables)

    @property
    def single_time_join(self) -> bool:
        kinds = [type(node) for node in nodes.walk_nodes(node_of(self.query))]
        stateful = (nodes.TimeJoin, nodes.CountJoin, nodes.TimeAggregate, nodes.CountAggregate)
        return [k for k in kinds if issubclass(k, stateful)] == [nodes.TimeJoin]


# --- rows ----------------------------------------------------------------------------------------------------------


def make_table(
    seed: int,
    rows: int,
    *,
    small: bool = False,
    odd: bool = False,
    start: int = 0,
    span: int = 30 * SECOND,
    grain: int = SECOND,
    lateness: int = 0,
    disorder: int | None = None,
) -> pa.Table:
    """Rows in order of arrival; event times are whole grains, rows are out of order by at most `disorder`."""
    r = np.random.default_rng(seed)
    ts = start + r.integers(0, max(span // grain, 1), rows) * grain
    disorder = lateness if disorder is None else disorder
    arrival = ts + (r.integers(0, disorder + 1, rows) if disorder else 0)
    ts = ts[np.lexsort((r.random(rows), arrival))]
    keys = np.minimum(r.geometric(0.4, rows), 6)  # few keys, the first of them hot
    columns: dict[str, Any] = {
        "ts": pa.array(ts, pa.int64()).cast(TS_TYPE),
        "k": pa.array(keys, pa.int32() if small else pa.int64(), mask=r.random(rows) < 0.12),
        "x": pa.array(r.integers(-20, 60, rows), pa.int64(), mask=r.random(rows) < (0.1 if odd else 0)),
        "f": pa.array(r.choice(ODD_DOUBLES if odd else DOUBLES, rows), mask=r.random(rows) < 0.1),
    }
    if not small:
        texts = [None if r.random() < 0.15 else TEXTS[i] for i in r.integers(0, len(TEXTS), rows)]
        columns["s"] = pa.array(texts, pa.string())
        columns["b"] = pa.array(r.random(rows) < 0.5, mask=r.random(rows) < 0.1)
    if odd and not small:
        cents = [None if r.random() < 0.1 else Decimal(int(c)) / 100 for c in r.integers(-300, 300, rows)]
        columns["d"] = pa.array(cents, pa.decimal128(12, 2))
        days = [datetime.date(2024, 1, 1) + datetime.timedelta(int(d)) for d in r.integers(0, 4, rows)]
        columns["day"] = pa.array(days, pa.date32())
    return pa.table(columns)


def source_tables(r: random.Random, most: int = 120, disorder: int | None = None) -> list[Table]:
    """One source or two; of other speed, schema, lateness and place in time."""
    grain = r.choice([SECOND, SECOND, 250_000, 7, 1])
    start = r.choice([0, 1_700_000_000 * SECOND, -15 * SECOND, -3_600 * SECOND + 1])
    found = []
    for name in r.choice([("a",), ("a", "b"), ("a", "b")]):
        rows = r.choice([0, 1, 12, 30, 45, 60, 60, 80, 100, most] if name == "a" else [0, 2, 10, 25, 40, 70])
        lateness = r.choice([0, 0, SECOND, 4 * SECOND, 20 * SECOND])
        table = make_table(
            r.getrandbits(32),
            min(rows, most),
            small=name == "b" and r.random() < 0.5,
            odd=r.random() < 0.5,
            start=start + r.choice([0, 0, 0, 0, 10 * SECOND, 60 * SECOND]),
            span=r.choice([30, 30, 12, 60, 1]) * SECOND,
            grain=grain,
            lateness=lateness,
            disorder=disorder,
        )
        found.append(Table(name, table, f"{lateness // 1000} milliseconds"))
    return found


# --- queries -------------------------------------------------------------------------------------------------------

CONSTANTS = ["1", "'constant'"]
T = pa.types
COMPARABLE = {
    "int": T.is_integer,
    "float": T.is_floating,
    "text": T.is_string,
    "bool": T.is_boolean,
    "decimal": T.is_decimal,
    "date": T.is_date32,
    "list": T.is_list,
}


def kind_of(kind: pa.DataType) -> str | None:
    if T.is_decimal(kind) and kind.precision == 38:
        return "huge"  # sums of whole numbers
    return next((name for name, test in COMPARABLE.items() if test(kind)), None)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass
class Part:
    """A stream under construction."""

    stream: Stream
    inexact: frozenset[str] = frozenset()

    def columns(self, *kinds: str) -> list[str]:
        """Names of exact columns, of these kinds or of any."""
        fields = [f for f in self.stream.schema if f.name not in self.inexact and f.name != "ts"]
        return [f.name for f in fields if kind_of(f.type) in (kinds or COMPARABLE)]

    def exact(self) -> Part:
        """Without rounded doubles: what depends on the order of tuples must not see them."""
        if not self.inexact:
            return self
        return Part(self.stream.map(*[n for n in self.stream.columns if n not in self.inexact]))


class Maker:
    def __init__(self, r: random.Random, sources: list[Part]) -> None:
        self.r = r
        self.sources = sources
        self.tables: list[Any] = []
        self.count = 0

    def pick(self, options: Any) -> Any:
        return self.r.choice(list(options))

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def query(self, operators: int, allowed: tuple[str, ...]) -> Part:
        parts = list(self.sources)
        for _ in range(operators):
            made = getattr(self, self.pick(allowed))(self.pick(parts[-2:]), parts)
            parts.append(made)
        return parts[-1]

    # --- stateless

    def map(self, part: Part, parts: list[Part]) -> Part:
        keep = [n for n in part.stream.columns if n == "ts" or self.pick((True, True, False))]
        new = {self.name(): self.pick(self.values(part)) for _ in range(self.pick((1, 2)))}
        return Part(part.stream.map(*keep, **new), part.inexact & set(keep))

    def values(self, part: Part) -> list[str]:
        found = [*CONSTANTS, "epoch_ms(ts) % 5"]
        for n in map(quoted, part.columns("int")):
            found += [f"{n} + 1", f"{n} % 7", f"coalesce({n}, -1)", f"{n} > 3", f"CASE WHEN {n} > 9 THEN 'hi' END"]
        for n in map(quoted, part.columns("float")):
            found += [f"{n} * 2", f"-{n}", f"isnan({n})"]
        for n in map(quoted, part.columns("text")):
            found += [f"upper({n})", f"{n} || '!'", f"length({n})"]
        for n in map(quoted, part.columns("decimal", "date")):
            found += [f"{n}", f"coalesce({n}, NULL)"]
        return found

    def tests(self, part: Part) -> list[str]:
        found = ["true", "epoch_ms(ts) % 3 < 2"]
        for n in map(quoted, part.columns("int")):
            found += [f"{n} > 2", f"{n} % 2 = 0", f"{n} IS NOT NULL", f"{n} IN (1, 2, 3)", f"NOT ({n} < 5)"]
        found += [f"{quoted(n)} >= 0.25" for n in part.columns("float")]
        found += [f"{quoted(n)} < 'b'" for n in part.columns("text")]
        found += [quoted(n) for n in part.columns("bool")]
        return found

    def columns(self, part: Part, parts: list[Part]) -> Part:
        """One of the verbs that keep, add, rename or drop columns."""
        stream, names = part.stream, [n for n in part.stream.columns if n != "ts"]
        some = [n for n in names if self.pick((True, True, False))]
        new = {self.pick([self.name(), *names]): self.pick(self.values(part)) for _ in range(self.pick((1, 2)))}
        match self.pick(("select", "with_columns", "rename", "drop")):
            case "select":
                kept = [n for n in some if n not in new]
                return Part(stream.select(*kept, **new), part.inexact & set(kept))
            case "with_columns":
                return Part(stream.with_columns(**new), part.inexact - set(new))
            case "rename":
                called = {old: self.name() for old in some}
                return Part(stream.rename(called), frozenset(called.get(n, n) for n in part.inexact))
        return Part(stream.drop(*some), part.inexact - set(some))

    def unnest(self, part: Part, parts: list[Part]) -> Part:
        """Of a column that is there, or of one that is made for it."""
        part = part.exact()
        found = part.columns("list")
        if not found or self.pick((True, True, False)):
            name, (text, is_list) = self.name(), self.pick(self.nested(part))
            part, found = Part(part.stream.with_columns(**{name: text})), [name]
        else:
            is_list = True
        options = {"outer": self.pick((True, False)), "index": self.pick((None, self.name()))} if is_list else {}
        return self.small_enough(Part(part.stream.unnest(self.pick(found), **options)), part)

    def nested(self, part: Part) -> list[tuple[str, bool]]:
        """Expressions that make lists, maps and structs, and whether unnest makes several tuples of one."""
        first, second = self.name(), self.name()
        found = [("CASE epoch_ms(ts) % 3 WHEN 0 THEN [] WHEN 1 THEN [7, NULL, 7] END", True)]
        for n in map(quoted, part.columns("int")):
            found += [(f"[{n}, {n} + 1]", True), (f"CASE WHEN {n} > 2 THEN [{n}] END", True)]
            found += [(f"MAP {{'a': {n}, 'b': NULL}}", True), (f"[{{'{first}': {n}, '{second}': 'x'}}, NULL]", True)]
            found += [(f"{{'{first}': {n}, '{second}': {n} % 2 = 0}}", False)]
        found += [(f"string_split({n}, 'a')", True) for n in map(quoted, part.columns("text"))]
        return found

    def filter(self, part: Part, parts: list[Part]) -> Part:
        return Part(part.stream.filter(self.pick(self.tests(part))), part.inexact)

    def sample(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        by = self.pick((None, self.by(part) or None))
        return Part(part.stream.sample(self.pick((1, 0.9, 0.7, 0.5)), by=by))

    def case(self, part: Part, parts: list[Part]) -> Part:
        branches = part.stream.case(*[self.pick(self.tests(part)) for _ in range(self.pick((1, 2)))])
        return Part(self.pick(branches), part.inexact)

    def union(self, part: Part, parts: list[Part]) -> Part:
        other = self.pick([part, *parts])
        if other.stream.schema.equals(part.stream.schema):
            if self.pick((True, False)):
                other = self.filter(other, parts)
            return self.small_enough(Part(part.stream.union(other.stream), part.inexact | other.inexact), part)
        first, second = ((p.columns("int") or [None])[0] for p in (part, other))
        if first is None or second is None:
            branches = part.stream.case(self.pick(self.tests(part)), self.pick(self.tests(part)))
            return Part(branches[0].union(branches[2]), part.inexact)
        aligned = [p.stream.map(n=f"CAST({quoted(c)} AS BIGINT)") for p, c in ((part, first), (other, second))]
        return Part(aligned[0].union(aligned[1]))

    # --- joins

    def predicate(self, left: Part, right: Part) -> str:
        text, need = self.pick(PREDICATES.values())
        if need == "int" and not (left.columns("int") and right.columns("int")):
            text = "true"
        kinds = [k for k in COMPARABLE if left.columns(k) and right.columns(k) and k != "list"]
        if "{i}" in text and "int" not in kinds:
            text = "true"
        if "{a}" in text and not kinds:
            text = "true"
        names = {}
        if kinds:
            for one, other in (("a", "b"), ("c", "d")):
                kind = self.pick(kinds)
                names[one], names[other] = (quoted(self.pick(p.columns(kind))) for p in (left, right))
        if "int" in kinds:
            names["i"], names["j"] = (quoted(self.pick(p.columns("int"))) for p in (left, right))
        return text.format(**names)

    def sides(self, part: Part, parts: list[Part]) -> tuple[Part, Part]:
        other = self.pick([part, *parts])
        if self.pick((False, False, True)):
            other = self.filter(other, parts)
        return (part, other) if self.pick((True, False)) else (other, part)

    def time_join(self, part: Part, parts: list[Part], how: str = "inner") -> Part:
        left, right = self.sides(part, parts)
        within = self.pick(["2 seconds", "5 seconds", "0.25 seconds", ("1 second", "3 seconds")])
        if isinstance(within, str) and self.pick((False, True)):
            within = (within, self.pick(["0 seconds", "0.001 milliseconds", "1 second", "4 seconds"]))
            within = within[::-1] if self.pick((False, True)) else within
        joined = left.stream.join(right.stream, on=self.predicate(left, right), within=within, how=how)
        return self.small_enough(Part(joined, _joined_inexact(joined, left, right)), part)

    def outer_join(self, part: Part, parts: list[Part]) -> Part:
        return self.time_join(part, parts, how=self.pick(("left", "right", "full")))

    def using_join(self, part: Part, parts: list[Part]) -> Part:
        """By columns that both sides have; over a time or a count window, or with a table of the same rows."""
        left, right = self.sides(part, parts)
        window = self.pick([{"last": 5}, {"last": (20, 3)}, {"within": "2 seconds"}, {"within": "5 seconds"}])
        if "last" in window:
            left, right = left.exact(), right.exact()
        kinds = {n: right.stream.schema.field(n).type for n in right.columns()}
        shared = [n for n in left.columns() if n in kinds and _meet(left.stream.schema.field(n).type, kinds[n])]
        shared = [n for n in shared if not n.startswith(("l_", "r_"))]  # such as the join may call other columns
        if not shared:
            return self.time_join(part, parts)
        using = list(dict.fromkeys(self.pick(shared) for _ in range(self.pick((1, 1, 2)))))
        how = self.pick(("inner", "left", "right", "full")) if "within" in window else "inner"
        on = self.pick((None, None, "l.ts <> r.ts"))
        joined = left.stream.join(right.stream, on=on, using=using, how=how, **window)
        sides = (({f"{s}_{n}" for n in p.inexact} | p.inexact) for s, p in (("l", left), ("r", right)))
        return self.small_enough(Part(joined, frozenset().union(*sides) & set(joined.columns)), part)

    def nway_join(self, part: Part, parts: list[Part]) -> Part:
        """Of two to four aliases, with few enough combinations."""
        chosen = [part, *(self.pick([part, *parts]) for _ in range(self.pick((1, 2, 2, 3))))]
        while math.prod(reference(each.stream).num_rows for each in chosen) > MOST_COMBINATIONS:
            chosen.pop()
        if len(chosen) < 2:
            return self.time_join(part, parts)
        streams = dict(zip("abcd", chosen, strict=False))
        texts = [self.aliased(a, b, streams) for a, b in pairwise(streams)]
        kept = [text for text in texts if self.r.random() < 0.8] or ["true"]
        within = self.pick(["2 seconds", "5 seconds", "0.25 seconds"])
        if self.pick((False, True)):
            within = {alias: self.pick(["0.001 milliseconds", "1 second", "4 seconds"]) for alias in streams}
        joined = nway(({alias: each.stream for alias, each in streams.items()}), on=" and ".join(kept), within=within)
        node = node_of(joined)
        assert isinstance(node, nodes.NWayJoin)
        inexact = frozenset(out for out, alias, name in node.columns if name in streams[alias].inexact)
        return self.small_enough(Part(joined, inexact), part)

    def aliased(self, a: str, b: str, streams: dict[str, Part]) -> str:
        """A predicate over two aliases; in brackets, as it may contain an `or`."""
        text = re.sub(r"\bl\.", f"{a}.", self.predicate(streams[a], streams[b]))
        return "(" + re.sub(r"\br\.", f"{b}.", text) + ")"

    def count_join(self, part: Part, parts: list[Part]) -> Part:
        left, right = (side.exact() for side in self.sides(part, parts))
        last = self.pick([1, 2, 5, (3, 1), (1, 8), (20, 20), 1000])
        joined = left.stream.join(right.stream, on=self.predicate(left, right), last=last)
        return self.small_enough(Part(joined), part)

    def table_join(self, part: Part, parts: list[Part]) -> Part:
        """With a table of its own, or with one that was joined before."""
        if not self.tables or self.pick((True, True, False)):
            kind = {"small": self.pick((True, False)), "odd": self.pick((True, False))}
            held = Changing(self.r.getrandbits(32), self.pick((0, 1, 4, 12, 30)), **kind)
            self.tables.append(arrow_table(held, name=f"table {len(self.tables)}"))
        table = self.pick(self.tables)
        on = self.predicate(part, Part(table))
        if "r.ts" in on:
            on = "l.ts is not null"
        joined = part.stream.join(table, on=on, how=self.pick(("inner", "left")))
        return self.small_enough(Part(joined, _joined_inexact(joined, part, Part(table))), part)

    def small_enough(self, made: Part, instead: Part) -> Part:
        return made if reference(made.stream).num_rows <= MOST_RESULTS else self.filter(instead, [])

    # --- aggregates

    def calls(self, part: Part, *, exact: bool) -> list[tuple[str, bool]]:
        """Aggregate expressions, and whether their value is a rounded double."""
        found = [("count(*)", False), ("max(ts)", False), ("count(*) FILTER (WHERE epoch_ms(ts) % 2 = 0)", False)]
        for n in map(quoted, part.columns("int")):
            found += [(f"{f}({n})", False) for f in ("count", "sum", "min", "max", "median", "list", "mode", "first")]
            found += [(f"{f}({n})", True) for f in ("avg", "stddev")]
            found += [(f"sum({n}) / count(*)", True), (f"quantile_cont({n}, 0.25)", True)]
            found += [(f"max({n}) - min({n})", False), (f"count(DISTINCT {n})", False), (f"bool_or({n} > 40)", False)]
            found += [(f"sum({n}) FILTER (WHERE {n} > 3)", False), (f"avg({n}) FILTER (WHERE {n} % 2 = 0)", True)]
            found += [(f"list({n} ORDER BY {n} DESC)", False), (f"coalesce(sum({n}), 0) + count({n})", False)]
            found += [(f"last({n})", False), (f"list(DISTINCT {n})", False)]
        for n in map(quoted, part.columns("float")):
            found += [(f"{f}({n})", True) for f in ("sum", "avg")]
            found += [(f"{f}({n})", False) for f in ("min", "max", "count", "list", "count", "first")]
            found += [(f"count(DISTINCT {n})", False)]
        for n in map(quoted, part.columns("text")):
            found += [(f"{f}({n})", False) for f in ("count", "min", "max", "list", "first", "mode")]
            found += [(f"string_agg({n}, ',')", False), (f"count(DISTINCT {n})", False)]
            found += [(f"arg_max({n}, {quoted(c)})", False) for c in part.columns("int")]
        for n in map(quoted, part.columns("bool")):
            found += [(f"bool_and({n})", False), (f"bool_or({n})", False), (f"count(*) FILTER (WHERE {n})", False)]
        for n in map(quoted, part.columns("decimal", "date")):
            found += [(f"min({n})", False), (f"max({n})", False), (f"count(DISTINCT {n})", False)]
        for n in map(quoted, part.columns("decimal")):
            found += [(f"sum({n})", False), (f"avg({n})", True)]
        return found

    def functions(self, part: Part) -> tuple[dict[str, str], frozenset[str]]:
        chosen = {self.name(): self.pick(self.calls(part, exact=False)) for _ in range(self.pick((1, 1, 2, 3)))}
        return {n: text for n, (text, _) in chosen.items()}, frozenset(
            n for n, (_, rounded) in chosen.items() if rounded
        )

    def by(self, part: Part) -> list[str]:
        names = [n for n in part.columns() if n not in ("window_start", "window_end")]
        count = self.pick((0, 1, 1, 1, 2))
        return list(dict.fromkeys(self.pick(names) for _ in range(count))) if names else []

    def time_aggregate(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        functions, inexact = self.functions(part)
        window, every = self.pick(
            [
                ("5 seconds", None),
                ("10 seconds", "5 seconds"),
                ("10 seconds", "4 seconds"),
                ("7 seconds", "3 seconds"),
                ("3 seconds", "1 second"),
                ("1 second", "0.75 seconds"),
                ("1 day", "12 hours"),
            ]
        )
        offset = self.pick([None, None, "0 seconds", "0.001 milliseconds", "0.7 seconds"])
        if self.pick((True, *(False,) * 5)):
            made = part.stream.aggregate(by=self.by(part), zone=self.pick(ZONES), **self.pick(WHOLE_DAYS), **functions)
            return Part(made, inexact)
        made = part.stream.aggregate(by=self.by(part), window=window, every=every, offset=offset, **functions)
        return Part(made, inexact)

    def count_aggregate(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        functions, inexact = self.functions(part)
        last, every = self.pick([(1, None), (3, None), (5, 2), (4, 3), (10, 1), (7, 7), (2, 1)])
        return Part(part.stream.aggregate(by=self.by(part), last=last, every=every, **functions), inexact)

    def session_aggregate(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        functions, inexact = self.functions(part)
        gap = self.pick(["1 second", "0.5 seconds", "2 seconds", "3 seconds", "0.001 milliseconds", "1 hour"])
        return Part(part.stream.aggregate(by=self.by(part), session=gap, **functions), inexact)

    def top(self, part: Part, parts: list[Part]) -> Part:
        """Of columns with names that a result of top does not have itself."""
        names = [
            n for n in part.exact().stream.columns if n not in ("ts", "window_start", "window_end", "rank", "tuple_ts")
        ]
        part = Part(part.stream.map(*names))
        values = self.values(part) + [f"{quoted(n)}" for n in part.columns() if n not in part.columns("list")]
        values = [value for value in values if value not in CONSTANTS]  # they order nothing
        terms = [self.pick(values) + self.pick(("", " asc", " DESC")) for _ in range(self.pick((1, 2)))]
        window, every = self.pick([("5 seconds", None), ("10 seconds", "4 seconds"), ("7 seconds", "3 seconds")])
        over = self.pick(
            [{"window": window, "every": every}, {"window": window, "every": every}, {"session": "2 seconds"}]
        )
        made = part.stream.top(self.pick((1, 2, 3, 20)), by=self.by(part), order=", ".join(terms), **over)
        return self.small_enough(Part(made), part)

    def distinct(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        within = self.pick(["1 second", "3 seconds", "0.5 seconds", "1 hour"])
        return Part(part.stream.distinct(by=self.by(part), within=within), part.inexact)

    def limit(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        return Part(part.stream.limit(self.pick((1, 2, 5, 12, 40, 1000))), part.inexact)

    def asof(self, part: Part, parts: list[Part]) -> Part:
        left, right = (side.exact() for side in self.sides(part, parts))
        kinds = {f.name: f.type for f in right.stream.schema}
        shared = [n for n in left.columns() if n in kinds and _meet(left.stream.schema.field(n).type, kinds[n])]
        by = list(dict.fromkeys(self.pick(shared) for _ in range(self.pick((0, 1, 1, 1, 2))))) if shared else []
        within = self.pick([None, None, "1 second", "4 seconds", "0.25 seconds", "1 hour"])
        made = left.stream.asof(right.stream, by=by, within=within, how=self.pick(("inner", "left")))
        return self.small_enough(Part(made), part)

    # --- splits

    def split(self, part: Part) -> Any:
        q, ints = self.pick((1, 2, 3, 5, 8)), part.columns("int")
        names = [n for n in part.columns() if kind_of(part.stream.schema.field(n).type) != "list"]
        broadcast = self.pick((None, None, None, "epoch_ms(ts) % 4 = 0", EveryThird()))
        ways = [{"route": "abs(epoch_ms(ts)) % 7 // 3"} if q > 2 else {"route": "NULLIF(0, epoch_ms(ts) % 2)"}]
        ways += [{"route": f"abs({quoted(n)}) % {q}"} for n in ints]
        ways += [{"route": Rows(n, q)} for n in ints]
        ways += [{"by": [n]} for n in names]
        return part.stream.split(q, broadcast=broadcast, **self.pick(ways))

    def before(self, part: Part, split: Any) -> Any:
        """Steps that run in the splitters, sometimes."""
        if self.pick((True, False, False)):
            split = split.filter(self.pick(self.tests(part)))
        if self.pick((True, False, False)):
            split = split.map(*split.columns, **{self.name(): self.pick(self.values(part))})
        return split

    def apply(self, part: Part, parts: list[Part]) -> Part:
        part = part.exact()
        keys = [n for n in part.columns() if kind_of(part.stream.schema.field(n).type) != "list"]
        if not keys:
            return self.filter(part, parts)
        key, number = self.pick(keys), self.pick([None, *part.columns("int")])
        given = (key, part.stream.schema.field(key).type, number)
        split = self.before(part, self.split(part))
        kind = self.pick((*processing.SINGLE, processing.Two))
        found = split.apply(kind(*given))
        return self.small_enough(Part(self.pick(list(found.values())) if isinstance(found, dict) else found), part)

    def each(self, part: Part, parts: list[Part]) -> Part:
        """A query of up to two operators on every substream."""
        part = part.exact()
        inner = [Part(part.stream)]

        def body(stream: Stream) -> Stream:
            made = [Part(stream)]
            joined = False
            for _ in range(self.pick((1, 1, 2))):
                name = self.pick(IN_EACH)
                if joined and name.endswith("join"):  # nothing measures a body: a join of joins may not fit into memory
                    name = "filter"
                joined = joined or name.endswith("join")
                made.append(getattr(self, name)(made[-1], made))
            inner.append(made[-1])
            return made[-1].stream

        if "substream" in part.stream.columns:
            return self.filter(part, parts)
        measured, self.small_enough = self.small_enough, lambda made, instead: made  # a body alone has no answer
        try:
            found = self.before(part, self.split(part)).each(body)
        finally:
            self.small_enough = measured
        return self.small_enough(Part(found, inner[-1].inexact), part)


class KeyedMaker(Maker):
    """Queries whose operators mostly share one key, so that the compiler puts them into common stages."""

    def query(self, operators: int, allowed: tuple[str, ...]) -> Part:
        return self.continued(list(self.sources), operators, allowed)

    def continued(self, parts: list[Part], operators: int, allowed: tuple[str, ...]) -> Part:
        for _ in range(operators):
            parts.append(getattr(self, self.pick(allowed))(parts[-1], parts))
        return parts[-1]

    def key(self, part: Part) -> str | None:
        named = [name for name in part.columns() if name == "k" or name.endswith("_k")]
        return self.pick(named) if named and self.r.random() < 0.85 else None

    def by(self, part: Part) -> list[str]:
        key = self.key(part)
        return super().by(part) if key is None else [key]

    def predicate(self, left: Part, right: Part) -> str:
        one, other = self.key(left), self.key(right)
        if one is None or other is None:
            return super().predicate(left, right)
        more = self.pick(("", "", " and l.ts <> r.ts", " and epoch_ms(l.ts) % 3 < 2"))
        return f"l.{quoted(one)} = r.{quoted(other)}{more}"

    def sides(self, part: Part, parts: list[Part]) -> tuple[Part, Part]:
        """Half of the time with a count by the same key, which has a layout of its own."""
        left, right = super().sides(part, parts)
        key = self.key(parts[0])
        if key is None or self.pick((True, False)):
            return left, right
        counted = parts[0].stream.aggregate(by=[key], window="2 seconds", n="count(*)")
        return left, Part(counted.map(key, "n"))

    def time_join(self, part: Part, parts: list[Part], how: str = "inner") -> Part:
        """With the key of a kept side under its first name again."""
        made = super().time_join(part, parts, how)
        key = {"left": "l_k", "right": "r_k"}.get(how) or self.pick(("l_k", "r_k"))
        if key not in made.stream.columns or "k" in made.stream.columns:
            return made
        others = [name for name in made.stream.columns if name not in ("ts", key)]
        return Part(made.stream.map(*others, k=key), made.inexact)

    def union(self, part: Part, parts: list[Part]) -> Part:
        """Of keys alone, which then lie where their streams do."""
        keyed = [each.stream.map("k") for each in (part, self.sides(part, parts)[1]) if "k" in each.stream.columns]
        one, *others = keyed or [part.stream]
        if not others or not one.schema.equals(others[0].schema):
            return super().union(part, parts)
        return self.small_enough(Part(one.union(others[0])), part)

    def map(self, part: Part, parts: list[Part]) -> Part:
        """Columns stay, so that the key does."""
        return Part(part.stream.map(*part.stream.columns, **{self.name(): self.pick(self.values(part))}), part.inexact)


class OuterFirstMaker(KeyedMaker):
    """An outer join, and then operators that can share the slots of its tuples without a match."""

    def query(self, operators: int, allowed: tuple[str, ...]) -> Part:
        joined = self.time_join(self.pick(self.sources), list(self.sources), self.pick(("left", "right")))
        return self.continued([*self.sources, joined], operators - 1, allowed)


class Rows:
    """A vectorised route; a null goes nowhere."""

    def __init__(self, column: str, q: int) -> None:
        self.column, self.q = column, q
        self.__qualname__ = f"Rows-{column}-{q}"

    def __call__(self, tuples: pa.Table) -> pa.Array:
        return pa.array(
            [None if v is None or v % 11 == 0 else int(v) % self.q for v in tuples[self.column].to_pylist()]
        )


class EveryThird:
    __qualname__ = "EveryThird"

    def __call__(self, tuples: pa.Table) -> Any:
        return np.asarray(tuples["ts"].cast(pa.int64())) % 3 == 0


class Changing:
    """What a table holds: another content in every version, which is the first until somebody says otherwise."""

    def __init__(self, seed: int, rows: int, **kind: bool) -> None:
        self.seed, self.rows, self.kind, self.now = seed, rows, kind, 0

    def __call__(self) -> pa.Table:
        return self.version(self.now)

    def version(self, number: int) -> pa.Table:
        rows = self.rows + number % 3
        return make_table(self.seed + number, rows, **self.kind).drop_columns(["ts"])  # type: ignore[arg-type]


def _meet(one: pa.DataType, other: pa.DataType) -> bool:
    return one == other or all(map(T.is_integer, (one, other))) or all(map(T.is_floating, (one, other)))


def _joined_inexact(joined: Stream, left: Part, right: Part) -> frozenset[str]:
    node = node_of(joined)
    assert isinstance(node, nodes.Join | nodes.TableJoin)
    sides = {"l": left.inexact, "r": right.inexact}
    return frozenset(out for out, side, name in node.columns if name in sides[side])


STATELESS = ("map", "filter", "case", "sample", "union", "columns", "unnest")
TABLES = ("table_join",)
JOINS = ("time_join", "time_join", "count_join", "outer_join", "using_join")
AGGREGATES = ("time_aggregate", "time_aggregate", "count_aggregate", "session_aggregate")
ALL = (*STATELESS, *TABLES, *JOINS, "nway_join", *AGGREGATES, "top", "distinct", "limit", "asof")
SPLITS = ("apply", "each")
IN_EACH = (*STATELESS, *TABLES, *JOINS, *AGGREGATES, "top", "distinct", "limit", "asof")


def make_case(
    seed: object,
    operators: tuple[str, ...] = ALL,
    *,
    most: int = 120,
    depth: tuple[int, ...] = (1, 2, 2, 3, 3, 4),
    disorder: int | None = None,
    ahead: str | None = None,
    suitable: Callable[[Case], bool] = lambda case: True,
    maker: type[Maker] = Maker,
) -> Case:
    """A query of up to four operators and the rows of its sources; few have no result."""
    r = random.Random(f"{seed}")
    while True:
        tables = source_tables(r, most, disorder)
        sources = [Part(table_stream(t.rows, lateness=t.lateness, ahead=ahead, name=t.name)) for t in tables]
        made = maker(r, sources).query(r.choice(depth), operators)
        used = {s.name for s in nodes.sources(node_of(made.stream))}
        case = Case(made.stream, {t.name: t for t in tables if t.name in used}, made.inexact)
        if suitable(case) and (r.random() < 0.05 or reference(case.query).num_rows):
            return case


def transplanted(query: Stream, sources: dict[str, Stream]) -> Stream:
    """The same query over other sources of the same names and schemas: on Spark instead of in a table."""
    done: dict[int, nodes.Node] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, tuple) and value and all(isinstance(item, nodes.Node) for item in value):
            return tuple(done[id(item)] for item in value)
        return done[id(value)] if isinstance(value, nodes.Node) else value

    for node in nodes.walk_nodes(node_of(query)):
        if isinstance(node, nodes.Source):
            done[id(node)] = node_of(sources[str(node.name)])
            assert done[id(node)].schema.equals(node.schema), (done[id(node)].schema, node.schema)
        else:
            done[id(node)] = replace(node, **{f.name: moved(getattr(node, f.name)) for f in fields(node)})
    return Stream(done[id(node_of(query))])


# --- cuts ----------------------------------------------------------------------------------------------------------


def cut(tables: dict[str, Table], epochs: int, seed: int) -> list[dict[str, pa.Table]]:
    """The rows of every source in order of arrival, cut at random places; an epoch may lack a source."""
    r = np.random.default_rng(seed)
    found: list[dict[str, pa.Table]] = [{} for _ in range(epochs)]
    for table in tables.values():
        rows = table.rows
        borders = [0, *sorted(r.integers(0, rows.num_rows + 1, epochs - 1).tolist()), rows.num_rows]
        for number, (low, high) in enumerate(pairwise(borders)):
            if high > low or r.random() < 0.5:
                found[number][table.name] = rows.slice(low, high - low)
    return found
