"""Tolls and accident alerts for cars that enter a segment, and the events that accounts need.

A substream has some roads (directions of expressways). The state of a road is stored as numbered pieces of bytes: its
cars in pages (see `driving.py`), and in a separate table, which changes more often, the values of its minute and the
figures of its last six minutes. So an epoch of one second reads and writes a thirtieth of the cars, a removed car takes
no space, and every page is rewritten within half a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.processor import ProcessorTable, State
from headrace_linearroad import driving
from headrace_linearroad.driving import HEAD, MINUTE_WORDS, NONE, REST, SLOTS, STOP
from headrace_linearroad.forms import OUTPUTS, TS
from headrace_linearroad.pages import PAGES, Ints, Longs, Mask, Pages, Pieces, binary, blobs, gather
from headrace_linearroad.profiles import Profile

REPORTS = pa.schema(
    [
        ("ts", TS),
        ("road", pa.int32()),  # expressway * 2 + direction
        ("vid", pa.int32()),
        ("spd", pa.int8()),
        ("lane", pa.int8()),
        ("seg", pa.int8()),
        ("pos", pa.int32()),
    ]
)
"""The input of `Roads`. Reports of one second are processed in the order of these columns."""

EVENTS = pa.schema([("ts", TS), ("what", pa.int8()), ("vid", pa.int32()), ("n", pa.int32()), ("page", pa.int8())])
"""Events for accounts: `what` has the bits of `driving.CHARGED` and `driving.LEAVES`, `n` is the notified toll, and
`page` is the second of the half minute in which the journey began.

From `driving.TURN_SHIFT` on, `what` also has the number of the report among those of its car in this second, which puts
events in sequence.
"""

SECOND = 1_000_000  # microseconds
VIDS, CARS = 0, PAGES  # first pieces of a road, one per page: the numbers of its cars, and their other words
HEADS, MINUTES = 0, 1  # first pieces of the other table
PIECE = hr.StateTable(
    key=["road", "piece"], columns=pa.schema([("road", pa.int32()), ("piece", pa.int32()), ("bytes", pa.binary())])
)
WORDS = {
    driving.OFTEN: f"is one of more than {driving.MOST_REPORTS} of its car from one segment within a minute;"
    " a car reports every 30 s",
    driving.MANY: f"follows a minute with more than {driving.MOST_CARS:,} cars in a segment; the toll exceeds 32 bits",
    driving.INEXACT: "follows minutes with too many cars in a segment for an exact mean in 64 bits",
}


class Roads(hr.Processor):
    """The processor of one substream: some roads (directions of expressways)."""

    outputs = {"tolls": OUTPUTS["tolls"], "accidents": OUTPUTS["accidents"], "events": EVENTS}  # noqa: RUF012
    tables = {"cars": PIECE, "minutes": PIECE}  # noqa: RUF012

    def __init__(self, profile: str = Profile.official) -> None:
        self.profile = str(profile)

    def process(self, tuples: pa.Table, state: State) -> dict[str, pa.Table]:
        columns = {name: tuples[name].to_numpy() for name in tuples.column_names}
        micros = columns["ts"].astype(np.int64)
        roads, of = numbered(columns["road"])
        given = (columns["vid"], columns["spd"], columns["lane"], columns["seg"], columns["pos"])
        reports = driving.Reports(micros // SECOND, of, *given)
        held = _Held(state["cars"], state["minutes"], roads, reports)
        found = room_for(len(of))
        official = self.profile == Profile.official
        scratch = driving.Scratch(np.zeros(REST, np.int32), *_pages(int(held.most)))
        arrays = tuple(reports), roads % 2 == 0, tuple(held.pages), tuple(held.roads), tuple(found), tuple(scratch)
        went, where = driving.drive(*arrays, official)
        if went != driving.DONE:
            report = {name: values[where].item() for name, values in columns.items() if name != "ts"}
            raise hr.DataError(f"the report {report} at {reports.time[where]} s {WORDS[went]}")
        held.put()
        return told(columns, micros, found)


def numbered(road: Ints) -> tuple[Ints, Longs]:
    """Return the roads of the reports, ascending, and the index of each report's road."""
    there = np.zeros(int(road.max()) + 1, np.int64)
    there[road] = 1
    roads = np.flatnonzero(there)
    there[roads] = np.arange(len(roads))
    return roads.astype(np.int32), there[road]


def _pages(cars: int) -> tuple[Ints, Ints]:
    return np.empty(cars, np.int32), np.empty((cars, REST), np.int32)


def room_for(reports: int) -> driving.Found:
    toll_of, lav, toll, alert_of, alert, event_of = np.empty((6, reports), np.int64)
    event, page = np.empty((2, reports), np.int8)
    return driving.Found(toll_of, lav, toll, alert_of, alert, event_of, event, page, np.zeros(3, np.int64))


# --- state -----------------------------------------------------------------------------------------------------------


class _Held:
    """The state of the roads of a chunk: read from the tables, changed in place, and written back."""

    def __init__(self, cars: ProcessorTable, minutes: ProcessorTable, numbers: Ints, reports: driving.Reports) -> None:
        self.cars, self.minutes, self.numbers = cars, minutes, numbers
        pages = len(numbers) * PAGES
        own = reports.road * PAGES + reports.time % driving.PERIOD
        coming = np.bincount(own, minlength=pages)
        self.most = coming.max()
        found = _pieces(cars, np.repeat(numbers, PAGES), np.tile(VIDS + np.arange(PAGES), len(numbers)))
        needed = coming > 0
        if not needed.all():
            asked = (reports.time, reports.road, reports.vid)
            driving.strangers(*asked, found.data, found.starts, found.lengths, needed)
        self.pages = self._cars(found.data, found.starts, found.lengths, coming, needed)
        self.roads = read_roads(minutes, numbers, np.bincount(reports.road))

    def _cars(self, data: Ints, old_starts: Longs, old_counts: Longs, coming: Longs, needed: Mask) -> Pages:
        """Return the pages, with space for the cars of the chunk. Pages that are not needed appear empty."""
        counts = np.where(needed, old_counts, 0)
        room = counts + coming
        starts = np.cumsum(room) - room
        vids, rest = _pages(int(room.sum()))
        gather(data, old_starts, counts, vids, starts)
        places = np.flatnonzero(needed)
        found = _pieces(self.cars, self.numbers[places // PAGES], places % PAGES + CARS)
        gather(found.data, found.starts, found.lengths, rest.ravel(), starts[places] * REST)
        return Pages(vids, rest, starts, counts, np.zeros(len(counts), bool))

    def put(self) -> None:
        """Write the changed pieces to the tables."""
        pages = self.pages
        changed = np.flatnonzero(pages.changed)
        road, page, starts, counts = changed // PAGES, changed % PAGES, pages.starts[changed], pages.counts[changed]
        vids, rest = blobs(pages.vids, starts, counts), blobs(pages.rest.ravel(), starts * REST, counts * REST)
        put_pieces(self.cars, self.numbers, [(road, page + VIDS, vids), (road, page + CARS, rest)])
        put_pieces(self.minutes, self.numbers, road_pieces(self.roads))


def _pieces(table: ProcessorTable, road: Ints, piece: Longs) -> Pieces:
    return Pieces(table, [("road", road), ("piece", piece.astype(np.int32))])


def read_roads(table: ProcessorTable, numbers: Ints, coming: Longs) -> driving.Roads:
    """Return heads, minutes and stops of some roads. coming: the number of stops to leave space for, per road."""
    many, pieces = len(numbers), MINUTES + SLOTS
    found = _pieces(table, np.repeat(numbers, pieces), np.tile(np.arange(pieces), many))
    data, (starts, lengths) = found.data, (each.reshape(-1, pieces) for each in (found.starts, found.lengths))
    heads = np.zeros((many, HEAD), np.int32)
    heads[:, 0] = NONE
    minutes = np.zeros((many, SLOTS, MINUTE_WORDS), np.int64)
    minutes[:, :, 0] = NONE
    stop_counts = np.maximum(lengths[:, 0] - HEAD, 0) // STOP
    room = stop_counts + coming
    stop_starts = np.cumsum(room) - room
    stops = np.empty((int(room.sum()), STOP), np.int32)
    gather(data, starts[:, 0], np.minimum(lengths[:, 0], HEAD), heads.ravel(), np.arange(many) * HEAD)
    gather(data, starts[:, 0] + HEAD, stop_counts * STOP, stops.ravel(), stop_starts * STOP)
    places = np.arange(many * SLOTS) * MINUTE_WORDS * 2
    gather(data, starts[:, 1:].ravel(), lengths[:, 1:].ravel(), minutes.view(np.int32).ravel(), places)
    return driving.Roads(heads, minutes, np.zeros((many, SLOTS), bool), stops, stop_starts, stop_counts)


Piece = tuple[Longs, Longs, pa.Array]  # indexes of roads, numbers of pieces, their bytes


def road_pieces(roads: driving.Roads) -> list[Piece]:
    """Return the pieces of all heads and of the changed minutes."""
    renewed, every = np.flatnonzero(roads.renewed), np.arange(len(roads.heads))
    minutes = blobs(roads.minutes.view(np.int32).ravel(), *_fixed(renewed, MINUTE_WORDS * 2))
    heads = _joined(roads, HEAD + roads.stop_counts * STOP)
    return [
        (renewed // SLOTS, renewed % SLOTS + MINUTES, minutes),
        (every, np.full(len(every), HEADS), heads),
    ]


def put_pieces(table: ProcessorTable, numbers: Ints, pieces: Sequence[Piece]) -> None:
    road, piece = (np.concatenate(each) for each in list(zip(*pieces, strict=True))[:2])
    columns = [
        pa.array(numbers[road]),
        pa.array(piece.astype(np.int32)),
        pa.chunked_array([each[2] for each in pieces], pa.binary()),
    ]
    table.put(pa.Table.from_arrays(columns, names=["road", "piece", "bytes"]))


def _fixed(places: Longs, words: int) -> tuple[Longs, Longs]:
    return places * words, np.full(len(places), words)


def _joined(roads: driving.Roads, lengths: Longs) -> pa.Array:
    """Return the head of each road, followed by its stops, as binary values."""
    starts = np.cumsum(lengths) - lengths
    data = np.empty(int(lengths.sum()), np.int32)
    gather(roads.heads.ravel(), *_fixed(np.arange(len(lengths)), HEAD), data, starts)
    gather(roads.stops.ravel(), roads.stop_starts * STOP, roads.stop_counts * STOP, data, starts + HEAD)
    return binary(data, lengths)


# --- results ---------------------------------------------------------------------------------------------------------


def told(columns: dict[str, npt.NDArray[Any]], micros: Longs, found: driving.Found) -> dict[str, pa.Table]:
    tolls, alerts, events = found.counts.tolist()
    toll_of, alert_of, event_of = found.toll_of[:tolls], found.alert_of[:alerts], found.event_of[:events]
    toll = found.toll[:tolls]
    notified = np.zeros(len(micros), np.int32)
    notified[toll_of] = toll
    road = columns["road"]

    def long(name: str, rows: Longs) -> Longs:
        return columns[name][rows].astype(np.int64)

    def when(rows: Longs) -> tuple[Longs, Longs, Longs]:
        return micros[rows], long("vid", rows), micros[rows] // SECOND

    def where(rows: Longs) -> tuple[Longs, Longs]:
        one = road[rows].astype(np.int64)
        return one // 2, one % 2

    page = found.page[:events]
    told = {
        "tolls": (*when(toll_of), found.lav[:tolls], toll, *where(toll_of), long("seg", toll_of)),
        "accidents": (*when(alert_of), *where(alert_of), found.alert[:alerts]),
        "events": (micros[event_of], found.event[:events], columns["vid"][event_of], notified[event_of], page),
    }
    return {name: _table(Roads.outputs[name], values) for name, values in told.items()}


def _table(schema: pa.Schema, values: Sequence[npt.NDArray[Any]]) -> pa.Table:
    arrays = [pa.array(column).cast(field.type) for field, column in zip(schema, values, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
