"""What a processor puts out or asks for, in every type that it may come in: the engine and the reference take and refuse the
same values, and what they take is the same. The two share no code."""

from __future__ import annotations

import datetime as dt
import functools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.columnar.types import plain_type
from headrace.errors import DataError
from headrace.kernels.stateless.coerce_rows import coerce_rows
from headrace.reference import tuples
from headrace.reference.state_tables import coerce_to_schema
from headrace.sources import is_same_kind

WHOLE = [0, 1, -1, 127, 128, -129, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
DOUBLES = [0.0, -0.0, 0.1, 1e300, -1e300, 3.4028235e38, 3.5e38, 1e-300, float("inf"), float("nan")]
DECIMALS = [Decimal("0"), Decimal("1.25"), Decimal("99.9"), Decimal("-12345678.9"), Decimal(10) ** 20]
MOMENTS = [0, -1, 1, 1001, 10**6, 86_400_000, 10**15, 2**62, -(2**62)]  # in the unit of the type
TEXTS: list[Any] = ["", "a", "a\0", "é"]

PLAIN: dict[pa.DataType, list[Any]] = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), WHOLE),
    **dict.fromkeys((pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()), WHOLE),
    **dict.fromkeys((pa.float16(), pa.float32(), pa.float64()), DOUBLES),
    pa.bool_(): [True, False],
    **{pa.decimal128(p, s): DECIMALS for p, s in ((3, 2), (10, 1), (38, 0), (38, 10))},
    pa.decimal256(40, 2): DECIMALS,
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), TEXTS),
    pa.dictionary(pa.int8(), pa.string()): TEXTS,
    **{kind: [b"", b"\xff"] for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    pa.binary(2): [b"ab"],
    **{
        pa.timestamp(unit, zone): MOMENTS for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")
    },
    pa.date32(): [dt.date(1970, 1, 2), dt.date(9999, 12, 31)],
    pa.date64(): [0, 86_400_000, 86_400_001],
    **{kind: [0, 1, 1001, 86_399] for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))},
    pa.duration("us"): [1],
    pa.null(): [None],
}


def nested(kind: pa.DataType) -> list[tuple[pa.DataType, Any]]:
    """Types with values of this one in them, and how one is put there."""
    return [
        (pa.list_(kind), lambda value: [value]),
        (pa.large_list(kind), lambda value: [value]),
        (pa.list_(kind, 1), lambda value: [value]),
        (pa.struct([("a", kind)]), lambda value: {"a": value}),
        (pa.struct([("b", kind)]), lambda value: {"b": value}),
        (pa.map_(pa.string(), kind), lambda value: [("k", value)]),
        (pa.list_(pa.struct([("a", kind)])), lambda value: [{"a": value}]),
    ]


INNER = [pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.timestamp("us"), pa.timestamp("ns")]
TYPES: dict[pa.DataType, list[Any]] = {
    **PLAIN,
    **{outer: [put(v) for v in PLAIN[kind]] for kind in INNER for outer, put in nested(kind)},
}


@functools.cache
def columns(kind: pa.DataType) -> list[pa.ChunkedArray]:
    """One column for each value that this type has; a null, which any has, and no row."""
    found = [pa.chunked_array([pa.nulls(1, kind)]), pa.chunked_array([], kind)]
    for value in TYPES[kind]:
        try:
            found.append(pa.chunked_array([pa.array([value], kind)]))
        except (pa.ArrowException, OverflowError, ValueError):
            continue  # this type does not hold it
    return found


def outcome(take: Any, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.Table | str:
    schema = pa.schema([("x", wanted)])
    try:
        return take(pa.table({"x": column}), schema, "what it puts out")
    except DataError:
        return "refused"


def is_declarable(kind: pa.DataType) -> bool:
    """Whether a processor may declare a column of it."""
    try:
        return plain_type(kind, "x") == kind
    except (TypeError, ValueError):
        return False


DECLARED = [kind for kind in TYPES if is_declarable(kind)]


@pytest.mark.parametrize("wanted", DECLARED, ids=str)
def test_the_engine_and_the_reference_take_the_same_values(wanted: pa.DataType) -> None:
    taken = 0
    for kind in TYPES:
        for column in columns(kind):
            engine, reference = (outcome(take, column, wanted) for take in (coerce_rows, coerce_to_schema))
            values = str(column)
            assert isinstance(engine, str) == isinstance(reference, str), f"{kind} {values}: {engine} | {reference}"
            if isinstance(engine, pa.Table):
                taken += 1
                assert str(engine["x"]) == str(reference["x"]) and engine.schema == reference.schema, f"{kind} {values}"
    assert taken


@pytest.mark.parametrize("take", [coerce_rows, coerce_to_schema], ids=["engine", "reference"])
@pytest.mark.parametrize("value", [1e300, -1e300])
def test_a_finite_number_never_becomes_infinite(take: Any, value: float) -> None:
    """Arrow's own cast allows it."""
    shapes = [(pa.float64(), lambda value: value), *nested(pa.float64())]
    narrow = [pa.float32(), *(kind for kind, _ in nested(pa.float32()))]
    for (given, put), wanted in zip(shapes, narrow, strict=True):
        if not is_declarable(wanted):
            continue
        column, schema = pa.chunked_array([pa.array([None, put(value)], given)]), pa.schema([("x", wanted)])
        with pytest.raises(DataError, match=r"what it puts out has .*'x'.* does not hold; declare it as double"):
            take(pa.table({"x": column}), schema, "what it puts out")
        endless = pa.chunked_array([pa.array([None, put(float("inf"))], given)])
        assert take(pa.table({"x": endless}), schema, "what it puts out").num_rows == 2


def test_the_engine_and_the_reference_take_the_same_columns_of_a_source() -> None:
    """What a source delivers is not converted, unlike what a user's code hands over."""
    for declared in TYPES:
        taken = [kind for kind in TYPES if is_same_kind(kind, pa.field("x", declared))]
        assert taken == [kind for kind in TYPES if tuples.same_kind(kind, declared)], declared
