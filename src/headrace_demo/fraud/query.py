"""Two kinds of telephone fraud, detected in the stream of call records during the calls.

A *cloned SIM* is one number that calls from two places that are too far apart to travel between. A *SIM box* is a rack
of SIMs that turns calls from abroad into cheap local ones: different numbers, a few metres apart, at the same time.
"""

from __future__ import annotations

from headrace.stream import Stream


def fraud(calls: Stream) -> tuple[Stream, Stream]:
    """Return the alarms, and their number per district in every 10 seconds."""
    calls = calls.map("caller", "district", "x", "y", began="epoch(ts)", ended="epoch(ts) + duration")
    cloned = calls.join(
        calls,
        on="""l.caller = r.caller and l.began < r.began
              and sqrt(pow(l.x - r.x, 2) + pow(l.y - r.y, 2)) > 1000 + 70 * (r.began - l.began)""",
        within="10 seconds",
    )
    boxes = calls.join(  # without any equality: every call is compared with every other call of the window
        calls,
        on="""abs(l.x - r.x) < 5 and abs(l.y - r.y) < 5 and l.caller < r.caller
              and l.began < r.ended and r.began < l.ended""",
        within="10 seconds",
    )
    alarms = cloned.map(
        kind="'cloned SIM'", district="l_district", caller="l_caller", other="'also in ' || r_district"
    ).union(boxes.map(kind="'SIM box'", district="l_district", caller="l_caller", other="'beside ' || r_caller"))
    per_district = alarms.aggregate(by=["district"], window="10 seconds", every="5 seconds", alarms="count(*)")
    return alarms, per_district
