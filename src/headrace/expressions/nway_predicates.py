"""Analysis of the predicates of n-way joins: conjuncts by the aliases they concern, and the columns they make equal.

Invariant: the predicate is true exactly if every conjunct of `safe` and of `unsafe` is true. A conjunct of `safe` cannot
fail on any tuples, so it may be evaluated in any order and on any combination. A conjunct of `unsafe` can fail on data; it
is evaluated only on complete combinations for which all of `safe` is true.

Numbers of aliases are their places in the join, from 0. SQL texts name aliases in lower case.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import sqlglot

from headrace.columnar import duck
from headrace.errors import QueryError
from headrace.expressions.gates import Expression, checked_scalar, demand_boolean
from headrace.expressions.predicates import (
    equal_columns,
    first_unsafe,
    near_condition,
    one_sided_conditions,
)
from headrace.expressions.syntax_tree import Tree, columns_of, conjuncts, parse, to_sql, with_deep_recursion

AliasColumn = tuple[int, str]  # the place of an alias, and a column of its stream


@dataclass(frozen=True)
class ColumnEquality:
    """An equality of columns of two aliases whose values have equal hashes as `type`."""

    left: AliasColumn
    right: AliasColumn
    type: pa.DataType


@dataclass(frozen=True)
class NumberBand:
    """The condition that a number of one alias is within `width` of the interval between two numbers of another."""

    point: AliasColumn
    low: AliasColumn
    high: AliasColumn  # of the same alias as `low`
    width: float


@dataclass(frozen=True)
class Conjunct:
    """A part of a predicate that must be true: its SQL, and the columns that it reads of each alias."""

    sql: str
    columns: frozenset[AliasColumn]
    equality: ColumnEquality | None = None
    band: NumberBand | None = None

    @property
    def aliases(self) -> frozenset[int]:
        return frozenset(place for place, _ in self.columns)

    @property
    def is_plain(self) -> bool:
        """Return whether it is an equality of a type whose values Arrow compares as DuckDB does."""
        kind = None if self.equality is None else self.equality.type
        return kind is not None and not (pa.types.is_floating(kind) or pa.types.is_nested(kind))


@dataclass(frozen=True)
class KeyClass:
    """Columns that the predicate makes equal, directly or through other columns: one for each alias that has one."""

    columns: tuple[AliasColumn, ...]  # in the order of the aliases
    type: pa.DataType  # as which their values are hashed

    @property
    def aliases(self) -> tuple[int, ...]:
        return tuple(place for place, _ in self.columns)

    def column(self, place: int) -> str:
        """Return the column of an alias of this class."""
        return next(name for at, name in self.columns if at == place)


@dataclass(frozen=True)
class NWayPredicate:
    """The predicate of an n-way join, and the parts of it that routing and probing can use."""

    text: str
    sql: str
    aliases: tuple[str, ...]  # in lower case
    safe: tuple[Conjunct, ...]
    unsafe: tuple[Conjunct, ...]
    may_fail: str  # the first part that can fail on data; empty: none can
    one_sided: tuple[
        tuple[int, Expression], ...
    ]  # conditions on one alias that the predicate implies and that cannot fail

    @property
    def keys(self) -> tuple[KeyClass, ...]:
        """Return the classes of equal columns that concern two aliases or more, those with the most aliases first."""
        equalities = [part.equality for part in self.safe if part.equality is not None]
        return tuple(sorted(_classes(equalities), key=lambda found: (-len(found.aliases), found.columns)))

    def columns(self, place: int) -> frozenset[str]:
        """Return the columns of an alias that the predicate reads, in lower case."""
        parts = (*self.safe, *self.unsafe)
        return frozenset(name.lower() for part in parts for at, name in part.columns if at == place)


def nway_predicate(text: str, aliases: Sequence[str], schemas: Sequence[pa.Schema]) -> NWayPredicate:
    """Check the predicate of an n-way join over the columns of its aliases, and take it apart."""
    scopes = {alias.lower(): schema for alias, schema in zip(aliases, schemas, strict=True)}
    if not isinstance(text, str):
        checked_scalar(text, scopes, "on")  # raises with a description of the argument
    return _nway_predicate(text, tuple(scopes.items()))


@functools.lru_cache(maxsize=256)
@with_deep_recursion
def _nway_predicate(text: str, named: tuple[tuple[str, pa.Schema], ...]) -> NWayPredicate:
    scopes = dict(named)
    found = checked_scalar(text, scopes, "on")
    demand_boolean(found.type, text, "on")
    tree = parse(found.sql, "on")
    parts = [(_conjunct(part, scopes), first_unsafe(part, scopes)) for part in conjuncts(tree)]
    sides = list(scopes)
    return NWayPredicate(
        text=text,
        sql=found.sql,
        aliases=tuple(sides),
        safe=tuple(part for part, failing in parts if not failing),
        unsafe=tuple(part for part, failing in parts if failing),
        may_fail=next((failing for _, failing in parts if failing), ""),
        one_sided=tuple(
            (sides.index(side), condition)
            for part in conjuncts(tree)
            for side, condition in one_sided_conditions(part, scopes)
        ),
    )


def _conjunct(tree: Tree, scopes: Mapping[str, pa.Schema]) -> Conjunct:
    places = list(scopes)
    columns = frozenset((places.index(path[0].lower()), path[1]) for path in columns_of(tree))
    equal = equal_columns(tree, scopes)
    if equal is None:
        return Conjunct(to_sql(tree), columns, band=_band(tree, scopes))
    (one, left), (other, right), kind = equal
    equality = ColumnEquality((places.index(one), left), (places.index(other), right), kind)
    return Conjunct(to_sql(tree), columns, equality)


def _band(tree: Tree, scopes: Mapping[str, pa.Schema]) -> NumberBand | None:
    found, places = near_condition(tree, scopes), list(scopes)
    if found is None:
        return None
    low, high = ((places.index(found.moving), name) for name in found.interval)
    return NumberBand((places.index(found.point[0]), found.point[1]), low, high, found.width)


def _classes(equalities: Iterable[ColumnEquality]) -> list[KeyClass]:
    """Return the classes of equal columns. Of several columns of one alias, a class has the first by name."""
    members: list[tuple[set[AliasColumn], pa.DataType]] = []
    for equality in equalities:
        joined, others = {equality.left, equality.right}, []
        for columns, kind in members:
            if columns & {equality.left, equality.right}:
                joined |= columns
            else:
                others.append((columns, kind))
        members = [*others, (joined, equality.type)]
    return [KeyClass(tuple(sorted(dict(sorted(columns, reverse=True)).items())), kind) for columns, kind in members]


def check_alias(alias: str) -> None:
    """Raise if an alias is a reserved word, which SQL would not take for the name of a stream."""
    try:
        sqlglot.parse_one(f"SELECT {alias}.x", dialect="duckdb")
        readable = not duck.fetch_rows("SELECT json_serialize_sql(?)", [f"SELECT {alias}.x"])[0][0].startswith(
            '{"error":true'
        )
    except (sqlglot.errors.SqlglotError, duckdb.Error):
        readable = False
    if not readable:
        raise QueryError(f"the alias {alias!r} is a reserved word of SQL; choose another name, such as {alias + 's'!r}")
