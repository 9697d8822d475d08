"""A generated stream: its description, and its tuples second by second.

Times increase (two tuples may share a microsecond), so reading the stream needs no lateness. A tuple has 64 bytes: 8
each for time, key and value, and a payload of 40 characters that is different for every tuple and incompressible.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import WorkloadError
from headrace_demo.workloads import writing
from headrace_demo.workloads.arrivals import KINDS, Schedule, arrivals, checked_rates
from headrace_demo.workloads.checks import SECOND, microseconds, number, whole
from headrace_demo.workloads.keys import BModel, Hot, Ints, Keys, Uniform, hot_keys
from headrace_demo.workloads.writing import Written

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("key", pa.int64()),
        ("value", pa.float64()),
        ("payload", pa.string()),
    ]
)
PAYLOAD = 40  # characters
BEGIN = 1_700_000_000  # 2023-11-14 22:13:20 UTC
EIGHTHS = 8_000  # values are multiples of 1/8 below 1000, so their sums are exact in any order


@dataclass(frozen=True)
class Workload:
    """A stream of `rate` tuples per second, or of several rates that alternate, each for `every` seconds.

    Streams of one seed and different names are independent but have the same frequent keys. `begin` is the time of the
    first moment, in seconds since 1970; it shifts the stream and changes nothing else.
    """

    rate: float | Sequence[float]
    keys: Keys = field(default_factory=Uniform)
    arrivals: str = "poisson"
    every: float | None = None
    hot: Hot | None = None
    seed: int = 1
    name: str = "stream"
    begin: float = BEGIN

    def __post_init__(self) -> None:
        rates = checked_rates(self.rate)
        if self.every is not None:
            microseconds(self.every, "the time between changes of the rate")
        elif len(rates) > 1:
            raise WorkloadError(
                f"there are {len(rates)} rates without a duration; give every=, the seconds for which each lasts"
            )
        self._check_kinds()
        writing.check_name(self.name)
        whole(self.seed, "the seed", 0)
        number(self.begin, "begin")

    def _check_kinds(self) -> None:
        if not isinstance(self.keys, Uniform | BModel):
            raise WorkloadError(f"keys must be Uniform(...) or BModel(...); found {self.keys!r}")
        if self.arrivals not in KINDS:
            raise WorkloadError(f"unknown arrivals {self.arrivals!r}; expected one of {', '.join(KINDS)}")
        if self.hot is not None and not isinstance(self.hot, Hot):
            raise WorkloadError(f"hot must be Hot(share, every); found {self.hot!r}")
        if self.hot is not None and self.keys.count < 2:
            raise WorkloadError("a hot key needs at least two keys; found one")

    @property
    def schedule(self) -> Schedule:
        """Return the schedule of rates."""
        rates = checked_rates(self.rate)
        return Schedule(rates) if self.every is None else Schedule(rates, microseconds(self.every, "every"))

    def tables(self, seconds: int) -> Iterator[pa.Table]:
        """Yield the tuples in order of time: one table per second, which may be empty."""
        whole(seconds, "seconds", 1)
        times = arrivals(self.arrivals, self.schedule, self._random("arrivals"), seconds)
        return (self._table(second, at) for second, at in enumerate(times))

    def write(
        self,
        folder: str | os.PathLike[str],
        seconds: int,
        *,
        files_per_second: float = 1,
        live: bool = False,
        tell: Callable[[Written], None] = lambda _: None,
    ) -> Written:
        """Write Parquet files for `hr.files` into a new or empty folder. `live`: write each file at its time.

        `tell` receives the totals after every file.
        """
        parts = self._parts(seconds, files_per_second)
        put = writing.into_files(writing.new_folder(folder), self.name)
        return writing.write(parts, put, _waiting(live), tell)

    def put(
        self,
        put: writing.Put,
        seconds: int,
        *,
        per_second: float = 1,
        live: bool = False,
        tell: Callable[[Written], None] = lambda _: None,
    ) -> Written:
        """Pass the stream in parts, `per_second` per second, to the function `put`."""
        return writing.write(self._parts(seconds, per_second), put, _waiting(live), tell)

    def _parts(self, seconds: int, per_second: float) -> Iterator[tuple[int, pa.Table]]:
        return writing.cut(self.tables(seconds), self._begin, writing.ends(seconds, per_second))

    def hot_key(self, second: float) -> int | None:
        """Return the hot key at `second` seconds after the beginning."""
        if self.hot is None:
            return None
        return int(self._hot_keys(self.hot, np.array([int(second * SECOND)]))[0])

    @property
    def _begin(self) -> int:
        return round(self.begin * SECOND)

    def _random(self, what: str) -> Callable[[int], np.random.Generator]:
        """Return random generators for one purpose, by second. So another choice of keys does not change the times."""
        return lambda second: _generator(self.seed, self.name, what, second)

    def _table(self, second: int, at: Ints) -> pa.Table:
        values = self._random("values")(second).integers(0, EIGHTHS, len(at)) / 8
        columns = [
            pa.array(self._begin + at).cast(SCHEMA.field("ts").type),
            self._keys(second, at),
            values,
            _payloads(self._random("payloads")(second), len(at)),
        ]
        return pa.table(columns, schema=SCHEMA)

    def _keys(self, second: int, at: Ints) -> Ints:
        keys = self.keys.draw(self._random("keys")(second), len(at))
        if self.hot is None or not len(at):
            return keys
        heated = self._random("heated")(second).random(len(at)) < self.hot.share
        return np.where(heated, self._hot_keys(self.hot, at), keys)

    def _hot_keys(self, hot: Hot, at: Ints) -> Ints:
        """Return the hot keys. They do not depend on the stream's name, so two streams have the same hot keys."""
        return hot_keys(_generator(self.seed, "hot"), hot.turn(at), self.keys.count)


def _waiting(live: bool) -> Callable[[float], float]:
    return writing.RealTime() if live else writing.at_once


def _generator(*what: Any) -> np.random.Generator:
    digest = hashlib.blake2b(repr(what).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def _payloads(rng: np.random.Generator, count: int) -> pa.Array:
    """Return texts of random hexadecimal digits, all of the same length."""
    digits = rng.bytes(count * PAYLOAD // 2).hex().encode()
    offsets = np.arange(0, (count + 1) * PAYLOAD, PAYLOAD, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))
