"""Which columns SQL texts and steps read: names in lower case, since SQL names them in any."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.expressions.tree import parse, walk
from headrace.plan import MapStep, SplitStep, Step
from headrace.types import SUBSTREAM, TS

Names = frozenset[str]


def names_of(names: Iterable[str]) -> Names:
    return frozenset(name.lower() for name in names)


def read_by(texts: Iterable[str]) -> Names:
    """The columns that SQL texts over one stream read."""
    return frozenset(path[0] for sql in texts for path in paths(sql))


@functools.lru_cache(maxsize=1024)
def paths(sql: str) -> frozenset[tuple[str, ...]]:
    """Whatever looks like a column, the parameters of lambdas too: one too many does no harm, one too few does."""
    found = (node["column_names"] for node in walk(parse(sql, "sql")) if node["class"] == "COLUMN_REF")
    return frozenset(tuple(part.lower() for part in path) for path in found)


@functools.lru_cache(maxsize=1024)
def column_of(sql: str) -> str | None:
    """The column that an SQL text is, in lower case; None: it is something to compute."""
    tree = parse(sql, "sql")
    return tree["column_names"][0].lower() if tree["class"] == "COLUMN_REF" and len(tree["column_names"]) == 1 else None


def before(steps: Sequence[Step], names: Names) -> Names:
    """What must go into steps for these columns to come out. Every expression of a map is computed: it may fail."""
    for step in reversed(steps):
        if isinstance(step, MapStep):
            names = read_by(sql for _, sql in step.columns)
        elif isinstance(step, SplitStep):
            names = (names - {SUBSTREAM}) | _read_by_split(step)
        else:
            names |= read_by([step.sql])
    return names


def _read_by_split(step: SplitStep) -> Names:
    """What a function of the user's reads, nobody knows: all that there is."""
    if step.functions:
        return names_of(step.columns)
    return names_of(step.by or ()) | read_by(rule.sql for rule in step.expressions)


def narrow(schema: pa.Schema, names: Names) -> pa.Schema:
    return pa.schema([field for field in schema if field.name == TS or field.name.lower() in names])
