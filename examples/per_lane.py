"""Cars that follow too close, per lane and minute: `headrace run examples/per_lane.py --out close/`.

Reads cars (ts, lane, car, speed) from the folder `cars/` (or $CARS); `python examples/inputs.py` makes some.

No processor here: `each` runs headrace's own operators on every lane alone, so that a join meets cars of one lane only. The
lane is the column `substream` of the result. A car whose lane is null goes nowhere; such cars are counted.
"""

import os

import headrace as hr

LANES = 4


def too_close(lane):
    """How often in a minute a fast car was within a second behind another."""
    pairs = lane.join(lane, on="l.ts < r.ts AND l.car <> r.car AND r.speed > 15", within="1 second")
    return pairs.aggregate(window="60 seconds", close="count(*)", fastest="max(r_speed)")


def build(cars):
    return cars.split(LANES, route="lane").each(too_close)


def query(spark):
    return build(hr.files(spark, os.environ.get("CARS", "cars"), time="ts", lateness="2 seconds", name="cars"))
