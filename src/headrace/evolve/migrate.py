"""State carried over to another query, into a checkpoint folder of its own.

Invariant: the old checkpoint is only read, under its lock. The new one is made whole and durable beside its place, under a
name that nobody takes for a checkpoint, and comes to its place by one rename: whoever is killed at whatever step leaves
the old one as it was and no new one, and the next attempt begins by sweeping what was left.

Operators whose meaning did not change go on with their blocks, which are linked, not copied, where the file system can. What
is added begins empty; from when on its results are complete follows from the times of the sources and from how far
operators look back.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace import plan as p
from headrace.compile import CompiledQuery
from headrace.driver import identity, stored_checks
from headrace.driver.fingerprint import Json, QueryMeanings, operator_kind
from headrace.driver.position import Position
from headrace.errors import QueryChanged, QueryError, StateError, StateMismatch
from headrace.evolve import compare
from headrace.evolve.added_functions import kept_functions_since
from headrace.evolve.compare import Comparison
from headrace.evolve.pin_columns import pin_columns
from headrace.evolve.table_names import rename_tables
from headrace.query import nodes
from headrace.sources.protocol import driven_sources
from headrace.state.checkpoint_folder import WriterLock
from headrace.state.fsync import sync_path
from headrace.state.manifest import NOTHING_TAKEN, Manifest, SourceState, manifest_name
from headrace.state.storage import open_storage
from headrace.state.store import StateStore
from headrace.support.event_time import FOREVER, NEVER, moment_text
from headrace.support.terminal_text import printable
from headrace.telemetry import incomplete
from headrace.telemetry.incomplete import Begun, incomplete_operators, warning_text

_log = logging.getLogger(__name__)

SPARK_FOLDER = "spark"  # the folder of Spark's own log


@dataclass(frozen=True)
class Migration:
    """What was done, for people."""

    epoch: int  # after which the new checkpoint goes on
    lines: tuple[str, ...]  # kept, lost, added, and what of the rest has changed
    complete: Mapping[str, int | None]  # results that are not complete from the start: from which time on, if from any


def migrate(
    checkpoint: Path, to: Path, roots: Sequence[nodes.Node], ordered: Sequence[bool], order: str = "transparent"
) -> Migration:
    """Make a checkpoint at `to` with which a query goes on from another's."""
    if os.path.lexists(to):
        raise QueryError(f"{str(to)!r} is there already; give a new checkpoint folder as --to")
    old, new = checkpoint.resolve(), to.resolve()
    if new.is_relative_to(old) or old.is_relative_to(new):
        raise QueryError(f"{str(to)!r} and {str(checkpoint)!r} lie one in the other; give a folder beside it as --to")
    storage = open_storage(checkpoint / "state")
    storage.require()
    with StateStore(storage, read_only=True, lease=WriterLock(checkpoint / "state")) as store:
        found, manifest = _carried_over(store, roots, ordered, order)
        _make(checkpoint, to, manifest)
        return found


def _carried_over(
    store: StateStore, roots: Sequence[nodes.Node], ordered: Sequence[bool], order: str
) -> tuple[Migration, Manifest]:
    last = store.last
    if last is None:
        raise StateError("nothing was committed in this checkpoint so far: start the new query with a new one")
    stored_checks.check_manifest(last)
    if last.closed:
        raise StateMismatch("this checkpoint is closed: its input had an end and was processed; use a new folder")
    if last.outbox and not store.all_delivered:
        raise StateMismatch(
            f"the results of epoch {last.number} may not have reached their sinks, since the run did not end in order; start it"
            " once more with the query as it was, which delivers them, and stop it; then migrate"
        )
    last = rename_tables(last, roots)
    over, said = pin_columns(roots, last.query["operators"])
    query = CompiledQuery(over, ordered)
    new = compare.describe_query(query, order)
    found = compare.compare_with_state(store, last, query, new)
    if impossible := [*found.impossible, *_foreign(last, found, new)]:
        refused = "".join(f"\n  impossible: {printable(line)}" for line in impossible)
        raise QueryChanged(f"this state cannot be carried over:{refused}\nuse a new checkpoint folder")
    _check_places(last, over)
    held = compare.columns_held(found.kept, last.query)
    plan, new = query.physical(held=held), compare.describe_query(query, order, held)
    begun = _begun(last, found, plan, QueryMeanings(new))
    _say_withheld(found, plan, begun)
    complete = {name: time for name, time in begun.items() if name in plan.results}
    words = [warning_text(result, time) for result, time in complete.items()]
    lines = [*found.listed(), *found.shorter, *said, *found.said, *words]
    manifest = compare.rename_in_manifest(last, found, plan, new)
    manifest = _with_sources(manifest, plan, new)
    changes = [*manifest.query["changes"], {"epoch": last.number + 1, "said": ["migrated", *lines]}]
    section = {**manifest.query, "changes": changes[-compare.MOST_CHANGES :]}
    if begun := {**incomplete_operators(section), **begun}:  # with what was incomplete before, and still is
        section["begun"] = begun
    manifest = replace(manifest, query=section, outbox=(), decisions=[], run=uuid.uuid4().hex)
    stored_checks.check_manifest(manifest)
    return Migration(last.number, tuple(lines), complete), manifest


def _check_places(last: Manifest, roots: Sequence[nodes.Node]) -> None:
    """Refuse what a run would: sources that go on, and read something else."""
    origins = {name: s.origin for name, s in nodes.named_sources(*roots).items() if name in last.sources}
    found = {name: getattr(origin, "place", None) for name, origin in origins.items()}
    static = [name for name, origin in origins.items() if origin.bounded]
    places = {name: place for name, place in found.items() if place is not None}
    identity.check_source_places(last, places, driven_sources(origins), static)


def _foreign(last: Manifest, found: Comparison, new: Json) -> list[str]:
    """Sources that only stand or fall together: Spark's log knows all that Spark reads, and static ones are read once."""
    if Position.from_json(last.position).kind == "local":
        return []
    driven = {
        node["name"]: node["driven"] for node in (*last.query["operators"], *new["operators"]) if "driven" in node
    }
    names = [name for name in (*found.lost, *found.added) if driven.get(name, "files") not in NOTHING_TAKEN]
    return [f"source {name}: only folders and topics can be added or left out; it is a DataFrame" for name in names]


def _with_sources(manifest: Manifest, plan: p.PhysicalPlan, new: Json) -> Manifest:
    """With the sources of the query: those that are new have delivered nothing, those that are gone never did."""
    sources = {s.name: manifest.sources.get(s.name, SourceState()) for s in plan.sources}
    driven = {n["name"]: NOTHING_TAKEN[n["driven"]] for n in new["operators"] if n.get("driven") in NOTHING_TAKEN}
    counts = {c: sum(getattr(s, c) for s in sources.values()) for c in stored_checks.COUNTS}
    return replace(
        manifest,
        sources=sources,
        ledgers={name: manifest.ledgers.get(name, nothing) for name, nothing in driven.items()},
        totals=replace(manifest.totals, **counts),
    )


# --- from when on results are complete ------------------------------------------------------------------------------------


def _begun(last: Manifest, found: Comparison, plan: p.PhysicalPlan, new: QueryMeanings) -> Begun:
    """The entries of operators that are added, and of results that are new, or that such an operator makes. What is made of
    new sources alone lacks nothing."""
    known = {source.name: last.sources.get(source.name, SourceState()).largest for source in plan.sources}
    arrived = {name: NEVER if largest is None else largest + 1 for name, largest in known.items()}
    before, added = incomplete_operators(last.query), {o.name for o in plan.operators if o.name not in found.kept}
    begun = {name: before[old] for name, old in found.kept.items() if old in before}
    notes = {name: last.operators[old].notes for name, old in found.kept.items() if old in last.operators}
    since = incomplete.latest_addition(kept_functions_since(last.query, found.kept))
    both = incomplete.later_of(begun, since)
    complete = incomplete.complete_since(plan, arrived, both, added, notes)
    begun |= {name: both[name] for name in added if name in both}
    making = {name for name in added if operator_kind(name) != compare.ORDER}
    for result in plan.results:
        if found.results[result] is None or making & new.above(result):
            begun[result] = incomplete.input_complete_since(plan, result, complete)
    return {name: time for name, time in begun.items() if time != NEVER}


def _say_withheld(found: Comparison, plan: p.PhysicalPlan, begun: Begun) -> None:
    """Say which windows an added aggregate does not put out."""
    for operator in incomplete.withhold_incomplete(plan, begun).operators:
        if operator.name in found.added and operator.withholds_before is not None:
            found.added[operator.name] += f"; {_withheld(operator.withholds_before)}"


def _withheld(time: int) -> str:
    if time < FOREVER:
        return f"windows that began before {moment_text(time)} are not put out"
    return "no window is put out, since no time is known from which on all of its input comes"


# --- the new folder ---------------------------------------------------------------------------------------------------------


def _make(checkpoint: Path, to: Path, manifest: Manifest) -> None:
    making = to.parent / f"_{to.name}-{manifest.state_id[:8]}"
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if making.exists():
            shutil.rmtree(making)
        making.mkdir(mode=0o700)
        _fill(checkpoint, making, manifest)
        making.rename(to)  # of the run that holds the lock of the old one
        sync_path(to.parent)
    except OSError as error:
        msg = f"the new checkpoint {str(to)!r} could not be made: {error}; {str(checkpoint)!r} is as it was"
        raise StateError(msg) from error


def _fill(checkpoint: Path, making: Path, manifest: Manifest) -> None:
    """All that is needed, so that a power cut cannot take it."""
    storage = open_storage(making / "state")
    lease = storage.lease()
    try:
        names = [block.name for block in manifest.live_blocks()]
        for name in names:
            _link(checkpoint / "state" / name, making / "state" / name)
        storage.sync(names)
        if (checkpoint / SPARK_FOLDER).is_dir():
            shutil.copytree(checkpoint / SPARK_FOLDER, making / SPARK_FOLDER)
            for path in [making / SPARK_FOLDER, *(making / SPARK_FOLDER).rglob("*")]:
                sync_path(path)
        storage.publish(manifest_name(manifest.number), manifest.to_bytes())
        StateStore(storage).complete()  # as a run will find it
    finally:
        lease.release()
    for path in (making / "state", making):
        sync_path(path)


def _link(block: Path, new: Path) -> None:
    """A block never changes, so two folders may have it; what is copied is checked by its checksum when it is read."""
    try:
        os.link(block, new)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(block, new)
        new.chmod(0o600)
