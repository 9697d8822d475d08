from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import CorruptState, StateError, StateMismatch, WriterConflict
from headrace.state import Block, BlockReader, OperatorState, StateStore, Totals
from headrace.state import checkpoint_folder as folder_module
from headrace.state.head import head_name
from headrace.state.manifest import FolderState, Manifest, manifest_name
from tests.memory import MemoryStorage

from .checks import (
    add_block,
    check_clean_up,
    check_power_cut,
    check_second_writer_loses,
    commit_values,
    values_of,
)
from .faulty import FaultyStorage, flip


def filled(epochs: int = 3) -> FaultyStorage:
    storage = FaultyStorage()
    store = StateStore(storage)
    for value in range(epochs):
        commit_values(store, value)
    return storage


# -- the folder: what cannot be one, and whose it is


def test_a_new_folder_is_made_private(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "a" / "state") as store:
        assert store.last is None and len(store.state_id) == 32
        commit_values(store, 1)
    modes = {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "a" / "state").rglob("*") if p.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "a" / "state").stat().st_mode) == 0o700


def test_an_empty_folder_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    StateStore.open(tmp_path / "state").close()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_state_comes_back(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        for value in range(3):
            commit_values(store, value)
    with StateStore.open(tmp_path / "s") as again:
        assert again.last == store.last and again.state_id == store.state_id
        assert again.run_id != store.run_id
        assert values_of(again) == [0, 1, 2]
        commit_values(again, 3)
        assert values_of(again) == [0, 1, 2, 3]


def _file(path: Path) -> None:
    path.write_text("x")


def _link(path: Path) -> None:
    (path.parent / "real").mkdir()
    path.symlink_to(path.parent / "real")


def _foreign(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / "thesis.docx").write_text("x")


def _shared(path: Path) -> None:
    (path / "blocks").mkdir(parents=True)
    path.chmod(0o777)


def _linked_blocks(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / "blocks").symlink_to(path.parent)


def _linked_lock(path: Path) -> None:
    path.mkdir(mode=0o700)
    (path / "writer.lock").symlink_to(path.parent / "victim")


def _foreign_manifest(path: Path) -> None:
    (path / "manifests").mkdir(parents=True)
    (path / "manifests" / "notes.txt").write_text("x")


REFUSED = [
    (_file, "is a file"),
    (_link, "symbolic link"),
    (_foreign, "thesis.docx"),
    (_shared, "chmod 700"),
    (_linked_blocks, "symbolic link"),
    (_linked_lock, "writer.lock"),
    (_foreign_manifest, "notes.txt"),
]


@pytest.mark.parametrize(("plant", "words"), REFUSED)
def test_unsuitable_paths_are_refused(tmp_path: Path, plant, words: str) -> None:
    plant(tmp_path / "state")
    with pytest.raises(StateError, match=words):
        StateStore.open(tmp_path / "state")
    assert not (tmp_path / "victim").exists()


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot create"):
        StateStore.open(tmp_path / "file" / "state")


def test_new_folders_are_synced_up_to_the_first_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(folder_module, "sync_path", synced.append)
    StateStore.open(tmp_path / "a" / "b").close()
    assert synced == [tmp_path / "a", tmp_path]


def test_folder_that_cannot_be_prepared(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / "blocks").write_text("")
    with pytest.raises(StateError, match="blocks is a file"):
        StateStore.open(tmp_path / "s")


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module.os, "access", lambda path, mode: False)
    with pytest.raises(StateError, match="cannot be written"):
        StateStore.open(tmp_path / "state")
    assert os.listdir(tmp_path / "state") == []


def test_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StateError, match="belongs to user"):
        StateStore.open(tmp_path / "state")


def test_symlink_planted_for_a_live_block(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        block = commit_values(store, 1)
    path = tmp_path / "s" / block.name
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(StateError, match="symbolic link"):
        StateStore.open(tmp_path / "s")


# -- one writer


def test_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    first = StateStore.open(tmp_path / "s")
    with pytest.raises(WriterConflict, match=f"process {os.getpid()}"):
        StateStore.open(tmp_path / "s")
    first.close()
    StateStore.open(tmp_path / "s").close()


def test_second_process_is_refused(tmp_path: Path) -> None:
    code = "import sys; from headrace.state import StateStore; StateStore.open(sys.argv[1])"
    with StateStore.open(tmp_path / "s"):
        run = subprocess.run([sys.executable, "-c", code, tmp_path / "s"], capture_output=True, text=True)
    assert run.returncode == 1 and "WriterConflict" in run.stderr


def test_lock_is_released_when_opening_fails(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        commit_values(store, 1)
    path = tmp_path / "s" / manifest_name(0)
    good = path.read_bytes()
    path.write_bytes(b"?")
    with pytest.raises(CorruptState):
        StateStore.open(tmp_path / "s")
    path.write_bytes(good)
    StateStore.open(tmp_path / "s").close()


def test_without_a_lock_exactly_one_commits() -> None:
    check_second_writer_loses(StateStore)


@pytest.mark.thorough
def test_four_threads_commit_the_same_number() -> None:
    storage = MemoryStorage()
    for number in range(50):
        stores = [StateStore(storage) for _ in range(4)]
        outcomes: list[object] = []
        threads = [threading.Thread(target=_try_commit, args=(s, i, outcomes)) for i, s in enumerate(stores)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(o, int) for o in outcomes) == 1 and len(outcomes) == 4
        assert values_of(StateStore(storage))[number] in outcomes


def _try_commit(store: StateStore, value: int, outcomes: list[object]) -> None:
    try:
        commit_values(store, value)
        outcomes.append(value)
    except WriterConflict as error:
        outcomes.append(error)


def test_late_writer_loses_and_its_blocks_are_collected() -> None:
    storage = filled(1)
    stalled = StateStore(storage)
    late = add_block(stalled, 99)
    draft = stalled.draft(operators={"w": OperatorState(((late,),))})
    winner = StateStore(storage)
    commit_values(winner, 1)
    commit_values(winner, 2)
    with pytest.raises(WriterConflict):
        stalled.commit(draft)
    with pytest.raises(WriterConflict):
        stalled.clean()
    winner.clean()
    assert late.name not in storage.files
    assert values_of(StateStore(storage)) == [0, 1, 2]


def test_cleaning_after_a_takeover_is_refused() -> None:
    storage = filled(1)
    stalled, winner = StateStore(storage), StateStore(storage)
    commit_values(winner, 1)
    with pytest.raises(WriterConflict, match="newest manifest"):
        stalled.clean()


def test_revoked_store_does_not_commit() -> None:
    store = StateStore(filled())
    store.revoke()
    with pytest.raises(WriterConflict, match="stopped"):
        store.commit(store.draft())


def test_closed_store_does_not_commit(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        pass
    with pytest.raises(WriterConflict):
        store.commit(store.draft())
    store.close()


@pytest.mark.parametrize("change", [{"number": 7}, {"previous": "0" * 64}, {"run": "x"}, {"state_id": "0" * 32}])
def test_only_the_next_manifest_of_this_run_is_committed(change: dict[str, object]) -> None:
    storage = filled()
    store = StateStore(storage)
    with pytest.raises(WriterConflict, match="does not follow"):
        store.commit(replace(store.draft(), **change))
    commit_values(store, 3)
    assert values_of(StateStore(storage)) == [0, 1, 2, 3]


def test_draft_carries_state_but_not_outbox() -> None:
    store = StateStore(MemoryStorage())
    commit_values(store, 1, out=True)
    draft = store.draft(totals=Totals(1), decisions=["x"])
    assert draft.outbox == () and draft.operators == store.last.operators
    assert (draft.number, draft.totals, draft.decisions) == (1, Totals(1), ["x"])


LEDGERS = {"taken": lambda block: FolderState((block,)), "listed": lambda block: FolderState((), block)}


@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS)
def test_the_blocks_of_a_ledger_are_kept_and_checked_as_state_is(ledger: Callable[[Block], FolderState]) -> None:
    store = StateStore(MemoryStorage())
    commit_values(store, 0)
    taken = add_block(store, 1, stage=3)
    store.commit(store.draft(ledgers={"calls": ledger(taken)}))
    for value in range(5):  # the manifest that named it first is gone
        commit_values(store, value, keep=1)
        store.clean(keep=1)
    assert StateStore(store.storage).last.ledgers == {"calls": ledger(taken)}
    assert BlockReader(store.storage).open(taken).table["v"].to_pylist() == [1]
    store.commit(store.draft(ledgers={}))
    store.clean(keep=1)
    assert store.storage.size(taken.name) is None, "nobody names it any more"


@pytest.mark.parametrize("ledger", LEDGERS.values(), ids=LEDGERS)
@pytest.mark.parametrize("damage", ["missing", "bytes, not"])
def test_a_ledger_that_is_not_there_is_refused_when_the_folder_is_opened(
    damage: str, ledger: Callable[[Block], FolderState]
) -> None:
    storage = MemoryStorage()
    store = StateStore(storage)
    taken = add_block(store, 1)
    store.commit(store.draft(ledgers={"calls": ledger(taken)}))
    if damage == "missing":
        del storage.files[taken.name]
    else:
        storage.files[taken.name] += b"x"
    with pytest.raises(CorruptState, match=f"{taken.name} .*{damage}"):
        StateStore(storage)


def test_last_is_what_a_restart_reads() -> None:
    store = StateStore(MemoryStorage())
    store.commit(store.draft(position={"files": (1, 2)}))
    assert store.last.position == {"files": [1, 2]}
    assert StateStore(store.storage).last == store.last


def test_new_blocks_must_be_of_this_epoch_and_present() -> None:
    store = StateStore(filled())
    old = add_block(store, 1, epoch=1)
    with pytest.raises(StateError, match="written for another epoch"):
        store.commit(store.draft(operators={"w": OperatorState(((old,),))}))
    store = StateStore(store.storage)
    gone = add_block(store, 1)
    store.storage.delete(gone.name)
    with pytest.raises(CorruptState, match="missing"):
        store.commit(store.draft(operators={"w": OperatorState(((gone,),))}))


# -- read-only


def test_readers_see_but_do_not_touch(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no state"):
        StateStore.open(tmp_path / "s", read_only=True)
    with StateStore.open(tmp_path / "s") as store:
        commit_values(store, 1)
        reader = StateStore.open(tmp_path / "s", read_only=True)
        assert values_of(reader) == [1]
        for action in (reader.clean, lambda: reader.commit(reader.draft())):
            with pytest.raises(StateError, match="read-only"):
                action()
        reader.close()


def test_a_reader_survives_a_clean_up_under_way() -> None:
    storage = filled(5)

    class Racing(FaultyStorage):
        def list(self, folder: str) -> list[str]:
            names = super().list(folder)
            if folder == "manifests" and manifest_name(0) in names:
                self.inner.delete(manifest_name(0))
            return names

    assert StateStore(Racing(storage.inner), read_only=True).last.number == 4


def test_a_reader_does_not_hide_damage() -> None:
    storage = filled()
    storage.files[manifest_name(2)] = b"?"
    with pytest.raises(CorruptState):
        StateStore(storage, read_only=True)


def test_unreadable_disk_is_a_named_error() -> None:
    storage = filled()
    storage.inject("read", "before", skip=1)
    with pytest.raises(StateError, match="Repair the disk") as caught:
        StateStore(storage)
    assert not isinstance(caught.value, CorruptState)


# -- faults


@pytest.mark.parametrize("kind", ["short", "flip"])
def test_torn_manifest_is_seen_at_commit(kind: str) -> None:
    storage = filled()
    store = StateStore(storage)
    storage.inject("publish", kind)
    with pytest.raises(CorruptState, match=manifest_name(3)):
        commit_values(store, 3)
    with pytest.raises(CorruptState, match=manifest_name(3)):
        StateStore(storage)


def test_short_block_is_seen_at_commit() -> None:
    storage = filled()
    store = StateStore(storage)
    storage.inject("write", "short")
    with pytest.raises(CorruptState, match="bytes"):
        commit_values(store, 3)
    assert values_of(StateStore(storage)) == [0, 1, 2]


def test_flipped_block_stops_the_reader() -> None:
    storage = filled()
    store = StateStore(storage)
    block = store.last.operators["w"].inputs[0][1]
    storage.files[block.name] = flip(storage.files[block.name], 999)
    with pytest.raises(CorruptState, match=block.name):
        values_of(StateStore(storage))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_flipped_manifest_is_no_reason_to_fall_back(number: int) -> None:
    storage = filled()
    name = manifest_name(number)
    storage.files[name] = flip(storage.files[name], 1000)
    before = dict(storage.files)
    with pytest.raises(CorruptState, match=name):
        StateStore(storage)
    assert storage.files == before


def test_missing_and_shortened_blocks_are_seen_at_start() -> None:
    storage = filled()
    name = StateStore(storage).last.live_blocks()[0].name
    whole = storage.files.pop(name)
    with pytest.raises(CorruptState, match=name):
        StateStore(storage)
    storage.files[name] = whole[:-1]
    with pytest.raises(CorruptState, match=name):
        StateStore(storage)


def test_manifest_of_another_state() -> None:
    ours, theirs = filled(), filled()
    ours.files[manifest_name(2)] = theirs.files[manifest_name(2)]
    with pytest.raises(StateMismatch, match=manifest_name(2)):
        StateStore(ours)


def test_gap() -> None:
    storage = filled()
    del storage.files[manifest_name(1)]
    with pytest.raises(CorruptState, match=manifest_name(1)):
        StateStore(storage)


def test_duplicate_under_another_name() -> None:
    storage = filled()
    storage.files[manifest_name(3)] = storage.files[manifest_name(2)]
    with pytest.raises(CorruptState, match="holds manifest 2"):
        StateStore(storage)
    del storage.files[manifest_name(3)]
    storage.files["manifests/0000000003.json"] = storage.files[manifest_name(2)]
    with pytest.raises(StateError, match="not a manifest"):
        StateStore(storage)


def test_broken_chain() -> None:
    storage = filled()
    name = manifest_name(1)
    other = replace(Manifest.from_bytes(storage.files[name], name), run="someone else")
    storage.files[name] = other.to_bytes()
    with pytest.raises(CorruptState, match="does not follow"):
        StateStore(storage)


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("read_only", [False, True])
def test_every_manifest_lost(epochs: int, read_only: bool) -> None:
    storage = filled(epochs)
    for number in range(epochs):
        del storage.files[manifest_name(number)]
    before = dict(storage.files)
    with pytest.raises(CorruptState, match="every manifest is gone"):
        StateStore(storage, read_only=read_only)
    assert storage.files == before


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("clean", [False, True])
def test_the_newest_manifests_lost(lost: int, read_only: bool, clean: bool) -> None:
    """What is left is a whole log, of an earlier state."""
    storage = filled(4)
    if clean:
        StateStore(storage).clean()
        assert [name for name in storage.list("blocks") if "head" in name] == [head_name(3)]
    for number in range(4 - lost, 4):
        del storage.files[manifest_name(number)]
    before = dict(storage.files)
    with pytest.raises(
        CorruptState, match=f"epoch 3 was committed.*{head_name(3)}.*{manifest_name(3 - lost)}"
    ) as caught:
        StateStore(storage, read_only=read_only)
    assert "Restore the state folder from a backup" in str(caught.value)
    assert storage.files == before


def test_a_copy_without_the_newest_manifest_continues_once_its_head_is_deleted() -> None:
    """As the message says."""
    storage = filled(4)
    StateStore(storage).clean()
    del storage.files[manifest_name(3)], storage.files[head_name(3)]
    store = StateStore(storage)
    assert values_of(store) == [0, 1, 2]
    commit_values(store, 9)
    assert values_of(StateStore(storage)) == [0, 1, 2, 9]


def test_a_reader_beside_a_writer_never_takes_the_log_for_damaged() -> None:
    """The writer commits between any two looks of the reader at the folder."""
    storage = filled(2)
    writer = StateStore(storage)

    class Racing(FaultyStorage):
        def list(self, folder: str) -> list[str]:
            names = super().list(folder)
            commit_values(writer, len(storage.files))
            return names

    for _ in range(5):
        assert StateStore(Racing(storage.inner)).last is not None  # a writer's one attempt, where a reader has five


def test_the_whole_folder_of_manifests_lost(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        commit_values(store, 1)
    shutil.rmtree(tmp_path / "s" / "manifests")
    for _ in range(2):
        with pytest.raises(CorruptState, match="every manifest is gone"):
            StateStore.open(tmp_path / "s")


def test_blocks_without_any_commit_are_no_lost_log() -> None:
    storage = FaultyStorage()
    store = StateStore(storage)
    for epoch in (0, 1):
        add_block(store, 1, epoch=epoch)
    storage.inject("publish", "before")
    with pytest.raises(StateError, match="was not published"):
        commit_values(store, 1)
    assert StateStore(storage).last is None


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("fault", [("write", "before"), ("write", "after"), ("sync", "before")])
def test_a_commit_has_a_head_before_anything_is_delivered(fault: tuple[str, str], epochs: int) -> None:
    """The commit happened, but its head could not be written: the run stops, the next one writes the head."""
    storage = filled(epochs)
    store = StateStore(storage)
    storage.inject(*fault, skip=1)
    with pytest.raises(StateError, match=f"{head_name(epochs)} could not be written"):
        commit_values(store, epochs)
    with pytest.raises(WriterConflict):
        store.commit(store.draft())
    again = StateStore(storage)
    assert values_of(again) == list(range(epochs + 1))
    again.complete()  # as a run does before it delivers
    del storage.files[manifest_name(epochs)]
    with pytest.raises(CorruptState, match=f"epoch {epochs} was committed"):
        StateStore(storage)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_head_survives_a_power_cut(epochs: int) -> None:
    storage = filled(epochs)
    storage.power_cut_at_worst()
    assert head_name(epochs - 1) in storage.files


def test_a_head_that_a_kill_prevented_is_written_by_a_writer_alone() -> None:
    storage = filled(2)
    del storage.files[head_name(1)]
    reader = StateStore(storage, read_only=True)
    assert reader.last.number == 1
    with pytest.raises(StateError, match="read-only"):
        reader.complete()
    assert head_name(1) not in storage.files
    StateStore(storage).complete()
    assert head_name(1) in storage.files
    StateStore(MemoryStorage()).complete()  # nothing was committed


def test_commit_that_happened_but_reported_failure() -> None:
    storage = filled()
    store = StateStore(storage)
    storage.inject("publish", "after")
    commit_values(store, 3)
    commit_values(store, 4)
    assert values_of(StateStore(storage)) == [0, 1, 2, 3, 4]


def test_commit_that_did_not_happen() -> None:
    storage = filled()
    store = StateStore(storage)
    storage.inject("publish", "before")
    with pytest.raises(StateError, match="was not published"):
        commit_values(store, 3)
    with pytest.raises(WriterConflict):
        commit_values(store, 3)
    again = StateStore(storage)
    commit_values(again, 3)
    assert values_of(again) == [0, 1, 2, 3]


def test_unreadable_outcome_stops_and_the_next_start_knows() -> None:
    storage = filled()
    store = StateStore(storage)
    storage.inject("publish", "after")
    storage.inject("read", "before")
    with pytest.raises(StateError, match="was not published"):
        commit_values(store, 3)
    assert values_of(StateStore(storage)) == [0, 1, 2, 3]


def test_ghost_writer_takes_the_number_first() -> None:
    storage = filled()
    store, ghost = StateStore(storage), StateStore(storage)
    storage.inject("publish", "ghost", data=ghost.draft().to_bytes())
    with pytest.raises(WriterConflict, match=ghost.run_id):
        commit_values(store, 3)
    assert StateStore(storage).last.run == ghost.run_id


@pytest.mark.parametrize("kind", ["before", "after"])
def test_failed_sync_stops_and_is_never_repeated(kind: str) -> None:
    storage = filled()
    store = StateStore(storage)
    storage.inject("sync", kind)
    with pytest.raises(StateError, match="not safe"):
        commit_values(store, 3)
    with pytest.raises(WriterConflict):
        store.commit(store.draft())
    assert StateStore(storage).last.number == 2


def test_power_cut() -> None:
    check_power_cut(FaultyStorage)


def test_unsynced_blocks_of_the_next_epoch_may_vanish() -> None:
    storage = filled()
    store = StateStore(storage)
    add_block(store, 99)
    storage.power_cut_at_worst()
    assert values_of(StateStore(storage)) == [0, 1, 2]


# -- clean-up


def test_clean_up() -> None:
    check_clean_up(StateStore)


def test_clean_up_is_idempotent_and_bounded() -> None:
    storage = MemoryStorage()
    store = StateStore(storage)
    for value in range(20):
        commit_values(store, value, keep=2)
        store.clean(keep=2)
        assert store.clean(keep=2) == 0
        assert len(storage.files) <= 2 + 3 + 1
    assert values_of(StateStore(storage)) == [18, 19]


def test_clean_up_before_the_first_commit() -> None:
    store = StateStore(MemoryStorage())
    block = add_block(store, 1)
    assert store.clean() == 0 and block.name in store.storage.files
    with pytest.raises(ValueError, match="at least 1"):
        store.clean(keep=0)


def test_stale_temporary_files_go(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        commit_values(store, 1)
    (tmp_path / "s" / "manifests" / "_000000001.json.ab12").write_bytes(b"torn")
    with StateStore.open(tmp_path / "s") as again:
        assert values_of(again) == [1]
        assert again.clean() == 1
    assert os.listdir(tmp_path / "s" / "manifests") == ["000000000.json"]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_clean_up_killed_at_any_point(kind: str) -> None:
    skip = 0
    while True:
        storage = MemoryStorage()
        faulty = FaultyStorage(storage)
        store = StateStore(faulty)
        for value in range(6):
            commit_values(store, value, keep=2, out=True)
        faulty.inject("delete", kind, skip=skip)
        try:
            store.clean(keep=2)
            break
        except StateError:
            again = StateStore(storage)
            again.clean(keep=2)
            assert values_of(again) == [4, 5]
            assert len(storage.list("manifests")) == 2 and len(storage.list("blocks")) == 5 + 1
        skip += 1
    assert skip > 6


def test_a_reader_keeps_what_it_mapped_while_it_is_cleaned(tmp_path: Path) -> None:
    with StateStore.open(tmp_path / "s") as store:
        first = commit_values(store, 7, keep=1)
        opened = BlockReader(store.storage).open(first)
        commit_values(store, 8, keep=1)
        store.clean(keep=1)
        assert store.storage.size(first.name) is None
        assert opened.table["v"].to_pylist() == [7]
