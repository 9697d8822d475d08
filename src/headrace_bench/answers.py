"""Answers of systems, as a number of rows and a checksum, and the expected answer.

The checksum is a sum of hashes of rows, so it depends on every value but not on the order of rows. DuckDB computes the
expected answer from the same files where that is feasible; otherwise the majority of systems decides.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as dataset
import pyarrow.parquet as pq

from headrace_bench.task import Case, Query
from headrace_bench.workload import CLOSING, ZONES

STRIP = 100.0
MOST_PAIRS = 5e10  # most pairs that DuckDB may compare for an expected answer
COLUMNS = {
    "join": ["l_payload", "r_payload"],
    "nway": ["a", "b", "c"],
    "aggregate": ["window_start", "key", "n", "mean"],
    "session": ["window_start", "window_end", "key", "n", "mean"],
    "table": ["payload", "zone"],
    "figure-8": ["window_start", "part", "pairs", "most"],
    "count": ["ts", "key", "n"],
    "sessions": ["key", "began", "last", "n"],
    "split": ["ts", "substream", "type", "n"],
    "copy": ["ts", "key", "payload", "x"],
}
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Answer:
    rows: int
    checksum: str


def answer_in(folder: Path, query: Query) -> Answer:
    """Return the answer in a folder of Parquet files, as each of the systems writes them."""
    files = [p for p in sorted(folder.glob("*")) if p.is_file() and not p.name.startswith(("_", "."))]
    return answer_of((pq.read_table(f, columns=COLUMNS[query.kind], partitioning=None) for f in files), query)


def answer_of(tables: Iterable[pa.Table], query: Query) -> Answer:
    rows, total = 0, 0
    for table in tables:
        who = next((name for name in ("key", "payload", "l_payload") if name in COLUMNS[query.kind]), None)
        kept = table.filter(pc.not_equal(table[who], CLOSING)) if who else table
        rows += kept.num_rows
        total += int(_hashes([kept[name] for name in COLUMNS[query.kind]]).sum(dtype=np.uint64))
    return Answer(rows, f"{total % 2**64:016x}")


def _hashes(columns: list[pa.ChunkedArray]) -> Words:
    state: Words = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        state = _mixed(state ^ _words(column))
    return state


def _words(column: pa.ChunkedArray) -> Words:
    """Return 64 bits that represent each value."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, CLOSING)  # no answer contains this value
    return np.ascontiguousarray(column.to_numpy()).view(np.uint64)


def _mixed(x: Words) -> Words:
    """Mix the bits with the finisher of splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def expected(case: Case, folder: Path) -> Answer | None:
    """Return DuckDB's answer over the files, or None if that is too much work."""
    query, streams = case.query, case.streams
    if not (query.equality or query.ranges or query.near) and streams.tuples * streams.rate * query.within > MOST_PAIRS:
        return None
    with duckdb.connect() as connection:
        connection.execute("set threads = 2; set TimeZone = 'UTC'; set enable_progress_bar = false")
        for side in streams.sides if query.kind == "split" else ():
            connection.register(side, scan(folder / side))
        return answer_of((connection.sql(text).to_arrow_table() for text in questions(case, folder)), query)


def scan(folder: Path) -> dataset.Dataset:
    """Return all files of a stream as a data set for DuckDB, which cannot read Arrow files itself."""
    files = sorted(folder.glob("part-*"))
    return dataset.dataset([str(file) for file in files], format=files[0].suffix.lstrip("."))


def questions(case: Case, folder: Path) -> Iterator[str]:
    query, sides = case.query, [folder / side for side in case.streams.sides]
    if query.kind == "aggregate":
        yield _aggregate(query, f"read_parquet('{sides[0]}/*.parquet')")
    elif query.kind == "session":
        yield _session(query, f"read_parquet('{sides[0]}/*.parquet')")
    elif query.kind == "table":
        yield _with_table(query, f"read_parquet('{sides[0]}/*.parquet')", f"read_parquet('{folder / ZONES}/*.parquet')")
    elif query.kind == "count":
        yield _count(f"read_parquet('{sides[0]}/*.parquet')")
    elif query.kind == "sessions":
        yield _sessions(query, f"read_parquet('{sides[0]}/*.parquet')")
    elif query.kind == "copy":
        yield f"select * from read_parquet('{sides[0]}/*.parquet')"
    elif query.kind == "split":
        yield _split(query, case.streams.sides[0])
    elif query.kind == "figure-8":
        yield _figure_8(query, *(f"read_parquet('{side}/*.parquet')" for side in sides))
    elif query.kind == "nway":
        yield _nway(query, *(f"read_parquet('{side}/*.parquet')" for side in sides))
    elif query.equality and not case.streams.hot:
        yield _join(query, *(f"read_parquet('{side}/*.parquet')" for side in sides))
    else:  # file by file, so that only pairs within reach are compared
        reach = math.ceil(query.within / case.streams.seconds) + 1
        left, right = (sorted(side.glob("part-*.parquet")) for side in sides)
        for number, file in enumerate(left):
            near = ", ".join(f"'{other}'" for other in right[max(0, number - reach) : number + reach + 1])
            yield _join(query, f"read_parquet('{file}')", f"read_parquet([{near}])")


def _join(query: Query, left: str, right: str) -> str:
    reach = f"interval {query.within} seconds"
    within = f"r.ts between l.ts - {reach} and l.ts + {reach}"
    if not query.equality:  # otherwise DuckDB would build the join on the time, which most pairs satisfy
        within = f"case when l.ts is not null then {within} else false end"
    conditions = " and ".join(filter(None, (query.on, within, query.ranges)))
    return f"select l.payload l_payload, r.payload r_payload from {left} l {query.how} join {right} r on {conditions}"


def _nway(query: Query, a: str, b: str, c: str) -> str:
    """Return the SQL of combinations whose tuples are all within the window. In a band, a tuple of the second of two
    streams is in the strip of its number and in both beside it, so that strips can be looked up.
    """
    reach, wide = f"interval {query.within} seconds", 2 * query.near
    first, second = query.joins
    if query.near:
        strips = f"unnest(range(floor(x / {wide!r})::bigint - 1, floor(x / {wide!r})::bigint + 2)) strip"
        b, c = (f"(select *, {strips} from {stream})" for stream in (b, c))
        first = f"floor(a.x / {wide!r})::bigint = b.strip and {first}"
        second = f"floor(b.x / {wide!r})::bigint = c.strip and {second}"
    names = sorted(set(re.findall(r"\b[ab]\.(\w+)", second)))
    kept = "".join(f", {side}.{name} {side}_{name}" for side in "ab" for name in names)
    second = re.sub(r"\b([ab])\.", r"pairs.\1_", second)
    return f"""
        with pairs as materialized (
            select a.payload a, b.payload b, least(a.ts, b.ts) earlier, greatest(a.ts, b.ts) later{kept}
            from {a} a join {b} b on {first} where greatest(a.ts, b.ts) - least(a.ts, b.ts) <= {reach}
        )
        select a, b, c.payload c from pairs join {c} c on {second}
        where greatest(later, c.ts) - least(earlier, c.ts) <= {reach}
    """


def _with_table(query: Query, stream: str, table: str) -> str:
    placed, near = ", ".join(f"{sql} {name}" for name, sql in query.places.items()), "true"
    if query.strip:  # a row is in every strip that it overlaps, a tuple in one
        number, low, high = query.strip
        strips = f"range({_strip(low)}, {_strip(high)} + 1)"
        placed, near = f"{placed}, {_strip(query.places[number])} strip", "l.strip = r.strip"
        table = f"(select *, unnest({strips}) strip from {table})"
    points = f"(select payload, {placed} from {stream})"
    return f"select payload, zone from {points} l {query.how} join {table} r on {near} and {query.on}"


def _strip(value: str) -> str:
    return f"floor({value} / {STRIP})::bigint"


def _session(query: Query, stream: str) -> str:
    """Return the SQL of sessions. A tuple begins a session if its key's previous tuple is older than the gap."""
    return f"""
        with marked as (
            select key, ts, x, coalesce(ts - lag(ts) over of_key > interval {query.gap} seconds, true) begins
            from {stream} window of_key as (partition by key order by ts)
        ), numbered as (
            select key, ts, x, sum(begins::int) over (partition by key order by ts rows unbounded preceding) number
            from marked
        )
        select min(ts) window_start, max(ts) window_end, key, count(*) n, avg(x) mean from numbered group by key, number
    """


def _aggregate(query: Query, stream: str) -> str:
    """Return the SQL of windows. A tuple is in each window that begins at one of the last `window / every` steps."""
    step = f"interval {query.every} seconds"
    begin = f"time_bucket({step}, ts, timestamptz '1970-01-01') - i * {step}"
    steps = f"(select unnest(range({query.window // query.every})) i)"
    return f"select {begin} window_start, key, count(*) n, avg(x) mean from {stream}, {steps} group by all"


def _count(stream: str) -> str:
    return f"select ts, key, row_number() over (partition by key order by ts) n from {stream}"


def _sessions(query: Query, stream: str) -> str:
    """Return the SQL of sessions. A tuple begins a session if no tuple of its key precedes it by less than the gap."""
    gap = f"interval {query.gap} seconds"
    return f"""
        with marked as (
            select key, ts, coalesce(ts - lag(ts) over of_key >= {gap}, true) begins
            from {stream} window of_key as (partition by key order by ts)
        ), numbered as (
            select key, ts, sum(begins::int) over (partition by key order by ts rows unbounded preceding) number
            from marked
        )
        select key, min(ts) began, max(ts) last, count(*) n from numbered group by key, number
    """


def _split(query: Query, stream: str) -> str:
    """Return the SQL of counts by substream and type per period: once for routed tuples, and once per substream for
    broadcast ones.
    """
    ends = f"time_bucket(interval {query.every} seconds, ts, timestamptz '1970-01-01') + interval {query.every} seconds"
    every = f"(select unnest(range({query.substreams})) substream)"
    return f"""
        with counted as (
            select {ends} ts, coalesce({query.broadcast}, false) to_all, ({query.route})::bigint route, type, count(*) n
            from {stream} group by all
        )
        select ts, route substream, type::bigint "type", sum(n)::bigint n
        from counted where not to_all and route is not null group by all
        union all
        select ts, substream, type::bigint "type", sum(n)::bigint n from counted, {every} where to_all group by all
    """


def _figure_8(query: Query, left: str, right: str) -> str:
    """Return the SQL of aggregate, join, aggregate. An aggregate's result has the time of its first tuple, a pair that
    of its earlier tuple.
    """
    reach = f"interval {query.within} seconds"
    start = f"time_bucket(interval {query.window} seconds, ts, timestamptz '1970-01-01') window_start"
    return f"""
        with counted as (
            select {start}, min(ts) ts, key, count(*) n, max(payload % 1000) most
            from {left} where payload % 1000 >= 100 group by window_start, key having max(payload % 1000) >= 200
        ), joined as (
            select least(l.ts, r.ts) ts, l.key % 1000 part, l.n * (r.payload % 1000) product
            from counted l join {right} r on l.key = r.key and r.ts between l.ts - {reach} and l.ts + {reach}
        )
        select {start}, part, count(*) pairs, max(product) most
        from joined where product >= 100 group by window_start, part
    """


def agreed(answers: Iterable[Answer]) -> Answer | None:
    """Return the most frequent answer, or None if there is no single one."""
    ranked = Counter(answers).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]
