"""The schemas and names of files: input, histories and outputs.

The query and the generator share this module. The validator has its own definitions, so that it shares no mistakes.
"""

from __future__ import annotations

import pyarrow as pa

TS = pa.timestamp("us", "UTC")  # `time` seconds after 1970-01-01T00:00Z
REPORT, BALANCE, EXPENDITURE, TRAVEL = 0, 2, 3, 4  # types of input tuples; 1 is not used
NOTHING = -1  # the value of a field that the tuple's type does not use

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
"""The schema of the file of one second, such as `000017.arrow`: uncompressed Arrow IPC. Empty seconds have no file."""

COMPLETE = "_complete.json"
"""The file that is written last into a folder of generated files. A folder without it is incomplete."""

HISTORY = "history"
"""The subfolder of an input folder with the two files below."""

TOLLS = "tolls.arrow"
TOLL_HISTORY = pa.schema([("vid", pa.int32()), ("day", pa.int8()), ("xway", pa.int16()), ("toll", pa.int32())])
"""An uncompressed Arrow IPC file with rows sorted by (vid, day, xway)."""

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
"""An uncompressed Arrow IPC file with rows sorted by (xway, dir, seg, min, day)."""


def _out(*names: str) -> pa.Schema:
    return pa.schema([("ts", TS), *((name, pa.int64()) for name in names)])


OUTPUTS = {
    "tolls": _out("vid", "time", "lav", "toll", "xway", "dir", "seg"),
    "accidents": _out("vid", "time", "xway", "dir", "seg"),
    "balances": _out("qid", "time", "resulttime", "vid", "bal"),
    "expenditures": _out("qid", "time", "vid", "day", "xway", "bal"),
    "travel_times": _out("qid", "time", "traveltime", "toll"),
}
"""The schemas of the folders of answers (Parquet files). `ts` is that of the question or report that caused the row."""
