"""The ledger of a folder: the files that were taken, and the choice of the files that an epoch takes.

Invariant: a file is taken in exactly one epoch, whose manifest records it, so position and state cannot disagree. The
names of taken files are stored in blocks, one small block per epoch, which are merged like blocks of state.

A run with `once=True` takes only the files that existed when it began. The first epoch writes the list of these files
as a block and every later manifest refers to it, so that a killed run continues with the same list.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, takewhile
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headrace.errors import CorruptState
from headrace.sources.file_pieces import FILES, FilesReader, FileToRead
from headrace.sources.files import FilesOrigin, Spent
from headrace.sources.protocol import NO_MESSAGES, MessageAmount
from headrace.state.blocks import REPAIR, Block, BlockReader, block_name, write_block
from headrace.state.manifest import FolderState
from headrace.state.merge_planning import mergeable_runs
from headrace.state.storage import Storage

FILES_SCHEMA = pa.schema([("name", pa.string()), ("bytes", pa.int64()), ("modified", pa.int64())])
MOST_EPOCH_BYTES = 256 << 20  # bytes taken in one epoch when the user sets no number of files


@dataclass(frozen=True)
class TakenFile:
    """A file of the folder, with the size and time that it had when it was listed."""

    name: str
    bytes: int
    modified: int  # nanoseconds


class FileLedger:
    """The ledger of one folder."""

    reader: ClassVar[FilesReader] = FILES
    unit: ClassVar[str] = "files"
    must_be_noted: ClassVar[bool] = False  # a folder has only one possible start
    partitions: ClassVar[tuple[str, ...]] = ()
    silent_since: ClassVar[float] = -math.inf

    def __init__(self, origin: FilesOrigin, state: FolderState, reader: BlockReader) -> None:
        self.origin, self.state = origin, state
        self._reader = reader
        self._spent: Spent = {}  # folders of parts whose files are all taken
        self._taken = {name for block in state.taken for name in self._names(block)}
        self._list: list[TakenFile] | None = None  # the only files to take, in order; None: all files

    def _names(self, block: Block) -> list[str]:
        found: list[str] = self._table(block).column("name").to_pylist()
        return found

    def _table(self, block: Block) -> pa.Table:
        table = self._reader.open(block).table
        if not table.schema.equals(FILES_SCHEMA):
            raise CorruptState(
                f"block {block.name} is not a list of files; its columns are {table.column_names}. {REPAIR}"
            )
        return table

    def keep_to_list(self) -> None:
        """Restrict this run to the files that exist now, or to those of the list in the state."""
        listed = self.state.listed
        self._list = self._there() if listed is None else [TakenFile(**row) for row in self._table(listed).to_pylist()]

    def waiting(self) -> list[TakenFile]:
        """Return the files not taken yet, in order of (modification time, name), or of the list.

        If a file of the list was replaced, its current version is taken. If a file of the list is missing, it remains
        in the result, and reading it raises an error that names it.
        """
        there = self._there()
        if self._list is None:
            return there
        known = {file.name: file for file in there}
        return [known.get(file.name, file) for file in self._list if file.name not in self._taken]

    def _there(self) -> list[TakenFile]:
        return [TakenFile(name, s.st_size, s.st_mtime_ns) for name, s in self.origin.names(self._taken, self._spent)]

    def choose(self, waiting: Sequence[TakenFile], ahead: Collection[str] = ()) -> list[TakenFile]:
        """Return the files of one epoch: at most `files_per_epoch`, or as many as fit the limit of bytes, but at least
        one.
        """
        if self.origin.files_per_epoch:
            return list(waiting[: self.origin.files_per_epoch])
        ends = accumulate(file.bytes for file in waiting)
        return list(waiting[: max(1, sum(1 for _ in takewhile(lambda end: end <= MOST_EPOCH_BYTES, ends)))])

    def remaining(self, waiting: Sequence[TakenFile], chosen: Sequence[TakenFile]) -> dict[str, int]:
        return {"": len(waiting) - len(chosen)}

    def inputs(self, source: str, chosen: Sequence[TakenFile]) -> list[FileToRead]:
        return [FileToRead(source, self.path(file), file.bytes, file.modified) for file in chosen]

    def path(self, file: TakenFile) -> Path:
        return self.origin.folder / file.name

    def state_after(self, storage: Storage, epoch: int, files: Sequence[TakenFile]) -> FolderState:
        """Return what a manifest stores: all taken files, including `files`, and the list if there is one."""
        return FolderState(self._record_taken(storage, epoch, files), self._record_list(storage, epoch))

    def _record_taken(self, storage: Storage, epoch: int, files: Sequence[TakenFile]) -> tuple[Block, ...]:
        if not files:
            return self.state.taken
        kept, tables = list(self.state.taken), [[_as_table(files)]]
        for run in mergeable_runs(self.state.taken):
            kept = [block for block in kept if block not in run]
            tables.append([self._reader.open(block).table for block in run])
        return (*kept, *(_write(storage, epoch, pa.concat_tables(parts)) for parts in tables))

    def _record_list(self, storage: Storage, epoch: int) -> Block | None:
        if self._list is None:
            return None
        return self.state.listed or _write(storage, epoch, _as_table(self._list))

    def note_commit(self, state: FolderState, files: Sequence[TakenFile], read: MessageAmount = NO_MESSAGES) -> None:
        """Note that the epoch is committed."""
        self.state = state
        self._taken |= {f.name for f in files}

    def hurry(self) -> None:
        """Do nothing: reading a folder never waits."""


def _as_table(files: Sequence[TakenFile]) -> pa.Table:
    return pa.Table.from_pylist([asdict(file) for file in files], FILES_SCHEMA)


def _write(storage: Storage, epoch: int, table: pa.Table) -> Block:
    return write_block(storage, block_name(epoch, 0, 0, 0), table, None, None, None)
