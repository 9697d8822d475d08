"""Generated telephone traffic with planted frauds, written as a growing folder of files.

The same seed gives the same calls. Ordinary callers stay near their home, and homes are spread over 50 km x 50 km, so
ordinary calls look like neither fraud, except for two homes that happen to be within 5 m of each other. Records arrive
up to a second after the call began, so the stream is slightly out of order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("caller", pa.int64()),
        ("callee", pa.int64()),
        ("start", pa.timestamp("us", "UTC")),
        ("duration", pa.int32()),  # seconds
        ("district", pa.string()),
        ("x", pa.float64()),  # metres
        ("y", pa.float64()),
    ]
)
SIDE = 50_000.0  # metres, side of the area
DISTRICTS = 5  # along each side: A1 to E5
PEOPLE = 1_000_000
FIRST_NUMBER, FIRST_FRAUDSTER = 491_500_000_000, 491_600_000_000
NEAR_HOME = 200.0  # metres
DELAY = 1.0  # most seconds from the begin of a call to the arrival of its record
LATENESS = "2 seconds"  # lateness that a query over these calls should allow; more than DELAY
CLONES_EVERY, BOXES_EVERY = 2.0, 3.0  # seconds
CLONED, BOX = "cloned SIM", "SIM box"

Floats = npt.NDArray[np.float64]
Alarm = tuple[str, int, str]  # (kind, caller, other): the result that a planted pair must cause


@dataclass(frozen=True)
class Fraud:
    """One planted fraud: its rows in the calls, and the alarms it must raise."""

    kind: str
    rows: tuple[int, ...]
    alarms: frozenset[Alarm]


@dataclass(frozen=True)
class Calls:
    """Call records in order of arrival."""

    table: pa.Table
    arrivals: Floats  # seconds after the begin of the stream
    frauds: tuple[Fraud, ...]

    def until(self, seconds: float) -> int:
        """Return how many calls have arrived by then."""
        return int(np.searchsorted(self.arrivals, seconds, side="right"))


@dataclass(frozen=True)
class _Call:
    caller: int
    start: float
    duration: int
    x: float
    y: float


def generate(rate: int, seconds: float, seed: int = 7, begin: float = 0.0) -> Calls:
    """Generate `rate` calls per second for `seconds` seconds. `begin` is the Unix time of the first moment."""
    rng = np.random.default_rng(seed)
    planted = [*_clones(rng, seconds), *_boxes(rng, seconds)]
    flat = [call for _, calls in planted for call in calls]
    columns = _ordinary(rng, max(0, round(rate * seconds) - len(flat)), seconds)
    for name, values in columns.items():
        columns[name] = np.concatenate([values, np.array([getattr(c, name) for c in flat], values.dtype)])
    arrivals = np.minimum(columns["start"].astype(np.float64) + rng.uniform(0, DELAY, len(columns["start"])), seconds)
    order = np.argsort(arrivals, kind="stable")
    callees = FIRST_NUMBER + rng.integers(0, PEOPLE, len(order))
    table = _table(columns, callees, begin).take(pa.array(order))
    return Calls(table, arrivals[order], tuple(_frauds(planted, np.argsort(order), len(order) - len(flat))))


def _ordinary(rng: np.random.Generator, count: int, seconds: float) -> dict[str, npt.NDArray[np.generic]]:
    people = rng.integers(0, PEOPLE, count)
    x, y = (_home(people, axis) + rng.uniform(-NEAR_HOME, NEAR_HOME, count) for axis in (1, 2))
    return {
        "caller": FIRST_NUMBER + people,
        "start": rng.uniform(0, seconds, count),
        "duration": rng.integers(5, 300, count).astype(np.int32),
        "x": x,
        "y": y,
    }


def _home(people: npt.NDArray[np.int64], axis: int) -> Floats:
    """Return one coordinate of each person's home: always the same for a person, and evenly spread (by mixing bits)."""
    bits = people.astype(np.uint64) * np.uint64(2) + np.uint64(axis)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return NEAR_HOME + (bits >> np.uint64(11)) / 2**53 * (SIDE - 2 * NEAR_HOME)


def _clones(rng: np.random.Generator, seconds: float) -> Iterator[tuple[str, list[_Call]]]:
    """Yield pairs of calls of one number from two places at least half the area apart, a few seconds apart."""
    apart = min(8.0, seconds / 2)
    for number in range(max(1, int(seconds / CLONES_EVERY))):
        start, gap = rng.uniform(0, seconds - apart), rng.uniform(apart / 8, apart)
        x, y = rng.uniform(0, SIDE / 2), rng.uniform(0, SIDE)
        caller = FIRST_FRAUDSTER + number
        yield (
            CLONED,
            [
                _Call(caller, start, int(rng.integers(60, 300)), x, y),
                _Call(caller, start + gap, int(rng.integers(60, 300)), x + SIDE / 2, rng.uniform(0, SIDE)),
            ],
        )


def _boxes(rng: np.random.Generator, seconds: float) -> Iterator[tuple[str, list[_Call]]]:
    """Yield calls of three to five numbers in one rack, which begin within a few seconds and last much longer."""
    spread = min(5.0, seconds / 2)
    for number in range(max(1, int(seconds / BOXES_EVERY))):
        start, x, y = rng.uniform(0, seconds - spread), rng.uniform(0, SIDE - 3), rng.uniform(0, SIDE - 3)
        yield (
            BOX,
            [
                _Call(
                    FIRST_FRAUDSTER + 1_000_000 + 10 * number + sim,
                    start + rng.uniform(0, spread),
                    int(rng.integers(60, 300)),
                    x + rng.uniform(0, 3),
                    y + rng.uniform(0, 3),
                )
                for sim in range(rng.integers(3, 6))
            ],
        )


def _table(columns: dict[str, npt.NDArray[np.generic]], callees: npt.NDArray[np.int64], begin: float) -> pa.Table:
    x, y = (np.round(columns[axis].astype(np.float64), 1) for axis in ("x", "y"))
    start = np.round((begin + columns["start"].astype(np.float64)) * 1e6).astype(np.int64)
    return pa.table(
        [
            columns["caller"],
            callees,
            pa.array(start).cast(SCHEMA.field("start").type),
            columns["duration"],
            [district(*place) for place in zip(x.tolist(), y.tolist(), strict=True)],
            x,
            y,
        ],
        schema=SCHEMA,
    )


def district(x: float, y: float) -> str:
    """Return the district of a place: a letter from west to east, a number from south to north.

    >>> district(0.0, 49_999.0)
    'A5'
    """
    column, row = (min(int(v / SIDE * DISTRICTS), DISTRICTS - 1) for v in (x, y))
    return f"{'ABCDE'[column]}{row + 1}"


def _frauds(planted: list[tuple[str, list[_Call]]], places: npt.NDArray[np.int64], first: int) -> Iterator[Fraud]:
    """Yield the planted frauds. `places` maps rows to their positions in order of arrival."""
    for kind, calls in planted:
        rows = tuple(int(places[first + i]) for i in range(len(calls)))
        first += len(calls)
        if kind == CLONED:
            other = district(round(calls[1].x, 1), round(calls[1].y, 1))
            alarms = {(CLONED, calls[0].caller, f"also in {other}")}
        else:
            numbers = [call.caller for call in calls]
            alarms = {(BOX, a, f"beside {b}") for a in numbers for b in numbers if a < b}
        yield Fraud(kind, rows, frozenset(alarms))


class Feed(threading.Thread):
    """Writes calls into a folder as they arrive. A file has a name that begins with `_` until it is complete."""

    def __init__(self, calls: Calls, folder: Path, every: float = 0.5) -> None:
        super().__init__(name="headrace-demo-feed", daemon=True)
        self.calls, self.folder, self.every = calls, folder, every
        self.written = 0  # rows
        self.error: Exception | None = None
        self._stopping = threading.Event()

    @property
    def done(self) -> bool:
        return self.written == len(self.calls.arrivals)

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        try:
            self._write_all(time.monotonic())
        except Exception as error:
            self.error = error

    def _write_all(self, began: float) -> None:
        tick = 0
        while not self.done:
            tick += 1
            if self._stopping.wait(max(0.0, began + tick * self.every - time.monotonic())):
                return
            until = self.calls.until(tick * self.every)
            self.put(self.calls.table.slice(self.written, until - self.written), tick)
            self.written = until

    def put(self, table: pa.Table, number: int) -> None:
        write_file(table, self.folder, number)


def write_file(table: pa.Table, folder: Path, number: int) -> None:
    """Add a file to a growing folder atomically."""
    if not table.num_rows:
        return
    name = f"calls-{number:06d}.parquet"
    temporary = folder / f"_{name}"
    pq.write_table(table, temporary)
    os.replace(temporary, folder / name)
