"""The hash of a sample: golden values, the share of tuples that it keeps, and its independence from groups.

State on disk relies on these numbers: a run that continues must keep the same tuples as before.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar.values import comparable_values
from headrace.kernels.stateless import sample as kernel
from headrace.kernels.stateless.sample import sample_hashes, sample_tuples
from headrace.plan import SampleStep
from headrace.reference import sample as reference
from headrace.routing.hashing import groups_of, hash_rows

NAN, INF = float("nan"), float("inf")
UTC = pa.timestamp("us", "UTC")
SIGMAS = 5  # a fair hash fails one such test in two million

PAIR = pa.struct([("a", pa.int64()), ("b", pa.string())])
COLUMNS: dict[str, pa.Array] = {
    "int64": pa.array([0, 1, -1, 2**63 - 1, -(2**63), None], pa.int64()),
    "uint64": pa.array([0, 1, 2**64 - 1], pa.uint64()),
    "bool": pa.array([True, False, None]),
    "double": pa.array([0.0, -0.0, 1.5, NAN, -NAN, INF, -INF, None]),
    "float": pa.array([0.0, -0.0, 1.5, NAN, None], pa.float32()),
    "text": pa.array(["", "a", "ä", "日本", "\U0001f600", "a\0b", None]),
    "bytes": pa.array([b"", b"a", b"\xff\x00", None]),
    "decimal": pa.array([Decimal("0.00"), Decimal("1.25"), Decimal("-1.25"), Decimal(10) ** 30, None], pa.decimal128(38, 2)),
    "date": pa.array([datetime.date(1970, 1, 1), datetime.date(1969, 2, 28), None]),
    "timestamp": pa.array([0, 1_700_000_000_000_000, -1, None], pa.int64()).cast(UTC),
    "time": pa.array([0, 1, None], pa.int64()).cast(pa.time64("us")),
    "list": pa.array([[1, 2], [2, 1], [], [None], None, [1]], pa.list_(pa.int64())),
    "list of doubles": pa.array([[0.0], [-0.0], [NAN], None, [2.5]], pa.list_(pa.float64())),
    "struct": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None], PAIR),
    "map": pa.array([[("k", 0.5)], [], [("k", None), ("l", 1.0)], None], pa.map_(pa.string(), pa.float64())),
    "nested": pa.array([[{"a": 1, "b": "x"}], [None], [], None, [{"a": 2, "b": None}] * 2], pa.list_(PAIR)),
}  # fmt: skip
GOLDEN: dict[str, list[int]] = {
    "int64": [
        0x8209B480FAED1B10,
        0x1E9A847BA9353E33,
        0x3F7B3F61FAA07880,
        0x0D3F7DF7A029EFC6,
        0xBF8E0FD954BD9CBA,
        0x82DC65A01073AC50,
    ],
    "uint64": [0x8209B480FAED1B10, 0x1E9A847BA9353E33, 0x3F7B3F61FAA07880],
    "bool": [0x1E9A847BA9353E33, 0x8209B480FAED1B10, 0x82DC65A01073AC50],
    "double": [
        0x8209B480FAED1B10,
        0x8209B480FAED1B10,
        0x08C8D632C7267551,
        0x7C11853B559FC8F6,
        0x7C11853B559FC8F6,
        0x3DD74B077868C0E4,
        0x585D8D07EACA4706,
        0x82DC65A01073AC50,
    ],
    "float": [0x8209B480FAED1B10, 0x8209B480FAED1B10, 0x08C8D632C7267551, 0x7C11853B559FC8F6, 0x82DC65A01073AC50],
    "text": [
        0x8780DA0E9E517C84,
        0xCD1359EA5A90444A,
        0x8025BF48846072AE,
        0xE9FA633AA907350C,
        0xB46A7C2ED4211195,
        0xDC18D032B8307AF7,
        0x82DC65A01073AC50,
    ],
    "bytes": [0x8780DA0E9E517C84, 0xCD1359EA5A90444A, 0x1EF4EBEAC87D96EC, 0x82DC65A01073AC50],
    "decimal": [0x8209B480FAED1B10, 0xE91A9BD4671DBF70, 0xA9C4DAC8ADAA4290, 0xFBF537EF5672811D, 0x82DC65A01073AC50],
    "date": [0x8209B480FAED1B10, 0x4591970769712528, 0x82DC65A01073AC50],
    "timestamp": [0x8209B480FAED1B10, 0x2B5A70D4E83708F0, 0x3F7B3F61FAA07880, 0x82DC65A01073AC50],
    "time": [0x8209B480FAED1B10, 0x1E9A847BA9353E33, 0x82DC65A01073AC50],
    "list": [
        0x37272EF47F9AE193,
        0x4746CF28B0485DF5,
        0x1D74AC995ED73622,
        0x09C4F94024B95EC7,
        0x82DC65A01073AC50,
        0xC398910FDA84AC0C,
    ],
    "list of doubles": [
        0x1D74AC995ED73622,
        0x1D74AC995ED73622,
        0x9C0AA419313B1F57,
        0x82DC65A01073AC50,
        0x40216E994E19298B,
    ],
    "struct": [0xDC2AC5FA4D61D201, 0x0548D38A7DDFB001, 0x82DC65A01073AC50],
    "map": [0xD1D0DD93ABA4399C, 0x1D74AC995ED73622, 0x35DE8CA31643A3A9, 0x82DC65A01073AC50],
    "nested": [0x2259B4D59860135C, 0x09C4F94024B95EC7, 0x1D74AC995ED73622, 0x82DC65A01073AC50, 0xAB38226E7437320C],
}


def hashes(column: Any) -> list[int]:
    return sample_hashes(pa.table({"c": column}), ["c"]).tolist()


def step(fraction: float, *hashed: str) -> SampleStep:
    return SampleStep(fraction, hashed, "")


@pytest.mark.parametrize("kind", COLUMNS)
def test_golden_hashes(kind: str) -> None:
    assert hashes(COLUMNS[kind]) == GOLDEN[kind]


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_reference_computes_the_same_hashes(kind: str) -> None:
    values = comparable_values(COLUMNS[kind])
    assert [reference._combined((value,)) for value in values] == GOLDEN[kind]


def test_golden_rows() -> None:
    table = pa.table({"a": [1, 2, None], "b": ["x", None, "y"]})
    expected = [0x8088022E0A5B7976, 0x5727CC9133E0FBD8, 0xEBC89DE4B973A6F3]
    assert sample_hashes(table, ["a", "b"]).tolist() == expected
    assert [reference._combined(row) for row in ((1, b"x"), (2, None), (None, b"y"))] == expected


@pytest.mark.parametrize("kind", COLUMNS)
def test_chunks_slices_and_order_do_not_matter(kind: str) -> None:
    column, expected = COLUMNS[kind], GOLDEN[kind]
    assert hashes(pa.chunked_array([column.slice(0, 1), column.slice(1, 0), column.slice(1)])) == expected
    for start in range(len(column)):
        assert hashes(column.slice(start)) == expected[start:]
    assert hashes(column.take(pa.array(range(len(column))[::-1]))) == expected[::-1]
    assert hashes(column.slice(0, 0)) == hashes(pa.chunked_array([], column.type)) == []


def test_the_place_of_a_value_counts() -> None:
    """Otherwise (a, b) and (b, a) would always be kept together, and equal values would cancel out."""
    table = pa.table({"a": [1, 2, 3], "b": [2, 1, 3]})
    found = sample_hashes(table, ["a", "b"]).tolist()
    assert len(set(found)) == 3 and found[0] == sample_hashes(table, ["b", "a"]).tolist()[1]


def test_values_that_are_equal_have_one_hash() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF], np.uint64)
    assert len(set(hashes(pa.array(bits.view(np.float64))))) == 1
    assert len(set(hashes(pa.array([[0.0], [-0.0]])))) == 1
    widths = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64())
    assert len({tuple(hashes(pa.array([0, 1, 7, None], kind))) for kind in widths}) == 1


# --- how many tuples it keeps -----------------------------------------------------------------------------------------

ROWS = 40_000
WIDE = pa.table(
    {
        "number": pa.array(range(ROWS)),
        "step": pa.array(range(0, ROWS << 20, 1 << 20)),
        "text": [f"user-{number}" for number in range(ROWS)],
        "double": np.arange(ROWS) / 8,
        "few": [number % 200 for number in range(ROWS)],
        "doubles": [[number / 2, None] for number in range(ROWS)],
        "ts": pa.array(range(0, ROWS * 1_000_000, 1_000_000)).cast(UTC),
    }
)
BY: tuple[Sequence[str], ...] = (["number"], ["step"], ["text"], ["double"], ["doubles"], ["ts"], ["few", "text"])
GROUPED = [by for by in BY if by != ["doubles"]]  # doubles inside lists are all in one group


def within_chance(found: float, expected: float, count: int) -> bool:
    """Return whether a share of `count` independent draws is as close to the expected share as a fair hash makes it."""
    return abs(found - expected) <= SIGMAS * (expected * (1 - expected) / count) ** 0.5


@pytest.mark.parametrize("by", BY, ids=" ".join)
@pytest.mark.parametrize("fraction", [0.001, 0.01, 0.1, 0.5, 0.9])
def test_the_fraction_is_kept(by: list[str], fraction: float) -> None:
    assert within_chance(sample_tuples(WIDE, step(fraction, *by)).num_rows / ROWS, fraction, ROWS)


@pytest.mark.parametrize("by", GROUPED, ids=" ".join)
@pytest.mark.parametrize("groups", [2, 64])
def test_every_group_keeps_the_same_fraction(by: list[str], groups: int) -> None:
    """If the hash were that of the groups, a sample would empty some groups and leave others whole."""
    fraction, group = 0.2, groups_of(WIDE, by, groups)
    kept = sample_hashes(WIDE, by) < np.uint64(int(fraction * 2**64))
    sizes, counts = np.bincount(group, minlength=groups), np.bincount(group[kept], minlength=groups)
    chi_square = float(((counts - sizes * fraction) ** 2 / (sizes * fraction * (1 - fraction))).sum())
    assert chi_square < groups + SIGMAS * (2 * groups) ** 0.5 + 10


@pytest.mark.parametrize("by", GROUPED, ids=" ".join)
def test_no_bit_of_the_hash_follows_the_hash_of_groups(by: list[str]) -> None:
    ours, groups = (
        np.unpackbits(hash_(WIDE, by).view(np.uint8).reshape(-1, 8), axis=1) for hash_ in (sample_hashes, hash_rows)
    )
    agreeing = (ours[:, :, None] == groups[:, None, :]).mean(axis=0)
    assert np.abs(agreeing - 0.5).max() < (SIGMAS + 1) * 0.5 / ROWS**0.5  # of 4,096 pairs of bits


def test_a_larger_fraction_keeps_what_a_smaller_one_keeps() -> None:
    kept = [set(sample_tuples(WIDE, step(f, "text"))["number"].to_pylist()) for f in (1e-4, 0.1, 0.2, 0.9, 1.0)]
    assert all(one < other for one, other in pairwise(kept))
    assert len(kept[-1]) == ROWS
    smaller = sample_tuples(sample_tuples(WIDE, step(0.2, "text")), step(0.1, "text"))
    assert set(smaller["number"].to_pylist()) == kept[1]


def test_tuples_with_equal_values_are_kept_together() -> None:
    kept = sample_tuples(WIDE, step(0.3, "few"))["few"].to_pylist()
    assert 0 < len(set(kept)) < 200 and len(kept) == len(set(kept)) * ROWS // 200


def test_borders() -> None:
    assert sample_tuples(WIDE, step(1.0, "number")) is WIDE
    assert sample_tuples(WIDE, step(5e-324, "number")).num_rows == 0
    assert sample_tuples(WIDE.slice(0, 0), step(0.5, "text", "doubles")).num_rows == 0


def test_one_column_by_another_name_keeps_the_same_values() -> None:
    renamed = WIDE.rename_columns({"text": "customer"})
    one, other = sample_tuples(WIDE, step(0.1, "text")), sample_tuples(renamed, step(0.1, "customer"))
    assert one["text"].to_pylist() == other["customer"].to_pylist()


# --- broken versions --------------------------------------------------------------------------------------------------


def uses_the_hash_of_groups(patch: pytest.MonkeyPatch) -> None:
    def broken(table: pa.Table, columns: Sequence[str]) -> Any:
        return hash_rows(table, columns)

    patch.setattr(kernel, "sample_hashes", broken)
    patch.setitem(globals(), "sample_hashes", broken)


def test_the_hash_of_groups_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    uses_the_hash_of_groups(monkeypatch)
    with pytest.raises(AssertionError):
        test_every_group_keeps_the_same_fraction(["number"], 64)
    with pytest.raises(AssertionError):
        test_no_bit_of_the_hash_follows_the_hash_of_groups(["text"])
