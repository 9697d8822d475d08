"""The column names that a query refers to.

Invariant: the sets are supersets. An extra name does no harm, a missing name would change the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from headrace import expressions
from headrace.columnar.types import TS
from headrace.expressions.syntax_tree import columns_of, parse
from headrace.query import nodes

PREFIXES = ("l_", "r_")  # of joins of two streams, and of joins with tables
Names = frozenset[str]  # in lower case, with and without the prefixes that joins add


def columns_named(roots: Sequence[nodes.Node]) -> Names:
    """Return the columns that occur in expressions and in lists of columns such as `by`."""
    return frozenset(unprefixed(_named(roots), join_prefixes(roots)))


def join_prefixes(roots: Sequence[nodes.Node]) -> tuple[str, ...]:
    """Return the prefixes that the joins of a query can add to names: `l_` and `r_`, and those of aliases."""
    found = dict.fromkeys(PREFIXES)
    for node in nodes.walk_nodes(*roots):
        if isinstance(node, nodes.NWayJoin):
            found |= dict.fromkeys(f"{alias.lower()}_" for alias in node.aliases)
        if isinstance(node, nodes.Splitting):
            found |= dict.fromkeys(join_prefixes([node.body.root]))
    return tuple(found)


def columns_needed(roots: Sequence[nodes.Node]) -> Names:
    """Return the columns without which the answer would differ.

    These are the named columns, the columns of the results, the columns that processors receive, and the columns that
    samples hash. A column that only breaks ties in the sequence is not included.
    """
    received = [node.body.root for node in nodes.walk_nodes(*roots) if isinstance(node, nodes.Apply)]
    names = (*(name for node in [*roots, *received] for name in node.schema.names), *_hashed(roots))
    return columns_named(roots) | frozenset(unprefixed(names, join_prefixes(roots)))


def _named(roots: Sequence[nodes.Node]) -> Iterator[str]:
    for node in nodes.walk_nodes(*roots):
        yield from getattr(node, "by", None) or ()
        if isinstance(node, nodes.Unnest):
            yield node.column
        yield from (part for sql in _texts(node) for path in columns_of(parse(sql, "sql")) for part in path)
        if isinstance(node, nodes.Splitting):
            yield from node.rule.by or ()
            yield from _named([node.body.root])


def _hashed(roots: Sequence[nodes.Node]) -> Iterator[str]:
    """Yield the columns from which samples compute their hashes, on substreams too."""
    for node in nodes.walk_nodes(*roots):
        if isinstance(node, nodes.Sample):
            yield from node.hashed
        if isinstance(node, nodes.Splitting):
            yield from _hashed([node.body.root])


def _texts(node: nodes.Node) -> list[str]:
    match node:
        case nodes.Map():
            return [expression.sql for _, expression in node.columns]
        case nodes.Filter():
            return [node.predicate.sql]
        case nodes.Case():
            return [predicate.sql for predicate in node.predicates]
        case nodes.Join() | nodes.TableJoin() | nodes.NWayJoin():
            return [node.on.sql]
        case nodes.Aggregation():
            return [function.sql for _, function in node.functions]
        case nodes.Top():
            return [term.expression.sql for term in node.order]
        case nodes.Splitting():
            rules = (node.rule.route, node.rule.broadcast)
            return [rule.sql for rule in rules if isinstance(rule, expressions.Expression)]
    return []


def unprefixed(names: Iterable[str], prefixes: Sequence[str] = PREFIXES) -> Iterator[str]:
    """Yield `ts`, and each name in lower case with zero or more of its leading join prefixes removed."""
    yield TS
    left = [name.lower() for name in names]
    while left:
        name = left.pop()
        yield name
        left += [name[len(prefix) :] for prefix in prefixes if name.startswith(prefix)]
