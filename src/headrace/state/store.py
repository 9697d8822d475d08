"""The owner of a state folder: one writer, one log of manifests.

commit(n) succeeds  =>  manifests/n is ours and whole, and every block that it names exists and is synced
commit(n) fails     =>  this store never commits again; the next open finds out what happened
commit(n) returns   =>  the head of n exists and is synced: from then on, a log without manifest n is damaged
clean() deletes     =>  only what no retained manifest names and whose epoch is past
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self

from headrace.errors import CorruptState, StateError, StateMismatch, WriterConflict
from headrace.state.blocks import REPAIR, Block, epoch_of, is_block
from headrace.state.checkpoint_folder import ENDED, FOLDERS
from headrace.state.fsync import SyncFailed
from headrace.state.head import head_name, head_number, newest_head
from headrace.state.manifest import Manifest, manifest_digest, manifest_name, number_of
from headrace.state.storage import Lease, Storage, is_temporary, open_storage

_READ_ATTEMPTS = 5
_NAMED = re.compile(r"blocks/_state-([0-9a-f]{32})")


class StateStore:
    """The state of a checkpoint: it loads the newest manifest, and publishes the next one.

    Use `StateStore.open` for a folder. The constructor takes any storage, without a lock.
    """

    def __init__(self, storage: Storage, *, read_only: bool = False, lease: Lease | None = None) -> None:
        self.storage = storage
        self.read_only = read_only
        self.run_id = uuid.uuid4().hex
        self._lease = lease
        self._mutex = threading.Lock()
        self._stopped: str | None = None
        self._named: dict[int, frozenset[str]] = {}
        self.last: Manifest | None = None
        self.previous: Manifest | None = None  # the manifest before `last`, if it still exists
        self.delivered: int | None = None  # the epoch whose results this run delivered to all sinks
        self._digest: str | None = None
        self._head = -1  # the newest epoch that has a head
        self._load_patiently(_READ_ATTEMPTS if read_only else 1)
        self.state_id = self.last.state_id if self.last else uuid.uuid4().hex

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, fsync: bool = True) -> Self:
        """Check and lock a folder, and load its newest manifest. Any doubt about the state is an error."""
        storage = open_storage(folder, fsync=fsync)
        if read_only:
            storage.require()
            return cls(storage, read_only=True)
        lease = storage.lease()
        try:
            return cls(storage, lease=lease)
        except BaseException:
            lease.release()
            raise

    def keep_name(self) -> None:
        """Before the first commit, make the name of this state durable, because sinks may store the name before a kill.

        The first clean-up deletes the note, since manifests have the name.
        """
        if self.last is not None:
            return
        noted = [match[1] for name in self.storage.list("blocks") if (match := _NAMED.fullmatch(name))]
        if noted:
            self.state_id = min(noted)
            return
        try:
            self.storage.write(f"blocks/_state-{self.state_id}", b"")
        except OSError as error:
            raise StateError(
                f"cannot store the name of this state: {error}. Free disk space, then start again"
            ) from error

    def draft(self, **changes: Any) -> Manifest:
        """Return the next manifest: the last one with `changes`. Outbox and decisions of an epoch start empty."""
        fresh: dict[str, Any] = {"outbox": (), "decisions": [], **changes}
        identity: dict[str, Any] = {
            "state_id": self.state_id,
            "number": self._next_number(),
            "previous": self._digest,
            "run": self.run_id,
        }
        if self.last is None:
            return Manifest(**{**fresh, **identity})
        return replace(self.last, **{**fresh, **identity})

    def commit(self, manifest: Manifest) -> None:
        """Publish the next manifest. After any failure this store is stopped: open the folder again."""
        with self._mutex:
            self._require_writer()
            data = manifest.to_bytes()
            stored = self._readable(manifest, data)
            self._check_successor(manifest)
            try:
                self._secure_blocks(manifest)
                self._publish(manifest.number, data)
                self._note_head(manifest.number)
                self._remember(stored, data)
            except BaseException as error:
                self._stopped = self._stopped or f"commit {manifest.number} failed: {error}"
                raise

    def complete(self) -> None:
        """Create the head of the newest manifest if the run before was killed between the commit and its head."""
        with self._mutex:
            if self._head < self._newest():
                self._require_writer()
                self._note_head(self._newest())

    def revoke(self) -> None:
        """Prevent further commits, after a commit in progress has finished."""
        with self._mutex:
            self._stopped = self._stopped or "this run was stopped"

    def clean(self, keep: int = 3) -> int:
        """Delete what only manifests before the newest `keep` need, and return the number of deleted files."""
        if keep < 1:
            raise ValueError(f"keep={keep}: the newest manifest is always kept, so keep is at least 1")
        with self._mutex:
            self._require_writer()
            try:
                return self._clean(keep)
            except OSError as error:
                raise StateError(f"clean-up failed: {error}. No live file was touched; repeat it") from error

    def adopt(self, last: Manifest) -> None:
        """Replace the newest manifest by one with the names that the query uses. The stored manifest does not change."""
        assert self.last is not None and (last.number, last.state_id) == (self.last.number, self.last.state_id)
        self.last = last

    @property
    def all_delivered(self) -> bool:
        """Return whether all sinks certainly have the results of the newest epoch."""
        if self.last is None or self.delivered == self.last.number:
            return True
        left = self._lease.left if self._lease else ""
        return left in (_told_mark(self.last.number), _delivered_mark(self.last.number))

    @property
    def all_listeners_told(self) -> bool:
        """Return whether the previous run ended normally and its listeners received the record of its newest epoch."""
        return self.last is not None and self._lease is not None and self._lease.left == _told_mark(self.last.number)

    def close(self, *, all_listeners_told: bool = False) -> None:
        self.revoke()
        if self._lease is not None:
            told = all_listeners_told or self.all_listeners_told  # a run without commits keeps the former mark
            left = _told_mark if told else _delivered_mark if self.all_delivered else None
            self._lease.release(left(self.last.number) if left and self.last else "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- load --------------------------------------------------------------------------------------------------------

    def _load_patiently(self, attempts: int) -> None:
        """Load the state, and repeat if a writer deletes files meanwhile."""
        try:
            self._load()
        except (OSError, CorruptState) as error:
            if attempts > 1:
                return self._load_patiently(attempts - 1)
            if isinstance(error, StateError):
                raise
            raise StateError(f"cannot read the state: {error}. Repair the disk, then start again") from error

    def _load(self) -> None:
        self._head = newest_head(self.storage.list("blocks"))  # first: a writer creates the head after the manifest
        numbers = self._manifest_numbers()
        self._refuse_gap(numbers)
        self._named, self.previous, self.last, self._digest = {}, None, None, None
        for number in numbers:
            self._accept_stored(number)
        self._refuse_lost_manifests()
        if self.last is not None:
            self._require_blocks(self.last.live_blocks())

    def _manifest_numbers(self) -> list[int]:
        names = [name for name in self.storage.list("manifests") if not is_temporary(name)]
        numbers = [number_of(name) for name in names]
        if None in numbers:
            raise StateError(f"{names[numbers.index(None)]} is not a manifest. Move it out of the folder")
        return sorted(number for number in numbers if number is not None)

    def _refuse_gap(self, numbers: list[int]) -> None:
        for expected, found in enumerate(numbers, start=numbers[0] if numbers else 0):
            if found != expected:
                raise CorruptState(f"{manifest_name(expected)} is missing before number {found}. {REPAIR}")

    def _accept_stored(self, number: int) -> None:
        name = manifest_name(number)
        data = self.storage.read(name)
        manifest = Manifest.from_bytes(data, name)
        if manifest.number != number:
            raise CorruptState(f"{name} holds manifest {manifest.number}. {REPAIR}")
        self._check_chain(manifest, name)
        self._remember(manifest, data)

    def _check_chain(self, manifest: Manifest, name: str) -> None:
        if self.last is None:
            return
        if manifest.state_id != self.last.state_id:
            raise StateMismatch(
                f"{name} belongs to state {manifest.state_id}, its predecessor to {self.last.state_id}: "
                f"two folders were mixed. {REPAIR}"
            )
        if manifest.previous != self._digest:
            raise CorruptState(f"{name} does not follow number {self.last.number} as stored here. {REPAIR}")

    def _remember(self, manifest: Manifest, data: bytes) -> None:
        self._named[manifest.number] = frozenset(block.name for block in manifest.live_blocks())
        self.previous, self.last, self._digest = self.last, manifest, manifest_digest(data)

    def _refuse_lost_manifests(self) -> None:
        """Raise if a head shows an epoch without its manifest. Blocks alone are normal: a kill before the first commit
        leaves them."""
        newest = self._newest()
        if self._head > newest >= 0:
            raise CorruptState(
                f"epoch {self._head} was committed here ({head_name(self._head)} shows it), but the newest manifest is "
                f"{manifest_name(newest)}: later manifests are gone. {REPAIR}. If this folder is a copy that was made "
                f"during a run, delete {head_name(self._head)} from the copy; it then continues after epoch {newest}"
            )
        if self._head > newest:
            raise CorruptState(f"epoch {self._head} was committed here, but every manifest is gone. {REPAIR}")

    def _require_blocks(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            found = self.storage.size(block.name)
            if found is None:
                raise CorruptState(f"block {block.name} is missing. {REPAIR}")
            if found != block.bytes:
                raise CorruptState(f"block {block.name} has {found} bytes, not {block.bytes}. {REPAIR}")

    # --- commit ------------------------------------------------------------------------------------------------------

    def _newest(self) -> int:
        return self.last.number if self.last else -1

    def _next_number(self) -> int:
        return self._newest() + 1

    def _require_writer(self) -> None:
        if self.read_only:
            raise StateError("this store was opened read-only. Open it without read_only to change it")
        if self._stopped is not None:
            raise WriterConflict(f"this store lost its folder: {self._stopped}. Open the folder again")

    def _check_successor(self, manifest: Manifest) -> None:
        expected = (self.state_id, self._next_number(), self._digest, self.run_id)
        found = (manifest.state_id, manifest.number, manifest.previous, manifest.run)
        if found != expected:
            raise WriterConflict(
                f"manifest {manifest.number} does not follow: (state, number, previous, run) should be "
                f"{expected}, found {found}. Make it with draft() of the store that commits it"
            )

    def _secure_blocks(self, manifest: Manifest) -> None:
        known = self._named.get(manifest.number - 1, frozenset())
        new = [block for block in manifest.live_blocks() if block.name not in known]
        for block in new:
            if epoch_of(block.name) != manifest.number:
                raise StateError(
                    f"block {block.name} is new in manifest {manifest.number} but was written for another epoch"
                )
        try:
            self._require_blocks(new)
            self.storage.sync(block.name for block in new)
        except OSError as error:
            raise StateError(f"blocks of epoch {manifest.number} are not safe: {error}. {_INTACT}") from error

    def _publish(self, number: int, data: bytes) -> None:
        """Publish a manifest. The stored file decides whether that worked, because a call that reports an error may
        have succeeded."""
        name = manifest_name(number)
        failure: OSError | None = None
        try:
            self.storage.publish(name, data)
        except SyncFailed as error:
            raise StateError(f"{name} may not survive a power cut: {error}. {_INTACT}") from error
        except OSError as error:
            failure = error
        self._decide(name, data, failure)

    def _decide(self, name: str, data: bytes, failure: OSError | None) -> None:
        try:
            found = self.storage.read(name)
        except OSError as error:
            cause = failure or error
            raise StateError(f"{name} was not published: {cause}. {_INTACT}") from cause
        if found != data:
            self._refuse_other(name, found)

    def _refuse_other(self, name: str, found: bytes) -> NoReturn:
        """Raise: the manifest was committed by another run, or this run's is damaged."""
        other = Manifest.from_bytes(found, name)
        raise WriterConflict(
            f"{name} was committed by another run ({other.run}). This run stops; its own epoch was not kept"
        )

    def _note_head(self, number: int) -> None:
        """Record durably, apart from the log, that manifest `number` was published."""
        name = head_name(number)
        try:
            with contextlib.suppress(FileExistsError):  # another run was faster
                self.storage.write(name, b"")
            self.storage.sync([name])
        except OSError as error:
            raise StateError(f"{name} could not be written: {error}. {_INTACT}") from error
        self._head = number

    def _readable(self, manifest: Manifest, data: bytes) -> Manifest:
        """Return the manifest as a restart would read it. A manifest that cannot be read again must not be written."""
        try:
            return Manifest.from_bytes(data, manifest_name(manifest.number))
        except CorruptState as error:
            raise StateError(
                f"manifest {manifest.number} could not be read again, so it is not written: {error}"
            ) from None

    # --- clean -------------------------------------------------------------------------------------------------------

    def _clean(self, keep: int) -> int:
        newest = self._newest()
        numbers = self._manifest_numbers()
        if (numbers[-1] if numbers else -1) != newest:
            self._stopped = f"its newest manifest is {newest}, the folder's is {numbers[-1:]}"
            self._require_writer()
        old = [number for number in numbers if number <= newest - keep]
        self._delete_manifests(old)
        garbage = [*self._garbage(newest), *self._temporaries()]
        for name in garbage:
            self.storage.delete(name)
        return len(old) + len(garbage)

    def _delete_manifests(self, numbers: list[int]) -> None:
        """Delete the oldest first and one at a time, so that neither a crash nor a power cut leaves a gap."""
        for number in numbers:
            self.storage.delete(manifest_name(number))
            self.storage.sync([manifest_name(self._next_number() - 1)])
            self._named.pop(number, None)

    def _garbage(self, newest: int) -> list[str]:
        """Return older heads, and blocks of past epochs that no retained manifest names. The next manifest may name
        later blocks."""
        needed, names = frozenset[str]().union(*self._named.values()), self.storage.list("blocks")
        past = [name for name in names if is_block(name) and epoch_of(name) <= newest and name not in needed]
        heads = [name for name in names if (number := head_number(name)) is not None and number < self._head]
        return [*past, *heads]

    def _temporaries(self) -> list[str]:
        return [name for folder in FOLDERS for name in self.storage.list(folder) if is_temporary(name)]


_INTACT = "The previous epoch is intact: repair the disk or free space, then start again"


def _told_mark(number: int) -> str:
    return f"{ENDED}epoch {number} was told"


def _delivered_mark(number: int) -> str:
    return f"{ENDED}epoch {number} was delivered"
