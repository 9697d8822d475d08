"""The headrace query: from one stream of reports and questions to five streams of answers.

    input ── reports, by road ──────────> Roads ──> tolls, accidents
                                            └ events ┐
          ── questions for balances ─────────────────┴ by car ──> Accounts ──> balances
          ── questions for expenditures, by car ────────────────> Expenditures
          ── questions for travel times ────────────────────────> TravelTimes
          ── invalid tuples: set aside

If a car of the input may be on two roads at once (see `wandering.py`), the plan has another operator, `Journeys`, by
car, and `Lanes` instead of `Roads`.

A tuple with a field outside its domain is only set aside. It affects no answer.
"""

from __future__ import annotations

from typing import Any

import headrace as hr
from headrace.columnar.numba_cache import is_cached
from headrace_linearroad import accounts, driving, journeys, lanes
from headrace_linearroad.accounts import ASKED, Accounts
from headrace_linearroad.expenditures import Expenditures
from headrace_linearroad.forms import BALANCE, EXPENDITURE, FIELDS, REPORT, TRAVEL
from headrace_linearroad.history import Histories
from headrace_linearroad.journeys import REPORTS as FOLLOWED
from headrace_linearroad.journeys import Journeys
from headrace_linearroad.lanes import Lanes
from headrace_linearroad.reading import OF_ALL, OF_QUESTIONS, OF_REPORTS
from headrace_linearroad.roads import REPORTS, Roads
from headrace_linearroad.travel import TravelTimes

ROADS, CARS, LOOKUPS = 32, 16, 4  # numbers of substreams

APART = "apart"


def _within(domain: dict[str, tuple[int, int]]) -> str:
    return " AND ".join(f"{name} BETWEEN {least} AND {largest}" for name, (least, largest) in domain.items())


ON_TIME = "epoch_us(ts) = time::BIGINT * 1000000"  # the product does not fit INTEGER after second 2147
QUESTIONS = f"type IN ({BALANCE}, {EXPENDITURE}, {TRAVEL})"
VALID = (
    f"{_within(OF_ALL)} AND {ON_TIME} AND"
    f" CASE WHEN type = {REPORT} THEN {_within(OF_REPORTS)} WHEN {QUESTIONS} THEN {_within(OF_QUESTIONS)} END"
)


def answers(tuples: hr.Stream, profile: str, histories: Histories, wandering: bool = False) -> dict[str, hr.Stream]:
    """Return the streams of answers by the names of `forms.OUTPUTS`, and the invalid tuples as `APART`.

    wandering: use the plan in which a car may be on several roads. Each tuple is validated once. Questions are rare, so
    they are separated from reports first, and from each other afterwards.
    """
    looked = tuples.map(*FIELDS, road="xway::INTEGER * 2 + dir", valid=f"coalesce({VALID}, false)")
    questions = looked.filter(f"valid AND type <> {REPORT}")
    told = _anywhere(looked, profile) if wandering else _on_roads(looked, profile)
    return {
        "tolls": told["tolls"],
        "accidents": told["accidents"],
        "balances": _balances(questions, told["events"], profile),
        "expenditures": _asked(questions, EXPENDITURE, "vid").apply(Expenditures(histories.tolls)),
        "travel_times": _asked(questions, TRAVEL, "qid").apply(TravelTimes(histories.segments)),
        APART: _apart(looked),
    }


def is_compiled(wandering: bool = False) -> bool:
    """Return whether the query's largest loops are in the cache of compiled loops."""
    loops = (journeys.follow, lanes.follow) if wandering else (driving.drive,)
    return all(map(is_cached, (*loops, accounts.settle)))


def _on_roads(tuples: hr.Stream, profile: str) -> dict[str, hr.Stream]:
    reports = tuples.split(ROADS, route=f"CASE WHEN valid AND type = {REPORT} THEN road % {ROADS} END")
    told: dict[str, hr.Stream] = reports.map(*REPORTS.names[1:]).apply(Roads(profile))
    return told


def _anywhere(tuples: hr.Stream, profile: str) -> dict[str, hr.Stream]:
    reports = tuples.filter(f"valid AND type = {REPORT}").map(*FOLLOWED)
    facts = reports.split(CARS, by=["vid"]).apply(Journeys(profile))
    told: dict[str, hr.Stream] = facts.split(ROADS, route=f"road % {ROADS}").apply(Lanes(profile))
    return told


def _balances(questions: hr.Stream, events: hr.Stream, profile: str) -> hr.Stream:
    asked = questions.filter(f"type = {BALANCE}").map(what=f"{ASKED}::TINYINT", vid="vid", n="qid", page="0::TINYINT")
    balances: hr.Stream = events.union(asked).split(CARS, by=["vid"]).apply(Accounts(profile))
    return balances


def _asked(questions: hr.Stream, kind: int, by: str) -> Any:
    names = ("qid", "time", "vid", "xway", "sinit", "send", "dow", "tod", "day")
    return questions.filter(f"type = {kind}").map(*names).split(LOOKUPS, by=[by])


def _apart(tuples: hr.Stream) -> hr.Stream:
    """Return the invalid tuples, each with the first reason that applies, in the same order as for lines of text."""
    of = [(OF_ALL, "true"), (OF_REPORTS, f"type = {REPORT}"), (OF_QUESTIONS, f"type <> {REPORT}")]
    reasons = [f"WHEN type NOT IN ({REPORT}, {BALANCE}, {EXPENDITURE}, {TRAVEL}) THEN 'no such type'"]
    for domain, which in of:
        for name, (least, largest) in domain.items():
            outside = f"{which} AND {name} NOT BETWEEN {least} AND {largest}"
            reasons.append(f"WHEN {outside} THEN '{name} outside {least}..{largest}'")
    reasons.append(f"WHEN NOT {ON_TIME} THEN 'time is not that of the tuple'")
    return tuples.filter("NOT valid").map(*FIELDS, reason=f"CASE {' '.join(reasons)} ELSE 'null' END")
