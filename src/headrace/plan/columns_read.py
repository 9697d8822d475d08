"""Which columns SQL texts and steps read: names in lower case, since SQL names them in any."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.columnar.types import SUBSTREAM, TS
from headrace.expressions.syntax_tree import parse, walk_tree
from headrace.plan import MapStep, SplitStep, Step, TableStep

Names = frozenset[str]


def names_of(names: Iterable[str]) -> Names:
    return frozenset(name.lower() for name in names)


def columns_read(texts: Iterable[str]) -> Names:
    """The columns that SQL texts over one stream read."""
    return frozenset(path[0] for sql in texts for path in column_paths(sql))


@functools.lru_cache(maxsize=1024)
def column_paths(sql: str) -> frozenset[tuple[str, ...]]:
    """Whatever looks like a column, the parameters of lambdas too: one too many does no harm, one too few does."""
    found = (node["column_names"] for node in walk_tree(parse(sql, "sql")) if node["class"] == "COLUMN_REF")
    return frozenset(tuple(part.lower() for part in path) for path in found)


@functools.lru_cache(maxsize=1024)
def column_of(sql: str) -> str | None:
    """The column that an SQL text is, in lower case; None: it is something to compute."""
    tree = parse(sql, "sql")
    return tree["column_names"][0].lower() if tree["class"] == "COLUMN_REF" and len(tree["column_names"]) == 1 else None


def columns_before(steps: Sequence[Step], names: Names) -> Names:
    """What must go into steps for these columns to come out. Every expression of a map is computed: it may fail."""
    for step in reversed(steps):
        names = _before(step, names)
    return names


def _before(step: Step, names: Names) -> Names:
    if isinstance(step, MapStep):
        return columns_read(sql for _, sql in step.columns)
    if isinstance(step, SplitStep):
        return (names - {SUBSTREAM}) | _read_by_split(step)
    if isinstance(step, TableStep):
        passed = names_of(column for out, side, column in step.columns if side == "l" and out.lower() in names)
        return passed | side_columns(step.on.sql, "l")
    return names | columns_read([step.sql])


def side_columns(sql: str, side: str) -> Names:
    """The columns of one side that the predicate of a join reads."""
    return frozenset(path[1] for path in column_paths(sql) if path[0] == side and path[1:])


def table_columns_needed(steps: Sequence[Step], names: Names) -> Iterator[tuple[int, Names]]:
    """The places of the steps that join tables, and which of the columns that each puts out are needed for these to come out at
    the end."""
    for place in reversed(range(len(steps))):
        if isinstance(steps[place], TableStep):
            yield place, names
        names = _before(steps[place], names)


def narrow_table_steps(steps: Sequence[Step], live: Mapping[int, Names]) -> tuple[Step, ...]:
    """The same steps; those at these places, which join tables, put out what is needed behind them, and no other columns."""
    found = list(steps)
    for place, names in live.items():
        step = steps[place]
        assert isinstance(step, TableStep)
        found[place] = _narrowed(step, names)
    return tuple(found)


def _narrowed(step: TableStep, names: Names) -> TableStep:
    columns = tuple(column for column in step.columns if column[0].lower() in names)
    return replace(step, columns=columns, schema=narrow_step(step.schema, names))


def _read_by_split(step: SplitStep) -> Names:
    """What a function of the user's reads, nobody knows: all that there is."""
    if step.functions:
        return names_of(step.columns)
    return names_of(step.by or ()) | columns_read(rule.sql for rule in step.expressions)


def narrow_step(schema: pa.Schema, names: Names) -> pa.Schema:
    return pa.schema([field for field in schema if field.name == TS or field.name.lower() in names])
