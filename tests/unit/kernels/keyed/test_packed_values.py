"""Nested values as bytes, and back: random types and values, in whatever form Arrow has them."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.kernels.keyed import packed_values

LEAVES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 0, 127]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float32(), [0.5, -0.0, float("inf")]),
    (pa.float64(), [1e300, float("-inf"), 0.1]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "a", "é" * 9, "\0"]),
    (pa.binary(), [b"", b"\xff\0", b"abcdefghij"]),
    (pa.date32(), [0, -(10**6)]),
    (pa.time64("us"), [0, 86_399_999_999]),
    (pa.timestamp("us", "UTC"), [-(2**61), 0, 2**61]),
    (pa.decimal128(38, 2), [Decimal("-1.25"), Decimal(10) ** 35]),
    (pa.decimal32(5, 1), [Decimal("1.5"), Decimal(-3)]),
]


def some_type(r: random.Random, depth: int) -> pa.DataType:
    kind = r.choice(["leaf", "list", "struct", "map"]) if depth else "leaf"
    if kind == "leaf":
        return r.choice(LEAVES)[0]
    if kind == "list":
        return pa.list_(some_type(r, depth - 1))
    if kind == "map":
        return pa.map_(r.choice(LEAVES)[0], some_type(r, depth - 1))
    return pa.struct([(f"f{i}", some_type(r, depth - 1)) for i in range(r.randint(1, 3))])


def some_value(r: random.Random, kind: pa.DataType, may_be_null: bool = True) -> Any:
    if may_be_null and r.random() < 0.2:
        return None
    t = pa.types
    if t.is_struct(kind):
        return {part.name: some_value(r, part.type) for part in kind}
    if t.is_map(kind):
        return [
            (some_value(r, kind.key_type, False), some_value(r, kind.item_type)) for _ in range(r.choice([0, 1, 3]))
        ]
    if t.is_list(kind):
        return [some_value(r, kind.value_type) for _ in range(r.choice([0, 1, 4]))]
    return r.choice(next(values for leaf, values in LEAVES if leaf == kind))


@pytest.mark.parametrize("seed", range(25))
def test_what_is_packed_is_unpacked(seed: int) -> None:
    r = random.Random(seed)
    kind = r.choice([pa.list_, lambda inner: pa.struct([("a", inner)])])(some_type(r, 3))
    arrays = [pa.array([some_value(r, kind) for _ in range(r.randint(0, 8))], kind) for _ in range(3)]
    chunked = pa.chunked_array([array.slice(r.randint(0, len(array))) for array in arrays], kind)
    found = packed_values.pack_values(chunked)
    order = np.array(r.sample(range(len(chunked)), len(chunked)), np.int64)
    assert found.valid is not None
    again = packed_values.PackedValues(found.data, found.starts[order], found.lengths[order], found.valid[order])
    values = packed_values.unpack_values(kind, again)
    values.validate(full=True)
    assert values.type == kind
    assert values.equals(chunked.take(pa.array(order)).combine_chunks())
