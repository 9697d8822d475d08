# mypy: disable-error-code="no-untyped-def"
"""Balances: what drivers owe so far, and as of when.

A toll is notified when a car comes into a segment, and due when it goes on into another; the roads say which it is
(`driving.CHARGED`). Events of a second come before the questions of that second, so an answer knows all of it.

    official    the balance at the last notification, as of then; in the second in which the car leaves, that of this second
    walmart     the balance now
    unknown     nothing, now
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.compiled import compiled
from headrace.processor import State
from headrace_linearroad.driving import CHARGED, LEAVES
from headrace_linearroad.forms import OUTPUTS
from headrace_linearroad.profiles import Profile
from headrace_linearroad.roads import SECOND

ASKED = 4  # `what` of a question; its `n` is the number of the question


class Accounts(hr.Processor):
    """Some cars, by their numbers."""

    schema = OUTPUTS["balances"]
    tables = {  # noqa: RUF012
        "accounts": hr.StateTable(
            key=["vid"],
            columns=pa.schema(
                [
                    ("vid", pa.int32()),
                    ("balance", pa.int64()),
                    ("pending", pa.int32()),  # notified, not due yet
                    ("late", pa.int32()),  # what was due when the car left
                    ("entered", pa.int32()),  # seconds, and one more: 0 is never
                    ("left", pa.int32()),
                ]
            ),
        )
    }

    def __init__(self, profile: str = Profile.official) -> None:
        self.profile = str(profile)

    def process(self, tuples: pa.Table, state: State) -> pa.Table:
        accounts = state["accounts"]
        time = tuples["ts"].to_numpy().astype(np.int64) // SECOND
        what, vid, n = (tuples[name].to_numpy() for name in ("what", "vid", "n"))
        rows = accounts.numbers(vid)
        asked = np.flatnonzero(what == ASKED)
        as_of, balance = np.empty((2, len(asked)), np.int64)
        columns = accounts.columns
        held = tuple(columns[name] for name in ("balance", "pending", "late", "entered", "left"))
        settle(time, what, n, rows, *held, as_of, balance, self.profile == Profile.official)
        del held, columns
        accounts.touched(rows[what != ASKED])
        qid, asker, at = (values[asked].astype(np.int64) for values in (n, vid, time))
        answers = [tuples["ts"].take(pa.array(asked)), *map(pa.array, (qid, at, as_of, asker, balance))]
        return pa.Table.from_arrays(answers, schema=self.schema)


@compiled
def settle(time, what, n, rows, balance, pending, late, entered, left, as_of, answer, official):
    """Events into accounts, and answers out of them, in sequence."""
    asked = 0
    for place in range(len(time)):
        row = rows[place]
        if what[place] == ASKED:
            as_of[asked], answer[asked] = time[place], balance[row]
            if official and left[row] != time[place] + 1 and entered[row]:
                as_of[asked] = entered[row] - 1
                answer[asked] -= late[row]
            asked += 1
            continue
        leaves = what[place] & LEAVES
        due = pending[row] if what[place] & CHARGED else 0
        balance[row] += due
        pending[row] = 0 if leaves else n[place]
        if leaves:
            left[row] = time[place] + 1
            late[row] += due
        else:
            entered[row] = time[place] + 1
            late[row] = 0
