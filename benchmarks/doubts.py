"""Predicates that leave pairs undecided: processor time of a join with a table compared with DuckDB, by undecided
share.

    python benchmarks/doubts.py [--rows 3000] [--rounds 3]

Every tuple is compared with every row. The compiled loop cannot decide a pair whose x is equal on both sides, so DuckDB
decides it. For each share of undecided pairs the script prints the time of loop and DuckDB together, as a multiple of
the time of DuckDB alone: with loops that stop when too many pairs are undecided (the real behaviour), and with loops
that never stop. The exit code is 1 if the first multiple is ever above 1.5.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa

from headrace.compile import compile_query
from headrace.kernels.joins import pair_loop, table_join, undecided_pairs
from headrace.plan import TableStep
from headrace.stream import node_of
from headrace.testing import arrow_table, table_stream

ABOVE_ONE = 1.0000000000000002  # so close to 1 that a loop cannot distinguish them
ONS = {
    "short": f"exp(l.x - r.x) = {ABOVE_ONE}",
    "long": f"cos(l.x - r.x) * cos(l.y - r.y) + pow(sin((l.x - r.x) / 2), 2) * sqrt(abs(l.y - r.y)) = {ABOVE_ONE}",
}
VALUES = (1_000_000, 200, 32, 8, 2, 1)  # numbers of different points: one pair in this many is undecided
MOST = 1.5


def table(rows: int, values: int, seed: int) -> pa.Table:
    x = np.random.default_rng(seed).integers(0, values, rows) / 1000
    return pa.table({"x": x, "y": x / 2})


def looked_up(on: str, left: pa.Table, right: pa.Table) -> Callable[[], int]:
    times = pa.array(np.zeros(left.num_rows, np.int64)).cast(pa.timestamp("us", "UTC"))
    query = table_stream(left.add_column(0, "ts", times), name="a").join(arrow_table(right, name="t"), on=on)
    (step,) = {s for edge in compile_query([node_of(query)]).edges for s in edge.steps if isinstance(s, TableStep)}
    tuples, kept = left.add_column(0, "ts", times), table_join.indexed_table(step, right, f"{id(right)}")
    return lambda: sum(len(l) for l, _ in table_join._true_pairs(tuples, kept))


def seconds(work: Callable[[], int], rounds: int) -> tuple[float, int]:
    """Return the smallest time of some rounds, after one warm-up round, and the result."""
    found, best = work(), float("inf")
    for _ in range(rounds):
        begun = time.process_time()
        assert work() == found
        best = min(best, time.process_time() - begun)
    return best, found


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--rows", type=int, default=3000)
    given.add_argument("--rounds", type=int, default=3)
    asked = given.parse_args()
    worst = 0.0
    print(f"{'predicate':12} {'undecided':>9} {'DuckDB alone':>13} {'stops':>9} {'never stops':>11}")
    for name, on in ONS.items():
        for values in VALUES:
            work = looked_up(on, table(asked.rows, values, 1), table(asked.rows, values, 0))
            with mock.patch.object(pair_loop, "WORTH_COMPILING", np.inf):
                alone, wanted = seconds(work, asked.rounds)
            ours, found = seconds(work, asked.rounds)
            with mock.patch.object(undecided_pairs, "is_too_many", lambda *_: False):
                patient, same = seconds(work, asked.rounds)
            assert wanted == found == same
            worst = max(worst, ours / alone)
            print(f"{name:12} {1 / values:9.4f} {alone:11.3f} s {ours / alone:8.2f}x {patient / alone:10.2f}x")
    print(f"at worst {worst:.2f} times the time of DuckDB alone; the limit is {MOST}")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
