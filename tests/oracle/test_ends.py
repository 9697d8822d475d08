"""Which ticks a processor gets at the end of its input, and with which time its `end` is called.

The rule, in plain Python (`expected`): ticks up to the first multiple of `every` greater than the last `ts` of the stream that
was split, or as far as the watermark was before the end, whichever is later; then `end`, at the later of the last `ts` and
that watermark. Engine and reference are compared with it, over sources that fall silent, are idle and return, and streams
that filters, joins, aggregates and other processors make of them. The watermark before the end follows, by the formulas of
docs/GUARANTEES.md, from those of the sources, which tests/oracle/test_silence.py compares with a model.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.columnar.types import TS_TYPE
from headrace.difference import difference
from headrace.query import nodes
from headrace.reference import late_tuples, reference
from headrace.stream import Stream, node_of
from headrace.testing import table_stream

from .driving import SLOTS, driven
from .test_local import seeds
from .test_silence import NEVER, SECOND, Source, table

EVERY = 7 * SECOND
CALLS = pa.schema([("ts", TS_TYPE), ("k", pa.int64()), ("v", pa.int64()), ("what", pa.string()), ("of", pa.int64())])


class Calls(hr.Processor):
    """Puts out every call that it gets: its time and what it was."""

    schema = CALLS
    every = "7 seconds"

    def open(self, substream: int, substreams: int) -> None:
        self.of = substream

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return self.told(tuples["ts"], tuples["k"], tuples["v"], "tuple")

    def tick(self, time: Any, state: Any) -> pa.Table:
        return self.told(pa.array([time], TS_TYPE), pa.array([0]), pa.array([0]), "tick")

    def end(self, time: Any, state: Any) -> pa.Table:
        return self.told(pa.array([time], TS_TYPE), pa.array([1]), pa.array([1]), "end")

    def told(self, ts: Any, k: Any, v: Any, what: str) -> pa.Table:
        return pa.table([ts, k, v, pa.array([what] * len(ts)), pa.array([self.of] * len(ts), pa.int64())], schema=CALLS)


class Echo(hr.Processor):
    """Puts out its tuples: where it stands, sources wait for each other as they do before `Calls`."""

    schema = pa.schema([("ts", TS_TYPE), ("k", pa.int64()), ("v", pa.int64())])

    def process(self, tuples: pa.Table, state: Any) -> pa.Table:
        return tuples


# --- streams that are split, and their watermarks by those of the sources, in seconds -------------------------------------


@dataclass
class Shape:
    stream: Callable[[Stream, Stream], Stream]
    watermark: Callable[[float, float], float]


def joined(a: Stream, b: Stream, **more: Any) -> Stream:
    found = a.join(b, on="l.k = r.k", within=("12 seconds", "5 seconds"), **more)
    return found.map(k="coalesce(l_k, r_k)", v="coalesce(l_v, r_v)")


def counted(s: Stream, **window: Any) -> Stream:
    return s.aggregate(by=["k"], v="count(*)", **window).map("k", "v")


def applied(s: Stream) -> Stream:
    return s.split(2, route="k % 2").apply(Calls()).map("k", "v")


SHAPES: dict[str, Shape] = {
    "source": Shape(lambda a, b: a, lambda a, b: a),
    "union": Shape(lambda a, b: a.union(b), min),
    "filter": Shape(lambda a, b: a.union(b).filter("v < 4"), min),
    "branch": Shape(lambda a, b: a.case("v < 4")[1].union(b), min),
    "join": Shape(joined, lambda a, b: min(a - 5, b - 12)),
    "outer": Shape(lambda a, b: joined(a, b, how="full"), lambda a, b: min(a - 5, b - 12)),
    "count join": Shape(lambda a, b: a.join(b, on="l.k = r.k", last=3).map(k="l_k", v="r_v"), min),
    "asof": Shape(lambda a, b: a.asof(b, by=["k"], how="left").map(k="l_k", v="l_v"), min),
    "windows": Shape(
        lambda a, b: counted(a.union(b), window="20 seconds", every="10 seconds"), lambda a, b: min(a, b) - 20
    ),
    "sessions": Shape(lambda a, b: counted(a.union(b), session="6 seconds"), lambda a, b: min(a, b) - 6),
    "distinct": Shape(lambda a, b: a.union(b).distinct(by=["k"], within="15 seconds"), min),
    "chain": Shape(lambda a, b: applied(a).union(b), min),
    "filtered chain": Shape(lambda a, b: applied(applied(a).filter("v > 2")), lambda a, b: a),
    "joined chain": Shape(lambda a, b: applied(joined(a, b)), lambda a, b: min(a - 5, b - 12)),
}
BODIES: dict[str, Callable[[Any], Any]] = {"all": lambda parts: parts, "some": lambda parts: parts.filter("v % 3 <> 1")}
ROUTE = "case when k = 2 then null else k end"  # tuples with k = 2 go nowhere


def query(shape: str, body: str, a: Stream, b: Stream) -> Stream:
    return BODIES[body](SHAPES[shape].stream(a, b).split(3, route=ROUTE)).apply(Calls())


def expected(shape: str, body: str, split: pa.Table, marks: list[int]) -> Counter[tuple[int, str, int]]:
    """(time, call, substream) of every call, by the tuples that were split and the watermarks of the sources."""
    rows = list(zip(*(split[name].cast(pa.int64()).to_pylist() for name in ("ts", "k", "v")), strict=True))
    last = max((ts for ts, _, _ in rows), default=0)
    mark = SHAPES[shape].watermark(*(mark / SECOND if mark > NEVER else float("-inf") for mark in marks)) * SECOND
    until = max(last // EVERY + 1, mark // EVERY)
    found: Counter[tuple[int, str, int]] = Counter()
    for of in (0, 1):
        times = [ts for ts, k, v in rows if k == of and (body == "all" or v % 3 != 1)]
        if times:
            found += Counter((ts, "tuple", of) for ts in times)
            ticks = range(min(times) // EVERY + 1, int(until) + 1)
            found += Counter((number * EVERY, "tick", of) for number in ticks)
            found[int(max(last, mark)), "end", of] += 1
    return found


@seeds(40)
def test_the_last_calls_of_a_processor(seed: int) -> None:
    r = random.Random(f"ends-{seed}")
    shape, body = list(SHAPES)[seed % len(SHAPES)], r.choice(list(BODIES))
    patient = r.choice(["", "", "b", "ab"])
    streams = [
        table_stream(
            table([]),
            name=name,
            lateness=f"{r.choice([0, 2, 10])} seconds",
            idle=None if name in patient else "1 second",
            ahead=r.choice([None, "60 seconds"]),
        )
        for name in "ab"
    ]
    asked = query(shape, body, *streams)
    sources = {name: Source(r, r.choice([0, 0, 20])) for name in nodes.named_sources(node_of(asked))}
    epochs, idle = [], []
    with driven(asked, r.choice(SLOTS)) as run:
        for number in range(8):
            if number and r.random() < 0.3:
                run.close()
                run.open(r.choice(SLOTS))
            epochs.append({name: table(source.deliver(number)) for name, source in sources.items()})
            idle.append([name for name, source in sources.items() if source.quiet >= 1 and name not in patient])
            run.epoch(epochs[-1], splitters=r.randint(1, 3), idle=idle[-1])
        marks = [run.last.sources[name].watermark if name in sources else NEVER for name in "ab"]
        fates = {name: (found.late, found.rejected) for name, found in run.last.sources.items()}
        run.epoch(final=True)
        found = run.table()
    lost = late_tuples(asked, epochs, idle)
    assert fates == {name: (late.num_rows, rejected.num_rows) for name, (late, rejected) in lost.items()}
    assert difference(reference(asked, epochs, idle=idle), found) is None
    split = reference(SHAPES[shape].stream(*streams).split(1, route="0").apply(Echo()), epochs, idle=idle)
    calls = zip(
        found["ts"].cast(pa.int64()).to_pylist(), found["what"].to_pylist(), found["of"].to_pylist(), strict=True
    )
    assert Counter(calls) == expected(shape, body, split, marks)


def seconds(*times: int) -> pa.Table:
    return table([(time, 1, 1) for time in times])


def ends_of(asked: Stream, epochs: list[dict[str, pa.Table]], idle: list[list[str]]) -> list[int]:
    """The times of `end`, in seconds, by the engine and by the reference alike."""
    with driven(asked, 2) as run:
        for tables, silent in zip(epochs, idle, strict=True):
            run.epoch(tables, idle=silent)
        run.epoch(final=True)
        found = run.table()
    assert difference(reference(asked, epochs, idle=idle), found) is None
    ends = found.filter(pa.compute.equal(found["what"], "end"))
    return [time // SECOND for time in ends["ts"].cast(pa.int64()).to_pylist()]


def test_an_idle_source_ends_where_the_others_took_it() -> None:
    """Downstream of the processor its results meet tuples of another source, which has passed that time."""
    a, b = (table_stream(table([]), name=name, idle="1 second") for name in "ab")
    asked = a.split(1, route="0").apply(Calls()).asof(b, by=["k"], how="left").map(what="what")
    epochs = [{"a": seconds(1), "b": seconds(1)}, {"b": seconds(100)}]
    assert ends_of(asked, epochs, [[], []]) == [1]
    assert ends_of(asked, epochs, [[], ["a"]]) == [100]


def test_a_join_ends_at_its_last_result_or_at_its_own_watermark() -> None:
    """Not where the faster of its sources has come."""
    a, b = (table_stream(table([]), name=name) for name in "ab")
    asked = joined(a, b).split(1, route="0").apply(Calls())
    epochs = [{"a": seconds(1, 100), "b": seconds(1, 10)}]
    assert ends_of(asked, epochs, [[]]) == [1]
    assert ends_of(asked, [{"a": seconds(1, 100), "b": seconds(1, 90)}], [[]]) == [90 - 12]
