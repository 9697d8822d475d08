"""Calls per district in windows of 10 seconds: `headrace run examples/busy.py --out busy/`.

The query reads call records from the folder `calls/` (or $CALLS). `headrace demo --keep` generates some.
"""

import os

import headrace as hr


def query(spark):
    calls = hr.files(spark, os.environ.get("CALLS", "calls"), time="start", lateness="2 seconds", name="calls")
    return calls.aggregate(by=["district"], window="10 seconds", calls="count(*)", longest="max(duration)")
