"""Blocks: immutable Arrow files, each described by the manifest that names it.

    no row of a block is used unless  size(file) = block.bytes,  xxh3(file) = block.checksum,
                                      rows(file) = block.rows

Size and checksum are verified before Arrow reads a byte. The rows of group g are offsets[g] .. offsets[g + 1] - 1. The
file stores the number of rows of each group, in the smallest integer type that fits the largest number.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from dataclasses import field as attribute
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from headrace.columnar.arrow import SAFE
from headrace.errors import CorruptState, StateError
from headrace.state.storage import Data, Storage

RowOffsets = npt.NDArray[np.int64]  # by group: the number of its first row; at the end, the number of rows

GROUPS = b"headrace.groups"  # one byte with the width of a number, then the number of rows of each group
LARGE = 64 << 10  # bytes from which on a buffer gets a separate write
REPAIR = "Restore the state folder from a backup, or start over in a new, empty folder"

_FOLDER, _ENDING = "blocks/", ".arrow"
_BLOCK_NAME = re.compile(r"blocks/e([0-9]{9,12})-s[0-9]{1,9}-p[0-9]{1,9}-a[0-9]{1,18}-[0-9a-f]{8,32}\.arrow")
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_LIMIT = 1 << 63


@dataclass(frozen=True)
class Block:
    """The description of one block in a manifest. `low` and `high` are the smallest and largest position of its rows."""

    name: str
    bytes: int
    checksum: str
    rows: int
    low: int | None
    high: int | None

    def to_json(self) -> list[Any]:
        """Return the block as manifests store it, without the parts of its name that all blocks share."""
        name = self.name.removeprefix(_FOLDER).removesuffix(_ENDING)
        return [name, self.bytes, self.checksum, self.rows, self.low, self.high]

    @staticmethod
    def from_json(data: object) -> Block:
        """Return the block that a manifest stores. Every value is checked, because anyone may have written the file."""
        if not isinstance(data, list) or len(data) != len(_VALID):
            raise CorruptState(f"not the description of a block: {data!r:.200}. {REPAIR}")
        name, *others = data
        found = Block(f"{_FOLDER}{name}{_ENDING}" if isinstance(name, str) else name, *others)
        for field, valid in _VALID.items():
            if not valid(value := getattr(found, field)):
                raise CorruptState(f"block {found.name!r:.200} has {field} {value!r:.200}. {REPAIR}")
        if not _is_range(found.low, found.high):
            raise CorruptState(f"block {found.name!r} has low {found.low}, high {found.high}. {REPAIR}")
        return found


def _is_name(value: object) -> bool:
    return isinstance(value, str) and is_block(value)


def _is_checksum(value: object) -> bool:
    return isinstance(value, str) and _CHECKSUM.fullmatch(value) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LIMIT


def _is_bound(value: object) -> bool:
    return value is None or (type(value) is int and -_LIMIT <= value < _LIMIT)


def _is_range(low: int | None, high: int | None) -> bool:
    if low is None or high is None:
        return low is high
    return low <= high


_VALID = {
    "name": _is_name,
    "bytes": _is_count,
    "checksum": _is_checksum,
    "rows": _is_count,
    "low": _is_bound,
    "high": _is_bound,
}


def block_name(epoch: int, stage: int, partition: int, attempt: int) -> str:
    """Return a unique name with the number of the manifest that would publish the block."""
    return f"blocks/e{epoch:09d}-s{stage}-p{partition}-a{attempt}-{uuid.uuid4().hex[:16]}.arrow"


def is_block(name: str) -> bool:
    return _BLOCK_NAME.fullmatch(name) is not None


def epoch_of(name: str) -> int:
    match = _BLOCK_NAME.fullmatch(name)
    if match is None:
        raise StateError(f"{name!r} is not the name of a block")
    return int(match[1])


def data_checksum(*data: Data) -> str:
    """Return the checksum of these bytes, one after the other."""
    found = xxhash.xxh3_128()
    for part in data:
        found.update(memoryview(part))
    return found.hexdigest()


def write_block(
    storage: Storage,
    name: str,
    table: pa.Table,
    offsets: RowOffsets | None,
    low: int | None,
    high: int | None,
) -> Block:
    """Write a table as a block (not synced yet). Its description is computed from memory, not read from the disk."""
    epoch_of(name)
    data = _serialise(table, offsets, name)
    size = sum(memoryview(part).nbytes for part in data)
    block = Block(name, size, data_checksum(*data), table.num_rows, low, high)
    Block.from_json(block.to_json())
    try:
        storage.write(name, *data)
    except OSError as error:
        raise StateError(
            f"cannot write block {name}: {error}. Nothing was committed: free disk space, then start again"
        ) from error
    return block


def content_checksum(table: pa.Table) -> str:
    """Return the checksum that a block of this table would have without groups."""
    return data_checksum(*_serialise(table, None, "of a table"))


class _Parts(list[Data]):
    """The output of an Arrow writer: large buffers of the table without a copy, small writes collected."""

    closed = False  # Arrow expects this attribute of a file

    def write(self, data: Data) -> int:
        size = memoryview(data).nbytes
        if size >= LARGE:
            self.append(data)
        elif self and isinstance(self[-1], bytearray):
            self[-1] += data
        else:
            self.append(bytearray(data))
        return size

    def flush(self) -> None:
        pass


def _serialise(table: pa.Table, offsets: RowOffsets | None, name: str) -> Sequence[Data]:
    _refuse_extensions(table.schema, name)
    schema = _with_offsets(table.schema, _checked(offsets, table.num_rows, name))
    parts = _Parts()
    with pa.ipc.new_file(parts, schema) as writer:
        for batch in _batches(table):
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
    return parts


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the record batches of a table: one, or several if it has more than 2 GiB of text."""
    batches = (table if table.nbytes > SAFE else table.combine_chunks()).to_batches()
    return batches or [pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)]


def _with_offsets(schema: pa.Schema, offsets: RowOffsets | None) -> pa.Schema:
    metadata = dict(schema.metadata or {})
    if GROUPS in metadata:
        raise StateError(f"the schema already has metadata {GROUPS!r}; that key belongs to headrace")
    if offsets is not None:
        metadata[GROUPS] = _rows_of_groups(offsets)
    return schema.with_metadata(metadata or None)


def _rows_of_groups(offsets: RowOffsets) -> bytes:
    rows = np.diff(offsets)
    width = np.min_scalar_type(int(rows.max(initial=0))).itemsize
    return bytes([width]) + rows.astype(f"<u{width}").tobytes()


def _checked(offsets: RowOffsets | None, rows: int, name: str) -> RowOffsets | None:
    """Raise unless the offsets rise from 0 to the number of rows; return them."""
    if offsets is None:
        return None
    rising = offsets.ndim == 1 and offsets.size > 0 and not np.any(offsets[1:] < offsets[:-1])
    if offsets.dtype != np.int64 or not rising or offsets[0] != 0 or offsets[-1] != rows:
        raise StateError(f"block {name}: offsets must be int64, rising from 0 to {rows}, not {offsets!r:.200}")
    return offsets


def _refuse_extensions(schema: pa.Schema, name: str) -> None:
    for field in schema:
        if _has_extension(field.type):
            raise StateError(f"block {name}: column {field.name!r} has extension type {field.type}; cast it")


def _has_extension(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if isinstance(kind, pa.DictionaryType):
        return _has_extension(kind.value_type)
    return any(_has_extension(kind.field(i).type) for i in range(kind.num_fields))


@dataclass(frozen=True)
class OpenBlock:
    """A verified block. Its table is a view of the mapped file."""

    table: pa.Table
    offsets: RowOffsets | None
    known: set[Any] = attribute(default_factory=set, compare=False)  # further checks that this block has passed

    def slice(self, groups: Sequence[int] | npt.NDArray[Any] | None) -> pa.Table:
        """Return the rows of some groups (ascending ids), or the whole block for None, without a copy."""
        if groups is None:
            return self.table
        if self.offsets is None:
            raise StateError("this block has no group offsets: only slice(None) is possible")
        slices = [self.table.slice(start, stop - start) for start, stop in self.pieces(groups)]
        return pa.concat_tables(slices) if slices else self.table.slice(0, 0)

    def pieces(self, groups: Sequence[int] | npt.NDArray[Any]) -> list[tuple[int, int]]:
        """Return the intervals of the rows of some groups (ascending ids), ascending; none is empty."""
        assert self.offsets is not None
        return _runs(self.offsets, _ascending(groups, len(self.offsets) - 1))


def _ascending(groups: Sequence[int] | npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    ids = np.asarray(groups, dtype=np.int64)
    if ids.size and (ids[0] < 0 or ids[-1] >= count or np.any(ids[1:] <= ids[:-1])):
        raise StateError(f"group ids must ascend within 0 to {count - 1}, not {groups!r:.200}")
    return ids


def _runs(offsets: RowOffsets, ids: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the row intervals of the groups; adjacent intervals are joined."""
    return join_runs(np.column_stack([offsets[ids], offsets[ids + 1]]))


def join_runs(runs: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return ascending row intervals without empty ones, and with adjacent ones joined."""
    starts, stops = np.asarray(runs, np.int64).reshape(-1, 2).T
    filled = starts < stops
    starts, stops = starts[filled], stops[filled]
    if not starts.size:
        return []
    cuts = np.flatnonzero(starts[1:] != stops[:-1]) + 1
    edges = [0, *cuts.tolist(), len(starts)]
    return [(int(starts[first]), int(stops[last - 1])) for first, last in pairwise(edges)]


class BlockReader:
    """A reader that keeps the latest blocks mapped and verifies every mapping before use."""

    def __init__(self, storage: Storage, capacity: int = 1024) -> None:
        self.storage = storage
        self.capacity = capacity
        self._open: OrderedDict[tuple[str, str], OpenBlock] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, block: Block) -> OpenBlock:
        key = (block.name, block.checksum)
        with self._lock:
            if key in self._open:
                self._open.move_to_end(key)
                return _same_rows(self._open[key], block)
        opened = self._load(block)
        with self._lock:
            self._open[key] = opened
            while len(self._open) > self.capacity:
                self._open.popitem(last=False)
        return opened

    def keep_only(self, names: Set[str]) -> None:
        """Close blocks that are no longer live, because a mapping keeps a deleted file on the disk."""
        with self._lock:
            for key in [key for key in self._open if key[0] not in names]:
                del self._open[key]

    def _load(self, block: Block) -> OpenBlock:
        epoch_of(block.name)
        data = self._map(block)
        self._verify(block, data)
        try:
            return _same_rows(_parse(data, block.name), block)
        except (pa.ArrowException, OSError, StateError) as error:
            raise CorruptState(f"block {block.name} cannot be used: {error}. {REPAIR}") from error

    def _map(self, block: Block) -> pa.Buffer:
        try:
            return self.storage.map(block.name)
        except FileNotFoundError:
            raise CorruptState(f"block {block.name} is missing. {REPAIR}") from None
        except OSError as error:
            raise StateError(f"cannot read block {block.name}: {error}. Repair the disk, retry") from error

    def _verify(self, block: Block, data: pa.Buffer) -> None:
        if data.size != block.bytes:
            _mismatch(block, "size", block.bytes, data.size)
        found = data_checksum(data)
        if found != block.checksum:
            _mismatch(block, "checksum", block.checksum, found)


def _mismatch(block: Block, what: str, expected: object, found: object) -> None:
    raise CorruptState(
        f"block {block.name} is damaged: {what} should be {expected}, found {found}. "
        f"Nothing was computed from it. {REPAIR}"
    )


def _same_rows(opened: OpenBlock, block: Block) -> OpenBlock:
    if opened.table.num_rows != block.rows:
        _mismatch(block, "number of rows", block.rows, opened.table.num_rows)
    return opened


def _parse(data: pa.Buffer, name: str) -> OpenBlock:
    reader = pa.ipc.open_file(pa.BufferReader(data))
    if not reader.num_record_batches:
        raise CorruptState("no batch where at least one is expected")
    _refuse_extensions(reader.schema, name)
    table = pa.Table.from_batches([reader.get_batch(i) for i in range(reader.num_record_batches)])
    metadata = dict(reader.schema.metadata or {})
    offsets = _checked(_stored_offsets(metadata), table.num_rows, name)
    return OpenBlock(table.replace_schema_metadata(metadata or None), offsets)


def _stored_offsets(metadata: dict[bytes, bytes]) -> RowOffsets | None:
    """Take headrace's entry out of the metadata, which leaves the user's metadata."""
    rows = metadata.pop(GROUPS, None)
    if rows is None:
        return None
    width = rows[0] if rows else 0
    if width not in (1, 2, 4, 8) or (len(rows) - 1) % width:
        raise CorruptState(f"rows of groups in {len(rows)} bytes, as numbers of {width}")
    found = np.frombuffer(rows, f"<u{width}", offset=1).astype(np.int64)
    return np.append(0, np.cumsum(found))


def blocks_by_name(blocks: Sequence[Block]) -> Mapping[str, Block]:
    """Return the blocks by name; raise if two descriptions of a block differ."""
    found: dict[str, Block] = {}
    for block in blocks:
        if found.setdefault(block.name, block) != block:
            raise CorruptState(f"block {block.name} is described in two ways. {REPAIR}")
    return found
