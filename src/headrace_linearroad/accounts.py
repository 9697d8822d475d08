# mypy: disable-error-code="no-untyped-def"
"""Balances: the sum of a car's charged tolls, and the time that this sum is for.

A toll is notified when a car enters a segment, and charged when it enters the next one of the same journey (an event
with `driving.CHARGED`). Events of a second are processed before its questions, so an answer includes the whole second.

    official     the balance at the last notification, with that time; if the car leaves in this second, the balance now
    walmart      the balance now
    unknown car  zero, now

Accounts are in pages, by the second of the half minute in which a journey began, so nearly all events of a second are
in one page. A car whose journeys began in different seconds has several accounts: its balance is their sum, and its
last notification is the latest of theirs. Accounts are never removed, because a driver may ask at any time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.columnar.numba_cache import compile_cached, compile_inner
from headrace.processor import ProcessorTable, State
from headrace_linearroad.driving import CHARGED, LEAVES
from headrace_linearroad.forms import OUTPUTS
from headrace_linearroad.pages import (
    PAGES,
    Ints,
    Longs,
    Mask,
    Pages,
    Pieces,
    blobs,
    gather,
    has,
    place_after,
    place_in,
    put_in,
)
from headrace_linearroad.profiles import Profile
from headrace_linearroad.roads import SECOND

ASKED = 4  # `what` of a question; its `n` is the number of the question
LOW, HIGH, PENDING, LATE, ENTERED = range(
    5
)  # the balance in two words; notified but not charged; charged as the car left; second of the last notification + 1
REST = 5
LOWER = (1 << 32) - 1
NEVER = -1


class Events(NamedTuple):
    """Columns of events, by page and car, and those of one car in sequence."""

    page: npt.NDArray[np.int8]
    vid: Ints
    time: Longs
    what: npt.NDArray[np.int8]
    n: Ints


class Questions(NamedTuple):
    """Columns of questions, by car and in sequence, and their results."""

    vid: Ints
    time: Longs
    balance: Longs
    entered: Longs  # the second of the last notification + 1; 0: none
    late: Longs  # the part of the balance that was charged since then
    left: Mask  # whether the car leaves in this second


class Accounts(hr.Processor):
    """The processor of one substream: some cars."""

    schema = OUTPUTS["balances"]
    tables = {  # noqa: RUF012
        "accounts": hr.StateTable(key=["piece"], columns=pa.schema([("piece", pa.int32()), ("bytes", pa.binary())]))
    }

    def __init__(self, profile: str = Profile.official) -> None:
        self.profile = str(profile)

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        given = {name: tuples[name].to_numpy() for name in ("what", "vid", "n", "page")}
        given["time"] = tuples["ts"].to_numpy().astype(np.int64) // SECOND
        is_question = given["what"] == ASKED
        asked = np.flatnonzero(is_question)
        asked = asked[np.argsort(given["vid"][asked], kind="stable")]
        questions = _questions(given["vid"][asked], given["time"][asked])
        events = _ordered({name: values[~is_question] for name, values in given.items()})
        held = _Held(state["accounts"], events, questions)
        settle(tuple(events), held.bounds, tuple(questions), tuple(held.pages), *held.new)
        held.put()
        return self._answers(tuples["ts"], given, asked, questions)

    def _answers(
        self, ts: pa.ChunkedArray, given: dict[str, npt.NDArray[np.int64]], asked: Longs, found: Questions
    ) -> pa.Table:
        as_of, balance = found.time, found.balance
        if self.profile == Profile.official:
            then = ~found.left & (found.entered > 0)
            as_of = np.where(then, found.entered - 1, as_of)
            balance = np.where(then, balance - found.late, balance)
        qid, vid = (given[name][asked].astype(np.int64) for name in ("n", "vid"))
        columns = [ts.take(pa.array(asked)), *map(pa.array, (qid, found.time, as_of, vid, balance))]
        return pa.Table.from_arrays(columns, schema=self.schema)


def _questions(vid: Ints, time: Longs) -> Questions:
    balance, entered, late = np.zeros((3, len(vid)), np.int64)
    return Questions(vid, time, balance, entered, late, np.zeros(len(vid), bool))


def _ordered(told: dict[str, npt.NDArray[np.int64]]) -> Events:
    order = np.argsort(told["page"].astype(np.int64) << 32 | told["vid"], kind="stable")
    page, vid, time, what, n = (told[name][order] for name in Events._fields)
    return Events(page.astype(np.int8), vid.astype(np.int32), time, what.astype(np.int8), n.astype(np.int32))


class _Held:
    """The accounts that a chunk needs: read from the table, changed in place, and written back."""

    def __init__(self, table: ProcessorTable, events: Events, questions: Questions) -> None:
        self.table = table
        coming = np.bincount(events.page, minlength=PAGES)
        self.bounds = np.concatenate([[0], np.cumsum(coming)])
        found = self._pieces(np.arange(PAGES))  # all car numbers, because a car with a question may be in any page
        needed = coming > 0
        holders(questions.vid, found.data, found.starts, found.lengths, needed)
        counts = np.where(needed, found.lengths, 0)
        room = counts + coming
        starts = np.cumsum(room) - room
        vids, rest = np.empty(int(room.sum()), np.int32), np.empty((int(room.sum()), REST), np.int32)
        gather(found.data, found.starts, counts, vids, starts)
        places = np.flatnonzero(needed)
        words = self._pieces(places + PAGES)
        gather(words.data, words.starts, words.lengths, rest.ravel(), starts[places] * REST)
        self.pages = Pages(vids, rest, starts, counts, np.zeros(PAGES, bool))
        most = int(coming.max(initial=0))
        self.new = np.zeros(REST, np.int32), np.empty(most, np.int32), np.empty((most, REST), np.int32)

    def _pieces(self, pieces: Longs) -> Pieces:
        return Pieces(self.table, [("piece", pieces.astype(np.int32))])

    def put(self) -> None:
        changed = np.flatnonzero(self.pages.changed)
        if not len(changed):
            return
        starts, counts = self.pages.starts[changed], self.pages.counts[changed]
        put = [blobs(self.pages.vids, starts, counts), blobs(self.pages.rest.ravel(), starts * REST, counts * REST)]
        pieces = pa.array(np.concatenate([changed, changed + PAGES]).astype(np.int32))
        self.table.put(pa.table([pieces, pa.chunked_array(put, pa.binary())], names=["piece", "bytes"]))


# --- compiled --------------------------------------------------------------------------------------------------------


@compile_inner
def first_in(vids, low, high, vid):
    """Return the first place of a car among places from `low` to `high`, or where it would be inserted."""
    return low + place_in(vids, low, high - low, vid)


@compile_cached
def holders(asked, data, starts, counts, needed):
    """Mark in `needed` the pages with an account of a car that has a question."""
    for place in range(len(asked)):
        for page in range(PAGES):
            if not needed[page] and has(data, starts[page], counts[page], asked[place]):
                needed[page] = True


@compile_inner
def balance_of(car):
    return (np.int64(car[HIGH]) << 32) | (np.int64(car[LOW]) & LOWER)


@compile_inner
def settle_one(car, time, what, n):
    """Apply an event to an account."""
    due = np.int64(car[PENDING]) if what & CHARGED else np.int64(0)
    balance = balance_of(car) + due
    car[LOW], car[HIGH] = np.int32(balance & LOWER), np.int32(balance >> 32)
    if what & LEAVES:
        if (
            car[ENTERED] != time + 1
        ):  # otherwise the charge is in the second of the last notification, and part of the balance at that time
            car[LATE] += np.int32(due)
        car[PENDING] = 0
    else:
        car[LATE] = 0
        car[PENDING] = n
        car[ENTERED] = np.int32(time + 1)


@compile_inner
def answer(questions, place, car, left):
    """Add an account to the answer of a question. left: the last second in which the car left."""
    questions.balance[place] += balance_of(car)
    if car[ENTERED] > questions.entered[place]:
        questions.entered[place] = car[ENTERED]
        questions.late[place] = car[LATE]
    if left == questions.time[place]:
        questions.left[place] = True


@compile_cached
def settle(events, bounds, questions, pages, car, new_vids, new_rest):
    """Apply events to accounts and answer questions: page by page, car by car, and each car in sequence."""
    events, questions, pages = Events(*events), Questions(*questions), Pages(*pages)
    asked = len(questions.vid)
    for page in range(PAGES):
        start, count = pages.starts[page], pages.counts[page]
        place, stop, new, after, next_ = bounds[page], bounds[page + 1], 0, 0, 0
        for question in range(asked):  # questions of cars without an event in this page
            vid = questions.vid[question]
            found = start + place_in(pages.vids, start, count, vid)
            if found < start + count and pages.vids[found] == vid:
                event = first_in(events.vid, place, stop, vid)
                if event == stop or events.vid[event] != vid:
                    answer(questions, question, pages.rest[found], NEVER)
        while place < stop:
            vid = events.vid[place]
            after = place_after(pages.vids, start, count, vid, after)
            found = start + after
            known = found < start + count and pages.vids[found] == vid
            for word in range(REST):
                car[word] = pages.rest[found, word] if known else 0
            next_ = place_after(questions.vid, 0, asked, vid, next_)
            question, left, there = next_, np.int64(NEVER), known
            while place < stop and events.vid[place] == vid:
                now = events.time[place]
                while question < asked and questions.vid[question] == vid and questions.time[question] < now:
                    if there:
                        answer(questions, question, car, left)
                    question += 1
                settle_one(car, now, events.what[place], events.n[place])
                if events.what[place] & LEAVES:
                    left = now
                there = True
                place += 1
            while question < asked and questions.vid[question] == vid:
                answer(questions, question, car, left)
                question += 1
            if known:
                for word in range(REST):
                    pages.rest[found, word] = car[word]
            else:
                new_vids[new] = vid
                for word in range(REST):
                    new_rest[new, word] = car[word]
                new += 1
        if bounds[page] < stop:
            put_in(pages, page, count, new, new_vids, new_rest)
