"""The query: a stream of reports and questions to five streams of answers.

    input ── reports, by road ──────────> Roads ──> tolls, accidents
                                            └ events ┐
          ── questions for balances ─────────────────┴ by car ──> Accounts ──> balances
          ── questions for expenditures, by car ────────────────> Expenditures
          ── questions for travel times ────────────────────────> TravelTimes
          ── tuples that no rule is about, kept apart

Reports that are not what a report can be go nowhere: no toll follows from them.
"""

from __future__ import annotations

import headrace as hr
from headrace_linearroad.accounts import ASKED, Accounts
from headrace_linearroad.forms import BALANCE, REPORT
from headrace_linearroad.profiles import Profile
from headrace_linearroad.roads import REPORTS, Roads

ROADS, CARS = 64, 32  # substreams; roads and cars are many more

ANY = "epoch_us(ts) = time * 1000000 AND time BETWEEN 0 AND 10799 AND vid >= 0"
PLACE = "spd BETWEEN 0 AND 100 AND xway >= 0 AND lane BETWEEN 0 AND 4 AND dir BETWEEN 0 AND 1"
IS_REPORT = f"type = {REPORT} AND {ANY} AND {PLACE} AND seg BETWEEN 0 AND 99 AND pos BETWEEN 0 AND 527999"


def is_question(kind: int) -> str:
    return f"type = {kind} AND {ANY} AND qid >= 0"


def answers(tuples: hr.Stream, profile: Profile) -> dict[str, hr.Stream]:
    """By the names of `forms.OUTPUTS`."""
    reports = tuples.split(ROADS, route=f"CASE WHEN {IS_REPORT} THEN (xway * 2 + dir) % {ROADS} END")
    kept = {"road": "(xway * 2 + dir)::INTEGER", **{name: name for name in REPORTS.names[2:]}}
    told = reports.map(**kept).apply(Roads(profile))
    asked = tuples.filter(is_question(BALANCE)).map(what=f"{ASKED}::TINYINT", vid="vid", n="qid")
    events = told["events"].union(asked)
    return {
        "tolls": told["tolls"],
        "accidents": told["accidents"],
        "balances": events.split(CARS, by=["vid"]).apply(Accounts(profile)),
    }
