"""Cars that follow too close, per lane and minute: `headrace run examples/per_lane.py --out close/`.

The query reads cars (ts, lane, car, speed) from the folder `cars/` (or $CARS). `python examples/inputs.py` generates
some.

The query needs no processor: `each` runs headrace's own operators on every lane separately, so the join matches only
cars of the same lane. The result has the lane in the column `substream`. Cars with a null lane are omitted and counted.
"""

import os

import headrace as hr

LANES = 4


def too_close(lane):
    """Return, per minute, how often a fast car followed another by at most a second."""
    pairs = lane.join(lane, on="l.ts < r.ts AND l.car <> r.car AND r.speed > 15", within="1 second")
    return pairs.aggregate(window="60 seconds", close="count(*)", fastest="max(r_speed)")


def build(cars):
    return cars.split(LANES, route="lane").each(too_close)


def query(spark):
    return build(hr.files(spark, os.environ.get("CARS", "cars"), time="ts", lateness="2 seconds", name="cars"))
