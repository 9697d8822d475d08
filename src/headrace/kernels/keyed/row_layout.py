"""The layout of rows of a state table: the place of each column, and how rows are read and written.

A row is several words of 8 bytes. The first word has flags and the validity of the values (tables with many columns
have further words for this). Then follow the values of fixed width, in their own width, and one word for each value of
variable width. That word refers to the text area, which has the bytes of a text, or a nested value as `packed_values`
writes it.

Invariant: a row reads as the same bits that were written. Unused bits are zero, and a null and each key value have only
one form (see `_one_form`). The keys of two rows are therefore equal iff their bits and texts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columnar.arrow import Numbers
from headrace.kernels.keyed import packed_values
from headrace.kernels.keyed.packed_values import PackedValues
from headrace.processor import StateTable

Values = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

WORD = 8
FLAGS = 8  # bits of the first word that are not validity
IN_FIRST = 24  # columns whose validity is in the first word
MOST_ARRAY_BYTES = 1 << 30  # bytes of text or nested values that are read into one array

# `row_store` is compiled with these values and cached, so a change to them must also change that file
LENGTH_BITS = 31  # length bits of the word for a value of variable width; the other bits are its first word in the text
LENGTH = (1 << LENGTH_BITS) - 1
COUNTS, FLOATS, TIMES = range(3)  # kinds of columns that may be written in place
NEVER = np.iinfo(np.int64).max  # the bound of a row without an entry in the heap


@dataclass(frozen=True)
class RowColumn:
    """A column of a keyed table, and its place in a row."""

    name: str
    kind: pa.DataType
    is_key: bool
    dtype: np.dtype[Any] | None  # type of the values in a row; None: they are in the text
    nothing: Any  # stored for a null: a pattern that is not a value, if the type has one
    offset: int  # bytes from the start of the row
    valid_word: int
    valid_bit: int

    @property
    def word(self) -> int:
        return self.offset // WORD

    @property
    def is_face(self) -> bool:
        """Return whether the column can be viewed as an array: numbers, booleans, dates and times."""
        return self.dtype is not None and not pa.types.is_decimal(self.kind)

    @property
    def counts(self) -> bool:
        """Return whether the column has numbers or booleans, which start at zero in a new row."""
        return self.is_face and not pa.types.is_temporal(self.kind)

    def bits(self) -> Words:
        """Return which bits of the words from `word` on are the value."""
        width = WORD if self.dtype is None else self.dtype.itemsize
        marks = np.zeros(-(-(self.offset % WORD + width) // WORD) * WORD, np.uint8)
        marks[self.offset % WORD : self.offset % WORD + width] = 0xFF
        return marks.view(np.uint64)

    def face(self, rows: Words) -> Values:
        """Return the values of all rows, which can be read and written in place."""
        assert self.dtype is not None
        found: Values = rows.view(np.uint8)[:, self.offset : self.offset + self.dtype.itemsize].view(self.dtype)[:, 0]
        return found

    def shown(self, rows: Words) -> Values:
        """Return the values as NumPy types."""
        found = self.face(rows)
        return found.view(f"datetime64[{self.kind.unit}]") if pa.types.is_timestamp(self.kind) else found


def _form(kind: pa.DataType) -> tuple[np.dtype[Any] | None, Any]:
    """Return the NumPy type of values of fixed width (else None), and the pattern stored for a null."""
    t = pa.types
    if t.is_decimal(kind):
        return np.dtype(f"V{kind.byte_width}"), np.zeros((), f"V{kind.byte_width}")
    if t.is_date32(kind):
        return np.dtype(np.int32), np.iinfo(np.int32).min
    if t.is_timestamp(kind) or t.is_time64(kind):
        return np.dtype(np.int64), np.iinfo(np.int64).min  # NaT
    if t.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype()), np.nan
    return (np.dtype(kind.to_pandas_dtype()), 0) if t.is_integer(kind) or t.is_boolean(kind) else (None, None)


# --- places ----------------------------------------------------------------------------------------------------------


class RowLayout:
    """The columns of a table in its rows: the key first, then the others, each at the first place where it fits."""

    def __init__(self, declared: StateTable) -> None:
        names = [*declared.key, *declared.values]
        kinds = {name: declared.columns.field(name).type for name in names}
        further = -(-max(len(names) - IN_FIRST, 0) // (8 * WORD))
        self._taken = bytearray([1]) * (WORD * (1 + further))
        offsets = {name: self._place(_width(kinds[name])) for name in _by_width(declared.key, kinds)}
        self.key_words = -(-len(self._taken) // WORD)
        offsets |= {name: self._place(_width(kinds[name])) for name in _by_width(declared.values, kinds)}
        found = {
            name: RowColumn(
                name, kinds[name], name in declared.key, *_form(kinds[name]), offsets[name], *_validity(place)
            )
            for place, name in enumerate(names)
        }
        self.columns = {name: found[name] for name in declared.columns.names}
        self.bound = self._place(WORD) // WORD if declared.due is not None else None
        self.due = declared.due
        self.words = max(-(-len(self._taken) // WORD), 2) + 1  # the last word is the epoch that wrote the row

    def _place(self, width: int) -> int:
        """Reserve the first free bytes with the alignment of the value."""
        align = min(width, WORD)
        offset = next(at for at in range(0, len(self._taken) + align, align) if not any(self._taken[at : at + width]))
        self._taken.extend(bytes(max(offset + width - len(self._taken), 0)))
        self._taken[offset : offset + width] = b"\1" * width
        return offset

    def texts(self) -> list[RowColumn]:
        """Return the columns of variable width, those of the key first."""
        found = [column for column in self.columns.values() if column.dtype is None]
        return sorted(found, key=lambda column: not column.is_key)

    def masks(self) -> tuple[Words, Words, Words]:
        """Return masks of the bits of the key, of values of fixed width and validity, and of references to text."""
        key, plain, slots = np.zeros((3, self.words), np.uint64)
        for column in self.columns.values():
            bits = column.bits()
            covered = slice(column.word, column.word + len(bits))
            (slots if column.dtype is None else plain)[covered] |= bits
            if column.is_key:
                key[covered] |= bits if column.dtype is not None else np.uint64(LENGTH)
            for mask in (plain, key) if column.is_key else (plain,):
                mask[column.valid_word] |= np.uint64(1 << column.valid_bit)
        return key, plain, slots

    def made(self) -> Words:
        """Return the row that is created for writing in place, without its key: numbers are zero, everything else is
        null."""
        row = np.zeros((1, self.words), np.uint64)
        for column in self.columns.values():
            if column.is_key or column.dtype is None:
                continue
            if column.counts:
                row[0, column.valid_word] |= np.uint64(1 << column.valid_bit)
            else:
                column.face(row)[:] = column.nothing
        if self.bound is not None:
            row[0, self.bound] = NEVER
        return row.ravel()

    def faces(self) -> Numbers:
        """Return the columns that may be written in place: word, shift, bits, kind, word and bit of validity."""
        found = [
            [c.word, c.offset % WORD * 8, c.dtype.itemsize * 8, _kind(c), c.valid_word, c.valid_bit]
            for c in self.columns.values()
            if c.dtype is not None and c.is_face and not c.is_key
        ]
        return np.array(found, np.int64).reshape(-1, 6)

    def due_place(self) -> Numbers:
        """Return the word of `due`, the word and bit of its validity, and the word of the bound; empty without `due`."""
        if self.due is None or self.bound is None:
            return np.zeros(0, np.int64)
        column = self.columns[self.due]
        return np.array([column.word, column.valid_word, column.valid_bit, self.bound], np.int64)

    # --- keys --------------------------------------------------------------------------------------------------------

    def key_text(self, images: Words) -> int:
        """Return the words of text that the keys of these rows take."""
        slots = images[:, [column.word for column in self.texts() if column.is_key]]
        return int((((slots & np.uint64(LENGTH)) + np.uint64(WORD - 1)) // np.uint64(WORD)).sum())

    def keys(self, images: Words, text: Words) -> list[tuple[bytes, ...]]:
        """Return keys that Python can compare."""
        key, plain, _ = self.masks()
        words = images & (key & plain)[: self.key_words]
        places = [column.word for column in self.texts() if column.is_key]
        return [
            (row.tobytes(), *(_text_at(text, int(image[place])) for place in places))
            for row, image in zip(words, images, strict=True)
        ]

    # --- from Arrow to rows ------------------------------------------------------------------------------------------

    def images(self, table: pa.Table, words: int) -> tuple[Words, Words]:
        """Return rows as they would be stored (or their first words), and the text that they refer to."""
        images = np.zeros((table.num_rows, words), np.uint64)
        packed: list[tuple[RowColumn, PackedValues]] = []
        for name in table.column_names:
            column, values = self.columns[name], table.column(name)
            if column.dtype is None:
                found = _packed(values)
                packed.append((column, found))
                valid = found.valid
            else:
                raw, valid = _raw(column, _one_form(values) if column.is_key else values)
                column.face(images)[:] = raw
            images[:, column.valid_word] |= (
                np.uint64(1 << column.valid_bit)
                if valid is None
                else valid.astype(np.uint64) << np.uint64(column.valid_bit)
            )
        return images, _texts(images, packed)

    # --- from rows to Arrow ------------------------------------------------------------------------------------------

    def read(
        self, rows: Words, text: Words, numbers: Numbers, names: Sequence[str]
    ) -> list[pa.Array | pa.ChunkedArray]:
        """Return columns of these rows. A negative number is a missing row, with nulls."""
        found = rows[numbers]
        there = None if not len(numbers) or numbers.min() >= 0 else numbers >= 0
        return [_read(self.columns[name], found, text, there) for name in names]


def _text_at(text: Words, slot: int) -> bytes:
    start = (slot >> LENGTH_BITS) * WORD
    return text.view(np.uint8)[start : start + (slot & LENGTH)].tobytes()


def _kind(column: RowColumn) -> int:
    """Return how nulls are recognised in the column: see `row_store.touch`."""
    if pa.types.is_floating(column.kind):
        return FLOATS
    return COUNTS if column.counts else TIMES


def _width(kind: pa.DataType) -> int:
    dtype, _ = _form(kind)
    return WORD if dtype is None else dtype.itemsize


def _by_width(names: Sequence[str], kinds: dict[str, pa.DataType]) -> list[str]:
    return sorted(names, key=lambda name: -_width(kinds[name]))


def _validity(place: int) -> tuple[int, int]:
    if place < IN_FIRST:
        return 0, FLAGS + place
    word, bit = divmod(place - IN_FIRST, 8 * WORD)
    return 1 + word, bit


def _one_form(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return key values with one form each: a float has two zeros and many NaNs."""
    if not pa.types.is_floating(values.type):
        return values
    zero, nan = pa.scalar(0.0, values.type), pa.scalar(float("nan"), values.type)
    return pc.if_else(pc.is_nan(values), nan, pc.add(values, zero))


def _raw(column: RowColumn, values: pa.ChunkedArray) -> tuple[Values, Mask | None]:
    """Return values of fixed width, and which of them are not null (None: all)."""
    assert column.dtype is not None
    pieces = [packed_values.raw(chunk, column.dtype) for chunk in values.chunks]
    found = pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, column.dtype), *pieces])
    if not values.null_count:
        return found, None
    valid = packed_values.valid(values)
    found = found.copy()
    found[~valid] = column.nothing
    return found, valid


def _packed(values: pa.ChunkedArray) -> PackedValues:
    if pa.types.is_nested(values.type):
        return packed_values.pack_values(values)
    chunks = values.chunks
    if len(chunks) != 1:
        wide = pa.large_binary()
        chunks = [pa.concat_arrays([pa.array([], wide), *values.cast(wide).chunks])]
    ends = packed_values.offsets(chunks[0])
    lengths, valid = np.diff(ends), packed_values.valid(values) if values.null_count else None
    if valid is not None:
        lengths[~valid] = 0
    return PackedValues(packed_values.bytes_of(chunks[0].buffers()[2]), ends[:-1], lengths, valid)


def _texts(images: Words, packed: Sequence[tuple[RowColumn, PackedValues]]) -> Words:
    """Return the values of variable width one after the other, each from a new word on, and store the references in the
    rows."""
    sizes = [(found.lengths + WORD - 1) // WORD for _, found in packed]
    text = np.zeros(sum(int(size.sum()) for size in sizes), np.uint64)
    end = 0
    for (column, found), size in zip(packed, sizes, strict=True):
        starts = end + np.cumsum(size) - size
        end += int(size.sum())
        packed_values.copy(found.data, found.starts, found.lengths, text.view(np.uint8), starts * WORD)
        images[:, column.word] = (starts << LENGTH_BITS) | found.lengths
    return text


def _read(column: RowColumn, found: Words, text: Words, there: Mask | None) -> pa.Array | pa.ChunkedArray:
    valid = found[:, column.valid_word] & np.uint64(1 << column.valid_bit) != 0
    if there is not None:
        valid &= there
    if column.dtype is None:
        return _read_text(column, found[:, column.word], text, valid)
    return packed_values.from_raw(column.kind, np.ascontiguousarray(column.face(found)), valid)


def _read_text(column: RowColumn, slots: Words, text: Words, valid: Mask) -> pa.Array | pa.ChunkedArray:
    lengths = (slots & np.uint64(LENGTH)).view(np.int64) * valid
    starts = (slots >> np.uint64(LENGTH_BITS)).view(np.int64) * WORD
    pieces = _pieces(column.kind, text.view(np.uint8), starts, lengths, valid)
    return pieces[0] if len(pieces) == 1 else pa.chunked_array(pieces, column.kind)


def _pieces(kind: pa.DataType, text: Values, starts: Numbers, lengths: Numbers, valid: Mask) -> list[pa.Array]:
    """Return the values as arrays of limited length, by halving."""
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    half = len(starts) // 2
    if half and ends[-1] > MOST_ARRAY_BYTES:
        halves = (slice(0, half), slice(half, None))
        return [p for h in halves for p in _pieces(kind, text, starts[h], lengths[h], valid[h])]
    if pa.types.is_nested(kind):
        return [packed_values.unpack_values(kind, PackedValues(text, starts, lengths, valid))]
    data = np.empty(int(ends[-1]), np.uint8)
    packed_values.copy(text, starts, lengths, data, ends[:-1])
    buffers = [packed_values.bitmap(valid), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return [pa.Array.from_buffers(kind, len(starts), buffers)]
