"""The validator's definitions of files. They repeat those of `forms.py` on purpose, so that no mistake is shared."""

from __future__ import annotations

from dataclasses import dataclass

REPORT, BALANCE, EXPENDITURE, TRAVEL = 0, 2, 3, 4

FIELDS = (
    *("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos"),
    *("qid", "sinit", "send", "dow", "tod", "day"),
)
"""The fields of a line of text, in order. An Arrow file of one second also has `ts`."""

MOST = 2**31 - 1  # MAXINT of the benchmark
LAST = 10_799  # three hours

ALWAYS = {"time": (0, LAST), "vid": (0, MOST)}
OF_REPORTS = {
    "spd": (0, 100),
    "xway": (0, 2**15 - 1),
    "lane": (0, 4),
    "dir": (0, 1),
    "seg": (0, 99),
    "pos": (0, 527_999),
}
OF_QUERIES = {"qid": (0, MOST)}
"""Domains, both ends included. A question whose other fields are outside their domains is valid and has no answer."""

USED = {
    REPORT: (*ALWAYS, *OF_REPORTS),
    BALANCE: (*ALWAYS, *OF_QUERIES),
    EXPENDITURE: (*ALWAYS, *OF_QUERIES, "xway", "day"),
    TRAVEL: (*ALWAYS, *OF_QUERIES, "xway", "sinit", "send", "dow", "tod"),
}
"""The fields that each type of tuple uses. The others may contain anything."""

COMPLETE = "_complete.json"  # the last file of a complete input folder
HISTORY = "history"  # the subfolder of an input folder with its histories

TOLL_HISTORY = ("vid", "day", "xway", "toll")
SEGMENT_HISTORY = ("day", "min", "xway", "dir", "seg", "lav", "cnt", "toll")


@dataclass(frozen=True)
class Output:
    """The columns of an output besides `ts`, and its key: the columns that identify a row's question or report."""

    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in self.key)


OUTPUTS = {
    "tolls": Output(("vid", "time", "lav", "toll", "xway", "dir", "seg"), ("vid", "time")),
    "accidents": Output(("vid", "time", "xway", "dir", "seg"), ("vid", "time")),
    "balances": Output(("qid", "time", "resulttime", "vid", "bal"), ("qid", "time", "vid")),
    "expenditures": Output(("qid", "time", "vid", "day", "xway", "bal"), ("qid", "time", "vid", "day", "xway")),
    "travel_times": Output(("qid", "time", "traveltime", "toll"), ("qid", "time")),
}
