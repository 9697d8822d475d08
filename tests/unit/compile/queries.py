"""The queries of the papers, and some others, over streams without tuples."""

from __future__ import annotations

import pyarrow as pa

from headrace import join
from headrace.columnar.types import TS_TYPE
from headrace.stream import Stream
from headrace.testing import table_stream

CALLS = pa.schema(
    [("ts", TS_TYPE), ("caller", pa.string()), ("callee", pa.string()), ("began", pa.int64()), ("ended", pa.int64())]
)
SUSPECTS = pa.schema([("ts", TS_TYPE), ("phone", pa.string()), ("reason", pa.string())])


def calls(name: str = "calls") -> Stream:
    return table_stream(CALLS.empty_table(), name=name)


def suspects() -> Stream:
    return table_stream(SUSPECTS.empty_table(), name="suspects")


def figure_1() -> Stream:
    """StreamCloud, figure 1: join, map, aggregate."""
    joined = calls().join(suspects(), on="l.caller = r.phone", within="60 seconds")
    return joined.map(minutes="(ended - began) // 60").aggregate(by=["minutes"], window="60 seconds", n="count(*)")


def figure_2() -> Stream:
    """StreamCloud, figure 2: map, filter, join, filter, aggregate, map."""
    prepared = calls().map("caller", length="ended - began").filter("length > 0")
    joined = prepared.join(suspects(), on="l.caller = r.phone", within="60 seconds").filter("length < 3600")
    return joined.aggregate(by=["reason"], window="60 seconds", n="count(*)").map("reason", twice="n * 2")


def figure_8() -> Stream:
    """StreamCloud, figure 8's shape: three stateful operators, each by another attribute."""
    counted = calls().aggregate(by=["caller"], window="60 seconds", n="count(*)")
    joined = counted.join(suspects(), on="l.caller = r.phone and l.n > 1", within="60 seconds")
    return joined.map("reason", "n").aggregate(by=["reason"], window="60 seconds", most="max(n)")


def by_phone() -> Stream:
    """A join by phone, then a group by phone."""
    joined = calls().join(suspects(), on="l.caller = r.phone", within="60 seconds")
    return joined.map(number="phone", reason="reason").aggregate(
        by=["reason", "number"], window="60 seconds", n="count(*)"
    )


def several() -> Stream:
    """A join of three streams on two keys, then a group."""
    on = "a.caller = s.phone and s.phone = b.caller and a.ts < b.ts"
    joined = join({"a": calls("first"), "s": suspects(), "b": calls("second")}, on=on, within="60 seconds")
    return joined.aggregate(by=["phone"], window="60 seconds", n="count(*)")
