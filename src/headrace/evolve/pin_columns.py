"""The query over the columns that its sources and tables had when a state began; later columns are ignored.

A source learns its columns from its data when the query is built. After a restart, the data may have more columns,
fewer, or another order; the same is true of joined tables. An operator that needs sequence reads every column of its
input, in order, so its state continues only with the columns that it began with. A later column is used only if the
query cannot be built without it. Its name alone is no reason if another source has a column with that name, or a result
is given it. Removed columns stay removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from headrace import expressions
from headrace.columnar.types import TS
from headrace.errors import QueryTypeError
from headrace.expressions.syntax_tree import columns_of, parse
from headrace.query import nodes
from headrace.query.named_columns import columns_named, join_prefixes, unprefixed
from headrace.support.terminal_text import printable

Place = nodes.Source | nodes.TableDefinition  # where columns come from
Named = tuple[
    nodes.Node | nodes.TableDefinition, set[str]
]  # an input, and which of its columns are named, in lower case


def pin_columns(roots: Sequence[nodes.Node], graph: Sequence[Mapping[str, Any]]) -> tuple[list[nodes.Node], list[str]]:
    """Return the query over those columns, and lines for the log. graph: the query that made the state."""
    known = _known(roots, graph)
    over, kept = _as_few_as_possible(roots, known)
    said = []
    for words, place, began in known:
        if ignored := [name for name in place.schema.names if name not in kept[id(place)]]:
            said.append(f"{words}: columns that came since the state began are ignored: {', '.join(ignored)}")
        if gone := [name for name in began if name not in place.schema.names]:
            said.append(f"{words}: columns that it had when the state began are gone: {', '.join(gone)}")
    return over, said


def _known(roots: Sequence[nodes.Node], graph: Sequence[Mapping[str, Any]]) -> list[tuple[str, Place, Sequence[str]]]:
    """Return the sources and tables that the state knows: their names, and the columns that they had."""
    began = {node["name"]: _names(node) for node in graph if node["operator"] == "source"}
    found: list[tuple[str, Place, Sequence[str]]] = [
        (f"source {printable(name)}", source, began[name])
        for name, source in nodes.named_sources(*roots).items()
        if name in began
    ]
    tables = nodes.named_tables(*roots)
    joined: dict[str | None, list[list[str]]] = {}
    for node in _joins(graph):
        if _names(node) not in joined.setdefault(node["table"], []):
            joined[node["table"]].append(_names(node))
    nameless = [table for table in tables.values() if table.name is None]
    for name, table in tables.items():
        had = joined.get(table.name, [])
        if len(had) == 1 and (table.name is not None or len(nameless) == 1):  # otherwise the match is unknown
            found.append((f"table {printable(name)}", table, had[0]))
    return found


def _names(node: Mapping[str, Any]) -> list[str]:
    return [name for name, _ in node["schema"]]


def _joins(graph: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the joins with tables in a stored query, those on substreams included."""
    for node in graph:
        yield from _joins(node.get("body", ()))
        if node["operator"] == "table":
            yield node


def _as_few_as_possible(
    roots: Sequence[nodes.Node], known: Sequence[tuple[str, Place, Sequence[str]]]
) -> tuple[list[nodes.Node], dict[int, list[str]]]:
    """Return the query over the columns of the beginning, and of later ones those that it needs."""
    kept = {id(place): [name for name in began if name in place.schema.names] for _, place, began in known}
    later = {id(place): [n for n in place.schema.names if n not in kept[id(place)]] for _, place, _ in known}
    prefixes = join_prefixes(roots)
    while True:
        try:
            over = _ColumnPinner(kept, prefixes).over(roots)
        except _MissingColumn as lacking:
            wanted = {
                id(place): [
                    n for n in later.get(id(place), ()) if n.lower() in lacking.names and n not in kept[id(place)]
                ]
                for place in lacking.places
            }
            if any(wanted.values()):
                for place, names in wanted.items():
                    kept[place] += names
                continue
        except QueryTypeError:  # united streams have one schema: keep what all of them have
            pass
        else:
            return over, kept
        named = columns_named(roots)
        for place, names in later.items():
            kept[place] += [name for name in names if name.lower() in named and name not in kept[place]]
        return _ColumnPinner(kept, prefixes).over(roots, sure=True), kept


class _MissingColumn(Exception):
    """A node names a column that its input no longer has. places: where the column may come from."""

    def __init__(self, names: frozenset[str], places: Sequence[Place]) -> None:
        self.names, self.places = names, places


@dataclass
class _ColumnPinner:
    """A copy of the query over fewer columns; a shared node stays shared."""

    kept: Mapping[int, Sequence[str]]  # by the id of a source or table
    prefixes: Sequence[str]  # of the joins of the query
    made: dict[int, Any] = field(default_factory=dict)  # nodes, tables and bodies
    below: dict[int, nodes.Node] = field(default_factory=dict)  # by the id of the leaf of a body: its input

    def over(self, roots: Sequence[nodes.Node], *, sure: bool = False) -> list[nodes.Node]:
        """Return the query over the kept columns. sure: let nodes raise their own errors about missing columns."""
        for node in nodes.walk_nodes(*roots):
            self._make(node, sure)
        return [self.made[id(root)] for root in roots]

    def _make(self, node: nodes.Node, sure: bool) -> None:
        if id(node) in self.made:
            return
        if isinstance(node, nodes.TableJoin):
            self.made.setdefault(id(node.table), self._narrowed_table(node.table))
        if not sure:
            self._check(node)
        if isinstance(node, nodes.Splitting):
            self._make_body(node, sure)
        if isinstance(node, nodes.Source):
            self.made[id(node)] = self._narrowed(node)
            return
        values = {each.name: getattr(node, each.name) for each in fields(node)}
        changed = {name: found for name, value in values.items() if (found := self._made(value)) is not value}
        self.made[id(node)] = replace(node, **changed) if changed else node

    def _make_body(self, node: nodes.Splitting, sure: bool) -> None:
        body, schema = node.body, self.made[id(node.input)].schema
        self.below[id(body.leaf)] = node.input
        leaf = body.leaf if schema.equals(body.leaf.schema) else nodes.Substream(schema)
        self.made.setdefault(id(body.leaf), leaf)
        for inside in nodes.walk_nodes(body.root):
            self._make(inside, sure)
        leaf, root = self.made[id(body.leaf)], self.made[id(body.root)]
        same = leaf is body.leaf and root is body.root
        self.made[id(body)] = body if same else nodes.Body(leaf, root)

    def _narrowed(self, source: nodes.Source) -> nodes.Source:
        names = self.kept.get(id(source), source.schema.names)
        if names == source.schema.names:
            return source
        schema = pa.schema([source.schema.field(name) for name in names])
        raw = pa.schema([source.raw_schema.field(source.time if name == TS else name) for name in names])
        return replace(source, schema_=schema, raw_schema=raw)

    def _narrowed_table(self, table: nodes.TableDefinition) -> nodes.TableDefinition:
        names = self.kept.get(id(table), table.schema.names)
        if names == table.schema.names:
            return table
        return replace(table, schema=pa.schema([table.schema.field(name) for name in names]))

    def _made(self, value: Any) -> Any:
        if isinstance(value, nodes.Node | nodes.TableDefinition | nodes.Body):
            return self.made[id(value)]
        if isinstance(value, tuple) and any(isinstance(each, nodes.Node) for each in value):
            found = tuple(self.made[id(each)] for each in value)
            return value if all(one is two for one, two in zip(found, value, strict=True)) else found
        return value

    def _check(self, node: nodes.Node) -> None:
        for given, names in _named_by(node):
            had, has = ({name.lower() for name in each.schema.names} for each in (given, self.made[id(given)]))
            if missing := (names & had) - has:
                raise _MissingColumn(frozenset(unprefixed(missing, self.prefixes)), list(self._places(given)))

    def _places(self, given: nodes.Node | nodes.TableDefinition) -> Iterator[Place]:
        """Yield the sources and tables that the columns of an input come from."""
        if isinstance(given, nodes.TableDefinition):
            yield given
            return
        for node in nodes.walk_nodes(given):
            if isinstance(node, nodes.Source):
                yield node
            elif isinstance(node, nodes.TableJoin):
                yield node.table
            elif isinstance(node, nodes.Splitting):
                yield from self._places(node.body.root)
            elif id(node) in self.below:
                yield from self._places(self.below[id(node)])


def _named_by(node: nodes.Node) -> list[Named]:
    """Return the columns that a node itself names, for each of its inputs."""
    match node:
        case nodes.Map():
            return [(node.input, _columns(expression.sql for _, expression in node.columns))]
        case nodes.Filter():
            return [(node.input, _columns([node.predicate.sql]))]
        case nodes.Case():
            return [(node.input, _columns(predicate.sql for predicate in node.predicates))]
        case nodes.Join():
            return [(node.left, _of_side(node.on.sql, "l")), (node.right, _of_side(node.on.sql, "r"))]
        case nodes.TableJoin():
            return [(node.input, _of_side(node.on.sql, "l")), (node.table, _of_side(node.on.sql, "r"))]
        case nodes.NWayJoin():
            return [(stream, set(node.on.columns(place))) for place, stream in enumerate(node.streams)]
        case nodes.AsOf():
            return [(side, _lower(node.by)) for side in node.inputs]
        case nodes.Aggregation():
            return [(node.input, _columns(function.sql for _, function in node.functions) | _lower(node.by))]
        case nodes.Unnest():
            return [(node.input, _lower([node.column]))]
        case nodes.Top():
            return [(node.input, _columns(term.expression.sql for term in node.order) | _lower(node.by))]
        case nodes.Distinct():
            return [(node.input, _lower(node.by))]
        case nodes.Sample():  # a sample of whole tuples names no column: it hashes those that the state began with
            return [(node.input, _lower(node.by or ()))]
        case nodes.Splitting():
            rules = (node.rule.route, node.rule.broadcast)
            texts = [rule.sql for rule in rules if isinstance(rule, expressions.Expression)]
            return [(node.input, _columns(texts) | _lower(node.rule.by or ()))]
    return []


def _lower(names: Sequence[str]) -> set[str]:
    return {name.lower() for name in names}


def _paths(texts: Iterator[str] | Sequence[str]) -> list[list[str]]:
    return [[part.lower() for part in path] for sql in texts for path in columns_of(parse(sql, "sql"))]


def _columns(texts: Iterator[str] | Sequence[str]) -> set[str]:
    return {path[0] for path in _paths(texts)}


def _of_side(sql: str, side: str) -> set[str]:
    return {path[1] for path in _paths([sql]) if path[0] == side and len(path) > 1}
