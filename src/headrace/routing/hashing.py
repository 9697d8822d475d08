"""The hash that assigns tuples to groups.

Invariant: the group of a tuple depends only on the canonical values of its columns and on the number of groups. It does
not depend on the machine, the version of a library, the chunking of a table or the order of its rows. State on disk
relies on this, so a change of the hash is a change of the state format (tests/unit/routing has golden values).

Canonical values: integers, booleans, dates and times as 64-bit integers; floating-point numbers as 64-bit patterns with
-0.0 as 0.0 and a single NaN; text and bytes by XXH3-64 of their bytes; decimals by their 128 bits; nested values by
DuckDB's text for them. Each 64-bit value is mixed by the finaliser of SplitMix64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.columnar import duck
from headrace.columnar.arrow import SAFE
from headrace.columnar.types import has_float

Hashes = npt.NDArray[np.uint64]
Groups = npt.NDArray[np.int32]

HASH = "__h"  # the column in state with the hash of a tuple's key
NULL = np.uint64(0x9AE16A3B2F90404F)
_SEED = np.uint64(0x9E3779B97F4A7C15)


def groups_of(
    table: pa.Table, columns: Sequence[str], groups: int, types: Sequence[pa.DataType] | None = None
) -> Groups:
    """Return the group of every row by the hash of `columns`, each cast to its type in `types` first."""
    return scale(hash_rows(table, columns, types), groups)


def scale(hashes: Hashes, groups: int) -> Groups:
    """Return the groups of hashes.

    Groups are equal ranges of the upper 32 bits of the hash, so tuples sorted by hash are also sorted by group.
    """
    scaled = ((hashes >> np.uint64(32)) * np.uint64(groups)) >> np.uint64(32)
    return scaled.astype(np.int32)


def hash_column_of(table: pa.Table) -> Hashes:
    """Return the hashes that the table stores in the column `__h`."""
    column = table.column(HASH)
    return np.asarray(column.chunk(0) if column.num_chunks == 1 else column)


def hash_rows(table: pa.Table, columns: Sequence[str], types: Sequence[pa.DataType] | None = None) -> Hashes:
    """Return one 64-bit hash per row over `columns`, in the given order, each cast to its type in `types` first."""
    total = np.full(table.num_rows, _SEED, dtype=np.uint64)
    for index, name in enumerate(columns):
        column = table.column(name)
        if types is not None and column.type != types[index]:
            column = column.cast(types[index])
        total = mix(total * np.uint64(31) + hash_column(column))
    return total


def hash_column(column: pa.ChunkedArray) -> Hashes:
    """Return one 64-bit hash per value."""
    if not isinstance(column, pa.ChunkedArray):
        return _hash_array(column)
    if column.num_chunks > 1 and column.nbytes > SAFE:  # more text than one array can hold
        return np.concatenate([_hash_array(chunk) for chunk in column.chunks])
    return _hash_array(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type))


def _hash_array(array: pa.Array) -> Hashes:
    hashes = _values(array)
    if array.null_count:
        hashes = np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, hashes)
    return hashes


def mix(x: Hashes) -> Hashes:
    """Return the finaliser of SplitMix64 for each number."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def _values(array: pa.Array) -> Hashes:
    kind = array.type
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _texts(array)
    if pa.types.is_decimal(kind):
        return _decimals(array)
    if pa.types.is_nested(kind):
        return _nested(array)
    return mix(_integers(array).view(np.uint64))


def _integers(array: pa.Array) -> npt.NDArray[np.int64]:
    kind = array.type
    if pa.types.is_uint64(kind):
        return np.asarray(array.fill_null(0)).view(np.int64)
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    return np.asarray(array.cast(pa.int64()).fill_null(0))


def _floats(array: pa.Array) -> Hashes:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        values = np.array(array.cast(pa.float64()).fill_null(0.0), dtype=np.float64) + 0.0  # -0.0 + 0.0 = 0.0
    values[np.isnan(values)] = np.nan
    return mix(values.view(np.uint64))


def _texts(array: pa.Array) -> Hashes:
    """Hash each distinct value once, because keys repeat."""
    encoded = pc.dictionary_encode(array.cast(pa.binary()))
    distinct = np.array([xxhash.xxh3_64_intdigest(v) for v in encoded.dictionary.to_pylist()] or [0], dtype=np.uint64)
    found: Hashes = distinct[np.asarray(encoded.indices.fill_null(0))]
    return found


def _decimals(array: pa.Array) -> Hashes:
    wide = array.cast(pa.decimal128(38, array.type.scale))
    halves = np.frombuffer(wide.buffers()[1], dtype=np.uint64).reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
    with np.errstate(over="ignore"):
        return mix(mix(halves[:, 0].copy()) * np.uint64(31) + halves[:, 1])


def _nested(array: pa.Array) -> Hashes:
    if has_float(array.type):  # equal values can have different texts (-0.0); a single group is slow but correct
        return np.zeros(len(array), dtype=np.uint64)
    text = duck.run_select("SELECT CAST(c AS VARCHAR) AS c FROM __tuples", {duck.TUPLES: pa.table({"c": array})})
    return hash_column(text.column(0))
