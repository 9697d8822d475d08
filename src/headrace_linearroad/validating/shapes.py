"""What lies in files, as the validator knows it: said here once more, so that no mistake is shared with who writes them."""

from __future__ import annotations

from dataclasses import dataclass

REPORT, BALANCE, EXPENDITURE, TRAVEL = 0, 2, 3, 4

FIELDS = (
    *("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos"),
    *("qid", "sinit", "send", "dow", "tod", "day"),
)
"""Of a line of text, in their order; an Arrow file of one second has `ts` as well."""

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
"""Domains, ends included. What else a query asks for may be outside of its domain: it is then not answered."""

USED = {
    REPORT: (*ALWAYS, *OF_REPORTS),
    BALANCE: (*ALWAYS, *OF_QUERIES),
    EXPENDITURE: (*ALWAYS, *OF_QUERIES, "xway", "day"),
    TRAVEL: (*ALWAYS, *OF_QUERIES, "xway", "sinit", "send", "dow", "tod"),
}
"""What a tuple of each type has a use for. What else it has may be anything."""

COMPLETE = "_complete.json"  # in a folder of seconds that was written to its end
HISTORY = "history"  # a folder in it

TOLL_HISTORY = ("vid", "day", "xway", "toll")
SEGMENT_HISTORY = ("day", "min", "xway", "dir", "seg", "lav", "cnt", "toll")


@dataclass(frozen=True)
class Output:
    """Columns besides `ts`, and those of them that say what a row answers; the others are the answer."""

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
