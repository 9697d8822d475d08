"""The ten most viewed items so far, every minute: `headrace run examples/top10.py --out top10/`.

The query reads views (ts, item) from the folder `views/` (or $VIEWS). `python examples/inputs.py` generates some.

The query has two splits. The first counts in parallel: each item is counted in one substream, so every item of the
overall top ten is in the top ten of its substream. The second has a single substream, which reads only ten rows of each
substream.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")


class Candidates(hr.Processor):
    """A processor that counts views by item, and emits the most viewed items of its substream every minute."""

    schema = pa.schema([("ts", TS), ("item", pa.string()), ("views", pa.int64())])
    tables = {"counts": hr.StateTable(key=["item"], columns=pa.schema([("item", pa.string()), ("views", pa.int64())]))}
    every = "1 minute"

    def __init__(self, size=10):
        self.size = size

    def process(self, views, state):
        new = views.group_by("item").aggregate([([], "count_all")])
        before = state["counts"].get(new.select(["item"]))["views"]
        total = pc.add(new["count_all"], pc.fill_null(before, 0))
        state["counts"].put(pa.table({"item": new["item"], "views": total}))

    def tick(self, time, state):
        best = state["counts"].rows().sort_by([("views", "descending"), ("item", "ascending")]).slice(0, self.size)
        return best.add_column(0, "ts", pa.array([time] * len(best), TS))


class Ranking(hr.Processor):
    """The ranking of a minute's candidates. They have the same ts, so one call receives them all, without state."""

    schema = pa.schema([("ts", TS), ("rank", pa.int64()), ("item", pa.string()), ("views", pa.int64())])

    def __init__(self, size=10):
        self.size = size

    def process(self, candidates, state):
        ordered = candidates.sort_by([("ts", "ascending"), ("views", "descending"), ("item", "ascending")])
        ts = ordered["ts"].to_numpy()
        rank = np.arange(len(ts)) - np.searchsorted(ts, ts) + 1  # position relative to the first row of the same minute
        return ordered.add_column(1, "rank", pa.array(rank)).filter(rank <= self.size)


def build(views):
    return views.split(16, by=["item"]).apply(Candidates()).split(1, route="0").apply(Ranking())


def query(spark):
    return build(hr.files(spark, os.environ.get("VIEWS", "views"), time="ts", lateness="10 seconds", name="views"))
