"""The order of rows by columns of any type, held against Python's own sort of plain values."""

from __future__ import annotations

import datetime
import math
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.columnar import sorting
from headrace.columnar.sorting import sort_order

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
DOUBLES = (math.nan, OTHER_NAN, math.inf, -math.inf, 0.0, -0.0, 5e-324, -5e-324, 1.5, -1.5, 1.7e308, -1.7e308)
TS = pa.timestamp("us", "UTC")

Make = Callable[[random.Random], Any]


def whole(bits: int, signed: bool) -> Make:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return lambda r: r.choice([low, high, low + 1, high - 1, r.randint(low, high), *range(4)])


def time(unit: int) -> Make:
    return lambda r: (r.randint(-3, 3) + r.choice([0, 1_700_000_000])) * unit


KINDS: dict[pa.DataType, tuple[Make, ...]] = {
    **{getattr(pa, f"int{bits}")(): (whole(bits, True),) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): (whole(bits, False),) for bits in (8, 16, 32, 64)},
    pa.bool_(): (lambda r: r.random() < 0.5,),
    pa.float64(): (lambda r: r.choice([*DOUBLES, r.gauss(0, 1e3)]),),
    pa.float32(): (lambda r: r.choice([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -2.0]),),
    TS: tuple(map(time, (1, 1_000, 1_000_000))),
    pa.timestamp("us"): (
        lambda r: r.choice([-9 * 10**18, 9 * 10**18, 0]),
        lambda r: r.choice([-(1 << 63), (1 << 63) - 1]),
    ),
    pa.date32(): (lambda r: datetime.date(2026, 1, r.randint(1, 28)),),
    pa.time64("us"): (lambda r: r.randint(0, 9) * 1_000,),
    pa.string(): (lambda r: r.choice(["", "a", "ab", "B", "é", "\U0001f600", "\uffff"]),),
    pa.binary(): (lambda r: bytes(r.choices([0, 1, 127, 255], k=r.randint(0, 2))),),
    pa.decimal128(38, 2): (lambda r: Decimal(r.randint(-3, 3)) / 4,),
    pa.decimal64(18, 2): (lambda r: Decimal(r.randint(-3, 3)) / 4,),
}


def column(r: random.Random, rows: int, kind: pa.DataType) -> pa.ChunkedArray:
    make, nulls = r.choice(KINDS[kind]), r.choice([0, 0, 0.2, 0.2, 1])
    few = [make(r) for _ in range(r.choice([1, 3, 50, 50]))]
    values = pa.array([None if r.random() < nulls else r.choice(few) for _ in range(rows)], kind)
    cut = r.randint(0, rows)
    return (
        pa.chunked_array([values.slice(0, cut), values.slice(cut)]) if r.random() < 0.5 else pa.chunked_array([values])
    )


def plain(value: pa.Scalar) -> tuple[int, Any]:
    """A value that Python orders as headrace does."""
    if not value.is_valid:
        return 2, 0
    if pa.types.is_temporal(value.type):
        return 0, value.cast(pa.int32() if value.type == pa.date32() else pa.int64()).as_py()
    found = value.as_py()
    if isinstance(found, float) and math.isnan(found):
        return 1, 0
    return 0, found.encode() if isinstance(found, str) else found


def expected(columns: list[pa.ChunkedArray]) -> list[int]:
    keys = [tuple(plain(each[row]) for each in columns) for row in range(len(columns[0]))]
    return sorted(range(len(keys)), key=keys.__getitem__)  # stable: equal rows as they stand


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_order_is_that_of_plain_values(kind: pa.DataType, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed:
        monkeypatch.setattr(sorting, "FEW_ROWS", 0)
    r = random.Random(f"{kind} {seed}")
    rows = r.choice([0, 1, 2, 40, 60, 80])
    others = [r.choice(list(KINDS)) for _ in range(r.randint(0, 5))]
    columns = [column(r, rows, each) for each in (kind, *others)]
    assert sort_order(columns).tolist() == expected(columns)


def test_bits_that_do_not_fit_are_looked_at_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of 64 bits and many equal rows: one round is not enough."""
    monkeypatch.setattr(sorting, "CACHED_ROWS", 7)
    monkeypatch.setattr(sorting, "FEW_ROWS", 0)
    rng = np.random.default_rng(5)
    wide = [pa.chunked_array([pa.array(rng.choice(rng.integers(-(1 << 63), 1 << 62, 3), 300))]) for _ in range(6)]
    low = [
        pa.chunked_array([pa.array((1 << 62) * rng.integers(-2, 2, 300) + rng.integers(0, 2, 300))]) for _ in range(3)
    ]
    for columns in (wide, low, [*low, *wide]):
        assert sort_order(columns).tolist() == expected(columns)


@pytest.mark.parametrize("text", [pa.string(), pa.binary()], ids=str)
def test_text_that_does_not_fit_into_one_chunk(text: pa.DataType) -> None:
    """More than 2 GiB, in chunks that share their memory."""
    chunk = pa.array([f"{row:03} {'x' * 250_000}" for row in range(100)], text)
    long = pa.chunked_array([chunk] * 90)
    assert long.nbytes > 1 << 31
    numbers = np.arange(len(long))[::-1].copy()
    numbers[[3, 101, 200]] = 5_000  # beside row 3,999, whose text is the last
    expected = np.lexsort((np.arange(len(long)) % 100, numbers))
    assert np.array_equal(sort_order([pa.array(numbers), long]), expected)
