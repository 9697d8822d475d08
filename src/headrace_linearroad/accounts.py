# mypy: disable-error-code="no-untyped-def"
"""Balances: what drivers owe so far, and as of when.

A toll is notified when a car comes into a segment, and due when it goes on into another; the roads say which it is
(`driving.CHARGED`). Events of a second come before the questions of that second, so an answer knows all of it.

    official    the balance at the last notification, as of then; in the second in which the car leaves, that of this second
    walmart     the balance now
    unknown     nothing, now

Accounts are in pages, by the second of the half minute in which a journey began: so the events of a second are nearly all in
one page. Who has begun journeys in several has an account in several: the balance is their sum, and what was told last is in
the one that was last told. All accounts stay, as a driver may always ask.
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
)  # balance in two words; notified, not due yet; due as the car left; seconds + 1
REST = 5
LOWER = (1 << 32) - 1
NEVER = -1


class Events(NamedTuple):
    """By page and car, and of a car in sequence."""

    page: npt.NDArray[np.int8]
    vid: Ints
    time: Longs
    what: npt.NDArray[np.int8]
    n: Ints


class Questions(NamedTuple):
    """By car, and of a car in sequence."""

    vid: Ints
    time: Longs
    balance: Longs  # what is found
    entered: Longs  # the last time that something was notified
    late: Longs  # of the balance: due since then
    left: Mask  # whether the car leaves in this second


class Accounts(hr.Processor):
    """Some cars, by their numbers."""

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
    """What a chunk needs of the accounts: read, to be changed in place, and put again."""

    def __init__(self, table: ProcessorTable, events: Events, questions: Questions) -> None:
        self.table = table
        coming = np.bincount(events.page, minlength=PAGES)
        self.bounds = np.concatenate([[0], np.cumsum(coming)])
        found = self._pieces(np.arange(PAGES))  # the numbers of all cars: who asks may be in any page
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
    """The first place of a car among places that are by car, or where it would be."""
    return low + place_in(vids, low, high - low, vid)


@compile_cached
def holders(asked, data, starts, counts, needed):
    """Pages that have cars who ask."""
    for place in range(len(asked)):
        for page in range(PAGES):
            if not needed[page] and has(data, starts[page], counts[page], asked[place]):
                needed[page] = True


@compile_inner
def balance_of(car):
    return (np.int64(car[HIGH]) << 32) | (np.int64(car[LOW]) & LOWER)


@compile_inner
def settle_one(car, time, what, n):
    """An event into an account."""
    due = np.int64(car[PENDING]) if what & CHARGED else np.int64(0)
    balance = balance_of(car) + due
    car[LOW], car[HIGH] = np.int32(balance & LOWER), np.int32(balance >> 32)
    if what & LEAVES:
        if (
            car[ENTERED] != time + 1
        ):  # else it is due in the second of the last notification, and in the balance as of then
            car[LATE] += np.int32(due)
        car[PENDING] = 0
    else:
        car[LATE] = 0
        car[PENDING] = n
        car[ENTERED] = np.int32(time + 1)


@compile_inner
def answer(questions, place, car, left):
    """What an account adds to an answer."""
    questions.balance[place] += balance_of(car)
    if car[ENTERED] > questions.entered[place]:
        questions.entered[place] = car[ENTERED]
        questions.late[place] = car[LATE]
    if left == questions.time[place]:
        questions.left[place] = True


@compile_cached
def settle(events, bounds, questions, pages, car, new_vids, new_rest):
    """Events into accounts, and answers out of them: page by page, of each car in sequence."""
    events, questions, pages = Events(*events), Questions(*questions), Pages(*pages)
    asked = len(questions.vid)
    for page in range(PAGES):
        start, count = pages.starts[page], pages.counts[page]
        place, stop, new, after, next_ = bounds[page], bounds[page + 1], 0, 0, 0
        for question in range(asked):  # of cars that nothing happens to here
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
