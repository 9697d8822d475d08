"""Random queries of which little is read: what was dropped is not missed, and state holds the same under any strategy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headrace.compile import STRATEGIES, compile_query
from headrace.operators import StateKind
from headrace.state import merge_planning
from headrace.stream import Stream, node_of

from .strategies import ALL, STATELESS, Case, make_case, quoted
from .test_local import check, seeds

OPERATORS = (*ALL, "time_join", "time_join", "time_aggregate")


def narrowed(query: Stream, seed: int) -> Stream:
    """One column of the query, or the number of its results."""
    r = random.Random(seed)
    if r.random() < 0.3:
        return query.aggregate(by=[], window="10 seconds", n="count(*)")
    return query.map(only=quoted(r.choice(query.columns)))


def narrow_case(seed: int) -> Case:
    case = make_case(f"narrow-{seed}", OPERATORS, depth=(1, 2, 2, 3))
    return replace(case, query=narrowed(case.query, seed))


@seeds(90)
def test_what_was_dropped_is_not_missed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(merge_planning, "FAN_IN", 2)
    strategies = STRATEGIES[seed % 3 :] + STRATEGIES[: seed % 3]
    whole = seed % 3 == 0  # late tuples are kept, so that sources are read whole
    check(narrow_case(seed), seed, epochs=4, reopen=0.4, change_slots=0.5, strategies=strategies, keep_late=whole)


def held(query: Stream, strategy: str) -> dict[str, list[list[str]]]:
    operators = compile_query([node_of(query)], [True], strategy).operators
    return {o.name: [s.names for s in o.schemas] for o in operators if o.state is not StateKind.NONE}


@pytest.mark.long
def test_every_strategy_holds_the_same_columns() -> None:
    for seed in range(150):
        depth = (3, 4, 5, 6)
        query = make_case(f"held-{seed}", (*OPERATORS, *STATELESS), most=20, depth=depth).query
        for asked in (query, narrowed(query, seed)):
            assert held(asked, "subquery") == held(asked, "operator") == held(asked, "query"), f"seed {seed}: {asked!r}"


@pytest.mark.thorough
def test_most_of_these_queries_drop_something(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = [seed for seed in range(60) if _drops(narrow_case(seed).query, monkeypatch)]
    assert len(dropped) > 30, dropped


def _drops(query: Stream, monkeypatch: pytest.MonkeyPatch) -> bool:
    found = held(query, "subquery")
    with monkeypatch.context() as without:
        without.setattr("headrace.compile.prune", lambda plan, given=None: plan)
        return found != held(query, "subquery")
