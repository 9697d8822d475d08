"""Broken on purpose: each variant must be caught by the check that passes on the real code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.state import Block, BlockReader, LocalStorage, StateStore
from headrace.state.blocks import data_checksum, epoch_of, is_block
from headrace.state.manifest import manifest_name
from headrace.state.storage import Data

from .checks import (
    CheckFailed,
    check_block_damage_is_seen,
    check_clean_up,
    check_one_winner,
    check_power_cut,
    check_second_writer_loses,
)
from .faulty import FaultyStorage


class ChecksumIgnored(BlockReader):
    def _verify(self, block: Block, data: pa.Buffer) -> None:
        pass


class SizeOnly(BlockReader):
    def _verify(self, block: Block, data: pa.Buffer) -> None:
        super()._verify(replace(block, checksum=data_checksum(data)), data)


class CheckThenRename(LocalStorage):
    def publish(self, name: str, data: Data) -> bool:
        final = self._path(name)
        temporary = final.with_name(f"_{os.urandom(8).hex()}")
        temporary.write_bytes(data)
        if final.exists():
            return False
        time.sleep(0.0005)
        os.rename(temporary, final)
        return True


class NoSync(FaultyStorage):
    def _harden(self, names: Iterable[str]) -> None:
        pass


class BlocksNotSynced(FaultyStorage):
    def sync(self, names: Iterable[str]) -> None:
        pass


class DeletesLaterEpochs(StateStore):
    def _garbage(self, newest: int) -> list[str]:
        needed = frozenset[str]().union(*self._named.values())
        return [name for name in self.storage.list("blocks") if name not in needed]


class DeletesNamedBlocks(StateStore):
    def _garbage(self, newest: int) -> list[str]:
        return [n for n in self.storage.list("blocks") if is_block(n) and epoch_of(n) < newest]


class ForgetsOutbox(StateStore):
    def _garbage(self, newest: int) -> list[str]:
        state = {b.name for op in self.last.operators.values() for run in op.inputs for b in run}
        return [n for n in self.storage.list("blocks") if is_block(n) and epoch_of(n) <= newest and n not in state]


class DeletesManifestsAtOnce(StateStore):
    def _delete_manifests(self, numbers: list[int]) -> None:
        for number in numbers:
            self.storage.delete(manifest_name(number))
            self._named.pop(number)


class BelievesPublish(StateStore):
    def _decide(self, name: str, data: bytes, failure: OSError | None) -> None:
        pass


class CleansNothing(StateStore):
    def _garbage(self, newest: int) -> list[str]:
        return []


@pytest.mark.parametrize("reader", [ChecksumIgnored, SizeOnly])
def test_canary_reader_that_does_not_verify(reader: type[BlockReader]) -> None:
    with pytest.raises(CheckFailed):
        check_block_damage_is_seen(reader)


def test_canary_check_then_rename(tmp_path: Path) -> None:
    storage = CheckThenRename(tmp_path, fsync=False)
    storage.create()
    with pytest.raises(CheckFailed, match="winners"):
        check_one_winner(storage)


@pytest.mark.parametrize("storage", [NoSync, BlocksNotSynced])
def test_canary_no_fsync(storage: type[FaultyStorage]) -> None:
    with pytest.raises(CheckFailed):
        check_power_cut(storage)


def test_canary_manifests_deleted_without_sync() -> None:
    with pytest.raises(CheckFailed, match="missing"):
        check_power_cut(FaultyStorage, DeletesManifestsAtOnce)


def test_canary_outcome_not_read_back() -> None:
    with pytest.raises(CheckFailed):
        check_second_writer_loses(BelievesPublish)


@pytest.mark.parametrize("store", [DeletesLaterEpochs, DeletesNamedBlocks, ForgetsOutbox, CleansNothing])
def test_canary_clean_up(store: type[StateStore]) -> None:
    with pytest.raises(CheckFailed):
        check_clean_up(store)


def test_the_same_checks_pass_on_the_real_code(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, fsync=False)
    storage.create()
    check_one_winner(storage)
    check_block_damage_is_seen(BlockReader)
    check_power_cut(FaultyStorage)
    check_clean_up(StateStore)
    check_second_writer_loses(StateStore)
