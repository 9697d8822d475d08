"""Which files of a folder have been taken: the position of a source that headrace drives itself.

Invariant: a file is taken in exactly one epoch, and which one is part of that epoch's manifest, so position and state
can never disagree. The names are kept in blocks, one small run per epoch, merged like any other state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path

import pyarrow as pa

from headrace.errors import CorruptState
from headrace.sources.files import FilesOrigin
from headrace.state.blocks import REPAIR, Block, BlockReader, block_name, write_block
from headrace.state.runs import mergeable_runs
from headrace.state.storage import Storage

SCHEMA = pa.schema([("name", pa.string()), ("bytes", pa.int64()), ("modified", pa.int64())])
MOST_BYTES = 256 << 20  # taken in one epoch when the user sets no number of files


@dataclass(frozen=True)
class File:
    name: str
    bytes: int
    modified: int  # nanoseconds


class Ledger:
    """The taken files of one source."""

    def __init__(self, origin: FilesOrigin, blocks: Sequence[Block], reader: BlockReader) -> None:
        self.origin, self.blocks = origin, list(blocks)
        self._reader = reader
        self._taken = {name for block in blocks for name in self._names(block)}

    def _names(self, block: Block) -> list[str]:
        table = self._reader.open(block).table
        if not table.schema.equals(SCHEMA):
            raise CorruptState(f"block {block.name} is no list of taken files: it has {table.column_names}. {REPAIR}")
        found: list[str] = table.column("name").to_pylist()
        return found

    def waiting(self) -> list[File]:
        """Files not taken yet, in order of (modification time, name)."""
        return [File(name, s.st_size, s.st_mtime_ns) for name, s in self.origin.names(besides=self._taken)]

    def choose(self, waiting: Sequence[File]) -> list[File]:
        """What one epoch takes: the user's number of files, or as many as fit, at least one."""
        if self.origin.files_per_epoch:
            return list(waiting[: self.origin.files_per_epoch])
        ends = accumulate(file.bytes for file in waiting)
        return list(waiting[: max(1, sum(1 for _ in takewhile(lambda end: end <= MOST_BYTES, ends)))])

    def path(self, file: File) -> Path:
        return self.origin.folder / file.name

    def record(self, storage: Storage, epoch: int, files: Iterable[File]) -> list[Block]:
        """Blocks that name all taken files, these included."""
        rows = [{"name": f.name, "bytes": f.bytes, "modified": f.modified} for f in files]
        if not rows:
            return self.blocks
        kept, tables = self.blocks, [[pa.Table.from_pylist(rows, SCHEMA)]]
        for run in mergeable_runs(self.blocks):
            kept = [block for block in kept if block not in run]
            tables.append([self._reader.open(block).table for block in run])
        return kept + [
            write_block(storage, block_name(epoch, 0, 0, 0), pa.concat_tables(parts), None, None, None)
            for parts in tables
        ]

    def accept(self, blocks: Sequence[Block], files: Iterable[File]) -> None:
        """The epoch is committed."""
        self.blocks = list(blocks)
        self._taken |= {f.name for f in files}
