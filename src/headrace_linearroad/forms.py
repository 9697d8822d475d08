"""What lies in files: input, histories, outputs. Whoever writes one and whoever reads it agree here and nowhere else.

Of the application and its generator only: the validator states the same on its own.
"""

from __future__ import annotations

import pyarrow as pa

TS = pa.timestamp("us", "UTC")  # `time` seconds after 1970-01-01T00:00Z
REPORT, BALANCE, EXPENDITURE, TRAVEL = 0, 2, 3, 4  # kinds of input tuples; there is no 1
NOTHING = -1  # in a field that a tuple has no use for

FIELDS = (
    "type",
    "time",
    "vid",
    "spd",
    "xway",
    "lane",
    "dir",
    "seg",
    "pos",
    "qid",
    "sinit",
    "send",
    "dow",
    "tod",
    "day",
)
"""The fifteen fields of a line of text, in their order."""

WIDTHS = {
    "time": pa.int32(),
    "vid": pa.int32(),
    "xway": pa.int16(),
    "pos": pa.int32(),
    "qid": pa.int32(),
    "tod": pa.int16(),
}
INPUT = pa.schema([("ts", TS), *((name, WIDTHS.get(name, pa.int8())) for name in FIELDS)])
"""A file of one second, `000017.arrow`: Arrow IPC file, not compressed. Seconds without a tuple have no file."""

COMPLETE = "_complete.json"
"""Written last into a folder of generated files; one without it is half written."""

HISTORY = "history"
"""Folder beside the files of seconds, with the two below."""

TOLLS = "tolls.arrow"
TOLL_HISTORY = pa.schema([("vid", pa.int32()), ("day", pa.int8()), ("xway", pa.int16()), ("toll", pa.int32())])
"""Arrow IPC file, not compressed, rows by (vid, day, xway)."""

SEGMENTS = "segments.arrow"
SEGMENT_HISTORY = pa.schema(
    [
        ("day", pa.int8()),
        ("min", pa.int16()),
        ("xway", pa.int16()),
        ("dir", pa.int8()),
        ("seg", pa.int8()),
        ("lav", pa.int16()),
        ("cnt", pa.int16()),
        ("toll", pa.int32()),
    ]
)
"""Arrow IPC file, not compressed, rows by (xway, dir, seg, min, day)."""


def _out(*names: str) -> pa.Schema:
    return pa.schema([("ts", TS), *((name, pa.int64()) for name in names)])


OUTPUTS = {
    "tolls": _out("vid", "time", "lav", "toll", "xway", "dir", "seg"),
    "accidents": _out("vid", "time", "xway", "dir", "seg"),
    "balances": _out("qid", "time", "resulttime", "vid", "bal"),
    "expenditures": _out("qid", "time", "vid", "day", "xway", "bal"),
    "travel_times": _out("qid", "time", "traveltime", "toll"),
}
"""Folders of Parquet files; `ts` is that of the tuple that asked or caused it."""
