"""Tables that streams are joined with: the version of a table that a tuple is joined with.

A tuple is joined with the version of the epoch in which it reaches the join. Interpreting the query over the epochs so
far gives the tuples that have reached the join by the end of an epoch; those not seen before reached it in this epoch.
A query over several versions is therefore interpreted once for each of its epochs, over all epochs up to that one, and
every join remembers its input and its output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.errors import QueryError, SourceError
from headrace.query import nodes
from headrace.reference.tuples import keys_of, row_numbers, same_kind, single_value
from headrace.reference.windows import table_join
from headrace.support.terminal_text import printable

Version: TypeAlias = pa.Table | Mapping[str, pa.Table]


class ReferenceVersions:
    """The versions of tables. rows: by the id of a table, its content in every epoch, or one content for all."""

    def __init__(self, rows: Mapping[int, Sequence[pa.Table]]) -> None:
        self._rows = rows
        self._had: dict[Any, pa.Table] = {}
        self._gave: dict[Any, pa.Table] = {}
        self.epoch = 0  # the epoch that is interpreted now

    @property
    def epochs(self) -> int:
        return max((len(rows) for rows in self._rows.values()), default=1)

    def joined(self, node: nodes.TableJoin, place: Any, tuples: pa.Table) -> pa.Table:
        """Return all output of the join so far. place: identifies the join and the tuples it works on."""
        known = self._had.get(place, tuples.slice(0, 0))
        versions = self._rows[id(node.table)]
        found = table_join(node, new_tuples(tuples, known), versions[min(self.epoch, len(versions) - 1)])
        self._gave[place] = single_value([self._gave[place], found]) if place in self._gave else found
        self._had[place] = tuples
        return self._gave[place]


def new_tuples(tuples: pa.Table, known: pa.Table) -> pa.Table:
    """Return the tuples that are not among the known ones, as multisets."""
    left = Counter(keys_of(known, known.column_names))
    rows = []
    for row, key in enumerate(keys_of(tuples, tuples.column_names)):
        if left[key]:
            left[key] -= 1
        else:
            rows.append(row)
    return tuples.take(row_numbers(rows))


def versions_of(roots: Sequence[nodes.Node], given: Sequence[Version] | None, epochs: int | None) -> ReferenceVersions:
    """Return the given versions, one for each epoch and perhaps one more for the end; else the present content."""
    named = nodes.named_tables(*roots)
    if given is None:
        return ReferenceVersions({id(t): [_now(t, name)] for name, t in named.items()})
    if not named:
        raise QueryError("versions are those of tables, and the query has none; leave versions out")
    allowed = (1,) if epochs is None else (epochs, epochs + 1)
    if isinstance(given, pa.Table | Mapping) or len(given) not in allowed:
        found = "one" if isinstance(given, pa.Table | Mapping) else len(given)
        each = "one for each epoch, and if they differ one more for the end" if epochs is not None else "one"
        raise QueryError(f"versions is a list: {each}; found {found}, with {epochs or 0} epochs")
    cut = [_by_name(version, named) for version in given]
    return ReferenceVersions({id(t): _filled([version.get(n) for version in cut], t, n) for n, t in named.items()})


def _by_name(version: Version, named: Mapping[str, nodes.TableDefinition]) -> Mapping[str, pa.Table]:
    if isinstance(version, pa.Table):
        if len(named) != 1:
            raise QueryError(
                f"the query has {len(named)} tables; give each version as a dict {{name: table}} of {', '.join(named)}"
            )
        return {next(iter(named)): version}
    if unknown := [name for name in version if name not in named]:
        raise QueryError(f"a version names an unknown table {unknown[0]!r}; the query has {', '.join(named)}")
    return version


def _filled(versions: Sequence[pa.Table | None], table: nodes.TableDefinition, name: str) -> list[pa.Table]:
    """Return the content in each epoch. An epoch without a version of the table has the version before it."""
    found: list[pa.Table] = []
    for version in versions:
        if version is None and not found:
            raise QueryError(f"the first of the versions does not have table {name!r}")
        found.append(found[-1] if version is None else _rows(version, table, name))
    return found


def _now(table: nodes.TableDefinition, name: str) -> pa.Table:
    return pa.concat_tables(_rows(part, table, name) for _, part in table.origin.parts())


def _rows(found: pa.Table, table: nodes.TableDefinition, name: str) -> pa.Table:
    """Return rows in the table's columns and types. Other columns are ignored, and no value is converted."""
    try:
        rows = found.select(table.schema.names)
        for now, declared in zip(rows.schema, table.schema, strict=True):
            if not same_kind(now.type, declared.type):
                raise pa.ArrowInvalid(f"column {now.name!r} changed its type from {declared.type} to {now.type}")
        return rows.cast(table.schema)
    except (KeyError, pa.ArrowInvalid) as error:
        raise SourceError(f"table {printable(name)} does not hold what the query was built for: {error}") from None
