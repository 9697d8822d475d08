"""Streams beside tables that change all the time: what a run uses that is killed, and goes on with other contents.

Invariant: whoever begins an epoch notes first, on the disk, which rows it takes and what the tables hold as they were last
read. Of one number the last note counts: the epoch was begun again only because it had not been committed. So the notes are the
epochs of the answer, whatever was killed; what the manifests say of versions is not asked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.reference import references
from headrace.stream import Stream
from headrace.testing import LocalRun, arrow_table

NOTES = "epochs.jsonl"
CONTENTS = 3  # so that what was there before comes again


@dataclass
class Held:
    """Which content the tables have now."""

    now: int = 0


held = Held()


def prices(number: int) -> pa.Table:
    """By key; one of the four is not there, another one with every content, and one is there twice."""
    keys = [k for k in (0, 1, 2, 3, 3) if k != number]
    return pa.table({"k": pa.array(keys, pa.int64()), "price": [100 * number + place for place in range(len(keys))]})


def ranges(number: int) -> pa.Table:
    low = list(range(7 * number, 120, 31))
    return pa.table({"low": low, "high": [each + 12 + number for each in low], "range": [number] * len(low)})


def _prices() -> pa.Table:  # functions of a module: they are pickled by name
    return prices(held.now)


def _ranges() -> pa.Table:
    return ranges(held.now)


def queries(source: Stream) -> list[Stream]:
    """Looked up as tuples come; between two operators with state; and behind windows and sessions that close later."""
    by_key, by_range = arrow_table(_prices, name="prices"), arrow_table(_ranges, name="ranges")
    priced = source.join(by_key, on="l.k = r.k", how="left").map("v", "price", k="l_k")
    left, right = source.case("side = 0")
    met = left.join(right, on="l.k = r.k", within="0.6 seconds", how="full").map(k="l_k", v="coalesce(l_v, r_v)")
    placed = met.join(by_range, on="l.v between r.low and r.high", how="left")
    counted = placed.aggregate(by=["range"], last=4, every=2, n="count(*)", total="sum(v)")
    sessions = source.aggregate(by=["k"], session="0.9 seconds", n="count(*)", total="sum(v)")
    twice = sessions.join(by_key, on="l.k = r.k").map("n", "total", "price", k="l_k").join(by_key, on="l.n > r.k")
    return [priced, counted, twice.map("n", "total", before="l_price", after="r_price")]


def begin(folder: Path) -> None:
    """Another content in every life."""
    lives = folder / "lives.txt"
    with open(lives, "a") as file:
        file.write("one more\n")
    held.now = len(lives.read_text().splitlines()) % CONTENTS


def before_epoch(run: LocalRun, folder: Path, start: int, stop: int) -> None:
    """Most epochs find another content; who is not told goes on with what was read."""
    last = run.store.last
    number = last.number + 1 if last else 0
    if number % 4:
        held.now = (held.now + number) % CONTENTS
        run.refresh("prices")
        run.refresh("ranges")
    with open(folder / NOTES, "a") as file:
        file.write(json.dumps([number, start, stop, held.now]) + "\n")


def answers(streams: list[Stream], rows: pa.Table, folder: Path) -> list[pa.Table]:
    """Of one sequential machine, on the epochs that were noted."""
    noted = {}
    for line in (folder / NOTES).read_text().splitlines():
        number, *what = json.loads(line)
        noted[number] = what
    assert sorted(noted) == list(range(len(noted)))
    *epochs, _ = [rows.slice(start, stop - start) for start, stop, _ in noted.values()]  # the last one is the end
    versions = [{"prices": prices(now), "ranges": ranges(now)} for *_, now in noted.values()]
    return references(streams, epochs, versions=versions)
