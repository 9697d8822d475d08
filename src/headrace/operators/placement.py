"""Placement of results in slots, which lets a downstream operator run there without an exchange."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

Types = tuple[pa.DataType, ...] | None


@dataclass(frozen=True)
class Placement:
    """Placement by the values of some columns. Each value may be in several columns of the result."""

    leader: str
    columns: tuple[frozenset[str], ...]
    types: Types


def is_placed_by(column: str, schema: pa.Schema, placed: Placement, place: int, kind: pa.DataType) -> bool:
    """Return whether `column`, hashed as `kind`, has the value at `place` that places the tuples."""
    hashed_as = placed.types[place] if placed.types is not None else schema.field(column).type
    return column in placed.columns[place] and _hashes_like(hashed_as) == _hashes_like(kind)


def _hashes_like(kind: pa.DataType) -> pa.DataType:
    """Return the type that `headrace.routing.hashing` hashes `kind` as: all integers hash alike, and so do all floats."""
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind
