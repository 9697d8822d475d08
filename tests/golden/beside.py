"""What the golden folders `format-N-beside` hold: sessions, `asof`, outer joins, and a table that changed while they were made.

The table has one content in the first two epochs, another one after a restart, and a third for who goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

RESULTS = ("talks", "told", "calm", "known", "unanswered", "tariffs")
CHANGES_AT = 2  # the first epoch that has the second content


def tariffs(number: int) -> pa.Table:
    """One caller is not in it, another one in every version."""
    callers = [caller for place, caller in enumerate("abcde") if place != number]
    return pa.table({"caller": callers, "tariff": [f"{caller}-{number}" for caller in callers]})


def hold(folder: Path, number: int) -> None:
    """The table has this content from now on."""
    (folder / "held").mkdir(exist_ok=True)
    pq.write_table(tariffs(number), folder / "held" / "_new")
    (folder / "held" / "_new").rename(folder / "held" / "tariffs.parquet")


def query(spark: Any, folder: Path) -> dict[str, hr.Stream]:
    """Open sessions as a row each and as tuples; tuples that wait for changes, and changes; sides that have met nobody yet."""
    calls = hr.files(spark, folder / "calls", time="ts", lateness="1 second", files_per_epoch=1, name="calls")
    held = hr.table(folder / "held", name="held")
    talks = calls.aggregate(by=["caller"], session="0.5 seconds", n="count(*)", s="sum(seconds)")
    told = calls.aggregate(by=["caller"], session="1 second", told="list(seconds)").map("caller", told="told::VARCHAR")
    short, long = calls.case("seconds < 30")
    known = short.asof(long, by=["caller"], within="4 seconds", how="left")
    unanswered = short.join(long, on="l.caller = r.caller and l.ts < r.ts", within="0.5 seconds", how="full")
    priced = calls.join(held, on="l.caller = r.caller", how="left").map("seconds", "tariff", caller="l_caller")
    late = talks.join(held, on="l.caller = r.caller").map("n", "s", "tariff")
    return dict(zip(RESULTS, (talks, told, late, known, unanswered, priced), strict=True))
