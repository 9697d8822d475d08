from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptState, StateError
from headrace.state import Block, BlockReader, LocalStorage, block_name, epoch_of, write_block
from headrace.state.blocks import GROUPS, data_checksum
from tests.memory import MemoryStorage

from .checks import check_block_damage_is_seen, table
from .faulty import FaultyStorage

NAME = block_name(12, 1, 0, 33)


def offsets(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def stored(data: pa.Table, groups: np.ndarray | None = None) -> tuple[BlockReader, Block]:
    storage = MemoryStorage()
    return BlockReader(storage), write_block(storage, NAME, data, groups, None, None)


def test_names_are_unique_and_carry_the_epoch() -> None:
    assert len({block_name(12, 1, 0, 33) for _ in range(1000)}) == 1000
    assert NAME.startswith("blocks/e000000012-s1-p0-a33-") and epoch_of(NAME) == 12
    assert epoch_of(block_name(10**10, 0, 0, 0)) == 10**10


@pytest.mark.parametrize(
    "name",
    ["blocks/x.arrow", "manifests/000000001.json", NAME + "\n", NAME.replace("0", "\u0660")],
    ids=["short", "manifest", "newline", "other digits"],
)
def test_other_names_are_not_blocks(name: str) -> None:
    with pytest.raises(StateError, match="not the name of a block"):
        epoch_of(name)


def test_a_block_comes_back_as_it_was() -> None:
    field = pa.field("v", pa.int64(), nullable=False, metadata={b"unit": b"m"})
    data = pa.table([pa.array([3, 1, 2])], schema=pa.schema([field], metadata={b"mine": b"x"}))
    reader, block = stored(data, offsets(0, 2, 3))
    opened = reader.open(block)
    assert opened.table.equals(data, check_metadata=True)
    assert opened.offsets.tolist() == [0, 2, 3]
    assert block.rows == 3 and block.bytes == reader.storage.size(NAME)


def test_schema_without_metadata_stays_without() -> None:
    reader, block = stored(table(1), offsets(0, 1))
    assert reader.open(block).table.schema.metadata is None


@pytest.mark.parametrize("data", [table(), pa.table({}), pa.table({"s": pa.array([], pa.string())})])
def test_no_rows(data: pa.Table) -> None:
    reader, block = stored(data, offsets(0, 0, 0))
    opened = reader.open(block)
    assert opened.table.equals(data) and opened.slice([0, 1]).num_rows == 0


def test_many_chunks_nested_types_and_dictionaries() -> None:
    words = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "a"]).dictionary_encode()]
    lists = [pa.array([[1], None]), pa.array([[], [2, 3]], pa.list_(pa.int64()))]
    data = pa.table({"w": pa.chunked_array(words), "l": pa.chunked_array(lists)})
    reader, block = stored(data)
    assert reader.open(block).table.to_pydict() == data.to_pydict()


def test_a_slice_of_a_big_table_stores_only_its_rows() -> None:
    big = pa.table({"v": np.arange(100_000)})
    _, block = stored(big.slice(50_000, 10))
    assert block.bytes < 2000


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_slices_are_the_rows_of_their_groups(sizes: list[int], data: st.DataObject) -> None:
    edges = np.cumsum([0, *sizes]).astype(np.int64)
    reader, block = stored(table(*range(int(edges[-1]))), edges)
    groups = sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1))))
    expected = [row for g in groups for row in range(edges[g], edges[g + 1])]
    assert reader.open(block).slice(groups)["v"].to_pylist() == expected


def test_adjacent_groups_are_one_view_of_the_file() -> None:
    reader, block = stored(table(*range(10)), offsets(0, 2, 4, 4, 6, 10))
    opened = reader.open(block)
    whole, part = opened.table["v"].chunk(0), opened.slice(np.array([0, 1, 3]))["v"]
    assert part.num_chunks == 1
    assert part.chunk(0).buffers()[1].address == whole.buffers()[1].address
    assert opened.slice([0, 4])["v"].num_chunks == 2
    assert opened.slice(None) is opened.table


@pytest.mark.parametrize("groups", [[1, 0], [0, 0], [-1], [5]])
def test_group_ids_must_ascend_and_exist(groups: list[int]) -> None:
    reader, block = stored(table(1, 2), offsets(0, 1, 1, 1, 2, 2))
    with pytest.raises(StateError, match="ascend"):
        reader.open(block).slice(groups)


def test_without_offsets_only_the_whole() -> None:
    reader, block = stored(table(1, 2))
    assert reader.open(block).slice(None).num_rows == 2
    with pytest.raises(StateError, match="no group offsets"):
        reader.open(block).slice([0])


@pytest.mark.parametrize(
    "bad",
    [
        offsets(),
        offsets(0, 1),
        offsets(1, 2),
        offsets(0, 3, 2),
        np.array([0, 2], np.int32),
        offsets(0, 2).reshape(1, 2),
    ],
)
def test_bad_offsets_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(StateError, match="offsets"):
        stored(table(1, 2), bad)


def test_our_metadata_key_is_reserved() -> None:
    with pytest.raises(StateError, match="belongs to headrace"):
        stored(table(1).replace_schema_metadata({GROUPS: b""}))


def test_extension_types_are_refused() -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))
    with pytest.raises(StateError, match="extension type"):
        stored(pa.table({"id": ids}))
    nested = pa.table({"l": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), ids)})
    with pytest.raises(StateError, match="extension type"):
        stored(nested)


def test_a_block_is_never_overwritten() -> None:
    reader, _ = stored(table(1))
    with pytest.raises(StateError, match="cannot write"):
        write_block(reader.storage, NAME, table(2), None, None, None)


def test_disk_full_while_writing_a_block() -> None:
    storage = FaultyStorage()
    storage.inject("write", "before")
    with pytest.raises(StateError, match="free disk space"):
        write_block(storage, NAME, table(1), None, None, None)


@pytest.mark.parametrize("kind", ["short", "flip"])
def test_torn_write_of_a_block(kind: str) -> None:
    storage = FaultyStorage()
    storage.inject("write", kind)
    block = write_block(storage, NAME, table(1, 2, 3), None, None, None)
    with pytest.raises(CorruptState, match=NAME):
        BlockReader(storage).open(block)


def test_every_flipped_bit_and_every_truncation_of_a_block() -> None:
    check_block_damage_is_seen(BlockReader)


def test_message_says_what_was_expected_and_what_to_do() -> None:
    reader, block = stored(table(1))
    reader.storage.files[NAME] = reader.storage.files[NAME][:-1] + b"?"
    with pytest.raises(CorruptState) as caught:
        reader.open(block)
    text = str(caught.value)
    assert NAME in text and block.checksum in text and "checksum" in text and "backup" in text


def test_wrong_size_is_named_as_such() -> None:
    reader, block = stored(table(1))
    reader.storage.files[NAME] += b"?"
    with pytest.raises(CorruptState, match=f"size should be {block.bytes}, found {block.bytes + 1}"):
        reader.open(block)


def test_damage_seen_before_arrow_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, block = stored(table(1))
    reader.storage.files[NAME] = b"\0" * block.bytes
    monkeypatch.setattr(pa.ipc, "open_file", lambda *a: pytest.fail("parsed"))
    with pytest.raises(CorruptState):
        reader.open(block)


def test_missing_block() -> None:
    reader, block = stored(table(1))
    reader.storage.delete(NAME)
    with pytest.raises(CorruptState, match="missing"):
        reader.open(block)


def test_swapped_blocks_of_equal_size() -> None:
    storage = MemoryStorage()
    one, two = (write_block(storage, block_name(0, 0, p, 0), table(p), None, p, p) for p in range(2))
    assert one.bytes == two.bytes
    storage.files[one.name], storage.files[two.name] = storage.files[two.name], storage.files[one.name]
    with pytest.raises(CorruptState, match="checksum"):
        BlockReader(storage).open(one)


@pytest.mark.parametrize("cached", [True, False])
def test_row_count_is_compared(cached: bool) -> None:
    reader, block = stored(table(1, 2))
    if cached:
        reader.open(block)
    with pytest.raises(CorruptState, match="rows"):
        reader.open(Block(block.name, block.bytes, block.checksum, 3, None, None))


def test_a_file_with_a_valid_checksum_that_is_not_arrow() -> None:
    storage = MemoryStorage()
    storage.write(NAME, b"not arrow")
    with pytest.raises(CorruptState, match="cannot be used"):
        BlockReader(storage).open(Block(NAME, 9, data_checksum(b"not arrow"), 0, None, None))


def test_a_file_without_a_batch() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table(1).schema):
        pass
    data, storage = sink.getvalue(), MemoryStorage()
    storage.write(NAME, data)
    with pytest.raises(CorruptState, match="no batch"):
        BlockReader(storage).open(Block(NAME, data.size, data_checksum(data), 0, None, None))


def with_metadata(data: pa.Table, metadata: dict[bytes, bytes]) -> tuple[BlockReader, Block]:
    """A whole block, with metadata that nobody checked."""
    sink = pa.BufferOutputStream()
    data = data.replace_schema_metadata(metadata)
    with pa.ipc.new_file(sink, data.schema) as writer:
        writer.write_table(data)
    storage = MemoryStorage()
    storage.write(NAME, sink.getvalue())
    block = Block(NAME, sink.getvalue().size, data_checksum(sink.getvalue()), data.num_rows, None, None)
    return BlockReader(storage), block


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({GROUPS: b""}, "0 bytes"),
        ({GROUPS: b"\x03abc"}, "numbers of 3"),
        ({GROUPS: b"\x02abc"}, "4 bytes, as numbers of 2"),
        ({GROUPS: b"\x01\x02"}, "rising from 0 to 1"),
        ({GROUPS: b"\x01"}, "rising from 0 to 1"),
        ({GROUPS: b"\x08" + b"\xff" * 16}, "rising from 0 to 1"),
        ({GROUPS: b"\x08" + (2**63).to_bytes(8, "little") * 2 + b"\x01" + bytes(7)}, "rising from 0 to 1"),
    ],
)
def test_groups_that_cannot_be_so(metadata: dict[bytes, bytes], words: str) -> None:
    reader, block = with_metadata(table(1), metadata)
    with pytest.raises(StateError, match=words):
        reader.open(block)


@pytest.mark.parametrize(("most", "width"), [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 4)])
def test_groups_take_as_few_bytes_as_their_rows_need(most: int, width: int) -> None:
    sizes = [most, 0, 1] if most else [0, 0, 0]
    reader, block = stored(pa.table({"v": np.zeros(sum(sizes), np.int8)}), np.append(0, np.cumsum(sizes)))
    whole = pa.ipc.open_file(reader.storage.map(NAME)).schema.metadata
    assert len(whole[GROUPS]) == 1 + 3 * width
    assert np.diff(reader.open(block).offsets).tolist() == sizes


def test_read_error_is_not_called_corruption() -> None:
    storage = FaultyStorage()
    block = write_block(storage, NAME, table(1), None, None, None)
    storage.inject("map", "before")
    with pytest.raises(StateError, match="Repair the disk") as caught:
        BlockReader(storage).open(block)
    assert not isinstance(caught.value, CorruptState)


def test_open_blocks_are_cached_up_to_the_capacity() -> None:
    storage = MemoryStorage()
    blocks = [write_block(storage, block_name(0, 0, p, 0), table(p), None, p, p) for p in range(3)]
    reader = BlockReader(storage, capacity=2)
    first = reader.open(blocks[0])
    reader.open(blocks[1])
    assert reader.open(blocks[0]) is first
    reader.open(blocks[2])
    assert reader.open(blocks[0]) is first
    storage.files[blocks[1].name] = b""
    with pytest.raises(CorruptState):
        reader.open(blocks[1])


def test_local_blocks_are_mapped_not_copied(tmp_path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create()
    block = write_block(storage, NAME, pa.table({"v": np.arange(200_000)}), None, 0, 199_999)
    before = pa.total_allocated_bytes()
    opened = BlockReader(storage).open(block)
    assert pa.total_allocated_bytes() - before < 10_000
    assert opened.table["v"][199_999].as_py() == 199_999


GOOD = Block(NAME, 10, "0" * 32, 1, -1, 1).to_json()
FIELDS = list(Block.__dataclass_fields__)
SHORT = NAME.removeprefix("blocks/").removesuffix(".arrow")


def test_description_round_trip() -> None:
    assert Block.from_json(GOOD).to_json() == GOOD
    assert Block.from_json(GOOD).name == NAME and GOOD[0] == SHORT, "words that are the same in all are not stored"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../etc/passwd"},
        {"name": "/etc/passwd"},
        {"name": "../../x"},
        {"name": "manifests/000000001.json"},
        {"name": NAME},
        {"name": f"../blocks/{SHORT}"},
        {"name": SHORT + "\n"},
        {"name": SHORT + "\0"},
        {"name": None},
        {"name": ["blocks"]},
        {"bytes": -1},
        {"bytes": True},
        {"bytes": 1.0},
        {"bytes": 1 << 63},
        {"rows": None},
        {"checksum": ""},
        {"checksum": "A" * 32},
        {"checksum": 7},
        {"low": "0"},
        {"low": 2},
        {"low": None},
        {"high": 1 << 63},
    ],
)
def test_hostile_descriptions_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(CorruptState):
        Block.from_json([change.get(field, value) for field, value in zip(FIELDS, GOOD, strict=True)])


@pytest.mark.parametrize("data", [None, [], "x", {}, GOOD[:-1], [*GOOD, 1], dict(zip(FIELDS, GOOD, strict=True))])
def test_other_values_are_no_description(data: object) -> None:
    with pytest.raises(CorruptState):
        Block.from_json(data)
