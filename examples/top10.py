"""The ten items that were viewed most so far, every minute: `headrace run examples/top10.py --out top10/`.

Reads views (ts, item) from the folder `views/` (or $VIEWS); `python examples/inputs.py` makes some.

Two splits, one behind the other. The first counts in parallel: an item is counted in one substream, so whatever is among
the ten of all is among the ten of its substream. The second has a single substream, which sees only ten rows of each.
"""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")


class Candidates(hr.Processor):
    """Counts views by item; at every minute, the items of this substream with most views."""

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
    """The first of all candidates of a minute. They have the same ts, so they come in one call, and nothing is kept."""

    schema = pa.schema([("ts", TS), ("rank", pa.int64()), ("item", pa.string()), ("views", pa.int64())])

    def __init__(self, size=10):
        self.size = size

    def process(self, candidates, state):
        ordered = candidates.sort_by([("ts", "ascending"), ("views", "descending"), ("item", "ascending")])
        ts = ordered["ts"].to_numpy()
        rank = np.arange(len(ts)) - np.searchsorted(ts, ts) + 1  # place, less that of the first of the same minute
        return ordered.add_column(1, "rank", pa.array(rank)).filter(rank <= self.size)


def build(views):
    return views.split(16, by=["item"]).apply(Candidates()).split(1, route="0").apply(Ranking())


def query(spark):
    return build(hr.files(spark, os.environ.get("VIEWS", "views"), time="ts", lateness="10 seconds", name="views"))
