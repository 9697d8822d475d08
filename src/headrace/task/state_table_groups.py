"""The groups of a state table, which are separate from those of its operator.

They are small, so that writing the base of one group is little work even if there are few substreams.

    group of a row  =  unit * parts + part      unit: its substream; the operator's group if there are more substreams
                                                part: by the hash of the key

There are about `FINE` groups. Tables that an operator creates for itself use the groups of the operator. They are
recognised by the equal number of groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.columnar.arrow import Numbers
from headrace.columnar.types import RESERVED, SUBSTREAM
from headrace.operators.base import Operator
from headrace.routing import Grouping, SubstreamGrouping
from headrace.routing.hashing import hash_rows
from headrace.state.manifest import OperatorState, TableState

FINE = 512  # approximate number of groups of a table; every manifest stores two numbers for each


def table_state(state: OperatorState | None, name: str, operator: Operator, groups: int) -> TableState:
    """Return a table as the last manifest has it; an empty table in the first epoch."""
    if state is not None and name in state.tables:
        return state.tables[name]
    declared, fine = operator.state_tables[name], groups if name.startswith(RESERVED) else _fine(operator, groups)
    return TableState(declared.key, declared.columns, (), (-1,) * fine, (0,) * fine)


def _fine(operator: Operator, groups: int) -> int:
    units = _units(operator.groupings[0], groups)
    found = units * max(FINE // units, 1)
    return (
        found + units if found == groups != units else found
    )  # the operator's own number of groups would mean the operator's groups


def _units(grouping: Grouping, groups: int) -> int:
    return min(groups, grouping.substreams) if isinstance(grouping, SubstreamGrouping) else groups


@dataclass(frozen=True)
class StateTableGroups:
    """The assignment of the rows of one state table to its groups."""

    grouping: Grouping
    groups: int  # of the operator
    units: int
    parts: int

    @staticmethod
    def of(operator: Operator, state: TableState, groups: int) -> StateTableGroups:
        grouping, fine = operator.groupings[0], len(state.rows)
        units = groups if fine == groups else _units(grouping, groups)
        return StateTableGroups(grouping, groups, units, fine // units)

    def rows(self, table: pa.Table, key: tuple[str, ...]) -> Numbers:
        """Return the group of every row."""
        units = self.grouping.groups(table, self.units).astype(np.int64)
        if self.parts == 1:
            return units
        low = hash_rows(table, key) & np.uint64(0xFFFFFFFF)  # the upper half may have chosen the substream
        return units * self.parts + ((low * np.uint64(self.parts)) >> np.uint64(32)).astype(np.int64)

    def of_substreams(self, substreams: Numbers) -> Numbers:
        """Return the unit of each substream."""
        table = pa.table({SUBSTREAM: pa.array(substreams, pa.int32())})
        return self.grouping.groups(table, self.units).astype(np.int64)

    def of_groups(self, groups: Numbers) -> Numbers:
        """Return the units that are in some groups of the operator, ascending."""
        if self.units == self.groups:
            return np.sort(groups)
        assert isinstance(self.grouping, SubstreamGrouping)
        return np.asarray(self.grouping.members(groups.tolist(), self.groups), np.int64)

    def fine(self, units: Numbers) -> Numbers:
        """Return the groups of the table that are in some units, ascending as the units are."""
        return (units[:, None] * self.parts + np.arange(self.parts)).ravel()
