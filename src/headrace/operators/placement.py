"""How tuples lie in slots, so that an operator behind can find them there and needs no exchange."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

Types = tuple[pa.DataType, ...] | None


@dataclass(frozen=True)
class Placement:
    """By the values of some columns, each of which may stand under several names."""

    leader: str
    columns: tuple[frozenset[str], ...]
    types: Types


def is_placed_by(column: str, schema: pa.Schema, placed: Placement, place: int, kind: pa.DataType) -> bool:
    """Whether a column, hashed as a type, lies where tuples are placed by their value at a place."""
    hashed_as = placed.types[place] if placed.types is not None else schema.field(column).type
    return column in placed.columns[place] and _hashes_like(hashed_as) == _hashes_like(kind)


def _hashes_like(kind: pa.DataType) -> pa.DataType:
    """Whole numbers of any width hash alike, and so do floating point numbers (`headrace.routing.hashing`)."""
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind
