"""The columns that SQL texts and steps read. Names are in lower case, because SQL ignores the case of names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.columnar.types import SUBSTREAM, TS
from headrace.expressions.syntax_tree import parse, walk_tree
from headrace.plan import MapStep, SampleStep, SplitStep, Step, TableStep, UnnestStep

Names = frozenset[str]


def names_of(names: Iterable[str]) -> Names:
    return frozenset(name.lower() for name in names)


def columns_read(texts: Iterable[str]) -> Names:
    """Return the columns that SQL texts over one stream read."""
    return frozenset(path[0] for sql in texts for path in column_paths(sql))


@functools.lru_cache(maxsize=1024)
def column_paths(sql: str) -> frozenset[tuple[str, ...]]:
    """Return every column reference of an SQL text as a path of names.

    The parameters of lambdas are included: an extra name does no harm, but a missing name would drop a column.
    """
    paths = (node["column_names"] for node in walk_tree(parse(sql, "sql")) if node["class"] == "COLUMN_REF")
    return frozenset(tuple(part.lower() for part in path) for path in paths)


@functools.lru_cache(maxsize=1024)
def column_of(sql: str) -> str | None:
    """Return the column that an SQL text consists of, in lower case, or None if the text is a computed expression."""
    tree = parse(sql, "sql")
    return tree["column_names"][0].lower() if tree["class"] == "COLUMN_REF" and len(tree["column_names"]) == 1 else None


def columns_before(steps: Sequence[Step], names: Names) -> Names:
    """Return the columns that the input of the steps must have so that their output has the columns `names`.

    A map needs the columns of all its expressions, because every expression is computed and may fail. An unnest needs its
    column, which says how many tuples there are.
    """
    for step in reversed(steps):
        names = _before(step, names)
    return names


def _before(step: Step, names: Names) -> Names:
    if isinstance(step, MapStep):
        return columns_read(sql for _, sql in step.columns)
    if isinstance(step, SampleStep):
        return names | names_of(step.hashed)
    if isinstance(step, SplitStep):
        return (names - {SUBSTREAM}) | _read_by_split(step)
    if isinstance(step, TableStep):
        passed = names_of(column for out, side, column in step.columns if side == "l" and out.lower() in names)
        return passed | side_columns(step.on.sql, "l")
    if isinstance(step, UnnestStep):
        return (names - names_of(step.made)) | names_of([step.column])
    return names | columns_read([step.sql])


def side_columns(sql: str, side: str) -> Names:
    """Return the columns of one side ("l" or "r") that the predicate of a join reads."""
    return frozenset(path[1] for path in column_paths(sql) if path[0] == side and path[1:])


def table_columns_needed(steps: Sequence[Step], names: Names) -> Iterator[tuple[int, Names]]:
    """Yield the place of each table join, and the columns of its output that the columns `names` at the end need."""
    for place in reversed(range(len(steps))):
        if isinstance(steps[place], TableStep):
            yield place, names
        names = _before(steps[place], names)


def narrow_table_steps(steps: Sequence[Step], live: Mapping[int, Names]) -> tuple[Step, ...]:
    """Return the steps with narrower table joins; `live` maps the place of a table join to the columns it must output."""
    narrowed = list(steps)
    for place, names in live.items():
        step = steps[place]
        assert isinstance(step, TableStep)
        narrowed[place] = _narrowed(step, names)
    return tuple(narrowed)


def _narrowed(step: TableStep, names: Names) -> TableStep:
    columns = tuple(column for column in step.columns if column[0].lower() in names)
    return replace(step, columns=columns, schema=narrow_step(step.schema, names))


def _read_by_split(step: SplitStep) -> Names:
    """Return the columns that the split reads: all of them if it calls user functions."""
    if step.functions:
        return names_of(step.columns)
    return names_of(step.by or ()) | columns_read(rule.sql for rule in step.expressions)


def narrow_step(schema: pa.Schema, names: Names) -> pa.Schema:
    return pa.schema([field for field in schema if field.name == TS or field.name.lower() in names])
