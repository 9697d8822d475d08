"""Generated input for the examples: `python examples/inputs.py` writes an hour of every stream, each to its own folder.

Start the examples from the same working directory, for example `headrace run examples/sessions.py --out sessions/`.
"""

import datetime as dt
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
TS = pa.timestamp("us", "UTC")


def moments(micros):
    return pa.array(int(START.timestamp()) * 1_000_000 + micros).cast(TS)


def times(chance, rows):
    """Return sorted times within an hour, at multiples of a quarter of a second. Some are equal."""
    return moments(np.sort(chance.integers(0, 3600 * 4, rows)) * 250_000)


def names(chance, rows, prefix, count):
    """Return names with a skewed distribution."""
    return pa.array([f"{prefix}{n}" for n in np.minimum(chance.zipf(1.3, rows), count)])


def clicks(chance, rows):
    return pa.table(
        {"ts": times(chance, rows), "user": names(chance, rows, "user-", 500), "page": names(chance, rows, "page-", 50)}
    )


def logins(chance, rows):
    return pa.table(
        {"ts": times(chance, rows), "user": names(chance, rows, "user-", 500), "ok": chance.random(rows) < 0.5}
    )


def messages(chance, rows):
    """Return requests, most of them with one later answer."""
    asked, ids = times(chance, rows).to_numpy(), np.arange(rows)
    answered = chance.random(rows) < 0.95
    delay = (chance.exponential(100, rows) * 1e6).astype("timedelta64[us]")
    return pa.table(
        {
            "ts": pa.array(np.append(asked, (asked + delay)[answered])).cast(TS),
            "id": np.append(ids, ids[answered]),
            "kind": ["request"] * rows + ["answer"] * int(answered.sum()),
        }
    ).sort_by("ts")


def views(chance, rows):
    return pa.table({"ts": times(chance, rows), "item": names(chance, rows, "item-", 1000)})


def orders(chance, rows):
    return pa.table(
        {
            "ts": times(chance, rows),
            "customer": names(chance, rows, "customer-", 300),
            "item": names(chance, rows, "item-", 40),
            "quantity": chance.integers(1, 10, rows),
        }
    )


def prices(chance, rows):
    rows = max(1, rows // 20)
    return pa.table(
        {
            "ts": times(chance, rows),
            "item": names(chance, rows, "item-", 40),
            "cents": pa.array(chance.integers(100, 10_000, rows), mask=chance.random(rows) < 0.1),
        }
    )


def samples(chance, rows):
    """Return samples of ten sensors, each 100 per second: a tone of a different frequency per sensor, and noise."""
    steps, sensor = np.divmod(np.arange(rows), 10)
    value = np.sin(2 * np.pi * (sensor + 1) * steps / 100) + chance.normal(0, 0.5, rows)
    return pa.table({"ts": moments(steps * 10_000), "sensor": sensor, "value": value})


def cars(chance, rows):
    lane = pa.array(chance.integers(0, 4, rows), mask=chance.random(rows) < 0.01)
    return pa.table(
        {"ts": times(chance, rows), "lane": lane, "car": np.arange(rows), "speed": chance.normal(25, 8, rows).round(1)}
    )


def sales(chance, rows):
    cents = chance.integers(100, 10_000, rows)
    return pa.table(
        {"ts": times(chance, rows), "id": np.arange(rows), "item": names(chance, rows, "item-", 40), "cents": cents}
    )


def payments(chance, rows):
    """Return payments of nine sales in ten, in any order; some are too small."""
    paid = chance.permutation(rows)[: rows * 9 // 10]
    return pa.table({"ts": times(chance, len(paid)), "id": paid, "cents": chance.integers(5_000, 10_000, len(paid))})


def shipments(chance, rows):
    """Return shipments of half of the sales, in one parcel or two."""
    shipped = chance.integers(0, rows, rows // 2)
    return pa.table({"ts": times(chance, len(shipped)), "id": shipped, "parcel": np.arange(len(shipped))})


STREAMS = (clicks, logins, messages, views, orders, prices, samples, cars, sales, payments, shipments)


def main(folder=".", rows=20_000, files=4):
    chance = np.random.default_rng(1)
    for make in STREAMS:
        table = make(chance, rows)
        target = Path(folder, make.__name__)
        target.mkdir(parents=True, exist_ok=True)
        size = -(-len(table) // files)
        for number in range(files):
            pq.write_table(table.slice(number * size, size), target / f"{number}.parquet")
        print(f"{target}: {len(table):,} tuples: {', '.join(table.column_names)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
