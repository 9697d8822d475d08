"""Telephone fraud: `headrace run examples/fraud.py`, over call records in the folder `calls/` (or $CALLS).

`headrace demo --keep` generates call records and prints their folder.
"""

import os

import headrace as hr


def query(spark):
    calls = hr.files(spark, os.environ.get("CALLS", "calls"), time="start", lateness="2 seconds", name="calls")
    calls = calls.map("caller", "district", "x", "y", began="epoch(ts)", ended="epoch(ts) + duration")

    # one number, two places too far apart to travel between (metres, seconds; 70 m/s is 250 km/h)
    cloned = calls.join(
        calls,
        on="""l.caller = r.caller and l.began < r.began
              and sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) > 1000 + 70 * (r.began - l.began)""",
        within="10 seconds",
    ).map(kind="'cloned SIM'", district="l_district", caller="l_caller", other="'also in ' || r_district")

    # different numbers, the same few metres, at the same time: a join without any equality
    boxes = calls.join(
        calls,
        on="""abs(l.x - r.x) < 5 and abs(l.y - r.y) < 5 and l.caller < r.caller
              and l.began < r.ended and r.began < l.ended""",
        within="10 seconds",
    ).map(kind="'SIM box'", district="l_district", caller="l_caller", other="'beside ' || r_caller")

    alarms = cloned.union(boxes)
    per_district = alarms.aggregate(by=["district"], window="10 seconds", every="5 seconds", alarms="count(*)")
    return [(alarms, hr.sinks.parquet("alarms")), (per_district, hr.sinks.parquet("alarms-per-district"))]
