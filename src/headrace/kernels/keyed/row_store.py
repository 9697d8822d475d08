# mypy: disable-error-code="no-untyped-def"
"""The rows, the index and the heap of a state table: compiled loops over its areas.

    a row     word 0: checksum (32 bits), validity of values (24), flags (8); then values, as `row_layout.RowLayout` places
              them; the last word is the epoch whose changes contained the row
    index     open addressing by the key: row (30 bits), tag (26), check (8). The tag also gives the home place of an entry, so
              the index is enlarged, and entries are removed, without reading rows
    heap      (time, row and check): every live row that has a time has an entry with that time or an earlier one. `bound`, a
              word of the row, is the time of that entry; other entries, and those of deleted rows, are dropped later

Invariant: everything read from an area is verified by its check before it is used, and no number read there is used as
a place before its range is known. An entry, or a row at rest, with one wrong bit is never taken for another one; nor is
a page of zeros. Rows in work (written, or handed out for writing, since the last `seal`) have their place in the list
of work instead of a checksum, and are valid only if that list has them at this place.

Functions called from outside take `Areas` and `ColumnShape` as plain tuples, because the compiler infers those types
much faster. All functions that find damage return its place: `WHOLE` or `damage(area, place)`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace.columnar.numba_loops import copy_piece
from headrace.kernels.keyed import row_layout
from headrace.kernels.keyed.row_layout import FLOATS, NEVER, TIMES

U = np.uint64
Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

# flags of a row; a row at rest is LIVE or FREE and has no other flag
LIVE, WORKING, CHANGED, NEW, FREE = U(1), U(2), U(4), U(8), U(16)
FLAGS, CONTENT, HALF, NO_SUM = U(0xFF), U(0xFFFFFFFF), U(32), U(1 << 32)

# reference to a value of variable width: its first word in the text, and its length in bytes
LENGTH, LENGTH_BITS = U(row_layout.LENGTH), U(row_layout.LENGTH_BITS)

ROW_BITS, TAG_BITS = 30, 26
MOST_ROWS, MOST_TEXT = 1 << ROW_BITS, 1 << 33
TAG_SHIFT, CHECK_SHIFT, FROM_HASH = U(ROW_BITS), U(ROW_BITS + TAG_BITS), U(64 - TAG_BITS)
ROW_MASK, TAG_MASK, CHECK_MASK = U(MOST_ROWS - 1), U((1 << TAG_BITS) - 1), U(0xFF << (ROW_BITS + TAG_BITS))
CHECKED = U(0xA5)
EMPTY_ENTRY = U(0x5A << (ROW_BITS + TAG_BITS))  # all bits of its check are wrong

FACTOR, SEED_KEY, SEED_ROW, SEED_HEAP = (
    U(0x9E3779B97F4A7C15),
    U(0x243F6A8885A308D3),
    U(0x13198A2E03707344),
    U(0xA4093822299F31D0),
)

LONG_VALUE_WORDS = 16  # longer values are summed in four lanes

# counters in the head
TOP, ROWS, FREE_LIST, FREES, TEXT_USED, TEXT_LIVE, HEAP, WORK = range(8)
COUNTERS = 8

WHOLE, UNTOLD, NO_SPACE, NO_ROW = -1, -2, -3, -4
IN_ROWS, IN_INDEX, IN_HEAP = range(3)
AREAS = 4

MAKE, HOLD = 1, 2  # options of `find`
ABREAST = 32  # keys whose entries and rows are prefetched together


class Areas(NamedTuple):
    """The areas of bytes that hold a keyed table, as arrays."""

    rows: Words  # [row, word]
    entries: Words  # of the index
    text: Words
    heap: Numbers  # [entry, (time, row and check)]
    work: Numbers  # rows in work
    sums: Words  # checksums of these rows when they were at rest
    head: Numbers


class ColumnShape(NamedTuple):
    """The facts about the columns that the loops need."""

    key: Words  # which bits of the first words of a row are the key
    plain: Words  # which bits are copied when a row is put
    slots: Words  # which bits refer to a value of variable width
    made: Words  # a row that `find` creates
    texts: Numbers  # the words that refer to text, those of the key first
    key_texts: int
    faces: Numbers  # [column that may be written in place, (word, shift, bits, kind, word and bit of its validity)]
    due: Numbers  # (word of the time, word and bit of its validity, word of the bound), or empty


@compile_inner
def damage(area, place):
    return place * AREAS + area


# --- rows ------------------------------------------------------------------------------------------------------------


@compile_inner
def mixed(sum_, word):
    sum_ = (sum_ ^ word) * FACTOR
    return sum_ ^ (sum_ >> HALF)


@compile_inner
def words_of(slot):
    return np.int64(((slot & LENGTH) + U(7)) >> U(3))


@compile_inner
def room_of(slot):
    """Return the words reserved for a value. A long value gets up to an eighth more, so that it can grow a little."""
    words, step = words_of(slot), 1
    while words >= 16 * step:
        step *= 2
    return (words + step - 1) // step * step


@compile_inner
def mixed_text(sum_, text, slot):
    start, size, done = np.int64(slot >> LENGTH_BITS), words_of(slot), 0
    piece = text[start : start + size]
    if size >= LONG_VALUE_WORDS:  # four independent sums
        one, two, three = mixed(sum_, SEED_KEY), mixed(sum_, SEED_ROW), mixed(sum_, SEED_HEAP)
        for place in range(0, size - 3, 4):
            sum_, one = mixed(sum_, piece[place]), mixed(one, piece[place + 1])
            two, three = mixed(two, piece[place + 2]), mixed(three, piece[place + 3])
        sum_ = mixed(mixed(mixed(sum_, one), two), three)
        done = size // 4 * 4
    for place in range(done, size):
        sum_ = mixed(sum_, piece[place])
    return sum_


@compile_inner
def checksum(areas, shape, row, flags):
    """Return the checksum of a row with these flags, or `NO_SUM` if a value refers to a place outside the text."""
    rows = areas.rows
    found = mixed(mixed(SEED_ROW, U(row)), (rows[row, 0] & (CONTENT ^ FLAGS)) | flags)
    for word in range(1, rows.shape[1]):
        found = mixed(found, rows[row, word])
    if not flags & FREE:
        for word in shape.texts:
            slot = rows[row, word]
            if np.int64(slot >> LENGTH_BITS) + words_of(slot) > areas.head[TEXT_USED]:
                return NO_SUM
            found = mixed_text(found, areas.text, slot)
    return found >> HALF


@compile_inner
def is_sound(areas, shape, row):
    first = areas.rows[row, 0]
    if first & WORKING:
        place = np.int64(first >> HALF)
        return place < areas.head[WORK] and areas.work[place] == row
    return first >> HALF == checksum(areas, shape, row, first & FLAGS)


@compile_inner
def take_up(areas, row):
    """Move a row to the list of work."""
    first = areas.rows[row, 0]
    if not first & WORKING:
        place = areas.head[WORK]
        areas.work[place] = row
        areas.sums[place] = first >> HALF
        areas.rows[row, 0] = (U(place) << HALF) | (first & CONTENT) | WORKING
        areas.head[WORK] = place + 1


@compile_inner
def lay_down(areas, shape, row, flags):
    """Put a row at rest, with these flags and its checksum."""
    first = (areas.rows[row, 0] & (CONTENT ^ FLAGS)) | flags
    areas.rows[row, 0] = first
    areas.rows[row, 0] = first | (checksum(areas, shape, row, flags) << HALF)


@compile_inner
def stored(areas, old, new, text):
    """Store the value that is `new` in another text, in place of `old` if the space is the same; return its reference."""
    size, room, head = words_of(new), room_of(new), areas.head
    start = np.int64(old >> LENGTH_BITS)
    if room != room_of(old):
        head[TEXT_LIVE] += room - room_of(old)
        start = head[TEXT_USED]
        head[TEXT_USED] += room
    if size == 0:
        return U(0)
    source = np.int64(new >> LENGTH_BITS)
    copy_piece(text[source : source + size], areas.text[start : start + size])
    return (U(start) << LENGTH_BITS) | (new & LENGTH)


@compile_inner
def free(areas, shape, row):
    """Free a row in work that nothing refers to."""
    rows, head = areas.rows, areas.head
    for word in shape.texts:
        head[TEXT_LIVE] -= room_of(rows[row, word])
    for word in range(1, rows.shape[1]):
        rows[row, word] = U(0)
    rows[row, 0] = (rows[row, 0] >> HALF << HALF) | WORKING | FREE
    rows[row, 1] = U(head[FREE_LIST])
    head[FREE_LIST] = row + 1
    head[FREES] += 1


@compile_inner
def taken(areas, shape):
    """Return an unused row; a negative number if the next free row is damaged."""
    head = areas.head
    row = head[FREE_LIST] - 1
    if row < 0:
        head[TOP] += 1
        return head[TOP] - 1
    if row >= head[TOP] or not is_sound(areas, shape, row) or not areas.rows[row, 0] & FREE:
        return np.int64(-1)
    head[FREE_LIST] = np.int64(areas.rows[row, 1])
    head[FREES] -= 1
    return row


@compile_inner
def has_room(areas, shape, key):
    """Return whether there is a free row, and text space for a key."""
    size = areas.head[TEXT_USED]
    for place in range(shape.key_texts):
        size += room_of(key[shape.texts[place]])
    return size <= len(areas.text) and (areas.head[TOP] < len(areas.rows) or areas.head[FREE_LIST] > 0)


@compile_inner
def begin(areas, shape, row, key, text, revived):
    """Create a row for a key, with zeros and nulls. revived: the row already has the key."""
    rows = areas.rows
    take_up(areas, row)
    first, last = rows[row, 0], rows.shape[1] - 1
    written = rows[row, last] if revived else U(0)
    flags = LIVE | WORKING | CHANGED | (first & NEW if revived else NEW)
    for place in range(len(shape.texts)):
        word = shape.texts[place]
        if place < shape.key_texts and not revived:
            rows[row, word] = stored(areas, U(0), key[word], text)
        elif place >= shape.key_texts:
            if revived:
                areas.head[TEXT_LIVE] -= room_of(rows[row, word])
            rows[row, word] = U(0)
    for word in range(rows.shape[1]):
        value = (rows[row, word] & shape.slots[word]) | shape.made[word]
        if word < len(key):
            value |= key[word] & shape.key[word] & shape.plain[word]
        rows[row, word] = value
    rows[row, 0] |= (first >> HALF << HALF) | flags
    rows[row, last] = written
    areas.head[ROWS] += 1


@compile_cached
def unsound(areas, shape, numbers):
    """Return the damage if one of these rows is damaged."""
    areas, shape = Areas(*areas), ColumnShape(*shape)
    for row in numbers:
        if not is_sound(areas, shape, row):
            return damage(IN_ROWS, row)
    return WHOLE


@compile_cached
def write(areas, shape, images, text, numbers):
    """Write the values of existing rows. An image has the layout of a row, and its texts are in `text`."""
    areas, shape = Areas(*areas), ColumnShape(*shape)
    rows = areas.rows
    for place in range(len(numbers)):
        row = numbers[place]
        take_up(areas, row)
        for word in shape.texts[shape.key_texts :]:
            rows[row, word] = stored(areas, rows[row, word], images[place, word], text)
        for word in range(rows.shape[1]):
            rows[row, word] = (rows[row, word] & ~shape.plain[word]) | (images[place, word] & shape.plain[word])
        rows[row, 0] |= CHANGED
        found = schedule(areas, shape, row)
        if found != WHOLE:
            return found
    return WHOLE


@compile_cached
def touch(areas, shape, numbers):
    """Record rows that were written in place. Return NO_ROW, without changes, if one of them is not a live row in work.

    A null whose value is unchanged stays null; a time that has the null pattern becomes null.
    """
    areas, shape = Areas(*areas), ColumnShape(*shape)
    rows, head = areas.rows, areas.head
    for row in numbers:
        if row < 0 or row >= head[TOP] or rows[row, 0] & (LIVE | WORKING) != LIVE | WORKING:
            return NO_ROW
    for row in numbers:
        for face in range(len(shape.faces)):
            word, shift, bits, kind, valid_word, valid_bit = shape.faces[face]
            value = (rows[row, word] >> U(shift)) & (U(0xFFFFFFFFFFFFFFFF) >> U(64 - bits))
            sign = U(1) << U(bits - 1)
            valid = U(1) << U(valid_bit)
            if kind == TIMES:
                some = value != sign
                rows[row, valid_word] &= ~valid
            elif kind == FLOATS:
                some = value & (sign - U(1)) <= (U(0x7F800000) if bits == 32 else U(0x7FF0000000000000))
            else:
                some = value != U(0)
            if some:
                rows[row, valid_word] |= valid
        rows[row, 0] |= CHANGED
        found = schedule(areas, shape, row)
        if found != WHOLE:
            return found
    return WHOLE


@compile_cached
def delete(areas, shape, numbers):
    """Delete rows. A row whose key existed at the last `seal` keeps it until the next one."""
    areas, shape = Areas(*areas), ColumnShape(*shape)
    rows = areas.rows
    for row in numbers:
        if row < 0 or not rows[row, 0] & LIVE:  # the key occurs twice in the call
            continue
        take_up(areas, row)
        rows[row, 0] &= ~(LIVE | CHANGED)
        areas.head[ROWS] -= 1
        if rows[row, 0] & NEW:
            found = dismiss(areas, shape, row)
            if found != WHOLE:
                return found
    return WHOLE


@compile_cached
def seal(areas, shape, epoch):
    """Put all rows in work at rest. Changed rows get `epoch`, unless it is negative.

    Return (UNTOLD, row), without changes, if a row was written in place without a call of `touch`.
    """
    areas, shape = Areas(*areas), ColumnShape(*shape)
    rows, head = areas.rows, areas.head
    for place in range(head[WORK]):
        row = areas.work[place]
        if rows[row, 0] & (LIVE | CHANGED) == LIVE and checksum(areas, shape, row, LIVE) != areas.sums[place]:
            return UNTOLD, row
    for place in range(head[WORK]):
        row = areas.work[place]
        if not rows[row, 0] & (LIVE | FREE):
            found = dismiss(areas, shape, row)
            if found != WHOLE:
                return found, row
    for place in range(head[WORK]):
        row = areas.work[place]
        if epoch >= 0 and rows[row, 0] & (LIVE | CHANGED) == LIVE | CHANGED:
            rows[row, rows.shape[1] - 1] = U(epoch)
        lay_down(areas, shape, row, rows[row, 0] & (LIVE | FREE))
    head[WORK] = 0
    return WHOLE, np.int64(0)


# --- text ------------------------------------------------------------------------------------------------------------


@compile_cached
def copy(source, starts, lengths, target, places):
    """Copy bytes from some places to others."""
    for value in range(len(starts)):
        start, place, size = starts[value], places[value], lengths[value]
        copy_piece(source[start : start + size], target[place : place + size])


@compile_cached
def compact(areas, shape, text):
    """Move the values of all rows to another, large enough text, without dead values."""
    areas, shape = Areas(*areas), ColumnShape(*shape)
    rows, head, sums = areas.rows, areas.head, areas.sums
    for row in range(head[TOP]):
        if not is_sound(areas, shape, row):
            return damage(IN_ROWS, row)
        first = rows[row, 0]
        if first & (LIVE | WORKING | CHANGED) == LIVE | WORKING:
            place = np.int64(first >> HALF)
            if checksum(areas, shape, row, LIVE) != sums[place]:
                sums[place] = NO_SUM  # written without a call of `touch` so far
    head[TEXT_USED] = head[TEXT_LIVE] = 0
    moved = Areas(rows, areas.entries, text, areas.heap, areas.work, sums, head)
    for row in range(head[TOP]):
        first = rows[row, 0]
        if first & FREE:
            continue
        for word in shape.texts:
            rows[row, word] = stored(moved, U(0), rows[row, word], areas.text)
        if not first & WORKING:
            lay_down(moved, shape, row, first & FLAGS)
        elif sums[np.int64(first >> HALF)] != NO_SUM:
            sums[np.int64(first >> HALF)] = checksum(moved, shape, row, LIVE)
    return WHOLE


# --- the index -------------------------------------------------------------------------------------------------------


@compile_inner
def folded(entry):
    entry ^= entry >> HALF
    entry ^= entry >> U(16)
    return (entry ^ (entry >> U(8))) & U(0xFF)


@compile_inner
def entry_of(tag, row):
    entry = (tag << TAG_SHIFT) | U(row)
    return entry | ((folded(entry) ^ CHECKED) << CHECK_SHIFT)


@compile_inner
def is_entry(entry):
    return folded(entry) == CHECKED


@compile_inner
def home(tag, slots):
    return np.int64((tag * U(slots)) >> U(TAG_BITS))


@compile_inner
def following(place, slots):
    return place + 1 if place + 1 < slots else 0


@compile_inner
def hash_of(shape, image, text):
    found = SEED_KEY
    for word in range(len(shape.key)):
        found = mixed(found, image[word] & shape.key[word])
    for place in range(shape.key_texts):
        found = mixed_text(found, text, image[shape.texts[place]])
    return mixed(found, FACTOR)


@compile_inner
def is_key(areas, shape, row, image, text):
    for word in range(len(shape.key)):
        if (areas.rows[row, word] ^ image[word]) & shape.key[word]:
            return False
    for place in range(shape.key_texts):
        word = shape.texts[place]
        one, other = np.int64(areas.rows[row, word] >> LENGTH_BITS), np.int64(image[word] >> LENGTH_BITS)
        for part in range(words_of(image[word])):
            if areas.text[one + part] != text[other + part]:
                return False
    return True


@compile_inner
def approach(areas, shape, keys, text, hashes, numbers, start, stop):
    """Prefetch the entries and rows that some keys will be compared with. `numbers` gets the values, so that they are
    read."""
    entries, rows = areas.entries, areas.rows
    for key in range(start, stop):
        hashes[key] = hash_of(shape, keys[key], text)
        numbers[key] = np.int64(entries[home(hashes[key] >> FROM_HASH, len(entries))] & ROW_MASK)
    for key in range(start, stop):
        if numbers[key] < areas.head[TOP]:
            numbers[key] = np.int64(rows[numbers[key], 0])


@compile_cached
def find(areas, shape, keys, text, hashes, numbers, does):
    """Find the row of each key, or -1. MAKE: create rows for keys that have none; HOLD: move rows to work."""
    areas, shape = Areas(*areas), ColumnShape(*shape)
    entries, head = areas.entries, areas.head
    slots = len(entries)
    for key in range(len(keys)):
        if not does & MAKE:
            if key % ABREAST == 0:
                approach(areas, shape, keys, text, hashes, numbers, key, min(key + ABREAST, len(keys)))
            numbers[key] = -1
        elif numbers[key] >= 0:
            continue
        tag = hashes[key] >> FROM_HASH
        place, row, met = home(tag, slots), np.int64(-1), 0
        while entries[place] != EMPTY_ENTRY:
            entry = entries[place]
            if not is_entry(entry) or met == slots:
                return damage(IN_INDEX, place)
            if (entry >> TAG_SHIFT) & TAG_MASK == tag:
                row = np.int64(entry & ROW_MASK)
                if row >= head[TOP] or not is_sound(areas, shape, row) or areas.rows[row, 0] & FREE:
                    return damage(IN_ROWS, row)
                if is_key(areas, shape, row, keys[key], text):
                    break
                row = np.int64(-1)
            place, met = following(place, slots), met + 1
        if row >= 0 and areas.rows[row, 0] & LIVE:
            numbers[key] = row
            if does & HOLD:
                take_up(areas, row)
        elif does & MAKE:
            revived = row >= 0
            if not revived:
                if not has_room(areas, shape, keys[key]):
                    return NO_SPACE
                row = taken(areas, shape)
                if row < 0:
                    return damage(IN_ROWS, head[FREE_LIST] - 1)
                entries[place] = entry_of(tag, row)
            begin(areas, shape, row, keys[key], text, revived)
            found = schedule(areas, shape, row)
            if found != WHOLE:
                return found
            numbers[key] = row
    return WHOLE


@compile_inner
def dismiss(areas, shape, row):
    """Remove a row in work from the index, and free it."""
    index, slots = areas.entries, len(areas.entries)
    tag = hash_of(shape, areas.rows[row], areas.text) >> FROM_HASH
    place, met = home(tag, slots), 0
    while index[place] != entry_of(tag, row):
        if not is_entry(index[place]) or met == slots:
            return damage(IN_INDEX, place)
        place, met = following(place, slots), met + 1
    gap = place
    while True:  # entries that belong at the gap, or before it, move up
        place = following(place, slots)
        entry = index[place]
        if entry == EMPTY_ENTRY:
            break
        if not is_entry(entry):
            return damage(IN_INDEX, place)
        away = place - home((entry >> TAG_SHIFT) & TAG_MASK, slots)
        if (away if away >= 0 else away + slots) >= (place - gap if place >= gap else place - gap + slots):
            index[gap] = entry
            gap = place
    index[gap] = EMPTY_ENTRY
    free(areas, shape, row)
    return WHOLE


@compile_cached
def reindex(old, index):
    """Copy the entries to an index of another size."""
    slots = len(index)
    index[:] = EMPTY_ENTRY
    for place in range(len(old)):
        entry = old[place]
        if entry == EMPTY_ENTRY:
            continue
        if not is_entry(entry):
            return damage(IN_INDEX, place)
        target = home((entry >> TAG_SHIFT) & TAG_MASK, slots)
        while index[target] != EMPTY_ENTRY:
            target = following(target, slots)
        index[target] = entry
    return WHOLE


# --- the heap --------------------------------------------------------------------------------------------------------


@compile_inner
def packed(time, row):
    return np.int64((U(row) << HALF) | (mixed(mixed(SEED_HEAP, U(time)), U(row)) >> HALF))


@compile_inner
def row_at(heap, place):
    return heap[place, 1] >> 32


@compile_inner
def is_sound_entry(heap, place):
    return heap[place, 1] >= 0 and heap[place, 1] == packed(heap[place, 0], heap[place, 1] >> 32)


@compile_inner
def is_before(heap, one, other):
    if heap[one, 0] != heap[other, 0]:
        return heap[one, 0] < heap[other, 0]
    return heap[one, 1] < heap[other, 1]


@compile_inner
def swap(heap, one, other):
    for part in range(2):
        heap[one, part], heap[other, part] = heap[other, part], heap[one, part]


@compile_inner
def push(areas, time, row):
    """Add an entry. Return damage in the entries it is compared with: above an altered time it would be lost."""
    heap, place = areas.heap, areas.head[HEAP]
    heap[place, 0], heap[place, 1] = time, packed(time, row)
    areas.head[HEAP] += 1
    while place > 0:
        parent = (place - 1) // 2
        if not is_sound_entry(heap, parent):
            return damage(IN_HEAP, parent)
        if not is_before(heap, place, parent):
            break
        swap(heap, place, parent)
        place = parent
    return WHOLE


@compile_inner
def sink(heap, size, place):
    """Move an entry down to its place; return damage in the entries it is compared with."""
    while True:
        least = place
        for child in range(2 * place + 1, min(2 * place + 3, size)):
            if not is_sound_entry(heap, child):
                return damage(IN_HEAP, child)
            if is_before(heap, child, least):
                least = child
        if least == place:
            return WHOLE
        swap(heap, place, least)
        place = least


@compile_inner
def has_time(areas, shape, row):
    return areas.rows[row, shape.due[1]] >> U(shape.due[2]) & U(1)


@compile_inner
def schedule(areas, shape, row):
    """Make sure that a row in work has an entry that is not later than its time."""
    if len(shape.due) and has_time(areas, shape, row):
        time = np.int64(areas.rows[row, shape.due[0]])
        if time < np.int64(areas.rows[row, shape.due[3]]):
            areas.rows[row, shape.due[3]] = U(time)
            return push(areas, time, row)
    return WHOLE


@compile_inner
def rebound(areas, shape, row, time):
    """Record that a verified row now has an entry with another time."""
    first, place = areas.rows[row, 0], np.int64(areas.rows[row, 0] >> HALF)
    is_held = first & (LIVE | WORKING | CHANGED) == LIVE | WORKING
    is_told = is_held and checksum(areas, shape, row, LIVE) == areas.sums[place]
    areas.rows[row, shape.due[3]] = U(time)
    if not first & WORKING:
        lay_down(areas, shape, row, first & FLAGS)
    elif is_told:  # nothing was written in place, and the new bound must not look like it
        areas.sums[place] = checksum(areas, shape, row, LIVE)


@compile_inner
def is_current(areas, shape, row, time):
    return areas.rows[row, 0] & LIVE != U(0) and np.int64(areas.rows[row, shape.due[3]]) == time


@compile_cached
def until(areas, shape, time, rows):
    """Return (damage, number of rows due at `time` or before); these rows are in `rows`.

    Entries that stay due are moved behind the end of the heap, and then back.
    """
    areas, shape = Areas(*areas), ColumnShape(*shape)
    heap, head = areas.heap, areas.head
    end, kept, last_at, last = head[HEAP], 0, np.int64(0), np.int64(-1)
    if end and not is_sound_entry(heap, 0):
        return damage(IN_HEAP, 0), 0
    while head[HEAP] and heap[0, 0] <= time:
        at, row = heap[0, 0], row_at(heap, 0)
        head[HEAP] -= 1
        if head[HEAP]:
            if not is_sound_entry(heap, head[HEAP]):
                return damage(IN_HEAP, head[HEAP]), 0
            swap(heap, 0, head[HEAP])
            found = sink(heap, head[HEAP], 0)
            if found != WHOLE:
                return found, 0
        if row >= head[TOP] or not is_sound(areas, shape, row):
            return damage(IN_ROWS, row), 0
        if (at == last_at and row == last) or not is_current(areas, shape, row, at):
            continue
        due = np.int64(areas.rows[row, shape.due[0]]) if has_time(areas, shape, row) else NEVER
        if due != at:
            rebound(areas, shape, row, due)
            if due != NEVER:
                found = push(areas, due, row)  # the loop finds it again, if it is due
                if found != WHOLE:
                    return found, 0
            continue
        kept, last_at, last = kept + 1, at, row
        heap[end - kept, 0], heap[end - kept, 1] = at, row
    for place in range(kept):
        rows[place] = heap[end - kept + place, 1]
        found = push(areas, heap[end - kept + place, 0], rows[place])
        if found != WHOLE:
            return found, 0
    return WHOLE, kept


@compile_cached
def thin(areas, shape):
    """Remove entries that belong to no row. The caller must sort the remaining ones."""
    areas, shape = Areas(*areas), ColumnShape(*shape)
    heap, head = areas.heap, areas.head
    size = 0
    for place in range(head[HEAP]):
        row = row_at(heap, place)
        if not is_sound_entry(heap, place):
            return damage(IN_HEAP, place)
        if row >= head[TOP] or not is_sound(areas, shape, row):
            return damage(IN_ROWS, row)
        if is_current(areas, shape, row, heap[place, 0]):
            swap(heap, size, place)
            size += 1
    head[HEAP] = size
    return WHOLE
