"""Can the cases of `test_apply` see anything? Each canary breaks what runs processors in one place; a case must notice."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.columnar.types import SUBSTREAM
from headrace.difference import difference
from headrace.driver import outcome
from headrace.errors import HeadraceError
from headrace.kernels.keyed import processor_calls, substream_tuples
from headrace.kernels.keyed.substream_tuples import SubstreamTuples
from headrace.operators import apply
from headrace.reference import reference
from headrace.routing import EVERYWHERE
from headrace.state import bases, merge_planning, state_tables
from headrace.task import slot_state_tables, slots, state_table_groups
from headrace.task.slot_state_tables import SlotStateTables
from headrace.task.slots import EpochSlot

from .driving import drive
from .strategies import Case, cut, make_case
from .test_apply import ONE

pytestmark = pytest.mark.thorough

Patch = Callable[[pytest.MonkeyPatch], None]
CASES = 100  # as many as test_apply has; a canary must be seen by one of them
EPOCHS = 5


class Cases:
    """The cases of test_apply with their answers, made once, by a sound engine."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Case, list[dict[str, pa.Table]], pa.Table]] = {}

    def __getitem__(self, seed: int) -> tuple[Case, list[dict[str, pa.Table]], pa.Table]:
        if seed not in self.made:
            case = make_case(f"apply-{seed}", ONE, depth=(1,))
            arrived = cut(case.tables, EPOCHS, seed)
            self.made[seed] = case, arrived, reference(case.query, epochs=arrived)
        return self.made[seed]


@pytest.fixture(scope="module")
def cases() -> Cases:
    return Cases()


def noticed(cases: Cases, seed: int, *, errors: bool = True) -> str | None:
    """How a case goes wrong: by its answer, or by an error, if that counts."""
    case, arrived, expected = cases[seed]
    try:
        return difference(expected, drive(case.query, arrived, seed, reopen=0.5, change_slots=0.3))
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}" if errors else None


class Lives:
    """Tells whether a slot's operator runs for the first time since a restart: not since state began."""

    def __init__(self) -> None:
        self.epochs: dict[str, set[tuple[str, int]]] = {}

    def begins(self, turns: Any) -> bool:
        name, number = turns.operator.name, turns.slot.epoch.number
        known = self.epochs.setdefault(turns.slot.run_id, set())
        known.add((name, number))
        return number > 0 and min(n for o, n in known if o == name) == number


def ticks_are_lost_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """The first one that is due then."""
    real, lives = apply._SlotCalls._turns, Lives()

    def without(self: Any, known: Any) -> Any:
        first = lives.begins(self)
        return [replace(turn, ticks=turn.ticks[1:]) if first else turn for turn in real(self, known)]

    patch.setattr(apply._SlotCalls, "_turns", without)


def ticks_come_again_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """As if the last watermark were not known: those of the substream's whole life."""
    real, lives = apply._SlotCalls._turns, Lives()

    def again(self: Any, known: Any) -> Any:
        every, first = self.declared.every, lives.begins(self)
        found = []
        for turn in real(self, known):
            ticks = turn.ticks
            if first and every and ticks:
                ticks = range((turn.first // every + 1) * every, ticks.stop, every)
            found.append(replace(turn, ticks=ticks))
        return found

    patch.setattr(apply._SlotCalls, "_turns", again)


def first_times_are_forgotten_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A substream that is silent then has never had a tuple."""
    real, lives = apply._SlotCalls._turns, Lives()

    def forgetful(self: Any, known: Any) -> Any:
        return real(self, {} if lives.begins(self) else known)

    patch.setattr(apply._SlotCalls, "_turns", forgetful)


def older_rows_win(patch: pytest.MonkeyPatch) -> None:
    real = state_tables.newest_rows

    def oldest(declared: Any, parts: Any) -> pa.Table:
        return _aged(real(declared, [_aged(part) for part in parts]))

    patch.setattr(state_tables, "newest_rows", oldest)


def _aged(rows: pa.Table) -> pa.Table:
    """The younger a row was, the older it is now."""
    place = rows.schema.get_field_index(state_tables.EPOCH_COLUMN)
    return rows.set_column(place, rows.schema.field(place), pc.negate(rows.column(place)))


def tables_are_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """The second attempt of a task finds what the first made of the tables: every change is applied twice."""
    real = processor_calls.run_processor

    def twice(*given: Any) -> Iterator[Any]:
        list(real(*given))
        yield from real(*given)

    patch.setattr(processor_calls, "run_processor", twice)


def broadcast_tuples_are_doubled(patch: pytest.MonkeyPatch) -> None:
    real = SubstreamTuples.__init__

    def doubled(self: SubstreamTuples, given: Sequence[pa.Table], *others: Any) -> None:
        for_all = [each.filter(pc.equal(each.column(SUBSTREAM), EVERYWHERE)) for each in given]
        real(self, [*given, *for_all], *others)

    patch.setattr(SubstreamTuples, "__init__", doubled)


def broadcast_tuples_reach_some(patch: pytest.MonkeyPatch) -> None:
    """Not the last of the substreams that a slot has."""
    real = substream_tuples._by_owner

    def some(numbers: Any, members: Any) -> Any:
        keys, for_all = real(numbers, members)
        lost = (keys >> substream_tuples.ROW_BITS == max(members, default=0)) & (
            numbers[keys & substream_tuples.ROW_MASK] == EVERYWHERE
        )
        return keys[~lost], for_all

    patch.setattr(substream_tuples, "_by_owner", some)


def one_time_is_separated(patch: pytest.MonkeyPatch) -> None:
    """Chunks are cut wherever it suits."""
    real = processor_calls._called

    def cut_up(call: Any, method: Any, given: Any, state: Any) -> Iterator[Any]:
        if call.method != "process" or given.num_rows < 2:
            yield from real(call, method, given, state)
            return
        half = given.num_rows // 2
        yield from real(call, method, given.slice(0, half), state)
        yield from real(call, method, given.slice(half), state)

    patch.setattr(processor_calls, "_called", cut_up)


def a_time_is_cut_at_the_watermark(patch: pytest.MonkeyPatch) -> None:
    """Tuples at the watermark are handed over already: others of that time may follow in the next epoch."""
    real = SubstreamTuples.__init__

    def eager(self: SubstreamTuples, given: Any, schema: pa.Schema, before: int, after: int, members: Any) -> None:
        real(self, given, schema, before, after + 1, members)

    patch.setattr(SubstreamTuples, "__init__", eager)


def the_end_is_called_twice(patch: pytest.MonkeyPatch) -> None:
    real = processor_calls.run_processor

    def ending(*given: Any) -> Iterator[Any]:
        yield from real(*given)
        processor, declared, substream, tuples, state, _, end = given
        if end is not None:
            yield from real(processor, declared, substream, tuples.slice(0, 0), state, (), end)

    patch.setattr(processor_calls, "run_processor", ending)


def copies_are_shared(patch: pytest.MonkeyPatch) -> None:
    """One opened processor for all substreams of a process."""
    kept: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
    real = processor_calls.copy_of

    def shared(processor: Any, owner: str, substream: int, substreams: int) -> Any:
        return kept.setdefault(owner, kept.get(owner) or real(processor, owner, substream, substreams))

    patch.setattr(processor_calls, "copy_of", shared)


def always_renewed(patch: pytest.MonkeyPatch) -> None:
    """Bases as often as there can be: what the next canary needs, and sound alone."""
    patch.setattr(bases, "SMALL", 0)
    patch.setattr(bases, "WASTE", 0.0)


def bases_forget_what_changed(patch: pytest.MonkeyPatch) -> None:
    """The base of a group that had rows is written without what the epoch changed of them."""
    always_renewed(patch)
    real = SlotStateTables._base

    def stale(self: SlotStateTables, table: str, delta: pa.Table, groups: Any) -> pa.Table:
        return real(self, table, delta.filter(pa.array(~np.isin(self._groups(table, delta), groups))), groups)

    patch.setattr(SlotStateTables, "_base", stale)


def merges_drop_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A tombstone goes, though what it hides lies in a block that is not merged."""
    real = slot_state_tables.write_merged_table
    patch.setattr(bases, "FAN_IN", 2)
    patch.setattr(state_table_groups, "FINE", 1)  # groups in which a row stays when another goes

    def without(*given: Any) -> Any:
        found = state_tables.newest_rows

        def no_tombs(declared: Any, parts: Any) -> pa.Table:
            rows = found(declared, parts)
            return rows.filter(pc.invert(rows.column(state_tables.DELETED_COLUMN)))

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(state_tables, "newest_rows", no_tombs)
            return real(*given)

    patch.setattr(slot_state_tables, "write_merged_table", without)


def always_trimmed(patch: pytest.MonkeyPatch) -> None:
    """Blocks of any size: what the next canaries need, and sound alone."""
    patch.setattr(apply, "WORTH", 0)


def what_waits_is_lost(patch: pytest.MonkeyPatch) -> None:
    always_trimmed(patch)
    patch.setattr(EpochSlot, "write_remainder", lambda *_: None)


def trimmed_blocks_stay(patch: pytest.MonkeyPatch) -> None:
    always_trimmed(patch)
    patch.setattr(outcome, "blocks_rewritten", lambda *_: [])


def merged_blocks_are_trimmed(patch: pytest.MonkeyPatch) -> None:
    """By the slots and by the driver alike: what waits stands in the merged block as well."""
    always_trimmed(patch)
    patch.setattr(merge_planning, "FAN_IN", 2)
    for module in (slots, outcome):
        real = module.blocks_rewritten
        patch.setattr(
            module, "blocks_rewritten", lambda epoch, *given, real=real: real(replace(epoch, merges=()), *given)
        )


def every_slot_keeps_what_is_for_all(patch: pytest.MonkeyPatch) -> None:
    _keeping_for_all(patch, lambda groups: [0, *groups])


def no_slot_keeps_what_is_for_all(patch: pytest.MonkeyPatch) -> None:
    _keeping_for_all(patch, lambda groups: [group for group in groups if group])


def _keeping_for_all(patch: pytest.MonkeyPatch, groups: Callable[[list[int]], list[int]]) -> None:
    always_trimmed(patch)
    real = apply._SlotCalls._left

    def left(self: Any, given: Any) -> pa.Table:
        turns = copy.copy(self)
        turns.groups = groups(self.groups)
        return real(turns, given)

    patch.setattr(apply._SlotCalls, "_left", left)


CANARIES = [
    ticks_are_lost_at_a_restart,
    ticks_come_again_after_a_restart,
    first_times_are_forgotten_at_a_restart,
    older_rows_win,
    tables_are_not_rolled_back,
    broadcast_tuples_are_doubled,
    broadcast_tuples_reach_some,
    one_time_is_separated,
    a_time_is_cut_at_the_watermark,
    the_end_is_called_twice,
    copies_are_shared,
    bases_forget_what_changed,
    merges_drop_what_is_gone,
    what_waits_is_lost,
    trimmed_blocks_stay,
    merged_blocks_are_trimmed,
    every_slot_keeps_what_is_for_all,
    no_slot_keeps_what_is_for_all,
]
REFUSED = [merges_drop_what_is_gone]  # the engine sees it itself: a table has more rows than its manifest says


@pytest.mark.parametrize("canary", CANARIES, ids=[canary.__name__ for canary in CANARIES])
def test_a_broken_engine_is_seen(cases: Cases, canary: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(CASES):
        _ = cases[seed]  # its answer is made by what is sound
        with monkeypatch.context() as patch:
            canary(patch)
            found = noticed(cases, seed, errors=canary in REFUSED)
        if found is not None:
            print(f"seen in case {seed}: {found.splitlines()[0]:.150}")
            return
    pytest.fail(f"{CASES} cases did not notice {canary.__name__}")


@pytest.mark.parametrize(
    "patch", [None, always_renewed, always_trimmed], ids=["as it is", "always renewed", "always trimmed"]
)
def test_a_sound_engine_is_not_accused(cases: Cases, patch: Patch | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if patch is not None:
        patch(monkeypatch)
    assert not [found for seed in range(10) if (found := noticed(cases, seed))]
