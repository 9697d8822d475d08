"""Checks that hold for the real code and must fail for the broken variants in test_canaries.py."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.errors import CorruptState, StateError, WriterConflict
from headrace.state import (
    Block,
    BlockReader,
    OperatorState,
    OutboxEntry,
    SourceState,
    StateStore,
    Totals,
    block_name,
)
from headrace.state.blocks import write_block
from headrace.state.head import head_name
from headrace.state.manifest import FolderState, Manifest, Receipt, TableState
from headrace.state.storage import Storage
from tests.memory import MemoryStorage

from .faulty import FaultyStorage, flip

NAME = "manifests/000000001.json"


class CheckFailed(AssertionError):
    """What a broken variant must provoke."""


def table(*values: int) -> pa.Table:
    return pa.table({"v": pa.array(values, pa.int64())})


def add_block(store: StateStore, *values: int, epoch: int | None = None, stage: int = 0) -> Block:
    number = store.draft().number if epoch is None else epoch
    low, high = (min(values), max(values)) if values else (None, None)
    return write_block(store.storage, block_name(number, stage, 0, 0), table(*values), None, low, high)


def commit_values(store: StateStore, *values: int, keep: int | None = None, out: bool = False) -> Block:
    """One more block for operator "w"; with `keep`, only its newest `keep` blocks stay."""
    block = add_block(store, *values)
    before = store.last.operators["w"].inputs[0] if store.last else ()
    blocks = (*before, block)[-keep if keep else 0 :]
    changes: dict[str, Any] = {"operators": {"w": OperatorState((blocks,))}}
    if out:
        changes["outbox"] = (OutboxEntry("r", 0, add_block(store, *values, stage=9)),)
    store.commit(store.draft(**changes))
    return block


def values_of(store: StateStore, reader: BlockReader | None = None) -> list[int]:
    reader = reader or BlockReader(store.storage)
    blocks = store.last.operators["w"].inputs[0] if store.last else ()
    return [v for block in blocks for v in reader.open(block).table["v"].to_pylist()]


def example_table(block: Block) -> TableState:
    kinds = pa.schema([("k", pa.int64()), ("é", pa.list_(pa.decimal128(9, 2)))])
    return TableState(
        ("k",), kinds, (replace(block, name=block_name(1, 0, 3, 33), low=0, high=1),), (0, -1, 1), (4, 0, 3)
    )


def example_manifest() -> Manifest:
    block = Block(block_name(1, 0, 2, 33), 1234, "0123456789abcdef" * 2, 10, -5, 5)
    return Manifest(
        state_id="0123456789abcdef" * 2,
        number=1,
        previous="ab" * 32,
        run="run-é-1",
        versions={"headrace": "0.1"},
        position={"batch": 7, "rate": 1e300},
        sources={"s": SourceState(5, -5, 4, False, 3, 2, 1, 0, 1, "a folder, é")},
        ledgers={"s": FolderState((block,), block)},
        operators={"w": OperatorState(((block,), ()), {"n": [1, None, "é"]}, {"t": example_table(block)})},
        outbox=(OutboxEntry("r", 0, block), OutboxEntry("s", 1, Receipt(3, {"name": ["é", None, 1.5]}))),
        totals=Totals(3, 2, 1, 0, {"result-0": 7}, {"s: map x = y": 1}),
        work={"since": 1},
        control={"active": 1},
    )


def check_one_winner(storage: Storage, numbers: int = 100, threads: int = 4) -> None:
    """Each number is published by exactly one thread, and holds what that thread wrote."""
    wins: list[list[int]] = [[] for _ in range(numbers)]
    barrier = threading.Barrier(threads)

    def work(thread: int) -> None:
        for number in range(numbers):
            barrier.wait()
            if storage.publish(f"manifests/{number:09d}.json", b"%d" % thread):
                wins[number].append(thread)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for number, winners in enumerate(wins):
        found = storage.read(f"manifests/{number:09d}.json")
        if len(winners) != 1 or found != b"%d" % winners[0]:
            raise CheckFailed(f"number {number}: winners {winners}, holds {found!r}")


def check_block_damage_is_seen(reader: Callable[[Storage], BlockReader], every: int = 1) -> None:
    """Flips every bit of a small block and cuts it at every length; the reader must refuse each."""
    storage = MemoryStorage()
    block = write_block(storage, block_name(0, 0, 0, 0), table(1, 2, 3), None, 1, 3)
    good = storage.files[block.name]
    flips = (flip(good, bit) for bit in range(0, len(good) * 8, every))
    cuts = (good[:length] for length in range(0, len(good), every))
    for damaged in (*flips, *cuts, good + b"\0"):
        storage.files[block.name] = damaged
        _expect_corrupt(lambda: reader(storage).open(block))
    storage.files[block.name] = good
    assert reader(storage).open(block).table.equals(table(1, 2, 3))


def _expect_corrupt(action: Callable[[], object]) -> None:
    try:
        action()
    except CorruptState:
        return
    except Exception as error:
        raise CheckFailed(f"damage surfaced as {error!r}") from error
    raise CheckFailed("damage was not seen")


def check_second_writer_loses(make: Callable[[Storage], StateStore]) -> None:
    """Of two stores on one storage, one commits; the other stops and does not go on to the next number."""
    storage = MemoryStorage()
    commit_values(make(storage), 0)
    one, two = make(storage), make(storage)
    commit_values(one, 10)
    for action in (lambda: commit_values(two, 20), lambda: two.commit(two.draft()), two.clean):
        try:
            action()
        except WriterConflict:
            continue
        raise CheckFailed("the second writer went on")
    _expect_values(storage, [0, 10])


def check_power_cut(
    make: Callable[[], FaultyStorage], make_store: Callable[[Storage], StateStore] = StateStore
) -> None:
    """After a power cut the newest commit is there whole, whatever was in flight."""
    for seed in range(20):
        storage = make()
        store = make_store(storage)
        for value in range(4):
            commit_values(store, value, keep=2)
            if value == 3 or seed % 2:
                store.clean(keep=1 + seed % 3)
        add_block(store, 99)
        storage.power_cut(random.Random(seed))
        _expect_values(storage, [2, 3])


def _expect_values(storage: Storage, values: list[int]) -> None:
    try:
        found = values_of(StateStore(storage))
    except StateError as error:
        raise CheckFailed(f"committed state is gone: {error}") from error
    if found != values:
        raise CheckFailed(f"committed {values}, found {found}")


def check_clean_up(make: Callable[[Storage], StateStore]) -> None:
    """Clean-up removes what is past and unnamed, and nothing else: not what is named, not what is to come."""
    storage = MemoryStorage()
    store = make(storage)
    orphan = add_block(store, 7, stage=5)
    for value in range(5):
        commit_values(store, value, keep=2, out=True)
    ahead = [add_block(store, 8), add_block(store, 9, epoch=store.draft().number + 1)]
    kept = {block.name for number in (2, 3, 4) for block in _stored(storage, number).live_blocks()}
    store.clean(keep=3)
    wanted = kept | {block.name for block in ahead}
    left = set(storage.list("blocks")) - {head_name(4)}
    if wanted - left or left - wanted or orphan.name in left:
        raise CheckFailed(f"missing {wanted - left}, left over {left - wanted}")
    _expect_values(storage, [3, 4])


def _stored(storage: Storage, number: int) -> Manifest:
    name = f"manifests/{number:09d}.json"
    return Manifest.from_bytes(storage.read(name), name)
