"""Comparison of a query with the one that made a state: which operators continue with their state, and which cannot.

    restart   =>  every operator and source of the state is kept, and none but an order of results is added
    migrate   =>  what is not kept is lost, what is added starts empty; both are logged

Other differences between the two queries (steps downstream of the last state, sinks, results, a longer lateness,
`idle`, `ahead`) affect no state. They may change at any start, are logged, and are in the manifest from the next epoch
on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import plan as p
from headrace.compile import CompiledQuery, Held
from headrace.driver import identity
from headrace.driver.fingerprint import (
    Json,
    QueryMeanings,
    operator_kind,
    query_section,
    source_meaning,
    without_loaders,
)
from headrace.errors import QueryChanged
from headrace.evolve.added_functions import extend_aggregates, kept_functions_since
from headrace.evolve.pin_columns import pin_columns
from headrace.evolve.table_names import joined_tables, rename_tables, unnamed_table_places
from headrace.evolve.twins import QueryPairing
from headrace.operators.base import Operator
from headrace.plan.columns_read import names_of
from headrace.query import nodes
from headrace.query.labels import labelled
from headrace.state.blocks import BlockReader, blocks_by_name
from headrace.state.manifest import Manifest, OperatorState
from headrace.state.store import StateStore
from headrace.support.event_time import NEVER
from headrace.support.terminal_text import printable
from headrace.task.state_table_groups import table_state
from headrace.task.work import WorkCounts, WorkTotals
from headrace.telemetry import incomplete
from headrace.telemetry.incomplete import Begun as Incomplete
from headrace.telemetry.incomplete import incomplete_operators

_log = logging.getLogger(__name__)

ORDER = "order"  # results in sequence: an operator that starts empty without losing anything
RATHER_NEW = "use a new checkpoint folder, or the query it was made for"
CARRY_OVER = "take along what is kept, into a new checkpoint folder: headrace migrate CHECKPOINT FILE --to NEW"
BY_SPARK = "stream"  # the kind of a source that is a streaming DataFrame
MOST_CHANGES = 100  # changes that a manifest keeps
NO_LONGER = "no longer a result:"  # does not begin with the result, because its label is unknown


@dataclass(frozen=True)
class Comparison:
    """Two queries: by new name, what was kept; what is lost, added or impossible; and what is free to change."""

    kept: dict[str, str]  # operator: its name in the state
    results: dict[str, str | None]  # result: its name in the state; None: it is new
    lost: dict[str, str] = field(default_factory=dict)  # operator or source of the state: the reason
    added: dict[str, str] = field(default_factory=dict)  # operator or source of the query: a description
    impossible: list[str] = field(default_factory=list)  # differences that even a migration cannot accept
    shorter: list[str] = field(default_factory=list)  # sources with a shorter lateness, which only a migration allows
    said: list[str] = field(default_factory=list)  # descriptions of free changes
    altered: dict[str, bool] = field(default_factory=dict)  # results with other steps: whether their columns differ
    new_sources: set[str] = field(default_factory=set)  # sources among those added

    @property
    def continues(self) -> bool:
        """Return whether a run may continue with the state."""
        added = [name for name in self.added if operator_kind(name) != ORDER or name in self.new_sources]
        return not (self.lost or added or self.impossible or self.shorter)

    @property
    def same_names(self) -> bool:
        return all(new == old for names in (self.kept, self.results) for new, old in names.items())

    def listed(self) -> Iterator[str]:
        """Yield one line for each operator and source, for users."""
        for name, why in self.lost.items():
            yield f"lost: {name}: {why}"
        for name, old in self.kept.items():
            yield f"kept: {name}" + (f", which was {old}" if name != old else "")
        for name, what in self.added.items():
            yield f"added: {name}: {what}"


def compare_queries(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    old_code: Mapping[str, str] | None = None,
    new_code: Mapping[str, str] | None = None,
) -> Comparison:
    """Compare two sections `query` of a manifest. The code arguments: by operator, the user's code that runs in it."""
    before, after = QueryMeanings(old, old_code), QueryMeanings(new, new_code)
    pairs = QueryPairing(before, after)
    kept = {name: pairs.operators[name] for name in after.operators if name in pairs.operators}
    found = Comparison(kept, _in_place(before, after, pairs.results))
    _sources(found, before, after)
    for name in [name for name in before.operators if name not in kept.values()]:
        twin = _twin(name, before, after, kept)
        found.lost[name] = _difference(before, after, name, twin) if twin else "the query no longer has it"
    for name in after.operators:
        if name not in kept:
            found.added[name] = "begins empty"
    if before.order != after.order:
        found.impossible.append(f"order was {before.order!r}, is {after.order!r}")
    _results(found, before, after)
    return found


def _in_place(before: QueryMeanings, after: QueryMeanings, results: Mapping[str, str]) -> dict[str, str | None]:
    """Return all results with their former names: those with the same meaning, and of the others those in the same
    place."""
    free = set(before.results) - set(results.values())
    return {name: results.get(name, name if name in free else None) for name in after.results}


def _sources(found: Comparison, before: QueryMeanings, after: QueryMeanings) -> None:
    if swapped := _other_order(before, after):
        found.impossible.append(swapped)
    for name, source in before.sources.items():
        now = after.sources.get(name)
        if now is None:
            found.lost[name] = "the query no longer reads this source"
            if renamed := [other for other in after.sources if other not in before.sources]:
                found.lost[name] = f"its name was {name!r}, is {renamed[0]!r}"
            continue
        if different := _keys(source_meaning(source), source_meaning(now)):
            found.impossible.append(f"source {name}: {different}")
        if now["lateness"] < source["lateness"]:
            was, is_ = source["lateness"], now["lateness"]
            found.shorter.append(
                f"source {name}: lateness was {was}, is {is_}: while the state continues it can only become longer"
            )
        for key in ("lateness", "idle", "ahead"):
            if now[key] != source[key] and not (key == "lateness" and now[key] < source[key]):
                found.said.append(f"source {name}: {key} was {source[key]}, is {now[key]}")
    for name in after.sources:
        if name not in before.sources:
            found.added[name] = "a source that was not read before"
            found.new_sources.add(name)


def _other_order(before: QueryMeanings, after: QueryMeanings) -> str:
    """Return an error text if the streams that Spark reads have another order; else an empty text.

    Spark's log has the offsets of the streams by place, so another order would swap them.
    """
    was, now = ([n for n, node in each.sources.items() if node.get("driven") == BY_SPARK] for each in (before, after))
    former, present = [name for name in was if name in now], [name for name in now if name in was]
    if former == present:
        return ""
    return (
        f"the streams that Spark reads came in the order {', '.join(former)}, now {', '.join(present)}, and Spark stores how far"
        f" it read each of them only by place; write the query, or its results, so that they come as before: {', '.join(former)}"
    )


def _results(found: Comparison, before: QueryMeanings, after: QueryMeanings) -> None:
    for name, old in found.results.items():
        if old is None:
            found.said.append(f"{name} is new")
            found.altered[name] = True
        elif before.result_digest(old) != after.result_digest(name):
            was, now = before.results[old], after.results[name]
            found.said.append(f"{name}: {_result_difference(was, now)}")
            found.altered[name] = was["columns"] != now["columns"]
        elif old != name:
            found.said.append(f"{name} was {old}")
    gone = [name for name in before.results if name not in found.results.values()]
    found.said.extend(f"{NO_LONGER} {name}" for name in gone)


def _result_difference(old: Json, new: Json) -> str:
    names = ([column[0] for column in each["columns"]] for each in (old, new))
    was, is_ = (_words(each["inputs"]) for each in (old, new))
    steps = f"was {was}, is {is_}" if was != is_ else "what it is made of has changed"
    if old["columns"] != new["columns"]:
        steps += "; its columns were {}, are {}".format(*(", ".join(each) for each in names))
    return steps


# --- why an operator differs -----------------------------------------------------------------------------------------


def _twin(name: str, before: QueryMeanings, after: QueryMeanings, kept: Mapping[str, str]) -> str | None:
    """Return the operator of the new query that an old one seems to have become."""
    free = [each for each in after.operators if each not in kept and operator_kind(each) == operator_kind(name)]
    return name if name in free else next(iter(free), None)


def _difference(before: QueryMeanings, after: QueryMeanings, old: str, new: str) -> str:
    one, two = before.operators[old], after.operators[new]
    if different := _keys(one["does"], two["does"]):
        return different
    for was, now in zip(one["inputs"], two["inputs"], strict=True):
        if retyped := _retyped(was, now) or _recomputed(was, now):
            return retyped
        if _words(was) != _words(now):
            return f"its input was {_words(was)}, is {_words(now)}"
        if _names(was) != _names(now):
            return f"the columns of its input were {', '.join(_names(was))}, are {', '.join(_names(now))}"
    changed = [edge["from"] for side in two["inputs"] for edge in side]
    return f"its input from {', '.join(dict.fromkeys(changed))} has changed"


def _keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return "; ".join(f"{key} was {old.get(key)!r}, is {new.get(key)!r}" for key in keys)


def _retyped(old: Sequence[Json], new: Sequence[Json]) -> str:
    """Describe columns with another type, in the input of an operator and in tables joined on the way."""
    return _redefined(old, new, lambda edge: [(edge["from"], edge["reads"]), *_tables(edge)])


def _recomputed(old: Sequence[Json], new: Sequence[Json]) -> str:
    """Describe columns that a producer computes differently."""
    return _redefined(old, new, lambda edge: [(edge["from"], edge.get("computed", []))])


def _redefined(old: Sequence[Json], new: Sequence[Json], listed: Callable[[Json], list[tuple[str, Any]]]) -> str:
    known = {(of, name): what for edge in old for of, columns in listed(edge) for name, what in columns}
    found = [(of, name, what) for edge in new for of, columns in listed(edge) for name, what in columns]
    changed = [(of, name, known[of, name], what) for of, name, what in found if known.get((of, name), what) != what]
    return "; ".join(dict.fromkeys(f"column {name!r} of {of} was {was}, is {what}" for of, name, was, what in changed))


def _tables(edge: Json) -> list[tuple[str, Any]]:
    """Return the tables that are joined along an edge, with the types of the columns that are read."""
    return [(f"table {step['table']}", step["types"]) for step in edge["steps"] if "table" in step]


def _names(edges: Sequence[Json]) -> list[str]:
    """Return the columns that are read along edges, with those that tables add."""
    found = [name for edge in edges for name, _ in edge["reads"]]
    joined = [step for edge in edges for step in edge["steps"] if "table" in step]
    found += [f"{of} of table {step['table']}" for step in joined for _, side, of in step["columns"] if side == "r"]
    return list(dict.fromkeys(found))


def _words(edges: Sequence[Json]) -> str:
    """Describe the producers and steps of edges on one line."""
    return " and ".join(
        ", ".join([edge["from"], *(f"{_verb(step)} {' '.join(step['words'].split())}" for step in edge["steps"])])
        for edge in edges
    )


def _verb(step: Json) -> str:
    return next((verb for verb in ("map", "filter", "sample", "unnest", "split", "table") if verb in step), "step")


# --- the state under the names of the new query ----------------------------------------------------------------------


def rename_in_manifest(last: Manifest, found: Comparison, plan: p.PhysicalPlan, new: Json) -> Manifest:
    """Return the manifest as the new query would have written it. Kept parts have their new names, added operators have
    had no tuple yet, and the outbox is unchanged."""
    layouts, control = last.layouts, dict(last.control)
    if control:
        control["layouts"] = {n: control["layouts"][o] for n, o in found.kept.items() if o in control["layouts"]}
        names = {"all": "all", **{o: n for n, o in found.kept.items()}}
        decisions = [each for each in control["history"] if each["operator"] in names]
        control["history"] = [{**each, "operator": names[each["operator"]]} for each in decisions]
    splits = _renamed_splits(found, last.query, new)
    work = WorkTotals.of(last)
    if work is not None and not found.same_names:  # counts start again, except for splits
        counted = {splits[name]: counts for name, counts in work.counts.split.items() if name in splits}
        work = WorkTotals((), work.since, WorkCounts(split=counted), {})
    results = {n: last.totals.results[o] for n, o in found.results.items() if o in last.totals.results}
    begun = {name: _empty(plan.by_name[name], last.groups) for name in found.added if name in plan.by_name}
    return replace(
        last,
        query=_as_laid(last.query, found, plan, new),
        operators={**{n: last.operators[o] for n, o in found.kept.items() if o in last.operators}, **begun},
        layouts={n: layouts[o] for n, o in found.kept.items() if o in layouts},
        splits={splits[name]: largest for name, largest in last.splits.items() if name in splits},
        totals=replace(last.totals, results=results),
        versions=_renamed_versions(last, found),
        work=work.to_json() if work else {},
        control=control,
    )


def _renamed_versions(last: Manifest, found: Comparison) -> dict[str, str]:
    """Return the versions of the code that made the kept state, and all other versions unchanged."""
    others = {name: version for name, version in last.versions.items() if name not in last.operators}
    return others | {n: last.versions[o] for n, o in found.kept.items() if o in last.versions}


def _as_laid(old: Mapping[str, Any], found: Comparison, plan: p.PhysicalPlan, new: Json) -> Json:
    """Return the new query with the arrangement of the old state. The group of a whole tuple is its hash, whatever its
    columns."""
    laid = identity.state_arrangement(plan)
    for part, now in laid.items():
        was = {n: old[part][o] for n, o in found.kept.items() if o in old[part] and n in now}
        whole = {n for n in now if part == "grouped" and plan.by_name[n].takes_whole}
        added = {n: now[n] for n in now if n in found.added or n in whole}
        laid[part] = {**was, **added}
    since = kept_functions_since(old, found.kept)
    begun = _begun(incomplete_operators(old), incomplete.latest_addition(since), found, plan)
    return {**new, **laid, "changes": old["changes"], **since, **({"begun": begun} if begun else {})}


def _begun(before: Incomplete, since: Incomplete, found: Comparison, plan: p.PhysicalPlan) -> Incomplete:
    """Return what is still incomplete: everything that was before, and changed results of operators with incomplete
    input.

    since: by aggregate with added functions, the time from which on these receive all tuples.
    """
    begun = {n: before[o] for names in (found.kept, found.results) for n, o in names.items() if o in before}
    sources = {source.name: NEVER for source in plan.sources}
    complete = incomplete.complete_since(plan, sources, incomplete.later_of(begun, since))
    changed = {name: incomplete.input_complete_since(plan, name, complete) for name in found.altered}
    return {name: time for name, time in {**begun, **changed}.items() if time != NEVER}


def _renamed_splits(found: Comparison, old: Mapping[str, Any], new: Json) -> dict[str, str]:
    """Return the new name of each split of the state. Both are before the same operators or results, and have the same
    rule."""
    sides = [
        (one, two)
        for mine, former in found.kept.items()
        for one, two in zip(old["means"][former]["inputs"], new["means"][mine]["inputs"], strict=True)
    ]
    known = [(mine, former) for mine, former in found.results.items() if former is not None]
    sides += [(old["results"][former]["inputs"], new["results"][mine]["inputs"]) for mine, former in known]
    names: dict[str, str] = {}
    for one, two in sides:
        for before, after in zip(_splits(one), _splits(two), strict=False):
            if without_loaders(before["split"]) == without_loaders(after["split"]):
                names.setdefault(before["name"], after["name"])
    return names


def _splits(edges: Sequence[Json]) -> list[Json]:
    return [step for edge in edges for step in edge["steps"] if "split" in step]


def _empty(operator: Operator, groups: int) -> OperatorState:
    """Return the state of an operator before its first tuple."""
    tables = {name: table_state(None, name, operator, groups) for name in operator.state_tables}
    return OperatorState(tuple(() for _ in operator.schemas), operator.merge_notes(None, ()), tables)


# --- start or resume -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartedQuery:
    """A query as it runs on a state: over the columns that its sources had when the state began."""

    compiled: CompiledQuery
    query: Json  # the section `query` of the next manifest
    held: Held = field(default_factory=dict)  # by operator and input: the columns that the state has
    waiting: Mapping[str, str | None] = field(default_factory=dict)  # result: its name in the newest outbox
    reshaped: tuple[str, ...] = ()  # results whose columns have changed

    def check_sinks(self, sinks: Mapping[str, Any]) -> None:
        """Raise if a sink holds a result with its former columns, as far as the sink can tell."""
        for result in self.reshaped:
            if (demand := getattr(sinks[result], "demand_columns", None)) is not None:
                demand(self.query["results"][result]["columns"])


def start_on_state(
    store: StateStore, query: CompiledQuery, order: str, labels: Mapping[str, str] | None = None
) -> StartedQuery:
    """Check that a query can continue with the state, and give everything in the state the names that the query uses.

    labels: of results, by `result-N`, for the log.
    """
    last = store.last
    if last is None:
        return StartedQuery(query, {**describe_query(query, order), "changes": []})
    last = rename_tables(last, query.roots)
    over, said = pin_columns(query.roots, last.query["operators"])
    query = query.over(over)
    new = describe_query(query, order)
    last, added = extend_aggregates(last, query.physical(), new)
    found = compare_with_state(store, last, query, new)
    if not found.continues:
        raise QueryChanged(describe_refusal(found))
    found.said.extend(added)
    waiting = _waiting(last, found, delivered=store.all_delivered)
    held = columns_held(found.kept, last.query)
    new = {**describe_query(query, order, held), **kept_functions_since(last.query, found.kept)}
    store.adopt(rename_in_manifest(last, found, query.physical(), new))
    reshaped = tuple(name for name, differ in found.altered.items() if differ)
    return StartedQuery(
        query, {**new, "changes": _noted(last, [*said, *found.said], labels or {})}, held, waiting, reshaped
    )


def describe_query(query: CompiledQuery, order: str, held: Held | None = None) -> Json:
    """Return the section `query` of a manifest. held: the columns that the state of operators has."""
    graph = json.loads(json.dumps(nodes.logical_query(query.roots, query.ordered, order)))
    holding = query.physical(held=held) if held else None
    places = unnamed_table_places(query.roots)
    return {**query_section(query.physical(), graph, holding), **({"places": places} if places else {})}


def compare_with_state(store: StateStore, last: Manifest, query: CompiledQuery, new: Json) -> Comparison:
    """Compare a query with the one that made a state, and with the columns that the state holds."""
    found = compare_queries(last.query, new, last.versions, identity.operator_code(query.physical()))
    same = last.query["operators"] == new["operators"] and joined_tables(last.query) == joined_tables(new)
    reader = None if same else BlockReader(store.storage)
    while unfit := _unfit(last, query, found.kept, reader):
        for name, why in unfit.items():
            found.lost[found.kept[name]] = why
        above = {name: QueryMeanings(new).above(name) for name in found.kept}
        for name in [n for n in found.kept if n in unfit or above[n] & unfit.keys()]:
            found.lost.setdefault(found.kept.pop(name), "its input starts empty")
            found.added[name] = "begins empty"
    _say_what_waits(found, last)
    return found


def _say_what_waits(found: Comparison, last: Manifest) -> None:
    """Add to a lost order how many finished results wait in it, because no operator would make them again."""
    for name in [name for name in found.lost if operator_kind(name) == ORDER and name in last.operators]:
        if rows := sum(block.rows for block in blocks_by_name(last.operators[name].blocks).values()):
            found.lost[name] += f"; {rows:,} results wait in it for earlier ones and would never be delivered"


def _unfit(last: Manifest, query: CompiledQuery, kept: Mapping[str, str], reader: BlockReader | None) -> dict[str, str]:
    """Return the operators whose state does not fit the query, with the reason. reader: None if types and origins are
    unchanged."""
    found = _of_other_columns(last, query, kept)
    if not found and reader is not None:
        found = _of_other_types(reader, last, query, kept) or _of_other_origin(last, query, kept)
    return found


def _of_other_columns(last: Manifest, query: CompiledQuery, kept: Mapping[str, str]) -> dict[str, str]:
    """Return the operators whose state lacks a column that is read now, or has one that no longer arrives, with the
    reason."""
    had, held = last.query["held"], columns_held(kept, last.query)
    found = {}
    for (name, side), columns in query.missing_columns(held).items():
        there, wanted = ", ".join(had[kept[name]][side]), ", ".join(sorted(columns))
        found[name] = f"its state has the columns {there}, but not {wanted}, which is read now"
    if not found:
        for operator in query.physical(held=held).operators:
            was = had.get(kept.get(operator.name, ""))
            if was is not None and (now := [schema.names for schema in operator.schemas]) != was:
                found[operator.name] = f"its state has the columns {was}, of which {now} still arrive"
    return found


def _of_other_types(
    reader: BlockReader, last: Manifest, query: CompiledQuery, kept: Mapping[str, str]
) -> dict[str, str]:
    """Return the operators whose state has a column of another type than now, read or passed on, with the reason."""
    found = {}
    for operator in query.physical(held=columns_held(kept, last.query)).operators:
        state = last.operators.get(kept.get(operator.name, ""))
        if state is None or not operator.holds_tuples:
            continue
        for now, blocks in zip(operator.schemas, state.inputs, strict=False):  # a start refuses fewer inputs
            was = reader.open(blocks[-1]).table.schema if blocks else now
            both = [name for name in now.names if name in was.names]
            changed = [(name, was.field(name).type, now.field(name).type) for name in both]
            if words := [f"column {name!r} was {one}, is {two}" for name, one, two in changed if one != two]:
                found[operator.name] = f"in the tuples of its state, {'; '.join(words)}"
    return found


def _of_other_origin(last: Manifest, query: CompiledQuery, kept: Mapping[str, str]) -> dict[str, str]:
    """Return the operators whose state has a passed-on column with another origin than now, with the reason."""
    new = describe_query(query, "", columns_held(kept, last.query))
    before, after = QueryMeanings(last.query), QueryMeanings(new)
    found = {}
    for name, old in kept.items():
        for side in range(len(after.operators[name]["inputs"])):
            was, now = before.passed(old, side), after.passed(name, side)
            if changed := [column for column in now if was.get(column) != now[column]]:
                words = [f"{c!r} was {', '.join(was.get(c, ['unknown']))}, is {', '.join(now[c])}" for c in changed]
                found[name] = f"in the tuples of its state, column {'; column '.join(words)}"
    return found


def describe_refusal(found: Comparison) -> str:
    """Return the error text for a query that cannot continue with the state."""
    impossible = [f"impossible: {line}" for line in (*found.impossible, *found.shorter)]
    lines = "".join(f"\n  {printable(line)}" for line in (*impossible, *found.listed()))
    ways = [RATHER_NEW] if found.impossible else [RATHER_NEW, CARRY_OVER]
    if found.kept:
        ways.reverse()
    return f"the state belongs to another query:{lines}\n{'; or '.join(ways)}"


def columns_held(kept: Mapping[str, str], query: Mapping[str, Any]) -> Held:
    held = query["held"]
    return {(n, side): names_of(columns) for n, o in kept.items() if o in held for side, columns in enumerate(held[o])}


def _noted(last: Manifest, said: Sequence[str], labels: Mapping[str, str]) -> list[Json]:
    """Log these changes, and return the changes that the next manifest stores, these included."""
    for line in said:
        _log.warning("the query has changed since epoch %s: %s", last.number, printable(labelled(line, labels)))
    known: list[Json] = last.query["changes"]
    return [*known, {"epoch": last.number + 1, "said": list(said)}][-MOST_CHANGES:] if said else known


def _waiting(last: Manifest, found: Comparison, *, delivered: bool) -> dict[str, str | None]:
    """Return for each result its name in the newest outbox, if that has rows for a sink that may not have them.

    Rows of a result with changed steps still go to its sink if their columns fit, because they belong to an earlier
    epoch.
    """
    if delivered:
        return {name: None if name in found.altered else old for name, old in found.results.items()}
    there = {output.result for output in last.outbox}
    gone = [name for name in last.query["results"] if name not in found.results.values()]
    other = [old for name, old in found.results.items() if old is not None and found.altered.get(name)]
    for name in [name for name in (*gone, *other) if name in there]:
        what = "is no longer a result" if name in gone else "has other columns now"
        raise QueryChanged(
            f"{name} {what}, and its rows of epoch {last.number} may not have reached their sink, since the previous run"
            " did not end normally; start once with the former query, which delivers them, and stop; then start with this one"
        )
    return dict(found.results)
