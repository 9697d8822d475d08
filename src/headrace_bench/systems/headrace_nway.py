"""A join of the three streams a, b and c in headrace: as one join, and as a chain of two with the same answer.

The conditions name the streams: `joins` are that of a and b, and that of c with them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import headrace as hr

ALIASES = ("a", "b", "c")


def several(streams: Sequence[hr.Stream], joins: Sequence[str], seconds: int, value: str) -> hr.Stream:
    """Return the combinations whose tuples are all within some seconds of each other, each as three values."""
    named = dict(zip(ALIASES, streams, strict=True))
    found = hr.join(named, on=" and ".join(joins), within=f"{seconds} seconds")
    return found.map(**{alias: f"{alias}_{value}" for alias in ALIASES})


def chain(streams: Sequence[hr.Stream], joins: Sequence[str], seconds: int, value: str) -> hr.Stream:
    """Return the same from two joins. The time of a pair is that of its earlier tuple, so a tuple of c must also be
    near the later one. A comparison of two columns cannot fail on data, which leaves an index of the other conditions
    usable.
    """
    a, b, c = streams
    within = f"{seconds} seconds"
    first = _renamed(joins[0], {"a": "l.", "b": "r."})
    second = _renamed(joins[1], {"a": "l.a_", "b": "l.b_", "c": "r."})
    pairs = a.join(b, on=first, within=within)
    names = {f"{alias}_{name}": f"{side}_{name}" for side, alias in zip("lr", "ab", strict=True) for name in _values(a)}
    pairs = pairs.map(since=f"greatest(l_ts, r_ts) - interval {seconds} seconds", **names)
    found = pairs.join(c, on=f"{second} and l.since <= r.ts", within=within)
    return found.map(a=f"a_{value}", b=f"b_{value}", c=value)


def _renamed(condition: str, names: dict[str, str]) -> str:
    """Return a condition with other names of streams.

    >>> _renamed("a.x < b.x", {"a": "l.", "b": "r."})
    'l.x < r.x'
    """
    return re.sub(r"\b([abc])\.", lambda found: names[found[1]], condition)


def _values(stream: hr.Stream) -> list[str]:
    return [name for name in stream.columns if name != "ts"]
