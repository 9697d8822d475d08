"""Speed of compiled predicates compared with DuckDB: processor time per pair, by family and function.

    python benchmarks/predicate_families.py [--rows 3000] [--rounds 3] [--json FILE]

Every tuple is compared with every row of a table. Each predicate is evaluated twice, by its compiled loop and by DuckDB
alone, and both must find the same pairs. A family is worth its code if its predicates take less than half of DuckDB's
time. The figures exclude compilation, because a run compiles a predicate once.
"""

from __future__ import annotations

import argparse
import json
import sys
from decimal import Decimal
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
from doubts import looked_up, seconds

from headrace.kernels.joins import pair_loop

FAMILIES = {  # conditions on both sides with few true pairs, so that neither an index nor the results affect the time
    "numbers": {
        "distance": "abs(l.x - r.x) + abs(l.y - r.y) < 0.01",
        "whole numbers": "(l.i + r.i) % 9973 = 5",
        "division": "l.x / r.y between 0.5 and 0.5001",
        "nulls": "abs(l.n - r.n) < 100",
        "floor": "floor((l.x - r.y) * 1000) = 500",
        "round": "round(l.x - r.x, 3) = 0.5",
        "sign": "sign(l.x - r.x) = 0",
        "greatest, least": "greatest(l.x, r.y) - least(l.y, r.x) < -0.99",
    },
    "functions": {
        "haversine": "2 * 6371 * asin(sqrt(pow(sin(radians(l.x - r.x) / 2), 2) + cos(radians(l.x)) * cos(radians(r.x))"
        " * pow(sin(radians(l.y - r.y) / 2), 2))) < 0.05",
        "sqrt": "sqrt(l.x * r.y) < 0.01",
        "sin": "sin(l.x - r.x) > 0.84",
        "asin": "asin(l.x - r.x) > 1.5",
        "tan": "tan(l.x - r.x) > 1.5",
        "atan": "atan(l.x - r.x) > 0.78",
        "atan2": "atan2(l.x, r.y) < 0.0005",
        "exp": "exp(l.x - r.x) > 2.7",
        "ln": "ln(l.x + r.y + 1) < 0.001",
        "log10": "log10(l.x + r.y + 1) < 0.001",
        "pow of 2": "pow(l.x - r.x, 2) + pow(l.y - r.y, 2) < 0.0001",
        "pow": "pow(l.x + 1, r.y + 1) > 3.99",
        "cbrt": "cbrt(l.x * r.y) < 0.02",
    },
    "branches": {
        "case": "case when l.x < r.x then l.y else r.y end < 0.0005",
        "coalesce": "coalesce(l.n - r.n, r.i, 0) between 5 and 10",
        "is null": "(l.n - r.n) is null and abs(l.x - r.x) < 0.0001",
        "or": "abs(l.x - r.x) < 0.0001 or abs(l.y - r.y) < 0.0001",
        "in": "(l.i - r.i) in (1, 2, 3)",
    },
    "text": {
        "unequal": "l.s <> r.s and abs(l.x - r.x) < 0.0001",
        "between": "l.s between r.s and 'k5' and abs(l.x - r.x) < 0.0001",
    },
    "decimals": {
        "plus": "l.d + r.d < 0.5",
        "times": "l.d * r.d < 0.5",
        "38 digits": "abs(l.w - r.w) = 5",
    },
    "times": {
        "difference": "abs(epoch(l.t) - epoch(r.t)) < 0.01",
        "interval": "l.t - r.t between interval '1 second' and interval '1.01 seconds'",
    },
    "casts": {
        "double to int": "((l.x - r.x) * 1000)::int = 500",
        "int to double": "(l.i - r.i)::double / 3 between 5 and 10",
        "int to smaller": "((l.i - r.i) % 100)::smallint = 77",
        "decimal to double": "(l.d - r.d)::double between 5.001 and 5.02",
        "double to decimal": "(l.x - r.x)::decimal(9, 4) = 0.5",
        "to float": "abs((l.x - r.x)::float) < 0.0001",
        "to bool": "((l.i + r.i) % 9973)::bool = false",
    },
}
EARNS = 2.0


def table(rows: int, seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    whole = random.integers(0, 1_000_000, rows)
    cents = random.integers(0, 100_000, rows).tolist()
    return pa.table(
        {
            "x": random.random(rows),
            "y": random.random(rows),
            "i": whole,
            "n": pa.array(random.integers(-1_000_000, 1_000_000, rows), mask=random.random(rows) < 0.1),
            "s": pa.array([f"k{value % 1000}" for value in whole]),
            "d": pa.array([Decimal(c) / 100 for c in cents], pa.decimal128(12, 2)),
            "w": pa.array([Decimal(c) for c in cents], pa.decimal128(38, 0)),
            "t": pa.array(whole * 3600, pa.timestamp("us")),
        }
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    left, right = table(given.rows, 0), table(given.rows, 1)
    pairs = given.rows**2
    found: dict[str, dict[str, float]] = {}
    print("| family | predicate | DuckDB, ns per pair | compiled, ns per pair | times as fast |\n|---|---|---|---|---|")
    for family, predicates in FAMILIES.items():
        for name, on in predicates.items():
            work = looked_up(on, left, right)
            with mock.patch.object(pair_loop, "WORTH_COMPILING", np.inf):
                alone, wanted = seconds(work, given.rounds)
            ours, same = seconds(work, given.rounds)
            assert wanted == same, (on, wanted, same)
            found.setdefault(family, {})[name] = alone / ours
            print(
                f"| {family} | `{name}` | {alone / pairs * 1e9:.2f} | {ours / pairs * 1e9:.2f} | {alone / ours:.1f} |"
            )
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    slow = [f"{family}: {name}" for family, each in found.items() for name, ratio in each.items() if ratio < EARNS]
    print(f"less than {EARNS:g} times as fast: {', '.join(slow) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
