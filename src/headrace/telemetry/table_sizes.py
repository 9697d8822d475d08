"""The sizes of the state tables of a run, derived from its manifests.

Invariant: rows and growth come from the manifests alone; the tables themselves are not read. A manifest counts rows by
group, and a group contains neighbouring substreams, so the largest groups are named by their first and last substream,
which are usually the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.columnar.types import RESERVED
from headrace.plan import PhysicalPlan
from headrace.routing import SubstreamGrouping
from headrace.state.manifest import Manifest, TableState

LARGEST_GROUPS_NAMED = 5  # number of groups that are named


@dataclass(frozen=True)
class GroupSize:
    """The rows of a group of substreams `first` to `last`. If the number of substreams is unknown, these are the
    group's number.
    """

    first: int
    last: int
    rows: int

    def __str__(self) -> str:
        return f"{self.first} .. {self.last}" if self.last > self.first else str(self.first)


@dataclass(frozen=True)
class TableSize:
    """The size of one state table, and of its largest groups."""

    rows: int
    bytes: int  # bytes of its blocks, including rows that no longer count
    stored: int  # rows of its blocks
    blocks: int
    largest: tuple[GroupSize, ...]  # groups with the most rows, largest first
    grown: int = 0  # rows added in the newest epoch
    growing: tuple[GroupSize, ...] = ()  # groups that grew most in the newest epoch


Sizes = dict[str, dict[str, TableSize]]  # operator -> table -> size


def substream_counts(plan: PhysicalPlan) -> dict[str, int]:
    """Return the number of substreams of each operator that runs on substreams."""
    found = {operator.name: operator.groupings[0] for operator in plan.operators if operator.groupings}
    return {name: each.substreams for name, each in found.items() if isinstance(each, SubstreamGrouping)}


def visible_tables(found: Mapping[str, TableState]) -> dict[str, TableState]:
    """Return the tables without those that operators use internally."""
    return {name: table for name, table in found.items() if not name.startswith(RESERVED)}


def table_sizes(last: Manifest, before: Manifest | None, substreams: Mapping[str, int] | None = None) -> Sizes:
    """Return the size of each operator's tables, and the growth since the manifest before. Growth is 0 if `before` is
    None, unless this manifest is the first.
    """
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
    """Return the size of a table. `units`: the number of groups before their division into parts
    (`headrace.task.state_table_groups`).
    """
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
    """Return the groups with the largest positive numbers, largest first."""
    ordered = sorted(((number, -group) for group, number in enumerate(numbers) if number > 0), reverse=True)
    return tuple(
        GroupSize(*_members(-group, len(numbers), substreams), number)
        for number, group in ordered[:LARGEST_GROUPS_NAMED]
    )


def _members(group: int, groups: int, substreams: int | None) -> tuple[int, int]:
    """Return the first and the last substream of a group: those n with n * groups // substreams = group."""
    if substreams is None:
        return group, group
    return -(-group * substreams // groups), -(-(group + 1) * substreams // groups) - 1
