"""How large the keyed tables of a run are, as a manifest tells it: what people are shown of state.

Invariant: rows and growth are those of the manifests, table by table; nothing is read of the tables themselves. A manifest
counts rows by group, and a group has neighbouring substreams, so what is largest is named by the first and the last
substream of a group: mostly one and the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.columnar.types import RESERVED
from headrace.plan import PhysicalPlan
from headrace.routing import SubstreamGrouping
from headrace.state.manifest import Manifest, TableState

LARGEST_GROUPS_NAMED = 5  # groups that are named


@dataclass(frozen=True)
class GroupSize:
    """Rows of substreams first .. last, which are kept together; where it is not known how many there are, of a group."""

    first: int
    last: int
    rows: int

    def __str__(self) -> str:
        return f"{self.first} .. {self.last}" if self.last > self.first else str(self.first)


@dataclass(frozen=True)
class TableSize:
    """The size of one state table, and of its largest groups."""

    rows: int
    bytes: int  # of its blocks: rows that no longer count are in them too
    stored: int  # rows of its blocks
    blocks: int
    largest: tuple[GroupSize, ...]  # those with the most rows, most first
    grown: int = 0  # rows, in the newest epoch
    growing: tuple[GroupSize, ...] = ()  # those that grew most in it


Sizes = dict[str, dict[str, TableSize]]  # by operator and table


def substream_counts(plan: PhysicalPlan) -> dict[str, int]:
    """How many substreams every operator has that runs on some."""
    found = {operator.name: operator.groupings[0] for operator in plan.operators if operator.groupings}
    return {name: each.substreams for name, each in found.items() if isinstance(each, SubstreamGrouping)}


def visible_tables(found: Mapping[str, TableState]) -> dict[str, TableState]:
    """Without those that an operator keeps for itself."""
    return {name: table for name, table in found.items() if not name.startswith(RESERVED)}


def table_sizes(last: Manifest, before: Manifest | None, substreams: Mapping[str, int] | None = None) -> Sizes:
    """How large the tables of every operator are, and how they grew since the manifest before; None: it is not known,
    unless this one is the first."""
    known = before if before is not None or last.number == 0 else last
    found: Sizes = {}
    for name, operator in last.operators.items():
        older = known.operators[name].tables if known and name in known.operators else {}
        many = (substreams or {}).get(name)
        if own := visible_tables(operator.tables):
            units = min(last.groups, many) if many else last.groups
            found[name] = {table: table_size(state, older.get(table), units, many) for table, state in own.items()}
    return found


def table_size(state: TableState, before: TableState | None, units: int, substreams: int | None) -> TableSize:
    """units: of how many things of one slot its groups are the parts, if it has parts (`headrace.task.state_table_groups`)."""
    now, was = (_by_unit(each, units) for each in (state, before or replace(state, rows=(0,) * len(state.rows))))
    more = [after - then for after, then in zip(now, was, strict=True)]
    return TableSize(
        rows=sum(state.rows),
        bytes=sum(block.bytes for block in state.blocks),
        stored=sum(block.rows for block in state.blocks),
        blocks=len(state.blocks),
        largest=_most(now, substreams),
        grown=sum(more),
        growing=_most(more, substreams),
    )


def _by_unit(state: TableState, units: int) -> list[int]:
    parts = len(state.rows) // units if len(state.rows) % units == 0 else 1
    return [sum(state.rows[start : start + parts]) for start in range(0, len(state.rows), parts)]


def _most(numbers: Sequence[int], substreams: int | None) -> tuple[GroupSize, ...]:
    """The groups with the largest numbers above zero, largest first."""
    ordered = sorted(((number, -group) for group, number in enumerate(numbers) if number > 0), reverse=True)
    return tuple(
        GroupSize(*_members(-group, len(numbers), substreams), number)
        for number, group in ordered[:LARGEST_GROUPS_NAMED]
    )


def _members(group: int, groups: int, substreams: int | None) -> tuple[int, int]:
    """The first and the last substream of a group: those n with n * groups // substreams = group."""
    if substreams is None:
        return group, group
    return -(-group * substreams // groups), -(-(group + 1) * substreams // groups) - 1
