"""Second orders of blocks: as they are stored, sliced among slots, and left out of merges."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.kernels.joins.probed_tuples import ProbedBlock, ProbedTuples, as_doubles
from headrace.kernels.joins.stored_orders import BlockPieces, KeyColumns, stored_order, with_orders, without_orders
from headrace.routing.hashing import hash_rows

TS = pa.timestamp("us", "UTC")
KEY = KeyColumns(("part",), (pa.int64(),))


def tuples(seed: int, rows: int = 200) -> pa.Table:
    r = np.random.default_rng(seed)
    ts = pa.array(r.integers(0, 1_000, rows)).cast(TS)
    parts = pa.array(r.integers(0, 9, rows), pa.int32(), mask=r.random(rows) < 0.1)
    return pa.table({"ts": ts, "part": parts, "x": r.random(rows)})


def block(seed: int) -> tuple[pa.Table, pa.Table]:
    """Tuples in the order of a block, without and with their second order."""
    table = tuples(seed)
    arrangement = np.random.default_rng(seed + 1).permutation(table.num_rows)
    whole = with_orders(table, [KEY], arrangement).take(arrangement)
    return table.take(arrangement), whole


def test_an_order_lists_the_rows_of_the_block_as_it_is_written() -> None:
    plain, whole = block(1)
    found = stored_order(whole, KEY)
    assert found is not None and without_orders(whole).equals(plain)
    hashes, rows = found
    assert np.all(hashes[:-1] <= hashes[1:]) and sorted(rows) == list(range(plain.num_rows))
    assert np.array_equal(hash_rows(plain, KEY.columns, KEY.types)[rows], hashes)


def test_a_block_without_the_order_or_with_that_of_another_type_has_none() -> None:
    plain, whole = block(2)
    assert stored_order(plain, KEY) is None
    assert stored_order(whole, KeyColumns(("part",), (pa.string(),))) is None


@pytest.mark.parametrize("pieces", [((0, 200),), ((0, 10), (50, 51), (90, 200)), ((7, 60),)])
def test_a_slot_finds_its_own_rows_alone(pieces: tuple[tuple[int, int], ...]) -> None:
    _, whole = block(3)
    mine = BlockPieces(whole, pieces)
    wanted = hash_rows(mine.table, KEY.columns, KEY.types)
    stored = ProbedTuples([ProbedBlock(mine.table, None, mine)])
    made = ProbedTuples([ProbedBlock(mine.table, None)])
    found = [sorted_pairs(each, wanted) for each in (stored, made)]
    assert found[0] == found[1] and len(found[0]) >= mine.rows


def sorted_pairs(probed: ProbedTuples, wanted: np.ndarray) -> list[tuple[int, int, int]]:
    ranges = [each for found in probed.with_hashes(KEY, wanted) for each in found]
    return sorted((int(a), int(b), int(c)) for i, rows, at in ranges for a, b, c in zip(i, rows, at, strict=True))


def test_numbers_of_several_blocks_are_searched_in_each() -> None:
    probed = ProbedTuples([ProbedBlock(tuples(seed), None) for seed in (4, 5)])
    assert probed.table is not None
    values = np.asarray(probed.table.column("x"))
    low, high = np.array([0.2, 0.9]), np.array([0.4, 0.1])  # the second interval is empty
    ranges = probed.with_numbers("x", low, high)
    assert ranges is not None
    found = {(int(a), int(b)) for each in ranges for i, rows, _ in each for a, b in zip(i, rows, strict=True)}
    assert found == {(0, int(row)) for row in np.flatnonzero((values >= 0.2) & (values <= 0.4))}


def test_numbers_that_are_not_finite_are_not_searched_and_nulls_are_left_out() -> None:
    table = pa.table({"ts": pa.array([1, 2, 3]).cast(TS), "x": [1.0, None, 2.0], "y": [1.0, float("nan"), 2.0]})
    probed = ProbedBlock(table, None)
    found = probed.by_number("x")
    assert found is not None and found[1].at(np.arange(2)).tolist() == [0, 2]
    assert probed.by_number("y") is None
    assert as_doubles(table.column("ts"))[0].tolist() == [1.0, 2.0, 3.0]
