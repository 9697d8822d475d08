"""Three failed logins, then a success, within ten minutes: `headrace run examples/logins.py --out guessed/`.

The query reads logins (ts, user, ok) from the folder `logins/` (or $LOGINS). `python examples/inputs.py` generates
some.

The processor handles tuples one by one in plain Python. For speed it reads the state table only once for all users of a
chunk, and writes it once.
"""

import os
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")


class Guessed(hr.Processor):
    """Successes that follow `failures` failed logins in a row, less than `within` after the first of them."""

    schema = pa.schema([("ts", TS), ("user", pa.string()), ("since", TS)])
    tables = {
        "failed": hr.StateTable(
            key=["user"],
            columns=pa.schema([("user", pa.string()), ("times", pa.list_(TS)), ("forget", TS)]),
            due="forget",
        )
    }
    every = "10 minutes"

    def __init__(self, failures=3, within=timedelta(minutes=10)):
        self.failures, self.within = failures, within

    def process(self, logins, state):
        users = pa.table({"user": pc.unique(logins["user"])})
        failed = {row["user"]: row["times"] or [] for row in state["failed"].get(users).to_pylist()}
        guessed = []
        for login in logins.to_pylist():
            user, time = login["user"], login["ts"]
            times = failed[user]
            if not login["ok"]:
                failed[user] = [*times, time][-self.failures :]
                continue
            if len(times) == self.failures and time - times[0] < self.within:
                guessed.append({"ts": time, "user": user, "since": times[0]})
            failed[user] = []
        self.remember(failed, state["failed"])
        return pa.Table.from_pylist(guessed, schema=self.schema)

    def remember(self, failed, table):
        rows = [{"user": u, "times": t, "forget": t[-1] + self.within} for u, t in failed.items() if t]
        table.put(pa.Table.from_pylist(rows, schema=self.tables["failed"].columns))
        table.delete(pa.table({"user": pa.array([u for u, t in failed.items() if not t], pa.string())}))

    def tick(self, time, state):
        """Delete users whose failures are too old to matter. Otherwise the table would grow without limit."""
        state["failed"].delete(state["failed"].due(time).select(["user"]))


def build(logins):
    return logins.split(64, by=["user"]).apply(Guessed())


def query(spark):
    return build(hr.files(spark, os.environ.get("LOGINS", "logins"), time="ts", lateness="10 seconds", name="logins"))
