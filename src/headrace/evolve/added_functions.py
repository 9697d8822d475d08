"""Functions that are added to an aggregate over time windows, whose state continues.

    query["functions_since"][operator] = [number, T] for each function: it is null in windows that start before T; None: none

A pane of the state has one row per group, with columns for the partials of each function. Rows written before a
function was added have nulls for it, so a window has a value only if it starts after the function has begun to receive
all tuples. The names of a function's columns contain its number. Former functions keep their numbers, wherever the new
ones are written.

Invariant: an aggregate counts as extended only if it means the same except for further functions and the columns they
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace import plan as p
from headrace.driver.fingerprint import Json, QueryMeanings
from headrace.state.manifest import Manifest, SourceState
from headrace.support.event_time import NEVER, moment_text
from headrace.telemetry import incomplete
from headrace.telemetry.incomplete import FUNCTIONS_SINCE, Since, functions_since


def extend_aggregates(last: Manifest, plan: p.PhysicalPlan, new: Json) -> tuple[Manifest, list[str]]:
    """Return the manifest as if its aggregates had had the functions that the new query adds, and a line for each
    change."""
    means, since, said = dict(last.query["means"]), functions_since(last.query), list[str]()
    for name, now in new["means"].items():
        was = means.get(name)
        if was is None or not plan.by_name[name].takes_functions or not _extends(was, now):
            continue
        behind = since if was["inputs"] != now["inputs"] or name in since else {}
        if (time := _all_comes_from(name, last, plan, new, behind)) is None:
            continue
        had, has = was["does"]["functions"], now["does"]["functions"]
        known = since.get(name, [[number, None] for number in range(len(had))])
        since[name], added = _numbered(had, known, has, None if time == NEVER else time)
        means[name] = now
        said.append(_said(name, added, time))
    query = {**last.query, "means": means, **({FUNCTIONS_SINCE: since} if since else {})}
    return (replace(last, query=query) if said else last), said


def kept_functions_since(old: Mapping[str, Any], kept: Mapping[str, str]) -> dict[str, dict[str, Since]]:
    """Return the section of `query` for added functions. kept: by operator, its name in the state."""
    known = functions_since(old)
    found = {name: known[former] for name, former in kept.items() if former in known}
    return {FUNCTIONS_SINCE: found} if found else {}


def _numbered(had: Sequence[str], known: Since, has: Sequence[str], time: int | None) -> tuple[Since, list[str]]:
    """Return the entry of each function, and the new functions."""
    left, added, entries = list(zip(had, known, strict=True)), list[str](), Since()
    for function in has:
        place = next((place for place, (former, _) in enumerate(left) if former == function), None)
        if place is None:
            entries.append([len(had) + len(added), time])
            added.append(function)
        else:
            entries.append(left.pop(place)[1])
    return entries, added


def _said(name: str, added: Sequence[str], time: int) -> str:
    what = f"{name} also computes {', '.join(added)}"
    return what if time == NEVER else f"{what}, which is null in windows that began before {moment_text(time)}"


def _all_comes_from(
    name: str, last: Manifest, plan: p.PhysicalPlan, new: Json, since: Mapping[str, Since]
) -> int | None:
    """Return the event time from which on all tuples reach an operator after this start; None if it is unknown.

    since: by aggregate to which functions were added, the times from which on these are complete. An operator downstream that
    reads their values has all of them once no window in which they are null can still close.
    """
    above = [each for each in QueryMeanings(new).above(name) if each in plan.by_name]
    if any(each not in last.operators for each in above):
        return None
    known = {source.name: last.sources.get(source.name, SourceState()).largest for source in plan.sources}
    arrived = {source: NEVER if largest is None else largest + 1 for source, largest in known.items()}
    notes = {each: last.operators[each].notes for each in above}
    additions = incomplete.latest_addition({FUNCTIONS_SINCE: since})
    begun = incomplete.later_of(incomplete.incomplete_operators(last.query), additions)
    complete = incomplete.complete_since(plan, arrived, begun, (), notes)
    return incomplete.input_complete_since(plan, name, complete)


def _extends(was: Json, now: Json) -> bool:
    """Return whether an operator does the same as before and computes more functions."""
    one, two = was["does"], now["does"]
    if one.get("operator") != "aggregate" or "window" not in one:
        return False
    had, has = one["functions"], two["functions"]
    alike = {**one, "functions": None} == {**two, "functions": None}
    more = len(had) < len(has) and not Counter(had) - Counter(has)
    return alike and more and all(_sides_extend(was, now))


def _sides_extend(was: Json, now: Json) -> Iterator[bool]:
    for former, present in zip(was["inputs"], now["inputs"], strict=True):
        yield len(former) == len(present)
        yield all(_edge_extends(one, two) for one, two in zip(former, present, strict=False))


def _edge_extends(was: Json, now: Json) -> bool:
    """Return whether an edge carries the same as before, and perhaps more columns."""
    same = all(was.get(key) == now.get(key) for key in ("from", "output"))
    more = all(_within(was.get(key, []), now.get(key, [])) for key in ("reads", "computed", "passes"))
    steps = len(was["steps"]) == len(now["steps"])
    return same and more and steps and all(map(_step_extends, was["steps"], now["steps"]))


def _step_extends(was: Json, now: Json) -> bool:
    if was.keys() != now.keys():
        return False
    grown = {"map", "columns", "types"}  # lists of columns
    fixed = was.keys() - grown - {"words", "name"}
    return all(was[k] == now[k] for k in fixed) and all(_within(was[k], now[k]) for k in grown & was.keys())


def _within(few: Sequence[Any], many: Sequence[Any]) -> bool:
    return all(each in many for each in few)
