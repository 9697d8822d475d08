"""The store against a dict, by Hypothesis: any order of work, faults, crashes and rivals."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.errors import CorruptState, StateError, WriterConflict
from headrace.state import Block, BlockReader, OperatorState, StateStore
from headrace.state.manifest import manifest_name

from .checks import add_block, values_of
from .faulty import FaultyStorage, flip


class StoreMachine(RuleBasedStateMachine):
    """`committed` maps each number to the values its state should hold."""

    @initialize()
    def start(self) -> None:
        self.storage = FaultyStorage()
        self.committed: dict[int, list[int]] = {}
        self.next_value = 0
        self.recover()

    def recover(self) -> None:
        self.storage.faults.clear()
        self.store = StateStore(self.storage)
        self.pending: list[tuple[Block, list[int]]] = []

    @property
    def expected(self) -> list[int]:
        return self.committed[max(self.committed)] if self.committed else []

    def fresh(self, count: int) -> list[int]:
        self.next_value += count
        return list(range(self.next_value - count, self.next_value))

    def attempt(self, store: StateStore, *, merge: bool) -> tuple[int, list[int]]:
        """Draft pending blocks onto the last state; merging rewrites all of it as one block."""
        values = [*self.expected, *(v for _, vs in self.pending for v in vs)]
        before = store.last.operators["w"].inputs[0] if store.last else ()
        blocks = (add_block(store, *values),) if merge else (*before, *(b for b, _ in self.pending))
        draft = store.draft(operators={"w": OperatorState((blocks,))})
        store.commit(draft)
        return draft.number, values

    @rule(count=st.integers(0, 3))
    def append(self, count: int) -> None:
        values = self.fresh(count)
        self.pending.append((add_block(self.store, *values), values))

    @rule(merge=st.booleans())
    def commit(self, merge: bool) -> None:
        number, values = self.attempt(self.store, merge=merge)
        self.committed[number] = values
        self.pending = []

    @rule(operation=st.sampled_from(["publish", "sync"]))
    def commit_fails_before(self, operation: str) -> None:
        self.storage.inject(operation, "before")
        with pytest.raises(StateError):
            self.attempt(self.store, merge=False)
        with pytest.raises(WriterConflict):
            self.store.commit(self.store.draft())
        self.recover()

    @rule()
    def commit_succeeds_but_says_otherwise(self) -> None:
        self.storage.inject("publish", "after")
        number, values = self.attempt(self.store, merge=False)
        self.committed[number] = values
        self.pending = []

    @rule(seed=st.integers(0, 1 << 16))
    def power_cut(self, seed: int) -> None:
        self.storage.power_cut(random.Random(seed))
        self.recover()

    @rule()
    def killed(self) -> None:
        self.recover()

    @rule(keep=st.integers(1, 4))
    def clean(self, keep: int) -> None:
        self.store.clean(keep)
        assert self.store.clean(keep) == 0
        assert len(self.storage.list("manifests")) <= keep

    @rule(keep=st.integers(1, 3), skip=st.integers(0, 4), seed=st.integers(0, 1 << 16))
    def power_cut_while_cleaning(self, keep: int, skip: int, seed: int) -> None:
        self.storage.inject("delete", "after", skip=skip)
        with contextlib.suppress(StateError):
            self.store.clean(keep)
        self.storage.power_cut(random.Random(seed))
        self.recover()

    @precondition(lambda self: self.committed)
    @rule(pick=st.integers(0, 1 << 20), bit=st.integers(0, 1 << 20))
    def corrupt(self, pick: int, bit: int) -> None:
        live = [block.name for block in self.store.last.live_blocks()]
        name = [manifest_name(max(self.committed)), *live][pick % (len(live) + 1)]
        good = self.storage.files[name]
        self.storage.files[name] = flip(good, bit % (len(good) * 8))
        with pytest.raises((CorruptState, StateError)):
            values_of(StateStore(self.storage))
        self.storage.files[name] = good

    @precondition(lambda self: self.committed)
    @rule(lost=st.integers(1, 3))
    def lose_the_newest_manifests(self, lost: int) -> None:
        names = self.storage.list("manifests")[-lost:]
        good = {name: self.storage.files.pop(name) for name in names}
        with pytest.raises(CorruptState, match="gone"):
            StateStore(self.storage)
        self.storage.files.update(good)

    @rule(merge=st.booleans())
    def second_writer_takes_over(self, merge: bool) -> None:
        rival, loser, self.store = StateStore(self.storage), self.store, None
        stalled = loser.draft()
        mine, self.pending = self.pending, []
        number, values = self.attempt(rival, merge=merge)
        self.committed[number] = values
        with pytest.raises(WriterConflict):
            loser.commit(stalled)
        with pytest.raises(WriterConflict):
            loser.clean()
        self.store = rival
        assert all(block.name not in {b.name for b in rival.last.live_blocks()} for block, _ in mine)

    @invariant()
    def state_is_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        assert (self.store.last.number if self.store.last else None) == max(self.committed, default=None)
        assert values_of(self.store, BlockReader(self.storage)) == self.expected

    @invariant()
    def a_restart_would_see_the_same(self) -> None:
        if hasattr(self, "store"):
            assert StateStore(self.storage).last == self.store.last

    @invariant()
    def pending_blocks_are_never_collected(self) -> None:
        for block, _ in getattr(self, "pending", []):
            assert block.name in self.storage.files


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=300, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
