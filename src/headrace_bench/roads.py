"""Cars on expressways, as in the Linear Road benchmark: reports and queries of 15 columns, 33 bytes per tuple.

A car reports every 30 s. One report in a hundred comes with a query: half of the queries ask for a balance (type 2,
without expressway), a tenth for expenses (3), the others for a travel time (4). A round is 30 s, in which every car
reports once. Rounds are generated independently, so the same seed gives the same tuples, whatever the number and format
of files. Tuples within a second are in any order, but seconds are in order, so nothing is late. The time is the event
time `ts`; all other columns have at most 32 bits.

Cars enter on lane 0, drive on lanes 1 to 3 at a steady speed and leave on lane 4; another car then takes their place.
The last tuple is a query in a separate file, a second after all others, which moves the watermark past them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from headrace_bench.workload import SECOND, Streams

ROUND = 30  # seconds between two reports of a car
BEGIN = 1_699_999_200  # seconds; a full hour, so that epochs begin at multiples of their length
MILE, FEET = 5_280, 100 * 5_280  # feet of a segment, and of an expressway
STEP = 44  # feet per round for each mile per hour
REPORT, BALANCE, EXPENSES, TRAVEL = 0, 2, 3, 4
MIX = {BALANCE: 0.5, EXPENSES: 0.1, TRAVEL: 0.4}  # shares of queries
NOTHING = -1  # in columns that a tuple does not use
BATCH = 1 << 16  # rows per record batch, 4 MiB
OWN = ("type", "ts", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid", "sinit", "send", "dow", "tod", "day")
WIDE = {"ts": pa.timestamp("us", "UTC"), "xway": pa.int16(), "tod": pa.int16()} | dict.fromkeys(
    ("vid", "pos", "qid"), pa.int32()
)
SCHEMA = pa.schema([(name, WIDE.get(name, pa.int8())) for name in OWN])  # each column is as wide as its domain
BYTES = sum(field.type.bit_width for field in SCHEMA) // 8

Ints = npt.NDArray[np.int32]
Columns = dict[str, Ints]


@dataclass(frozen=True)
class Roads(Streams):
    """A stream of `rate` tuples per second on `keys` expressways. Every epoch is divided into `files` of equal size."""

    files: int = 1
    form: str = "arrow"  # or parquet, for systems that cannot read Arrow

    @property
    def columns(self) -> tuple[str, ...]:
        return OWN

    @property
    def queries(self) -> int:
        """Return the number of queries per second."""
        return max(1, round(self.rate / 101))

    @property
    def reports(self) -> int:
        return round(self.rate) - self.queries

    def tables(self, side: str) -> Iterator[pa.Table]:
        """Yield the epochs, and a table with the last tuple."""
        rounds = round(self.seconds) // ROUND
        for epoch in range(self.epochs):
            yield pa.concat_tables([self.round(epoch * rounds + each) for each in range(rounds)])
        last = {name: np.full(1, NOTHING, np.int32) for name in OWN} | {"type": np.full(1, EXPENSES, np.int32)}
        yield _table(last | {"ts": np.full(1, self.epochs * self.seconds + 1, np.int32)})

    def round(self, number: int) -> pa.Table:
        """Return the tuples of 30 s: second by second, shuffled within each."""
        rng = np.random.default_rng([self.seed, 1, number])
        reports = self._reports(rng, number)
        queries = self._queries(rng, number, reports)
        order = rng.permuted(np.tile(np.arange(self.reports + self.queries), (ROUND, 1)), axis=1)
        both = {name: np.concatenate([reports[name], queries[name]], axis=1) for name in OWN}
        return _table({name: np.take_along_axis(values, order, axis=1).ravel() for name, values in both.items()})

    def _reports(self, rng: np.random.Generator, number: int) -> Columns:
        """Return one report of every car: a row per second, a column per car of that second."""
        cars = _cars(self.seed, ROUND * self.reports, self.keys)
        on = number + cars["since"]  # rounds at this place of the road, which several cars occupy in turn
        journey, step = np.divmod(on, cars["rounds"])
        driven = cars["mph"] * STEP * step
        pos = np.where(cars["dir"] == 0, cars["from"] + driven, cars["to"] - driven)
        ramp = np.where(step == 0, 0, np.where(step == cars["rounds"] - 1, 4, cars["lane"]))
        found = {
            "type": np.full(len(pos), REPORT),
            "ts": number * ROUND + np.arange(len(pos)) // self.reports,
            "vid": np.arange(len(pos)) + len(pos) * journey,
            "spd": cars["mph"] - rng.integers(0, 10, len(pos)),
            "xway": cars["xway"],
            "lane": ramp,
            "dir": cars["dir"],
            "seg": pos // MILE,
            "pos": pos,
        }
        nothing = np.full(len(pos), NOTHING)
        return {name: found.get(name, nothing).astype(np.int32).reshape(ROUND, -1) for name in OWN}

    def _queries(self, rng: np.random.Generator, number: int, reports: Columns) -> Columns:
        """Return queries of the cars of some reports, in every second."""
        shape = (ROUND, self.queries)
        asking = rng.permuted(np.tile(np.arange(self.reports), (ROUND, 1)), axis=1)[:, : self.queries]
        kind = rng.choice(list(MIX), shape, p=list(MIX.values()))
        travel = kind == TRAVEL
        found = {
            "type": kind,
            "ts": reports["ts"][:, : self.queries],
            "vid": np.take_along_axis(reports["vid"], asking, axis=1),
            "xway": np.where(kind == BALANCE, NOTHING, np.take_along_axis(reports["xway"], asking, axis=1)),
            "qid": number * kind.size + np.arange(kind.size).reshape(shape),
            "sinit": np.where(travel, rng.integers(0, 100, shape), NOTHING),
            "send": np.where(travel, rng.integers(0, 100, shape), NOTHING),
            "dow": np.where(travel, rng.integers(1, 8, shape), NOTHING),
            "tod": np.where(travel, rng.integers(1, 1441, shape), NOTHING),
            "day": np.where(kind == EXPENSES, rng.integers(1, 70, shape), NOTHING),
        }
        return {name: found.get(name, np.full(shape, NOTHING)).astype(np.int32) for name in OWN}


@functools.lru_cache(maxsize=2)
def _cars(seed: int, many: int, xways: int) -> Columns:
    """Return the constants of every place on the road. Places of one second are adjacent."""
    rng = np.random.default_rng([seed, 0])
    mph, rounds = rng.integers(40, 76, many), rng.integers(10, 60, many)
    length = mph * STEP * (rounds - 1)
    begin = rng.integers(0, FEET - length)
    found = {
        "mph": mph,
        "rounds": rounds,  # of a journey
        "since": rng.integers(0, rounds),  # rounds before the first one
        "from": begin,  # western end of a journey
        "to": begin + length,
        "dir": rng.integers(0, 2, many),
        "lane": rng.integers(1, 4, many),
        "xway": rng.integers(0, xways, many),
    }
    return {name: values.astype(np.int32) for name, values in found.items()}


def _table(columns: Columns) -> pa.Table:
    """Return a table from columns whose `ts` is in seconds since the beginning."""
    ts = ((BEGIN + columns["ts"].astype(np.int64)) * SECOND).astype("datetime64[us]")
    arrays = [pa.array(ts if name == "ts" else columns[name]) for name in OWN]
    return pa.table(arrays, names=OWN).cast(SCHEMA)


def write(roads: Roads, folder: Path) -> None:
    """Write folder/<side>/part-00000-00.arrow and so on, in reading order."""
    target = folder / roads.sides[0]
    target.mkdir(parents=True)
    for epoch, table in enumerate(roads.tables(roads.sides[0])):
        files = roads.files if epoch < roads.epochs else 1
        cuts = [table.num_rows * cut // files for cut in range(files + 1)]
        for number in range(files):
            part = table.slice(cuts[number], cuts[number + 1] - cuts[number])
            _write_file(part, target / f"part-{epoch:05d}-{number:02d}.{roads.form}")


def _write_file(table: pa.Table, path: Path) -> None:
    """Write a file atomically. Parquet is written without dictionaries and compression, which would make reading
    slower.
    """
    hidden = path.with_name(f"_{path.name}")
    if path.suffix == ".parquet":
        pq.write_table(table, hidden, row_group_size=8 * BATCH, compression="none", use_dictionary=False)
    else:
        with pa.ipc.new_file(hidden, SCHEMA) as writer:
            writer.write_table(table, max_chunksize=BATCH)
    hidden.rename(path)
