"""A stream over many keys: the first epochs contain every key once, in any order, and each later epoch a random subset.

The number of occurrences of each key follows from the stream alone (`counts`), so the state of a run can be checked key
by key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace_bench.workload import CLOSING, SECOND, START, Streams

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Keys(Streams):
    """A stream with `load` new keys in each of the first epochs until all have occurred, then `epochs` with `rate`
    keys, then `few`.

    An epoch is a second, in which no key occurs twice.
    """

    load: int = 1
    few: int = 0  # number of epochs with a tenth of the keys

    @property
    def loads(self) -> int:
        """Return the number of epochs that introduce all keys."""
        return -(-self.keys // self.load)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("ts", "key")

    @property
    def fewer(self) -> int:
        return self.rows // 10

    @property
    def tuples(self) -> int:
        return self.keys + self.rows * self.epochs + self.fewer * self.few

    def epoch_keys(self) -> Iterator[Numbers]:
        """Yield the keys of every epoch."""
        rng = np.random.default_rng([self.seed, 0])
        every = rng.permutation(self.keys)
        yield from (every[start : start + self.load] for start in range(0, self.keys, self.load))
        for many in [self.rows] * self.epochs + [self.fewer] * self.few:
            yield rng.choice(self.keys, many, replace=False)

    def tables(self, side: str) -> Iterator[pa.Table]:
        epoch = 0
        for epoch, keys in enumerate(self.epoch_keys(), start=1):
            yield _table(START + (epoch - 1) * SECOND + 1000 * (np.arange(len(keys)) * 1000 // len(keys)), keys)
        yield _table(START + np.array([epoch * SECOND + round(self.gap * SECOND)]), np.array([CLOSING]))

    def counts(self) -> Numbers:
        """Return the number of occurrences of every key."""
        found = np.zeros(self.keys, np.int64)
        for keys in self.epoch_keys():
            found[keys] += 1
        return found


def _table(ts: Numbers, keys: Numbers) -> pa.Table:
    times = pa.array(ts.astype("datetime64[us]")).cast(pa.timestamp("us", "UTC"))
    return pa.table({"ts": times, "key": keys})
