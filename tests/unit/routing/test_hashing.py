"""Groups must never move: state on disk relies on these numbers. A change here is a change of the state format."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.routing.hashing import groups_of, hash_column, hash_rows

NAN, INF = float("nan"), float("inf")
NULL = 0x9AE16A3B2F90404F

GOLDEN: dict[str, tuple[pa.Array, list[int]]] = {
    "int64": (
        pa.array([0, 1, -1, 2**63 - 1, -(2**63), None], pa.int64()),
        [0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B, 0x5A682AFE7965DEBD, 0x25C26EA579CEA98A, NULL],
    ),
    "int32": (pa.array([0, 1, -1, None], pa.int32()), [0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B, NULL]),
    "uint8": (pa.array([0, 1, 255], pa.uint8()), [0, 0x5692161D100B05E5, 0x33914DAE20F87536]),
    "uint64": (pa.array([0, 1, 2**64 - 1], pa.uint64()), [0, 0x5692161D100B05E5, 0xB4D055FCF2CBBD7B]),
    "bool": (pa.array([True, False, None]), [0x5692161D100B05E5, 0, NULL]),
    "double": (
        pa.array([0.0, -0.0, 1.5, NAN, -NAN, INF, -INF, None]),
        [
            0,
            0,
            0xE72B41D4576E3468,
            0x469BF2DCC1AA179B,
            0x469BF2DCC1AA179B,
            0xCE5683AAAEDC68D0,
            0xF35A23197F8FA277,
            NULL,
        ],
    ),
    "float": (
        pa.array([0.0, -0.0, 1.5, NAN, None], pa.float32()),
        [0, 0, 0xE72B41D4576E3468, 0x469BF2DCC1AA179B, NULL],
    ),
    "text": (
        pa.array(["", "a", "ä", "日本", "\U0001f600", "a\0b", None]),
        [
            0x2D06800538D394C2,
            0xE6C632B61E964E1F,
            0x543064676A70B4B4,
            0x2C17FB837F1A1BC0,
            0x0B4FECF421A0808E,
            0xD5A06CD078125351,
            NULL,
        ],
    ),
    "bytes": (
        pa.array([b"", b"a", b"\xff\x00", None]),
        [0x2D06800538D394C2, 0xE6C632B61E964E1F, 0x0B06685630F819E7, NULL],
    ),
    "decimal": (
        pa.array([Decimal("0.00"), Decimal("1.25"), Decimal("-1.25"), None], pa.decimal128(12, 2)),
        [0, 0xC688178167761180, 0x2BA52EA34A788E49, NULL],
    ),
    "date": (
        pa.array([datetime.date(1970, 1, 1), datetime.date(2024, 2, 29), None]),
        [0, 0xB66D7F24F36F1DE0, NULL],
    ),
    "timestamp": (
        pa.array([0, 1_700_000_000_000_000, -1, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
        [0, 0x91C55B3C32E8EC1F, 0xB4D055FCF2CBBD7B, NULL],
    ),
    "time": (pa.array([0, 1, None], pa.int64()).cast(pa.time64("us")), [0, 0x5692161D100B05E5, NULL]),
    "list": (
        pa.array([[1, 2], [], [None], None], pa.list_(pa.int64())),
        [0x730838FB892D92C8, 0x831154110E30AC6A, 0x25982D92D435AC55, NULL],
    ),
    "struct": (
        pa.array([{"a": 1, "b": "x"}, {"a": None, "b": "y"}, None], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        [0xEDAA98102CB16333, 0xB16A75B93C3364F7, NULL],
    ),
    "list of doubles": (pa.array([[0.0], [-0.0], [NAN], None], pa.list_(pa.float64())), [0, 0, 0, NULL]),
}


def hashes(column: Any) -> list[int]:
    return [int(h) for h in hash_column(column)]


@pytest.mark.parametrize("kind", GOLDEN)
def test_golden_hashes(kind: str) -> None:
    column, expected = GOLDEN[kind]
    assert hashes(column) == expected


def test_golden_rows_and_groups() -> None:
    table = pa.table({"a": [1, 2, None], "b": ["x", None, "y"]})
    assert [int(h) for h in hash_rows(table, ["a", "b"])] == [
        0xE1EF274FA80A1481,
        0x995FB533C006C19A,
        0x759C39B356865FE3,
    ]
    assert [int(h) for h in hash_rows(table, ["b", "a"])] == [
        0x27909EB962FFC006,
        0x0D018BA9AD83D817,
        0x1360BE2B0003D79B,
    ]
    numbers = pa.table({"a": range(12)})
    assert groups_of(numbers, ["a"], 64).tolist() == [60, 38, 53, 11, 59, 14, 19, 30, 27, 57, 18, 20]
    assert groups_of(numbers, ["a"], 7).tolist() == [6, 4, 5, 1, 6, 1, 2, 3, 2, 6, 2, 2]
    assert groups_of(numbers, ["a"], 1).tolist() == [0] * 12


@pytest.mark.parametrize("kind", GOLDEN)
def test_chunks_slices_and_order_do_not_matter(kind: str) -> None:
    column, expected = GOLDEN[kind]
    chunked = pa.chunked_array([column.slice(0, 1), column.slice(1, 0), column.slice(1)])
    assert hashes(chunked) == expected
    for start in range(len(column)):
        assert hashes(column.slice(start)) == expected[start:]
        assert hashes(pa.chunked_array([column]).slice(start, 1)) == expected[start : start + 1]
    assert hashes(column.take(pa.array(range(len(column))[::-1]))) == expected[::-1]


@pytest.mark.parametrize("kind", GOLDEN)
def test_empty_columns_have_no_hash(kind: str) -> None:
    column, _ = GOLDEN[kind]
    assert hashes(column.slice(0, 0)) == []
    assert hashes(pa.chunked_array([], column.type)) == []


def test_whole_numbers_of_any_width_hash_alike() -> None:
    values = [0, 1, 7, 100]
    found = {
        tuple(hashes(pa.array(values, kind))) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint16())
    }
    assert len(found) == 1


def test_keys_are_brought_to_the_common_type() -> None:
    narrow, wide = pa.table({"k": pa.array([1, None, -5], pa.int32())}), pa.table({"k": pa.array([1, None, -5])})
    assert groups_of(narrow, ["k"], 64, [pa.int64()]).tolist() == groups_of(wide, ["k"], 64, [pa.int64()]).tolist()
    single, double = pa.table({"f": pa.array([0.1, -0.0], pa.float32())}), np.array([np.float32(0.1), 0.0], np.float64)
    found = groups_of(pa.table({"f": double}), ["f"], 64, [pa.float64()])
    assert groups_of(single, ["f"], 64, [pa.float64()]).tolist() == found.tolist()


def test_every_nan_and_every_zero_is_one_key() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF], np.uint64)
    assert len(set(hashes(pa.array(bits.view(np.float64))))) == 1
    assert hashes(pa.array([0.0, -0.0])) == [0, 0]


def test_groups_are_even() -> None:
    rows = 64_000
    table = pa.table({"k": range(rows), "s": [f"user-{i}" for i in range(rows)], "f": np.arange(rows) / 8})
    for columns in (["k"], ["s"], ["f"], ["k", "s", "f"]):
        counts = np.bincount(groups_of(table, columns, 64), minlength=64)
        assert counts.min() > 850 and counts.max() < 1150, (columns, counts.min(), counts.max())


def test_no_column_is_one_group() -> None:
    assert len(set(groups_of(pa.table({"k": range(10)}), [], 64).tolist())) == 1
