"""Sessions of users, ended by half an hour without a click: `headrace run examples/sessions.py --out sessions/`.

The query reads clicks (ts, user, page) from the folder `clicks/` (or $CLICKS). `python examples/inputs.py` generates
some.

The last session of a user must end although no further click arrives. So each open session is a row with the time at
which it `closes`, and a tick every minute closes the rows that are due.
"""

import os
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")
SESSION = [("user", pa.string()), ("first", TS), ("last", TS), ("clicks", pa.int64())]


class Sessions(hr.Processor):
    """Sessions of users. A click belongs to the user's session if it is less than `gap` after the click before it."""

    schema = pa.schema([("ts", TS), *SESSION])
    tables = {"open": hr.StateTable(key=["user"], columns=pa.schema([*SESSION, ("closes", TS)]), due="closes")}
    every = "1 minute"

    def __init__(self, gap=timedelta(minutes=30)):
        self.gap = gap

    def process(self, clicks, state):
        pieces = self.pieces(clicks, state["open"])
        users = pieces["user"].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
        first, last = pieces["first"].to_numpy(), pieces["last"].to_numpy()

        # a session starts where the user changes, or after a pause
        other_user = np.append(True, users[1:] != users[:-1])
        pause = np.append(True, first[1:] - last[:-1] >= np.timedelta64(self.gap))
        starts = np.flatnonzero(other_user | pause)
        ends = np.append(starts[1:], len(pieces)) - 1
        sessions = pa.table(
            {
                "user": pieces["user"].take(starts),
                "first": pieces["first"].take(starts),
                "last": pieces["last"].take(ends),
                "clicks": np.add.reduceat(pieces["clicks"].to_numpy(), starts),
            }
        )

        # the last session of each user stays open; every other one was ended by the click that starts the next
        is_last = np.append(other_user[starts][1:], True)
        still_open = sessions.filter(is_last)
        state["open"].put(still_open.append_column("closes", pc.add(still_open["last"], self.gap)))
        ended_at = pieces["first"].take(np.roll(starts, -1)[~is_last])
        return sessions.filter(~is_last).add_column(0, "ts", ended_at)

    def pieces(self, clicks, open_sessions):
        """Return the users' open sessions, and each click as a session of one click, sorted by user and time."""
        known = open_sessions.get(pa.table({"user": pc.unique(clicks["user"])})).drop_columns("closes")
        known = known.filter(known["clicks"].is_valid())
        ones = pa.array(np.ones(len(clicks), np.int64))
        single = pa.table({"user": clicks["user"], "first": clicks["ts"], "last": clicks["ts"], "clicks": ones})
        return pa.concat_tables([known, single]).sort_by([("user", "ascending"), ("first", "ascending")])

    def tick(self, time, state):
        return self.close(state["open"].due(time), time, state)

    def end(self, time, state):
        return self.close(state["open"].rows(), time, state)

    def close(self, rows, time, state):
        state["open"].delete(rows.select(["user"]))
        return rows.drop_columns("closes").add_column(0, "ts", pa.array([time] * len(rows), TS))


def build(clicks):
    return clicks.split(64, by=["user"]).apply(Sessions())


def query(spark):
    return build(hr.files(spark, os.environ.get("CLICKS", "clicks"), time="ts", lateness="10 seconds", name="clicks"))
