"""The streams of a benchmark as Parquet files: one file per stream and epoch, the same bytes for the same seed.

Times are whole milliseconds (the precision of Flink's event time) and increase strictly from file to file, so no system
treats a tuple as late. A last file contains one tuple per stream, far later than all others: it moves every watermark
past them, so that each system emits all of its results.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SECOND = 1_000_000
MILLISECOND = 1_000_000  # in nanoseconds, for the times of files
START = 1_700_000_000 * SECOND
CLOSING = -1  # key of the tuples that only move the watermark
Values = dict[str, npt.NDArray[Any]]
AREA = 10_000.0  # x and y are below this
ZONES = "zones"  # folder of the table that is joined with a stream


@dataclass(frozen=True)
class Streams:
    """One to three streams: `rate` tuples per second of event time in each, and `epochs` files of `seconds` each."""

    sides: tuple[str, ...]
    rate: float
    seconds: float
    epochs: int
    keys: int
    gap: float  # seconds from the last tuple to the one that moves the watermark; more than any window
    reach: float | None = None  # for theta streams: mean length of the interval [x, z]
    seed: int = 7
    hot: float = 0.0  # share of all tuples that are assigned to key 0 in addition to its own
    zones: int = 0  # rows of a table: boxes, and circles of the same area; a point is in one on average
    parts: int = 0  # number of values of a second key

    @property
    def rows(self) -> int:
        """Return the tuples per file."""
        return round(self.rate * self.seconds)

    @property
    def per_epoch(self) -> int:
        """Return the tuples of all streams per epoch."""
        return self.rows * len(self.sides)

    @property
    def tuples(self) -> int:
        """Return the number of tuples without those that move the watermark."""
        return self.per_epoch * self.epochs

    @property
    def columns(self) -> tuple[str, ...]:
        more = ("y", "z") if self.reach is not None else ("y",) if self.zones else ()
        return ("ts", "key", "payload", "x", *more, *(("part",) if self.parts else ()))

    def tables(self, side: str) -> Iterator[pa.Table]:
        """Yield the tables of a stream, file by file."""
        number = self.sides.index(side)
        rng = np.random.default_rng([self.seed, number])
        for epoch in range(self.epochs):
            yield self._table(rng, START + round(epoch * self.seconds * SECOND), self.rows, number, epoch)
        yield self._closing(number)

    def _table(self, rng: np.random.Generator, begin: int, rows: int, number: int, epoch: int) -> pa.Table:
        ts = begin + 1000 * np.sort(rng.integers(0, round(self.seconds * 1000), rows))
        first = (number * self.epochs + epoch) * rows
        values: Values = {
            "ts": ts.astype("datetime64[us]"),
            "key": rng.integers(0, self.keys, rows),
            "payload": np.arange(first, first + rows),  # identifies the tuple
            "x": np.floor(rng.random(rows) * AREA * 8) / 8,  # sums of these are exact in any order
        }
        if self.reach is not None:
            values["x"] = rng.random(rows) * AREA
            values["y"] = rng.random(rows) * AREA
            values["z"] = values["x"] + rng.random(rows) * 2 * self.reach
        if self.zones:
            values["y"] = np.floor(rng.random(rows) * AREA * 8) / 8
        if self.parts:
            values["part"] = rng.integers(0, self.parts, rows)
        if self.hot:
            values["key"] = np.where(rng.random(rows) < self.hot, 0, values["key"])
        return _arrow(values)

    def table(self) -> pa.Table:
        """Return the zones: a box [x0, x1] by [y0, y1], and a place in degrees with a radius in kilometres."""
        rng = np.random.default_rng([self.seed, len(self.sides)])
        side = AREA / np.sqrt(self.zones)
        x, y = (rng.random(self.zones) * AREA for _ in range(2))
        width, height = (side * (0.5 + rng.random(self.zones)) for _ in range(2))
        degree = AREA / 10  # the area is ten degrees wide
        return pa.table(
            {
                "zone": np.arange(self.zones),
                "x0": x,
                "x1": x + width,
                "y0": y,
                "y1": y + height,
                "zone_lat": 40 + x / degree,
                "zone_lon": y / degree,
                "radius": 111.2 * width / degree / np.sqrt(np.pi),
            }
        )

    def _closing(self, number: int) -> pa.Table:
        ts = START + round((self.epochs * self.seconds + self.gap * (1 + number)) * SECOND)
        values: Values = {name: np.zeros(1) for name in self.columns}
        values |= {"ts": np.array([ts], "datetime64[us]")}
        values |= {name: np.array([CLOSING]) for name in ("key", "payload", "part") if name in values}
        return _arrow(values)


def _arrow(values: Values) -> pa.Table:
    table = pa.table({name: pa.array(value) for name, value in values.items()})
    return table.set_column(0, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))


def write(streams: Streams, folder: Path) -> None:
    """Write folder/<side>/part-00000.parquet and so on, in reading order.

    Spark reads files in the order of their times in milliseconds, so no two files of a stream have the same.
    """
    for side in streams.sides:
        (folder / side).mkdir(parents=True)
        last = 0
        for epoch, table in enumerate(streams.tables(side)):
            path = folder / side / f"part-{epoch:05d}.parquet"
            write_file(table, path)
            last = max(last + 1, path.stat().st_mtime_ns // MILLISECOND)
            os.utime(path, ns=(last * MILLISECOND, last * MILLISECOND))
    if streams.zones:
        (folder / ZONES).mkdir()
        write_file(streams.table(), folder / ZONES / "part-00000.parquet")


def write_file(table: pa.Table, path: Path) -> None:
    """Write a file atomically."""
    hidden = path.with_name(f"_{path.name}")
    pq.write_table(table, hidden, compression="snappy")
    hidden.rename(path)


def join_files(folder: Path, sides: tuple[str, ...]) -> Path:
    """Copy the files for systems that read a folder in any order: one file per stream, one row group per epoch."""
    target = folder / "joined"
    for side in sides:
        (target / side).mkdir(parents=True)
        files = sorted((folder / side).glob("part-*.parquet"))
        with pq.ParquetWriter(target / side / "all.parquet", pq.read_schema(files[0]), compression="snappy") as writer:
            for file in files:
                writer.write_table(pq.read_table(file))
    return target


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def admitted_pairs(streams: Streams, window: float, begin: int, end: int) -> int:
    """Return the number of pairs within windows of `window` seconds whose later tuple is in an epoch of [begin, end)."""
    left, right = (_times(streams, side) for side in streams.sides)
    reach = round(window * SECOND)
    part = slice(begin * streams.rows, end * streams.rows)
    by_left = np.searchsorted(right, left[part], "right") - np.searchsorted(right, left[part] - reach, "left")
    by_right = np.searchsorted(left, right[part], "left") - np.searchsorted(left, right[part] - reach, "left")
    return int(by_left.sum() + by_right.sum())


def _times(streams: Streams, side: str) -> npt.NDArray[np.int64]:
    """Return the event times of a stream. Files may contain fewer tuples than generated here, but in the same order."""
    tables = list(streams.tables(side))[:-1]
    return np.concatenate([t["ts"].cast(pa.int64()).to_numpy() for t in tables])
