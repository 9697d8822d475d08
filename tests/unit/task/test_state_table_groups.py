"""How tables lie in groups: every row in one, all of them used, and each the business of the slot that has its substream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.types import SUBSTREAM
from headrace.processor import StateTable
from headrace.routing import Diagonal, SubstreamGrouping
from headrace.routing.hashing import groups_of
from headrace.state.manifest import OperatorState
from headrace.task import state_table_groups
from headrace.task.state_table_groups import StateTableGroups

DECLARED = StateTable(["k"], pa.schema([("k", pa.int64()), ("v", pa.int64())]))


def operator(substreams: int) -> Any:
    grouping = SubstreamGrouping((SUBSTREAM,), substreams)
    return SimpleNamespace(groupings=(grouping,), state_tables={"t": DECLARED, "__own": DECLARED})


@pytest.mark.parametrize("substreams", [1, 2, 3, 64, 100, 512, 1000, 5000])
@pytest.mark.parametrize("groups", [64, 100, 512, 1024])
def test_every_group_is_of_one_slot_and_has_its_share(groups: int, substreams: int) -> None:
    made = operator(substreams)
    state = state_table_groups.table_state(None, "t", made, groups)
    found = StateTableGroups.of(made, state, groups)
    assert (
        found.units * found.parts == len(state.rows) <= max(state_table_groups.FINE + min(groups, substreams), groups)
    )
    keys = np.random.default_rng(0).permutation(40_000)
    number = groups_of(pa.table({"k": keys}), ["k"], substreams)  # as `by` does it, by the same hash
    rows = pa.table({SUBSTREAM: pa.array(number, pa.int32()), "k": keys})
    of = found.rows(rows, ("k",))
    counts = np.bincount(of, minlength=len(state.rows))
    assert len(counts) == len(state.rows)
    if found.parts > 1:
        assert counts.max() < 3 * len(keys) / len(state.rows) + 30, (
            "the hash that chose the substream does not choose the part"
        )
    layout = Diagonal.even(groups, 3)
    owners = [
        set(found.fine(found.of_groups(np.asarray(layout.groups(slot, 0), np.int64))).tolist()) for slot in range(3)
    ]
    slot_of = np.asarray(layout.owner)[made.groupings[0].groups(rows, groups)]
    for slot, mine in enumerate(owners):
        assert set(of[slot_of == slot].tolist()) <= mine
        assert not any(mine & other for other in owners if other is not mine)
    assert (found.of_substreams(np.asarray(number, np.int64)) == of // found.parts).all()


def test_a_table_of_before_lies_in_the_groups_of_its_operator() -> None:
    made = operator(2)
    own = state_table_groups.table_state(None, "__own", made, 64)
    assert len(own.rows) == 64, "and so do those that an operator has for itself"
    assert state_table_groups.table_state(OperatorState(tables={"t": own}), "t", made, 64) is own
    found = StateTableGroups.of(made, own, 64)
    assert (found.units, found.parts) == (64, 1)
    rows = pa.table({SUBSTREAM: pa.array([0, 1, 1], pa.int32()), "k": [1, 2, 3]})
    assert found.rows(rows, ("k",)).tolist() == [0, 32, 32]
    assert found.of_groups(np.array([32, 5])).tolist() == [5, 32]


def test_where_rows_lie_is_part_of_the_format() -> None:
    made = operator(2)
    found = StateTableGroups.of(made, state_table_groups.table_state(None, "t", made, 64), 64)
    rows = pa.table({SUBSTREAM: pa.array([0, 1, 1, 0], pa.int32()), "k": pa.array([1, 2, None, 10**12], pa.int64())})
    assert found.rows(rows, ("k",)).tolist() == [27, 421, 325, 155]
