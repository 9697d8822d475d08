"""Requests without an answer for five minutes: `headrace run examples/unanswered.py --out unanswered/`.

The query reads messages (ts, id, kind: 'request' or 'answer') from the folder `messages/` (or $MESSAGES).
`python examples/inputs.py` generates some.

The alarm is for something that did NOT happen, so no tuple can raise it. A tick raises it when event time has passed.
"""

import os
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

TS = pa.timestamp("us", "UTC")


class Unanswered(hr.Processor):
    """Requests without an answer of the same id less than `within` later. A repeated request restarts the wait."""

    schema = pa.schema([("ts", TS), ("id", pa.int64()), ("asked", TS)])
    tables = {
        "waiting": hr.StateTable(
            key=["id"], columns=pa.schema([("id", pa.int64()), ("asked", TS), ("overdue", TS)]), due="overdue"
        )
    }
    every = "1 minute"

    def __init__(self, within=timedelta(minutes=5)):
        self.within = within

    def process(self, messages, state):
        waiting = state["waiting"]
        requests = messages.filter(pc.equal(messages["kind"], "request"))
        asked = requests.group_by("id").aggregate([("ts", "max")]).rename_columns({"ts_max": "asked"})
        waiting.put(asked.append_column("overdue", pc.add(asked["asked"], self.within)))

        # an answer counts from its request until that is overdue; without a request both comparisons are null, not true
        answers = messages.filter(pc.equal(messages["kind"], "answer"))
        request = waiting.get(answers.select(["id"]))
        after = pc.greater_equal(answers["ts"], request["asked"])
        in_time = pc.less(answers["ts"], request["overdue"])
        waiting.delete(answers.select(["id"]).filter(pc.and_(after, in_time)))

    def tick(self, time, state):
        late = state["waiting"].due(time)
        state["waiting"].delete(late.select(["id"]))
        return late.drop_columns("overdue").add_column(0, "ts", pa.array([time] * len(late), TS))


def build(messages):
    return messages.split(64, by=["id"]).apply(Unanswered())


def query(spark):
    folder = os.environ.get("MESSAGES", "messages")
    return build(hr.files(spark, folder, time="ts", lateness="10 seconds", name="messages"))
